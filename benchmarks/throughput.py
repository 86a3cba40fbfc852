r"""Measure how much of an endpoint's rate limits `graphrag-ray index` uses, with the simulated endpoint.

    python benchmarks/throughput.py CORPUS --set chunking.size=document
    python benchmarks/throughput.py CORPUS --hedge
    python benchmarks/throughput.py CORPUS --speed 10            # everything ten times faster
    python benchmarks/throughput.py CORPUS --errors 0.02 --drops 0.01 --hangs 0.002 --garbage 0.01 \
        --truncate 0.01

The endpoint is a separate process (see `endpoint/`). By default, it has the limits that the GraphRAG paper
used, 2M tokens and 10k requests per minute. A call takes 0.5 s plus 1 s per 60 tokens, and 1% of calls take
eight times as long. The figures are computed from the endpoint's log, not from the run's own accounting:

- *while queued*: tokens admitted from a stage's first call until its last dialogue began, as a share of the
  limit. For reports, which depend on one another, the period ends when nine tenths of them
  have begun.
- *bound*: no client can be faster than max(tokens/TPM, requests/RPM, critical path). The critical path is the
  sum over stages of the longest dialogue, calls in turn, without the time spent in the endpoint's queue.
- *share of the bound*: the bound over the whole run, from the start of the command to its end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulated import endpoint, get

STAGES = {
    "extract": ("extract", "glean_check", "glean"),
    "claims": ("claims",),
    "describe": ("describe",),
    "report": ("report",),
    "embed": ("embeddings",),
    "other": ("other", "map", "reduce"),
}
QUEUE_EMPTY_AT = {"report": 0.9}
"""Share of a stage's dialogues that have begun when its queue is considered empty. 1 for other stages."""
FAULTS = ("errors", "drops", "hangs", "garbage", "truncate")


@dataclass(frozen=True)
class Limits:
    """Limits per minute of wall-clock time."""

    requests: float
    tokens: float


@dataclass(frozen=True)
class Stage:
    name: str
    calls: list[dict[str, Any]]

    @property
    def answered(self) -> list[dict[str, Any]]:
        return [c for c in self.calls if c["status"] != 429]

    @property
    def tokens(self) -> int:
        return sum(c["prompt"] + c["completion"] for c in self.answered)

    @property
    def seconds(self) -> float:
        return max(c["ended"] for c in self.calls) - min(c["arrived"] for c in self.calls)

    @property
    def longest_dialogue_s(self) -> float:
        spent: defaultdict[str, float] = defaultdict(float)
        for c in self.answered:
            if c["started"] is not None:
                spent[c["dialogue"]] += c["ended"] - c["started"]
        return max(spent.values(), default=0.0)

    def while_queued(self, limits: Limits) -> tuple[float, float]:
        """Return how long work was queued, in seconds, and the share of the tighter limit used meanwhile."""
        began: dict[str, float] = {}
        for c in sorted(self.calls, key=lambda c: c["arrived"]):
            began.setdefault(c["dialogue"], c["arrived"])
        starts = sorted(began.values())
        until = starts[max(0, int(QUEUE_EMPTY_AT.get(self.name, 1.0) * len(starts)) - 1)]
        seconds = until - starts[0]
        if seconds <= 0:
            return 0.0, 0.0
        sent = [c for c in self.answered if c["arrived"] <= until]
        tokens = sum(c["prompt"] + c["completion"] for c in sent)
        return seconds, max(tokens / limits.tokens, len(sent) / limits.requests) * 60 / seconds


def stages(log: Path) -> list[Stage]:
    lines = log.read_bytes().splitlines()[1:]
    stage_of = {kind: stage for stage, kinds in STAGES.items() for kind in kinds}
    calls: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        call = json.loads(line)
        calls[stage_of.get(call["kind"], "other")].append(call)
    return [Stage(name, calls[name]) for name in STAGES if calls[name]]


def index(args: argparse.Namespace, url: str, root: Path, limits: Limits) -> tuple[float, int]:
    """Run the command. Returns its duration in seconds and its exit code."""
    command = [sys.executable, "-m", "graphrag_ray", "index", args.input, "--root", str(root), "--ray"]
    command += ["--model", "simulated", "--base-url", url]
    command += ["--set", "models.default.endpoints.0.api_key_env=null"]
    if args.limits:
        command += ["--rpm", f"{limits.requests:g}", "--tpm", f"{limits.tokens:g}"]
    if args.hedge:
        command += ["--set", "run.hedge=true"]
    for setting in args.set:
        command += ["--set", setting]
    started = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    return time.monotonic() - started, code


def status(root: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "graphrag_ray", "status", "--root", str(root), "--json"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def print_stages(measured: Sequence[Stage], limits: Limits) -> None:
    print("| stage | requests | tokens | seconds | queued for s | share of limit while queued | 429s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for s in measured:
        queued, share = s.while_queued(limits)
        rejected = len(s.calls) - len(s.answered)
        print(
            f"| {s.name} | {len(s.answered):,} | {s.tokens:,} | {s.seconds:.1f} | {queued:.1f} "
            f"| {share:.3f} | {rejected} |"
        )


def print_bound(measured: Sequence[Stage], limits: Limits, wall: float) -> None:
    answered = [c for s in measured for c in s.answered]
    requests, rejected = len(answered), sum(len(s.calls) for s in measured) - len(answered)
    by_tokens = sum(s.tokens for s in measured) / limits.tokens * 60
    by_requests = requests / limits.requests * 60
    path = sum(s.longest_dialogue_s for s in measured)
    bound = max(by_tokens, by_requests, path)
    first, last = min(c["arrived"] for c in answered), max(c["ended"] for c in answered)
    print(f"\nwhole run {wall:.1f} s, first call to last response {last - first:.1f} s")
    print(
        f"bound {bound:.1f} s (tokens/TPM {by_tokens:.1f}, requests/RPM {by_requests:.1f}, "
        f"critical path {path:.1f})"
    )
    print(f"share of the bound {bound / wall:.3f}; from the first call {bound / (last - first):.3f}")
    print(f"429s {rejected} of {requests + rejected} requests ({rejected / (requests + rejected):.2%})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", metavar="CORPUS", help="input of `graphrag-ray index`")
    parser.add_argument("--rpm", type=float, default=10_000)
    parser.add_argument("--tpm", type=float, default=2_000_000)
    parser.add_argument("--ttft", type=float, default=0.5, help="seconds to the first token")
    parser.add_argument("--tokens-per-s", type=float, default=60.0)
    parser.add_argument(
        "--tail", type=float, default=0.01, help="share of calls that take eight times as long"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="divide all durations, also in the limits")
    parser.add_argument(
        "--limits", action=argparse.BooleanOptionalAction, default=True, help="pass the limits to the run"
    )
    parser.add_argument("--hedge", action="store_true", help="enable run.hedge")
    parser.add_argument("--root", type=Path, help="keep the index in this folder")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="setting of the run; repeatable"
    )
    for fault in FAULTS:
        parser.add_argument(f"--{fault}", type=float, default=0.0, help="share of calls with this fault")
    args = parser.parse_args()
    limits = Limits(args.rpm * args.speed, args.tpm * args.speed)
    options = [f"--rpm={args.rpm}", f"--tpm={args.tpm}", f"--ttft={args.ttft}", f"--speed={args.speed}"]
    options += [f"--tokens-per-s={args.tokens_per_s}", f"--tail={args.tail}", "--tail-factor=8"]
    options += [f"--{fault}={getattr(args, fault)}" for fault in FAULTS]
    if args.speed != 1:
        options.append("--no-headers")  # The headers would reveal the limits of a whole minute.
    with tempfile.TemporaryDirectory() as scratch:
        root, log = args.root or Path(scratch) / "index", Path(scratch) / "log.jsonl"
        with endpoint("--log", str(log), *options) as url:
            wall, code = index(args, url, root, limits)
            stats = get(url)
        measured = stages(log)
        run_status = status(root) if code in (0, 3) else {"counts": {}, "usage": []}
        print(f"\nexit code {code}; {run_status['counts']}\n")
        print_stages(measured, limits)
        print_bound(measured, limits, wall)
        flow = stats["in_flight"]
        print(f"in flight: mean {flow['mean']:.1f}, peak {flow['peak']}; endpoint CPU {stats['cpu_s']:.1f} s")
        print(f"faults {stats['faults']}; statuses {stats['by_status']}")
        print(f"answered twice {stats['answered_twice']}")
        print(f"answered twice because a fault lost the first answer {stats['answered_twice_after_fault']}")
        print("\nUsage recorded by the run:")
        for row in run_status["usage"]:
            print("  " + ", ".join(f"{k} {v}" for k, v in row.items() if v is not None and k != "model"))


if __name__ == "__main__":
    main()
