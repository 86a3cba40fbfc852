"""`graphrag-ray evaluate estimate`: what a comparison will cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from graphrag_ray.cli.evaluation_options import condition_option, judging_options, opened, questions_option
from graphrag_ray.cli.options import json_option, settings_options
from graphrag_ray.cli.program import Command, root_option


@click.command(cls=Command)
@root_option
@settings_options
@questions_option
@condition_option
@judging_options
@json_option
def estimate(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    questions_url: str,
    conditions: tuple[str, ...],
    criteria: tuple[str, ...],
    replicates: int,
    with_claims: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """What `evaluate compare` with the same options will ask for: calls, tokens and cost of each condition
    and of the judge. For a sample of the questions everything is put together that models would be shown,
    but no model is asked. How long replies will be is assumed. What a folder holds already is not taken off.

    \b
    Example:
      graphrag-ray evaluate estimate --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector
    """
    from graphrag_ray.cli import console
    from graphrag_ray.cli.print_evaluation import print_planned, print_warnings
    from graphrag_ray.evaluate.evaluation_files import questions_of
    from graphrag_ray.evaluate.planned_costs import planned_costs

    index = opened(root, config, overrides, short)
    posed, warnings = questions_of(questions_url, index.settings.storage.of(questions_url))
    costs = planned_costs(index, posed, conditions, criteria, replicates, with_claims)
    if as_json:
        click.echo(console.as_json({"planned": [asdict(cost) for cost in costs]}))
    else:
        print_planned(costs)
    print_warnings(warnings)
