"""`graphrag-ray index`: bring an index up to date with its documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import FAILED_ITEMS, SettingsError, UsageError
from graphrag_ray.base.urls import shown
from graphrag_ray.cli.misread import Misread
from graphrag_ray.cli.options import (
    build_option,
    input_of,
    json_option,
    naming_root,
    open_root,
    rows_of,
    settings_from,
    settings_options,
)
from graphrag_ray.cli.program import Command, root_option, root_otherwise

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.observer import Observer
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import Manifest


def _misread(line: Misread) -> None:
    """A line that cannot be run is told like settings that cannot be used, where it says of which index."""
    config = line.value("--config")
    root = line.value("--root") or root_otherwise(config)
    if root:
        with _attempt(root, config, line.values("--set"), {}):
            raise line.error


@click.command(cls=Command, misread=_misread)
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
    input_url: str | None,
    function: str | None,
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    add: bool,
    allow_deletes: bool,
    reset_communities: bool,
    verify: bool,
    verify_input: bool,
    new_prompts: bool,
    yes: bool,
    address: str | None,
    on_ray: bool | None,
    quiet: bool,
    as_json: bool,
    **short: Any,
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
    from graphrag_ray.cli import console
    from graphrag_ray.cli.progress import observer_for_people

    observer = observer_for_people(quiet=quiet or as_json)
    shown_input = function or (shown(input_url) if input_url else None)
    given = {"input": shown_input, "add": add, "allow_deletes": allow_deletes}
    with _attempt(root, config, overrides, given) as store:
        settings = _settings(store, root, config, overrides, short, observer, new_prompts)
        done = build_index(
            rows_of(function, input_url) if function else input_of(input_url, settings),
            root,
            settings=settings,
            observer=observer,
            add=add,
            allow_deletes=allow_deletes,
            reset_communities=reset_communities,
            verify=verify,
            verify_input=verify_input,
            new_prompts=new_prompts,
            agree=observer.note if yes else _agree,
            address=address,
            on_ray=on_ray,
        )
    if as_json:
        click.echo(console.as_json(console.indexed_json(done)))
    elif not quiet:
        console.print_indexed(done, root)
    if done.failed:
        if quiet and not as_json:
            click.echo(f"graphrag-ray: {console.failed_line(done, root)}", err=True)
        sys.exit(FAILED_ITEMS)


@contextmanager
def _attempt(
    root: str, config: str | None, overrides: tuple[str, ...], given: Mapping[str, Any]
) -> Iterator[Store]:
    """Around an attempt to index: where it comes to no run, that is told beside the index. Raises
    SettingsError, UsageError."""
    from graphrag_ray.engine.ray.discovery import submitted
    from graphrag_ray.indexing.run_record import attempted

    try:
        store = open_root(root, config, overrides)
    except SettingsError:
        # They do not say how the index is reached: whoever watches it is told where the environment says.
        with attempted(open_root(root, None, ()), given, always=submitted()):
            raise
    with attempted(store, given, always=submitted()):
        yield store


def _settings(
    store: Store,
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    short: Mapping[str, Any],
    observer: Observer,
    new_prompts: bool,
) -> Settings:
    """Those given, or else those of what is there; people are told which. Raises UsageError."""
    from graphrag_ray.indexing.build import before_of
    from graphrag_ray.indexing.contents import require_paths
    from graphrag_ray.store import locks, runs
    from graphrag_ray.store.snapshots import readable

    says_model = short["model"] is not None or any(o.startswith("models.") for o in overrides)
    with naming_root(root):
        locks.check_free(store)  # before anything is said of the run that goes on
        parent, _ = readable(store)
        last = runs.latest(store) if parent is None else None
        before = before_of(store) if config is None and (parent or last or not says_model) else None
    said = before.settings if before else {}
    settings = settings_from(config, overrides, short, said if before else None, store.url)
    require_paths(said, settings, new_prompts=new_prompts)
    if parent:
        _tell_settings(observer, parent, settings, config)
    elif before is not None:
        observer.note(
            "Settings of the run before this one, which was not finished or whose snapshot is damaged "
            "(--config or --set change them)."
        )
    return settings


def _agree(cost: str) -> None:
    """Raises UsageError where nobody at a terminal agrees to it."""
    from graphrag_ray.cli.safe import safe

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{cost} Nothing was asked yet: --yes confirms it.")
    click.echo(safe(cost), err=True)
    if not click.confirm("Ask anew with the new prompts?", default=False, err=True):
        raise UsageError("nothing was asked. Without --new-prompts the index goes on with its own prompts")


def _tell_settings(observer: Observer, parent: Manifest, settings: Settings, config: str | None) -> None:
    """Whose settings these are, and where a model's work is about to be replaced by the offline engine's."""
    if config is None:
        observer.note(f"Settings of snapshot {parent.number} (--config or --set change them).")
    paid_for = parent.settings.get("models", {}).get("default", {}).get("model")
    if paid_for and settings.model(settings.model_name("extract")).provider == "offline":
        observer.note(
            f"Snapshot {parent.number} was written with {paid_for}; these settings name no model, so the "
            "offline engine writes it anew. What the model answered is kept for another run with it."
        )
