"""What a question costs on an existing index: CPU, wall time and bytes read, warm and cold.

    python benchmarks/asking.py --root growth/index-corpus-10000000-1 --questions 200

Each question asks about two randomly drawn entities and is asked once. Warm questions share one process, in
which a question of the same kind has already run. A cold question starts a new process. Its time runs from
the start of the process to the answer, so it includes starting Python. Bytes are those of read calls
(/proc/self/io) and do not include memory-mapped pages.

Linux only. Prints measurements; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # As the command line does.

from graphrag_ray import open_index
from graphrag_ray.query.ask import Index

MB = 1e6
COLD = 3
ASK = "import sys, graphrag_ray as g; g.open_index(sys.argv[1]).ask(sys.argv[2], method=sys.argv[3])"


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    read: int


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def warm(index: Index, question: str, method: str) -> Cost:
    before = time.monotonic(), time.process_time(), bytes_read()
    index.ask(question, method=method)
    after = time.monotonic(), time.process_time(), bytes_read()
    wall, cpu, read = (b - a for a, b in zip(before, after, strict=True))
    return Cost(wall, cpu, int(read))


def cold(root: str, question: str, method: str) -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", ASK, root, question, method], check=True)
    return time.monotonic() - started


def questions(index: Index, n: int, seed: int) -> list[str]:
    titles = sorted(index.table("entities", ["title"])["title"].to_pylist())
    rng = random.Random(seed)
    return [f"What is known about {rng.choice(titles)} and {rng.choice(titles)}?" for _ in range(n)]


def row(method: str, first: Cost, costs: Sequence[Cost], cold_s: Sequence[float]) -> str:
    def cells() -> Iterator[str]:
        yield method
        yield f"{statistics.mean(c.cpu_s for c in costs):.3f}"
        yield f"{statistics.median(c.wall_s for c in costs):.3f}"
        yield f"{max(c.wall_s for c in costs):.2f}"
        yield f"{statistics.mean(c.read for c in costs) / MB:.2f}"
        yield f"{first.cpu_s:.2f} / {first.read / MB:.1f}"
        yield f"{statistics.median(cold_s):.2f}" if cold_s else ""

    return "| " + " | ".join(cells()) + " |"


HEADER = (
    "| method | CPU s, mean | wall s, median | slowest | MB read, mean | first in the process: CPU s / MB | "
    "cold process, wall s |\n|" + " --- |" * 7
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--methods", nargs="+", default=["local", "hybrid", "vector"])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    asked = questions(open_index(options.root), options.questions + 1 + COLD, options.seed)
    print(HEADER, flush=True)
    for method in options.methods:
        index = open_index(options.root)
        first = warm(index, asked[0], method)
        costs = [warm(index, question, method) for question in asked[1 + COLD :]]
        cold_s = [cold(options.root, question, method) for question in asked[1 : 1 + COLD]]
        print(row(method, first, costs, cold_s), flush=True)


if __name__ == "__main__":
    main()
