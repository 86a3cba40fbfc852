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
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.input_rows import InputRows
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.indexing.index import IndexResult
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@click.option(
    "--input", "function", metavar="MODULE:FUNCTION", help="Read documents from a function instead of INPUT."
)
@options.settings
@options.build
@click.option("--add", is_flag=True, help="Keep indexed documents that are not in INPUT.")
@click.option(
    "--allow-deletes",
    is_flag=True,
    help="Proceed even if INPUT would delete or replace a large share of the documents.",
)
@click.option("--reset-communities", is_flag=True, help="Partition the graph from scratch.")
@click.option(
    "--verify",
    is_flag=True,
    help="First check all stored parts, even in a large index, and rebuild damaged ones.",
)
@click.option(
    "--verify-input", is_flag=True, help="Read all files, even if size and time or ETag are unchanged."
)
@click.option(
    "--new-prompts",
    is_flag=True,
    help="Replace the prompts and outdated defaults that the index keeps. Asks to confirm the cost.",
)
@click.option("--yes", is_flag=True, help="Accept the cost of --new-prompts or a new schema without asking.")
@options.address
@click.option(
    "--ray/--in-process",
    "on_ray",
    default=None,
    help="Default: in this process if INPUT is small (`run.in_process_max_mb`) and no Ray cluster is "
    "running.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@options.as_json
def index(
    opts: IndexOptions,
    input_url: str | None,
    function: str | None,
    add: bool,
    allow_deletes: bool,
    new_prompts: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Build or update an index of INPUT: a file, folder, glob or URL with .txt, .md, .html, .jsonl, .csv or
    .parquet files, or other formats with an installed reader. Default: `input.url` in --config.

    Run the same command again to continue after an interruption, to retry failed items, or to update the
    index. Model replies are reused, so you do not pay for them twice.

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
    from graphrag_ray.cli.progress import default_observer

    observer = default_observer(quiet=quiet or as_json)
    input_name = function or (display_path(input_url) if input_url else None)
    attempt = {"input": input_name, "add": add, "allow_deletes": allow_deletes}
    with _recorded(opts, attempt) as store:
        settings = _settings(store, opts, observer, new_prompts)
        done = build_index(
            _rows_of(function, input_url) if function else options.input_of(input_url, settings),
            opts.root,
            settings=settings,
            observer=observer,
            add=add,
            allow_deletes=allow_deletes,
            new_prompts=new_prompts,
            agree=observer.message if yes else _confirm,
            **run_options,
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
        _print_indexed(done, opts.root, settings)
    if done.failed:
        if quiet and not as_json:
            click.echo(f"graphrag-ray: {_failed_line(done, opts.root)}", err=True)
        sys.exit(EXIT_FAILED_ITEMS)


def _rows_of(function: str, input_url: str | None) -> InputRows:
    """Wrap the rows of `module:function`, which is called once the engine has started. Raises UsageError."""
    from graphrag_ray.engine.input_rows import InputRows

    if input_url is not None:
        raise UsageError(f"INPUT is given twice: {display_path(input_url)} and --input {function}")
    module, _, name = function.partition(":")
    if not module or not name:
        raise UsageError(f"--input {function!r} is invalid: use the form MODULE:FUNCTION")
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
def _recorded(opts: IndexOptions, attempt: Mapping[str, Any]) -> Iterator[Store]:
    """Open the store, and record errors before the run starts. Raises SettingsError, UsageError."""
    from graphrag_ray.engine.ray.discovery import is_submitted_job
    from graphrag_ray.indexing.run_record import record_refusal

    try:
        store = opts.store()
    except SettingsError:
        # Record the error in the index as opened without these settings.
        plain_store = IndexOptions(opts.root, None, ()).store()
        with record_refusal(plain_store, attempt, always=is_submitted_job()):
            raise
    with record_refusal(store, attempt, always=is_submitted_job()):
        yield store


def _settings(store: Store, opts: IndexOptions, observer: Observer, new_prompts: bool) -> Settings:
    """Return the settings from --config or the index, and print where they come from. Raises UsageError."""
    from graphrag_ray.indexing.build import previous_record
    from graphrag_ray.store import locks, run_records
    from graphrag_ray.store.snapshots import latest_readable

    names_model = opts.short["model"] is not None or any(o.startswith("models.") for o in opts.overrides)
    with options.naming_root(opts.root):
        locks.check_free(store)  # Fail before printing notes about an index that another run is writing.
        parent, _ = latest_readable(store)
        last = run_records.latest_run(store) if parent is None else None
        before = (
            previous_record(store) if opts.config is None and (parent or last or not names_model) else None
        )
    settings = opts.settings((before.settings or {}) if before else None, store.url, new_prompts)
    if parent:
        if opts.config is None:
            observer.message(
                f"Using the settings of snapshot {parent.number} (override with --config or --set)."
            )
        model = parent.settings.get("models", {}).get("default", {}).get("model")
        offline = settings.model(settings.model_name("extract")).provider == "offline"
        if model and offline and settings.build != "names":
            observer.message(
                f"Snapshot {parent.number} was built with {model}, but these settings name no model, so the "
                "offline engine rebuilds the index. The model's replies are kept: pass --model to reuse them."
            )
    elif before is not None:
        observer.message(
            "Using the settings of the previous run, which did not finish or whose snapshot is damaged "
            "(override with --config or --set)."
        )
    return settings


def _confirm(cost: str) -> None:
    """Ask the user to confirm a cost. Raises UsageError if the user declines or if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{cost} No model has been called yet. Pass --yes to confirm.")
    click.echo(escape_control(cost), err=True)
    if not click.confirm("Send these requests again?", default=False, err=True):
        raise UsageError("No model was called. The index keeps its own prompts and schema by default.")


def _print_indexed(done: IndexResult, root: str, settings: Settings) -> None:
    """Print the summary of a finished run."""
    out, manifest = console.make_console(), done.manifest
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
        cost = console.format_cost(total.cost_usd, settings.model_name(done.accounts.unpriced_stage))
        out.print(f"  model calls    {total.calls:,} ({retries}), {cost}")
    if "entities" in manifest.tables and not manifest.counts.get("entities"):
        out.print("  No entities were found, so this index cannot answer questions.")
    if done.failed:
        out.print(f"  {_failed_line(done, root)}", soft_wrap=True)
    method = "" if manifest.hierarchies else " --method ppr"
    ask = f'graphrag-ray query "What are the main themes?"{method} --root'
    out.print(f"\nAsk: {ask} {shlex.quote(root)}", soft_wrap=True)


def _failed_line(done: IndexResult, root: str) -> str:
    n = done.manifest.counts.get("kept", 0)
    note = f" ({n:,} of them kept in {'its' if n == 1 else 'their'} previous version)" if n else ""
    return f"{plural(done.failed, 'item')} failed{note}: graphrag-ray failures --root {shlex.quote(root)}"


def _counts(done: IndexResult) -> Mapping[str, Any]:
    """Return the counts of the snapshot, without the changes if this run made none."""
    omitted = () if done.committed else console.CHANGES
    return {name: n for name, n in done.manifest.counts.items() if name not in omitted}
