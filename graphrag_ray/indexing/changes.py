"""Count what a run changed, by comparing the tables of a snapshot with its parent's, row by row.

Parts that occur in both snapshots are not read. In all other parts, two integers per row are compared: hashes
of its id and of its content. This module also writes notes before models are called: the expected work of an
update, and metadata columns that no document has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import CHANGE_TRACKED_TABLES
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import column_at_path, parse_raw_data
from graphrag_ray.graph.community_signatures import content_hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import id_keys
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store, map_in_threads
from graphrag_ray.store.parts import Part, read_part

TASK_ROWS = 1 << 17  # approximate rows per task; if there are fewer, this process reads them
MAX_LISTED_COLUMNS = 20
MAX_SAMPLED_PARTS = 16  # maximum number of parts per table from which expected_matches work is estimated
_KINDS = {"added": "new", "changed": "changed", "removed": "removed"}


def count_changes(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, dict[str, int]]:
    """Count the rows added, changed, removed and unchanged since the parent, for each compared table.

    Without a parent, all rows are added. A table whose previous rows are damaged is left out.
    """
    before: Mapping[str, list[Part]] = run.parent.tables if run.parent else {}
    counts = {}
    for name in CHANGE_TRACKED_TABLES:
        reused = {part.path for part in tables.get(name, [])}
        if any(part.path in run.damaged and part.path not in reused for part in before.get(name, [])):
            run.observer.message(f"Changes in {name} are unknown: its previous rows were damaged.")
            continue
        counts[name] = compare_rows(run, name, before.get(name, []), tables.get(name, []))
    return counts


def compare_rows(run: Run, name: str, before: Sequence[Part], now: Sequence[Part]) -> dict[str, int]:
    """Count the rows of a table that were added, changed, removed and unchanged."""
    old, new = ({part.path: part for part in parts} for parts in (before, now))
    removed = [part for path, part in old.items() if path not in new]
    added = [part for path, part in new.items() if path not in old]
    # An id occurs in one part only, so no row changed unless a part was removed.
    counts = {"added": sum(part.rows for part in added), "changed": 0, "removed": 0, "unchanged": 0}
    if removed:
        a, b = _hash_parts(run, name, removed), _hash_parts(run, name, added)
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


def _hash_parts(run: Run, name: str, parts: Sequence[Part]) -> npt.NDArray[np.uint64]:
    """Return an array [rows, 2], in any order: the first 64 bits of each id, and a hash of each content."""
    starts = accumulate((part.rows for part in parts), initial=0)
    groups = groupby(zip(parts, starts, strict=False), lambda pair: pair[1] // TASK_ROWS)
    batches = [[part for part, _ in group] for _, group in groups]
    hash_rows = partial(_hash_rows, name)
    if len(batches) > 1:
        tables = run.executor.stream("finish", hash_rows, batches)
    else:
        tables = hash_rows(run.store, *batches or [[]])
    arrays = [np.stack([t["id"].to_numpy(), t["content"].to_numpy()], axis=1) for t in tables]
    return np.concatenate(arrays) if arrays else np.empty((0, 2), dtype=np.uint64)


def _hash_rows(name: str, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    _, columns = CHANGE_TRACKED_TABLES[name]
    for table in map_in_threads(lambda part: read_part(store, part, ["id", *columns]), parts):
        content = content_hashes(table.select(columns))
        yield pa.table({"id": id_keys(table["id"]), "content": content})


def note_expected_work(run: Run, corpus: Result) -> None:
    """Report the expected work of an update, if documents or chunks changed and the parent is intact."""
    parent = run.parent
    if parent is None or run.damaged or not run.settings.has_graph:
        return
    changed = {label: corpus.counts.get(kind, 0) for kind, label in _KINDS.items()}
    earlier = run.parent_results["read"].parts("text_units")
    units = compare_rows(run, "text_units", earlier, corpus.parts("text_units"))
    before = sum(part.rows for part in parent.parts("text_units"))
    n_extracted = units["added"] + units["changed"]
    touched = n_extracted + units["removed"]
    if not touched and not any(changed.values()):
        return
    descriptions = 0.0
    for name in ("entities", "relationships"):
        (instances,), factor = _sample(run, name, "n_instances")
        # A name with a single instance needs no merged description.
        descriptions += factor * expected_matches(instances[instances > 1], before, touched)
    (chunks, sizes), factor = _sample(run, "communities", "text_unit_ids", "size")
    chunks = chunks[sizes >= run.settings.composes_below]  # Other reports are composed without a model call.
    reports = factor * expected_matches(chunks, before, touched)
    documents = ", ".join(f"{n:,} {label}" for label, n in changed.items() if n) or "none changed"
    run.observer.message(
        f"Documents: {documents}. Expected work: at most {plural(n_extracted, 'chunk')} to extract, "
        f"at most about {round(descriptions):,} descriptions, and about {round(reports):,} of "
        f"{round(factor * len(chunks)):,} reports."
    )


def note_unknown_columns(run: Run, corpus: Result) -> None:
    """Report columns in `chunking.prepend_metadata` that none of the first documents has."""
    names = run.settings.chunking.prepended_metadata
    if not names or not (parts := corpus.parts("documents")):
        return
    rows = [
        parse_raw_data(text) for text in read_part(run.store, parts[0], ["raw_data"])["raw_data"].to_pylist()
    ]
    if unknown := [name for name in names if all(column_at_path(row, name) is None for row in rows)]:
        known = ", ".join(sorted({name for row in rows for name in row})[:MAX_LISTED_COLUMNS]) or "none"
        run.observer.message(
            f"chunking.prepend_metadata names {', '.join(unknown)}, but none of the first "
            f"{len(rows):,} documents has these columns. Their columns: {known}"
        )


def expected_matches(set_sizes: npt.NDArray[np.int64], n_chunks: int, touched: int) -> float:
    """Estimate how many sets of chunks, of these sizes, contain any of `touched` random chunks."""
    if not n_chunks:
        return 0.0
    share = np.minimum(set_sizes / n_chunks, 1.0)
    return float((1.0 - (1.0 - share) ** touched).sum())


def _sample(run: Run, name: str, *columns: str) -> tuple[list[npt.NDArray[np.int64]], float]:
    """Sample columns of a parent table (of lists, their lengths). Also returns table rows per sample."""
    assert run.parent is not None
    parts = run.parent.parts(name)
    arrays = [[np.zeros(0, dtype=np.int64)] for _ in columns]
    for part in parts[:: -(-len(parts) // MAX_SAMPLED_PARTS) or 1]:
        table = read_part(run.store, part, columns)
        for values, column in zip(arrays, map(table.column, columns), strict=True):
            lengths = pc.list_value_length(column) if pa.types.is_nested(column.type) else column
            values.append(lengths.to_numpy().astype(np.int64))
    sample = [np.concatenate(values) for values in arrays]
    return sample, sum(part.rows for part in parts) / len(sample[0]) if len(sample[0]) else 1.0
