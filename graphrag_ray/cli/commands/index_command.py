"""`graphrag-ray index`: bring an index up to date with its documents."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import FAILED_ITEMS, SettingsError, UsageError
from graphrag_ray.base.urls import shown
from graphrag_ray.base.wording import plural, safe
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import (
    Given,
    build_option,
    input_of,
    json_option,
    naming_root,
    rows_of,
    settings_options,
)

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.indexing.index import Indexed
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@click.option(
    "--input",
    "function",
    metavar="MODULE:FUNCTION",
    help="In place of INPUT: a function of yours that returns its rows, a dataset of Ray Data say.",
)
@root_option
@settings_options
@build_option
@click.option("--add", is_flag=True, help="Keep documents that INPUT does not hold.")
@click.option(
    "--allow-deletes",
    is_flag=True,
    help="Let documents go that INPUT no longer holds, or be replaced by those of another INPUT.",
)
@click.option(
    "--reset-communities",
    is_flag=True,
    help="Partition the graph afresh, not from the communities that are there.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read every stored part first; what is damaged is set aside and made anew. (Small indexes, and "
    "whatever is read, are checked without it.)",
)
@click.option(
    "--verify-input",
    is_flag=True,
    help="Read every file of INPUT. Without it, a file is not read that has the size and time, or the ETag, "
    "that it had.",
)
@click.option(
    "--new-prompts",
    is_flag=True,
    help="Take the prompts of the package, not those that the index was made with. What that costs is told "
    "first, and has to be confirmed.",
)
@click.option("--yes", is_flag=True, help="Confirm what --new-prompts costs.")
@click.option("--address", metavar="ADDRESS", help="A Ray cluster; without it, the one of this machine.")
@click.option(
    "--ray/--in-process",
    "on_ray",
    default=None,
    help="On Ray, or in this process. Without either: in this process where INPUT is small "
    "(`run.in_process_mb`) and no cluster is there.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@json_option
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
    """Index INPUT: a file, folder, glob or URL with .txt, .md, .html, .jsonl, .csv or .parquet files,
    and those of installed document readers. Without it, the `input.url` of --config.

    Run it again to continue after an interruption, to try failed items again, or to bring the index up
    to date: what was paid for is never paid for twice.

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
    shown_input = function or (shown(input_url) if input_url else None)
    attempt = {"input": shown_input, "add": add, "allow_deletes": allow_deletes}
    with _attempt(given, attempt) as store:
        settings = _settings(store, given, observer)
        done = build_index(
            rows_of(function, input_url) if function else input_of(input_url, settings),
            given.root,
            settings=settings,
            observer=observer,
            add=add,
            allow_deletes=allow_deletes,
            new_prompts=new_prompts,
            agree=observer.note if yes else _agree,
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
        _print_indexed(done, given.root)
    if done.failed:
        if quiet and not as_json:
            click.echo(f"graphrag-ray: {_failed_line(done, given.root)}", err=True)
        sys.exit(FAILED_ITEMS)


@contextmanager
def _attempt(given: Given, attempt: Mapping[str, Any]) -> Iterator[Store]:
    """Around an attempt to index: where it comes to no run, that is told beside the index. Raises
    SettingsError, UsageError."""
    from graphrag_ray.engine.ray.discovery import submitted
    from graphrag_ray.indexing.run_record import attempted

    try:
        store = given.store()
    except SettingsError:
        # They do not say how the index is reached: whoever watches it is told where the environment says.
        with attempted(Given(given.root, None, ()).store(), attempt, always=submitted()):
            raise
    with attempted(store, attempt, always=submitted()):
        yield store


def _settings(store: Store, given: Given, observer: Observer) -> Settings:
    """Those given, or else those of what is there; people are told which. Raises UsageError."""
    from graphrag_ray.indexing.build import before_of
    from graphrag_ray.store import locks, runs
    from graphrag_ray.store.snapshots import readable

    says_model = given.short["model"] is not None or any(o.startswith("models.") for o in given.overrides)
    with naming_root(given.root):
        locks.check_free(store)  # before anything is said of the run that goes on
        parent, _ = readable(store)
        last = runs.latest(store) if parent is None else None
        before = before_of(store) if given.config is None and (parent or last or not says_model) else None
    said = before.settings if before else {}
    settings = given.settings(said if before else None, store.url)
    if parent:
        # Whose settings these are, and where a model's work is about to be replaced by the offline engine's.
        if given.config is None:
            observer.note(f"Settings of snapshot {parent.number} (--config or --set change them).")
        paid_for = parent.settings.get("models", {}).get("default", {}).get("model")
        if paid_for and settings.model(settings.model_name("extract")).provider == "offline":
            observer.note(
                f"Snapshot {parent.number} was written with {paid_for}; these settings name no model, so the "
                "offline engine writes it anew. What the model answered is kept for another run with it."
            )
    elif before is not None:
        observer.note(
            "Settings of the run before this one, which was not finished or whose snapshot is damaged "
            "(--config or --set change them)."
        )
    return settings


def _agree(cost: str) -> None:
    """Raises UsageError where nobody at a terminal agrees to it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{cost} Nothing was asked yet: --yes confirms it.")
    click.echo(safe(cost), err=True)
    if not click.confirm("Ask anew with the new prompts?", default=False, err=True):
        raise UsageError("nothing was asked. Without --new-prompts the index goes on with its own prompts")


def _print_indexed(done: Indexed, root: str) -> None:
    """The summary of a finished run."""
    out, manifest = console.console_of(), done.manifest
    if done.committed:
        out.print(f"Snapshot {manifest.number} is committed at {root}")
    else:
        out.print(f"Nothing has changed: snapshot {manifest.number} at {root} is up to date.")
    # What was added and removed is told of the run that did it.
    console.print_counts(out, _counts(done))
    if done.committed:
        seconds = "  ".join(f"{name} {s:.1f}" for name, s in done.seconds.items() if s >= 0.05)
        out.print(f"  seconds        {seconds}")
    total = done.accounts.total
    if total.calls:
        retries = plural(total.retries, "retry", "retries")
        out.print(f"  model calls    {total.calls:,} ({retries}), {console.cost(total.cost_usd)}")
    if "entities" in manifest.tables and not manifest.counts.get("entities"):
        out.print("  No entities were found: answers will say that the index holds nothing.")
    if done.failed:
        out.print(f"  {_failed_line(done, root)}", soft_wrap=True)
    way = "" if manifest.hierarchies else " --method ppr"
    ask = f'graphrag-ray query "What are the main themes?"{way} --root'
    out.print(f"\nAsk: {ask} {shlex.quote(root)}", soft_wrap=True)


def _failed_line(done: Indexed, root: str) -> str:
    """How many items of a run failed, and where they are listed."""
    kept = done.manifest.counts.get("kept", 0)
    as_before = f" ({kept:,} of them kept as {'it was' if kept == 1 else 'they were'})" if kept else ""
    listed = f"graphrag-ray failures --root {shlex.quote(root)}"
    return f"{plural(done.failed, 'item')} failed{as_before}: {listed}"


def _counts(done: Indexed) -> Mapping[str, Any]:
    """Of the snapshot; of a run that changed nothing without what the run before it changed."""
    left_out = () if done.committed else console.CHANGES
    return {name: n for name, n in done.manifest.counts.items() if name not in left_out}
