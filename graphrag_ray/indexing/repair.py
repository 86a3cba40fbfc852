"""Find damage to an index during a run, set it aside, and have its content rebuilt.

Before a run builds on the parent snapshot, one listing checks that every part named there exists with its
size. Hashes are checked whenever a part is read; those of all parts if they are few or the caller asks for
it. A part that proves damaged during a run restarts the run: finished work is in the journal, and only steps
that lack a part run again.

Journals are compacted before they are first read, after each sweep, and after a commit, as a step that no
table depends on; on Ray by tasks with separate parts.
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

VERIFIED_BYTES = 128 << 20  # Each run checks every byte of an index up to this size.
COMPACT = "compact"
MANY = 256  # small parts from which a journal is compacted before it is read, since every process reads each
FEW = 8  # the same at the end of a run, when nobody waits

_BATCH = 64  # parts per verification task
_MERGED = pa.schema([("fewer", pa.int64()), ("damaged", pa.list_(pa.string()))])


def parent_of(run: Run, add: bool) -> Manifest | None:
    """The newest readable snapshot. Newer damaged ones are reported and set aside.

    None without one, or if it has an older format: then all tables are rebuilt from the journal.

    Raises:
        UsageError: There is no parent, so `--add` cannot keep its documents.
    """
    manifest, damaged = snapshots.latest_readable(run.store)
    if manifest is not None and manifest.format < snapshots.FORMAT:
        older = f"Snapshot {manifest.number} has an older format, of graphrag-ray {manifest.version}"
        if add:
            raise UsageError(
                f"{older}, which --add cannot continue from. Index all documents together without --add; "
                "model replies are kept."
            )
        run.observer.message(f"{older}: rebuilding all tables from the journal")
        return None
    if manifest is None and damaged and add:
        raise UsageError(
            f"{damaged[0]}, and there is no other snapshot, so --add cannot know what to keep. Index all "
            "documents together without --add; model replies are kept."
        )
    plan = f"Continuing from snapshot {manifest.number}" if manifest else "Rebuilding all tables"
    for error in damaged:
        moved = snapshots.set_aside(run.store, error, check=run.check)
        suffix = "" if error.path == snapshots.HINT else f". {plan}, from the journal"
        run.observer.message(f"{error}. {_where(moved)}{suffix}")
    return manifest


def find_damage(run: Run, journals: Sequence[str], everything: bool) -> None:
    """Find damage to what the run builds on, and set it aside. `everything`: check all bytes."""
    parts = needed(run.parent) if run.parent else []
    wrong = damaged_files.find_size_mismatches(run.store, parts) if parts else {}
    for path, problem in wrong.items():
        _set_aside(run, path, f"{run.store.url_of(path)} {problem}")
    journal_parts = [info for name in journals for info in list_parts(run.store, name)]
    present = [part for part in parts if part.path not in wrong]
    size = sum(p.bytes for p in present) + sum(info.bytes for info in journal_parts)
    if everything or size <= VERIFIED_BYTES:
        paths = [*(p.path for p in present), *(info.path for info in journal_parts)]
        if len(paths) <= _BATCH:
            unsound = damaged_files.find_damaged(run.store, paths)
        else:
            batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
            tables = run.executor.stream("verify", _verify, batches)
            unsound = [path for table in tables for path in table["path"].to_pylist()]
        for path in unsound:
            _set_aside_damaged(run, path)
        if everything and paths:
            n = len(unsound) + len(wrong)
            result = f"{plural(n, 'file')} damaged" if n else "none is damaged"
            run.observer.message(f"Checked {plural(len(paths), 'file')} of the index byte by byte: {result}.")


def repair(run: Run, error: CorruptPart) -> None:
    """Set aside a part that proved damaged, before restarting. Raises the error if that did not help."""
    if not error.path or error.path in run.repaired_parts:
        raise error
    run.repaired_parts.add(error.path)
    _set_aside(run, error.path, str(error).removesuffix(f". {REPAIR_ADVICE}"))
    if error.path.startswith(f"{WORK}/"):
        # Other unreadable parts of this journal would each restart the run again.
        for path in JournalIndex.load(run.store, error.path.split("/")[1]).damaged:
            _set_aside_damaged(run, path)


def needed(manifest: Manifest) -> list[Part]:
    """All parts of a snapshot's tables and of its steps' results, sorted by path."""
    steps = [Result.from_json(step) for step in manifest.steps.values()]
    groups = [group for step in steps for groups in step.tables.values() for group in groups]
    by_path = {part.path: part for parts in [*manifest.tables.values(), *groups] for part in parts}
    return [by_path[path] for path in sorted(by_path)]


def _set_aside_damaged(run: Run, path: str) -> None:
    _set_aside(run, path, f"{run.store.url_of(path)} is damaged")


def _set_aside(run: Run, path: str, problem: str) -> None:
    moved = damaged_files.set_aside(run.store, [path], check=run.check)
    if path.startswith(f"{WORK}/"):
        plan = "Models are asked again for its content when it is needed"
    else:
        run.damaged.add(path)
        plan = "Its content is rebuilt from the journal"
    run.observer.message(f"{problem}. {_where(moved[0] if moved else None)}. {plan}")


def _where(moved: str | None) -> str:
    return f"Set aside as {moved}" if moved else "There is nothing to set aside"


def _verify(store: Store, paths: list[str]) -> Iterator[pa.Table]:
    yield pa.table({"path": pa.array(damaged_files.find_damaged(store, paths), pa.string())})


def compact(run: Run, journals: Sequence[str], at_least: int) -> None:
    """Merge small parts of journals with at least this many. Failures except LockLost are only noted."""
    assert run.lock is not None
    try:
        due = [(n, parts) for n in journals for parts in compaction.find_mergeable(run.store, n, at_least)]
        if not due:
            return
        with run.maintenance_task(COMPACT) as counts:
            counts["parts"] = counts["merged_into"] = sum(len(parts) for _, parts in due)
            for table in run.executor.stream(COMPACT, partial(_merge_parts, run.lock.epoch), due):
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
    yield pa.Table.from_pylist([{"fewer": fewer, "damaged": damaged}], schema=_MERGED)
