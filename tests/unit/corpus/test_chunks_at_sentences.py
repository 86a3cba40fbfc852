"""Chunk boundaries between sentences or, failing that, between words."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Chunking
from graphrag_ray.corpus.chunks import Chunk, split_into_chunks
from graphrag_ray.corpus.tokens import count_tokens

V = "o200k_base"
WORDS = (
    *("the", "of", "grew", "Netherquay", "internationally", "$9.9", "30,000", "U.S.", "Dr.", "12:30", "1/2"),
    *("9%", "“Yes,”", "(see", "p.", "7)", "customers,", "Ole's", "naïve", "e\u0301te\u0301", "🇩🇪🇫🇷"),
    "👨\u200d👩\u200d👧",
)
ENDS = (" ", " ", " ", " ", " ", ". ", ".\n", "! ", "?” ", "\n\n", "  ", "\n")
SENTENCES = [f"Item {i}: the mayor of Netherquay met Ulla Garrowby, for $9.9 million." for i in range(400)]
PROSE = " ".join(SENTENCES)
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(ENDS)), max_size=150).map(
    lambda pairs: "".join(word + end for word, end in pairs)
)


@st.composite
def options(draw: st.DrawFn) -> Chunking:
    size = draw(st.integers(24, 120))
    overlap = draw(st.integers(0, size // 2))
    return Chunking(size=size, overlap=overlap, min_last_chunk_tokens=draw(st.integers(0, size // 4)))


def texts(text: str, chunks: list[Chunk]) -> list[str]:
    return [text[c.start : c.end] for c in chunks]


def overlaps(text: str, chunks: list[Chunk]) -> list[int]:
    return [count_tokens(text[b.start : a.end], V) for a, b in itertools.pairwise(chunks)]


def test_chunks_of_prose_are_whole_sentences() -> None:
    chunks = split_into_chunks(PROSE, Chunking(), V)
    assert len(chunks) > 10
    for text in texts(PROSE, chunks):
        assert set(re.split(r"(?<=[.]) (?=Item)", text)) <= set(SENTENCES)
    sentence = count_tokens(SENTENCES[300], V)
    assert all(600 - sentence <= c.n_tokens <= 600 for c in chunks[:-1])
    assert all(abs(n - 100) <= sentence for n in overlaps(PROSE, chunks))


@given(TEXTS, options())
def test_chunks_do_not_split_words_or_exceed_their_size(text: str, chunking: Chunking) -> None:
    assert isinstance(chunking.size, int)
    chunks = split_into_chunks(text, chunking, V)
    for c in chunks:
        most = chunking.size + (max(0, chunking.min_last_chunk_tokens - 1) if c is chunks[-1] else 0)
        assert c.n_tokens == count_tokens(text[c.start : c.end], V) <= most
        assert not text[c.start - 1 : c.start].strip()
        assert not text[c.end : c.end + 1].strip()


@given(TEXTS, options(), st.sampled_from(["", "Title: The Gazette\n\n"]))
def test_chunks_cover_the_text_with_about_the_requested_overlap(
    text: str, chunking: Chunking, header: str
) -> None:
    chunks = split_into_chunks(text, chunking, V, header)
    covered = {i for c in chunks for i in range(c.start, c.end)}
    assert all(c.isspace() or i in covered for i, c in enumerate(text))
    assert all(n <= chunking.overlap * 3 // 2 + 20 for n in overlaps(text, chunks))
    assert all(a.start < b.start and a.end < b.end for a, b in itertools.pairwise(chunks))


def test_text_that_fits_is_one_unchanged_chunk() -> None:
    text = " One. \n"
    assert split_into_chunks(text, Chunking(), V) == [Chunk(0, len(text), count_tokens(text, V))]


def test_small_remainder_joins_the_last_chunk() -> None:
    text = " ".join(SENTENCES[:30])
    n, sentence = count_tokens(text, V), count_tokens(SENTENCES[29], V)
    (only,) = split_into_chunks(text, Chunking(size=n - 5, overlap=0, min_last_chunk_tokens=50), V)
    assert only == Chunk(0, len(text), n)
    first, last = split_into_chunks(
        text, Chunking(size=n - 5, overlap=0, min_last_chunk_tokens=sentence - 5), V
    )
    assert (first.end, last.n_tokens) == (last.start - 1, sentence)


def test_text_without_sentences_is_split_between_lines() -> None:
    lines = [f"{i:02}:00 so the mayor of netherquay met ulla again" for i in range(60)]
    for text in texts(
        "\n".join(lines), split_into_chunks("\n".join(lines), Chunking(size=100, overlap=20), V)
    ):
        assert set(text.split("\n")) <= set(lines)


@pytest.mark.parametrize(
    ("sentence", "stop"),
    [
        ("今天天气很好我们一起去公园散步", "。"),
        ("彼は昨日東京へ行きましたか", "？"),
        ("यह एक बहुत अच्छा दिन था", "। "),
        ("كان هذا يوما جميلا جدا", "؟ "),
    ],
)
def test_sentences_in_other_scripts_are_not_split(sentence: str, stop: str) -> None:
    text = (sentence + stop) * 60
    chunks = split_into_chunks(text, Chunking(size=100, overlap=20), V)
    assert len(chunks) > 3
    for part in texts(text, chunks):
        assert part.startswith(sentence)
        assert part.endswith(stop.strip())


@pytest.mark.parametrize(
    "unit", ["今天天气很好", "สวัสดีครับ", "🇩🇪", "👨\u200d👩\u200d👧", "क्षि", "a", "9", "e\u0301"]
)
def test_text_without_boundaries_is_split_between_characters(unit: str) -> None:
    text = unit * 2_000
    chunks = split_into_chunks(text, Chunking(size=100, overlap=20), V)
    assert len(chunks) > 2
    assert all(c.n_tokens <= 100 for c in chunks[:-1])
    if len(unit) < 6:
        assert all(c.start % len(unit) == c.end % len(unit) == 0 for c in chunks)


def test_numbers_are_not_split_at_commas() -> None:
    text = "|".join(f"{i},{i:03}.5" for i in range(1, 900))
    for part in texts(text, split_into_chunks(text, Chunking(size=100, overlap=20), V)):
        assert all(re.fullmatch(r"\d+,\d{3}\.5", number) for number in part.strip("|").split("|"))


def test_long_whitespace_is_in_no_chunk() -> None:
    text = "One. " + "\n \t" * 5_000 + "Two."
    assert texts(text, split_into_chunks(text, Chunking(size=30, overlap=10), V)) == ["One.", "Two."]


def test_small_remainder_of_long_tokens_joins_the_last_chunk() -> None:
    text = ("a" + " " * 400 + "b") * 700
    chunks = split_into_chunks(text, Chunking(size=100, overlap=20, min_last_chunk_tokens=50), V)
    assert count_tokens(text[chunks[-2].end :], V) >= 50
