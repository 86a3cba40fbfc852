"""`graphrag-ray evaluate`: which way of answering is better, with figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import FAILED_ITEMS, UsageError
from graphrag_ray.base.wording import price_setting, safe
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, Commands, root_option
from graphrag_ray.cli.options import Given, json_option, options, reach_options, settings_options
from graphrag_ray.evaluate import CRITERIA, REPLICATES

if TYPE_CHECKING:
    import pyarrow as pa

    from graphrag_ray.evaluate.comparison import Comparison
    from graphrag_ray.evaluate.evaluation_run import EvaluationRun
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.question_files import Posed

NEEDED = ("scipy", "rapidfuzz", "nltk", "pandas", "jinja2")
OFFLINE_JUDGE = (
    "NO LANGUAGE MODEL JUDGED. The offline engine counted words and names instead: the figures show that the "
    "chain works, and nothing on the answers."
)

EVALUATE_COMMANDS = {
    "Head to head": {
        "questions": "Write questions about the corpus as a whole.",
        "estimate": "What a comparison will cost, before anything is spent.",
        "compare": "Have a judge compare the answers of several conditions.",
        "claims": "Count the factual claims of their answers.",
    },
    "Known answers, communities": {
        "qa": "Score answers and retrieval where the right ones are known.",
        "communities": "Measure each level of communities.",
    },
}


@click.group(
    cls=Commands,
    module=__name__,
    listed=EVALUATE_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def evaluate() -> None:
    """Which way of answering is better on your own corpus, with figures that one can defend. All that models
    reply is kept in the folder --out: the same command goes on where it was stopped, and another condition or
    criterion pays only for what is new.

    \b
    Examples:
      graphrag-ray evaluate questions --root ./my-index --out questions.csv
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector --out ./evaluation --report page.html
    """


condition_option = click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="NAME=WAY",
    help="A way to answer; repeatable. WAY is METHOD[:LEVEL][,setting=value…], or a file of answers: "
    ".csv, .jsonl, .parquet.",
)
questions_option = click.option(
    "--questions",
    "questions_url",
    metavar="FILE",
    required=True,
    help="A .csv, .jsonl or .parquet file with a column question (and question_id).",
)
judging_options = options(
    click.option(
        "--criterion",
        "criteria",
        multiple=True,
        default=CRITERIA,
        metavar="NAME",
        help=f"What is judged; repeatable. Default: {', '.join(CRITERIA)}. Others: overall, and text "
        "files in the folder `criteria` of prompts_dir.",
    ),
    click.option(
        "--replicates",
        type=int,
        default=REPLICATES,
        show_default=True,
        help="Verdicts on each pair of answers, half of them with the answers swapped.",
    ),
    click.option("--claims", "claims", is_flag=True, help="Count the factual claims of the answers, too."),
)
where_options = options(
    click.option("--ray", is_flag=True, help="Ask the models on Ray instead of in this process."),
    click.option("--address", metavar="ADDRESS", help="Ask the models on this Ray cluster."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but results and errors."),
)
running_options = options(
    click.option(
        "--out",
        metavar="URL",
        default="evaluation",
        show_default=True,
        help="The folder of results, and of all replies.",
    ),
    where_options,
)
"""Where results go, and where the work is done."""


def opened(given: Given) -> Index:
    """The newest snapshot, with the settings of the command. What needs packages of the extra is imported
    after this. Raises UsageError, SettingsError, StoreError."""
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        told = f"`evaluate` needs {', '.join(lacking)}"
        raise UsageError(f"{told}: pip install 'graphrag-ray[evaluate]'")
    return given.index()


def read_questions(given: Given, url: str) -> tuple[Index, list[Posed], list[str]]:
    """The index, the questions of a file, and warnings about them."""
    from graphrag_ray.evaluate.evaluation_files import questions_of

    index = opened(given)
    return index, *questions_of(url, index.settings.storage.of(url))


def running(
    index: Index, out: str, note: str, as_json: bool, ray: bool, address: str | None, quiet: bool
) -> AbstractContextManager[EvaluationRun]:
    from graphrag_ray.cli.progress import observer_for_people
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    observer = observer_for_people(quiet=quiet or as_json)
    return evaluation_run(index, out, note, on_ray=ray, address=address, observer=observer)


def print_table(table: pa.Table, title: str = "") -> None:
    """A table of results, with its columns of no value left out."""
    if title:
        click.echo(f"\n{title}:")
    names = [name for name in table.column_names if table[name].null_count < len(table)]
    rows = ([cell(row[name]) for name in names] for row in table.select(names).to_pylist())
    console.print_table([*map(heading, names)], rows)


def heading(name: str) -> str:
    return safe(re.sub(r"_0_(\d)$", r" at .\1", name).replace("_", " "))


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else safe(str(value))


def end(warnings: Iterable[str], failed: int) -> None:
    for warning in warnings:
        click.echo(f"note: {safe(warning)}", err=True)
    if failed:
        sys.exit(FAILED_ITEMS)


@click.command(cls=Command)
@root_option
@settings_options
@click.option(
    "--description",
    metavar="TEXT",
    help="What the corpus is and what it is for. Default: what the index says of itself, or else written "
    "from its top reports.",
)
@click.option("--personas", type=int, default=5, show_default=True, help="Kinds of users.")
@click.option("--tasks", type=int, default=5, show_default=True, help="Tasks of each user.")
@click.option("--each", type=int, default=5, show_default=True, help="Questions of each task.")
@click.option("--out", metavar="FILE", required=True, help="Where the questions go: a .csv file.")
@where_options
@json_option
def questions(
    given: Given,
    description: str | None,
    personas: int,
    tasks: int,
    each: int,
    out: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Write questions that need an understanding of the whole corpus: a model thinks of users, of their
    tasks, and of what they would ask (the paper's Algorithm 1). Replies are kept in the folder OUT.work.

    \b
    Examples:
      graphrag-ray evaluate questions --root ./my-index --out questions.csv
      graphrag-ray evaluate questions --root ./my-index --personas 3 --tasks 3 --each 3 --out questions.csv \\
          --description "Minutes of a town council, for people who follow local politics"
    """
    from graphrag_ray.evaluate import written_questions as writing
    from graphrag_ray.store.files import Store

    if not out.lower().endswith(".csv"):
        raise UsageError(f"--out {out!r}: questions are written as a .csv file; name one")
    counts = personas, tasks, each
    writing.check_counts(counts)
    index = opened(given)
    target, name = Store.of_file(out, index.settings.storage.of(out))
    with running(index, f"{out}.work", "questions", as_json, **where) as run:
        about = writing.described(run, description)
        run.observer.note(f"The corpus: {about}")
        found, failures = writing.write_questions(run, about, counts)
    target.write(name, writing.as_csv(found))
    if as_json:
        rows = writing.as_table(found).to_pylist()
        console.print_json({"description": about, "questions": rows, "failures": failures, "out": out})
    else:
        click.echo(f"{len(found)} of {personas * tasks * each} questions are in {out}")
    end(failures, len(failures))


@click.command(cls=Command)
@root_option
@settings_options
@questions_option
@condition_option
@judging_options
@json_option
def estimate(given: Given, questions_url: str, as_json: bool, **how: Any) -> None:
    """What `evaluate compare` with the same options will ask for: calls, tokens and cost of each condition
    and of the judge. For a sample of the questions everything is put together that models would be shown,
    but no model is asked. How long replies will be is assumed. What a folder holds already is not taken off.

    \b
    Example:
      graphrag-ray evaluate estimate --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector
    """
    index, posed, warnings = read_questions(given, questions_url)
    from graphrag_ray.evaluate.planned_costs import planned_costs

    costs = planned_costs(index, posed, **how)
    if as_json:
        console.print_json({"planned": [asdict(cost) for cost in costs]})
    else:

        def row(name: str, *sums: float | None) -> list[str]:
            usd = "unknown" if sums[-1] is None else f"${sums[-1]:,.2f}"
            return [safe(name), *(f"{n:,.0f}" for n in sums[:-1]), usd]

        *counts, usd = zip(*(astuple(cost)[1:] for cost in costs), strict=True)
        total = row("total", *map(sum, counts), None if None in usd else sum(usd))
        columns = ["", "calls", "prompt tokens", "reply tokens", "cost"]
        console.print_table(columns, (row(*astuple(cost)) for cost in costs), total=total)
        if None in usd:
            click.echo(f"What it costs is known with {price_setting()}")
    end(warnings, 0)


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
    claims: bool,
    description: str,
    report: str | None,
    out: str,
    as_json: bool,
    **where: Any,
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
    if report is not None and not report.lower().endswith((".html", ".htm")):
        raise UsageError(f"--report {report!r}: the page is an .html file; name one")
    index, posed, warnings = read_questions(given, questions_url)
    from graphrag_ray.evaluate import comparison

    with running(index, out, "compare", as_json, **where) as run:
        found = comparison.compare(run, posed, conditions, criteria, replicates, description, claims)
    found.warnings[:0] = warnings
    if as_json:
        console.print_json(found.as_dict())
    else:
        print_comparison(found)
        click.echo(f"\nTables: {out}" + (f"   Page: {report}" if report else ""))
    if report is not None:
        from graphrag_ray.evaluate.report_page import write_page

        write_page(index, found, report)
    end(found.warnings, found.failed)


def print_comparison(found: Comparison) -> None:
    """A matrix of win rates for each criterion; what the judge's verdicts are worth; what each condition came
    to."""
    from graphrag_ray.evaluate.judging.head_to_head import SIGNIFICANT

    out = console.console_of()
    if found.offline:
        out.print(f"{OFFLINE_JUDGE}\n", style="bold")
    names = found.tables["conditions"]["name"].to_pylist()
    for criterion in found.criteria:
        out.print(f"{criterion}: win rate of the row over the column, in %")
        cells: dict[tuple[str, str], str] = {}
        for row in found.tables["win_rates"].to_pylist():
            if row["criterion"] == criterion and (rate := row["win_rate"]) is not None:
                mark = "*" if row["p_holm"] < SIGNIFICANT else " "
                cells[row["first"], row["second"]] = f"{rate:.0f}{mark}"
                cells[row["second"], row["first"]] = f"{100 - rate:.0f}{mark}"
        rows = ([safe(name), *(cells.get((name, other), "") for other in names)] for name in names)
        console.print_table(["", *map(heading, names)], rows)
        out.print()
    out.print(f"* significant: p below {SIGNIFICANT} (Wilcoxon's signed-rank test, Holm's correction)\n")
    out.print("How far the judge can be trusted:")
    print_table(found.tables["reliability"])
    print_table(found.tables["conditions"], "Conditions")
    for name, title in (
        ("judging", "Judging"),
        ("claim_counts", "Claims of an answer"),
        ("agreement", "Agreement with the judge"),
    ):
        if len(found.tables.get(name, ())):
            print_table(found.tables[name], title)


@click.command(cls=Command)
@root_option
@settings_options
@questions_option
@condition_option
@running_options
@json_option
def claims(
    given: Given, questions_url: str, conditions: tuple[str, ...], out: str, as_json: bool, **where: Any
) -> None:
    """Count the factual claims of each condition's answers, repeats left out, and the clusters of claims that
    say nearly the same. More claims: more comprehensive; more clusters: more diverse (the paper's second
    measure). Where the folder holds judgements of `compare`, how often the judge agrees is told, too.

    \b
    Example:
      graphrag-ray evaluate claims --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector --out ./evaluation
    """
    index, posed, warnings = read_questions(given, questions_url)
    from graphrag_ray.evaluate.comparison import claims_of

    with running(index, out, "claims", as_json, **where) as run:
        found = claims_of(run, posed, conditions)
    if as_json:
        console.print_json({name: table.to_pylist() for name, table in found.tables.items()})
    else:
        print_table(found.tables["claim_counts"])
        if len(found.tables.get("agreement", ())):
            print_table(found.tables["agreement"], "Agreement with the judge")
    end([*warnings, *found.warnings], found.failed)


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
    as_json: bool,
    **where: Any,
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
    index = opened(given)
    from graphrag_ray.evaluate.evaluation_files import gold_questions
    from graphrag_ray.evaluate.judging.answer_metrics import KS
    from graphrag_ray.evaluate.known_answers import known_answers

    gold, warnings = gold_questions(questions_url, index.settings.storage.of(questions_url))
    with running(index, out, "qa", as_json, **where) as run:
        found = known_answers(run, gold, conditions, retrieval_only, judge, ks or KS)
    warnings += found.warnings
    if as_json:
        tables = {name: table.to_pylist() for name, table in found.tables.items()}
        console.print_json(tables | {"warnings": warnings})
    else:
        summary = found.tables["summary"].to_pydict()
        columns = ["", *map(heading, summary.pop("condition"))]
        # A row for each measure, a column for each condition.
        rows = (
            [name.replace("_", " "), *map(cell, values)]
            for name, values in summary.items()
            if any(value is not None for value in values)
        )
        console.print_table(columns, rows)
        if "qa_conditions" in found.tables:
            print_table(found.tables["qa_conditions"], "Conditions")
    end(warnings, found.failed)


@click.command(cls=Command)
@root_option
@reach_options
@json_option
def communities(given: Given, as_json: bool) -> None:
    """For each hierarchy and level: modularity in the graph, Calinski-Harabasz index and mean cosine over
    the embeddings of entities (higher is better for all three), sizes, communities of one member, and the
    share of entities that are in one.

    \b
    Example:
      graphrag-ray evaluate communities --root ./my-index
    """
    index = opened(given)
    from graphrag_ray.evaluate.community_measures import measured_communities

    found = measured_communities(index)
    if as_json:
        console.print_json({"communities": found.to_pylist()})
    elif not len(found):
        click.echo("This index has no communities of entities to measure.")
    else:
        print_table(found)
