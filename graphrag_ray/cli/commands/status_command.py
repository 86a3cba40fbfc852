"""`graphrag-ray status`: what an index holds, and how its last run went, or is going."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import ASKING_STAGES, COMPARED
from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.wording import plural, price_setting, safe
from graphrag_ray.cli import console
from graphrag_ray.cli.options import Given, json_option, naming_root, reach_options
from graphrag_ray.cli.program import Command, root_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from graphrag_ray.store.files import Store

OLD_S = 30.0
"""What a run told of itself longer ago than that, while it gave signs of life, is shown with its age."""
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
    given: Given,
    snapshot: int | None,
    listed: bool,
    watch: bool,
    following: bool,
    as_json: bool,
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
    from graphrag_ray.indexing.status import await_next, watched

    if following:
        click.echo("Waiting for the run to begin; `ray job list` on its cluster shows the job", err=True)
        await_next(store)
    last: Mapping[str, Any] | None = None
    if as_json:
        for found in watched(store):
            if found != last:
                console.print_json(found, indent=False)
            last = found
    else:
        last = _show_running(watched(store))
    if last is None:
        return _without_a_run(store, as_json)
    if not as_json:
        click.echo(safe(_ending(last)))
    code = last["exit_code"]
    return StoreError.exit_code if code is None else int(code)


def _without_a_run(store: Store, as_json: bool) -> int:
    """What there is to tell where the last attempt came to no run, or none is told of; its exit code."""
    from graphrag_ray.indexing.status import refused_since, status_of

    if refused := refused_since(store):
        click.echo(console.as_json(refused, indent=False) if as_json else safe(_refusal(refused)))
        return int(refused["exit_code"])
    found = status_of(store)
    if as_json:
        console.print_json(found["last_run"], indent=False)
    else:
        _print_status(found)
    return 0


def _print_status(found: Mapping[str, Any]) -> None:
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
    _print_last_run(out, found["last_run"])
    _print_refused(out, found["refused"])
    if found["journal"]:
        columns = ("stage", "items done", "turns", "failed", "tokens")
        counts = ("done", "turns", "failed", "tokens")
        rows = ([row["stage"], *(f"{row[c]:,}" for c in counts)] for row in found["journal"])
        out.print("\nJournal (all that was ever answered and paid for)")
        out.print(console.table(columns, rows, left=5))
    _print_changes(out, found.get("run", {}), found.get("counts", {}))
    if found["usage"]:
        out.print(f"\nThe run that made snapshot {found['snapshot']}")
        _print_usage(out, found["usage"])
    if found.get("snapshots"):
        _print_snapshots(out, found["snapshots"])
    for note in found["notes"].values():
        out.print(f"  {note}")
    if found["damaged"]:
        out.print("\nDamaged", style="bold")
        for told in found["damaged"]:
            out.print(f"  {told}")
        out.print(f"  {MEND}.")


def _print_last_run(out: Console, last: Mapping[str, Any] | None) -> None:
    """How the last run ended, or how far it is; and what it paid, where no snapshot tells."""
    from rich.text import Text

    from graphrag_ray.store.runs import FINISHED, RUNNING

    if last is None:
        return
    if last["outcome"] == RUNNING:
        out.print(f"  running since {last['started_at']}{_where(last)}:")
        for line in _run_lines(last):
            out.print(Text("    ") + line)
        return
    out.print(f"  last run       {_ending(last)}")
    if last["outcome"] in FINISHED:
        return
    if reached := last["reached"]:
        out.print(Text("    it was at: ") + _doing(reached))
    if last["usage"]:
        out.print("\nThe last run")
        _print_usage(out, last["usage"])


def _print_refused(out: Console, refused: Mapping[str, Any] | None) -> None:
    if refused is not None:
        out.print(f"  last attempt   {_refusal(refused)}")


def _ending(last: Mapping[str, Any]) -> str:
    """How a run ended: when (of one that was killed, when it had begun), what became of it, its exit code and
    what that means."""
    from graphrag_ray.indexing.run_record import WORDS

    when, outcome = last["ended_at"] or f"begun {last['started_at']}", last["outcome"]
    if outcome == "committed":
        failed = f", {plural(last['failed'], 'failed item')}" if last["failed"] else ""
        told = f"snapshot {last['snapshot']} was committed{failed}"
    elif outcome == "unchanged":
        told = "nothing had changed"
    elif outcome == "killed":
        after = f", after it had committed snapshot {last['snapshot']}" if last["snapshot"] else ""
        told = f"{WORDS['killed']}{after}{_where(last)}"
    else:
        told = _stopped(WORDS.get(outcome, outcome), last["message"])
    return f"{when}: {told} ({_code(last)})" if last["exit_code"] is not None else f"{when}: {told}"


def _stopped(words: str, message: str) -> str:
    """Messages of what stopped a run may begin with its words."""
    short = words.removeprefix("was ")
    if message.startswith(short):
        return f"was {message}"
    return f"{words}. {message.removeprefix('stopped: ')}"


def _refusal(refused: Mapping[str, Any]) -> str:
    """Why an attempt came to no run."""
    return f"{refused['at']}: came to no run. {refused['message']} ({_code(refused)})"


def _code(ended: Mapping[str, Any]) -> str:
    return f"exit code {ended['exit_code']}: {ended['exit_meaning']}"


def _where(last: Mapping[str, Any]) -> str:
    return f" (process {last['pid']} on {last['host']})" if last["host"] else ""


def _run_lines(last: Mapping[str, Any], width: int | None = None) -> list[Text]:
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


def _doing(reached: Mapping[str, Any], width: int | None = None) -> Text:
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


def _show_running(runs: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A run as it is seen again and again, until it has ended; how it is at last. Live on a terminal, plain
    lines elsewhere."""
    from rich.text import Text

    out = console.console_of()
    last: Mapping[str, Any] | None = None
    if out.is_terminal:
        from rich.live import Live

        with Live(console=out, refresh_per_second=4, transient=True) as live:
            for last in runs:
                live.update(Text("\n").join(_run_lines(last, out.width)))
        return last
    told: set[str] = set()
    for last in runs:
        lines = _run_lines(last)
        new = [line for line in lines if str(line) not in told]
        told.update(map(str, new))
        for line in new:
            out.print(line)
    return last


def _print_usage(out: Console, usage: Sequence[Mapping[str, Any]]) -> None:
    out.print(_usage_table(usage))
    if any(u["cost_usd"] is None for u in usage):
        out.print(f"What runs to come will cost is known with {price_setting()}", style="dim")


def _usage_table(usage: Sequence[Mapping[str, Any]]) -> Table:
    """One row per stage and model; columns that say nothing for any row are left out."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "stage": lambda u: u["stage"],
        "model": lambda u: u["model"],
        "calls": lambda u: _number(u["calls"]),
        "retries": lambda u: _number(u["retries"]),
        "429s": lambda u: _number(u["rate_limited"]),
        "hedged": lambda u: _number(u["hedged"]),
        "failed": lambda u: _number(u["failed"]),
        "unanswered": lambda u: _number(u.get("unanswered", 0)),
        "prompt": lambda u: _number(u["prompt_tokens"]),
        "cached": lambda u: _number(u["cached_tokens"]),
        "completion": lambda u: _number(u["completion_tokens"]),
        "cost": lambda u: _amount(u["cost_usd"]),
        "p50": lambda u: _seconds(u["latency_p50_s"]),
        "p95": lambda u: _seconds(u["latency_p95_s"]),
        "p99": lambda u: _seconds(u["latency_p99_s"]),
        "in flight": lambda u: _in_flight(u["mean_in_flight"], u["peak_in_flight"]),
        "of limit": lambda u: "" if u["share_of_limit"] is None else f"{u['share_of_limit']:.0%}",
    }
    shown = {name: [cell(u) for u in usage] for name, cell in columns.items()}
    kept = {name: cells for name, cells in shown.items() if any(cells)}
    return console.table([*kept], zip(*kept.values(), strict=True), left=len(kept))


def _amount(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _number(value: int) -> str:
    return f"{value:,}" if value else ""


def _in_flight(mean: float | None, peak: int | None) -> str:
    return f"{mean:,.1f}, peak {peak:,}" if mean and peak else ""


def _print_changes(out: Console, run: Mapping[str, Any], counts: Mapping[str, Any]) -> None:
    """What the run that made the snapshot added, changed and removed, and what models wrote for it."""
    changed = run.get("changes")
    if not changed:
        return
    rows = {label: changed.get(name, {}) for name, (label, _) in COMPARED.items()}
    cells = (
        [label, *(f"{row[kind]:,}" if row[kind] else "" for kind in KINDS)]
        for label, row in rows.items()
        if any(row.values())
    )
    table = console.table(["", *KINDS], cells)
    out.print("\nWhat the run that made this snapshot changed")
    out.print(table)
    if counts.get("kept"):
        out.print(f"  {counts['kept']:,} of the documents could not be read and are kept as they were")
    asked = run.get("asked", {})
    written = []
    for stage in ASKING_STAGES:
        label, total = stage.writes
        if n := asked.get(stage.dialogue):
            in_all = sum(of.get(total, 0) for of in (counts, *counts.get("hierarchies", {}).values()))
            of = f" of {in_all:,}" if in_all else ""
            written.append(f"{n:,}{of} {label}")
    out.print(f"  written by models: {', '.join(written) or 'nothing'}; the rest is taken over")


def _print_snapshots(out: Console, kept: Sequence[Mapping[str, Any]]) -> None:
    """One row a snapshot, the newest first."""
    rows = []
    for s in kept:
        cost = "unknown" if s["cost_usd"] is None else f"${s['cost_usd']:.4f}" if s["cost_usd"] else ""
        counted = [f"{s[name]:,}" for name in ("documents", "entities", "reports")]
        sizes = [console.in_words(s[name]) for name in ("bytes", "own_bytes")]
        rows.append([str(s["snapshot"]), s["created_at"], *counted, cost, *sizes])
    columns = ("snapshot", "from", "documents", "entities", "reports", "cost", "size", "alone")
    table = console.table(columns, rows, left=2)
    out.print("\nSnapshots (alone: what would go with this one; graphrag-ray gc)")
    out.print(table)
    if any(s["cost_usd"] is None for s in kept):
        out.print(f"What runs to come will cost is known with {price_setting()}", style="dim")
