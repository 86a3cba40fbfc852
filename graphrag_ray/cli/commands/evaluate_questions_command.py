"""`graphrag-ray evaluate questions`: questions about the corpus as a whole, written by a model."""

from __future__ import annotations

import sys

import click

from graphrag_ray.base.errors import FAILED_ITEMS, UsageError
from graphrag_ray.cli import console
from graphrag_ray.cli.commands.evaluate_command import opened, print_warnings, running
from graphrag_ray.cli.options import Given, json_option, settings_options
from graphrag_ray.cli.program import Command, root_option


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
@click.option("--ray", is_flag=True, help="Ask the models on Ray instead of in this process.")
@click.option("--address", metavar="ADDRESS", help="Ask the models on this Ray cluster.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but results and errors.")
@json_option
def questions(
    given: Given,
    description: str | None,
    personas: int,
    tasks: int,
    each: int,
    out: str,
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write questions that need an understanding of the whole corpus: a model thinks of users, of their
    tasks, and of what they would ask (the paper's Algorithm 1). Replies are kept in the folder OUT.work.

    \b
    Examples:
      graphrag-ray evaluate questions --root ./my-index --out questions.csv
      graphrag-ray evaluate questions --root ./my-index --personas 3 --tasks 3 --each 3 --out questions.csv \\
          --description "Minutes of a town council, for people who follow local politics"
    """
    from graphrag_ray.evaluate.written_questions import (
        as_csv,
        as_table,
        check_counts,
        described,
        write_questions,
    )
    from graphrag_ray.store.files import Store

    if not out.lower().endswith(".csv"):
        raise UsageError(f"--out {out!r}: questions are written as a .csv file; name one")
    check_counts((personas, tasks, each))
    index = opened(given)
    target, name = Store.of_file(out, index.settings.storage.of(out))
    with running(index, f"{out}.work", "questions", ray, address, quiet or as_json) as run:
        about = described(run, description)
        run.observer.note(f"The corpus: {about}")
        found, failures = write_questions(run, about, (personas, tasks, each))
    target.write(name, as_csv(found))
    print_warnings(failures)
    if as_json:
        rows = as_table(found).to_pylist()
        told = {"description": about, "questions": rows, "failures": failures, "out": out}
        console.print_json(told)
    else:
        wanted = personas * tasks * each
        click.echo(f"{len(found)} of {wanted} questions are in {out}")
    if failures:
        sys.exit(FAILED_ITEMS)
