"""`graphrag-ray evaluate qa`: questions with known answers."""

from __future__ import annotations

import sys

import click

from graphrag_ray.base.errors import FAILED_ITEMS
from graphrag_ray.cli import console
from graphrag_ray.cli.commands.evaluate_command import (
    cell,
    condition_option,
    heading,
    opened,
    print_table,
    print_warnings,
    running,
    running_options,
)
from graphrag_ray.cli.options import Given, json_option, settings_options
from graphrag_ray.cli.program import Command, root_option


@click.command(cls=Command)
@root_option
@settings_options
@click.option(
    "--questions",
    "questions_url",
    metavar="FILE",
    required=True,
    help="A .csv, .jsonl or .parquet file: question, answer (and aliases), documents (ids, titles or paths).",
)
@condition_option
@click.option(
    "--retrieval-only",
    is_flag=True,
    help="Look only at what is retrieved, and ask no model for an answer. `keyword` is a way, too, then.",
)
@click.option("--judge/--no-judge", default=True, help="Let a model say whether each answer is correct.")
@click.option("--k", "ks", type=int, multiple=True, help="Of recall@k; repeatable. Default: 1 2 5 8 10 20.")
@running_options
@json_option
def qa(
    given: Given,
    questions_url: str,
    conditions: tuple[str, ...],
    retrieval_only: bool,
    judge: bool,
    ks: tuple[int, ...],
    out: str,
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Score answers where the right ones are known (accuracy, recall, exact match, F1, BLEU-1, ROUGE-L,
    METEOR without synonyms, a judge that says yes or no), and retrieval where the documents that are needed
    are known (recall@k, all within k, precision, tokens, whether the answer stands in the context). A row
    for each question goes to scores.parquet in the folder --out.

    \b
    Examples:
      graphrag-ray evaluate qa --root ./my-index --questions gold.jsonl --retrieval-only \\
          --condition hybrid=hybrid --condition keyword=keyword
      graphrag-ray evaluate qa --root ./my-index --questions gold.jsonl --condition local=local
    """
    from graphrag_ray.evaluate.evaluation_files import gold_questions
    from graphrag_ray.evaluate.judging.answer_metrics import KS
    from graphrag_ray.evaluate.known_answers import known_answers

    index = opened(given)
    gold, warnings = gold_questions(questions_url, index.settings.storage.of(questions_url))
    with running(index, out, "qa", ray, address, quiet or as_json) as run:
        found = known_answers(run, gold, conditions, retrieval_only, judge, ks or KS)
    if as_json:
        told = {name: table.to_pylist() for name, table in found.tables.items()}
        console.print_json(told | {"warnings": [*warnings, *found.warnings]})
    else:
        summary = found.tables["summary"]
        # A row for each measure, a column for each condition.
        measures = {n: summary[n].to_pylist() for n in summary.column_names if n != "condition"}
        rows = (
            [name.replace("_", " "), *map(cell, values)]
            for name, values in measures.items()
            if any(value is not None for value in values)
        )
        columns = ["", *map(heading, summary["condition"].to_pylist())]
        console.console_of().print(console.table(columns, rows))
        if "qa_conditions" in found.tables:
            click.echo("\nConditions:")
            print_table(found.tables["qa_conditions"])
    print_warnings([*warnings, *found.warnings])
    if found.failed:
        sys.exit(FAILED_ITEMS)
