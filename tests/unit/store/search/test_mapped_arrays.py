"""Arrays in a file round-trip and are read on demand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search.mapped_arrays import (
    BLOCK,
    Ids,
    InMemory,
    MappedArray,
    block_heads,
    expand_ranges,
    find_positions,
    pack,
    unpack,
)

PAIR = np.dtype([("first", "<u8"), ("second", "<f4")])
KINDS = {"i": "<i4", "u": "<u8", "f": "<f4", "b": "<i1", "p": PAIR}
NUMBERS = np.arange(1_000, dtype="<i4")


def draw_array(kind: str, n: int) -> np.ndarray:
    """Draw an array of arbitrary bits."""
    size = n * np.dtype(KINDS[kind]).itemsize
    return np.frombuffer(np.random.default_rng(n).bytes(size), KINDS[kind])


ARRAYS = st.dictionaries(
    st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(["", ".a", ".b+c", ".á"])).map("".join),
    st.sampled_from([0, 1, 3, 15, 16, 17, 200]),
    max_size=6,
).map(lambda lengths: {name: draw_array(name[0], n) for name, n in lengths.items()})


def at_places(source: Any, values: np.ndarray = NUMBERS) -> MappedArray:
    return unpack(source, {"i": values.dtype})["i"]


@given(ARRAYS)
def test_packed_arrays_round_trip(watched: Any, arrays: dict[str, np.ndarray]):
    data = pack(arrays)
    assert data == pack(arrays)
    for source in (InMemory.of(data), watched(data)):
        found = unpack(source, KINDS)
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            assert found[name].begin % 64 == 0
            assert found[name].values.dtype == array.dtype and len(found[name]) == len(array)
            assert found[name].whole().tobytes() == array.tobytes()


def test_opening_a_file_only_reads_its_end(watched: Any):
    source = watched(pack({"i": NUMBERS, "f": np.ones(1_000, "<f4")}))
    found = unpack(source, KINDS)
    assert not source.needed[:8_000].any(), "the arrays must not be read"
    assert len(found["i"]) == 1_000 and (found["i"].values == -1).all()


@given(st.data())
def test_only_accessed_values_are_read(watched: Any, data: st.DataObject):
    source = watched(pack({"f": np.zeros(77, "<f4"), "i": NUMBERS}))
    array = unpack(source, KINDS)["i"]
    source.forget()
    positions = st.integers(0, 1_000)
    runs = data.draw(st.lists(st.tuples(positions, positions).map(sorted), max_size=5))
    single = data.draw(st.lists(st.integers(0, 999), max_size=5))
    start, end = sorted((data.draw(positions), data.draw(positions)))
    left, right = np.array(runs, np.int64).reshape(-1, 2).T
    assert array.runs(left, right).tolist() == [n for a, b in runs for n in range(a, b)]
    assert array.take(np.array(single)).tolist() == single
    assert array.run(start, end).tolist() == list(range(start, end))
    expected = {*single, *range(start, end), *(n for a, b in runs for n in range(a, b))}
    first = array.begin
    assert set(np.flatnonzero(source.needed).tolist()) == {
        first + 4 * n + byte for n in expected for byte in range(4)
    }


def test_arrays_can_be_read_by_row(watched: Any):
    source = watched(pack({"i": NUMBERS}))
    rows = unpack(source, KINDS)["i"].rows(10)
    source.forget()
    assert len(rows) == 100
    assert rows.take(np.array([3, 99]))[:, 0].tolist() == [30, 990]
    assert source.needed.sum() == 2 * 10 * 4
    assert rows.run(1, 3).tolist() == NUMBERS[10:30].reshape(2, 10).tolist()
    assert (rows.values[3] == NUMBERS[30:40]).all() and (rows.values[50] == -1).all()


def test_run_is_not_copied():
    array = at_places(InMemory.of(pack({"i": NUMBERS})))
    assert array.run(5, 500).base is not None and np.shares_memory(array.run(5, 500), array.values)


@pytest.mark.parametrize(
    "look",
    [
        lambda a: a.take(np.array([3, 1_000])),
        lambda a: a.take(np.array([-1])),
        lambda a: a.take(np.array([2**63 - 1])),
        lambda a: a.take(np.array([2**64 - 1], np.uint64)),
        lambda a: a.run(0, 1_001),
        lambda a: a.run(-1, 5),
        lambda a: a.run(6, 5),
        lambda a: a.run(5_000, 5_000),
        lambda a: a.runs(np.array([0, 7]), np.array([1, 2**62])),
        lambda a: a.runs(np.array([0, 7]), np.array([1, 6])),
        lambda a: a.rows(3),
        lambda a: a.rows(0),
        lambda a: a.rows(10).take(np.array([100])),
    ],
)
def test_out_of_range_positions_are_refused(
    watched: Any, not_the_file: type[Exception], look: Callable[[MappedArray], Any]
):
    for source, error in ((InMemory.of, ValueError), (watched, not_the_file)):
        array = at_places(source(pack({"i": NUMBERS})))
        with pytest.raises(error, match=r"out of range|inconsistent lengths"):
            look(array)


def test_empty_array_has_no_positions():
    array = at_places(InMemory.of(pack({"i": NUMBERS[:0]})))
    assert array.whole().tolist() == array.take(np.zeros(0)).tolist() == []
    with pytest.raises(ValueError, match="out of range"):
        array.take(np.array([0]))


# positions of keys


def mapped_keys(source: Callable[[bytes], Any], keys: np.ndarray) -> tuple[Any, MappedArray, MappedArray]:
    opened = source(pack({"key": keys, "top": block_heads(keys)}))
    arrays = unpack(opened, {"key": "<u8", "top": "<u8"})
    return opened, arrays["key"], arrays["top"]


@pytest.mark.parametrize("n", [0, 1, 2, 127, 128, 129, 255, 256, 257, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_keys_are_found_at_their_positions(watched: Any, n: int, seed: int):
    dice = np.random.default_rng([n, seed])
    highest = (2**64, 2 * n + 3, 2**64)[seed]
    keys = np.unique(dice.integers(0, highest, 4 * n + 8, np.uint64, endpoint=highest < 2**64))
    keys = np.sort(dice.choice(keys, n, replace=False))
    if seed == 2 and n > 1:
        keys[0], keys[-1] = 0, 2**64 - 1
    wanted = np.concatenate([keys, keys[:5], keys + np.uint64(1), keys - np.uint64(1), [np.uint64(7)]])
    wanted = dice.permutation(wanted.astype(np.uint64))
    expected = np.searchsorted(keys, wanted)
    exists = np.isin(wanted, keys)
    _, mapped, top = mapped_keys(watched, keys)
    assert find_positions(mapped, top, wanted).tolist() == np.where(exists, expected, -1).tolist()
    assert find_positions(mapped, top, wanted[:0]).tolist() == []
    _, mapped, top = mapped_keys(watched, keys)
    for key, position in zip(wanted[:30], np.where(exists, expected, -1)[:30], strict=True):
        assert find_positions(mapped, top, np.array([key], np.uint64)).tolist() == [position]


def test_only_one_block_of_keys_is_read(watched: Any):
    source, mapped, top = mapped_keys(watched, np.arange(0, 10**6, 7, dtype=np.uint64))
    source.forget()
    assert find_positions(mapped, top, np.array([700_000, 700_001, 700_007], np.uint64)).tolist() == [
        100_000,
        -1,
        100_001,
    ]
    assert source.needed[: len(mapped) * 8].sum() == (BLOCK + 1) * 8
    assert source.needed.sum() == (BLOCK + 1 + len(top)) * 8


@pytest.mark.parametrize("n_tops", [0, 1, 3])
def test_keys_with_wrong_block_heads_are_refused(n_tops: int):
    arrays = {"key": np.arange(200, dtype="<u8"), "top": np.zeros(n_tops, "<u8")}
    with pytest.raises(ValueError, match="inconsistent lengths"):
        unpack(InMemory.of(pack(arrays)), {"key": "<u8", "top": "<u8"}, heads_of={"top": "key"})


@given(st.lists(st.integers(0, 2**64 - 1), max_size=400), st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_unsorted_keys_never_give_wrong_positions(keys: list[int], tops_: list[int]):
    n = -(-len(keys) // BLOCK)
    arrays = {"key": np.array(keys, "<u8"), "top": np.resize(np.array(tops_ or [0], "<u8"), n)}
    found = unpack(InMemory.of(pack(arrays)), {"key": "<u8", "top": "<u8"})
    wanted = np.array([*keys[:9], 3, 2**64 - 1], np.uint64)
    for key, position in zip(wanted, find_positions(found["key"], found["top"], wanted), strict=True):
        assert position == -1 or keys[position] == key


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20))
def test_expand_ranges_returns_positions_and_owners(runs: list[tuple[int, int]]):
    left, right = np.array([(a, a + n) for a, n in runs], np.int64).reshape(-1, 2).T
    positions, owners = expand_ranges(left, right)
    assert list(zip(owners.tolist(), positions.tolist(), strict=True)) == [
        (at, position) for at, (a, n) in enumerate(runs) for position in range(a, a + n)
    ]


# invalid files


def with_directory(directory: Any, body: bytes = bytes(256)) -> bytes:
    head = directory if isinstance(directory, bytes) else orjson.dumps(directory)
    return body + head + len(head).to_bytes(8, "little")


def test_handwritten_directory_is_read():
    found = unpack(InMemory.of(with_directory({"i": ["<i4", 64, 3]})), KINDS)
    assert found["i"].whole().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "directory",
    [
        {"i": ["<i4", 64, 49]},
        {"i": ["<i4", 256, 1]},
        {"i": ["<i4", 512, 0]},
        {"i": ["<i4", 32, 1]},
        {"i": ["<i4", -64, 1]},
        {"i": ["<i4", 64, -1]},
        {"i": ["<i4", 64, -(2**62)]},
        {"i": ["<i4", 2**63, 1]},
        {"i": ["<i4", 0, 2**63]},
        {"i": ["<i4", 0.0, 1]},
        {"i": ["<i4", 0, 1.5]},
        {"i": ["<i4", 0, "1"]},
        {"i": ["<i4", None, None]},
        {"i": ["<i4", [], 1]},
        {"i": ["<u4", 0, 1]},
        {"i": ["|O", 0, 1]},
        {"i": [["first", "<u8"], 0, 1]},
        {"p": ["<i4", 0, 1]},
        {"p": [[["second", "<f4"], ["first", "<u8"]], 0, 1]},
        {"i": ["<i4", 0]},
        {"i": 7},
        {"other": ["<i4", 0, 1]},
        {"other.i": ["<i4", 0, 1]},
        {"": ["<i4", 0, 1]},
        [["i", "<i4", 0, 1]],
        "i",
        None,
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"i":' * 100_000,
    ],
)
def test_invalid_directory_is_refused(watched: Any, not_the_file: type[Exception], directory: Any):
    for source, error in ((InMemory.of, ValueError), (watched, not_the_file)):
        with pytest.raises(error, match="its arrays cannot be read"):
            unpack(source(with_directory(directory)), KINDS)


@pytest.mark.parametrize("size", [249, 2**63, 2**64 - 1])
def test_directory_longer_than_the_file_is_refused(size: int):
    with pytest.raises(ValueError, match="too short"):
        unpack(InMemory.of(bytes(248) + size.to_bytes(8, "little")), KINDS)


@given(st.binary(max_size=200))
def test_other_files_are_refused(data: bytes):
    with pytest.raises(ValueError, match="its arrays cannot be read"):
        unpack(InMemory.of(data), KINDS)


@given(st.integers(0, 2**32))
def test_changed_file_is_refused_or_read_within_bounds(seed: int):
    dice = random.Random(seed)
    whole = pack({"i": NUMBERS[:40], "p": draw_array("p", 9), "f.a": draw_array("f", 3)})
    data = bytearray(whole)
    for _ in range(dice.choice((1, 2, 8))):
        at = dice.randrange(len(data) - 160, len(data))
        data[at : at + 1] = dice.choice((b"", b"0", b"9", b"\xff", b"-", dice.randbytes(2)))
    try:
        found: Mapping[str, MappedArray] = unpack(InMemory.of(bytes(data)), KINDS)
    except ValueError:
        return
    for array in found.values():
        assert array.whole().nbytes <= len(data)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=500), st.data())
def test_ids_with_equal_first_halves_are_distinguished(pairs: list[tuple[int, int]], data: st.DataObject):
    stored = sorted(set(pairs))
    arrays = {"high": [h for h, _ in stored], "low": [n for _, n in stored]}
    packed_arrays = {name: np.array(values, "<u8") for name, values in arrays.items()}
    packed_arrays["top"] = block_heads(packed_arrays["high"])
    found = unpack(InMemory.of(pack(packed_arrays)), dict.fromkeys(packed_arrays, "<u8"))
    wanted = data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400)), max_size=8))
    ids = tuple(np.array([pair[half] for pair in wanted], np.uint64) for half in (0, 1))
    positions = Ids(found["high"], found["low"], found["top"]).find_existing(ids)
    assert positions.tolist() == sorted({stored.index(pair) for pair in wanted if pair in stored})
