"""`graphrag-ray query`: answer a question from an index."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.errors import FAILED_ITEMS, SnapshotRemoved, UsageError
from graphrag_ray.terminal import console
from graphrag_ray.terminal.options import (
    Command,
    asking_options,
    cache_option,
    json_option,
    naming_root,
    open_root,
    root_option,
    settings_from,
    settings_options,
    way_options,
)
from graphrag_ray.terminal.quick import spare_pandas
from graphrag_ray.terminal.writing import write_stream

if TYPE_CHECKING:
    from graphrag_ray.ask import Index


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[QUESTION]")
@root_option
@settings_options
@asking_options
@way_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--sources", is_flag=True, help="Show the entities, relationships and text under the answer.")
@click.option(
    "--stream/--no-stream",
    default=True,
    help="Show the text while it is written, where it goes to a terminal. Default: yes.",
)
@cache_option
@click.option(
    "--batch", metavar="FILE", help="Questions: .csv, .jsonl or .parquet, with a column question (and id)."
)
@click.option("--out", metavar="URL", help="With --batch: where the answers go, a .parquet file.")
@click.option("--ray", is_flag=True, help="With --batch: on Ray instead of in this process.")
@click.option("--address", metavar="ADDRESS", help="With --batch: on this Ray cluster.")
@click.option("-q", "--quiet", is_flag=True, help="With --batch: print nothing but errors.")
@json_option
def query(
    words: tuple[str, ...],
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    method: str,
    level: str | None,
    where: tuple[str, ...],
    snapshot: int | None,
    sources: bool,
    stream: bool,
    cache: str | None,
    batch: str | None,
    out: str | None,
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Answer QUESTION from the index, with references to what the answer rests on; or, with --batch, the
    questions of a file.

    global reads all reports of one level; local what stands around the entities that the question is near;
    vector the nearest chunks; hybrid the chunks that both keywords and embeddings find; text all chunks;
    drift the nearest reports, then what stands around the questions that they raise.

    A batch keeps every reply in the folder OUT.work, or in --cache: killed, it is continued by the same
    command; asked again, it costs nothing.

    \b
    Examples:
      graphrag-ray query "What are the main themes?" --root ./my-index
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level C1 --sources
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level auto --budget-tokens 200000
      graphrag-ray query "What did the mayor say?" --root ./my-index --method local --where "date>=2023"
      graphrag-ray query --batch questions.csv --root ./my-index --out answers.parquet
    """
    question = " ".join(words) if words else None  # without quotation marks, too
    one = question is not None
    if one == (batch is not None):
        raise UsageError("give a question, or a file of them with --batch")
    if (out is None) == (batch is not None) or (one and (ray or address)):
        raise UsageError("--batch needs --out, a .parquet file; --out, --ray and --address are for --batch")
    spare_pandas()
    from graphrag_ray import traces
    from graphrag_ray.ask import open_index
    from graphrag_ray.store.snapshots import open_latest

    if short["dynamic"] and method != "global":
        raise UsageError(f"--dynamic selects the reports of global search; {method} search has no use for it")
    store = open_root(root, config, overrides)
    with naming_root(root):
        manifest = open_latest(store, snapshot)
    # A budget is of one run: not that of the run that indexed.
    base = {name: section for name, section in manifest.settings.items() if name != "budget"}
    settings = settings_from(config, overrides, short, base if config is None else None)
    opened = open_index(root, snapshot=manifest.number, settings=settings, cache=cache)
    way = {"level": level, "method": method, "where": where}
    if question is not None:
        with traces.exported():
            failed = _ask_one(opened, question, way, sources, stream, as_json)
    else:
        cluster = {"on_ray": ray, "address": address}
        failed = _ask_many(opened, str(batch), str(out), way | cluster, quiet, as_json)
    if failed:
        sys.exit(FAILED_ITEMS)


def _ask_one(
    opened: Index, question: str, way: Mapping[str, Any], sources: bool, stream: bool, as_json: bool
) -> bool:
    """Whether a part of the answer is missing."""
    streamed = stream and not as_json and sys.stdout.isatty()
    answer = write_stream(opened.stream(question, **way)) if streamed else opened.ask(question, **way)
    try:
        found = opened.sources(answer.references, answer) if sources or as_json else []
        if as_json:
            click.echo(console.as_json(console.answer_json(answer, found, opened.manifest.number)))
        else:
            console.print_answer(answer, opened, found if sources else None, written=streamed)
    except SnapshotRemoved as e:
        phases = answer.phases.values()
        tokens = sum(phase.prompt_tokens + phase.completion_tokens for phase in phases)
        raise e.after(sum(phase.calls for phase in phases), tokens) from e
    return bool(answer.failed_parts)


def _ask_many(
    opened: Index, batch: str, out: str, how: Mapping[str, Any], quiet: bool, as_json: bool
) -> bool:
    """Whether a question has no answer, or not all of it."""
    from graphrag_ray.batch import answer_batch
    from graphrag_ray.terminal.progress import Observer

    observer = Observer(quiet=quiet or as_json)
    observer.checked(opened.settings, "map")
    done = answer_batch(opened, batch, out, observer=observer, **how)
    if as_json:
        click.echo(console.as_json(console.batch_json(done)))
    elif not quiet:
        console.print_batch(done)
    return bool(done.failed)
