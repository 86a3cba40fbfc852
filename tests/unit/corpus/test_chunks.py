"""Chunks as windows of tokens that cover the text without splitting characters."""

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Chunking
from graphrag_ray.corpus.chunks import Chunk, split_into_chunks
from graphrag_ray.corpus.tokens import count_tokens

V = "cl100k_base"
PROSE = " ".join(f"Item {i}: the mayor of Netherquay met Ulla Garrowby again." for i in range(400))
PLAIN = st.text(st.sampled_from("ab cd,.\nE1"), max_size=400)
CLUSTERS = ["e\u0301", "👩🏽", "👨\u200d👩\u200d👧", "❤\ufe0f", "क\u094d", "a", " "]
ODD = st.text(st.sampled_from("a b\u0301\u200d👩🏽😀漢\n \u2003"), max_size=120)


@st.composite
def options(draw: st.DrawFn) -> Chunking:
    size = draw(st.integers(1, 40))
    return Chunking(
        size=size,
        overlap=draw(st.integers(0, size - 1)),
        min_last_chunk_tokens=draw(st.integers(0, 20)),
    )


def spans(chunks: list[Chunk]) -> list[tuple[int, int]]:
    return [(c.start, c.end) for c in chunks]


@given(PLAIN | ODD, options())
def test_chunks_cover_all_non_whitespace_characters(text: str, chunking: Chunking) -> None:
    chunks = split_into_chunks(text, chunking, V)
    covered = {i for c in chunks for i in range(c.start, c.end)}
    assert [i for i, c in enumerate(text) if not c.isspace() and i not in covered] == []
    assert all(0 <= c.start < c.end <= len(text) for c in chunks)
    assert all(text[c.start : c.end].strip() for c in chunks)


@given(PLAIN | ODD, options())
def test_starts_and_ends_increase_and_token_counts_are_exact(text: str, chunking: Chunking) -> None:
    chunks = split_into_chunks(text, chunking, V)
    for a, b in itertools.pairwise(chunks):
        assert a.start < b.start
        assert a.end < b.end
    assert [c.n_tokens for c in chunks] == [count_tokens(text[c.start : c.end], V) for c in chunks]


def test_size_document_makes_one_chunk() -> None:
    assert split_into_chunks(PROSE, Chunking(size="document"), V) == [
        Chunk(0, len(PROSE), count_tokens(PROSE, V))
    ]
    assert split_into_chunks(" x\n", Chunking(size="document"), V) == [Chunk(0, 3, count_tokens(" x\n", V))]


@pytest.mark.parametrize("size", [600, 1, "document"])
@pytest.mark.parametrize("text", ["", " ", "\n\t \u2003\u00a0"])
def test_blank_text_has_no_chunks(text: str, size: int) -> None:
    assert split_into_chunks(text, Chunking(size=size, overlap=0), V) == []


@given(st.lists(st.sampled_from(CLUSTERS), max_size=60).map("".join), options())
def test_grapheme_clusters_are_not_split(text: str, chunking: Chunking) -> None:
    places = {p for c in split_into_chunks(text, chunking, V) for p in (c.start, c.end)} - {0, len(text)}
    for place in places:
        assert unicodedata.category(text[place]) not in ("Mn", "Mc", "Me")
        assert text[place] not in "\u200d🏽"
        assert text[place - 1] != "\u200d"


def test_very_long_combining_sequence_is_split() -> None:
    text = "e" + "\u0301" * 5000
    chunks = split_into_chunks(text, Chunking(size=100, overlap=10), V)
    assert len(chunks) > 50
    assert chunks[-1].end == len(text)


def test_character_larger_than_the_window_is_not_split() -> None:
    text = "x😀y"
    chunks = split_into_chunks(text, Chunking(size=1, overlap=0, min_last_chunk_tokens=0), V)
    assert [text[c.start : c.end] for c in chunks] == ["x", "😀", "y"]


def test_long_line_is_split() -> None:
    text = "a" * 2_000_000
    chunks = split_into_chunks(text, Chunking(), V)
    assert chunks[-1].end == len(text)
    assert max(c.n_tokens for c in chunks) <= 649
    assert len(chunks) <= -(-(count_tokens(text, V) - 100) // 500)


@given(st.text(max_size=300), options(), st.sampled_from(["cl100k_base", "o200k_base", "llama3", "qwen3"]))
def test_chunking_is_deterministic_in_every_vocabulary(
    text: str, chunking: Chunking, vocabulary: str
) -> None:
    chunks = split_into_chunks(text, chunking, vocabulary)
    assert spans(chunks) == spans(split_into_chunks(text, chunking, vocabulary))
    covered = {i for c in chunks for i in range(c.start, c.end)}
    assert all(c.isspace() or i in covered for i, c in enumerate(text))
