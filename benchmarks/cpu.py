"""Measure the CPU time of a run per request, over all our processes, including Ray's (Linux only).

    python benchmarks/cpu.py                          # 4,000 generated chunks, 1,000 in flight, 3 s per call
    python benchmarks/cpu.py --chunks 20000 --latency 3 --in-flight 1000
    python benchmarks/cpu.py --input DIR --set chunking.size=document

Starts the simulated endpoint with precomputed replies and no limits, then `graphrag-ray index`.
`processes.py` explains how processes are measured, and what is not included.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import Totals
from simulated import endpoint, get, measure_without_endpoint

TOKENS_PER_WORD = 1.35


def write_corpus(path: Path, chunks: int, tokens: int, seed: int = 1) -> None:
    """Write a .jsonl file of meaningless texts with about this many tokens each."""
    rng = random.Random(seed)
    syllables = ("ba", "den", "far", "gol", "hin", "kel", "lor", "mas", "nor", "pet", "sil", "tor", "ven")
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(3000)]
    with path.open("w") as out:
        for i in range(chunks):
            text = " ".join(rng.choices(words, k=round(tokens / TOKENS_PER_WORD / 1.5)))
            out.write(json.dumps({"title": f"Text {i}", "text": text}) + "\n")


def run(given: argparse.Namespace, folder: Path) -> int:
    source = given.input
    if source is None:
        source = str(folder / "corpus.jsonl")
        write_corpus(Path(source), given.chunks, given.chunk_tokens)
    with endpoint("--replies", "fixed", "--latency", str(given.latency)) as url:
        command = [
            sys.executable, "-m", "graphrag_ray", "index", source, "--ray", "--root", str(folder / "index"),
            "--model", "m", "--base-url", url, "--max-in-flight", str(given.in_flight), "--quiet",
            "--set", "models.default.endpoints.0.api_key_env=null", *(f"--set={s}" for s in given.set),
        ]  # fmt: skip
        used, printed = measure_without_endpoint(command)
        print(printed, end="")
        report(given, used, get(url), get(url, "/stats/series"))
    return used.exit_code


def report(given: argparse.Namespace, used: Totals, stats: dict[str, Any], series: dict[str, Any]) -> None:
    requests = max(1, stats["requests"])
    # While there is enough work: at least half of the allowed calls are in flight.
    at_work = [
        n
        for n, flying in zip(series["admitted_requests"], series["mean_in_flight"], strict=True)
        if flying >= given.in_flight / 2
    ]
    rows = [
        ("exit code", used.exit_code),
        ("requests", stats["requests"]),
        ("wall s", f"{used.wall_s:.1f}"),
        (
            "in flight, peak / mean",
            f"{stats['in_flight']['peak']} / {stats['in_flight']['mean_while_any']:.0f}",
        ),
        (
            "requests/s while at least half in flight",
            f"{sum(at_work) / len(at_work):.0f} over {len(at_work)} s" if at_work else "never",
        ),
        ("CPU s", f"{used.total_cpu_s:.1f}"),
        ("CPU ms per request", f"{1000 * used.total_cpu_s / requests:.2f}"),
        *((f"  {part}", f"{1000 * s / requests:.2f}") for part, s in used.cpu_s.items()),
        ("endpoint's own CPU ms per request", f"{1000 * stats['cpu_s'] / requests:.2f}"),
        ("private memory of all at its peak, MB", f"{used.all_peak / 1e6:.0f}"),
    ]
    for name, value in rows:
        print(f"{name:56}{value}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", help="a corpus; without it, one is generated")
    parser.add_argument("--chunks", type=int, default=4000, help="number of chunks in the generated corpus")
    parser.add_argument("--chunk-tokens", type=int, default=550)
    parser.add_argument("--latency", type=float, default=3.0, help="seconds per call")
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of the index")
    with tempfile.TemporaryDirectory() as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
