"""Index runs that are killed repeatedly: what survives, what is paid for twice, and what resuming costs.

    python benchmarks/kills.py demo/corpus --kills 60
    python benchmarks/kills.py demo/corpus --resume --latency 8

By default, CORPUS is indexed into one new root after another. At random moments of each run (--seed), SIGKILL
is sent to a worker, the limiter, a Ray Data process, the driver, the second of two nodes, or everything. The
same command is repeated until it succeeds. Then the parts of all tables, whose names are hashes of their
content, are compared with those of an undisturbed run.

Prints the kills by victim and moment, and how runs ended. The log of the simulated endpoint, a separate
process, shows which calls were paid for twice. *late* counts repeated calls whose first answer arrived more
than 5 s before the kill. It must be 0.

With --resume, everything is killed once nine tenths of the calls are answered. Then the command runs once
more, and the benchmark prints its time and its extra calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import killing
from simulated import endpoint, get

from graphrag_ray.store.files import Store
from graphrag_ray.store.snapshots import read_latest

VICTIMS = ("worker", "limiter", "task", "driver", "node", "everything")
MOMENTS = ("start", *killing.STEPS, "commit")
KILLS_PER_ROOT = 8
USUAL_START_S = 8.0
USUAL_COMMIT_S = 0.4
DONE_WHEN_KILLED = 0.9


@dataclass(frozen=True)
class Kill:
    moment: str
    victim: str
    at: float
    """Unix time."""


@dataclass
class Campaign:
    """Indexes that were built while processes were killed.

    `outcomes` counts the outcomes of disturbed runs.
    """

    kills: list[Kill] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    roots: int = 0
    runs: int = 0
    different: int = 0


def victims(role: str, driver: int, nodes: Sequence[int], rng: Random) -> list[killing.Process]:
    """The processes to kill, or [] if the role has none now. `driver` and `nodes` are sessions."""
    if role == "driver":
        return [killing.Process(driver, role)]
    if role == "node":
        return killing.processes(nodes[1:])
    if role == "everything":
        return killing.processes([driver, *nodes])
    return killing.one_of(killing.processes(nodes), role, rng)


def run_with_kills(
    cluster: killing.Cluster,
    command: Sequence[str],
    usual_s: Mapping[str, float],
    rng: Random,
    campaign: Campaign,
    max_kills: int,
) -> int:
    """One run with at most this many kills. Returns its exit code."""
    nodes = cluster.keep(2)
    run = killing.Run([*command, *cluster.options], cluster.env)
    campaign.runs += 1
    n = 0
    for moment in MOMENTS:
        if n == max_kills or rng.random() < 0.5:
            continue
        if not run.wait_for(moment, rng.random(), usual_s):
            break
        role = rng.choice(VICTIMS)
        at = time.time()
        if killed := killing.kill(victims(role, run.session, nodes, rng)):
            n += 1
            campaign.kills.append(Kill(moment, role, at))
            log_line(f"  {moment:<12} {role:<12} {len(killed)} processes")
    code = run.wait()
    if n:
        last = campaign.kills[-1]
        ended = "completed" if code == 0 else "ended; command run again"
        campaign.outcomes[f"{last.victim}: {ended}"] += 1
        if code not in (0, -9):
            log_line("    " + " | ".join(run.printed[-2:])[:400])
    return code


def build(
    cluster: killing.Cluster,
    command: list[str],
    usual_s: Mapping[str, float],
    rng: Random,
    campaign: Campaign,
) -> None:
    campaign.roots += 1
    until = len(campaign.kills) + KILLS_PER_ROOT
    for _ in range(40):
        if run_with_kills(cluster, command, usual_s, rng, campaign, until - len(campaign.kills)) == 0:
            return
    sys.exit("the command did not succeed after 40 runs")


def undisturbed_run(
    cluster: killing.Cluster | killing.Private,
    corpus: Path,
    root: Path,
    options: Sequence[str],
    more: Sequence[str],
    small_partitions: bool = True,
) -> tuple[float, int]:
    """Seconds and calls of an undisturbed run."""
    cluster.keep(2)
    with endpoint(*options) as url:
        started = time.monotonic()
        command = killing.index_command(corpus, root, url, *more, small_partitions=small_partitions)
        command += cluster.options
        run = killing.Run(command, cluster.env)
        if run.wait() != 0:
            sys.exit("\n".join(run.printed))
        return time.monotonic() - started, get(url)["total"]["answered"]


def kill_many(args: argparse.Namespace, cluster: killing.Cluster, scratch: Path) -> None:
    options = [f"--latency={args.latency}", f"--embedding-s={args.latency}"]
    more = ["--max-in-flight", str(args.in_flight)]
    seconds, calls = undisturbed_run(cluster, args.corpus, scratch / "calm", options, more)
    log_line(f"undisturbed: {seconds:.1f} s, {calls} calls")
    expected = killing.parts_of(scratch / "calm")
    manifest = read_latest(Store(str(scratch / "calm")))
    assert manifest is not None
    usual_s = {"start": USUAL_START_S, "commit": USUAL_COMMIT_S, **manifest.run["seconds"]}
    rng, campaign, log = Random(args.seed), Campaign(), scratch / "log.jsonl"
    again: list[killing.Again] = []
    while len(campaign.kills) < args.kills:
        root, before = scratch / f"root-{campaign.roots}", len(campaign.kills)
        with endpoint("--log", str(log), *options) as url:
            build(cluster, killing.index_command(args.corpus, root, url, *more), usual_s, rng, campaign)
        same = killing.parts_of(root) == expected
        campaign.different += not same
        again.append(killing.paid_again(log, [k.at for k in campaign.kills[before:]]))
        log_line(
            f"root {campaign.roots}: {len(campaign.kills)} kills, tables {'equal' if same else 'DIFFERENT'}, "
            f"{again[-1].answers} answers paid twice"
        )
        for late in again[-1].late:
            log_line(f"    LATE: {late}")
    report(campaign, again, calls)


def report(campaign: Campaign, again: Sequence[killing.Again], calls: int) -> None:
    kills, n_again = len(campaign.kills), sum(a.answers for a in again)
    print(f"\n{kills} kills in {campaign.runs} runs of {campaign.roots} roots, {calls} calls per root")
    print(f"roots whose tables differ from the undisturbed run: {campaign.different}")
    tokens = sum(a.tokens for a in again)
    print(f"paid twice: {n_again} answers ({n_again / kills:.1f} per kill), {tokens:,} tokens")
    print(f"late: {sum(len(a.late) for a in again)}\n")
    print("| killed | " + " | ".join(MOMENTS) + " | kills |\n|---" * 1, end="")
    print("|---" * (len(MOMENTS) + 1) + "|")
    for victim in VICTIMS:
        row = [sum(k.victim == victim and k.moment == m for k in campaign.kills) for m in MOMENTS]
        print(f"| {victim} | " + " | ".join(str(n) if n else "" for n in row) + f" | {sum(row)} |")
    print("\noutcomes of runs after their last kill:")
    for outcome, n in sorted(campaign.outcomes.items()):
        print(f"  {outcome}: {n}")


def resume(args: argparse.Namespace, cluster: killing.Cluster | killing.Private, scratch: Path) -> None:
    options = [f"--latency={args.latency}", f"--embedding-s={args.latency}"]
    more = ["--max-in-flight", str(args.in_flight)]
    seconds, calls = undisturbed_run(cluster, args.corpus, scratch / "calm", options, more, False)
    log_line(f"undisturbed: {seconds:.1f} s, {calls} calls")
    root, log = scratch / "root", scratch / "log.jsonl"
    with endpoint("--log", str(log), *options) as url:
        command = killing.index_command(args.corpus, root, url, *more, small_partitions=False)
        command += cluster.options
        run = killing.Run(command, cluster.env)
        while get(url)["total"]["answered"] < DONE_WHEN_KILLED * calls and run.alive:
            time.sleep(0.1)
        at, until_kill = time.time(), time.monotonic() - run.began
        killing.kill_sessions([run.session])
        run.wait()
        answered = get(url)["total"]["answered"]
        second = killing.Run(command, cluster.env)
        if second.wait() != 0:
            sys.exit("\n".join(second.printed))
        resumed_s = time.monotonic() - second.began
        total = get(url)["total"]["answered"]
    again = killing.paid_again(log, [at])
    same = killing.parts_of(root) == killing.parts_of(scratch / "calm")
    print(f"killed after {until_kill:.1f} s and {answered} of {calls} calls ({answered / calls:.1%})")
    print(
        f"the same command again: {resumed_s:.1f} s, {resumed_s / seconds:.1%} of an undisturbed run's time"
    )
    print(f"its steps: {', '.join(f'{n} {at - second.began:.1f}' for n, at in second.ended.items())}")
    print(f"calls of both runs: {total} ({total / calls - 1:+.1%})")
    print(f"paid twice: {again.answers} answers, {again.tokens:,} tokens")
    print(f"late: {len(again.late)}; tables {'equal' if same else 'DIFFERENT'}")


def log_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", metavar="CORPUS", type=Path, help="INPUT of `graphrag-ray index`")
    parser.add_argument("--kills", type=int, default=50, help="minimum number of kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds a call takes")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument(
        "--resume", action="store_true", help="kill everything once, at nine tenths of the calls"
    )
    parser.add_argument(
        "--private", action="store_true", help="with --resume: start a separate Ray instance for each run"
    )
    args = parser.parse_args()
    if args.resume and args.private:
        with tempfile.TemporaryDirectory() as scratch:
            return resume(args, killing.Private(), Path(scratch))
    with tempfile.TemporaryDirectory() as scratch, killing.cluster() as cluster:
        (resume if args.resume else kill_many)(args, cluster, Path(scratch))


if __name__ == "__main__":
    main()
