"""What people see of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.table import Table

from graphrag_ray.base.wording import price_setting
from graphrag_ray.cli.safe import console_of, safe
from graphrag_ray.evaluate.judging.head_to_head import SIGNIFICANT

if TYPE_CHECKING:
    from graphrag_ray.evaluate.comparison import Comparison
    from graphrag_ray.evaluate.planned_costs import PlannedCost

OFFLINE_JUDGE = (
    "NO LANGUAGE MODEL JUDGED. The offline engine counted words and names instead: the figures show that the "
    "chain works, and nothing on the answers."
)


def print_comparison(found: Comparison) -> None:
    """A matrix of win rates for each criterion; what the judge's verdicts are worth; what each condition came
    to."""
    out = console_of()
    if found.offline:
        out.print(f"{OFFLINE_JUDGE}\n", style="bold")
    names = found.tables["conditions"]["name"].to_pylist()
    rates = found.tables["win_rates"].to_pylist()
    for criterion in found.criteria:
        out.print(f"{criterion}: win rate of the row over the column, in %")
        table = _table(["", *names])
        cells = {(r["first"], r["second"]): r for r in rates if r["criterion"] == criterion}
        for row in names:
            table.add_row(safe(row), *(_win_rate(cells, row, column) for column in names))
        out.print(table)
        out.print()
    out.print(f"* significant: p below {SIGNIFICANT} (Wilcoxon's signed-rank test, Holm's correction)\n")
    out.print("How far the judge can be trusted:")
    print_table(found.tables["reliability"])
    out.print("\nConditions:")
    print_table(found.tables["conditions"])
    for name, heading in (
        ("judging", "Judging"),
        ("claim_counts", "Claims of an answer"),
        ("agreement", "Agreement with the judge"),
    ):
        if len(found.tables.get(name, ())):
            out.print(f"\n{heading}:")
            print_table(found.tables[name])


def _win_rate(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str, column: str) -> str:
    found = cells.get((row, column)) or cells.get((column, row))
    if found is None or found["win_rate"] is None:
        return ""
    rate = found["win_rate"] if (row, column) in cells else 100 - found["win_rate"]
    return f"{rate:.0f}{'*' if found['p_holm'] < SIGNIFICANT else ' '}"


def print_table(table: pa.Table) -> None:
    """A table of results, with its columns of no value left out."""
    names = [name for name in table.column_names if table[name].null_count < len(table)]
    shown = _table(names)
    for row in table.select(names).to_pylist():
        shown.add_row(*(_cell(row[name]) for name in names))
    console_of().print(shown)


def print_measures(summary: pa.Table) -> None:
    """A row for each measure, a column for each condition."""
    table = _table(["", *summary["condition"].to_pylist()])
    for name in summary.column_names:
        values = summary[name].to_pylist()
        if name != "condition" and any(value is not None for value in values):
            table.add_row(name.replace("_", " "), *map(_cell, values))
    console_of().print(table)


def print_planned(costs: Sequence[PlannedCost]) -> None:
    out = console_of()
    table = _table(["", "calls", "prompt tokens", "reply tokens", "cost"])
    for cost in costs:
        told = "unknown" if cost.cost_usd is None else f"${cost.cost_usd:,.2f}"
        numbers = (f"{n:,.0f}" for n in (cost.calls, cost.prompt_tokens, cost.completion_tokens))
        table.add_row(safe(cost.name), *numbers, told)
    known = [cost.cost_usd for cost in costs if cost.cost_usd is not None]
    total = f"${sum(known):,.2f}" if len(known) == len(costs) else "unknown"
    sums = (sum(getattr(c, n) for c in costs) for n in ("calls", "prompt_tokens", "completion_tokens"))
    table.add_row("total", *(f"{n:,.0f}" for n in sums), total, style="bold")
    out.print(table)
    if len(known) < len(costs):
        out.print(f"What it costs is known with {price_setting()}")


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"note: {safe(warning)}", err=True)


def _table(names: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for at, name in enumerate(names):
        table.add_column(
            safe(re.sub(r"_0_(\d)$", r" at .\1", name).replace("_", " ")), justify="right" if at else "left"
        )
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else safe(str(value))
