"""Shards that somebody else made, under the right hash: refused as such, or searched without leaving them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.search import graph_file, keyword, vectors
from graphrag_ray.search.mapped_arrays import packed
from graphrag_ray.store import blobs, local_cache
from graphrag_ray.store.files import Store

IDS = [f"{i:03}" for i in range(300)]
MATRIX = np.random.default_rng(7).normal(size=(len(IDS), 4)).astype(np.float32)
WANTED = vectors.unit(MATRIX[:1])[0]
SHARDS: dict[str, tuple[Any, bytes]] = {
    "keyword": (keyword, keyword.build(IDS, [f"word{i % 7} and {i}" for i in range(300)]).to_pybytes()),
    "vector": (vectors, vectors.build(IDS, MATRIX).to_pybytes()),
    "graph": (vectors, vectors.build(IDS, MATRIX, graph=True).to_pybytes()),
}


def searched(of: Any, data: bytes) -> None:
    shard = of.read(pa.py_buffer(data))
    of.check(shard)
    if of is keyword:
        keyword.search([shard], "word3 and 7", 5)
    elif shard.dimensions == len(WANTED):
        vectors.search(shard, WANTED, 5)
        if shard.graph is not None:
            shard.graph.nearest(WANTED, 50)


def mutated(data: bytes, seed: int) -> bytes:
    dice, changed = random.Random(seed), bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(changed) - 4)
        if dice.random() < 0.1:
            del changed[max(at, 8) :]
            return bytes(changed)
        changed[at : at + 4] = dice.choice(
            (b"\xff" * 4, bytes(4), dice.randbytes(4), len(IDS).to_bytes(4, "little"))
        )
    return bytes(changed)


@pytest.mark.parametrize("kind", SHARDS)
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_changed_shard_is_refused_or_searched(kind: str, first: int):
    of, data = SHARDS[kind]
    searched(of, data)
    for seed in range(first, first + 100):
        try:
            searched(of, mutated(data, seed))
        except ValueError:
            continue


def graph_of(*changes: tuple[int, bytes]) -> bytes:
    raw = bytearray(vectors._graph_of(vectors.unit(MATRIX)))
    start = graph_file.MATRIX_AT + MATRIX.size * 2
    for at, by in changes:
        raw[start + at : start + at + len(by)] = by
    return bytes(raw)


NODES = 64 + 40 + 2 * len(IDS)


@pytest.mark.parametrize(
    ("at", "by", "told"),
    [
        (0, b"usefind", "another kind"),
        (14, b"\x0b", "another kind"),
        (17, (10**9).to_bytes(8, "little"), "other vectors"),
        (64 + 8, (10**12).to_bytes(8, "little"), "its graph is none"),
        (64 + 24, (60_000).to_bytes(8, "little"), "its levels are none"),
        (64 + 32, (300).to_bytes(8, "little"), "begin at no vector"),
        (64 + 40, b"\x40\x00", "begin at no vector"),
        (NODES, b"\x05", "its keys are others"),
        (NODES + 10, (33).to_bytes(4, "little"), "a neighbour is no vector"),
        (NODES + 14, (300).to_bytes(4, "little"), "a neighbour is no vector"),
    ],
)
def test_a_graph_that_leads_out_of_itself_is_refused(at: int, by: bytes, told: str):
    graph_file.check(np.frombuffer(graph_of(), np.uint8))
    with pytest.raises(ValueError, match=told):
        graph_file.check(np.frombuffer(graph_of((at, by)), np.uint8))


def test_a_graph_of_another_version_of_usearch_is_refused():
    raw = pa.array(np.frombuffer(graph_of((7, b"\xff\xff")), np.uint8))
    with pytest.raises(ValueError, match="usearch does not open it"):
        searched(vectors, packed({"ids": pa.array(IDS), "graph": raw}).to_pybytes())


def ints(*values: int) -> pa.Array:
    return pa.array(values, pa.int64())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ends": ints(1, 2, 9)}, "one behind the other"),
        ({"ends": ints(2, 1, 3)}, "one behind the other"),
        ({"records": pa.array([0, 1, 2], pa.int32())}, "of no record"),
        ({"records": pa.array([0, -1, 1], pa.int32())}, "of no record"),
        ({"words": pa.array([3, 2, 1], pa.uint64())}, "not in order"),
        ({"counts": pa.array([1, 0, 1], pa.uint16())}, "less than once"),
        ({"lengths": pa.array([-1, 2], pa.int32())}, "less than no word"),
        ({"lengths": pa.array([2], pa.int32())}, "different lengths"),
        ({"counts": pa.array([1], pa.uint16())}, "different lengths"),
        ({"language": pa.array(list(b"elvish"), pa.uint8())}, "no known language"),
        ({"language": pa.array([255], pa.uint8())}, "utf-8"),
        ({"ids": pa.array(["a", None], pa.string())}, "an id is missing"),
        ({"ids": ints(1, 2)}, "of other types"),
        ({"records": ints(0, 1, 1)}, "of other types"),
        ({"more": ints(1)}, "of other types"),
    ],
)
def test_postings_that_lead_out_of_a_shard_are_refused(changes: dict[str, pa.Array], told: str):
    sound = {
        "ids": pa.array(["a", "b"], pa.string()),
        "words": pa.array([1, 2, 3], pa.uint64()),
        "ends": ints(1, 2, 3),
        "records": pa.array([0, 1, 1], pa.int32()),
        "counts": pa.array([1, 1, 1], pa.uint16()),
        "lengths": pa.array([1, 2], pa.int32()),
        "language": pa.array(list(b"english"), pa.uint8()),
    }
    searched(keyword, packed(sound).to_pybytes())
    with pytest.raises(ValueError, match=told):
        searched(keyword, packed(sound | changes).to_pybytes())


@pytest.mark.parametrize(
    ("scores", "told"), [([1, float("nan"), 1], "no number"), ([1], "different lengths")]
)
def test_scores_of_a_shard_of_an_earlier_version_are_looked_at_too(scores: list[float], told: str):
    before = {
        "ids": pa.array(["a", "b"], pa.string()),
        "words": pa.array([1, 2, 3], pa.uint64()),
        "ends": ints(1, 2, 3),
        "records": pa.array([0, 1, 1], pa.int32()),
        "scores": pa.array(scores, pa.float32()),
    }
    with pytest.raises(ValueError, match=told):
        searched(keyword, packed(before).to_pybytes())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 7.0])
def test_a_vector_is_no_longer_than_one(value: float):
    arrays = {"ids": pa.array(["a"], pa.string()), "vectors": pa.array([value, 0.0], pa.float32())}
    with pytest.raises(ValueError, match="longer than 1"):
        searched(vectors, packed(arrays).to_pybytes())


@pytest.mark.parametrize("url", ["{}/index", "memory://hostile-shards"])
def test_it_is_looked_through_once_on_a_machine_and_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(local_cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    store, looked = Store(url.format(tmp_path)), []

    def opened(data: bytes, check: Callable[[Any], None]) -> Any:
        part = blobs.write(store, "t", "ab12", pa.py_buffer(data), rows=1)
        return blobs.opened(store, part, "keyword", keyword.read, check)

    for _ in range(2):
        opened(SHARDS["keyword"][1], looked.append)
    assert len(looked) == 1
    with pytest.raises(CorruptPart, match=r"part-ab12-.* is not what graphrag-ray writes there: it holds no"):
        opened(b"anything", keyword.check)
