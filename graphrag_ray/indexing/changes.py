"""What a run changed: the snapshot's tables compared with its parent's, row by row, by id and content.

Parts that both snapshots have are equal and are not read; of the others two integers a row are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from graphrag_ray.base.declarations import COMPARED
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import prefixes_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part

PARTS_ON_DRIVER = 16
"""More parts are read by the executor."""

Rows: TypeAlias = npt.NDArray[np.uint64]
"""[rows, 2] of each row the first 64 bits of its id, and a hash of its content."""


def changes(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, dict[str, int]]:
    """For each table of COMPARED the number of rows `added`, `changed`, `removed` and `unchanged` since the
    parent snapshot; without one everything is added. A table is left out where the parent's rows are damaged:
    what changed in it cannot be told."""
    found = {}
    for name in COMPARED:
        old = {p.path: p for p in run.parent.parts(name)} if run.parent else {}
        new = {p.path: p for p in tables.get(name, [])}
        if any(path in run.damaged for path in old.keys() - new.keys()):
            run.observer.note(f"What changed in {name} cannot be told: the rows before were damaged.")
            continue
        found[name] = rows_compared(run, name, list(old.values()), list(new.values()))
    return found


def rows_compared(run: Run, name: str, before: Sequence[Part], now: Sequence[Part]) -> dict[str, int]:
    """The number of rows of a table `added`, `changed`, `removed` and `unchanged`."""
    old, new = {p.path: p for p in before}, {p.path: p for p in now}
    gone = [part for path, part in old.items() if path not in new]
    come = [part for path, part in new.items() if path not in old]
    # An id stands in one part only: where no part went, no row changed.
    counts = _compared(_read(run, name, gone), _read(run, name, come)) if gone else _all_new(come)
    counts["unchanged"] += sum(part.rows for path, part in new.items() if path in old)
    return counts


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
    hashed = partial(_hashed, name)
    if len(parts) <= PARTS_ON_DRIVER:
        tables = [table for part in parts for table in hashed(run.store, part)]
    else:
        tables = list(run.executor.stream("finish", hashed, parts))
    arrays = [np.stack([t["id"].to_numpy(), t["content"].to_numpy()], axis=1) for t in tables]
    return np.concatenate(arrays) if arrays else np.empty((0, 2), dtype=np.uint64)


def _hashed(name: str, store: Store, part: Part) -> Iterator[pa.Table]:
    _, columns = COMPARED[name]
    table = read_part(store, part, ["id", *columns])
    content = np.zeros(table.num_rows, dtype=np.uint64)
    if columns:
        rows = zip(*(table[column].to_pylist() for column in columns), strict=True)
        digests = (hashlib.blake2b(orjson.dumps(row), digest_size=8).digest() for row in rows)
        content = np.frombuffer(b"".join(digests), dtype=np.uint64)
    yield pa.table({"id": prefixes_of(table["id"]), "content": content})
