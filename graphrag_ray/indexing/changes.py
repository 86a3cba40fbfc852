"""What a run changed: the snapshot's tables compared with its parent's, row by row, by id and content.

Parts that both snapshots have are equal and are not read. Neither are those whose pages are the same in all
columns that are compared, as indexes of rows tell: a new relationship changes degrees in many parts, and no
description. Of the other parts two integers a row are compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import COMPARED
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.graph.signatures import content_hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.finish_stage import covered_by_each, opened_index
from graphrag_ray.indexing.stages.short_ids import prefixes_of
from graphrag_ray.store import blobs
from graphrag_ray.store.files import Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parts import Part, read_part

ROWS_AT_ONCE = 1 << 17
"""Of the parts that a task reads, about. More are read by the executor."""

Rows: TypeAlias = npt.NDArray[np.uint64]
"""[rows, 2] of each row the first 64 bits of its id, and a hash of its content."""


def changes(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, dict[str, int]]:
    """For each table of COMPARED the number of rows `added`, `changed`, `removed` and `unchanged` since the
    parent snapshot; without one everything is added. A table is left out where the parent's rows are damaged:
    what changed in it cannot be told."""
    before: Mapping[str, list[Part]] = run.parent.tables if run.parent else {}
    found = {}
    for name in COMPARED:
        old, new = ({part.path: part for part in of.get(name, [])} for of in (before, tables))
        gone = old.keys() - new.keys()
        if any(path in run.damaged for path in gone):
            run.observer.note(f"What changed in {name} cannot be told: the rows before were damaged.")
            continue
        known = _contents(run, name, before) | _contents(run, name, tables) if gone else {}
        found[name] = rows_compared(run, name, list(old.values()), list(new.values()), known)
    return found


def rows_compared(
    run: Run, name: str, before: Sequence[Part], now: Sequence[Part], contents: Mapping[str, Hashable] = {}
) -> dict[str, int]:
    """The number of rows of a table `added`, `changed`, `removed` and `unchanged`.

    contents: by the path of a part, where it is known, something that is the same where the compared columns
    are the same
    """
    old, new = ({contents.get(part.path, part.path): part for part in of} for of in (before, now))
    gone = [part for content, part in old.items() if content not in new]
    come = [part for content, part in new.items() if content not in old]
    # An id stands in one part only: where no part went, no row changed.
    counts = _compared(_read(run, name, gone), _read(run, name, come)) if gone else _all_new(come)
    counts["unchanged"] += sum(part.rows for content, part in new.items() if content in old)
    return counts


def _contents(run: Run, name: str, tables: Mapping[str, list[Part]]) -> dict[str, Hashable]:
    """`contents` of the parts of a table: sizes and checksums of pages, from its indexes of rows."""
    columns = {"id", *COMPARED[name][1]}
    indexes = {blobs.made_from(part.path): part for part in tables.get(schema.rows_table(name), [])}
    covered = covered_by_each(name, tables.get(name, []))
    found: dict[str, Hashable] = {}
    for of in covered:
        stored = indexes.get(of.made_from)
        if stored is None:
            continue
        with suppress(CorruptPart):  # the parts are read then
            index = opened_index(run.store, stored, of)
            if columns <= set(index.paged):
                pages = [index.pages_by_part(column) for column in sorted(columns)]
                for part, own in zip(of.parts, zip(*pages, strict=True), strict=True):
                    found[part.path] = tuple(_told(first, page) for first, page in own)
    return found


def _told(first: npt.NDArray[np.int64], page: npt.NDArray[Any]) -> tuple[bytes, ...]:
    """All of the pages of a column but where they are."""
    return first.tobytes(), *(page[name].tobytes() for name in ("size", "values", "sum"))


def _all_new(parts: Sequence[Part]) -> dict[str, int]:
    return {"added": sum(p.rows for p in parts), "changed": 0, "removed": 0, "unchanged": 0}


def _compared(old: Rows, new: Rows) -> dict[str, int]:
    _, before, now = np.intersect1d(old[:, 0], new[:, 0], assume_unique=True, return_indices=True)
    changed = int((old[before, 1] != new[now, 1]).sum())
    return {
        "added": len(new) - len(now),
        "changed": changed,
        "removed": len(old) - len(before),
        "unchanged": len(now) - changed,
    }


def _read(run: Run, name: str, parts: Sequence[Part]) -> Rows:
    """Of all rows, in any order."""
    before = accumulate((part.rows for part in parts), initial=0)
    placed = zip(parts, before, strict=False)
    batches = [[part for part, _ in of] for _, of in groupby(placed, lambda x: x[1] // ROWS_AT_ONCE)]
    hashed = partial(_hashed, name)
    far = len(batches) > 1
    tables = run.executor.stream("finish", hashed, batches) if far else hashed(run.store, *batches or [[]])
    arrays = [np.stack([t["id"].to_numpy(), t["content"].to_numpy()], axis=1) for t in tables]
    return np.concatenate(arrays) if arrays else np.empty((0, 2), dtype=np.uint64)


def _hashed(name: str, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    _, columns = COMPARED[name]
    for table in in_threads(lambda part: read_part(store, part, ["id", *columns]), parts):
        content = content_hashes(table.select(columns))
        yield pa.table({"id": prefixes_of(table["id"]), "content": content})
