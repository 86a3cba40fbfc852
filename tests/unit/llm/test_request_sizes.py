import pytest

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.llm.request_sizes import guessed_vocabularies


def test_a_model_with_unknown_vocabulary_is_reported():
    models = {
        "default": Model(provider="openai", model="gpt-4o-mini"),
        "cheap": Model(provider="openai", model="house-blend-7b"),
        "offline": Model(),
    }
    (message,) = guessed_vocabularies(models)
    assert "house-blend-7b" in message
    assert "o200k_base" in message
    assert "models.cheap.tokenizer" in message


@pytest.mark.parametrize("tokenizer", ["llama3", "cl100k_base"])
def test_a_configured_vocabulary_is_not_reported(tokenizer):
    assert (
        guessed_vocabularies({"m": Model(provider="openai", model="house-blend", tokenizer=tokenizer)}) == []
    )
