"""Read rows passed from Python into documents and chunks, as `read_stage.py` does for files.

Rows come in batches and in any order. Only the task that reads a batch has it in memory. A row that the
parent snapshot already contains is neither chunked nor written again, whatever batch it comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.errors import InputError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.document_context import identify
from graphrag_ray.corpus.parse import DATASET_PATH, documents_from_rows
from graphrag_ray.engine.executor import InputSplitter, WrittenParts
from graphrag_ray.engine.input_rows import InputRows, RowBatch, read_batch
from graphrag_ray.graph.stable_batches import stable_batches
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import document_parts
from graphrag_ray.indexing.step_result import Result, count_rows, parts_by_input
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

FOLDER_HASH = stable_id("input", DATASET_PATH)
"""Used as the hash of INPUT's folder: a row is identified by its id alone."""
SMALL_BYTES = 1 << 15
"""Pairs of parts below this stored size are combined: a batch can be one row, and each part is a file."""
COMBINED_BYTES = 1 << 18
"""Maximum stored size of a combined pair of parts."""
PAIRS_PER_BATCH = 8
"""Number of pairs of parts written for a batch, unless they would be very small or large."""

_SEEN = pa.schema(
    [("id", pa.string()), ("content_hash", pa.string()), ("name", pa.string()), ("is_known", pa.bool_())]
)
"""Every row that is a document. Rows that the parent already contains (is_known) are not written."""


def read_rows(run: Run, source: InputRows, add: bool, allow_deletes: bool) -> Result:
    """See `read_stage.read_input`."""
    read = partial(_read_batch, run.settings, run.executor.share(_known_rows(run)))
    one_by_one = InputSplitter(_single_rows, partial(_crash_failures, run.settings))
    on_read = document_parts.progress_reporter(run, None, lambda number: 1)
    written = run.map("read", read, source, one_by_one, on_read)
    tables = parts_by_input(written, "documents", "text_units", "failures")
    if not count_rows(tables["failures"]) and not any(batch.get("seen") for batch in written):
        raise InputError(f"INPUT ({source}) has no rows")
    unchanged = _drop_repeated_ids(run, written, tables)
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    pairs = sorted(
        (
            pair
            for documents, units in groups
            if documents
            for pair in document_parts.pairs_of(documents, units)
        ),
        key=lambda pair: [part.path for part in pair[0]],
    )
    sizes = [sum(part.bytes for part in (*documents, *units)) for documents, units in pairs]
    small = [i for i, size in enumerate(sizes) if size < SMALL_BYTES]
    batches = stable_batches([pairs[i][0][0].path for i in small], [sizes[i] for i in small], COMBINED_BYTES)
    combined = [[small[i] for i in batch] for batch in batches if len(batch) > 1]
    written = run.map("read", _combine, [[pairs[i] for i in batch] for batch in combined])
    new = parts_by_input(written, "documents", "text_units")
    uncombined = sorted({*range(len(pairs))}.difference(*combined))
    tables["documents"] = [pairs[i][0] for i in uncombined] + new["documents"]
    tables["text_units"] = [pairs[i][1] for i in uncombined] + new["text_units"]
    counts = document_parts.merge_with_parent(run, tables, "row", FOLDER_HASH, add, allow_deletes, unchanged)
    return Result(document_parts.regroup(tables), counts | {"chunks": count_rows(tables["text_units"])})


def _known_rows(run: Run) -> npt.NDArray[np.bytes_]:
    """Return the sorted row keys of the parent, or none if this run would chunk the same rows differently."""
    now, previous = snapshot_settings(run.settings), run.parent.settings if run.parent else {}
    is_same = all(previous.get(name) == now[name] for name in ("input", "chunking", "models", "stages"))
    if run.code_changed or run.damaged or not is_same:
        return np.empty(0, "S32")
    parts = run.parent_results["read"].parts("documents")
    return np.sort(_row_keys(read_table(run.store, parts, ["id", "content_hash"], schema.DOCUMENTS)))


def _row_keys(table: pa.Table) -> npt.NDArray[np.bytes_]:
    """Return the first 64 bits of id and of content_hash in hex, which identify a row and its content."""
    halves = [pc.utf8_slice_codeunits(table[name], 0, 16) for name in ("id", "content_hash")]
    keys = pc.binary_join_element_wise(*halves, "")
    return np.asarray(keys.to_numpy().astype("S32")) if table.num_rows else np.empty(0, "S32")


def _read_batch(
    settings: Settings, known_rows: Callable[[], npt.NDArray[np.bytes_]], store: Store, batch: RowBatch
) -> Iterator[Mapping[str, pa.Table]]:
    documents: dict[str, Document] = {}
    unreadable: list[Unreadable] = []
    seen: list[dict[str, Any]] = []
    for row in documents_from_rows(read_batch(batch), settings.input):
        if isinstance(row, Unreadable):
            unreadable.append(row)
            continue
        document = identify(row, settings.input)
        id_, content_hash = document.id, document.content_hash
        seen.append({"id": id_, "content_hash": content_hash, "name": document.row, "is_known": False})
        if id_ not in documents or content_hash < documents[id_].content_hash:
            documents[id_] = document
    table = pa.Table.from_pylist(seen, schema=_SEEN)
    if len(known := known_rows()):
        keys = _row_keys(table)
        is_known = known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys
        table = table.set_column(3, "is_known", pa.array(is_known))
        old = table.filter(table["is_known"])
        for id_, content_hash in zip(old["id"].to_pylist(), old["content_hash"].to_pylist(), strict=True):
            if id_ in documents and documents[id_].content_hash == content_hash:
                del documents[id_]
    new = [documents[id_] for id_ in sorted(documents)]
    size = batch.nbytes if isinstance(batch, pa.Table) else sum(len(document.text) for document in new)
    # The maximum size of a pair is a power of two, which grows with the batches and so with the corpus.
    limit = document_parts.MIN_SPLIT_BYTES
    while limit < min(size / PAIRS_PER_BATCH, document_parts.MAX_SPLIT_BYTES):
        limit *= 2
    yield from document_parts.chunk_documents([*unreadable, *new], settings, limit)
    yield {"seen": table}


def _single_rows(batch: RowBatch) -> list[RowBatch]:
    if isinstance(batch, pa.Table):
        return [batch.slice(n, 1) for n in range(batch.num_rows)]
    return [[row] for row in batch]


def _crash_failures(settings: Settings, batch: RowBatch, error: str) -> Mapping[str, pa.Table]:
    """Return the failures of rows that crash processes."""
    rows = documents_from_rows(read_batch(batch), settings.input)
    failed = [Unreadable(DATASET_PATH, row.row, f"cannot be read: {error}") for row in rows]
    return {"failures": document_parts.read_failures(failed)}


def _drop_repeated_ids(run: Run, written: WrittenParts, tables: dict[str, list[list[Part]]]) -> pa.Table:
    """Keep the row with the smallest hash of several rows with the same id, in whatever order they come.

    Returns:
        id and content_hash of the rows that the parent already contains.
    """
    batches = [
        table.append_column("batch", pa.array([n] * table.num_rows, pa.int64()))
        for n, batch in enumerate(written)
        if batch.get("seen")
        for table in [read_table(run.store, batch["seen"], None, _SEEN)]
    ]
    seen = pa.concat_tables([_SEEN.append(pa.field("batch", pa.int64())).empty_table(), *batches])
    known = seen.filter(seen["is_known"]).select(["id", "content_hash"])
    id_counts = pc.value_counts(seen["id"])
    ids = id_counts.field("values").filter(pc.greater(id_counts.field("counts"), 1))
    if not len(ids):
        return known
    repeated = seen.filter(pc.is_in(seen["id"], ids))
    order = [(name, "ascending") for name in ("id", "content_hash", "batch")]
    first: dict[str, dict[str, Any]] = {}
    dropped: dict[int, set[str]] = {}
    for row in repeated.sort_by(order).to_pylist():
        if first.setdefault(row["id"], row)["batch"] != row["batch"]:
            dropped.setdefault(row["batch"], set()).add(row["id"])
    document_parts.drop_documents(run, tables, dropped)
    column = run.settings.input.id_column
    if column is None:
        n = repeated.num_rows - len(ids)
        repeats = plural(n, "row of INPUT repeats another", "rows of INPUT repeat others")
        run.observer.message(f"{repeats}; each text is indexed once")
    else:
        reason = f"several rows have this id (column {column!r}), and only one of them is indexed"
        failed = [Unreadable(DATASET_PATH, row["name"], reason) for row in first.values()]
        tables["failures"].append(run.write("read", "failures", [document_parts.read_failures(failed)]))
    lost = {(row["id"], row["content_hash"]) for row in repeated.to_pylist()}
    lost -= {(row["id"], row["content_hash"]) for row in first.values()}
    versions = pc.binary_join_element_wise(known["id"], known["content_hash"], "")
    is_lost = pc.is_in(versions, pa.array(sorted(map("".join, lost)), pa.string()))
    return known.filter(pc.invert(is_lost)).group_by(["id", "content_hash"]).aggregate([])


def _combine(store: Store, pairs: Sequence[document_parts.Pair]) -> Iterator[Mapping[str, pa.Table]]:
    documents = read_table(store, [p for d, _ in pairs for p in d], None, schema.DOCUMENTS)
    units = read_table(store, [p for _, u in pairs for p in u], None, schema.TEXT_UNITS)
    order = [("document_id", "ascending"), ("position", "ascending")]
    yield {"documents": documents.sort_by("id"), "text_units": units.sort_by(order)}
