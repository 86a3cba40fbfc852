"""What a run changed: the tables of a snapshot compared with its parent's, row by row, by id and content.

Parts that both snapshots have are equal and are not read; of the others, two integers per row are compared.
Also notes written before models are called: how much work an update will need, and columns that documents do
not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import COMPARED_TABLES
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import column_at_path, parse_raw_data
from graphrag_ray.graph.community_signatures import content_hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import id_keys
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store, map_in_threads
from graphrag_ray.store.parts import Part, read_part

ROWS_AT_ONCE = 1 << 17  # approximate rows per task; fewer are read in this process
SHOWN_COLUMNS = 20
SAMPLED_PARTS = 16  # parts of a table from which its values are estimated
_KINDS = {"added": "new", "changed": "changed", "removed": "removed"}


def count_changes(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, dict[str, int]]:
    """Count the rows `added`, `changed`, `removed` and `unchanged` since the parent, by table of
    COMPARED_TABLES.

    Without a parent all rows are added. A table whose parent rows are damaged is left out.
    """
    before: Mapping[str, list[Part]] = run.parent.tables if run.parent else {}
    counts = {}
    for name in COMPARED_TABLES:
        kept = {part.path for part in tables.get(name, [])}
        if any(part.path in run.damaged and part.path not in kept for part in before.get(name, [])):
            run.observer.message(f"Changes in {name} are unknown: its previous rows were damaged.")
            continue
        counts[name] = rows_compared(run, name, before.get(name, []), tables.get(name, []))
    return counts


def rows_compared(run: Run, name: str, before: Sequence[Part], now: Sequence[Part]) -> dict[str, int]:
    """Count the rows of a table `added`, `changed`, `removed` and `unchanged`."""
    old, new = ({part.path: part for part in parts} for parts in (before, now))
    gone = [part for path, part in old.items() if path not in new]
    come = [part for path, part in new.items() if path not in old]
    # An id occurs in one part only, so no row changed if no part is gone.
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


def _read(run: Run, name: str, parts: Sequence[Part]) -> npt.NDArray[np.uint64]:
    """An array [rows, 2], in any order: the first 64 bits of each row's id, and a hash of its content."""
    starts = accumulate((part.rows for part in parts), initial=0)
    placed = zip(parts, starts, strict=False)
    groups = groupby(placed, lambda x: x[1] // ROWS_AT_ONCE)
    batches = [[part for part, _ in group] for _, group in groups]
    hash_rows = partial(_hash_rows, name)
    if len(batches) > 1:
        tables = run.executor.stream("finish", hash_rows, batches)
    else:
        tables = hash_rows(run.store, *batches or [[]])
    arrays = [np.stack([t["id"].to_numpy(), t["content"].to_numpy()], axis=1) for t in tables]
    return np.concatenate(arrays) if arrays else np.empty((0, 2), dtype=np.uint64)


def _hash_rows(name: str, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    _, columns = COMPARED_TABLES[name]
    for table in map_in_threads(lambda part: read_part(store, part, ["id", *columns]), parts):
        content = content_hashes(table.select(columns))
        yield pa.table({"id": id_keys(table["id"]), "content": content})


def note_expected_work(run: Run, corpus: Result) -> None:
    """Note how much work an update needs, if documents or chunks changed and the parent is intact."""
    parent = run.parent
    if parent is None or run.damaged or not run.settings.has_graph:
        return
    changed = {label: corpus.counts.get(kind, 0) for kind, label in _KINDS.items()}
    earlier = run.parent_results["read"].parts("text_units")
    units = rows_compared(run, "text_units", earlier, corpus.parts("text_units"))
    before = sum(part.rows for part in parent.parts("text_units"))
    asked = units["added"] + units["changed"]
    touched = asked + units["removed"]
    if not touched and not any(changed.values()):
        return
    descriptions = 0.0
    for name in ("entities", "relationships"):
        instances, factor = _sample(run, name, "n_instances")
        # A name with a single instance needs no merged description.
        descriptions += factor * expected(instances[instances > 1], before, touched)
    chunks, factor = _sample(run, "communities", "text_unit_ids")
    reports = factor * expected(chunks, before, touched)
    communities = sum(part.rows for part in parent.parts("communities"))
    documents = ", ".join(f"{n:,} {label}" for label, n in changed.items() if n) or "none changed"
    run.observer.message(
        f"Documents: {documents}. Expected work: at most {plural(asked, 'chunk')} to extract, at most about "
        f"{round(descriptions):,} descriptions, and about {round(reports):,} of {communities:,} reports."
    )


def note_unknown_columns(run: Run, corpus: Result) -> None:
    """Note columns in `chunking.prepend_metadata` that none of the first documents has."""
    names = run.settings.chunking.prepended_metadata
    if not names or not (parts := corpus.parts("documents")):
        return
    rows = [
        parse_raw_data(text) for text in read_part(run.store, parts[0], ["raw_data"])["raw_data"].to_pylist()
    ]
    if unknown := [name for name in names if all(column_at_path(row, name) is None for row in rows)]:
        known = ", ".join(sorted({name for row in rows for name in row})[:SHOWN_COLUMNS]) or "none"
        run.observer.message(
            f"chunking.prepend_metadata names {', '.join(unknown)}, but none of the first "
            f"{len(rows):,} documents has such metadata. Their columns: {known}"
        )


def expected(chunks_of: npt.NDArray[np.int64], chunks: int, touched: int) -> float:
    """The expected number of sets of sizes `chunks_of` that contain any of `touched` random chunks."""
    if not chunks:
        return 0.0
    share = np.minimum(chunks_of / chunks, 1.0)
    return float((1.0 - (1.0 - share) ** touched).sum())


def _sample(run: Run, name: str, column: str) -> tuple[npt.NDArray[np.int64], float]:
    """Sample a column of the parent's table (of lists: lengths); also returns the factor to the table."""
    assert run.parent is not None
    parts = run.parent.parts(name)
    arrays = [np.zeros(0, dtype=np.int64)]
    for part in parts[:: -(-len(parts) // SAMPLED_PARTS) or 1]:
        values = read_part(run.store, part, [column])[column]
        lengths = pc.list_value_length(values) if pa.types.is_nested(values.type) else values
        arrays.append(lengths.to_numpy().astype(np.int64))
    sample = np.concatenate(arrays)
    return sample, sum(part.rows for part in parts) / len(sample) if len(sample) else 1.0
