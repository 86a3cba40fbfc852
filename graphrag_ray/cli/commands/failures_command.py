"""`graphrag-ray failures`: what has no result, and why; and putting it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import FAILURE_STAGES, JOURNALS
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, json_option, naming_root, reach_options

if TYPE_CHECKING:
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--retry", is_flag=True, help="Put the items back: the next `index` asks for them again.")
@click.option("--stage", type=click.Choice(FAILURE_STAGES), help="Only items of this stage.")
@click.option("--document", metavar="GLOB", help="Only items of documents whose path is like this.")
@click.option("--key", multiple=True, metavar="KEY", help="Only the item with this key, or its beginning.")
@click.option(
    "--show", metavar="KEY", help="Print the prompts and replies of the item with this key, or its beginning."
)
@json_option
def failures(
    given: Given,
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
    from graphrag_ray.indexing.failures import Choice, failed_items, next_command, put_back

    if show is not None and (retry or snapshot is not None):
        raise UsageError(
            "--show is about the newest snapshot, and changes nothing: leave --retry and --snapshot out"
        )
    if retry and snapshot is not None:
        raise UsageError("--retry is about the newest snapshot: leave --snapshot out")
    store = given.store()
    with naming_root(given.root):
        rows = failed_items(store, snapshot, Choice(stage, document, (*key, *filter(None, [show]))))
    if show is not None:
        _show(store, rows, show, as_json)
        return
    if retry:
        done, command = put_back(store, rows), next_command(store, given.root)
        if as_json:
            console.print_json({**asdict(done), "next": command})
            return
        out, again = console.console_of().print, done.retried + done.before
        if not again + done.anyway:
            out("No failed items.")
            return
        if again:
            before = f" ({done.before:,} had been put back before)" if done.before else ""
            out(f"{plural(again, 'item')} put back{before}: the next run asks for them again.")
        if done.anyway:
            out(f"{done.anyway:,} that every run tries again by itself.")
        out(f"\nRun: {command}", soft_wrap=True)
    elif as_json:
        console.print_json(rows)
    else:
        _print_failures(rows)


def _show(store: Store, rows: Sequence[Mapping[str, Any]], key: str, as_json: bool) -> None:
    """Prompts and replies of one failed item."""
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
        console.print_json({**row, "turns": [asdict(turn) for turn in turns]})
        return
    out = console.console_of()
    _print_failures([row])
    if not any(turn.messages for turn in turns):
        out.print("\nThe prompt cannot be rebuilt: settings, prompts or the program have changed since.")
    for turn in turns:
        said = [(f"{turn.prompt}: {role}", text) for role, text in turn.messages]
        if turn.reply is not None:
            said.append((f"{turn.prompt}: reply", turn.reply))
        if turn.error:
            said.append(("error", turn.error))
        for heading, text in said:
            out.print(f"\n{heading}", style="bold")
            out.print(text)


def _print_failures(rows: Sequence[Mapping[str, Any]]) -> None:
    out = console.console_of()
    if not rows:
        out.print("No failed items.")
        return
    for r in rows:
        item, document = r["item"], r["document"]
        if document and item != document:
            item = f"{'row ' if r['stage'] == 'read' else ''}{item} in {document}"
        if r["kind"] == "transient":
            again = "the next run tries again"
        elif r["stage"] == "read":
            again = "fails again until the file changes"
        else:
            again = "not tried again until its text, prompt or model changes, or --retry puts it back"
        when = f", {r['first_at']} to {r['last_at']}" if r["last_at"] else ""
        out.print(f"{r['stage']}: {item}", style="bold")
        out.print(f"  {r['error']}")
        out.print(f"  {plural(r['attempts'], 'attempt')}{when}; {again}")
    out.print(f"\n{plural(len(rows), 'failed item')}")
