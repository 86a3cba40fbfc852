"""Titles are found in texts as by a search for each of them, in texts that the keyword index finds."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hostile_text import texts as hostile_texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search import keyword_index
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.title_matcher import (
    MAX_CHARS,
    MAX_LITERAL_CHARS,
    MAX_WORD_CHARS,
    MAX_WORDS,
    TitleMatcher,
)
from graphrag_ray.store.search.tokenizer import split_words

WORDS = st.sampled_from(
    ["Charmed", "charmed", "new", "York", "C", "C++", "f(x)", "Straße", "STRASSE", "字", "水", "It", "—"]
)
PHRASES = st.lists(WORDS, max_size=6).map(" ".join)
ANY = PHRASES | hostile_texts().map(lambda text: text.encode("utf-8", "ignore").decode())


def find(titles: list[str], text: str) -> set[str]:
    matcher = TitleMatcher.build(pa.array(titles, pa.string()))
    _, numbers = matcher.find([text])
    return {matcher.titles[n].as_py() for n in numbers.tolist()}


def find_one_by_one(titles: list[str], text: str) -> set[str]:
    by_words = {}
    for title in sorted(titles):
        words = tuple(word.casefold() for word in split_words(title))
        if len(title) <= MAX_CHARS and max(map(len, words), default=0) <= MAX_WORD_CHARS:
            by_words[words] = title
    spelled = split_words(text)
    words = [word.casefold() for word in spelled]
    found, start = set(), 0
    while start < len(words):
        for size in range(min(MAX_WORDS, len(words) - start), 0, -1):
            title = by_words.get(tuple(words[start : start + size]))
            if title is None:
                continue
            in_lower_case = title != title.lower() and spelled[start].islower()
            other_spelling = len(words[start]) <= MAX_LITERAL_CHARS and title not in text
            if size > 1 or not (in_lower_case or other_spelling):
                found.add(title)
                start += size - 1
                break
        start += 1
    return found


@given(st.lists(ANY, max_size=8), ANY)
def test_titles_are_found_like_one_by_one(titles: list[str], text: str):
    assert find(titles, text) == find_one_by_one(titles, text)


@given(st.lists(PHRASES, max_size=8), st.lists(ANY, max_size=5))
def test_texts_in_a_batch_do_not_influence_each_other(titles: list[str], texts: list[str]):
    matcher = TitleMatcher.build(pa.array(titles, pa.string()))
    pairs = list(zip(*(numbers.tolist() for numbers in matcher.find(texts)), strict=True))
    assert pairs == sorted(set(pairs))
    for n, text in enumerate(texts):
        assert {matcher.titles[title].as_py() for i, title in pairs if i == n} == find(titles, text)


@given(st.lists(ANY, max_size=5), st.lists(ANY, min_size=1, max_size=4), st.sampled_from(["", "english"]))
def test_the_keyword_index_finds_all_texts_that_contain_a_title(
    texts: list[str], titles: list[str], language: str
):
    ids = [f"{n:032x}" for n in range(len(texts))]
    shard = keyword_index.read(InMemory.of(keyword_index.build(ids, texts, language)))
    candidates = keyword_index.find_with_all_words([shard], titles)
    for id_, text in zip(ids, texts, strict=True):
        assert id_ in candidates or not find(titles, text)


@pytest.mark.parametrize(
    ("title", "text", "is_found"),
    [
        ("Neighbours", "She appeared in Neighbours.", True),
        ("Charmed", "They were charmed by it.", False),
        ("aircraft carrier", "The Aircraft Carrier was sunk.", True),
        ("f(x)", "a member of f(x)", True),
        ("C++", "written in C++.", True),
        ("C++", "written in C.", False),
        ("New York", "in New York City", True),
        ("東京", "東京大学", True),
    ],
)
def test_kinds_of_titles(title: str, text: str, is_found: bool):
    assert find([title], text) == ({title} if is_found else set())


def test_of_overlapping_titles_the_longest_counts():
    assert find(["New York", "New York City", "City"], "New York City") == {"New York City"}
