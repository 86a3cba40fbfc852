"""`graphrag-ray gc`: remove old snapshots, and purge documents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import Given

if TYPE_CHECKING:
    from graphrag_ray.indexing.purge import CleanupResult
    from graphrag_ray.store.files import FileInfo

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_OTHERS = {
    "temporary": "unfinished files of killed processes",
    "locks": "released locks",
    "runs": "records of earlier runs",
    "damaged": "damaged parts",
}


class Age(click.ParamType[float]):
    """A duration such as 90s, 15m, 1h, 7d, 2w or 0, converted to seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])|0", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a duration such as 90s, 15m, 1h, 7d, 2w or 0", param, ctx)
        return float(match.group(1)) * _UNITS[match.group(2)] if match.group(1) else 0.0


@click.command(cls=Command)
@options.storage
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Snapshots to keep. Default: 3; with --purge, all without it.",
)
@click.option("--older-than", type=Age(), default="0", metavar="AGE", help="Also keep younger snapshots.")
@click.option(
    "--grace", type=Age(), default="1h", metavar="AGE", help="Grace period for readers. Default: 1h."
)
@click.option("--damaged", is_flag=True, help="Also remove damaged parts that a repair has set aside.")
@click.option(
    "--journal",
    is_flag=True,
    help="Also remove replies that the newest snapshot does not use, of former documents, prompts and "
    "models. If they are needed again, they cost again.",
)
@click.option(
    "--purge",
    multiple=True,
    metavar="DOCUMENT",
    help="Remove every trace of a document: its path relative to INPUT, or a glob; repeatable. Implies "
    "--journal, --damaged and --grace 0. Files outside the index stay (see --also).",
)
@click.option(
    "--also",
    multiple=True,
    metavar="DIR",
    help="Search a folder outside the index for text, ids and names of purged documents, and list the files; "
    "repeatable.",
)
@click.option("--delete", is_flag=True, help="Remove. Without this option, gc only lists.")
@options.as_json
def gc(
    given: Given,
    keep: int | None,
    older_than: float,
    grace: float,
    damaged: bool,
    journal: bool,
    purge: tuple[str, ...],
    also: tuple[str, ...],
    delete: bool,
    as_json: bool,
) -> None:
    """Remove old snapshots and data that no snapshot uses. Without --delete, only list it.

    A removed snapshot can no longer be opened, but its readers may continue for the grace period. The first
    `gc --delete` after that removes its data. Data of the newest snapshot is never removed, nor are model
    replies (see --journal).

    To purge a document, first delete it from INPUT and run `index`. A purge removes the snapshots that
    contain the document, and all replies that the newest snapshot does not use, since some may quote it. It
    does not reach evaluation folders and their pages, exports, reply caches (--cache), answers of batches,
    saved output, caches on other machines, and old object versions that the storage keeps. Before the purge,
    --also DIR lists the files in such a folder that contain text of the document.

    \b
    Examples:
      graphrag-ray gc --root ./my-index
      graphrag-ray gc --root ./my-index --keep 1 --older-than 7d --delete
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --also ./evaluation --also ./replies
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --delete
    """
    from graphrag_ray.indexing.purge import clean_up
    from graphrag_ray.store.gc import GcOptions

    store, _ = given.snapshot()
    policy = GcOptions(keep=keep, older_than_s=older_than, grace_s=grace, damaged=damaged)
    collected = clean_up(store, policy, purge=purge, search=also, journal=journal, delete=delete)
    if not as_json:
        _print_collected(collected)
        return
    plan = collected.plan
    console.print_json(
        {
            "deleted": collected.deleted,
            "snapshots": plan.snapshots,
            "kept": plan.kept,
            "parts": _by_table(plan.parts),
            "waiting": _by_table(plan.waiting),
            "waiting_until": _time(plan.waiting_until) if plan.waiting_until is not None else None,
            "others": {kind: {"files": len(i), "bytes": _bytes(i)} for kind, i in plan.others.items()},
            "journal": {
                name: {"items": t.items, "rows": t.rows, "unreadable_parts": len(t.damaged)}
                for name, t in collected.journal.items()
            },
            "documents": list(collected.documents),
            "elsewhere": dict(collected.traces),
            "writer": collected.writer,
        }
    )


def _print_collected(collected: CleanupResult) -> None:
    """Print what is removed, what has to wait, and what to do next."""
    from graphrag_ray.indexing.purge import NOT_PURGED

    out, plan = console.console_of().print, collected.plan
    if not collected.empty:
        out("Removed:" if collected.deleted else "Would be removed:")
        _print_removed(collected)
    elif not plan.waiting:
        out("Nothing to remove.")
    if plan.waiting:
        size = f"{plural(len(plan.waiting), 'part')}, {console.in_words(_bytes(plan.waiting))}"
        when = f" until {_time(plan.waiting_until)}" if plan.waiting_until is not None else ""
        out(
            f"{'Kept' if collected.deleted else 'To be kept'}{when}, since readers may still use "
            f"{'them' if len(plan.waiting) > 1 else 'it'}: {size}. Run gc again then, or with "
            "--grace 0 if there are no readers."
        )
    out(f"Kept: {_numbered(plan.kept)}")
    if collected.documents:
        if collected.traces:
            out("Check these files outside the index, and delete them yourself:")
        for url, what in collected.traces.items():
            out(f"  {url}: {what}")
        out(f"A purge does not reach data outside the index: {', '.join(NOT_PURGED)}.")
        if not collected.deleted:
            out("Search it with --also DIR before you purge: afterwards the index no longer has the text.")
    if collected.writer and not collected.deleted:
        out(f"The index is being written by {collected.writer}: --delete fails until it has finished.")
    if not collected.empty and not collected.deleted:
        out("Nothing was removed. Run it again with --delete to remove.")


def _print_removed(collected: CleanupResult) -> None:
    out, plan = console.console_of().print, collected.plan
    for path in collected.documents:
        out(f"  every trace of {path}")
    if plan.snapshots:
        out(f"  {_numbered(plan.snapshots)}")
    for table, totals in _by_table(plan.parts).items():
        out(f"  {table:<28}{plural(totals['parts'], 'part'):>12}  {console.in_words(totals['bytes']):>10}")
    for kind, infos in plan.others.items():
        if infos:
            out(f"  {_OTHERS[kind]}: {len(infos):,}, {console.in_words(_bytes(infos))}")
    for name, t in collected.journal.items():
        if t.items:
            out(f"  {plural(t.items, 'item')} ({plural(t.rows, 'row')}) of the journal of {name}")
        if t.damaged:
            out(f"  {plural(len(t.damaged), 'damaged part')} of the journal of {name}")


def _numbered(snapshots: Sequence[int]) -> str:
    """`snapshot 2`, `snapshots 2, 3`."""
    return f"{'snapshot' if len(snapshots) == 1 else 'snapshots'} {', '.join(map(str, snapshots))}"


def _by_table(infos: Sequence[FileInfo]) -> dict[str, dict[str, int]]:
    tables: dict[str, list[FileInfo]] = defaultdict(list)
    for info in infos:
        tables[info.path.split("/")[1]].append(info)
    return {name: {"parts": len(parts), "bytes": _bytes(parts)} for name, parts in sorted(tables.items())}


def _bytes(infos: Sequence[FileInfo]) -> int:
    return sum(info.bytes for info in infos)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
