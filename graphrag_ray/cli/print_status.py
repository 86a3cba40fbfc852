"""What people see of an index and of its last run, running or ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphrag_ray.base.wording import plural, price_setting
from graphrag_ray.cli.console import print_counts
from graphrag_ray.cli.print_changes import print_changes, print_snapshots
from graphrag_ray.cli.progress import duration, progress_line, step_line
from graphrag_ray.cli.safe import console_of
from graphrag_ray.engine.pace import StagePace
from graphrag_ray.indexing.repair import COMPACT
from graphrag_ray.indexing.run_record import WORDS
from graphrag_ray.store.parts import MEND
from graphrag_ray.store.runs import FINISHED, RUNNING

OLD_S = 30.0
"""What a run told of itself longer ago than that, while it gave signs of life, is shown with its age."""


def print_status(found: Mapping[str, Any]) -> None:
    out = console_of()
    out.print(f"Index at {found['root']}")
    if found["writer"]:
        out.print(f"  being written by {found['writer']}")
    if found["snapshot"] is None:
        out.print("  no finished snapshot yet")
    else:
        out.print(f"  snapshot {found['snapshot']}, {found['created_at']}, by version {found['version']}")
        print_counts(out, found["counts"])
        if found["counts"].get("failures"):
            look = f"graphrag-ray failures --root {found['root']}"
            out.print(f"  failures       {found['counts']['failures']:,} ({look})")
    _print_last_run(out, found["last_run"])
    _print_refused(out, found["refused"])
    if found["journal"]:
        table = Table("stage", "items done", "turns", "failed", "tokens", box=None, pad_edge=False)
        for row in found["journal"]:
            table.add_row(
                *(
                    f"{row[c]:,}" if c != "stage" else row[c]
                    for c in ("stage", "done", "turns", "failed", "tokens")
                )
            )
        out.print("\nJournal (all that was ever answered and paid for)")
        out.print(table)
    print_changes(out, found.get("run", {}), found.get("counts", {}))
    if found["usage"]:
        out.print(f"\nThe run that made snapshot {found['snapshot']}")
        _print_usage(out, found["usage"])
    if found.get("snapshots"):
        print_snapshots(out, found["snapshots"])
    for note in found["notes"].values():
        out.print(f"  {note}")
    if found["damaged"]:
        out.print("\nDamaged", style="bold")
        for told in found["damaged"]:
            out.print(f"  {told}")
        out.print(f"  {MEND}.")


def _print_last_run(out: Console, last: Mapping[str, Any] | None) -> None:
    """How the last run ended, or how far it is; and what it paid, where no snapshot tells."""
    if last is None:
        return
    if last["outcome"] == RUNNING:
        out.print(f"  running since {last['started_at']}{_where(last)}:")
        for line in run_lines(last):
            out.print(Text("    ") + line)
        return
    out.print(f"  last run       {ending(last)}")
    if last["outcome"] in FINISHED:
        return
    if reached := last["reached"]:
        out.print(Text("    it was at: ") + _doing(reached))
    if last["usage"]:
        out.print("\nThe last run")
        _print_usage(out, last["usage"])


def _print_refused(out: Console, refused: Mapping[str, Any] | None) -> None:
    if refused is not None:
        out.print(f"  last attempt   {refusal(refused)}")


def ending(last: Mapping[str, Any]) -> str:
    """How a run ended: when (of one that was killed, when it had begun), what became of it, its exit code and
    what that means."""
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


def refusal(refused: Mapping[str, Any]) -> str:
    """Why an attempt came to no run."""
    return f"{refused['at']}: came to no run. {refused['message']} ({_code(refused)})"


def _code(ended: Mapping[str, Any]) -> str:
    return f"exit code {ended['exit_code']}: {ended['exit_meaning']}"


def _where(last: Mapping[str, Any]) -> str:
    return f" (process {last['pid']} on {last['host']})" if last["host"] else ""


def run_lines(last: Mapping[str, Any], width: int | None = None) -> list[Text]:
    """A run as it goes: a line for each step that has ended, and for the one that is being done.

    width   of a terminal, which has a bar too, and no line is longer
    """
    lines = [step_line_of(name, step, width) for name, step in last["steps"].items()]
    reached = last["reached"]
    # What was told live may be older than the record. Compacting is done several times.
    if reached and (reached["step"] not in last["steps"] or reached["step"] == COMPACT):
        lines.append(_doing(reached, width))
    return lines


def step_line_of(name: str, step: Mapping[str, Any], width: int | None = None) -> Text:
    return step_line(name, step["seconds"], step["counts"], step.get("reused", False), width)


def _doing(reached: Mapping[str, Any], width: int | None = None) -> Text:
    """The step that is being done; how long ago that was told, where that is long."""
    if reached["pace"]:
        line = progress_line(StagePace(**reached["pace"]), reached["step"], width, bar=width is not None)
    else:
        line = f"{reached['step']:<12} … {duration(reached['seconds'])}"
    age_s = reached.get("age_s") or 0.0
    return Text(f"{line}  (as of {duration(age_s)} ago)" if age_s > OLD_S else line)


def show_running(runs: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A run as it is seen again and again, until it has ended; how it is at last. Live on a terminal, plain
    lines elsewhere."""
    out = console_of()
    last: Mapping[str, Any] | None = None
    if out.is_terminal:
        from rich.live import Live

        with Live(console=out, refresh_per_second=4, transient=True) as live:
            for last in runs:
                live.update(Text("\n").join(run_lines(last, out.width)))
        return last
    told: set[str] = set()
    for last in runs:
        lines = run_lines(last)
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
    table = Table(*(n for n, cells in shown.items() if any(cells)), box=None, pad_edge=False)
    for row in zip(*(cells for cells in shown.values() if any(cells)), strict=True):
        table.add_row(*row)
    return table


def _amount(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _number(value: int) -> str:
    return f"{value:,}" if value else ""


def _in_flight(mean: float | None, peak: int | None) -> str:
    return f"{mean:,.1f}, peak {peak:,}" if mean and peak else ""
