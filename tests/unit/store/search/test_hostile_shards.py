"""Hostile shards with a matching hash are refused or searched without out-of-range reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.search import keyword_index, row_index, vector_index
from graphrag_ray.store.search.mapped_arrays import ByteSource, InMemory, MappedArray, block_heads, pack

IDS = [f"{i:016x}{i:016x}" for i in range(300)]
HALVES = np.arange(300, dtype=np.uint64)
MATRIX = np.random.default_rng(7).normal(size=(len(IDS), 4)).astype(np.float32)
WANTED = vector_index.normalize(MATRIX[:1])[0]
MANY = np.random.default_rng(7).normal(size=(1_100, 4)).astype(np.float32)
MANY_IDS = [f"{i:016x}{i:016x}" for i in range(len(MANY))]
TEXTS = [f"word{i % 7} and {i}" for i in range(300)]
GROUP = {"id": row_index.entry_type(["id"], ["rank"])}


def search_keywords(source: ByteSource) -> None:
    shard = keyword_index.read(source)
    for among in (None, IDS[5:90:3], []):
        assert len(keyword_index.search([shard, shard], "word3 and 7", 5, among)) <= 5


def search_vectors(source: ByteSource) -> None:
    shard = vector_index.read(source)
    if shard.dimensions == len(WANTED):
        for among in (None, IDS[5:90:3], []):
            with np.errstate(all="ignore"):
                hits = vector_index.search([shard, shard], WANTED, 5, among)
            assert len(hits) <= 5 and np.isfinite([score for _, score in hits]).all()


def search_rows(source: ByteSource) -> None:
    index = row_index.read(source, GROUP)
    if index.has("id"):
        for limit in (None, 1):
            found = index.find("id", HALVES, HALVES, limit)
            row_index.best_per_id([found, found], 1)
            assert not len(found.rows) or 0 <= found.rows.min() <= found.rows.max() < index.n_rows
    rows = np.arange(min(300, index.n_rows))
    pages = index.pages_of_rows("text", rows)
    if pages is not None:
        found_pages = index.locate_pages("text", pages)
        first_rows = found_pages.first
        assert (first_rows <= rows).all() and (rows < first_rows + found_pages.rows).all()


def row_index_bytes() -> bytes:
    entries = np.zeros(300, GROUP["id"])
    entries["key"] = entries["place"] = entries["id"]["high"] = entries["id"]["low"] = HALVES
    pages = np.zeros(30, row_index.PAGE)
    pages["start"], pages["size"], pages["values"] = 4 + 100 * np.arange(30), 100, 10
    return row_index.build([100, 0, 200], {"id": entries}, {"text": (np.arange(0, 301, 10), pages)})


SHARDS: dict[str, tuple[Callable[[ByteSource], None], bytes]] = {
    "keyword": (search_keywords, keyword_index.build(IDS, TEXTS, "english")),
    "vector": (search_vectors, vector_index.build(IDS, MATRIX)),
    "signs": (search_vectors, vector_index.build(MANY_IDS, MANY, signs=True)),
    "rows": (search_rows, row_index_bytes()),
}


def mutate(data: bytes, seed: int) -> bytes:
    """Change some bytes, half of them in the directory at the end."""
    dice, changed = random.Random(seed), bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8, 60))):
        at = dice.randrange(dice.choice((0, max(0, len(changed) - 700))), len(changed) - 4)
        if dice.random() < 0.02:
            del changed[max(at, 8) :]
            return bytes(changed)
        n = dice.choice((1, 4, 8))
        changed[at : at + n] = dice.choice(
            (b"\xff" * n, bytes(n), dice.randbytes(n), len(IDS).to_bytes(4, "little"), b"9" * n)
        )
    return bytes(changed)


@pytest.mark.parametrize("kind", SHARDS)
@pytest.mark.parametrize("first", range(0, 800, 200))
def test_changed_shard_is_refused_or_searched_safely(kind: str, first: int):
    search, data = SHARDS[kind]
    search(InMemory.of(data))
    refused = 0
    for seed in range(first, first + 200):
        try:
            search(InMemory.of(mutate(data, seed)))
        except ValueError:
            refused += 1
    assert 0 < refused < 200


@pytest.mark.parametrize("kind", SHARDS)
def test_refusals_come_from_the_byte_source(kind: str, watched: Any, not_the_file: type[Exception]):
    """So that the message names the file."""
    search, data = SHARDS[kind]
    search(watched(data))
    refused = 0
    for seed in range(150):
        try:
            search(watched(mutate(data, seed)))
        except not_the_file:
            refused += 1
    assert 0 < refused < 150


@pytest.mark.parametrize("kind", SHARDS)
@pytest.mark.parametrize("dice", range(3))
def test_arbitrary_arrays_are_refused_or_searched_safely(kind: str, dice: int):
    """Replace each array by small, large or arbitrary numbers, which changes of single bytes rarely give."""
    search, data = SHARDS[kind]
    rng = np.random.default_rng(dice)
    shard: Any = (
        row_index.read(InMemory.of(data), GROUP)
        if kind == "rows"
        else (keyword_index if kind == "keyword" else vector_index).read(InMemory.of(data))
    )
    arrays: dict[str, MappedArray] = shard.arrays
    whole = {name: array.whole() for name, array in arrays.items()}
    refused: set[str] = set()
    for name, array in whole.items():
        for replacement in (
            np.frombuffer(rng.bytes(array.nbytes), array.dtype),
            np.frombuffer(bytes([255]) * array.nbytes, array.dtype),
            np.zeros_like(array),
            array[::-1],
            array[rng.permutation(len(array))],
            array[: len(array) // 2],
            np.concatenate([array, array]),
            array[:0],
        ):
            try:
                search(InMemory.of(pack(whole | {name: replacement})))
            except ValueError:
                refused.add(name)
    assert refused, "arrays of other lengths must be refused"


SOUND = {
    "high": np.array([1, 2], "<u8"),
    "low": np.array([1, 2], "<u8"),
    "top.high": np.array([1], "<u8"),
    "lengths": np.array([1, 2], "<i4"),
    "n_words": np.array([3], "<i8"),
    "words": np.sort(keyword_index._hash_question("mill river bridge", "english")),
    "top.words": block_heads(np.sort(keyword_index._hash_question("mill river bridge", "english"))),
    "ends": np.array([1, 2, 3], "<i8"),
    "records": np.array([0, 1, 1], "<i4"),
    "counts": np.array([1, 1, 1], "<u2"),
    "language": np.frombuffer(b"english", "<u1"),
}


def search_arrays(arrays: dict[str, Any]) -> list[tuple[str, float]]:
    shard = keyword_index.read(InMemory.of(pack({n: a for n, a in arrays.items() if a is not None})))
    return keyword_index.search([shard], "mill river bridge", 5)


def ints(*values: int, kind: str = "<i8") -> np.ndarray:
    return np.array(values, kind)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ends": ints(1, 2, 9)}, "out of range"),
        ({"ends": ints(1, 2, 2**62)}, "out of range"),
        ({"ends": ints(-1, 2, 3)}, "not in order"),
        ({"ends": ints(2, 1, 3)}, "not in order"),
        ({"ends": ints(0, 0, 0), "records": ints(0, kind="<i4")}, "inconsistent lengths"),
        ({"records": ints(0, 1, 2, kind="<i4")}, "unknown record"),
        ({"records": ints(0, -1, 1, kind="<i4")}, "unknown record"),
        ({"ends": ints(0, 0, 3)}, "unknown record"),
        ({"ends": ints(0, 0, 3), "records": ints(1, 0, 1, kind="<i4")}, "unknown record"),
        ({"lengths": ints(2, kind="<i4")}, "inconsistent lengths"),
        ({"counts": ints(1, kind="<u2")}, "inconsistent lengths"),
        ({"low": ints(1, kind="<u8")}, "inconsistent lengths"),
        ({"high": ints(kind="<u8")}, "inconsistent lengths"),
        ({"n_words": ints()}, "inconsistent lengths"),
        ({"n_words": ints(1, 2)}, "inconsistent lengths"),
        ({"ends": ints(1, 2)}, "inconsistent lengths"),
        ({"top.words": ints(1, 2, kind="<u8")}, "inconsistent lengths"),
        ({"top.words": ints(kind="<u8")}, "inconsistent lengths"),
        ({"language": np.frombuffer(b"elvish", "<u1")}, "language is unknown"),
        ({"language": ints(255, kind="<u1")}, "language is unknown"),
        ({"records": ints(0, 1, 1)}, "cannot be read"),
        ({"more": ints(1)}, "cannot be read"),
        ({"counts": None}, "it lacks"),
    ],
)
def test_out_of_range_postings_are_refused(changes: dict[str, Any], message: str):
    assert len(search_arrays(SOUND)) == 2
    with pytest.raises(ValueError, match=message):
        search_arrays(SOUND | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": ints(-(2**31), 2**31 - 1, kind="<i4")},
        {"lengths": ints(0, 0, kind="<i4")},
        {"counts": ints(0, 0, 0, kind="<u2")},
        {"n_words": ints(0)},
        {"n_words": ints(-(2**63))},
        {"n_words": ints(2**63 - 1)},
        {"words": ints(3, 2, 1, kind="<u8")},
        {"top.words": ints(2**64 - 1, kind="<u8")},
        {"high": ints(2, 1, kind="<u8")},
    ],
)
def test_wrong_word_counts_only_change_scores(changes: dict[str, Any]):
    hits = search_arrays(SOUND | changes)
    assert all(0 < score < 99 for _, score in hits)


def test_shard_with_words_but_no_records_is_searched():
    empty = {name: array[:0] for name, array in SOUND.items()} | {"n_words": ints(5)}
    assert search_arrays(empty) == []
    with pytest.raises(ValueError, match="unknown record"):
        search_arrays(SOUND | {name: empty[name] for name in ("high", "low", "top.high", "lengths")})


def vector_arrays(**changes: Any) -> bytes:
    arrays = {
        "high": np.array([1, 2, 3], "<u8"),
        "low": np.array([1, 2, 3], "<u8"),
        "top.high": np.array([1], "<u8"),
        "vectors": np.array([1, 0, 0.7, 0.7, 0, 1], "<f2"),
        "mean": np.array([0.5, 0.5], "<f4"),
        "signs": np.array([1, 3, 2], "<u8"),
        "spread": np.array([0.5, 0.2, 0.5], "<f4"),
    }
    arrays |= {name.replace("__", "."): array for name, array in changes.items()}
    return pack({name: array for name, array in arrays.items() if array is not None})


def search_bytes(data: bytes) -> list[tuple[str, float]]:
    shard = vector_index.read(InMemory.of(data))
    wanted = vector_index.normalize(np.ones((1, shard.dimensions), np.float32))[0]
    vector_index.search([shard], wanted, 5, [f"{n:016x}{n:016x}" for n in range(5)])
    with np.errstate(all="ignore"):
        return vector_index.search([shard], wanted, 5)


EXACT = {"vectors": None, "mean": None, "signs": None, "spread": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors": np.zeros(4, "<f2")}, "inconsistent lengths"),
        ({"vectors": np.zeros(0, "<f2")}, "inconsistent lengths"),
        ({"vectors": np.zeros(9, "<f2")}, "inconsistent lengths"),
        ({"mean": np.zeros(3, "<f4")}, "inconsistent lengths"),
        ({"signs": ints(1, 2, kind="<u8")}, "inconsistent lengths"),
        ({"signs": ints(1, 2, 3, 4, 5, 6, kind="<u8")}, "inconsistent lengths"),
        ({"spread": np.zeros(2, "<f4")}, "inconsistent lengths"),
        ({"low": ints(0, 1, kind="<u8")}, "inconsistent lengths"),
        ({"top__high": ints(kind="<u8")}, "inconsistent lengths"),
        ({"spread": None}, "vectors, or vectors and their signs"),
        ({"exact": np.ones(6, "<f4")}, "vectors, or vectors and their signs"),
        (EXACT, "vectors, or vectors and their signs"),
        (EXACT | {"exact": np.ones(7, "<f4")}, "inconsistent lengths"),
        (EXACT | {"exact": np.ones(0, "<f4")}, "inconsistent lengths"),
        (EXACT | {"exact": np.ones(6, "<f8")}, "cannot be read"),
    ],
)
def test_inconsistent_vectors_are_refused(changes: dict[str, Any], message: str):
    assert (
        len(search_bytes(vector_arrays()))
        == len(search_bytes(vector_arrays(**EXACT | {"exact": np.ones(6, "<f4")})))
        == 3
    )
    with pytest.raises(ValueError, match=message):
        search_bytes(vector_arrays(**changes))


def test_shard_without_vectors_is_refused():
    none = {name: ints(kind="<u8") for name in ("high", "low", "top__high")}
    with pytest.raises(ValueError, match="inconsistent lengths"):
        search_bytes(vector_arrays(**EXACT | none | {"exact": np.ones(0, "<f4")}))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_vectors_score_zero(value: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vector_index, "PRODUCT_CANDIDATES", 1)
    monkeypatch.setattr(vector_index, "PRODUCT_CANDIDATES_PER_RESULT", 0)
    odd = np.array([value, value, 1, 0, 0, 1], "<f4")
    hits = search_bytes(vector_arrays(**EXACT | {"exact": odd}))
    assert len(hits) == 3 and np.isfinite([score for _, score in hits]).all()
    if not np.isfinite(value):
        assert hits[-1] == (f"{1:016x}{1:016x}", 0.0)
    for changes in ({"spread": odd[:3]}, {"mean": odd[:2]}):
        assert np.isfinite([score for _, score in search_bytes(vector_arrays(**changes))]).all()


@pytest.mark.parametrize("url", ["{}/index", "memory://hostile-shards"])
def test_part_with_other_contents_is_reported(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(index_files.CACHE_DIR_ENV, str(tmp_path / "cache"))
    store = Store(url.format(tmp_path))

    def open_bytes(data: bytes) -> keyword_index.KeywordShard:
        return keyword_index.read(
            index_files.open_part(store, index_files.write_index_file(store, "t", "ab12", data, rows=1))
        )

    assert len(keyword_index.search([open_bytes(SHARDS["keyword"][1])], "word3", 5)) == 5
    message = r"part-ab12-.* is not a valid index file: "
    for data in (b"", b"anything", b"anything at all"):
        with pytest.raises(CorruptPart, match=message + "its arrays cannot be read"):
            open_bytes(data)
    leads_out = keyword_index.read(InMemory.of(pack(SOUND | {"ends": ints(1, 2, 9)})))
    assert len(leads_out) == 2
    with pytest.raises(CorruptPart, match=message + "a position is out of range"):
        keyword_index.search([open_bytes(pack(SOUND | {"ends": ints(1, 2, 9)}))], "mill river bridge", 5)
