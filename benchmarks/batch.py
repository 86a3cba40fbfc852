"""Throughput of `graphrag-ray query --batch` against the simulated endpoint, and the cost of repeating it.

    python benchmarks/batch.py --root index --questions questions.csv --levels C0 C2 --speed 10

The endpoint (see `endpoint/`) has the limits of the run in the GraphRAG paper, 2M tokens and 10k requests a
minute. --speed multiplies them and divides every duration. Calls and rates are those that the endpoint
counts.

Prints one row per level. *share of the limit* refers to the tighter limit, from the first call to the last
answer. *repeated* shows the calls and the seconds of the same command run again with the same --out. Prints
measurements; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import Totals
from simulated import endpoint, get, measure_separately

from graphrag_ray import open_index

RPM, TPM = 10_000, 2_000_000


def command(args: argparse.Namespace, url: str, level: str, out: Path) -> list[str]:
    words = [sys.executable, "-m", "graphrag_ray", "query", "--batch", str(args.questions)]
    words += ["--root", args.root, "--level", level, "--out", str(out), "--quiet"]
    words += ["--model", "simulated", "--base-url", url]
    words += ["--set", "models.default.endpoints.0.api_key_env=null"]
    return [*words, "--rpm", str(RPM * args.speed), "--tpm", str(TPM * args.speed)]


def run_batch(args: argparse.Namespace, url: str, level: str, out: Path) -> Totals:
    totals, printed = measure_separately(command(args, url, level, out))
    if totals.exit_code != 0:
        sys.exit(printed)
    return totals


def calls_of(log: Path) -> list[dict[str, Any]]:
    calls = [json.loads(line) for line in log.read_bytes().splitlines()[1:]]
    return [c for c in calls if c["status"] == 200]


def line(args: argparse.Namespace, level: str, scratch: Path) -> str:
    log, out = scratch / f"{level}.jsonl", scratch / f"{level}.parquet"
    options = [f"--rpm={RPM}", f"--tpm={TPM}", f"--speed={args.speed}", "--no-headers", f"--log={log}"]
    with endpoint(*options) as url:
        first = run_batch(args, url, level, out)
        calls, stats = calls_of(log), get(url)
        repeated = run_batch(args, url, level, out)
        repeated_calls = get(url)["total"]["answered"] - stats["total"]["answered"]
    prompt, completion = (sum(c[kind] for c in calls) for kind in ("prompt", "completion"))
    seconds = max(c["ended"] for c in calls) - min(c["arrived"] for c in calls)
    used = max((prompt + completion) / TPM, len(calls) / RPM) * 60 / seconds / args.speed
    columns = (
        level,
        f"{len(calls):,}",
        f"{prompt:,}",
        f"{completion:,}",
        f"{first.wall_s:.1f}",
        f"{used:.2f}",
        f"{stats['in_flight']['mean']:.0f}",
        f"{first.total_cpu_s:.1f}",
        f"{1000 * first.total_cpu_s / len(calls):.1f}",
        f"{stats['answered_twice']['extra_answers']}",
        f"{repeated_calls} calls, {repeated.wall_s:.1f} s",
    )
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--levels", nargs="+", default=["C0", "C2"])
    parser.add_argument(
        "--speed", type=float, default=1.0, help="divides every duration, including the minute of the limits"
    )
    args = parser.parse_args()
    print(f"{open_index(args.root)!r}, limits and latencies times {args.speed:g}\n")
    print(
        "| level | calls | prompt tokens | completion tokens | s | share of the limit | in flight, mean "
        "| CPU s | CPU ms a call | answered twice | repeated |"
    )
    print("| --- " * 11 + "|")
    with tempfile.TemporaryDirectory() as scratch:
        for level in args.levels:
            print(line(args, level, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
