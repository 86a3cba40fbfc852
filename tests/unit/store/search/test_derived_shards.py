"""Derived shards are byte for byte equal to built ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search import keyword_index, vector_index
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.tokenizer import FUNCTION_WORDS, tokenize
from graphrag_ray.store.search.vector_index import Floats

Texts = dict[str, str]
NAMES = st.text("ab", max_size=3)
VOCABULARY = ["mill", "mills", "milling", "river", "rivers", "die", "Häuser", "字", "字水", "ab", "…"]
TEXT = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join) | st.text(max_size=20)
TEXTS = st.dictionaries(NAMES, TEXT, max_size=20)
LANGUAGES = st.sampled_from(["", *FUNCTION_WORDS])


def make_id(name: str) -> str:
    """Return an id. Some ids share their first half."""
    first, _, last = f"{name:3}".encode().hex().partition("61")
    return f"{first:0>16}{last:0>16}"


def build_bytes(texts: Texts, language: str = "") -> bytes:
    return keyword_index.build([make_id(name) for name in texts], list(texts.values()), language)


def build_shard(texts: Texts, language: str = "") -> keyword_index.KeywordShard:
    return keyword_index.read(InMemory.of(build_bytes(texts, language)))


def derive(texts: Texts, now: Texts, language: str = "", moved: frozenset[str] = frozenset()) -> bytes:
    """Return the derived shard. `moved` records are removed and added unchanged."""
    same = {name for name in texts.keys() & now.keys() if texts[name] == now[name]} - moved
    new_records = {name: text for name, text in now.items() if name not in same}
    removed_ids = [make_id(name) for name in texts if name not in same]
    return keyword_index.update(
        build_shard(texts, language),
        removed_ids,
        [make_id(name) for name in new_records],
        list(new_records.values()),
    )


def draw_changes(
    data: st.DataObject, before: Mapping[str, Any], values: st.SearchStrategy[Any]
) -> dict[str, Any]:
    """Draw records with some removed, added and changed."""
    left = {name: value for name, value in before.items() if data.draw(st.integers(0, 3))}
    return left | data.draw(st.dictionaries(NAMES, values, max_size=6))


@given(TEXTS, LANGUAGES, st.frozensets(NAMES, max_size=3), st.data())
def test_derived_keyword_shard_equals_a_built_one(
    texts: Texts, language: str, moved: frozenset[str], data: st.DataObject
):
    now = draw_changes(data, texts, TEXT)
    assert derive(texts, now, language, moved) == build_bytes(now, language)


@given(TEXTS, TEXTS)
def test_all_words_can_be_replaced(texts: Texts, now: Texts):
    assert derive(texts, {}) == build_bytes({})
    assert derive({}, now) == build_bytes(now)
    assert derive(texts, now) == build_bytes(now)
    assert derive(texts, texts) == build_bytes(texts)


@given(TEXTS, st.data())
def test_shard_can_be_derived_repeatedly(texts: Texts, data: st.DataObject):
    shard, now = build_shard(texts), texts
    for _ in range(3):
        before, now = now, draw_changes(data, now, TEXT)
        removed_ids = [make_id(name) for name in before if name not in now or before[name] != now[name]]
        new_records = {name: text for name, text in now.items() if before.get(name) != text}
        derived = keyword_index.update(
            shard, removed_ids, [make_id(name) for name in new_records], list(new_records.values())
        )
        assert derived == build_bytes(now)
        shard = keyword_index.read(InMemory.of(derived))


@given(TEXTS, st.data())
def test_words_with_equal_hashes_count_as_one(texts: Texts, data: st.DataObject):
    """Collisions can be constructed on purpose."""
    with pytest.MonkeyPatch.context() as patch:
        hashes = keyword_index.word_hashes
        patch.setattr(keyword_index, "word_hashes", lambda of: hashes(of) % np.uint64(5))
        now = draw_changes(data, texts, TEXT)
        assert derive(texts, now) == build_bytes(now)
        assert len(build_shard(now).arrays["words"]) <= 5


def test_words_of_removed_records_disappear():
    shard = keyword_index.read(
        InMemory.of(derive({"a": "mill secret", "b": "mill"}, {"a": "mill", "b": "mill"}))
    )
    assert len(shard.arrays["words"]) == 1


def test_derived_word_counts_are_capped():
    texts = {"a": "mill " * 70_000, "b": "river"}
    now = texts | {"b": "mill", "ba": "river " * 70_000}
    assert derive(texts, now) == build_bytes(now)


@pytest.mark.parametrize(
    ("removed_ids", "new_records"), [(["ab"], []), (["a", "a"], []), ([], ["b"]), (["a"], ["a", "a"])]
)
def test_shard_with_unexpected_records_is_refused(removed_ids: list[str], new_records: list[str]):
    removed_ids, new_records = ([make_id(name) for name in some] for some in (removed_ids, new_records))
    with pytest.raises(ValueError, match=r"it lacks records|it contains a record twice"):
        keyword_index.update(
            build_shard({"a": "mill", "b": "river"}), removed_ids, new_records, ["mill"] * len(new_records)
        )
    shard = vector_index.read(
        InMemory.of(vector_index.build([make_id("a"), make_id("b")], np.eye(2, dtype=np.float32)))
    )
    with pytest.raises(ValueError, match=r"it lacks records|it contains a record twice"):
        vector_index.update(shard, removed_ids, new_records, np.ones((len(new_records), 2), np.float32))


@pytest.mark.parametrize("bad", ["", "a", "z" * 32, "0" * 33])
def test_new_record_with_an_invalid_id_is_refused(bad: str):
    with pytest.raises(ValueError, match="hex"):
        keyword_index.update(build_shard({"a": "mill"}), [], [bad], ["mill"])
    shard = vector_index.read(InMemory.of(vector_index.build([make_id("a")], np.ones((1, 2), np.float32))))
    with pytest.raises(ValueError, match="hex"):
        vector_index.update(shard, [], [bad], np.ones((1, 2), np.float32))


def test_only_new_texts_are_tokenized_and_failures_are_reported(monkeypatch: pytest.MonkeyPatch):
    texts = {f"{n:03}": f"mill {n}" for n in range(100)}
    shard, split = build_shard(texts), []

    def record_call(text: str, language: str) -> list[str]:
        split.append(text)
        if text == "broken":
            raise IndexError(text)
        return tokenize(text, language)

    monkeypatch.setattr(keyword_index, "tokenize", record_call)
    failures: list[tuple[str, str]] = []
    new_records = [make_id("a"), make_id("b")], ["broken", "river"]
    data = keyword_index.update(
        shard, [make_id("007")], *new_records, lambda id_, e: failures.append((id_, str(e)))
    )
    assert split == ["broken", "river"] and failures == [(make_id("a"), "broken")]
    del texts["007"]
    monkeypatch.undo()
    assert data == build_bytes(texts | {"a": "", "b": "river"})
    monkeypatch.setattr(keyword_index, "tokenize", record_call)
    with pytest.raises(IndexError, match="broken"):
        keyword_index.update(shard, [], *new_records)


# vectors


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-30, np.nan, np.inf]) | st.floats(-9, 9, width=32)


def matrix_rows(width: int) -> st.SearchStrategy[list[float]]:
    return st.lists(NUMBERS, min_size=width, max_size=width)


def matrix(rows: Mapping[str, list[float]], width: int) -> Floats:
    return np.array([*rows.values()], np.float32).reshape(-1, width)


@given(st.integers(1, 5), st.booleans(), st.frozensets(NAMES, max_size=3), st.data())
def test_derived_vector_shard_equals_a_built_one(
    width: int, signs: bool, moved: frozenset[str], data: st.DataObject
):
    before = data.draw(st.dictionaries(NAMES, matrix_rows(width), min_size=1, max_size=20))
    now = draw_changes(data, before, matrix_rows(width))
    same = {name for name in before.keys() & now.keys() if before[name] == now[name]} - moved
    new_records = {name: row for name, row in now.items() if name not in same}
    shard = vector_index.read(
        InMemory.of(vector_index.build([*map(make_id, before)], matrix(before, width), signs))
    )
    removed_ids = [make_id(name) for name in before if name not in same]
    derived = vector_index.update(
        shard, removed_ids, [*map(make_id, new_records)], matrix(new_records, width)
    )
    assert derived == vector_index.build([*map(make_id, now)], matrix(now, width), signs)


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("seed", range(3))
def test_derived_large_vector_shard_equals_a_built_one(
    signs: bool, width: int, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Rounding and batches do not depend on other records."""
    monkeypatch.setattr(vector_index, "_BATCH_ROWS", 100)
    dice = np.random.default_rng([seed, width])
    vectors = (dice.normal(size=(700, width)) + 0.3).astype(np.float32)
    ids = [f"{int(n):032x}" for n in dice.permutation(700)]
    shard = vector_index.read(InMemory.of(vector_index.build(ids[:500], vectors[:500], signs)))
    derived = vector_index.update(shard, ids[100:333], ids[500:], vectors[500:])
    stay = [*range(100), *range(333, 700)]
    assert derived == vector_index.build([ids[i] for i in stay], vectors[stay], signs)
    assert vector_index.update(shard, [], [], vectors[:0]) == vector_index.build(
        ids[:500], vectors[:500], signs
    )


@pytest.mark.parametrize("signs", [False, True])
def test_vectors_of_other_dimensions_are_refused(signs: bool):
    shard = vector_index.read(
        InMemory.of(vector_index.build([make_id("a")], np.ones((1, 2), np.float32), signs))
    )
    with pytest.raises(ValueError, match="different number of dimensions"):
        vector_index.update(shard, [], [make_id("b")], np.ones((1, 3), np.float32))


def test_derivation_only_reads_loaded_bytes(watched: Any):
    """Reads outside of loaded ranges would change the result."""
    texts = {f"{n:03}": f"mill {n}" for n in range(100)}
    ids = [make_id(name) for name in texts]
    new_records = [make_id("a")], ["river"]
    data = build_bytes(texts)
    expected = keyword_index.update(keyword_index.read(InMemory.of(data)), ids[:5], *new_records)
    assert keyword_index.update(keyword_index.read(watched(data)), ids[:5], *new_records) == expected
    for signs in (False, True):
        data = vector_index.build(
            ids, np.random.default_rng(7).normal(size=(100, 4)).astype(np.float32), signs
        )
        new = [make_id("a")], np.ones((1, 4), np.float32)
        expected = vector_index.update(vector_index.read(InMemory.of(data)), ids[:5], *new)
        assert vector_index.update(vector_index.read(watched(data)), ids[:5], *new) == expected
