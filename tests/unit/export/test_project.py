"""The exported settings.yaml, read like graphrag does: variables are substituted before YAML is parsed."""

from __future__ import annotations

from string import Template
from typing import Any

import pytest
import yaml

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.export.microsoft import settings_yaml

VARIABLES = {
    "GRAPHRAG_API_KEY": "k", "GRAPHRAG_API_BASE": "http://a/v1", "GRAPHRAG_MODEL": "m",
    "GRAPHRAG_EMBEDDING_MODEL": "e", "MY_KEY": "mine", "OPENAI_API_KEY": "theirs",
}  # fmt: skip


def read(text: str, variables: dict[str, str] = VARIABLES) -> dict[str, Any]:
    return yaml.safe_load(Template(text).substitute(variables))


def models(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = read(text)
    chat = found["completion_models"]["default_completion_model"]
    return chat, found["embedding_models"]["default_embedding_model"]


def of(chat: dict[str, Any], **more: Any) -> Settings:
    return parse_settings({"models": {"default": {"provider": "openai", **chat}, **more}})


def test_models_have_their_addresses_and_the_variables_of_their_keys():
    own = {"base_url": "http://here/v1", "api_key_env": "MY_KEY"}
    embedding = {"provider": "openai", "model": "text-embedding-3-small", "embedding_dimensions": 512}
    text = settings_yaml(of({"model": "gpt", "endpoints": [own]}, embedding=embedding), 512, 3)
    chat, embedded = models(text)
    assert chat == {
        "model_provider": "openai", "model": "gpt", "api_base": "http://here/v1", "api_key": "mine",
    }  # fmt: skip
    assert embedded["model"] == "text-embedding-3-small" and embedded["call_args"] == {"dimensions": 512}
    assert embedded["api_base"] == "https://api.openai.com/v1" and embedded["api_key"] == "theirs"
    assert "mine" not in text and read(text)["vector_store"]["vector_size"] == 512


def test_environment_variables_replace_a_missing_model():
    chat, embedding = models(settings_yaml(Settings(), 256, 1))
    assert chat["model"] == "m" and chat["api_base"] == "http://a/v1" and chat["api_key"] == "k"
    assert (
        embedding["model"] == "e" and embedding["api_base"] == "http://a/v1" and "call_args" not in embedding
    )


def test_offline_embeddings_are_replaced_by_a_model_at_the_chat_address():
    chat, embedding = models(settings_yaml(of({"model": "gpt"}), 256, 1))
    assert embedding["model"] == "e" and embedding["api_base"] == chat["api_base"]


def test_an_endpoint_without_a_key_gets_the_key_none():
    chat, _ = models(settings_yaml(of({"model": "m", "endpoints": [{"api_key_env": None}]}), 8, 1))
    assert chat["api_key"] == "none"


def test_a_key_in_a_file_becomes_a_variable():
    endpoint = {"api_key_env": None, "api_key_file": "/run/secrets/key"}
    chat, _ = models(settings_yaml(of({"model": "m", "endpoints": [endpoint]}), 8, 1))
    assert chat["api_key"] == "k"


@pytest.mark.parametrize("name", ['a"b', "a$HOME", "${MY_KEY}", "a: b # c", "a\nb: c", "org/model:latest"])
def test_any_model_name_survives(name: str):
    chat, _ = models(settings_yaml(of({"model": name}), 8, 1, notes=[f"about {name}"]))
    assert chat["model"] == name


def test_settings_without_vectors_have_no_dimension_and_notes_are_comments():
    note = "word " * 60 + "\n- not: yaml"
    text = settings_yaml(Settings(), 0, 1, [note, note])
    assert "vector_size" not in read(text)["vector_store"] and "not" not in read(text)
    assert max(map(len, text.splitlines())) <= 110
