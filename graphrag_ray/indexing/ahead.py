"""What is told before models are asked: what an update will ask for, chunks exactly, what follows from them
about; and columns that documents do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import column, columns_of
from graphrag_ray.indexing.changes import rows_compared
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

MOST_TOLD = 20
"""Columns that a message lists."""
MOST_READ = 16
"""Parts of a table that are read; the others are taken to be like them."""
KINDS = {"added": "new", "changed": "changed", "removed": "removed"}


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
        some, times = _some(parent.parts(name))
        instances = _instances(run, some)
        # What is told of once needs no summary.
        descriptions += times * expected(instances[instances > 1], before, touched)
    some, times = _some(parent.parts("communities"))
    reports = times * expected(_chunks(run, some), before, touched)
    of = sum(part.rows for part in parent.parts("communities"))
    run.observer.note(told(changed, asked, round(descriptions), round(reports), of))


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


def told(changed: Mapping[str, int], chunks: int, descriptions: int, reports: int, of: int) -> str:
    documents = ", ".join(f"{n:,} {kind}" for kind, n in changed.items() if n) or "none changed"
    return (
        f"Documents: {documents}. To come: at most {plural(chunks, 'chunk')} to extract, at most some "
        f"{descriptions:,} descriptions, and about {reports:,} of {of:,} reports, which rest on what changed."
    )


def _some(parts: list[Part]) -> tuple[list[Part], float]:
    """Parts from all over a table, and how many times as many rows it has."""
    some = parts[:: -(-len(parts) // MOST_READ) or 1]
    rows = sum(part.rows for part in some)
    return some, sum(part.rows for part in parts) / rows if rows else 1.0


def _instances(run: Run, parts: list[Part]) -> npt.NDArray[np.int64]:
    table = read_table(run.store, parts, ["n_instances"], schema.ENTITIES)
    return np.asarray(table["n_instances"].to_numpy(), dtype=np.int64)


def _chunks(run: Run, parts: list[Part]) -> npt.NDArray[np.int64]:
    """Of each community, how many chunks it rests on."""
    tables = run.executor.stream("ahead", _lengths, parts)
    lengths = [table["n"].to_numpy() for table in tables]
    return np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)


def _lengths(store: Store, part: Part) -> Iterator[pa.Table]:
    lists = read_part(store, part, ["text_unit_ids"])["text_unit_ids"]
    yield pa.table({"n": pc.list_value_length(lists).cast(pa.int64())})
