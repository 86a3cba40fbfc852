"""`graphrag-ray failures`: what has no result, and why; and putting it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import FAILING, JOURNALS
from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.options import json_option, naming_root, open_root, reach_options
from graphrag_ray.cli.program import Command, root_option

if TYPE_CHECKING:
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--retry", is_flag=True, help="Put the items back: the next `index` asks for them again.")
@click.option("--stage", type=click.Choice(FAILING), help="Only items of this stage.")
@click.option("--document", metavar="GLOB", help="Only items of documents whose path is like this.")
@click.option("--key", multiple=True, metavar="KEY", help="Only the item with this key, or its beginning.")
@click.option(
    "--show", metavar="KEY", help="Print the prompts and replies of the item with this key, or its beginning."
)
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
    show: str | None,
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
      graphrag-ray failures --root ./my-index --show 3f9a
      graphrag-ray failures --root ./my-index --retry --stage extract --document "letters/*"
    """
    from graphrag_ray.cli import console
    from graphrag_ray.indexing.failures import Choice, failed_items, next_command, put_back

    if show is not None and (retry or snapshot is not None):
        raise UsageError(
            "--show is about the newest snapshot, and changes nothing: leave --retry and --snapshot out"
        )
    if retry and snapshot is not None:
        raise UsageError("--retry is about the newest snapshot: leave --snapshot out")
    store = open_root(root, config, overrides)
    with naming_root(root):
        rows = failed_items(store, snapshot, Choice(stage, document, (*key, *filter(None, [show]))))
    if show is not None:
        _show(store, rows, show, as_json)
        return
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


def _show(store: Store, rows: Sequence[Mapping[str, Any]], key: str, as_json: bool) -> None:
    """Prompts and replies of one failed item."""
    from graphrag_ray.cli import console
    from graphrag_ray.cli.safe import console_of
    from graphrag_ray.indexing.replay import conversation

    found = {row["key"]: row for row in rows if row["stage"] in JOURNALS}
    if len(found) != 1:
        raise UsageError(
            f"{len(found)} failed items with a key that begins with {key!r}; one is needed. "
            "`failures --json` lists the keys (a file that cannot be read has none)"
        )
    ((whole, row),) = found.items()
    turns = conversation(store, row["stage"], whole)
    if as_json:
        click.echo(console.as_json({**row, "turns": [asdict(turn) for turn in turns]}))
        return
    out = console_of()
    console.print_failures([row])
    if not any(turn.messages for turn in turns):
        out.print("\nThe prompt cannot be rebuilt: settings, prompts or the program have changed since.")
    for turn in turns:
        for role, text in turn.messages:
            out.print(f"\n{turn.prompt}: {role}", style="bold")
            out.print(text)
        if turn.reply is not None:
            out.print(f"\n{turn.prompt}: reply", style="bold")
            out.print(turn.reply)
        if turn.error:
            out.print("\nerror", style="bold")
            out.print(turn.error)
