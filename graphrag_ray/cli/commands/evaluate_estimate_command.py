"""`graphrag-ray evaluate estimate`: what a comparison will cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from graphrag_ray.base.wording import price_setting, safe
from graphrag_ray.cli import console
from graphrag_ray.cli.commands.evaluate_command import (
    condition_option,
    judging_options,
    opened,
    print_warnings,
    questions_option,
)
from graphrag_ray.cli.options import Given, json_option, settings_options
from graphrag_ray.cli.program import Command, root_option

if TYPE_CHECKING:
    from graphrag_ray.evaluate.planned_costs import PlannedCost


@click.command(cls=Command)
@root_option
@settings_options
@questions_option
@condition_option
@judging_options
@json_option
def estimate(
    given: Given,
    questions_url: str,
    conditions: tuple[str, ...],
    criteria: tuple[str, ...],
    replicates: int,
    with_claims: bool,
    as_json: bool,
) -> None:
    """What `evaluate compare` with the same options will ask for: calls, tokens and cost of each condition
    and of the judge. For a sample of the questions everything is put together that models would be shown,
    but no model is asked. How long replies will be is assumed. What a folder holds already is not taken off.

    \b
    Example:
      graphrag-ray evaluate estimate --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector
    """
    from graphrag_ray.evaluate.evaluation_files import questions_of
    from graphrag_ray.evaluate.planned_costs import planned_costs

    index = opened(given)
    posed, warnings = questions_of(questions_url, index.settings.storage.of(questions_url))
    costs = planned_costs(index, posed, conditions, criteria, replicates, with_claims)
    if as_json:
        console.print_json({"planned": [asdict(cost) for cost in costs]})
    else:
        _print_planned(costs)
    print_warnings(warnings)


def _print_planned(costs: Sequence[PlannedCost]) -> None:
    known = [cost.cost_usd for cost in costs if cost.cost_usd is not None]
    total = f"${sum(known):,.2f}" if len(known) == len(costs) else "unknown"
    names = ("calls", "prompt_tokens", "completion_tokens")
    rows = []
    for cost in costs:
        told = "unknown" if cost.cost_usd is None else f"${cost.cost_usd:,.2f}"
        rows.append([safe(cost.name), *(f"{getattr(cost, n):,.0f}" for n in names), told])
    table = console.table(["", "calls", "prompt tokens", "reply tokens", "cost"], rows)
    sums = (sum(getattr(cost, n) for cost in costs) for n in names)
    table.add_row("total", *(f"{n:,.0f}" for n in sums), total, style="bold")
    console.console_of().print(table)
    if len(known) < len(costs):
        click.echo(f"What it costs is known with {price_setting()}")
