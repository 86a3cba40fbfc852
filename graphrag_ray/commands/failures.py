"""`graphrag-ray failures`: what has no result, and why."""

from __future__ import annotations

import click

from graphrag_ray.settings_file import load_storage
from graphrag_ray.terminal import console
from graphrag_ray.terminal.options import Command, json_option, naming_root, reach_options, root_option


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@json_option
def failures(
    root: str, config: str | None, overrides: tuple[str, ...], snapshot: int | None, as_json: bool
) -> None:
    """Every item of the last run without a result: what failed, in which document, and why.

    \b
    Example:
      graphrag-ray failures --root ./my-index --json
    """
    from graphrag_ray.ask import open_index

    storage = load_storage(config, overrides)
    with naming_root(root):
        opened = open_index(root, snapshot=snapshot, storage=storage)
    rows = opened.table("failures").to_pylist()
    if as_json:
        click.echo(console.as_json(rows))
    else:
        console.print_failures(rows)
