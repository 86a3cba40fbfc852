"""`graphrag-ray status`: what an index holds, and how its last run went, or is going."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from graphrag_ray.base.declarations import ASKING_STAGES, COMPARED
from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.wording import plural, price_setting, safe
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, json_option, naming_root, reach_options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from graphrag_ray.store.files import Store

OLD_S = 30.0
"""What a run told of itself longer ago than that, while it gave signs of life, is shown with its age."""
Record: TypeAlias = Mapping[str, Any]
KINDS = ("added", "changed", "removed", "unchanged")


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--snapshots", "listed", is_flag=True, help="List all snapshots that are kept.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show the run that is going on until it ends, and end with its exit code (1: it was killed); with "
    "that of a later attempt that came to no run. With --json: a line whenever something is new.",
)
@click.option(
    "--next",
    "following",
    is_flag=True,
    help="With --watch, for a job that was just submitted: unless a run is going on, wait up to 15 minutes "
    "for the next one to begin or to be refused.",
)
@json_option
def status(
    given: Given, snapshot: int | None, listed: bool, watch: bool, following: bool, as_json: bool
) -> None:
    """What the index holds, what its last run changed and paid and how it ended, who is working on it and how
    far that is, and which of its files are missing or cut short (exit code 1).

    Nothing but the index is needed, no access to where a run works. One on another machine is watched for a
    sign of life, 20 seconds at most.

    \b
    Examples:
      graphrag-ray status --root ./my-index
      graphrag-ray status --root s3://bucket/index --watch
      graphrag-ray status --root s3://bucket/index --watch --next
    """
    from graphrag_ray.indexing.status import status_of

    if following and not watch:
        raise click.UsageError("--next goes with --watch")
    store = given.store()
    with naming_root(given.root):
        if watch:
            sys.exit(_watch(store, following, as_json))
        found = status_of(store, snapshot, listed=listed)
    if as_json:
        console.print_json(found)
    else:
        _print_status(found)
    if found["damaged"]:
        sys.exit(StoreError.exit_code)


def _watch(store: Store, following: bool, as_json: bool) -> int:
    """The exit code of the last run, or of the attempt after it that came to none."""
    from graphrag_ray.indexing.status import await_next, refused_since, status_of, watched

    if following:
        click.echo("Waiting for the run to begin; `ray job list` on its cluster shows the job", err=True)
        await_next(store)
    last: Record | None = None
    if as_json:
        for found in watched(store):
            if found != last:
                console.print_json(found, indent=False)
            last = found
    else:
        last = _show_running(watched(store))
    if last is not None:
        if not as_json:
            click.echo(safe(_ending(last)))
        return StoreError.exit_code if last["exit_code"] is None else int(last["exit_code"])
    if refused := refused_since(store):
        if as_json:
            console.print_json(refused, indent=False)
        else:
            click.echo(safe(_refusal(refused)))
        return int(refused["exit_code"])
    found = status_of(store)
    if as_json:
        console.print_json(found["last_run"], indent=False)
    else:
        _print_status(found)
    return 0


def _print_status(found: Record) -> None:
    from graphrag_ray.store.parts import MEND

    out = console.console_of()
    out.print(f"Index at {found['root']}")
    if found["writer"]:
        out.print(f"  being written by {found['writer']}")
    if found["snapshot"] is None:
        out.print("  no finished snapshot yet")
    else:
        out.print(f"  snapshot {found['snapshot']}, {found['created_at']}, by version {found['version']}")
        console.print_counts(out, found["counts"])
        if found["counts"].get("failures"):
            look = f"graphrag-ray failures --root {found['root']}"
            out.print(f"  failures       {found['counts']['failures']:,} ({look})")
    if found["last_run"] is not None:
        _print_last_run(out, found["last_run"])
    if found["refused"] is not None:
        out.print(f"  last attempt   {_refusal(found['refused'])}")
    if found["journal"]:
        out.print("\nJournal (all that was ever answered and paid for)")
        counts = ("done", "turns", "failed", "tokens")
        rows = ([row["stage"], *(f"{row[c]:,}" for c in counts)] for row in found["journal"])
        console.print_table(("stage", "items done", "turns", "failed", "tokens"), rows, left=5)
    if found.get("run", {}).get("changes"):
        _print_changes(out, found["run"], found["counts"])
    _print_usage(out, f"The run that made snapshot {found['snapshot']}", found["usage"])
    if found.get("snapshots"):
        _print_snapshots(out, found["snapshots"])
    for note in found["notes"].values():
        out.print(f"  {note}")
    if found["damaged"]:
        out.print("\nDamaged", style="bold")
        for told in found["damaged"]:
            out.print(f"  {told}")
        out.print(f"  {MEND}")


def _print_last_run(out: Console, last: Record) -> None:
    """How the last run ended, or how far it is; and what it paid, where no snapshot tells."""
    from rich.text import Text

    from graphrag_ray.store.runs import FINISHED, RUNNING

    if last["outcome"] == RUNNING:
        out.print(f"  running since {last['started_at']}{_where(last)}:")
        for line in _run_lines(last):
            out.print(Text("    ") + line)
        return
    out.print(f"  last run       {_ending(last)}")
    if last["outcome"] not in FINISHED:
        if last["reached"]:
            out.print(Text("    it was at: ") + _doing(last["reached"]))
        _print_usage(out, "The last run", last["usage"])


def _ending(last: Record) -> str:
    """How a run ended: when (of one that was killed, when it had begun), what became of it, its exit code and
    what that means."""
    from graphrag_ray.indexing.run_record import WORDS

    when, outcome = last["ended_at"] or f"begun {last['started_at']}", last["outcome"]
    words, message = str(WORDS.get(outcome, outcome)), last["message"]
    if outcome == "committed":
        failed = f", {plural(last['failed'], 'failed item')}" if last["failed"] else ""
        told = f"snapshot {last['snapshot']} was committed{failed}"
    elif outcome == "unchanged":
        told = "nothing had changed"
    elif outcome == "killed":
        after = f", after it had committed snapshot {last['snapshot']}" if last["snapshot"] else ""
        told = f"{words}{after}{_where(last)}"
    elif message.startswith(words.removeprefix("was ")):
        told = f"was {message}"
    else:
        told = f"{words}. {message.removeprefix('Stopped: ')}"
    code = "" if last["exit_code"] is None else f" (exit code {last['exit_code']}: {last['exit_meaning']})"
    return f"{when}: {told}{code}"


def _refusal(refused: Record) -> str:
    """Why an attempt came to no run."""
    code = f"exit code {refused['exit_code']}: {refused['exit_meaning']}"
    return f"{refused['at']}: came to no run. {refused['message']} ({code})"


def _where(last: Record) -> str:
    return f" (process {last['pid']} on {last['host']})" if last["host"] else ""


def _run_lines(last: Record, width: int | None = None) -> list[Text]:
    """A run as it goes: a line for each step that has ended, and for the one that is being done.

    width   of a terminal, which has a bar too, and no line is longer
    """
    from graphrag_ray.cli.progress import step_line
    from graphrag_ray.indexing.repair import COMPACT

    lines = [
        step_line(name, step["seconds"], step["counts"], step.get("reused", False), width)
        for name, step in last["steps"].items()
    ]
    reached = last["reached"]
    # What was told live may be older than the record. Compacting is done several times.
    if reached and (reached["step"] not in last["steps"] or reached["step"] == COMPACT):
        lines.append(_doing(reached, width))
    return lines


def _doing(reached: Record, width: int | None = None) -> Text:
    """The step that is being done; how long ago that was told, where that is long."""
    from rich.text import Text

    from graphrag_ray.cli.progress import progress_line
    from graphrag_ray.engine.pace import StagePace

    if reached["pace"]:
        line = progress_line(StagePace(**reached["pace"]), reached["step"], width, bar=width is not None)
    else:
        line = f"{reached['step']:<12} … {console.duration(reached['seconds'])}"
    age_s = reached.get("age_s") or 0.0
    return Text(f"{line}  (as of {console.duration(age_s)} ago)" if age_s > OLD_S else line)


def _show_running(runs: Iterable[Record]) -> Record | None:
    """A run as it is seen again and again, until it has ended; how it is at last. Live on a terminal, plain
    lines elsewhere."""
    from rich.live import Live
    from rich.text import Text

    out = console.console_of()
    last: Record | None = None
    if out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            for last in runs:
                live.update(Text("\n").join(_run_lines(last, out.width)))
        return last
    told: set[str] = set()
    for last in runs:
        for line in _run_lines(last):
            if str(line) not in told:
                out.print(line)
            told.add(str(line))
    return last


def _print_usage(out: Console, title: str, usage: Sequence[Record]) -> None:
    """A table with a row for each stage and model; columns that say nothing for any row are left out."""

    def number(value: int) -> str:
        return f"{value:,}" if value else ""

    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.2f} s"

    rows = [
        {
            "stage": u["stage"],
            "model": u["model"],
            "calls": number(u["calls"]),
            "retries": number(u["retries"]),
            "429s": number(u["rate_limited"]),
            "hedged": number(u["hedged"]),
            "failed": number(u["failed"]),
            "unanswered": number(u.get("unanswered", 0)),
            "prompt": number(u["prompt_tokens"]),
            "cached": number(u["cached_tokens"]),
            "completion": number(u["completion_tokens"]),
            "cost": "unknown" if u["cost_usd"] is None else f"${u['cost_usd']:.4f}",
            "p50": seconds(u["latency_p50_s"]),
            "p95": seconds(u["latency_p95_s"]),
            "p99": seconds(u["latency_p99_s"]),
            "in flight": f"{u['mean_in_flight']:,.1f}, peak {u['peak_in_flight']:,}"
            if u["mean_in_flight"] and u["peak_in_flight"]
            else "",
            "of limit": "" if u["share_of_limit"] is None else f"{u['share_of_limit']:.0%}",
        }
        for u in usage
    ]
    if not rows:
        return
    out.print(f"\n{title}")
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    console.print_table(columns, ([row[name] for name in columns] for row in rows), left=len(columns))
    _say_price(out, usage)


def _say_price(out: Console, rows: Sequence[Record]) -> None:
    if any(row["cost_usd"] is None for row in rows):
        out.print(f"What runs to come will cost is known with {price_setting()}", style="dim")


def _print_changes(out: Console, run: Record, counts: Record) -> None:
    """What the run that made the snapshot added, changed and removed, and what models wrote for it."""
    rows = [(label, run["changes"].get(name, {})) for name, (label, _) in COMPARED.items()]
    out.print("\nWhat the run that made this snapshot changed")
    console.print_table(
        ["", *KINDS],
        (
            [label, *(f"{row[kind]:,}" if row[kind] else "" for kind in KINDS)]
            for label, row in rows
            if any(row.values())
        ),
    )
    if counts.get("kept"):
        out.print(f"  {counts['kept']:,} of the documents could not be read and are kept as they were")
    written = []
    for stage in ASKING_STAGES:
        label, total = stage.writes
        if n := run.get("asked", {}).get(stage.dialogue):
            in_all = sum(of.get(total, 0) for of in (counts, *counts.get("hierarchies", {}).values()))
            of = f" of {in_all:,}" if in_all else ""
            written.append(f"{n:,}{of} {label}")
    out.print(f"  written by models: {', '.join(written) or 'nothing'}; the rest is taken over")


def _print_snapshots(out: Console, kept: Sequence[Record]) -> None:
    """One row a snapshot, the newest first."""
    rows = []
    for s in kept:
        cost = "unknown" if s["cost_usd"] is None else f"${s['cost_usd']:.4f}" if s["cost_usd"] else ""
        counted = [f"{s[name]:,}" for name in ("documents", "entities", "reports")]
        sizes = [console.in_words(s[name]) for name in ("bytes", "own_bytes")]
        rows.append([str(s["snapshot"]), s["created_at"], *counted, cost, *sizes])
    out.print("\nSnapshots (alone: what would go with this one; graphrag-ray gc)")
    columns = ("snapshot", "from", "documents", "entities", "reports", "cost", "size", "alone")
    console.print_table(columns, rows, left=2)
    _say_price(out, kept)
