"""`graphrag-ray evaluate compare`: conditions head to head."""

from __future__ import annotations

import sys
from typing import Any

import click

from graphrag_ray.base.errors import FAILED_ITEMS, UsageError
from graphrag_ray.cli.evaluation_options import (
    condition_option,
    judging_options,
    opened,
    questions_option,
    running,
    running_options,
)
from graphrag_ray.cli.options import json_option, settings_options
from graphrag_ray.cli.program import Command, root_option


@click.command(cls=Command)
@root_option
@settings_options
@questions_option
@condition_option
@judging_options
@click.option("--description", metavar="TEXT", default="", help="Of the corpus, for the page.")
@click.option("--report", metavar="FILE", help="Write a page for people: one .html file without network.")
@running_options
@json_option
def compare(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    questions_url: str,
    conditions: tuple[str, ...],
    criteria: tuple[str, ...],
    replicates: int,
    with_claims: bool,
    description: str,
    report: str | None,
    out: str,
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Every condition answers every question; then a judge compares each two answers by each criterion,
    several times, half of them with the answers swapped. Win rates, their significance, how far the judge can
    be trusted, and what each condition cost go to tables in the folder --out (.parquet).

    The judge is the model of the stage `judge`. Let another one judge than the one that answers:
    --set models.judge.provider=openai --set models.judge.model=NAME
    --set stages.judge.model=judge. Which answers and verdicts are in the folder
    is not asked again, so conditions and criteria can be added.

    \b
    Examples:
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition C1=global:C1 --condition vector=vector --report page.html
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv --claims \\
          --condition short=hybrid,query.context_tokens=4000 --condition other=answers-of-another-tool.csv
    """
    from graphrag_ray.cli import console
    from graphrag_ray.cli.print_evaluation import print_comparison, print_warnings
    from graphrag_ray.evaluate.comparison import compare as compared
    from graphrag_ray.evaluate.evaluation_files import questions_of
    from graphrag_ray.evaluate.judging.judge_dialogue import CLAIMS_STAGE

    if report is not None and not report.lower().endswith((".html", ".htm")):
        raise UsageError(f"--report {report!r}: the page is an .html file; name one")
    failed = 0
    index = opened(root, config, overrides, short)
    posed, warnings = questions_of(questions_url, index.settings.storage.of(questions_url))
    with running(index, out, "compare", ray, address, quiet or as_json) as run:
        if with_claims:
            run.check_models([CLAIMS_STAGE])
        found = compared(run, posed, conditions, criteria, replicates, description)
        found.warnings[:0] = warnings
        if with_claims:
            from graphrag_ray.evaluate.claims_of_answers import count_claims, failed_claims

            answers, judgements = found.tables["answers"], found.tables["judgements"]
            found.tables |= count_claims(run, posed, answers, judgements)
            failed, told = failed_claims(found.tables["claims"])
            found.warnings += told
    if as_json:
        click.echo(console.as_json(found.as_dict()))
    else:
        print_comparison(found)
        click.echo(f"\nTables: {out}" + (f"   Page: {report}" if report else ""))
    print_warnings(found.warnings)
    if report is not None:
        from graphrag_ray.evaluate.report_page import write_page

        write_page(index, found, report)
    if found.failed or failed:
        sys.exit(FAILED_ITEMS)
