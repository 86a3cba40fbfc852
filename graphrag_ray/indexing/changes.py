"""What a run changed: the snapshot's tables compared with its parent's, row by row, by id and content. And,
told before models are asked: what an update will ask for, chunks exactly, what follows from them about; and
columns that documents do not have.

Parts that both snapshots have are equal and are not read. Neither are those whose pages are the same in all
columns that are compared, as indexes of rows tell: a new relationship changes degrees in many parts, and no
description. Of the other parts two integers a row are compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import COMPARED
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import column, columns_of
from graphrag_ray.graph.signatures import content_hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.finish_stage import covered_by_each, opened_index
from graphrag_ray.indexing.stages.short_ids import prefixes_of
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store import blobs
from graphrag_ray.store.files import Store
from graphrag_ray.store.in_threads import in_threads
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
                    # All of the pages of a column but where they are.
                    found[part.path] = tuple(
                        (first.tobytes(), *(page[name].tobytes() for name in ("size", "values", "sum")))
                        for first, page in own
                    )
    return found


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
