"""Find the paragraphs of each document that extraction leaves out (`corpus/repeated_paragraphs.py`).

documents ─► paragraphs (hashes) ──shuffle by hash──► occurrences to leave out ──shuffle by group──► spans
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.corpus import repeated_paragraphs
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.merge_stage import n_bundles, range_of
from graphrag_ray.indexing.stages.short_ids import id_keys
from graphrag_ray.indexing.step_result import Result, count_rows, parts_by_input
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part

_PARAGRAPHS = pa.schema(
    [
        *(("hash", pa.uint64()), ("document_id", pa.string()), ("path", pa.string()), ("row", pa.string())),
        *(("start", pa.int64()), ("end", pa.int64())),
    ]
)
SPANS = pa.schema([("document_id", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
_GROUP = "group"
_RANGE_ROWS = 1 << 18
"""Approximate number of paragraphs whose hashes one task compares."""


def find_repeated_paragraphs(run: Run, corpus: Result) -> Result:
    """Find the spans of documents that extraction leaves out, if `extraction.repeated_paragraphs` is once.

    Documents are ordered by path, then by row. The first one that has a paragraph keeps it. Returns tables
    spans (SPANS, sorted and disjoint), with a group per group of chunks, and paragraphs, which the next run
    reuses.
    """
    if run.settings.extraction.repeated_paragraphs == "keep":
        return Result()
    documents = corpus.tables["documents"]

    def compute() -> Result:
        plan = run.reuse_plan("repeats", documents, None, ("paragraphs",))
        result = plan.merge_new(run.store, run.map("repeats", _hash_paragraphs, plan.new_inputs))
        groups = [(n, group) for n, group in enumerate(result.tables["paragraphs"]) if group]
        total = count_rows(result.tables["paragraphs"])
        n_ranges = 1 + total // _RANGE_ROWS
        n_required = repeated_paragraphs.min_documents(count_rows(documents))
        find, bundles = partial(_find_repeats, n_required), n_bundles(total)
        written = run.shuffle("repeats", partial(_by_hash, n_ranges), groups, find, n_ranges, bundles)
        repeats = parts_by_input(written, "repeats")["repeats"]
        found = [parts for parts in repeats if parts]
        written = run.shuffle("repeats", _by_group, found, _merge_spans, len(documents), bundles)
        spans = parts_by_input(written, "spans")
        counts = {"repeated_paragraphs": count_rows(spans["spans"])}
        return Result({**result.tables, **spans}, counts, made_from=result.made_from)

    return run.step("repeats", documents, compute)


def _hash_paragraphs(store: Store, documents: Sequence[Part]) -> Iterator[Tables]:
    for part in documents:
        rows = []
        for row in read_part(store, part, ["id", "path", "row", "text"]).to_pylist():
            for start, end, hash_ in repeated_paragraphs.paragraphs(row["text"]):
                rows.append((hash_, row["id"], row["path"], row["row"], start, end))
        if rows:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*rows, strict=True), _PARAGRAPHS, strict=True)
            ]
            yield {"paragraphs": pa.table(columns, schema=_PARAGRAPHS)}


def _by_hash(n_ranges: int, store: Store, numbered: tuple[int, Sequence[Part]]) -> Iterator[pa.Table]:
    number, parts = numbered
    for part in parts:
        table = read_part(store, part)
        ranges = range_of(table["hash"].to_numpy(), n_ranges).astype(np.int32)
        table = table.append_column(_GROUP, pa.array(np.full(len(ranges), number, np.int32)))
        yield table.append_column(PARTITION, pa.array(ranges))


def _find_repeats(n_required: int, rows: pa.Table) -> Tables:
    """Return the occurrences to leave out. Numbers as row ids count as numbers: row 9 precedes row 10."""
    rows = rows.append_column("row_length", pc.utf8_length(rows["row"]))
    order = ["hash", "path", "row_length", "row", "start"]
    rows = rows.sort_by([(name, "ascending") for name in order])
    is_left_out = repeated_paragraphs.find_repeats(
        rows["hash"].to_numpy(), id_keys(rows["document_id"]), n_required
    )
    repeats = rows.filter(pa.array(is_left_out)).select([*SPANS.names, _GROUP])
    return {"repeats": repeats} if repeats.num_rows else {}


def _by_group(store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    for part in parts:
        table = read_part(store, part)
        yield table.rename_columns([*SPANS.names, PARTITION])


def _merge_spans(rows: pa.Table) -> Tables:
    rows = rows.sort_by([(name, "ascending") for name in SPANS.names])
    by_document: dict[str, list[repeated_paragraphs.Span]] = {}
    for document, *span in zip(*(rows[name].to_pylist() for name in SPANS.names), strict=True):
        by_document.setdefault(document, []).append((span[0], span[1]))
    merged = [
        {"document_id": document, "start": start, "end": end}
        for document, spans in by_document.items()
        for start, end in repeated_paragraphs.merge_overlapping(spans)
    ]
    return {"spans": pa.Table.from_pylist(merged, schema=SPANS)}
