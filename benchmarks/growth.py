"""How the cost of indexing grows with the size of the corpus: `graphrag-ray index` with the offline engine.

    python benchmarks/growth.py --tokens 1_000_000 10_000_000 --work /tmp/growth

Generates a corpus of each size (`corpus.py`) and indexes it with a separate Ray instance. Prints tables of
CPU seconds of all processes per million tokens, wall time, time by step, peak memory of the driver and of the
workers, and bytes written. See `processes.py` for how they are measured.

Every run has a fixed cost, mostly for starting Ray. It is measured by indexing one short document, and
subtracted in the column "less the constant part".

Corpora and indexes stay in --work. An existing corpus is reused; an index is always rebuilt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corpus import write_corpus
from processes import Totals, measure

from graphrag_ray.base.declarations import STAGES

_STEP = re.compile(r"^(\w+) {2,}(?:[\d.,]+ s|unchanged)\b")
SMALL = "Alice Ferrant worked with Dudand Institute about the lease. Nobody else came.\n"
MB = 1e6


def lap_of(line: str) -> str | None:
    """The step that a line of `graphrag-ray index` reports as finished.

    Compacting the journal has its own line and is part of its step.
    """
    match = _STEP.match(line)
    return match.group(1) if match and match.group(1) in STAGES else None


def corpus(work: Path, tokens: int, seed: int, exponent: float) -> tuple[Path, Mapping[str, Any]]:
    """A corpus of this many tokens, generated if it does not exist. 0 means one short document."""
    out = work / (f"corpus-{tokens}-{seed}" + (f"-{exponent}" if exponent != 0.65 else ""))
    summary = work / f"{out.name}.truth" / "summary.json"
    if not tokens:
        out.mkdir(parents=True, exist_ok=True)
        (out / "one.txt").write_text(SMALL, "utf-8")
        return out, {"tokens": 0}
    if not summary.exists():
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(summary.parent, ignore_errors=True)
        write_corpus(out, tokens, seed, exponent)
    return out, json.loads(summary.read_text("utf-8"))


def index(folder: Path, root: Path, extra: Sequence[str]) -> tuple[Totals, dict[str, Any]]:
    """Index a corpus from scratch.

    Returns the resources used, the counts of the snapshot and the bytes per folder.
    """
    shutil.rmtree(root, ignore_errors=True)
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"RAY_USAGE_STATS_ENABLED": "0"}
    command = [
        sys.executable,
        "-m",
        "graphrag_ray",
        "index",
        str(folder),
        "--root",
        str(root),
        "--ray",
        *extra,
    ]
    totals, printed = measure(command, lap_of, env)
    if totals.exit_code:
        sys.exit(f"{' '.join(command)} ended with {totals.exit_code}:\n{printed}")
    snapshot = json.loads((root / "snapshots" / "1.json").read_text("utf-8"))
    sizes = {name: _bytes(root / name) for name in ("tables", "work", "snapshots")}
    return totals, {"counts": snapshot["counts"], "bytes": sizes, "run": snapshot["run"]}


def _bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def summary_row(tokens: int, totals: Totals, built: Mapping[str, Any], constant: Totals | None) -> str:
    """A row of the table of runs, with the columns of `HEADER`."""
    counts, sizes = built["counts"], built["bytes"]
    millions = tokens / 1e6
    cpu = totals.total_cpu_s
    net = f"{(cpu - constant.total_cpu_s) / millions:.1f}" if constant else ""
    cells = [
        f"{tokens:,}",
        f"{counts['documents']:,}",
        f"{counts['text_units']:,}",
        f"{counts['entities']:,}",
        f"{counts['relationships']:,}",
        f"{counts['reports']:,}",
        f"{totals.wall_s:.0f}",
        f"{cpu:.0f}",
        f"{cpu / millions:.1f}",
        net,
        f"{totals.driver_peak / MB:.0f}",
        f"{totals.worker_peak / MB:.0f} / {totals.workers_peak / MB:.0f}",
        f"{totals.store_peak / MB:.0f}",
        f"{sizes['tables'] / MB:.0f}",
        f"{sizes['work'] / MB:.0f}",
        f"{totals.written / MB:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEADER = (
    "| tokens | documents | chunks | entities | relationships | reports | wall s | CPU s | CPU s per million "
    "tokens | less the constant part | driver MB | largest worker / all workers MB | object store MB | "
    "tables MB | journal MB | written to disk MB |\n|" + " --- |" * 16
)


def steps_table(runs: Sequence[tuple[int, Totals]]) -> str:
    """Wall time, CPU per million tokens and the driver's peak memory, by step and run."""
    names = list(dict.fromkeys(name for _, totals in runs for name in totals.laps))
    head = " | ".join(f"{tokens:,}: wall s | CPU s per million | driver MB" for tokens, _ in runs)
    lines = [f"| step | {head} |", "|" + " --- |" * (1 + 3 * len(runs))]
    for name in names:
        cells = []
        for tokens, totals in runs:
            lap = totals.laps.get(name)
            per = (lap["cpu_s"] / (tokens / 1e6)) if lap and tokens else 0.0
            cells.append(
                f"{lap['wall_s']:.1f} | {per:.2f} | {lap['driver_peak'] / MB:.0f}" if lap else " | | "
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def roles_table(runs: Sequence[tuple[int, Totals]]) -> str:
    """CPU seconds by kind of process."""
    roles = ["driver", "worker", "raylet", "gcs", "other"]
    lines = ["| tokens | " + " | ".join(roles) + " | processes |", "|" + " --- |" * (len(roles) + 2)]
    for tokens, totals in runs:
        shown = " | ".join(f"{totals.cpu_s.get(role, 0.0):.1f}" for role in roles)
        lines.append(f"| {tokens:,} | {shown} | {totals.n_processes} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--exponent", type=float, default=0.65, help="Heaps exponent of the vocabulary of names"
    )
    parser.add_argument("--work", type=Path, default=Path("growth"), help="folder for corpora and indexes")
    parser.add_argument(
        "--constant",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the fixed cost of a run",
    )
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of the index")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    extra = [part for setting in options.set for part in ("--set", setting)]
    constant: Totals | None = None
    runs: list[tuple[int, Totals]] = []
    rows: list[str] = []
    for tokens in ([0] if options.constant else []) + options.tokens:
        folder, planted = corpus(options.work, tokens, options.seed, options.exponent)
        totals, built = index(folder, options.work / f"index-{folder.name}", extra)
        result = {"tokens": planted["tokens"], "used": asdict(totals), **built}
        (options.work / f"result-{folder.name}.json").write_text(json.dumps(result, indent=2), "utf-8")
        if not tokens:
            constant = totals
            print(f"constant part: {totals.total_cpu_s:.1f} CPU s, {totals.wall_s:.0f} s wall", flush=True)
            continue
        runs.append((planted["tokens"], totals))
        rows.append(summary_row(planted["tokens"], totals, built, constant))
        print(rows[-1], flush=True)
    print("", HEADER, *rows, "", steps_table(runs), "", roles_table(runs), sep="\n")


if __name__ == "__main__":
    main()
