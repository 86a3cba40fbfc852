r"""Measure `graphrag-ray query --batch` against the simulated endpoint, then repeat the same command.

    python benchmarks/batch.py --root index --questions questions.csv --levels C0 C2 --speed 10

The endpoint (see `endpoint/`) has the limits that the GraphRAG paper used, 2M tokens and 10k requests per
minute, times --speed, which divides all durations. The figures come from the endpoint. *share of the limit*
is the share of the tighter limit, from the first call to the last response. *again* repeats the command with
the same --out: its calls and its seconds. The benchmark asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import Totals
from simulated import endpoint, get, measure_without_endpoint

from graphrag_ray import open_index

RPM, TPM = 10_000, 2_000_000


def command(args: argparse.Namespace, url: str, level: str, out: Path) -> list[str]:
    ours = [sys.executable, "-m", "graphrag_ray", "query", "--batch", str(args.questions)]
    ours += ["--root", args.root, "--level", level, "--out", str(out), "--quiet"]
    ours += ["--model", "simulated", "--base-url", url]
    ours += ["--set", "models.default.endpoints.0.api_key_env=null"]
    return [*ours, "--rpm", str(RPM * args.speed), "--tpm", str(TPM * args.speed)]


def ran(args: argparse.Namespace, url: str, level: str, out: Path) -> Totals:
    totals, printed = measure_without_endpoint(command(args, url, level, out))
    if totals.exit_code != 0:
        sys.exit(printed)
    return totals


def calls_of(log: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.read_bytes().splitlines()[1:]]
    return [c for c in found if c["status"] == 200]


def line(args: argparse.Namespace, level: str, scratch: Path) -> str:
    log, out = scratch / f"{level}.jsonl", scratch / f"{level}.parquet"
    options = [f"--rpm={RPM}", f"--tpm={TPM}", f"--speed={args.speed}", "--no-headers", f"--log={log}"]
    with endpoint(*options) as url:
        first = ran(args, url, level, out)
        calls, stats = calls_of(log), get(url)
        again = ran(args, url, level, out)
        more = get(url)["total"]["answered"] - stats["total"]["answered"]
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
        f"{more} calls, {again.wall_s:.1f} s",
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
        "--speed",
        type=float,
        default=1.0,
        help="speed-up of all durations, including the minute of the limits",
    )
    args = parser.parse_args()
    print(f"{open_index(args.root)!r}, limits and latencies times {args.speed:g}\n")
    print(
        "| level | calls | prompt tokens | completion tokens | s | share of the limit | in flight, mean "
        "| CPU s | CPU ms per call | answered twice | again |"
    )
    print("| --- " * 11 + "|")
    with tempfile.TemporaryDirectory() as scratch:
        for level in args.levels:
            print(line(args, level, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
