"""Nearest neighbours at every level: one descent through C-HNSW compared with one HNSW per level.

    pip install faiss-cpu numba
    python benchmarks/chnsw.py --nodes 100_000 --vectors INDEX/tables/embeddings_entity
    python benchmarks/chnsw.py --nodes 1_000_000 --vectors embeddings.npy --noise .6
    python benchmarks/chnsw.py --nodes 100_000 --dimensions 256 --vectors random
    python benchmarks/chnsw.py --nodes 100_000 --vectors random --against faiss faiss-8-bits

Level 0 has --nodes nodes. If there are more nodes than vectors, vectors are repeated with added noise of
length --noise and normalised again. Each higher level consists of the centroids of groups of nearby nodes of
the level below, with alternating group sizes of three and four. Questions are vectors of the same source that
are not nodes; with --vectors random they are also random.

Prints the time per question and the recall: the share of the 5 nearest neighbours found, averaged over all
levels. Times are CPU times, the lowest of three rounds. Everything runs in one thread. All questions are
passed in one call (one per level for HNSW), so the overhead of calls from Python does not count. Ids are not
resolved. `alone` enters each level of the same C-HNSW at the nearest of 64 nodes, so its extra time is what
the hierarchy saves. The last table interpolates times at equal recall. Recall values below the lowest one
measured use the time at the lowest ef. Prints measurements; asserts nothing.
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
BATCH_ROWS = 8_192
MIN_LEVEL_NODES = 12
"""A level with fewer nodes is the top level."""


@dataclass
class Method:
    """A search method and its measurements.

    `ask` returns the positions of the nearest neighbours within each level, [questions, levels, K], for an
    ef.
    """

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


def load_vectors(path: Path) -> np.ndarray:
    """Returns [n, dimensions] from a .npy file or the column `vector` of the Parquet files of a folder."""
    if path.is_file():
        return np.load(path).astype(np.float32, copy=False)
    columns = [pq.read_table(part, columns=["vector"])["vector"] for part in sorted(path.glob("*.parquet"))]
    rows = [column.combine_chunks() for column in columns]
    return np.concatenate([row.flatten().to_numpy(False).reshape(len(row), -1) for row in rows])


def nodes_and_questions(args: argparse.Namespace, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    n, n_questions = args.nodes, args.questions
    if args.vectors == "random":
        drawn = normalize(rng.standard_normal((n + n_questions, args.dimensions), np.float32))
        return drawn[n_questions:], drawn[:n_questions]
    vectors = normalize(load_vectors(Path(args.vectors)))
    vectors = vectors[rng.permutation(len(vectors))]
    n_questions = min(n_questions, len(vectors) // 4)
    questions, vectors = vectors[:n_questions], vectors[n_questions:]
    nodes = np.empty((n, vectors.shape[1]), np.float32)
    for at in range(0, n, len(vectors)):
        some = vectors[: n - at]
        noise = normalize(rng.standard_normal(some.shape, np.float32)) * (args.noise if at else 0.0)
        nodes[at : at + len(some)] = normalize(some + noise)
    return nodes[rng.permutation(n)], questions


def nearest_centre(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    some = [rows[at : at + BATCH_ROWS] @ centres.T for at in range(0, len(rows), BATCH_ROWS)]
    return np.concatenate([products.argmax(axis=1) for products in some])


def group_centroids(nodes: np.ndarray, of_each: int, rng: Any) -> np.ndarray:
    """Centroids of groups of near nodes, by two rounds of k-means within each cell."""
    cells = nodes[np.sort(rng.choice(len(nodes), max(1, len(nodes) // CELL), replace=False))]
    cell_of = nearest_centre(nodes, cells)
    order = np.argsort(cell_of, kind="stable")
    bounds = np.searchsorted(cell_of[order], np.arange(len(cells) + 1))
    centroids = []
    for start, end in pairwise(bounds):
        rows = nodes[order[start:end]]
        centres = rows[rng.choice(len(rows), -(-len(rows) // of_each), replace=False)]
        for _ in range(2 if len(rows) else 0):
            group = nearest_centre(rows, centres)
            sums = np.zeros_like(centres)
            np.add.at(sums, group, rows)
            empty = np.bincount(group, minlength=len(centres)) == 0
            centres = normalize(np.where(empty[:, None], centres, sums))
        centroids.append(centres)
    return np.concatenate(centroids)


def levels_of(nodes: np.ndarray, max_levels: int, rng: Any) -> list[np.ndarray]:
    levels = [nodes]
    while len(levels) < max_levels and len(levels[-1]) >= MIN_LEVEL_NODES:
        levels.append(group_centroids(levels[-1], 3 if len(levels) % 2 else 4, rng))
    return levels


def by_chnsw(levels: Sequence[np.ndarray], questions: np.ndarray, args: argparse.Namespace) -> list[Method]:
    starts = np.cumsum([0, *map(len, levels)])
    ids = [[f"{at:032x}" for at in range(start, end)] for start, end in pairwise(starts)]
    sample = chnsw.build([(ids[0][:100], levels[0][:100])], exact=10)
    chnsw.read(InMemory.of(sample)).nearest_positions(questions, K)  # Compile it before measuring.
    started = time.process_time()
    data = chnsw.build(list(zip(ids, levels, strict=True)), args.m, args.ef_build)
    build_s = time.process_time() - started
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
        return pad_levels(index.nearest_positions(questions, K, ef)[0]) - starts[:-1, None]

    def ask_alone(ef: int) -> np.ndarray:
        positions = [pad_levels(one.nearest_positions(questions, K, ef)[0]) for one in alone]
        return np.concatenate(positions, axis=1) - starts[:-1, None]

    return [
        Method(name, ask_levels, build_s, len(data), [], [])
        for name, ask_levels in (("C-HNSW", ask), ("alone", ask_alone))
    ]


def pad_levels(places: np.ndarray) -> np.ndarray:
    """Pads levels with fewer nodes to K."""
    return np.pad(places, [(0, 0), (0, 0), (0, K - places.shape[2])], constant_values=-1)


def by_faiss(
    name: str, levels: Sequence[np.ndarray], questions: np.ndarray, args: argparse.Namespace
) -> Method:
    import faiss

    faiss.omp_set_num_threads(1)
    started, indexes = time.process_time(), []
    for level in levels:
        width, metric = level.shape[1], faiss.METRIC_INNER_PRODUCT
        if name == "faiss":
            index = faiss.IndexHNSWFlat(width, args.m, metric)
        else:
            index = faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_8bit, args.m, metric)
            index.train(level)
        index.hnsw.efConstruction = args.ef_build
        index.add(level)
        indexes.append(index)
    build_s = time.process_time() - started

    def ask(ef: int) -> np.ndarray:
        positions = np.empty((len(questions), len(levels), K), np.int64)
        for at, index in enumerate(indexes):
            index.hnsw.efSearch = ef
            positions[:, at] = index.search(questions, K)[1]
        return positions

    return Method(name, ask, build_s, sum(len(faiss.serialize_index(index)) for index in indexes), [], [])


def recall(positions: np.ndarray, truth: Sequence[np.ndarray]) -> float:
    """`truth`: for each level [questions, K or fewer]."""
    shares = []
    for level, exact in enumerate(truth):
        both = [np.intersect1d(a, b).size for a, b in zip(positions[:, level], exact, strict=True)]
        shares.append(np.mean(both) / exact.shape[1])
    return float(np.mean(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000, help="nodes of level 0")
    parser.add_argument("--dimensions", type=int, default=256, help="dimensions of random vectors")
    parser.add_argument(
        "--vectors",
        default="random",
        metavar="random|FILE",
        help="random vectors, a .npy file, or a folder of Parquet files",
    )
    parser.add_argument(
        "--noise", type=float, default=0.6, help="length of the noise added to repeated vectors"
    )
    parser.add_argument("--levels", type=int, default=11, help="maximum number of levels")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--m", type=int, default=chnsw.M)
    parser.add_argument("--ef-build", type=int, default=chnsw.EF_BUILD)
    parser.add_argument("--against", choices=["faiss", "faiss-8-bits"], nargs="*", default=["faiss"])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    nodes, questions = nodes_and_questions(args, rng)
    levels = levels_of(nodes, args.levels, rng)
    print("levels:", *(f"{len(level):,}" for level in levels), f"| {nodes.shape[1]} dimensions", flush=True)
    products = ((questions @ level.T, min(K, len(level))) for level in levels)
    truth = [np.argpartition(-of, k - 1, axis=1)[:, :k] for of, k in products]
    methods = by_chnsw(levels, questions, args)
    methods += [by_faiss(name, levels, questions, args) for name in args.against]
    for method in methods:
        print(
            f"{method.name}: {method.build_s:.0f} CPU s to build, {method.n_bytes / 1e6:.0f} MB", flush=True
        )
    print("\nms per question, recall@5\n" + "ef".rjust(4), *(method.name.rjust(16) for method in methods))
    for ef in EFS:
        times: dict[str, list[float]] = {method.name: [] for method in methods}
        for at in range(ROUNDS):
            for method in methods:
                started = time.process_time()
                positions = method.ask(ef)
                times[method.name].append(1000 * (time.process_time() - started) / len(questions))
                if not at:
                    method.recall.append(recall(positions, truth))
        for method in methods:
            method.ms.append(min(times[method.name]))
        shown = (f"{method.ms[-1]:.3f} {method.recall[-1]:.3f}".rjust(16) for method in methods)
        print(str(ef).rjust(4), *shown, flush=True)
    print("\nms per question at a given recall, and as a multiple of C-HNSW")
    for wanted in RECALLS:
        baseline_ms = methods[0].at(wanted)
        cells: list[str] = []
        for method in methods:
            ms = method.at(wanted)
            ratio = f" ({ms / baseline_ms:.1f})" if ms and baseline_ms else ""
            cells.append((f"{ms:.3f}" if ms else "never") + ratio)
        print(f"{wanted:.2f}", *(cell.rjust(16) for cell in cells))


if __name__ == "__main__":
    main()
