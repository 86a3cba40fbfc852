"""Find the nearest records of every level: one descent through C-HNSW compared with one HNSW per level.

    pip install faiss-cpu numba
    python benchmarks/chnsw.py --nodes 100_000 --vectors INDEX/tables/embeddings_entity
    python benchmarks/chnsw.py --nodes 1_000_000 --vectors embeddings.npy --noise .6
    python benchmarks/chnsw.py --nodes 100_000 --dimensions 256 --vectors random
    python benchmarks/chnsw.py --nodes 100_000 --vectors random --against faiss faiss-8-bits

Level 0 has --nodes nodes, each of which is a given vector, or one with added noise (of length --noise,
before both are made 1 long again) where there are more nodes than vectors. Each further level has the
centroids of groups of three, then of four, then of three … near nodes of the level below. Questions are
vectors that were given and are no nodes; drawn at random, if vectors are. Recall is the share of the 5
nearest of each level that was found, over all levels. All is done by one thread; questions are asked one
after the other within one call (a call a level for HNSW), so that the time of calls from Python does not
count; ids are not looked up. Times are of the CPU, the least of three rounds. `alone` enters each level of
the same C-HNSW by the nearest of 64 nodes, so what it takes longer is what the hierarchy saves. Where a
recall is below what the least ef has, times of that are compared. Measures, asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from graphrag_ray.store.search import chnsw  # noqa: E402
from graphrag_ray.store.search.mapped_arrays import InMemory  # noqa: E402
from graphrag_ray.store.search.vector_index import normalize  # noqa: E402

K = 5
EFS = (5, 8, 12, 20, 40, 80, 160, 400)
RECALLS = (0.90, 0.95, 0.98)
ROUNDS = 3
CELL = 1_000
"""Approximate number of nodes in the cells in which groups are formed."""
AT_ONCE = 8_192
LEAST = 12
"""A level of fewer nodes has none above it."""


@dataclass
class Way:
    """A way to find nearest neighbours: [questions, levels, K] positions within levels, for an ef."""

    name: str
    ask: Callable[[int], np.ndarray]
    build_s: float
    n_bytes: int
    ms: list[float]
    recall: list[float]

    def at(self, recall: float) -> float | None:
        """Milliseconds per question at a recall."""
        if recall > max(self.recall):
            return None
        rising = np.maximum.accumulate(self.recall)
        return float(np.interp(recall, rising, self.ms))


def given_vectors(path: Path) -> np.ndarray:
    """Returns [n, dimensions] from a .npy file or the column `vector` of the Parquet files of a folder."""
    if path.is_file():
        return np.load(path).astype(np.float32, copy=False)
    columns = [pq.read_table(part, columns=["vector"])["vector"] for part in sorted(path.glob("*.parquet"))]
    rows = [column.combine_chunks() for column in columns]
    return np.concatenate([row.flatten().to_numpy(False).reshape(len(row), -1) for row in rows])


def nodes_and_questions(given: argparse.Namespace, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    n, asked = given.nodes, given.questions
    if given.vectors == "random":
        drawn = normalize(rng.standard_normal((n + asked, given.dimensions), np.float32))
        return drawn[asked:], drawn[:asked]
    own = normalize(given_vectors(Path(given.vectors)))
    own = own[rng.permutation(len(own))]
    asked = min(asked, len(own) // 4)
    questions, own = own[:asked], own[asked:]
    nodes = np.empty((n, own.shape[1]), np.float32)
    for at in range(0, n, len(own)):
        some = own[: n - at]
        noise = normalize(rng.standard_normal(some.shape, np.float32)) * (given.noise if at else 0.0)
        nodes[at : at + len(some)] = normalize(some + noise)
    return nodes[rng.permutation(n)], questions


def nearest_centre(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    some = [rows[at : at + AT_ONCE] @ centres.T for at in range(0, len(rows), AT_ONCE)]
    return np.concatenate([products.argmax(axis=1) for products in some])


def grouped(nodes: np.ndarray, of_each: int, rng: Any) -> np.ndarray:
    """Centroids of groups of near nodes, by two rounds of k-means within each cell."""
    cells = nodes[np.sort(rng.choice(len(nodes), max(1, len(nodes) // CELL), replace=False))]
    cell_of = nearest_centre(nodes, cells)
    order = np.argsort(cell_of, kind="stable")
    bounds = np.searchsorted(cell_of[order], np.arange(len(cells) + 1))
    found = []
    for start, end in pairwise(bounds):
        rows = nodes[order[start:end]]
        centres = rows[rng.choice(len(rows), -(-len(rows) // of_each), replace=False)]
        for _ in range(2 if len(rows) else 0):
            group = nearest_centre(rows, centres)
            sums = np.zeros_like(centres)
            np.add.at(sums, group, rows)
            empty = np.bincount(group, minlength=len(centres)) == 0
            centres = normalize(np.where(empty[:, None], centres, sums))
        found.append(centres)
    return np.concatenate(found)


def levels_of(nodes: np.ndarray, most: int, rng: Any) -> list[np.ndarray]:
    levels = [nodes]
    while len(levels) < most and len(levels[-1]) >= LEAST:
        levels.append(grouped(levels[-1], 3 if len(levels) % 2 else 4, rng))
    return levels


def by_chnsw(levels: Sequence[np.ndarray], questions: np.ndarray, given: argparse.Namespace) -> list[Way]:
    starts = np.cumsum([0, *map(len, levels)])
    ids = [[f"{at:032x}" for at in range(start, end)] for start, end in pairwise(starts)]
    few = chnsw.build([(ids[0][:100], levels[0][:100])], exact=10)
    chnsw.read(InMemory.of(few)).nearest_positions(questions, K)  # Compiles it.
    started = time.process_time()
    data = chnsw.build(list(zip(ids, levels, strict=True)), given.m, given.ef_build)
    took = time.process_time() - started
    index = chnsw.read(InMemory.of(data))
    parts = [(at, at + 1) for at in np.flatnonzero(index.firsts >= 0)]
    parts[-1:] = [
        (start, len(levels)) for start, _ in parts[-1:]
    ]  # The last span includes all nodes without links.
    alone = [
        replace(index, starts=index.starts[start : end + 1], firsts=index.firsts[start:end])
        for start, end in parts
    ]

    def ask(ef: int) -> np.ndarray:
        return filled(index.nearest_positions(questions, K, ef)[0]) - starts[:-1, None]

    def ask_alone(ef: int) -> np.ndarray:
        found = [filled(one.nearest_positions(questions, K, ef)[0]) for one in alone]
        return np.concatenate(found, axis=1) - starts[:-1, None]

    return [Way(name, how, took, len(data), [], []) for name, how in (("C-HNSW", ask), ("alone", ask_alone))]


def filled(places: np.ndarray) -> np.ndarray:
    """Pads levels with fewer nodes to K."""
    return np.pad(places, [(0, 0), (0, 0), (0, K - places.shape[2])], constant_values=-1)


def by_faiss(
    name: str, levels: Sequence[np.ndarray], questions: np.ndarray, given: argparse.Namespace
) -> Way:
    import faiss

    faiss.omp_set_num_threads(1)
    started, indexes = time.process_time(), []
    for level in levels:
        width, metric = level.shape[1], faiss.METRIC_INNER_PRODUCT
        if name == "faiss":
            index = faiss.IndexHNSWFlat(width, given.m, metric)
        else:
            index = faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_8bit, given.m, metric)
            index.train(level)
        index.hnsw.efConstruction = given.ef_build
        index.add(level)
        indexes.append(index)
    took = time.process_time() - started

    def ask(ef: int) -> np.ndarray:
        found = np.empty((len(questions), len(levels), K), np.int64)
        for at, index in enumerate(indexes):
            index.hnsw.efSearch = ef
            found[:, at] = index.search(questions, K)[1]
        return found

    return Way(name, ask, took, sum(len(faiss.serialize_index(index)) for index in indexes), [], [])


def recall(found: np.ndarray, truth: Sequence[np.ndarray]) -> float:
    """`truth`: for each level [questions, K or fewer]."""
    shares = []
    for level, exact in enumerate(truth):
        both = [np.intersect1d(a, b).size for a, b in zip(found[:, level], exact, strict=True)]
        shares.append(np.mean(both) / exact.shape[1])
    return float(np.mean(shares))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--nodes", type=int, default=100_000, help="number of nodes at level 0")
    arguments.add_argument("--dimensions", type=int, default=256, help="dimensions of random vectors")
    arguments.add_argument(
        "--vectors", default="random", metavar="random|FILE", help="a .npy file, or a folder of Parquet files"
    )
    arguments.add_argument("--noise", type=float, default=0.6)
    arguments.add_argument("--levels", type=int, default=11, help="maximum number of levels")
    arguments.add_argument("--questions", type=int, default=500)
    arguments.add_argument("--m", type=int, default=chnsw.M)
    arguments.add_argument("--ef-build", type=int, default=chnsw.EF_BUILD)
    arguments.add_argument("--against", choices=["faiss", "faiss-8-bits"], nargs="*", default=["faiss"])
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    rng = np.random.default_rng(given.seed)
    nodes, questions = nodes_and_questions(given, rng)
    levels = levels_of(nodes, given.levels, rng)
    print("levels:", *(f"{len(level):,}" for level in levels), f"| {nodes.shape[1]} dimensions", flush=True)
    products = ((questions @ level.T, min(K, len(level))) for level in levels)
    truth = [np.argpartition(-of, k - 1, axis=1)[:, :k] for of, k in products]
    ways = by_chnsw(levels, questions, given)
    ways += [by_faiss(name, levels, questions, given) for name in given.against]
    for way in ways:
        print(f"{way.name}: {way.build_s:.0f} CPU s to build, {way.n_bytes / 1e6:.0f} MB", flush=True)
    print("\nms of a question, recall@5\n" + "ef".rjust(4), *(way.name.rjust(16) for way in ways))
    for ef in EFS:
        times: dict[str, list[float]] = {way.name: [] for way in ways}
        for at in range(ROUNDS):
            for way in ways:
                started = time.process_time()
                found = way.ask(ef)
                times[way.name].append(1000 * (time.process_time() - started) / len(questions))
                if not at:
                    way.recall.append(recall(found, truth))
        for way in ways:
            way.ms.append(min(times[way.name]))
        shown = (f"{way.ms[-1]:.3f} {way.recall[-1]:.3f}".rjust(16) for way in ways)
        print(str(ef).rjust(4), *shown, flush=True)
    print("\nms of a question at a recall, and how many times as long as C-HNSW")
    for wanted in RECALLS:
        own = ways[0].at(wanted)
        cells: list[str] = []
        for way in ways:
            ms = way.at(wanted)
            times_own = f" ({ms / own:.1f})" if ms and own else ""
            cells.append((f"{ms:.3f}" if ms else "never") + times_own)
        print(f"{wanted:.2f}", *(cell.rjust(16) for cell in cells))


if __name__ == "__main__":
    main()
