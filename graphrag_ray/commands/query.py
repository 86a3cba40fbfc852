"""`graphrag-ray query`: answer a question from an index."""

from __future__ import annotations

import sys
from typing import Any

import click

from graphrag_ray.errors import FAILED_ITEMS, UsageError
from graphrag_ray.query import methods
from graphrag_ray.terminal import console
from graphrag_ray.terminal.options import (
    Command,
    asking_options,
    json_option,
    naming_root,
    open_root,
    root_option,
    settings_from,
    settings_options,
)
from graphrag_ray.terminal.quick import spare_pandas
from graphrag_ray.terminal.writing import write_stream


@click.command(cls=Command)
@click.argument("question")
@root_option
@settings_options
@asking_options
@click.option(
    "--method",
    type=click.Choice(list(methods.FILES)),
    default=methods.DEFAULT,
    show_default=True,
    help="How the answer is found.",
)
@click.option(
    "--level",
    metavar="C0..Cn|auto",
    help="Level of the communities, or `auto`: the finest within the budget (without one, the coarsest that "
    "fills a context: the default). --dynamic: the finest that is rated (C2). local, drift: the finest whose "
    "reports are shown (C2).",
)
@click.option(
    "--where",
    metavar="COND",
    multiple=True,
    help="Only documents with path~*.md, title=…, date>=2023-05, author=… (a column of their metadata); "
    "repeatable.",
)
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--sources", is_flag=True, help="Show the entities, relationships and text under the answer.")
@click.option(
    "--stream/--no-stream",
    default=True,
    help="Show the text while it is written, where it goes to a terminal. Default: yes.",
)
@json_option
def query(
    question: str,
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    method: str,
    level: str | None,
    where: tuple[str, ...],
    snapshot: int | None,
    sources: bool,
    stream: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Answer QUESTION from the index, with references to what the answer rests on.

    global reads all reports of one level; local what stands around the entities that the question is near;
    vector the nearest chunks; hybrid the chunks that both keywords and embeddings find; text all chunks;
    drift the nearest reports, then what stands around the questions that they raise.

    \b
    Examples:
      graphrag-ray query "What are the main themes?" --root ./my-index
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level C1 --sources
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level auto --budget-tokens 200000
      graphrag-ray query "What did the mayor say?" --root ./my-index --method local --where "date>=2023"
    """
    spare_pandas()
    from graphrag_ray.ask import open_index
    from graphrag_ray.store.snapshots import open_latest

    if short["dynamic"] and method != "global":
        raise UsageError(f"--dynamic selects the reports of global search; {method} search has no use for it")
    store = open_root(root, config, overrides)
    with naming_root(root):
        manifest = open_latest(store, snapshot)
    settings = settings_from(config, overrides, short, manifest.settings if config is None else None)
    opened = open_index(root, snapshot=manifest.number, settings=settings)
    streamed = stream and not as_json and sys.stdout.isatty()
    if streamed:
        answer = write_stream(opened.stream(question, level, method=method, where=where))
    else:
        answer = opened.ask(question, level, method=method, where=where)
    found = opened.sources(answer.references, answer) if sources or as_json else []
    if as_json:
        click.echo(console.as_json(console.answer_json(answer, found, opened.manifest.number)))
    else:
        console.print_answer(answer, opened, found if sources else None, written=streamed)
    if answer.failed_parts:
        sys.exit(FAILED_ITEMS)
