"""`graphrag-ray index`: build or update an index."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import EXIT_FAILED_ITEMS, SettingsError, UsageError
from graphrag_ray.base.urls import display_path
from graphrag_ray.base.wording import escape_control, plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import Given

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.input_rows import InputRows
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.indexing.index import IndexResult
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@click.option(
    "--input", "function", metavar="MODULE:FUNCTION", help="A function that returns the rows of INPUT."
)
@options.settings
@options.build
@click.option("--add", is_flag=True, help="Keep documents that are not in INPUT.")
@click.option(
    "--allow-deletes",
    is_flag=True,
    help="Allow INPUT to delete a large share of the documents, or replace them.",
)
@click.option("--reset-communities", is_flag=True, help="Partition the graph from scratch.")
@click.option(
    "--verify",
    is_flag=True,
    help="Check all stored parts first and rebuild damaged ones, even in a large index.",
)
@click.option(
    "--verify-input", is_flag=True, help="Read all files, even with unchanged size and time or ETag."
)
@click.option(
    "--new-prompts", is_flag=True, help="Use the package's prompts instead of the index's; confirm the cost."
)
@click.option("--yes", is_flag=True, help="Confirm the cost of --new-prompts.")
@options.address
@click.option(
    "--ray/--in-process",
    "on_ray",
    default=None,
    help="Default: in this process if INPUT is small (`run.in_process_max_mb`) and no cluster is running.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@options.as_json
def index(
    given: Given,
    input_url: str | None,
    function: str | None,
    add: bool,
    allow_deletes: bool,
    new_prompts: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Build or update an index of INPUT: a file, folder, glob or URL with .txt, .md, .html, .jsonl, .csv or
    .parquet files, or other files that installed document readers support. Default: `input.url` in --config.

    Run the same command again to continue after an interruption, retry failed items, or update the index.
    Model replies that were paid for are reused.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray index "s3://bucket/docs/*.jsonl" --root s3://bucket/index --config settings.yaml
      graphrag-ray index --config s3://bucket/settings.yaml
      graphrag-ray index ./documents --root ./my-index --ray
      graphrag-ray index ./documents --root ./my-index --model gpt-4o-mini --rpm 10000 --tpm 2000000
      graphrag-ray index ./documents --root ./my-index --model gpt-4o-mini --build names
      graphrag-ray index --input articles:dataset --root ./my-index --set input.id_column=id
    """
    from graphrag_ray import build_index
    from graphrag_ray.cli.progress import observer_for_people

    observer = observer_for_people(quiet=quiet or as_json)
    shown_input = function or (display_path(input_url) if input_url else None)
    attempt = {"input": shown_input, "add": add, "allow_deletes": allow_deletes}
    with _recorded(given, attempt) as store:
        settings = _settings(store, given, observer)
        done = build_index(
            _rows_of(function, input_url) if function else options.input_of(input_url, settings),
            given.root,
            settings=settings,
            observer=observer,
            add=add,
            allow_deletes=allow_deletes,
            new_prompts=new_prompts,
            agree=observer.message if yes else _confirm,
            **how,
        )
    if as_json:
        m = done.manifest
        console.print_json(
            {
                "snapshot": m.number,
                "committed": done.committed,
                "counts": _counts(done),
                "changes": m.run.get("changes", {}) if done.committed else {},
                "seconds": done.seconds,
                "usage": list(done.accounts.rows()),
                "notes": m.notes,
            }
        )
    elif not quiet:
        _print_indexed(done, given.root, settings)
    if done.failed:
        if quiet and not as_json:
            click.echo(f"graphrag-ray: {_failed_line(done, given.root)}", err=True)
        sys.exit(EXIT_FAILED_ITEMS)


def _rows_of(function: str, input_url: str | None) -> InputRows:
    """The rows of `module:function`, which is called after the engine has started. Raises UsageError."""
    from graphrag_ray.engine.input_rows import InputRows

    if input_url is not None:
        raise UsageError(f"INPUT is given twice: {display_path(input_url)} and --input {function}")
    module, _, name = function.partition(":")
    if not module or not name:
        raise UsageError(f"--input {function!r}: use the form MODULE:FUNCTION")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        rows = getattr(importlib.import_module(module), name)
    except Exception as e:  # The user's module may raise anything.
        raise UsageError(f"--input {function}: {type(e).__name__}: {e}") from e
    if not callable(rows):
        raise UsageError(f"--input {function}: expected a function, got a {type(rows).__name__}")
    return InputRows(rows, function)


@contextmanager
def _recorded(given: Given, attempt: Mapping[str, Any]) -> Iterator[Store]:
    """Open the store, and record an attempt that fails before a run starts. Raises SettingsError,
    UsageError."""
    from graphrag_ray.engine.ray.discovery import is_submitted_job
    from graphrag_ray.indexing.run_record import recording_refusals

    try:
        store = given.store()
    except SettingsError:
        # Record it where the index is reached without these settings.
        with recording_refusals(Given(given.root, None, ()).store(), attempt, always=is_submitted_job()):
            raise
    with recording_refusals(store, attempt, always=is_submitted_job()):
        yield store


def _settings(store: Store, given: Given, observer: Observer) -> Settings:
    """The given settings, else those of the index, with a note about which. Raises UsageError."""
    from graphrag_ray.indexing.build import previous_record
    from graphrag_ray.store import locks, run_records
    from graphrag_ray.store.snapshots import latest_readable

    names_model = given.short["model"] is not None or any(o.startswith("models.") for o in given.overrides)
    with options.naming_root(given.root):
        locks.check_free(store)  # before any note about an index that another run is writing
        parent, _ = latest_readable(store)
        last = run_records.latest_run(store) if parent is None else None
        before = (
            previous_record(store) if given.config is None and (parent or last or not names_model) else None
        )
    settings = given.settings((before.settings or {}) if before else None, store.url)
    if parent:
        if given.config is None:
            observer.message(
                f"Using the settings of snapshot {parent.number} (override with --config or --set)."
            )
        model = parent.settings.get("models", {}).get("default", {}).get("model")
        if model and settings.model(settings.model_name("extract")).provider == "offline":
            observer.message(
                f"Snapshot {parent.number} was built with {model}, but these settings name no model, so the "
                "offline engine rebuilds it. The model's replies are kept for a later run with that model."
            )
    elif before is not None:
        observer.message(
            "Using the settings of the previous run, which did not finish or whose snapshot is damaged "
            "(override with --config or --set)."
        )
    return settings


def _confirm(cost: str) -> None:
    """Ask for confirmation of a cost. Raises UsageError if it is refused, or if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{cost} No model was called yet. Confirm with --yes.")
    click.echo(escape_control(cost), err=True)
    if not click.confirm("Rebuild with the new prompts?", default=False, err=True):
        raise UsageError("No model was called. Without --new-prompts, the index keeps its own prompts.")


def _print_indexed(done: IndexResult, root: str, settings: Settings) -> None:
    """Print the summary of a finished run."""
    out, manifest = console.console_of(), done.manifest
    if done.committed:
        out.print(f"Snapshot {manifest.number} is committed at {root}")
    else:
        out.print(f"Nothing has changed: snapshot {manifest.number} at {root} is up to date.")
    console.print_counts(out, _counts(done))
    if done.committed:
        seconds = "  ".join(f"{name} {s:.1f}" for name, s in done.seconds.items() if s >= 0.05)
        out.print(f"  seconds        {seconds}")
    total = done.accounts.total
    if total.calls:
        retries = plural(total.retries, "retry", "retries")
        cost = console.cost(total.cost_usd, settings.model_name(done.accounts.unpriced_stage))
        out.print(f"  model calls    {total.calls:,} ({retries}), {cost}")
    if "entities" in manifest.tables and not manifest.counts.get("entities"):
        out.print("  No entities were found, so questions about this index will not find an answer.")
    if done.failed:
        out.print(f"  {_failed_line(done, root)}", soft_wrap=True)
    method = "" if manifest.hierarchies else " --method ppr"
    ask = f'graphrag-ray query "What are the main themes?"{method} --root'
    out.print(f"\nAsk: {ask} {shlex.quote(root)}", soft_wrap=True)


def _failed_line(done: IndexResult, root: str) -> str:
    kept = done.manifest.counts.get("kept", 0)
    unchanged = (
        f" ({kept:,} of them kept in {'its' if kept == 1 else 'their'} previous version)" if kept else ""
    )
    return (
        f"{plural(done.failed, 'item')} failed{unchanged}: graphrag-ray failures --root {shlex.quote(root)}"
    )


def _counts(done: IndexResult) -> Mapping[str, Any]:
    """The counts of the snapshot, without the changes if this run made none."""
    left_out = () if done.committed else console.CHANGES
    return {name: n for name, n in done.manifest.counts.items() if name not in left_out}
