"""`graphrag-ray evaluate`: which way of answering is better, with figures; what its commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import safe
from graphrag_ray.cli import console
from graphrag_ray.cli.options import Given, options
from graphrag_ray.cli.program import Commands

if TYPE_CHECKING:
    import pyarrow as pa

    from graphrag_ray.evaluate.evaluation_run import EvaluationRun
    from graphrag_ray.query.ask import Index

NEEDED = ("scipy", "rapidfuzz", "nltk", "pandas", "jinja2")

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
    package="graphrag_ray.cli.commands",
    prefix="evaluate_",
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


def judging_options(f: Callable[..., Any]) -> Callable[..., Any]:
    from graphrag_ray.evaluate import CRITERIA, REPLICATES

    return options(
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
        click.option(
            "--claims",
            "with_claims",
            is_flag=True,
            help="Count the factual claims of the answers, too.",
        ),
    )(f)


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
    """The newest snapshot, with the settings of the command. Raises UsageError, SettingsError, StoreError."""
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        told = f"`evaluate` needs {', '.join(lacking)}"
        raise UsageError(f"{told}: pip install 'graphrag-ray[evaluate]'")
    return given.index()


def running(
    index: Index, out: str, note: str, ray: bool, address: str | None, quiet: bool
) -> AbstractContextManager[EvaluationRun]:
    from graphrag_ray.cli.progress import observer_for_people
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    observer = observer_for_people(quiet=quiet)
    return evaluation_run(index, out, note, on_ray=ray, address=address, observer=observer)


def print_table(table: pa.Table) -> None:
    """A table of results, with its columns of no value left out."""
    names = [name for name in table.column_names if table[name].null_count < len(table)]
    rows = ([cell(row[name]) for name in names] for row in table.select(names).to_pylist())
    console.console_of().print(console.table([*map(heading, names)], rows))


def heading(name: str) -> str:
    return safe(re.sub(r"_0_(\d)$", r" at .\1", name).replace("_", " "))


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else safe(str(value))


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"note: {safe(warning)}", err=True)
