"""Damage to an index, as a run meets it: found, named, set aside, and what it held made anew.

What a run builds on is looked over before: every part that the parent snapshot names must be there with its
size (one listing). Hashes are checked whenever a part is read, of all parts where they are few or where the
caller wants it. A part that turns out to be damaged in the middle of a run sends it back to its beginning:
what is done is in the journal, and only steps that lack a part are done again.

Journals of a run are kept to few parts, as a step that no table depends on: before they are first read, after
each sweep, and when a snapshot is committed. On Ray it is done by tasks, each with parts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from graphrag_ray.base.errors import CorruptPart, LockLost, ProcessDied, StoreError, UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store import compaction, damaged_files, locks, snapshots
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.journal import WORK, JournalIndex, list_parts
from graphrag_ray.store.parts import MEND, Part
from graphrag_ray.store.snapshots import Manifest

VERIFIED_BYTES = 128 << 20
"""Every byte of an index up to this size is checked by each run: a fraction of a second."""
COMPACT = "compact"
MANY = 256
"""Small parts from which on a journal is compacted before it is read: every process of a run reads each."""
FEW = 8
"""The same at the end of a run, when nobody waits for it."""

_AT_ONCE = 64
"""Parts that are verified by one call of a table function."""
_MERGED = pa.schema([("fewer", pa.int64()), ("damaged", pa.list_(pa.string()))])


def parent_of(run: Run, add: bool) -> Manifest | None:
    """The newest snapshot that can be read. Damaged ones above it are named and set aside. One of an older
    format is none to continue from: every table is made anew, from the journal.

    Raises UsageError where none is left and `--add` wants what it held to be kept; StoreError.
    """
    found, damaged = snapshots.readable(run.store)
    if found is not None and found.format < snapshots.FORMAT:
        older = f"snapshot {found.number} was written by an older graphrag-ray (version {found.version})"
        if add:
            raise UsageError(
                f"{older}, which --add cannot continue from. Index all documents together, without --add; "
                "what the model answered is kept"
            )
        run.observer.note(f"{older}: every table is made anew, from the journal")
        return None
    if found is None and damaged and add:
        raise UsageError(
            f"{damaged[0]}, and there is no other snapshot: what --add is to keep is not known. Index all "
            "documents together, without --add; what the model answered is kept"
        )
    instead = f"continuing from snapshot {found.number}" if found else "every table is made anew"
    for error in damaged:
        moved = snapshots.set_aside(run.store, error, check=run.check)
        what_now = "" if error.path == snapshots.HINT else f"; {instead}, from the journal"
        run.observer.note(f"{error}. {_where(moved)}{what_now}")
    return found


def look_over(run: Run, journals: Sequence[str], everything: bool) -> None:
    """Find damage to what the run builds on, and set it aside. everything: check every byte, however many.

    Raises StoreError, LockLost.
    """
    parts = needed(run.parent) if run.parent else []
    wrong = damaged_files.differing(run.store, parts) if parts else {}
    for path, what in wrong.items():
        _put_aside(run, path, f"{run.store.url_of(path)} {what}")
    logs = [info for name in journals for info in list_parts(run.store, name)]
    whole = [part for part in parts if part.path not in wrong]
    if everything or sum(p.bytes for p in whole) + sum(info.bytes for info in logs) <= VERIFIED_BYTES:
        paths = [*(p.path for p in whole), *(info.path for info in logs)]
        if len(paths) <= _AT_ONCE:
            unsound = damaged_files.unsound(run.store, paths)
        else:
            batches = [paths[at : at + _AT_ONCE] for at in range(0, len(paths), _AT_ONCE)]
            tables = run.executor.stream("verify", _verify, batches)
            unsound = [path for table in tables for path in table["path"].to_pylist()]
        for path in unsound:
            _put_aside(run, path, f"{run.store.url_of(path)} is damaged")
        if everything and paths:
            n = len(unsound) + len(wrong)
            told = f"{plural(n, 'file')} damaged" if n else "none is damaged"
            run.observer.note(f"{plural(len(paths), 'file')} of the index checked byte by byte: {told}.")


def put_right(run: Run, error: CorruptPart) -> None:
    """Set aside a part that was found to be damaged in the middle of a run, which has to begin again then.

    Raises the error where that was done before with the same part, and did not help.
    """
    if not error.path or error.path in run.put_right:
        raise error
    run.put_right.add(error.path)
    _put_aside(run, error.path, str(error).removesuffix(f". {MEND}"))
    if error.path.startswith(f"{WORK}/"):
        # What else of this journal cannot be read would send the run back once more for each part.
        for path in JournalIndex.load(run.store, error.path.split("/")[1]).damaged:
            _put_aside(run, path, f"{run.store.url_of(path)} is damaged")


def needed(manifest: Manifest) -> list[Part]:
    """All parts that a snapshot's tables and its steps' results are made of."""
    steps = [Result.from_json(step) for step in manifest.steps.values()]
    groups = [group for step in steps for of in step.tables.values() for group in of]
    found = {part.path: part for parts in [*manifest.tables.values(), *groups] for part in parts}
    return [found[path] for path in sorted(found)]


def _put_aside(run: Run, path: str, what: str) -> None:
    moved = damaged_files.set_aside(run.store, [path], check=run.check)
    if path.startswith(f"{WORK}/"):
        what_now = "What it held is asked again when it is needed"
    else:
        run.damaged.add(path)
        what_now = "What it held is made anew, from the journal"
    run.observer.note(f"{what}. {_where(moved[0] if moved else None)}. {what_now}")


def _where(moved: str | None) -> str:
    return f"Set aside as {moved}" if moved else "There is nothing to set aside"


def _verify(store: Store, paths: list[str]) -> Iterator[pa.Table]:
    yield pa.table({"path": pa.array(damaged_files.unsound(store, paths), pa.string())})


def compact(run: Run, journals: Sequence[str], at_least: int) -> None:
    """Merge the small parts of those journals that have as many. For a run that holds its lock.

    What fails is a note: the parts stand as they were. Raises LockLost.
    """
    assert run.lock is not None
    try:
        found = [(n, parts) for n in journals for parts in compaction.due(run.store, n, at_least)]
        if not found:
            return
        with run.chore(COMPACT) as counts:
            counts["parts"] = counts["merged_into"] = sum(len(parts) for _, parts in found)
            for table in run.executor.stream(COMPACT, partial(_merge_parts, run.lock.epoch), found):
                for row in table.to_pylist():
                    counts["merged_into"] -= row["fewer"]
                    for path in row["damaged"]:
                        _put_aside(run, path, f"{run.store.url_of(path)} is damaged")
    except LockLost:
        raise
    except (StoreError, ProcessDied) as e:
        run.observer.note(f"The journal was not tidied up; the next run will: {e}")


def _merge_parts(epoch: int, store: Store, found: tuple[str, list[FileInfo]]) -> Iterator[pa.Table]:
    dialogue, parts = found
    damaged: list[str] = []
    fewer = compaction.merge_parts(
        store, dialogue, parts, partial(locks.check, store, epoch), lambda e: damaged.append(e.path)
    )
    yield pa.Table.from_pylist([{"fewer": fewer, "damaged": damaged}], schema=_MERGED)
