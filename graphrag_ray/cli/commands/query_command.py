"""`graphrag-ray query`: answer a question or a file of questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import EXIT_FAILED_ITEMS, SettingsError, SnapshotRemoved, UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions
from graphrag_ray.query.methods.methods import METHODS, check_options, get_method, load_all

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.sources import Source


def _list_methods(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        for name, kind in load_all().items():
            package = METHODS.package_of(name)
            click.echo(f"{name:<10} {kind.description}{f' ({package})' if package else ''}")
        ctx.exit()


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[QUESTION]")
@options.settings
@options.answer
@options.search
@click.option(
    "--methods",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_methods,
    help="List the search methods and what they read.",
)
@options.snapshot
@click.option("--sources", is_flag=True, help="Show the cited entities, relationships and text passages.")
@click.option(
    "--stream/--no-stream",
    default=True,
    help="On a terminal, print the answer while it is generated. Default: yes.",
)
@options.raw
@options.cache
@click.option(
    "--batch",
    metavar="FILE",
    help="A .csv, .jsonl or .parquet file with a column `question` (optional: `id`).",
)
@click.option(
    "--out", metavar="URL", help="With --batch: the .parquet, .jsonl or .csv file to write the answers to."
)
@click.option("--ray", is_flag=True, help="With --batch: run on Ray instead of in this process.")
@click.option("--address", metavar="ADDRESS", help="With --batch: run on this Ray cluster.")
@click.option("-q", "--quiet", is_flag=True, help="With --batch: print only errors.")
@options.as_json
def query(
    opts: IndexOptions,
    words: tuple[str, ...],
    snapshot: int | None,
    sources: bool,
    stream: bool,
    raw: bool,
    cache: str | None,
    batch: str | None,
    out: str | None,
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
    **request: Any,
) -> None:
    """Answer QUESTION from the index, citing sources. With --batch, answer the questions in a file.

    --methods lists the search methods and what they read. With --method auto, questions with a rare name use
    local search; questions about the whole corpus use global; all others use hybrid (ppr if the index has no
    reports). If that finds nothing, the next best method is tried.

    A batch stores every reply in the folder OUT.work, or in --cache. Run the same command again to continue
    after an interruption; repeating a finished batch costs nothing. OUT.work/outcome.json records how the
    batch ended, even if it could not start.

    \b
    Examples:
      graphrag-ray query "What are the main themes?" --root ./my-index
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level C1 --sources
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level auto --budget-tokens 200000
      graphrag-ray query "What did the mayor say?" --root ./my-index --method local --where "date>=2023"
      graphrag-ray query "Where did her husband die?" --root ./my-index --method ppr --steps 2 --sources
      graphrag-ray query --batch questions.csv --root ./my-index --out answers.parquet
    """
    question = " ".join(words) if words else None  # Quotation marks are optional.
    is_single = question is not None
    options.avoid_pandas_import()
    with _recorded(opts, out, batch):
        if is_single == (batch is not None):
            raise UsageError("Pass either a question or, with --batch, a file of questions")
        if (out is None) == (batch is not None) or (is_single and (ray or address)):
            raise UsageError(
                "--batch needs --out (.parquet, .jsonl or .csv). --out, --ray and --address need --batch."
            )
        method = request["method"]
        if opts.short["dynamic"] and not get_method(method).dynamic:
            raise UsageError(f"--dynamic is supported by global search only, not by {method} search")
        check_options(method, opts.short)
        index = opts.index(snapshot, cache)
    if question is not None:
        from graphrag_ray.query import traces

        with traces.export_traces():
            failed = _ask_one(index, question, request, sources, stream, raw, as_json)
    else:
        failed = _ask_many(index, str(batch), str(out), request, ray, address, quiet, as_json)
    if failed:
        sys.exit(EXIT_FAILED_ITEMS)


@contextmanager
def _recorded(opts: IndexOptions, out: str | None, batch: str | None) -> Iterator[None]:
    """Record why a batch could not start as its outcome. Raises UsageError if --out is unusable.

    Also records it without --batch if --out has an earlier batch, or in a job that was meant to run one.
    """
    if out is None:
        yield
        return
    from graphrag_ray.base.settings_file import load_storage
    from graphrag_ray.engine.ray.discovery import is_submitted_job
    from graphrag_ray.query.batch import record_failed_start
    from graphrag_ray.query.question_files import AnswersFile

    always = batch is not None or is_submitted_job()
    try:
        storage_options = load_storage(opts.config, opts.overrides).fsspec_options(out)
    except SettingsError:
        # Record the error at --out as opened without these settings.
        with record_failed_start(AnswersFile.locate(out, {}).work, always):
            raise
    with record_failed_start(AnswersFile.locate(out, storage_options).work, always):
        yield


def _ask_one(
    index: Index,
    question: str,
    request: Mapping[str, Any],
    sources: bool,
    stream: bool,
    raw: bool,
    as_json: bool,
) -> bool:
    """Answer a question. Returns whether part of the answer is missing."""
    from graphrag_ray.cli.answer_output import print_answer, write_stream

    index = replace(index, notice=lambda text: click.echo(text, err=True))
    streamed = stream and not as_json and sys.stdout.isatty()
    answer = (
        write_stream(index.stream(question, **request), raw) if streamed else index.ask(question, **request)
    )
    try:
        cited: Sequence[Source] | None = ()
        if sources or as_json:
            references = answer.references
            cited, answer = index.show_or_note(
                answer, lambda: index.sources(references, answer), "The sources"
            )
        if as_json:
            data = {"snapshot": index.manifest.number, **answer.as_dict()}
            console.print_json({**data, "sources": [vars(source) for source in cited or ()]})
        else:
            print_answer(answer, index, cited if sources else None, written=streamed, raw=raw)
    except SnapshotRemoved as e:
        phases = answer.phases.values()
        tokens = sum(phase.prompt_tokens + phase.completion_tokens for phase in phases)
        raise e.with_usage(sum(phase.calls for phase in phases), tokens) from e
    return bool(answer.failed_parts) or cited is None


def _ask_many(
    index: Index,
    batch: str,
    out: str,
    request: Mapping[str, Any],
    ray: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> bool:
    """Answer a batch. Returns whether an answer, or part of one, is missing."""
    from graphrag_ray.cli.progress import default_observer
    from graphrag_ray.query.batch import answer_batch
    from graphrag_ray.query.methods.method import AskRequest

    observer = default_observer(quiet=quiet or as_json)
    observer.run_started(index.settings, "map")
    result = answer_batch(
        index, batch, out, AskRequest(**request), observer=observer, on_ray=ray, address=address
    )
    if as_json:
        counts = {"questions": result.questions, "failed": result.failed, "seconds": result.seconds}
        console.print_json({"out": result.url, **counts, "usage": list(result.accounts.rows())})
    elif not quiet:
        echo, total = console.make_console().print, result.accounts.total
        failed = f", {result.failed:,} with a missing or partial answer (columns error, failed_parts)"
        echo(f"{plural(result.questions, 'question')}{failed if result.failed else ''}: {result.url}")
        unpriced = index.settings.model_name(result.accounts.unpriced_stage)
        cost = console.format_cost(total.cost_usd, unpriced)
        used = f"{plural(total.calls, 'call')}, {total.total_tokens:,} tokens, {cost}"
        free = "no model calls, all replies were cached"
        echo(f"[{used if total.calls else free}, {result.seconds:.1f} s]", style="dim")
    return bool(result.failed)
