"""`graphrag-ray status`: what an index holds."""

from __future__ import annotations

import sys

import click

from graphrag_ray.errors import StoreError
from graphrag_ray.terminal import console
from graphrag_ray.terminal.options import (
    Command,
    json_option,
    naming_root,
    open_root,
    reach_options,
    root_option,
)


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--snapshots", "listed", is_flag=True, help="List all snapshots that are kept.")
@json_option
def status(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    snapshot: int | None,
    listed: bool,
    as_json: bool,
) -> None:
    """What the index holds, what its last run changed and paid, who is working on it, and what of it is
    damaged (exit code 1).

    \b
    Example:
      graphrag-ray status --root ./my-index
    """
    from graphrag_ray.status import status_of

    store = open_root(root, config, overrides)
    with naming_root(root):
        found = status_of(store, snapshot, listed=listed)
    if as_json:
        click.echo(console.as_json(found))
    else:
        console.print_status(found)
    if found["damaged"]:
        sys.exit(StoreError.exit_code)
