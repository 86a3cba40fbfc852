"""A shard that is derived from an earlier one is, byte by byte, the one that is built of the same records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search import keyword_index, vector_index
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.tokenizer import WORDS, tokenize
from graphrag_ray.store.search.vector_index import Floats

Texts = dict[str, str]
NAMES = st.text("ab", max_size=3)
VOCABULARY = ["mill", "mills", "milling", "river", "rivers", "die", "Häuser", "字", "字水", "ab", "…"]
TEXT = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join) | st.text(max_size=20)
TEXTS = st.dictionaries(NAMES, TEXT, max_size=20)
LANGUAGES = st.sampled_from(["", *WORDS])


def id_of(name: str) -> str:
    """Some share their first half."""
    first, _, last = f"{name:3}".encode().hex().partition("61")
    return f"{first:0>16}{last:0>16}"


def built(texts: Texts, language: str = "") -> bytes:
    return keyword_index.build([id_of(name) for name in texts], list(texts.values()), language)


def shard_of(texts: Texts, language: str = "") -> keyword_index.KeywordShard:
    return keyword_index.read(InMemory.of(built(texts, language)))


def changed(texts: Texts, now: Texts, language: str = "", moved: frozenset[str] = frozenset()) -> bytes:
    """moved: names of texts that go and come although they are the same."""
    same = {name for name in texts.keys() & now.keys() if texts[name] == now[name]} - moved
    come = {name: text for name, text in now.items() if name not in same}
    gone = [id_of(name) for name in texts if name not in same]
    return keyword_index.update(
        shard_of(texts, language), gone, [id_of(name) for name in come], list(come.values())
    )


def after(data: st.DataObject, before: Mapping[str, Any], values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Some records removed, some added, some changed."""
    left = {name: value for name, value in before.items() if data.draw(st.integers(0, 3))}
    return left | data.draw(st.dictionaries(NAMES, values, max_size=6))


@given(TEXTS, LANGUAGES, st.frozensets(NAMES, max_size=3), st.data())
def test_derived_keyword_shard_equals_a_built_one(
    texts: Texts, language: str, moved: frozenset[str], data: st.DataObject
):
    now = after(data, texts, TEXT)
    assert changed(texts, now, language, moved) == built(now, language)


@given(TEXTS, TEXTS)
def test_all_words_can_be_replaced(texts: Texts, now: Texts):
    assert changed(texts, {}) == built({})
    assert changed({}, now) == built(now)
    assert changed(texts, now) == built(now)
    assert changed(texts, texts) == built(texts)


@given(TEXTS, st.data())
def test_shard_can_be_derived_repeatedly(texts: Texts, data: st.DataObject):
    shard, now = shard_of(texts), texts
    for _ in range(3):
        before, now = now, after(data, now, TEXT)
        gone = [id_of(name) for name in before if name not in now or before[name] != now[name]]
        come = {name: text for name, text in now.items() if before.get(name) != text}
        derived = keyword_index.update(shard, gone, [id_of(name) for name in come], list(come.values()))
        assert derived == built(now)
        shard = keyword_index.read(InMemory.of(derived))


@given(TEXTS, st.data())
def test_words_with_equal_hashes_count_as_one(texts: Texts, data: st.DataObject):
    """Whoever takes the trouble finds two."""
    with pytest.MonkeyPatch.context() as patch:
        hashes = keyword_index._hashes
        patch.setattr(keyword_index, "_hashes", lambda of: hashes(of) % np.uint64(5))
        now = after(data, texts, TEXT)
        assert changed(texts, now) == built(now)
        assert len(shard_of(now).arrays["words"]) <= 5


def test_words_of_removed_records_disappear():
    shard = keyword_index.read(
        InMemory.of(changed({"a": "mill secret", "b": "mill"}, {"a": "mill", "b": "mill"}))
    )
    assert len(shard.arrays["words"]) == 1


def test_derived_word_counts_are_capped():
    texts = {"a": "mill " * 70_000, "b": "river"}
    now = texts | {"b": "mill", "ba": "river " * 70_000}
    assert changed(texts, now) == built(now)


@pytest.mark.parametrize(("gone", "come"), [(["ab"], []), (["a", "a"], []), ([], ["b"]), (["a"], ["a", "a"])])
def test_shard_with_unexpected_records_is_refused(gone: list[str], come: list[str]):
    gone, come = ([id_of(name) for name in some] for some in (gone, come))
    with pytest.raises(ValueError, match=r"it lacks records|it contains a record twice"):
        keyword_index.update(shard_of({"a": "mill", "b": "river"}), gone, come, ["mill"] * len(come))
    shard = vector_index.read(
        InMemory.of(vector_index.build([id_of("a"), id_of("b")], np.eye(2, dtype=np.float32)))
    )
    with pytest.raises(ValueError, match=r"it lacks records|it contains a record twice"):
        vector_index.update(shard, gone, come, np.ones((len(come), 2), np.float32))


@pytest.mark.parametrize("bad", ["", "a", "z" * 32, "0" * 33])
def test_new_record_with_an_invalid_id_is_refused(bad: str):
    with pytest.raises(ValueError, match="hex"):
        keyword_index.update(shard_of({"a": "mill"}), [], [bad], ["mill"])
    shard = vector_index.read(InMemory.of(vector_index.build([id_of("a")], np.ones((1, 2), np.float32))))
    with pytest.raises(ValueError, match="hex"):
        vector_index.update(shard, [], [bad], np.ones((1, 2), np.float32))


def test_only_new_texts_are_tokenized_and_failures_are_reported(monkeypatch: pytest.MonkeyPatch):
    texts = {f"{n:03}": f"mill {n}" for n in range(100)}
    shard, split = shard_of(texts), []

    def noted(text: str, language: str) -> list[str]:
        split.append(text)
        if text == "broken":
            raise IndexError(text)
        return tokenize(text, language)

    monkeypatch.setattr(keyword_index, "tokenize", noted)
    told: list[tuple[str, str]] = []
    come = [id_of("a"), id_of("b")], ["broken", "river"]
    data = keyword_index.update(shard, [id_of("007")], *come, lambda id_, e: told.append((id_, str(e))))
    assert split == ["broken", "river"] and told == [(id_of("a"), "broken")]
    del texts["007"]
    monkeypatch.undo()
    assert data == built(texts | {"a": "", "b": "river"})
    monkeypatch.setattr(keyword_index, "tokenize", noted)
    with pytest.raises(IndexError, match="broken"):
        keyword_index.update(shard, [], *come)


# vectors


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-30, np.nan, np.inf]) | st.floats(-9, 9, width=32)


def rows_of(width: int) -> st.SearchStrategy[list[float]]:
    return st.lists(NUMBERS, min_size=width, max_size=width)


def matrix(rows: Mapping[str, list[float]], width: int) -> Floats:
    return np.array([*rows.values()], np.float32).reshape(-1, width)


@given(st.integers(1, 5), st.booleans(), st.frozensets(NAMES, max_size=3), st.data())
def test_derived_vector_shard_equals_a_built_one(
    width: int, signs: bool, moved: frozenset[str], data: st.DataObject
):
    before = data.draw(st.dictionaries(NAMES, rows_of(width), min_size=1, max_size=20))
    now = after(data, before, rows_of(width))
    same = {name for name in before.keys() & now.keys() if before[name] == now[name]} - moved
    come = {name: row for name, row in now.items() if name not in same}
    shard = vector_index.read(
        InMemory.of(vector_index.build([*map(id_of, before)], matrix(before, width), signs))
    )
    gone = [id_of(name) for name in before if name not in same]
    derived = vector_index.update(shard, gone, [*map(id_of, come)], matrix(come, width))
    assert derived == vector_index.build([*map(id_of, now)], matrix(now, width), signs)


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("seed", range(3))
def test_derived_large_vector_shard_equals_a_built_one(
    signs: bool, width: int, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """What is rounded, and in which portions, depends on no other record."""
    monkeypatch.setattr(vector_index, "_BATCH_ROWS", 100)
    dice = np.random.default_rng([seed, width])
    own = (dice.normal(size=(700, width)) + 0.3).astype(np.float32)
    ids = [f"{int(n):032x}" for n in dice.permutation(700)]
    shard = vector_index.read(InMemory.of(vector_index.build(ids[:500], own[:500], signs)))
    derived = vector_index.update(shard, ids[100:333], ids[500:], own[500:])
    stay = [*range(100), *range(333, 700)]
    assert derived == vector_index.build([ids[i] for i in stay], own[stay], signs)
    assert vector_index.update(shard, [], [], own[:0]) == vector_index.build(ids[:500], own[:500], signs)


@pytest.mark.parametrize("signs", [False, True])
def test_vectors_of_other_dimensions_are_refused(signs: bool):
    shard = vector_index.read(
        InMemory.of(vector_index.build([id_of("a")], np.ones((1, 2), np.float32), signs))
    )
    with pytest.raises(ValueError, match="different dimensions"):
        vector_index.update(shard, [], [id_of("b")], np.ones((1, 3), np.float32))


def test_derivation_only_reads_loaded_bytes(watched: Any):
    """Nothing is looked at that was not asked for before."""
    texts = {f"{n:03}": f"mill {n}" for n in range(100)}
    ids = [id_of(name) for name in texts]
    come = [id_of("a")], ["river"]
    data = built(texts)
    expected = keyword_index.update(keyword_index.read(InMemory.of(data)), ids[:5], *come)
    assert keyword_index.update(keyword_index.read(watched(data)), ids[:5], *come) == expected
    for signs in (False, True):
        data = vector_index.build(
            ids, np.random.default_rng(7).normal(size=(100, 4)).astype(np.float32), signs
        )
        new = [id_of("a")], np.ones((1, 4), np.float32)
        expected = vector_index.update(vector_index.read(InMemory.of(data)), ids[:5], *new)
        assert vector_index.update(vector_index.read(watched(data)), ids[:5], *new) == expected
