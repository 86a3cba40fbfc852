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
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.indexing.purge import CleanupResult
    from graphrag_ray.store.files import FileInfo

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_OTHER_FILES = {
    "temporary": "unfinished files of killed processes",
    "locks": "released locks",
    "runs": "run records that are no longer needed",
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
    help="Number of newest snapshots to keep. Default: 3; with --purge, all without the document.",
)
@click.option(
    "--older-than", type=Age(), default="0", metavar="AGE", help="Only remove snapshots at least this old."
)
@click.option(
    "--grace", type=Age(), default="1h", metavar="AGE", help="Time for readers to finish. Default: 1h."
)
@click.option("--damaged", is_flag=True, help="Also remove damaged parts that a repair set aside.")
@click.option(
    "--journal",
    is_flag=True,
    help="Also remove model replies that the newest snapshot does not use, such as those for deleted "
    "documents or old prompts. If they are needed again, you pay for them again.",
)
@click.option(
    "--purge",
    multiple=True,
    metavar="DOCUMENT",
    help="Remove a document (path relative to INPUT, or a glob) and everything derived from it from the "
    "index; repeatable. Implies --journal, --damaged and --grace 0. Does not change files outside the "
    "index (see --also).",
)
@click.option(
    "--also",
    multiple=True,
    metavar="DIR",
    help="With --purge: list the files in a folder outside the index that quote or name a purged document; "
    "repeatable.",
)
@click.option("--delete", is_flag=True, help="Delete the files. Without this option, gc only lists them.")
@options.as_json
def gc(
    opts: IndexOptions,
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
    """Remove old snapshots and files that no snapshot uses. Without --delete, only list them.

    A removed snapshot can no longer be opened, but readers that have it open may continue for the grace
    period. The first `gc --delete` after the grace period deletes its files. Files of the newest snapshot are
    never removed. Model replies are kept unless you pass --journal or --purge.

    To purge a document, first delete it from INPUT and run `index`. A purge removes all snapshots that
    contain the document, and all replies that the newest snapshot does not use, because they may quote it. It
    does not change evaluation folders and pages, exports and reports made from them, reply caches (--cache),
    batch answers and their folders, saved output and logs, caches on other machines, or old versions in
    versioned storage. Before you purge, pass --also DIR to list the files in such a folder that quote or name
    the document.

    \b
    Examples:
      graphrag-ray gc --root ./my-index
      graphrag-ray gc --root ./my-index --keep 1 --older-than 7d --delete
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --also ./evaluation --also ./replies
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --delete
    """
    from graphrag_ray.indexing.purge import clean_up
    from graphrag_ray.store.gc import GcOptions

    store, _ = opts.snapshot()
    policy = GcOptions(keep=keep, older_than_s=older_than, grace_s=grace, damaged=damaged)
    result = clean_up(store, policy, purge=purge, search_paths=also, journal=journal, delete=delete)
    if not as_json:
        _print_result(result, searched=bool(also))
        return
    plan = result.plan
    console.print_json(
        {
            "deleted": result.deleted,
            "snapshots": plan.snapshots,
            "kept": plan.kept,
            "parts": _by_table(plan.parts),
            "waiting": _by_table(plan.waiting),
            "waiting_until": _time(plan.waiting_until) if plan.waiting_until is not None else None,
            "others": {kind: {"files": len(i), "bytes": _bytes(i)} for kind, i in plan.others.items()},
            "journal": {
                name: {"items": t.items, "rows": t.rows, "unreadable_parts": len(t.damaged)}
                for name, t in result.journal.items()
            },
            "documents": list(result.documents),
            "elsewhere": dict(result.traces),
            "writer": result.writer,
        }
    )


def _print_result(result: CleanupResult, searched: bool) -> None:
    """Print the removed and pending files, and the next steps. searched: whether --also was passed."""
    from graphrag_ray.indexing.purge import NOT_PURGED

    out, plan = console.make_console().print, result.plan
    if not result.empty:
        out("Removed:" if result.deleted else "Would be removed:")
        _print_removed(result)
    elif not plan.waiting:
        out("Nothing to remove.")
    if plan.waiting:
        until = _time(plan.waiting_until) if plan.waiting_until is not None else "the end of the grace period"
        size = f"{plural(len(plan.waiting), 'part')}, {console.format_bytes(_bytes(plan.waiting))}"
        out(
            f"Kept until {until}: {size}, which may still be in use. Run gc again after that, or with "
            "--grace 0 if nothing is using the index."
        )
    out(f"Kept: {_numbered(plan.kept)}")
    if result.documents:
        if result.traces:
            out("Check these files outside the index, and delete them yourself:")
        for url, trace in result.traces.items():
            out(f"  {url}: {trace}")
        out(f"A purge does not change data outside the index: {', '.join(NOT_PURGED)}.")
        if not result.deleted and not searched:
            out("To find copies there, pass --also DIR before you purge: later, the index lacks the text.")
    if result.writer and not result.deleted:
        out(f"The index is being written by {result.writer}. --delete fails until that has finished.")
    if not result.empty and not result.deleted:
        out("Dry run: nothing was removed. Run the command again with --delete.")


def _print_removed(result: CleanupResult) -> None:
    out, plan = console.make_console().print, result.plan
    for path in result.documents:
        out(f"  everything derived from {path}")
    if plan.snapshots:
        out(f"  {_numbered(plan.snapshots)}")
    for table, totals in _by_table(plan.parts).items():
        size = console.format_bytes(totals["bytes"])
        out(f"  {table:<28}{plural(totals['parts'], 'part'):>12}  {size:>10}")
    for kind, infos in plan.others.items():
        if infos:
            out(f"  {_OTHER_FILES[kind]}: {len(infos):,}, {console.format_bytes(_bytes(infos))}")
    for name, t in result.journal.items():
        if t.items:
            out(f"  {plural(t.items, 'item')} ({plural(t.rows, 'row')}) of the journal of {name}")
        if t.damaged:
            out(f"  {plural(len(t.damaged), 'damaged part')} of the journal of {name}")


def _numbered(snapshots: Sequence[int]) -> str:
    """Format snapshot numbers: `snapshot 2`, `snapshots 2, 3`."""
    return f"{'snapshot' if len(snapshots) == 1 else 'snapshots'} {', '.join(map(str, snapshots))}"


def _by_table(infos: Sequence[FileInfo]) -> dict[str, dict[str, int]]:
    tables: dict[str, list[FileInfo]] = defaultdict(list)
    for info in infos:
        tables[info.path.split("/")[1]].append(info)
    return {name: {"parts": len(parts), "bytes": _bytes(parts)} for name, parts in sorted(tables.items())}


def _bytes(infos: Sequence[FileInfo]) -> int:
    return sum(info.bytes for info in infos)


def _time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
