"""Time and memory of hierarchical Leiden on planted graphs, by graph size and library.

    python benchmarks/communities.py --edges 100_000 1_000_000 --limit-s 600

Each graph has two edges per node, communities with power-law sizes and preferred members, a share CROSS of
edges between communities, integer weights, one hub connected to 2% of all nodes, and some small components.
Each run is a separate process with the same calls as an index run, and is stopped after --limit-s.

Prints one row per graph and library.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import igraph
import leidenalg
import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.communities import build_communities

CROSS = 0.15
HUB_SHARE = 0.02
ALONE = 0.01
"""Share of nodes in components of two or three nodes."""

Arrays = dict[str, npt.NDArray[Any]]


def planted_graph(n_edges: int, seed: int) -> Arrays:
    """Returns source, target and weight [E] (about n_edges), node_tokens and node_keys [N], and planted [N]
    (the community)."""
    rng = np.random.default_rng(seed)
    n = max(10, n_edges // 2)
    n_alone = int(ALONE * n)
    inside = n - n_alone
    sizes = np.minimum((20 * rng.pareto(1.2, size=inside) + 5).astype(np.int64), max(50, inside // 20))
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), inside)) + 1]
    planted = np.repeat(np.arange(len(sizes)), sizes)[:inside]
    start = np.concatenate([[0], np.cumsum(sizes)])
    # A ring keeps each community connected; other edges prefer its first members.
    node = np.arange(inside)
    after = np.where(planted[np.minimum(node + 1, inside - 1)] == planted, node + 1, start[planted])
    more = int(n_edges - inside - HUB_SHARE * inside)
    one = rng.integers(0, inside, max(0, more))
    last = np.minimum(start[planted[one] + 1], inside)
    same_community = start[planted[one]] + ((last - start[planted[one]]) * rng.random(len(one)) ** 2).astype(
        np.int64
    )
    other = np.where(rng.random(len(one)) < CROSS, rng.integers(0, inside, len(one)), same_community)
    hub = rng.choice(inside, int(HUB_SHARE * inside), replace=False)
    alone = np.arange(inside, n - 1, 2)
    source = np.concatenate([node, one, np.zeros(len(hub), dtype=np.int64), alone])
    target = np.concatenate([np.minimum(after, inside - 1), other, hub, alone + 1])
    low, high = np.minimum(source, target), np.maximum(source, target)
    key = np.unique((low * n + high)[low != high])
    # Nodes are numbered by hashes of their names, so neighbours have distant numbers.
    shuffled = rng.permutation(n)
    return {
        "source": shuffled[key // n],
        "target": shuffled[key % n],
        "weight": rng.geometric(0.5, len(key)).astype(np.float64),
        "node_tokens": rng.integers(20, 120, n),
        "node_keys": np.sort(rng.integers(0, 2**63, n).astype(np.uint64)),
    }


class Timed:
    """Sums the CPU seconds of all calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - started
            self.calls += 1


def one_run(path: Path, library: str) -> dict[str, Any]:
    """Build the hierarchy of a stored graph and measure it. Runs in its own process."""
    graph = dict(np.load(path))
    n_nodes = len(graph["node_keys"])
    timed = Timed(igraph.Graph.community_leiden if library == "igraph" else leidenalg.find_partition)
    if library == "igraph":

        def bound(graph: igraph.Graph, **options: Any) -> Any:
            return timed(graph, **options)

        igraph.Graph.community_leiden = bound
    else:
        leidenalg.find_partition = timed
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    hierarchy = build_communities(
        n_nodes,
        graph["source"],
        graph["target"],
        graph["weight"],
        Communities.model_validate({"library": library}),
        graph["node_tokens"],
        4000,
        None,
        graph["node_keys"],
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "nodes": n_nodes,
        "edges": len(graph["source"]),
        "wall_s": wall,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "leiden_s": timed.seconds,
        "leiden_calls": timed.calls,
        "before_mb": before.ru_maxrss / 1e3,
        "peak_mb": after.ru_maxrss / 1e3,
        "modularity": hierarchy.modularity,
        "levels": [len(hierarchy.communities_at_level(k)) for k in range(hierarchy.n_levels)],
        "communities": hierarchy.n_communities,
    }


HEADER = (
    "| edges | nodes | library | CPU s | wall s | Leiden / everything else, CPU s | runs of Leiden | peak "
    "MB (before) | modularity | communities at C0 / C1 / … |\n|" + " --- |" * 10
)


def row(result: dict[str, Any], library: str) -> str:
    cells = [
        f"{result['edges']:,}",
        f"{result['nodes']:,}",
        library,
        f"{result['cpu_s']:.1f}",
        f"{result['wall_s']:.1f}",
        f"{result['leiden_s']:.1f} / {result['cpu_s'] - result['leiden_s']:.1f}",
        f"{result['leiden_calls']:,}",
        f"{result['peak_mb']:.0f} ({result['before_mb']:.0f})",
        f"{result['modularity']:.4f}",
        " / ".join(f"{n:,}" for n in result["levels"]),
    ]
    return "| " + " | ".join(cells) + " |"


def measured_row(path: Path, n_edges: int, library: str, limit_s: float) -> str:
    command = [sys.executable, __file__, "--one", str(path), "--library", library]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"| {n_edges:,} | | {library} | | stopped after {limit_s:.0f} | | | | | |"
    if done.returncode:
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else done.stderr.strip()[-200:]
        return f"| {n_edges:,} | | {library} | | failed: {how} | | | | | |"
    return row(json.loads(done.stdout), library)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--edges", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--library", nargs="+", default=["igraph", "leidenalg"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=600.0, help="stop a run after this many seconds")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(options.one, options.library[0])))
        return
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for n_edges in options.edges:
            path = Path(folder, f"{n_edges}.npz")
            np.savez(path, **planted_graph(n_edges, options.seed))  # type: ignore[arg-type]
            for library in options.library:
                print(measured_row(path, n_edges, library, options.limit_s), flush=True)
            os.remove(path)


if __name__ == "__main__":
    main()
