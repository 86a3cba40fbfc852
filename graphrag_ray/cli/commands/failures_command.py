"""`graphrag-ray failures`: what has no result, and why; and putting it back."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.declarations import FAILING
from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.options import json_option, naming_root, open_root, reach_options
from graphrag_ray.cli.program import Command, root_option


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--retry", is_flag=True, help="Put the items back: the next `index` asks for them again.")
@click.option("--stage", type=click.Choice(FAILING), help="Only items of this stage.")
@click.option("--document", metavar="GLOB", help="Only items of documents whose path is like this.")
@click.option("--key", multiple=True, metavar="KEY", help="Only the item with this key, or its beginning.")
@json_option
def failures(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    snapshot: int | None,
    retry: bool,
    stage: str | None,
    document: str | None,
    key: tuple[str, ...],
    as_json: bool,
) -> None:
    """Every item of the last run without a result: what failed, in which document, and why.

    Every run tries again what failed for now. What failed for good it leaves, until its text, prompt or
    model changes, or --retry puts it back. That spends nothing by itself: the next `index` asks again, with
    the same request, so at temperature 0 a model may well answer the same. Replies that were paid for stay
    in the journal.

    \b
    Examples:
      graphrag-ray failures --root ./my-index --json
      graphrag-ray failures --root ./my-index --retry --stage extract --document "letters/*"
    """
    from graphrag_ray.cli import console
    from graphrag_ray.indexing.failures import Choice, failed_items, next_command, put_back

    if retry and snapshot is not None:
        raise UsageError("--retry is about the newest snapshot: leave --snapshot out")
    store = open_root(root, config, overrides)
    with naming_root(root):
        rows = failed_items(store, snapshot, Choice(stage, document, key))
    if retry:
        done, command = put_back(store, rows), next_command(store, root)
        if as_json:
            click.echo(console.as_json({**asdict(done), "next": command}))
        else:
            console.print_put_back(done.retried, done.before, done.anyway, command)
    elif as_json:
        click.echo(console.as_json(rows))
    else:
        console.print_failures(rows)
