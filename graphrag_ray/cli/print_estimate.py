"""What `estimate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from graphrag_ray.base.wording import price_setting
from graphrag_ray.indexing.forecast.assumptions import Assumption
from graphrag_ray.indexing.forecast.forecast import Forecast, StageForecast


def print_forecast(found: Forecast, root: str | None) -> None:
    """The table of stages, what is left of a partly done index, the assumptions, and the notes."""
    out = Console(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = 160
    corpus = found.corpus
    about = "" if corpus.read_share == 1 else "some "
    out.print(
        f"{corpus.files:,} files, {about}{corpus.documents:,} documents"
        f"{' read' if about else ''}, {about}{corpus.chunks:,.0f} chunks, "
        f"{about}{_count(corpus.chunk_tokens)} tokens of text"
    )
    shown = ", ".join(f"{_count(found.graph[k])} {k}" for k in ("entities", "relationships", "communities"))
    out.print(f"Modelled: {shown}\n")
    _print_stages(out, found)
    left = found.left
    if root is not None and left["calls"] < found.totals["calls"]:
        out.print(
            f"\nLeft to do for the index at {root}: {_count(left['calls'])} calls, "
            f"{_count(left['prompt_tokens'])} prompt and {_count(left['completion_tokens'])} completion "
            f"tokens, {_money(left['cost_usd'])}",
        )
    out.print("\nAssumptions (change one with --assume name=value)")
    table = Table(box=None, pad_edge=False, show_header=False)
    for a in found.assumptions:
        table.add_row(a.name, _value(a), a.source)
    out.print(table)
    for note in found.notes:
        out.print(f"  {note}", style="dim")


def _print_stages(out: Console, found: Forecast) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("stage", "model", "calls", "prompt", "completion", "cost", "time", ""):
        table.add_column(name, justify="left" if name in ("stage", "model", "") else "right")
    for s in found.stages:
        table.add_row(s.volume.stage, s.model_id, *_numbers(vars_of(s)), _remark(s))
    if found.totals["seconds"] is not None:  # where no call's time is known, neither is what it adds to
        table.add_row("no calls", *[""] * 5, _time(found.own_s), "Ray's start, reading, tables")
    table.add_row("total", "", *_numbers(found.totals), "", style="bold")
    out.print(table)
    if found.totals["cost_usd"] is None:
        out.print(f"What it costs is known with {price_setting()}")


def vars_of(stage: StageForecast) -> dict[str, Any]:
    """The columns that a stage shares with the total."""
    v = stage.volume
    return {
        "calls": v.calls,
        "prompt_tokens": v.prompt_tokens,
        "completion_tokens": v.completion_tokens,
        "cost_usd": stage.cost_usd,
        "seconds": stage.bound.seconds if stage.bound else None,
    }


def _numbers(row: Mapping[str, Any]) -> list[str]:
    counts = [_count(row[c]) for c in ("calls", "prompt_tokens", "completion_tokens")]
    seconds = row["seconds"]
    return [*counts, _money(row["cost_usd"]), "unknown" if seconds is None else _time(seconds)]


def _remark(s: StageForecast) -> str:
    by = f"by {s.bound.by}" if s.bound and s.volume.calls else ""
    return ", ".join(filter(None, [by, s.exact]))


def _count(value: float) -> str:
    """Whole, and not more exact than a forecast is once it is large."""
    return f"{value:,.0f}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _money(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return "$0" if usd == 0 else f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"


def _value(a: Assumption) -> str:
    return f"{a.value:,.0f}" if a.value >= 100 else f"{a.value:.3g}"
