"""`graphrag-ray status`: what an index holds."""

from __future__ import annotations

import sys

import click

from graphrag_ray.errors import StoreError
from graphrag_ray.terminal import console
from graphrag_ray.terminal.options import Command, json_option, naming_root, root_option


@click.command(cls=Command)
@root_option
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@json_option
def status(root: str, snapshot: int | None, as_json: bool) -> None:
    """What the index holds, what it cost, who is working on it, and what of it is damaged (exit code 1).

    \b
    Example:
      graphrag-ray status --root ./my-index
    """
    from graphrag_ray.status import status_of
    from graphrag_ray.store.files import Store

    with naming_root(root):
        found = status_of(Store(root), snapshot)
    if as_json:
        click.echo(console.as_json(found))
    else:
        console.print_status(found)
    if found["damaged"]:
        sys.exit(StoreError.exit_code)
