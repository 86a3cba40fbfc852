"""`graphrag-ray evaluate compare`: conditions head to head."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import FAILED_ITEMS, UsageError
from graphrag_ray.base.wording import safe
from graphrag_ray.cli import console
from graphrag_ray.cli.commands.evaluate_command import (
    condition_option,
    heading,
    judging_options,
    opened,
    print_table,
    print_warnings,
    questions_option,
    running,
    running_options,
)
from graphrag_ray.cli.options import Given, json_option, settings_options
from graphrag_ray.cli.program import Command, root_option

if TYPE_CHECKING:
    from graphrag_ray.evaluate.comparison import Comparison

OFFLINE_JUDGE = (
    "NO LANGUAGE MODEL JUDGED. The offline engine counted words and names instead: the figures show that the "
    "chain works, and nothing on the answers."
)


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
    given: Given,
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
    from graphrag_ray.evaluate.comparison import compare as compared
    from graphrag_ray.evaluate.evaluation_files import questions_of
    from graphrag_ray.evaluate.judging.judge_dialogue import CLAIMS_STAGE

    if report is not None and not report.lower().endswith((".html", ".htm")):
        raise UsageError(f"--report {report!r}: the page is an .html file; name one")
    failed = 0
    index = opened(given)
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
        console.print_json(found.as_dict())
    else:
        _print_comparison(found)
        click.echo(f"\nTables: {out}" + (f"   Page: {report}" if report else ""))
    print_warnings(found.warnings)
    if report is not None:
        from graphrag_ray.evaluate.report_page import write_page

        write_page(index, found, report)
    if found.failed or failed:
        sys.exit(FAILED_ITEMS)


def _print_comparison(found: Comparison) -> None:
    """A matrix of win rates for each criterion; what the judge's verdicts are worth; what each condition came
    to."""
    from graphrag_ray.evaluate.judging.head_to_head import SIGNIFICANT

    out = console.console_of()
    if found.offline:
        out.print(f"{OFFLINE_JUDGE}\n", style="bold")
    names = found.tables["conditions"]["name"].to_pylist()
    rates = found.tables["win_rates"].to_pylist()
    for criterion in found.criteria:
        out.print(f"{criterion}: win rate of the row over the column, in %")
        cells = {(r["first"], r["second"]): r for r in rates if r["criterion"] == criterion}
        rows = ([safe(row), *(_win_rate(cells, row, column) for column in names)] for row in names)
        out.print(console.table(["", *map(heading, names)], rows))
        out.print()
    out.print(f"* significant: p below {SIGNIFICANT} (Wilcoxon's signed-rank test, Holm's correction)\n")
    out.print("How far the judge can be trusted:")
    print_table(found.tables["reliability"])
    out.print("\nConditions:")
    print_table(found.tables["conditions"])
    for name, title in (
        ("judging", "Judging"),
        ("claim_counts", "Claims of an answer"),
        ("agreement", "Agreement with the judge"),
    ):
        if len(found.tables.get(name, ())):
            out.print(f"\n{title}:")
            print_table(found.tables[name])


def _win_rate(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str, column: str) -> str:
    found = cells.get((row, column)) or cells.get((column, row))
    if found is None or found["win_rate"] is None:
        return ""
    from graphrag_ray.evaluate.judging.head_to_head import SIGNIFICANT

    rate = found["win_rate"] if (row, column) in cells else 100 - found["win_rate"]
    return f"{rate:.0f}{'*' if found['p_holm'] < SIGNIFICANT else ' '}"
