"""`graphrag-ray evaluate claims`: the factual claims of answers."""

from __future__ import annotations

import sys

import click

from graphrag_ray.base.errors import FAILED_ITEMS
from graphrag_ray.cli import console
from graphrag_ray.cli.commands.evaluate_command import (
    condition_option,
    opened,
    print_table,
    print_warnings,
    questions_option,
    running,
    running_options,
)
from graphrag_ray.cli.options import Given, json_option, settings_options
from graphrag_ray.cli.program import Command, root_option


@click.command(cls=Command)
@root_option
@settings_options
@questions_option
@condition_option
@running_options
@json_option
def claims(
    given: Given,
    questions_url: str,
    conditions: tuple[str, ...],
    out: str,
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Count the factual claims of each condition's answers, repeats left out, and the clusters of claims that
    say nearly the same. More claims: more comprehensive; more clusters: more diverse (the paper's second
    measure). Where the folder holds judgements of `compare`, how often the judge agrees is told, too.

    \b
    Example:
      graphrag-ray evaluate claims --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector --out ./evaluation
    """
    from graphrag_ray.evaluate.claims_of_answers import count_claims, failed_claims, judgements_on
    from graphrag_ray.evaluate.comparison import answered
    from graphrag_ray.evaluate.conditions import check_conditions, parse_conditions
    from graphrag_ray.evaluate.evaluation_files import questions_of
    from graphrag_ray.evaluate.judging.judge_dialogue import CLAIMS_STAGE

    index = opened(given)
    posed, warnings = questions_of(questions_url, index.settings.storage.of(questions_url))
    known = parse_conditions(conditions)
    check_conditions(index, known)
    with running(index, out, "claims", ray, address, quiet or as_json) as run:
        run.check_models([CLAIMS_STAGE])
        answers = answered(run, posed, known, warnings)
        tables = count_claims(run, posed, answers, judgements_on(run, posed))
    failed, told = failed_claims(tables["claims"])
    if missing := len(answers) - len(tables["claims"]):
        told.append(f"{missing:,} of {len(answers):,} answers are missing")
    warnings += told
    if as_json:
        console.print_json({name: table.to_pylist() for name, table in tables.items()})
    else:
        print_table(tables["claim_counts"])
        if len(tables.get("agreement", ())):
            click.echo("\nAgreement with the judge:")
            print_table(tables["agreement"])
    print_warnings(warnings)
    if failed or missing:
        sys.exit(FAILED_ITEMS)
