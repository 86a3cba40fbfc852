"""What people see of `gc`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from graphrag_ray.base.wording import plural
from graphrag_ray.cli.byte_sizes import in_words
from graphrag_ray.cli.safe import console_of

if TYPE_CHECKING:
    from graphrag_ray.indexing.purge import Collected
    from graphrag_ray.store.files import FileInfo

OTHERS = {
    "temporary": "unfinished files of killed writes",
    "locks": "files of finished locks",
    "runs": "records of earlier runs",
    "damaged": "damaged parts that were set aside",
}


def print_collected(found: Collected) -> None:
    """What goes or went, what has to wait, and what to do next."""
    out, plan = console_of(), found.plan
    if found.empty and not plan.waiting:
        out.print("Nothing to remove.")
    if not found.empty:
        out.print("Removed:" if found.deleted else "Would be removed:")
        _print_what_goes(out, found)
    if plan.waiting:
        size = f"{plural(len(plan.waiting), 'part')}, {in_words(_bytes(plan.waiting))}"
        when = f" until {_time(plan.until)}" if plan.until is not None else ""
        out.print(
            f"{'Kept' if found.deleted else 'To be kept'}{when}, since somebody may still need "
            f"{'them' if len(plan.waiting) > 1 else 'it'}: {size}. Run gc again then, or "
            "with --grace 0 if nobody does.",
        )
    out.print(f"Kept: {_numbered(plan.kept)}")
    if found.documents:
        _print_elsewhere(out, found)
    if found.deleted:
        return
    if found.writer:
        out.print(f"The index is being written by {found.writer}: --delete waits for its end.")
    if not found.empty:
        out.print("Nothing was removed. --delete does it.")


def as_dict(found: Collected) -> dict[str, Any]:
    """Plain values for scripts."""
    plan = found.plan
    return {
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


def _print_what_goes(out: Console, found: Collected) -> None:
    plan = found.plan
    for path in found.documents:
        out.print(f"  every trace of {path}")
    if plan.snapshots:
        out.print(f"  {_numbered(plan.snapshots)}")
    for table, held in _by_table(plan.parts).items():
        out.print(f"  {table:<28}{plural(held['parts'], 'part'):>12}  {in_words(held['bytes']):>10}")
    for kind, infos in plan.others.items():
        if infos:
            out.print(f"  {OTHERS[kind]}: {len(infos):,}, {in_words(_bytes(infos))}")
    for name, t in found.journal.items():
        if t.items:
            out.print(f"  {plural(t.items, 'item')} ({plural(t.rows, 'row')}) of the journal of {name}")
        if t.unreadable:
            out.print(f"  {plural(len(t.unreadable), 'damaged part')} of the journal of {name}")


def _print_elsewhere(out: Console, found: Collected) -> None:
    """What a purge does not touch, and what a search of it found."""
    from graphrag_ray.indexing.purge import ELSEWHERE

    if found.elsewhere:
        out.print("Look at these files outside the index, and delete them yourself:")
    for url, what in found.elsewhere.items():
        out.print(f"  {url}: {what}")
    out.print(f"A purge does not reach what is outside the index: {', '.join(ELSEWHERE)}.")
    if not found.deleted:
        out.print(
            "Search these first: --also DIR names the files. Once purged, no text is left to search for."
        )


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
