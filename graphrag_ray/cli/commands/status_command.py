"""`graphrag-ray status`: show the contents of an index and the state of its last run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from graphrag_ray.base.declarations import CHANGE_TRACKED_TABLES, DIALOGUE_STAGES
from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.wording import escape_control, plural, price_hint
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from graphrag_ray.store.files import Store

_STALE_S = 30.0
"""Progress reported longer ago than this is displayed with its age."""
Record: TypeAlias = Mapping[str, Any]
_CHANGES = ("added", "changed", "removed", "unchanged")


@click.command(cls=Command)
@options.storage
@options.snapshot
@click.option("--snapshots", "listed", is_flag=True, help="List all snapshots.")
@click.option(
    "--watch",
    is_flag=True,
    help="Follow the current run until it ends, then exit with its exit code (1 if it was killed). If a "
    "later attempt was refused, exit with the code of that attempt. With --json, print one line per change.",
)
@click.option(
    "--next",
    "wait_for_next",
    is_flag=True,
    help="With --watch, after you have submitted a job: if no run is active, wait up to 15 minutes for the "
    "next one to start or be refused.",
)
@options.as_json
def status(
    opts: IndexOptions, snapshot: int | None, listed: bool, watch: bool, wait_for_next: bool, as_json: bool
) -> None:
    """Show the contents of the index, the outcome, changes and cost of its last run, the progress of a
    current run, and missing or truncated files (exit code 1).

    This command only reads the index, so you can run it on any machine. If a run on another machine seems to
    be active, the command waits up to 20 seconds for a sign of life.

    \b
    Examples:
      graphrag-ray status --root ./my-index
      graphrag-ray status --root s3://bucket/index --watch
      graphrag-ray status --root s3://bucket/index --watch --next
    """
    from graphrag_ray.indexing.status import index_status

    if wait_for_next and not watch:
        raise click.UsageError("--next needs --watch")
    store = opts.store()
    with options.naming_root(opts.root):
        if watch:
            sys.exit(_watch(store, wait_for_next, as_json))
        record = index_status(store, snapshot, with_snapshots=listed)
    if as_json:
        console.print_json(record)
    else:
        _print_status(record)
    if record["damaged"]:
        sys.exit(StoreError.exit_code)


def _watch(store: Store, wait_for_next: bool, as_json: bool) -> int:
    """Follow a run until it ends. Return its exit code, or the code of a later refused attempt."""
    from graphrag_ray.indexing.status import (
        index_status,
        refusal_since_last_run,
        wait_for_run,
        watch_last_run,
    )

    if wait_for_next:
        click.echo(
            "Waiting for the run to start. To see the job, run `ray job list` on its cluster.", err=True
        )
        wait_for_run(store)
    last: Record | None = None
    if as_json:
        for record in watch_last_run(store):
            if record != last:
                console.print_json(record, indent=False)
            last = record
    else:
        last = _follow(watch_last_run(store))
    if last is not None:
        if not as_json:
            click.echo(escape_control(_ending(last)))
        return StoreError.exit_code if last["exit_code"] is None else int(last["exit_code"])
    if refused := refusal_since_last_run(store):
        if as_json:
            console.print_json(refused, indent=False)
        else:
            click.echo(escape_control(_refusal(refused)))
        return int(refused["exit_code"])
    record = index_status(store)
    if as_json:
        console.print_json(record["last_run"], indent=False)
    else:
        _print_status(record)
    return 0


def _print_status(record: Record) -> None:
    from graphrag_ray.store.parts import REPAIR_ADVICE

    out, counts = console.make_console(), record.get("counts", {})
    out.print(f"Index at {record['root']}")
    if record["writer"]:
        out.print(f"  being written by {record['writer']}")
    if record["snapshot"] is None:
        out.print("  no finished snapshot yet")
    else:
        out.print(f"  snapshot {record['snapshot']}, {record['created_at']}, by version {record['version']}")
        console.print_counts(out, counts)
        if counts.get("failures"):
            command = f"graphrag-ray failures --root {record['root']}"
            out.print(f"  failures       {counts['failures']:,} ({command})")
    if record["last_run"] is not None:
        _print_last_run(out, record["last_run"])
    if record["refused"] is not None:
        out.print(f"  last attempt   {_refusal(record['refused'])}")
    if record["journal"]:
        out.print("\nJournal (all replies of all runs)")
        columns = ("done", "turns", "failed", "tokens")
        rows = ([row["stage"], *(f"{row[c]:,}" for c in columns)] for row in record["journal"])
        console.print_table(("stage", "items done", "turns", "failed", "tokens"), rows, left=5)
    if record.get("run", {}).get("changes"):
        _print_changes(out, record["run"], counts)
    _print_usage(out, f"The run that built snapshot {record['snapshot']}", record["usage"])
    if record.get("snapshots"):
        _print_snapshots(out, record["snapshots"])
    for note in record["notes"].values():
        out.print(f"  {note}")
    if record["damaged"]:
        out.print("\nDamaged", style="bold")
        for damage in record["damaged"]:
            out.print(f"  {damage}")
        out.print(f"  {REPAIR_ADVICE}")


def _print_last_run(out: Console, last: Record) -> None:
    """Print the progress or outcome of the last run, and its cost if it committed no snapshot."""
    from rich.text import Text

    from graphrag_ray.store.run_records import FINISHED, RUNNING

    if last["outcome"] == RUNNING:
        out.print(f"  running since {last['started_at']}{_where(last)}:")
        for line in _run_lines(last):
            out.print(Text("    ") + line)
        return
    out.print(f"  last run       {_ending(last)}")
    if last["outcome"] not in FINISHED:
        if last["reached"]:
            out.print(Text("    last step: ") + _current_step(last["reached"]))
        _print_usage(out, "The last run", last["usage"])


def _ending(last: Record) -> str:
    """Describe when and how a run ended, with its exit code. For a killed run, say when it started."""
    from graphrag_ray.indexing.run_record import OUTCOME_DESCRIPTIONS

    when, outcome = last["ended_at"] or f"started {last['started_at']}", last["outcome"]
    description, message = str(OUTCOME_DESCRIPTIONS.get(outcome, outcome)), last["message"]
    if outcome == "committed":
        failed = f", {plural(last['failed'], 'failed item')}" if last["failed"] else ""
        ending = f"snapshot {last['snapshot']} was committed{failed}"
    elif outcome == "unchanged":
        ending = "nothing had changed"
    elif outcome == "killed":
        after = f", after it had committed snapshot {last['snapshot']}" if last["snapshot"] else ""
        ending = f"{description}{after}{_where(last)}"
    elif message.startswith(description.removeprefix("was ")):
        ending = f"was {message}"
    else:
        ending = f"{description}. {message.removeprefix('Stopped: ')}"
    code = "" if last["exit_code"] is None else f" (exit code {last['exit_code']}: {last['exit_meaning']})"
    return f"{when}: {ending}{code}"


def _refusal(refused: Record) -> str:
    """Describe why an attempt was refused."""
    code = f"exit code {refused['exit_code']}: {refused['exit_meaning']}"
    return f"{refused['at']}: no run was started. {refused['message']} ({code})"


def _where(last: Record) -> str:
    return f" (process {last['pid']} on {last['host']})" if last["host"] else ""


def _run_lines(last: Record, width: int | None = None) -> list[Text]:
    """Return a line for each finished step and the current one, with a progress bar if `width` is given."""
    from graphrag_ray.cli.progress import step_line
    from graphrag_ray.indexing.repair import COMPACT

    lines = [
        step_line(name, step["seconds"], step["counts"], step.get("reused", False), width)
        for name, step in last["steps"].items()
    ]
    reached = last["reached"]
    # Live progress may be older than the record. Compaction can run several times.
    if reached and (reached["step"] not in last["steps"] or reached["step"] == COMPACT):
        lines.append(_current_step(reached, width))
    return lines


def _current_step(reached: Record, width: int | None = None) -> Text:
    """Format the current step, with the age of its progress if that is old."""
    from rich.text import Text

    from graphrag_ray.cli.progress import progress_line
    from graphrag_ray.engine.sweep_pace import StagePace

    if reached["pace"]:
        line = progress_line(StagePace(**reached["pace"]), reached["step"], width, bar=width is not None)
    else:
        line = f"{reached['step']:<12} … {console.format_duration(reached['seconds'])}"
    age_s = reached.get("age_s") or 0.0
    return Text(f"{line}  (as of {console.format_duration(age_s)} ago)" if age_s > _STALE_S else line)


def _follow(runs: Iterable[Record]) -> Record | None:
    """Follow a run until it ends, live on a terminal and as plain lines elsewhere. Return its last record."""
    from rich.live import Live
    from rich.text import Text

    out = console.make_console()
    last: Record | None = None
    if out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            for last in runs:
                live.update(Text("\n").join(_run_lines(last, out.width)))
        return last
    printed: set[str] = set()
    for last in runs:
        for line in _run_lines(last):
            if str(line) not in printed:
                out.print(line)
            printed.add(str(line))
    return last


def _print_usage(out: Console, title: str, usage: Sequence[Record]) -> None:
    """Print a row per stage and model. Empty columns are omitted."""
    if not usage:
        return
    table: dict[str, list[str]] = {name: [u[name] for u in usage] for name in ("stage", "model")}
    numbers = {
        **{"calls": "calls", "retries": "retries", "429s": "rate_limited", "hedged": "hedged"},
        **{"failed": "failed", "unanswered": "unanswered", "prompt": "prompt_tokens"},
        **{"cached": "cached_tokens", "completion": "completion_tokens"},
    }
    for name, key in numbers.items():
        table[name] = [f"{n:,}" if (n := u.get(key, 0)) else "" for u in usage]
    table["cost"] = [console.format_usd(u["cost_usd"]) for u in usage]
    for name in ("p50", "p95", "p99"):
        latencies = (u[f"latency_{name}_s"] for u in usage)
        table[name] = ["" if s is None else f"{s:.2f} s" for s in latencies]
    pairs = [(u["mean_in_flight"], u["peak_in_flight"]) for u in usage]
    table["in flight"] = [f"{mean:,.1f}, peak {peak:,}" if mean and peak else "" for mean, peak in pairs]
    shares = (u["share_of_limit"] for u in usage)
    table["of limit"] = ["" if share is None else f"{share:.0%}" for share in shares]
    table = {name: column for name, column in table.items() if any(column)}
    out.print(f"\n{title}")
    console.print_table([*table], zip(*table.values(), strict=True), left=len(table))
    if unpriced := next((u["model"] for u in usage if u["cost_usd"] is None), None):
        hint = f"use {price_hint('NAME')}, where models.NAME is that model"
        out.print(f"The price of {unpriced} is unknown. To see the cost of later runs, {hint}", style="dim")


def _print_changes(out: Console, run: Record, counts: Record) -> None:
    """Print what the run that built the snapshot added, changed and removed, and which items models wrote."""
    out.print("\nChanges by the run that built this snapshot")
    rows = []
    for name, (label, _) in CHANGE_TRACKED_TABLES.items():
        changes = run["changes"].get(name, {})
        if any(changes.values()):
            rows.append([label, *(f"{changes[kind]:,}" if changes[kind] else "" for kind in _CHANGES)])
    console.print_table(["", *_CHANGES], rows)
    if counts.get("kept"):
        out.print(f"  {plural(counts['kept'], 'unreadable document')} kept in the previous version")
    written = []
    for stage in DIALOGUE_STAGES:
        label, total = stage.writes
        if n := run.get("asked", {}).get(stage.dialogue):
            totals = sum(c.get(total, 0) for c in (counts, *counts.get("hierarchies", {}).values()))
            written.append(f"{n:,}{f' of {totals:,}' if totals else ''} {label}")
    out.print(f"  written by models: {', '.join(written) or 'nothing'}; everything else is reused")


def _print_snapshots(out: Console, snapshots: Sequence[Record]) -> None:
    """Print a row per snapshot, the newest first."""
    rows = []
    for s in snapshots:
        cost = "" if s["cost_usd"] == 0 else console.format_usd(s["cost_usd"])
        counts = [f"{s[name]:,}" for name in ("documents", "entities", "reports")]
        sizes = [console.format_bytes(s[name]) for name in ("bytes", "own_bytes")]
        rows.append([str(s["snapshot"]), s["created_at"], *counts, cost, *sizes])
    out.print("\nSnapshots (alone: space freed by removing only this one; see graphrag-ray gc)")
    columns = ("snapshot", "from", "documents", "entities", "reports", "cost", "size", "alone")
    console.print_table(columns, rows, left=2)
