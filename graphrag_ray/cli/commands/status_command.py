"""`graphrag-ray status`: what an index holds, and how its last run went, or is going."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import StoreError
from graphrag_ray.cli.options import json_option, naming_root, open_root, reach_options
from graphrag_ray.cli.program import Command, root_option

if TYPE_CHECKING:
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--snapshots", "listed", is_flag=True, help="List all snapshots that are kept.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show the run that is going on until it ends, and end with its exit code (1: it was killed); with "
    "that of a later attempt that came to no run. With --json: a line whenever something is new.",
)
@click.option(
    "--next",
    "following",
    is_flag=True,
    help="With --watch, for a job that was just submitted: unless a run is going on, wait up to 15 minutes "
    "for the next one to begin or to be refused.",
)
@json_option
def status(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    snapshot: int | None,
    listed: bool,
    watch: bool,
    following: bool,
    as_json: bool,
) -> None:
    """What the index holds, what its last run changed and paid and how it ended, who is working on it and how
    far that is, and which of its files are missing or cut short (exit code 1).

    Nothing but the index is needed, no access to where a run works. One on another machine is watched for a
    sign of life, 20 seconds at most.

    \b
    Examples:
      graphrag-ray status --root ./my-index
      graphrag-ray status --root s3://bucket/index --watch
      graphrag-ray status --root s3://bucket/index --watch --next
    """
    from graphrag_ray.cli import console
    from graphrag_ray.indexing.status import status_of

    if following and not watch:
        raise click.UsageError("--next goes with --watch")
    store = open_root(root, config, overrides)
    with naming_root(root):
        if watch:
            sys.exit(_watch(store, following, as_json))
        found = status_of(store, snapshot, listed=listed)
    if as_json:
        click.echo(console.as_json(found))
    else:
        from graphrag_ray.cli.print_status import print_status

        print_status(found)
    if found["damaged"]:
        sys.exit(StoreError.exit_code)


def _watch(store: Store, following: bool, as_json: bool) -> int:
    """The exit code of the last run, or of the attempt after it that came to none."""
    from graphrag_ray.cli import console
    from graphrag_ray.cli import print_status as terminal
    from graphrag_ray.cli.safe import safe
    from graphrag_ray.indexing.status import await_next, watched

    if following:
        click.echo("Waiting for the run to begin; `ray job list` on its cluster shows the job", err=True)
        await_next(store)
    last: Mapping[str, Any] | None = None
    if as_json:
        for found in watched(store):
            if found != last:
                click.echo(console.as_json(found, indent=False))
            last = found
    else:
        last = terminal.show_running(watched(store))
    if last is None:
        return _without_a_run(store, as_json)
    if not as_json:
        click.echo(safe(terminal.ending(last)))
    code = last["exit_code"]
    return StoreError.exit_code if code is None else int(code)


def _without_a_run(store: Store, as_json: bool) -> int:
    """What there is to tell where the last attempt came to no run, or none is told of; its exit code."""
    from graphrag_ray.cli import console
    from graphrag_ray.cli import print_status as terminal
    from graphrag_ray.cli.safe import safe
    from graphrag_ray.indexing.status import refused_since, status_of

    if refused := refused_since(store):
        click.echo(console.as_json(refused, indent=False) if as_json else safe(terminal.refusal(refused)))
        return int(refused["exit_code"])
    found = status_of(store)
    if as_json:
        click.echo(console.as_json(found["last_run"], indent=False))
    else:
        terminal.print_status(found)
    return 0
