"""Keeping the journals of a run to few parts, as a step that no table depends on: before they are first read,
after each sweep, and when a snapshot is committed. On Ray it is done by tasks, each with parts of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from graphrag_ray.base.errors import LockLost, ProcessDied, StoreError
from graphrag_ray.indexing.repair import journal_damage
from graphrag_ray.indexing.run import Run
from graphrag_ray.store import compaction, locks
from graphrag_ray.store.files import FileInfo, Store

STEP = "compact"
MANY = 256
"""Small parts from which on a journal is compacted before it is read: every process of a run reads each."""
FEW = 8
"""The same at the end of a run, when nobody waits for it."""

_log = logging.getLogger(__name__)


def compact(run: Run, journals: Sequence[str], at_least: int) -> None:
    """Merge the small parts of those journals that have as many. For a run that holds its lock.

    What fails is a note: the parts stand as they were. Raises LockLost.
    """
    assert run.lock is not None
    try:
        found = [(n, parts) for n in journals for parts in compaction.due(run.store, n, at_least)]
        if found:
            with run.chore(STEP) as counts:
                counts["parts"] = sum(len(parts) for _, parts in found)
                counts["merged_into"] = counts["parts"] - _merge(run, run.lock.epoch, found)
    except LockLost:
        raise
    except (StoreError, ProcessDied) as e:
        run.observer.note(f"The journal was not tidied up; the next run will: {e}")


def _merge(run: Run, epoch: int, found: Sequence[tuple[str, list[FileInfo]]]) -> int:
    fewer = 0
    for table in run.executor.stream(STEP, partial(_merge_parts, epoch), found):
        for row in table.to_pylist():
            fewer += row["fewer"]
            journal_damage(run, row["damaged"])
    return fewer


_MERGED = pa.schema([("fewer", pa.int64()), ("damaged", pa.list_(pa.string()))])


def _merge_parts(epoch: int, store: Store, found: tuple[str, list[FileInfo]]) -> Iterator[pa.Table]:
    dialogue, parts = found
    damaged: list[str] = []
    fewer = compaction.merge_parts(
        store, dialogue, parts, partial(locks.check, store, epoch), lambda e: damaged.append(e.path)
    )
    yield pa.Table.from_pylist([{"fewer": fewer, "damaged": damaged}], schema=_MERGED)
