"""Vector search: exact against the graph of neighbours, and keyword search, by the number of records.

    python benchmarks/search.py --sizes 10_000 100_000 300_000 1_000_000

Records are three sentences of the demo corpus drawn at random, under the offline embedding (256 dimensions);
questions are two sentences, none of them a record. Indexes are built by one core in shards as an index has
them, written to a file and memory-mapped; a question is asked of all shards, one after the other. Recall is
the share of the exact answer. A row is printed when it is done. Measures, asserts nothing.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.offline.embed import embed_many
from graphrag_ray.search import keyword, vectors
from graphrag_ray.search.ranking import Found, merged

DEMO = Path(__file__).parent.parent / "demo" / "corpus"
QUESTIONS = 50
COLUMNS = ("records", "index", "shards", "build s", "MB", "first ms", "ms", "p95", "@10", "@100")


def sentences() -> list[str]:
    text = " ".join(path.read_text("utf-8") for path in sorted(DEMO.rglob("*.*")))
    return sorted({s.strip() for s in re.split(r"(?<=[.!?])\s+", text) if len(s.split()) > 4})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    arguments.add_argument("--shard", type=int, default=131_072)
    arguments.add_argument("--only", choices=["exact", "graph", "keyword"], nargs="+")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    rng = np.random.default_rng(given.seed)
    known = sentences()
    of_sentences = np.frombuffer(b"".join(embed_many(known)), "<f4").reshape(len(known), -1)
    asked = rng.integers(0, len(known), (QUESTIONS, 2))
    questions = vectors.unit(of_sentences[asked].sum(axis=1))
    print(" | ".join(COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for size in given.sizes:
            drawn = rng.integers(0, len(known), (size, 3))
            matrix = np.concatenate([of_sentences[part].sum(axis=1) for part in np.array_split(drawn, 64)])
            ids = [f"{i:032x}" for i in rng.permutation(size)]
            shards = [range(start, min(start + given.shard, size)) for start in range(0, size, given.shard)]
            truth: list[list[Found]] | None = None
            for name in given.only or ("exact", "graph", "keyword"):
                if name == "keyword":
                    build = lambda r: keyword.build(  # noqa: E731
                        [ids[i] for i in r], [" ".join(known[s] for s in drawn[i]) for i in r]
                    )
                    wanted = [keyword.asked(" ".join(known[s] for s in pair)) for pair in asked]
                    found = measured(name, size, shards, build, keyword.read, keyword.search, wanted, folder)
                    continue
                build = lambda r: vectors.build(
                    [ids[i] for i in r], matrix[r.start : r.stop], graph=name == "graph"
                )
                found = measured(
                    name, size, shards, build, vectors.read, vectors.search, list(questions), folder, truth
                )
                truth = found if name == "exact" else truth


def measured(
    name: str,
    size: int,
    ranges: Sequence[range],
    build: Callable[[range], pa.Buffer],
    read: Callable[[pa.Buffer], Any],
    search: Callable[..., list[Found]],
    questions: Sequence[Any],
    folder: str,
    truth: list[list[Found]] | None = None,
) -> list[list[Found]]:
    """Prints a row; returns the 100 best of each question."""
    shards, n_bytes, build_s = [], 0, 0.0
    for number, part in enumerate(ranges):
        started = time.perf_counter()
        data = build(part)
        build_s += time.perf_counter() - started
        path = Path(folder) / f"{name}-{size}-{number}"
        path.write_bytes(data)
        n_bytes += data.size
        del data
        shards.append(read(pa.memory_map(str(path)).read_buffer()))
    found, seconds = [], []
    for question in questions:
        started = time.perf_counter()
        merged((search(shard, question, 10) for shard in shards), 10)
        seconds.append(1000 * (time.perf_counter() - started))
        found.append(merged((search(shard, question, 100) for shard in shards), 100))
    warm = sorted(seconds[1:])
    recall = [f"{share(found, truth, k):.3f}" for k in (10, 100)] if truth else ["", ""]
    row = (
        f"{size:,}", name, len(ranges), f"{build_s:.1f}", f"{n_bytes / 1e6:.0f}", f"{seconds[0]:.1f}",
        f"{statistics.median(warm):.1f}", f"{warm[int(0.95 * len(warm))]:.1f}", *recall,
    )  # fmt: skip
    print(" | ".join(map(str, row)), flush=True)
    return found


def share(found: list[list[Found]], truth: list[list[Found]], k: int) -> float:
    """Of the k best, those that were found."""
    shares = []
    for hits, exact in zip(found, truth, strict=True):
        wanted = {id_ for id_, _ in exact[:k]}
        shares.append(len({id_ for id_, _ in hits[:k]} & wanted) / len(wanted))
    return statistics.mean(shares)


if __name__ == "__main__":
    main()
