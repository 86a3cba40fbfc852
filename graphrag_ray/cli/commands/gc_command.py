"""`graphrag-ray gc`: remove what no kept snapshot needs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, json_option, reach_options

if TYPE_CHECKING:
    from graphrag_ray.indexing.purge import Collected
    from graphrag_ray.store.files import FileInfo

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
OTHERS = {
    "temporary": "unfinished files of killed writes",
    "locks": "files of finished locks",
    "runs": "records of earlier runs",
    "damaged": "damaged parts that were set aside",
}


class Age(click.ParamType[float]):
    """A time span: 90s, 15m, 1h, 7d, 2w, or 0; becomes seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])|0", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a time such as 90s, 15m, 1h, 7d, 2w or 0", param, ctx)
        return float(match.group(1)) * _UNITS[match.group(2)] if match.group(1) else 0.0


@click.command(cls=Command)
@root_option
@reach_options
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the newest N snapshots; default: 3, and with --purge all that do not hold the document.",
)
@click.option("--older-than", type=Age(), default="0", metavar="AGE", help="Keep younger snapshots, too.")
@click.option(
    "--grace",
    type=Age(),
    default="1h",
    show_default=True,
    metavar="AGE",
    help="How long whoever reads a removed snapshot may go on; 0: not at all.",
)
@click.option("--damaged", is_flag=True, help="Also remove damaged parts that were set aside.")
@click.option(
    "--journal",
    is_flag=True,
    help="Also remove replies that the newest snapshot does not use: of documents, prompts and models that "
    "are no more. They were paid for, and are paid for again where they are wanted again.",
)
@click.option(
    "--purge",
    multiple=True,
    metavar="DOCUMENT",
    help="Remove every trace of a document, named by its path below INPUT, or of those a glob names. Implies "
    "--journal, --damaged and no grace. What is outside the index stays (see --also).",
)
@click.option(
    "--also",
    multiple=True,
    metavar="DIR",
    help="Search a folder outside the index for text, ids and names of the purged documents, and name the "
    "files; may be repeated.",
)
@click.option("--delete", is_flag=True, help="Do it. Without this nothing is removed, only told.")
@json_option
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
    """Remove old snapshots and what nothing needs any more. Without --delete it only tells what would go.

    A snapshot that is removed cannot be opened any more, but whoever reads it may go on for the grace
    period: what it held goes with the first `gc --delete` after that. What the newest snapshot needs
    never goes, nor do replies of models (see --journal).

    A document is purged after it was deleted from INPUT and `index` was run. Snapshots that hold it go,
    and all replies that the newest snapshot does not use, since some may quote it. A purge does not reach
    evaluation folders and their pages, exports and what was made from them, caches of replies (--cache),
    answers of batches, saved output, caches of other machines, and old versions of objects where storage
    keeps them. Before you purge, --also DIR tells which files of such a folder hold text of the document.

    \b
    Examples:
      graphrag-ray gc --root ./my-index
      graphrag-ray gc --root ./my-index --keep 1 --older-than 7d --delete
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --also ./evaluation --also ./replies
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --delete
    """
    from graphrag_ray.indexing.purge import collect
    from graphrag_ray.store.gc import Options

    store, _ = given.snapshot()
    options = Options(keep=keep, older_than_s=older_than, grace_s=grace, damaged=damaged)
    found = collect(store, options, purge=purge, also=also, journal=journal, delete=delete)
    if not as_json:
        _print_collected(found)
        return
    plan = found.plan
    console.print_json(
        {
            "deleted": found.deleted,
            "snapshots": plan.snapshots,
            "kept": plan.kept,
            "parts": _by_table(plan.parts),
            "waiting": _by_table(plan.waiting),
            "waiting_until": _time(plan.until) if plan.until is not None else None,
            "others": {kind: {"files": len(i), "bytes": _bytes(i)} for kind, i in plan.others.items()},
            "journal": {
                name: {"items": t.items, "rows": t.rows, "unreadable_parts": len(t.unreadable)}
                for name, t in found.journal.items()
            },
            "documents": list(found.documents),
            "elsewhere": dict(found.elsewhere),
            "writer": found.writer,
        }
    )


def _print_collected(found: Collected) -> None:
    """What goes or went, what has to wait, and what to do next."""
    from graphrag_ray.indexing.purge import ELSEWHERE

    out, plan = console.console_of().print, found.plan
    if not found.empty:
        out("Removed:" if found.deleted else "Would be removed:")
        _print_what_goes(found)
    elif not plan.waiting:
        out("Nothing to remove.")
    if plan.waiting:
        size = f"{plural(len(plan.waiting), 'part')}, {console.in_words(_bytes(plan.waiting))}"
        when = f" until {_time(plan.until)}" if plan.until is not None else ""
        out(
            f"{'Kept' if found.deleted else 'To be kept'}{when}, since somebody may still need "
            f"{'them' if len(plan.waiting) > 1 else 'it'}: {size}. Run gc again then, or "
            "with --grace 0 if nobody does."
        )
    out(f"Kept: {_numbered(plan.kept)}")
    if found.documents:
        if found.elsewhere:
            out("Look at these files outside the index, and delete them yourself:")
        for url, what in found.elsewhere.items():
            out(f"  {url}: {what}")
        out(f"A purge does not reach what is outside the index: {', '.join(ELSEWHERE)}.")
        if not found.deleted:
            out("Search these first: --also DIR names the files. Once purged, no text is left to search for.")
    if found.writer and not found.deleted:
        out(f"The index is being written by {found.writer}: --delete waits for its end.")
    if not found.empty and not found.deleted:
        out("Nothing was removed. --delete does it.")


def _print_what_goes(found: Collected) -> None:
    out, plan = console.console_of().print, found.plan
    for path in found.documents:
        out(f"  every trace of {path}")
    if plan.snapshots:
        out(f"  {_numbered(plan.snapshots)}")
    for table, held in _by_table(plan.parts).items():
        out(f"  {table:<28}{plural(held['parts'], 'part'):>12}  {console.in_words(held['bytes']):>10}")
    for kind, infos in plan.others.items():
        if infos:
            out(f"  {OTHERS[kind]}: {len(infos):,}, {console.in_words(_bytes(infos))}")
    for name, t in found.journal.items():
        if t.items:
            out(f"  {plural(t.items, 'item')} ({plural(t.rows, 'row')}) of the journal of {name}")
        if t.unreadable:
            out(f"  {plural(len(t.unreadable), 'damaged part')} of the journal of {name}")


def _numbered(snapshots: Sequence[int]) -> str:
    """`snapshot 2`, `snapshots 2, 3`."""
    return f"{'snapshot' if len(snapshots) == 1 else 'snapshots'} {', '.join(map(str, snapshots))}"


def _by_table(infos: Sequence[FileInfo]) -> dict[str, dict[str, int]]:
    tables: dict[str, list[FileInfo]] = defaultdict(list)
    for info in infos:
        tables[info.path.split("/")[1]].append(info)
    return {name: {"parts": len(held), "bytes": _bytes(held)} for name, held in sorted(tables.items())}


def _bytes(infos: Sequence[FileInfo]) -> int:
    return sum(info.bytes for info in infos)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
