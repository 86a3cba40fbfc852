"""What a run changed: the snapshot's tables compared with its parent's, row by row, by id and content. And,
told before models are asked: what an update will ask for, chunks exactly, what follows from them about; and
columns that documents do not have.

Parts that both snapshots have are equal and are not read. Of the others two integers a row are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import COMPARED
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import column, columns_of
from graphrag_ray.graph.signatures import content_hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import prefixes_of
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store, in_threads
from graphrag_ray.store.parts import Part, read_part

ROWS_AT_ONCE = 1 << 17
"""Of the parts that a task reads, about. More are read by the executor."""
MOST_TOLD = 20
"""Columns that a message lists."""
MOST_READ = 16
"""Parts of a table that are read; the others are taken to be like them."""
KINDS = {"added": "new", "changed": "changed", "removed": "removed"}

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
        found[name] = rows_compared(run, name, before.get(name, []), tables.get(name, []))
    return found


def rows_compared(run: Run, name: str, before: Sequence[Part], now: Sequence[Part]) -> dict[str, int]:
    """The number of rows of a table `added`, `changed`, `removed` and `unchanged`."""
    old, new = ({part.path: part for part in of} for of in (before, now))
    gone = [part for path, part in old.items() if path not in new]
    come = [part for path, part in new.items() if path not in old]
    # An id stands in one part only: where no part went, no row changed.
    counts = {"added": sum(part.rows for part in come), "changed": 0, "removed": 0, "unchanged": 0}
    if gone:
        a, b = _read(run, name, gone), _read(run, name, come)
        _, before_at, now_at = np.intersect1d(a[:, 0], b[:, 0], assume_unique=True, return_indices=True)
        changed = int((a[before_at, 1] != b[now_at, 1]).sum())
        counts = {
            "added": len(b) - len(now_at),
            "changed": changed,
            "removed": len(a) - len(before_at),
            "unchanged": len(now_at) - changed,
        }
    counts["unchanged"] += sum(part.rows for path, part in new.items() if path in old)
    return counts


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


def tell_ahead(run: Run, corpus: Result) -> None:
    """A line for people, where documents of the parent snapshot changed, or what a model reads of them, and
    its tables are whole."""
    parent = run.parent
    changed = {told: corpus.counts.get(kind, 0) for kind, told in KINDS.items()}
    if parent is None or run.damaged or not run.settings.has_graph:
        return
    earlier = run.of_parent["read"].parts("text_units")
    units = rows_compared(run, "text_units", earlier, corpus.parts("text_units"))
    before = sum(part.rows for part in parent.parts("text_units"))
    asked = units["added"] + units["changed"]
    touched = asked + units["removed"]
    if not touched and not any(changed.values()):
        return
    descriptions = 0.0
    for name in ("entities", "relationships"):
        instances, times = _some(run, name, "n_instances")
        # What is told of once needs no summary.
        descriptions += times * expected(instances[instances > 1], before, touched)
    chunks, times = _some(run, "communities", "text_unit_ids")
    reports = times * expected(chunks, before, touched)
    of = sum(part.rows for part in parent.parts("communities"))
    documents = ", ".join(f"{n:,} {kind}" for kind, n in changed.items() if n) or "none changed"
    run.observer.note(
        f"Documents: {documents}. To come: at most {plural(asked, 'chunk')} to extract, at most some "
        f"{round(descriptions):,} descriptions, and about {round(reports):,} of {of:,} reports, which rest "
        "on what changed."
    )


def tell_unknown_columns(run: Run, corpus: Result) -> None:
    """A line for people, where `chunking.prepend` names a column that none of the first documents has."""
    names = run.settings.chunking.prepended_metadata
    if not names or not (parts := corpus.parts("documents")):
        return
    rows = [columns_of(text) for text in read_part(run.store, parts[0], ["raw_data"])["raw_data"].to_pylist()]
    if unknown := [name for name in names if all(column(row, name) is None for row in rows)]:
        known = ", ".join(sorted({name for row in rows for name in row})[:MOST_TOLD]) or "none"
        run.observer.note(
            f"chunking.prepend names {', '.join(unknown)}, which none of the first {len(rows):,} documents "
            f"has; columns of their metadata: {known}"
        )


def expected(chunks_of: npt.NDArray[np.int64], chunks: int, touched: int) -> float:
    """How many of some sets of chunks hold at least one of those that came or went, where these are like any
    others. chunks_of: the sizes of the sets; chunks: there are, touched: of them."""
    if not chunks:
        return 0.0
    share = np.minimum(chunks_of / chunks, 1.0)
    return float((1.0 - (1.0 - share) ** touched).sum())


def _some(run: Run, name: str, column: str) -> tuple[npt.NDArray[np.int64], float]:
    """A column of parts from all over a table of the parent snapshot (of lists, their lengths), and how many
    times as many rows the table has."""
    assert run.parent is not None
    parts = run.parent.parts(name)
    found = [np.zeros(0, dtype=np.int64)]
    for part in parts[:: -(-len(parts) // MOST_READ) or 1]:
        values = read_part(run.store, part, [column])[column]
        lengths = pc.list_value_length(values) if pa.types.is_nested(values.type) else values
        found.append(lengths.to_numpy().astype(np.int64))
    of = np.concatenate(found)
    return of, sum(part.rows for part in parts) / len(of) if len(of) else 1.0
