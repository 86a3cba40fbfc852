"""Find damage to an index during a run, set it aside, and have its content rebuilt.

Before a run builds on the parent snapshot, one listing checks that all its parts exist with the recorded
sizes. The hash of a part is checked whenever it is read. All hashes are checked if the index is small or the
caller requests it. If a part turns out to be damaged during a run, the run restarts: finished work is in the
journal, and only steps that lack a part run again.

This module also compacts journals before they are first read, after each sweep, and after a commit. No table
depends on that.
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
from graphrag_ray.store.parts import REPAIR_ADVICE, Part
from graphrag_ray.store.snapshots import Manifest

MAX_VERIFIED_BYTES = 128 << 20  # Each run checks every byte of an index up to this size.
COMPACT = "compact"
MANY_PARTS = 256  # small parts from which a journal is compacted, because every process reads each of them
FEW_PARTS = 8  # the same after a commit, when nothing waits for it

_BATCH = 64  # parts per verification task
_MERGE_SCHEMA = pa.schema([("fewer", pa.int64()), ("damaged", pa.list_(pa.string()))])


def open_parent(run: Run, add: bool) -> Manifest | None:
    """Return the newest readable snapshot. Newer damaged ones are reported and set aside.

    Returns None if there is none or if it has an older format. All tables are then rebuilt from the journal.

    Raises:
        UsageError: There is no usable parent whose documents `add` could keep.
    """
    manifest, damaged = snapshots.latest_readable(run.store)
    if manifest is not None and manifest.format < snapshots.FORMAT:
        older = f"Snapshot {manifest.number} has an older format (graphrag-ray {manifest.version})"
        if add:
            raise UsageError(
                f"{older}, which --add cannot continue from. Index all documents together without --add. "
                "Stored model replies are reused."
            )
        run.observer.message(f"{older}: rebuilding all tables from the journal")
        return None
    if manifest is None and damaged and add:
        raise UsageError(
            f"{damaged[0]}, and there is no other snapshot, so --add cannot know what to keep. Index all "
            "documents together without --add. Stored model replies are reused."
        )
    plan = f"Continuing from snapshot {manifest.number}" if manifest else "Rebuilding all tables"
    for error in damaged:
        moved = snapshots.set_aside(run.store, error, check=run.check)
        suffix = "" if error.path == snapshots.HINT else f". {plan}, from the journal"
        run.observer.message(f"{error}. {_where(moved)}{suffix}")
    return manifest


def find_damage(run: Run, journals: Sequence[str], verify: bool) -> None:
    """Find damaged files that the run would build on, and set them aside. `verify` checks all bytes."""
    parts = needed_parts(run.parent) if run.parent else []
    mismatches = damaged_files.find_size_mismatches(run.store, parts) if parts else {}
    for path, problem in mismatches.items():
        _set_aside(run, path, f"{run.store.url_of(path)} {problem}")
    journal_parts = [info for name in journals for info in list_parts(run.store, name)]
    present = [part for part in parts if part.path not in mismatches]
    size = sum(p.bytes for p in present) + sum(info.bytes for info in journal_parts)
    if verify or size <= MAX_VERIFIED_BYTES:
        paths = [*(p.path for p in present), *(info.path for info in journal_parts)]
        if len(paths) <= _BATCH:
            damaged = damaged_files.find_damaged(run.store, paths)
        else:
            batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
            tables = run.executor.stream("verify", _verify, batches)
            damaged = [path for table in tables for path in table["path"].to_pylist()]
        for path in damaged:
            _set_aside_damaged(run, path)
        if verify and paths:
            n = len(damaged) + len(mismatches)
            result = f"{plural(n, 'file')} damaged" if n else "none is damaged"
            run.observer.message(f"Checked {plural(len(paths), 'file')} of the index byte by byte: {result}.")


def repair(run: Run, error: CorruptPart) -> None:
    """Set aside a part that turned out to be damaged. Raises the error if that was done before."""
    if not error.path or error.path in run.repaired_parts:
        raise error
    run.repaired_parts.add(error.path)
    _set_aside(run, error.path, str(error).removesuffix(f". {REPAIR_ADVICE}"))
    if error.path.startswith(f"{WORK}/"):
        # Each other unreadable part of this journal would restart the run once more.
        for path in JournalIndex.load(run.store, error.path.split("/")[1]).damaged:
            _set_aside_damaged(run, path)


def needed_parts(manifest: Manifest) -> list[Part]:
    """Return all parts of a snapshot's tables and of its steps' results, sorted by path."""
    steps = [Result.from_json(step) for step in manifest.steps.values()]
    groups = [group for step in steps for groups in step.tables.values() for group in groups]
    by_path = {part.path: part for parts in [*manifest.tables.values(), *groups] for part in parts}
    return [by_path[path] for path in sorted(by_path)]


def _set_aside_damaged(run: Run, path: str) -> None:
    _set_aside(run, path, f"{run.store.url_of(path)} is damaged")


def _set_aside(run: Run, path: str, problem: str) -> None:
    moved = damaged_files.set_aside(run.store, [path], check=run.check)
    if path.startswith(f"{WORK}/"):
        plan = "Models are called again when its content is needed"
    else:
        run.damaged.add(path)
        plan = "Its content is rebuilt from the journal"
    run.observer.message(f"{problem}. {_where(moved[0] if moved else None)}. {plan}")


def _where(moved: str | None) -> str:
    return f"Set aside as {moved}" if moved else "There is nothing to set aside"


def _verify(store: Store, paths: list[str]) -> Iterator[pa.Table]:
    yield pa.table({"path": pa.array(damaged_files.find_damaged(store, paths), pa.string())})


def compact(run: Run, journals: Sequence[str], min_parts: int) -> None:
    """Merge the small parts of journals that have at least this many. Only LockLost ends the run."""
    assert run.lock is not None
    try:
        jobs = [(n, parts) for n in journals for parts in compaction.find_mergeable(run.store, n, min_parts)]
        if not jobs:
            return
        with run.maintenance_task(COMPACT) as counts:
            counts["parts"] = counts["merged_into"] = sum(len(parts) for _, parts in jobs)
            for table in run.executor.stream(COMPACT, partial(_merge_parts, run.lock.epoch), jobs):
                for row in table.to_pylist():
                    counts["merged_into"] -= row["fewer"]
                    for path in row["damaged"]:
                        _set_aside_damaged(run, path)
    except LockLost:
        raise
    except (StoreError, ProcessDied) as e:
        run.observer.message(f"The journal was not compacted; the next run will do it: {e}")


def _merge_parts(epoch: int, store: Store, job: tuple[str, list[FileInfo]]) -> Iterator[pa.Table]:
    dialogue, parts = job
    damaged: list[str] = []
    fewer = compaction.merge_parts(
        store, dialogue, parts, partial(locks.check, store, epoch), lambda e: damaged.append(e.path)
    )
    yield pa.Table.from_pylist([{"fewer": fewer, "damaged": damaged}], schema=_MERGE_SCHEMA)
