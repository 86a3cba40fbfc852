"""`graphrag-ray failures`: list failed items, and retry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import FAILURE_NAMES, JOURNALS
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.store.files import Store


@click.command(cls=Command)
@options.storage
@options.snapshot
@click.option("--retry", is_flag=True, help="Reset the items so that the next `index` retries them.")
@click.option("--stage", type=click.Choice(FAILURE_NAMES), help="Only items of this stage.")
@click.option("--document", metavar="GLOB", help="Only items of documents with a matching path.")
@click.option("--key", multiple=True, metavar="KEY", help="Only items whose key starts with KEY; repeatable.")
@click.option(
    "--show", metavar="KEY", help="Print the prompts and replies of the item whose key starts with KEY."
)
@options.as_json
def failures(
    opts: IndexOptions,
    snapshot: int | None,
    retry: bool,
    stage: str | None,
    document: str | None,
    key: tuple[str, ...],
    show: str | None,
    as_json: bool,
) -> None:
    """List every item of the last run that has no result: what failed, in which document, and why.

    Every run retries transient failures. Permanent failures are retried only after their text, prompt or
    model has changed, or after --retry has reset them. --retry itself costs nothing: the next `index` sends
    the same request again, so at temperature 0 the model may well give the same reply. Replies already paid
    for stay in the journal.

    \b
    Examples:
      graphrag-ray failures --root ./my-index --json
      graphrag-ray failures --root ./my-index --show 3f9a
      graphrag-ray failures --root ./my-index --retry --stage extract --document "letters/*"
    """
    from graphrag_ray.indexing.failures import FailureFilter, failed_items, next_command, retry_items

    if show is not None and (retry or snapshot is not None):
        raise UsageError("--show reads the newest snapshot and cannot be combined with --retry or --snapshot")
    if retry and snapshot is not None:
        raise UsageError("--retry applies to the newest snapshot and cannot be combined with --snapshot")
    store = opts.store()
    with options.naming_root(opts.root):
        rows = failed_items(store, snapshot, FailureFilter(stage, document, (*key, *filter(None, [show]))))
    if show is not None:
        _show(store, rows, show, as_json)
        return
    if retry:
        done, command = retry_items(store, rows), next_command(store, opts.root)
        if as_json:
            console.print_json({**asdict(done), "next": command})
            return
        out, reset = console.make_console().print, done.retried + done.before
        if not reset + done.anyway:
            out("No failed items.")
            return
        if reset:
            before = f" ({done.before:,} of them earlier)" if done.before else ""
            out(f"{plural(reset, 'item')} reset{before}. The next run retries these items.")
        if done.anyway:
            out(f"{plural(done.anyway, 'transient failure')}; every run retries transient failures.")
        out(f"\nRun: {command}", soft_wrap=True)
    elif as_json:
        console.print_json(rows)
    else:
        _print_failures(rows)


def _show(store: Store, rows: Sequence[Mapping[str, Any]], key: str, as_json: bool) -> None:
    """Print the prompts and replies of one failed item."""
    from graphrag_ray.indexing.replay import failed_item_turns

    matches = {row["key"]: row for row in rows if row["stage"] in JOURNALS}
    if len(matches) != 1:
        raise UsageError(
            f"The key {key!r} matches {plural(len(matches), 'failed item')}, not exactly one; "
            "`failures --json` lists the keys (unreadable files have none)."
        )
    ((full_key, row),) = matches.items()
    turns = failed_item_turns(store, row["stage"], full_key)
    if as_json:
        console.print_json({**row, "turns": [asdict(turn) for turn in turns]})
        return
    out = console.make_console()
    _print_failures([row])
    if not any(turn.messages for turn in turns):
        out.print("\nThe prompt cannot be rebuilt: settings, prompts or the version have since changed.")
    for turn in turns:
        texts = [(f"{turn.prompt}: {role}", text) for role, text in turn.messages]
        if turn.reply is not None:
            texts.append((f"{turn.prompt}: reply", turn.reply))
        if turn.error:
            texts.append(("error", turn.error))
        for heading, text in texts:
            out.print(f"\n{heading}", style="bold")
            out.print(text)


def _print_failures(rows: Sequence[Mapping[str, Any]]) -> None:
    out = console.make_console()
    if not rows:
        out.print("No failed items.")
        return
    for r in rows:
        item, document = r["item"], r["document"]
        if document and item != document:
            item = f"{'row ' if r['stage'] == 'read' else ''}{item} in {document}"
        if r["kind"] == "transient":
            retry_note = "the next run retries it"
        elif r["stage"] == "read":
            retry_note = "fails until the file changes"
        else:
            retry_note = "not retried until its text, prompt or model changes or --retry resets it"
        when = f", {r['first_at']} to {r['last_at']}" if r["last_at"] else ""
        out.print(f"{r['stage']}: {item}", style="bold")
        out.print(f"  {r['error']}")
        out.print(f"  {plural(r['attempts'], 'attempt')}{when}; {retry_note}")
    out.print(f"\n{plural(len(rows), 'failed item')}")
