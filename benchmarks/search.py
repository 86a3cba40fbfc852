"""Time and recall of search by number of records: exact vectors, sign-quantised vectors, and keywords.

    python benchmarks/search.py --sizes 10_000 100_000 300_000 1_000_000

Each record consists of three random sentences of the demo corpus, with their offline embedding (256
dimensions). Questions consist of two sentences. Indexes are built on one core in shards of the usual size,
written to files and memory-mapped. A question searches all shards for its 10 nearest records. Recall is the
share of the results of exact search that are found.

Prints each row as soon as it is measured; asserts nothing. With --folder the shards are kept, and the same
command reuses them the next time.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphrag_ray.indexing.stages.search_stage import SHARD_ROWS
from graphrag_ray.offline.static_embeddings import embed_many
from graphrag_ray.store.search import keyword_index, vector_index
from graphrag_ray.store.search.mapped_arrays import InMemory
from graphrag_ray.store.search.vector_index import ScoredId

DEMO = Path(__file__).parent.parent / "demo" / "corpus"
QUESTIONS = 50
COLUMNS = ("records", "index", "shards", "CPU s", "MB", "ms", "p95", "recall @10", "@100")
WIDTHS = (10, 8, 7, 8, 7, 7, 7, 11, 7)


@dataclass(frozen=True)
class Records:
    """`drawn`: [records, sentences of each]"""

    sentences: Sequence[str]
    drawn: np.ndarray

    @cached_property
    def ids(self) -> list[str]:
        return [f"{i:032x}" for i in np.random.default_rng(0).permutation(len(self.drawn))]

    def vectors(self, rows: range) -> np.ndarray:
        """The vector of a text is the sum of its sentence vectors, as that of a sentence is of its words."""
        return self._of_sentences[self.drawn[rows.start : rows.stop]].sum(axis=1)

    def texts(self, rows: range) -> list[str]:
        return [" ".join(self.sentences[s] for s in self.drawn[i]) for i in rows]

    @cached_property
    def _of_sentences(self) -> np.ndarray:
        return np.frombuffer(b"".join(embed_many(self.sentences)), "<f4").reshape(len(self.sentences), -1)


@dataclass(frozen=True)
class IndexKind:
    """A search index: functions that build, read and query a shard, and the queries."""

    name: str
    build: Callable[[range], bytes]
    read: Callable[[InMemory], Any]
    search: Callable[..., list[ScoredId]]
    asked: list[Any]


def index_kinds(records: Records, questions: Records) -> list[IndexKind]:
    def by_vector(name: str, signs: bool) -> IndexKind:
        def build(rows: range) -> bytes:
            return vector_index.build(records.ids[rows.start : rows.stop], records.vectors(rows), signs)

        asked = list(vector_index.normalize(questions.vectors(range(QUESTIONS))))
        return IndexKind(name, build, vector_index.read, vector_index.search, asked)

    def by_keyword(rows: range) -> bytes:
        return keyword_index.build(records.ids[rows.start : rows.stop], records.texts(rows), "english")

    asked = questions.texts(range(QUESTIONS))
    keyword = IndexKind("keyword", by_keyword, keyword_index.read, keyword_index.search, asked)
    return [by_vector("exact", False), by_vector("signs", True), keyword]


def measured(
    kind: IndexKind, size: int, folder: Path, truth: list[list[ScoredId]] | None
) -> list[list[ScoredId]]:
    """Build or open an index, measure it and print a row. Returns the 100 best records of each question."""
    shards, n_bytes, build_s = [], 0, 0.0
    for start in range(0, size, SHARD_ROWS):
        path, seconds_file = folder / f"{kind.name}-{size}-{start}", folder / f"{kind.name}-{size}-{start}.s"
        if not seconds_file.exists():
            started = time.process_time()
            path.write_bytes(kind.build(range(start, min(start + SHARD_ROWS, size))))
            seconds_file.write_text(str(time.process_time() - started))
        build_s += float(seconds_file.read_text())
        n_bytes += path.stat().st_size
        shards.append(kind.read(InMemory(np.memmap(path, np.uint8, "r"))))

    def ask(question: Any, k: int) -> list[ScoredId]:
        return kind.search(shards, question, k)

    results = [ask(question, 100) for question in kind.asked]
    ms = []
    for question in kind.asked * 3:
        started = time.perf_counter()
        ask(question, 10)
        ms.append(1000 * (time.perf_counter() - started))
    p95 = sorted(ms)[int(0.95 * len(ms))]
    recall = [f"{share(results, truth, k):.3f}" for k in (10, 100)] if truth else ["", ""]
    times = f"{build_s:.1f}", f"{n_bytes / 1e6:.0f}", f"{statistics.median(ms):.1f}", f"{p95:.1f}"
    show(f"{size:,}", kind.name, str(len(shards)), *times, *recall)
    return results


def share(results: list[list[ScoredId]], truth: list[list[ScoredId]], k: int) -> float:
    both = zip(results, truth, strict=True)
    return statistics.mean(len({i for i, _ in a[:k]} & {i for i, _ in b[:k]}) / k for a, b in both)


def show(*cells: str) -> None:
    print(" ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--only", choices=["exact", "signs", "keyword"], nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, help="folder in which to keep shards; existing ones are reused"
    )
    args = parser.parse_args()
    text = " ".join(path.read_text("utf-8") for path in sorted(DEMO.rglob("*.*")))
    sentences = sorted({s.strip() for s in re.split(r"(?<=[.!?])\s+", text) if len(s.split()) > 4})
    rng = np.random.default_rng(args.seed)
    questions = Records(sentences, rng.integers(0, len(sentences), (QUESTIONS, 2)))
    show(*COLUMNS)
    for size in args.sizes:
        records = Records(sentences, rng.integers(0, len(sentences), (size, 3)))
        truth = None
        with tempfile.TemporaryDirectory() if args.folder is None else nullcontext(args.folder) as folder:
            for kind in index_kinds(records, questions):
                if args.only is None or kind.name in args.only:
                    results = measured(kind, size, Path(folder), truth if kind.name == "signs" else None)
                    truth = results if kind.name == "exact" else truth


if __name__ == "__main__":
    main()
