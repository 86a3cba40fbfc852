"""Shards of earlier versions are searched as today's are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search import earlier_shards, keyword, vectors
from graphrag_ray.store.search.mapped_arrays import InMemory

IDS = [f"{n:016x}{n:016x}" for n in range(200)]
TEXTS = [f"the mill number{n % 7} at the river{n % 3}, {n}" for n in range(200)]
MATRIX = np.random.default_rng(7).normal(size=(len(IDS), 8)).astype(np.float32)
UNIT = vectors.unit(MATRIX)


def arrow(arrays: dict[str, pa.Array], rows: int = 1) -> bytes:
    """A file as earlier versions wrote it: one row, whose columns are lists."""
    lists = [
        pa.LargeListArray.from_arrays(pa.array([0, *[len(array)] * rows], pa.int64()), array)
        for array in arrays.values()
    ]
    row = pa.record_batch(lists, names=list(arrays))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, row.schema) as file:
        file.write_batch(row)
    return sink.getvalue().to_pybytes()


def keyword_arrays(language: str = "english") -> dict[str, pa.Array]:
    arrays = keyword.read(InMemory.of(keyword.build(IDS, TEXTS, language))).arrays
    own = {name: arrays[name].whole() for name in ("words", "ends", "records", "counts", "lengths")}
    told = {"language": np.frombuffer(language.encode(), np.uint8)}
    return {"ids": pa.array(IDS, pa.string())} | {n: pa.array(array) for n, array in (own | told).items()}


def graph(matrix: np.ndarray = UNIT, behind: bytes = b"usearch\x02 and its graph") -> pa.Array:
    """A usearch index: its matrix stands first."""
    halves = matrix.astype("<f2")
    head = np.array([len(halves), halves.shape[1] * 2], "<u4").tobytes()
    return pa.array(np.frombuffer(head + halves.tobytes() + behind, np.uint8))


def exact_arrays() -> dict[str, pa.Array]:
    return {"ids": pa.array(IDS, pa.string()), "vectors": pa.array(UNIT.reshape(-1))}


def graph_arrays() -> dict[str, pa.Array]:
    return {"ids": pa.array(IDS, pa.string()), "graph": graph()}


@pytest.mark.parametrize("language", ["", "english", "german"])
@pytest.mark.parametrize(
    "question", ["a mill by the river2", "number3", "numbers", "17 rivers", "harbour", ""]
)
def test_a_shard_of_keywords_is_searched_like_a_new_one(language: str, question: str):
    data = earlier_shards.keyword_shard(arrow(keyword_arrays(language)))
    assert data == keyword.build(IDS, TEXTS, language)
    old, new = keyword.read(InMemory.of(data)), keyword.build(IDS, TEXTS, language)
    for among in (None, IDS[::3]):
        hits = keyword.search([old], question, 10, among)
        assert hits == keyword.search([keyword.read(InMemory.of(new))], question, 10, among)


def test_exact_vectors_are_searched_like_new_ones():
    data = earlier_shards.vector_shard(arrow(exact_arrays()))
    old, new = (vectors.read(InMemory.of(of)) for of in (data, vectors.build(IDS, MATRIX)))
    for wanted in UNIT[:20]:
        for among in (None, IDS[::3]):
            hits, expected = (vectors.search([shard], wanted, 10, among) for shard in (old, new))
            assert np.allclose([s for _, s in hits], [s for _, s in expected], atol=1e-5)
            assert {i for i, _ in hits} == {i for i, _ in expected}


@pytest.mark.parametrize("behind", [b"", b"usearch\x02", bytes(1_000)])
def test_the_vectors_of_a_graph_are_searched_like_new_ones(behind: bytes):
    arrays = graph_arrays() | {"graph": graph(behind=behind)}
    old = vectors.read(InMemory.of(earlier_shards.vector_shard(arrow(arrays))))
    new = vectors.read(InMemory.of(vectors.build(IDS, MATRIX)))
    assert len(old) == len(IDS) and old.dimensions == 8
    for at, wanted in enumerate(UNIT[:20]):
        hits, expected = (vectors.search([shard], wanted, 10) for shard in (old, new))
        assert hits[0][0] == IDS[at]
        assert np.allclose([s for _, s in hits], [s for _, s in expected], atol=0.005)


KEYWORD, EXACT, GRAPH = (
    (earlier_shards.keyword_shard, keyword.read, keyword_arrays),
    (earlier_shards.vector_shard, vectors.read, exact_arrays),
    (earlier_shards.vector_shard, vectors.read, graph_arrays),
)


def ints(*values: Any) -> pa.Array:
    return pa.array(values, pa.int64())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (KEYWORD, {"ids": pa.array(["a"] * 200)}),
        (KEYWORD, {"ids": pa.array([*IDS[:-1], None])}),
        (KEYWORD, {"ids": pa.array(IDS[:-1])}),
        (KEYWORD, {"ids": ints(*range(200))}),
        (KEYWORD, {"ids": pa.array([i[:30] + "  " for i in IDS])}),
        (KEYWORD, {"ids": pa.array([list(i) for i in IDS])}),
        (KEYWORD, {"words": pa.array([float("nan")])}),
        (KEYWORD, {"words": pa.array([None], pa.uint64())}),
        (KEYWORD, {"words": pa.array([1, 2], pa.uint64())}),
        (KEYWORD, {"words": pa.array([], pa.struct([("a", pa.int8())]))}),
        (KEYWORD, {"ends": pa.array(["one"])}),
        (KEYWORD, {"records": pa.array([[1]])}),
        (KEYWORD, {"counts": pa.array([1], pa.uint16())}),
        (KEYWORD, {"lengths": pa.array([True] * 200)}),
        (KEYWORD, {"lengths": pa.array([1], pa.int32())}),
        (KEYWORD, {"language": pa.array([255], pa.uint8())}),
        (KEYWORD, {"language": pa.array(list(b"elvish"), pa.uint8())}),
        (KEYWORD, {"counts": None}),
        (KEYWORD, {"ids": None}),
        (EXACT, {"ids": pa.array([*IDS[:-1], None])}),
        (EXACT, {"ids": pa.array(IDS[:-1])}),
        (EXACT, {"ids": pa.array([], pa.string())}),
        (EXACT, {"ids": ints(*range(200))}),
        (EXACT, {"ids": None}),
        (EXACT, {"vectors": None}),
        (EXACT, {"vectors": pa.array([], pa.float32())}),
        (EXACT, {"vectors": pa.array([1.0] * 201, pa.float32())}),
        (EXACT, {"vectors": pa.array([None] * 200, pa.float32())}),
        (EXACT, {"vectors": pa.array(["a"] * 200)}),
        (GRAPH, {"graph": graph()[:4]}),
        (GRAPH, {"graph": graph()[:500]}),
        (GRAPH, {"graph": graph(UNIT[:100])}),
        (GRAPH, {"graph": graph(UNIT[:0])}),
        (GRAPH, {"graph": pa.array([255] * 800, pa.uint8())}),
        (GRAPH, {"graph": pa.array([0] * 800, pa.uint8())}),
        (GRAPH, {"graph": ints(*range(800))}),
    ],
)
def test_arrays_that_were_not_so_written_are_refused(
    kind: tuple[Callable[[bytes], bytes], Callable[..., Any], Callable[[], Any]], changes: dict[str, Any]
):
    today, read, sound = kind
    read(InMemory.of(today(arrow(sound()))))
    arrays = {name: array for name, array in (sound() | changes).items() if array is not None}
    with pytest.raises(ValueError, match=r"."):
        read(InMemory.of(today(arrow(arrays))))


@pytest.mark.parametrize("kind", [KEYWORD, EXACT, GRAPH])
def test_a_file_of_two_rows_is_refused(kind: Any):
    with pytest.raises(ValueError, match="of other types"):
        kind[0](arrow(kind[2](), rows=2))


@given(st.binary(max_size=300), st.booleans())
def test_what_is_no_arrow_file_is_refused(data: bytes, marked: bool):
    for today in (earlier_shards.keyword_shard, earlier_shards.vector_shard):
        with pytest.raises(ValueError, match="it holds no such arrays"):
            today(b"ARROW1\0\0" + data + b"ARROW1" if marked else data)


@pytest.mark.parametrize("name", ["keyword", "exact", "graph"])
def test_a_changed_file_is_refused_or_searched(name: str):
    today, read, sound = {"keyword": KEYWORD, "exact": EXACT, "graph": GRAPH}[name]
    data, refused = arrow(sound()), 0
    for seed in range(150):
        dice, changed = random.Random(seed), bytearray(data)
        for _ in range(dice.choice((1, 1, 2, 8))):
            at = dice.randrange(len(changed) - 4)
            changed[at : at + 4] = dice.choice((b"\xff" * 4, bytes(4), dice.randbytes(4)))
        try:
            with np.errstate(all="ignore"):
                shard = read(InMemory.of(today(bytes(changed))))
                if name == "keyword":
                    keyword.search([shard], "mill number3", 5)
                elif shard.dimensions == 8:
                    vectors.search([shard], UNIT[0], 5)
        except ValueError:
            refused += 1
    assert 0 < refused < 150
