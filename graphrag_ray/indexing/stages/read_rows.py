"""Rows that are given as such, as documents and chunks: what `read_stage.py` does for files.

Rows come in batches, in any order, and each batch is held by the task alone that reads it. A row that the
parent snapshot has, unchanged, is not chunked or written again: the parent's parts stay, however the batches
are cut today. So an update touches what has changed.
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
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.parse import ROWS, documents_of
from graphrag_ray.engine.executor import Parted, Written
from graphrag_ray.engine.given_rows import GivenRows, RowBatch, rows_of_batch
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.document_parts import (
    MAX_SPLIT_BYTES,
    MIN_SPLIT_BYTES,
    document_parts,
    inputs_of,
    keep_and_count,
    leave_out,
    pairs_of,
    read_failures,
    refuse_nothing,
    regrouped,
    tell_read,
)
from graphrag_ray.indexing.step_result import Result, by_input, rows_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

Known = npt.NDArray[np.bytes_]
"""Sorted: what tells each document of the parent, and what it holds, from all others."""

BASE = stable_id("input", ROWS)
"""What stands for the folder of INPUT: a row is named by its id alone."""
SMALL_BYTES = 1 << 15
"""Stored pairs of parts below this are joined: batches can be single rows, and each part is a file."""
JOINED_BYTES = 1 << 18
PAIRS_OF_A_BATCH = 8
"""Pairs of parts that a batch comes to, unless that would make them very small or large."""

_SEEN = pa.schema(
    [("id", pa.string()), ("content_hash", pa.string()), ("name", pa.string()), ("is_known", pa.bool_())]
)
"""Every row that is a document, also one that is not written: is_known, the parent has it as it is."""


def read_rows(run: Run, given: GivenRows, add: bool, allow_deletes: bool) -> Result:
    read_batch = partial(_read_batch, run.settings, run.executor.share(_known(run)))
    one_by_one = Parted(_one_by_one, partial(_unread, run.settings))
    told = tell_read(run, None, lambda number: 1)
    written = run.map("read", read_batch, given, one_by_one, told)
    tables = by_input(written, "documents", "text_units", "failures")
    if not rows_of(tables["failures"]) and not any(done.get("seen") for done in written):
        raise InputError(f"INPUT ({given}) has no rows")
    unchanged = _without_repeated(run, written, tables)
    if run.parent is None and not any(tables["documents"]):
        refuse_nothing(run, tables["failures"], "row")
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    pairs = sorted(
        (pair for documents, units in groups if documents for pair in pairs_of(documents, units)),
        key=lambda pair: [part.path for part in pair[0]],
    )
    sizes = [sum(part.bytes for part in (*documents, *units)) for documents, units in pairs]
    small = [i for i, size in enumerate(sizes) if size < SMALL_BYTES]
    batches = stable_batches([pairs[i][0][0].path for i in small], [sizes[i] for i in small], JOINED_BYTES)
    together = [[small[i] for i in batch] for batch in batches if len(batch) > 1]
    written = run.map("read", _join, [[pairs[i] for i in batch] for batch in together])
    joined, alone = by_input(written, "documents", "text_units"), {*range(len(pairs))}.difference(*together)
    tables["documents"] = [pairs[i][0] for i in sorted(alone)] + joined["documents"]
    tables["text_units"] = [pairs[i][1] for i in sorted(alone)] + joined["text_units"]
    counts = keep_and_count(run, tables, BASE, add, allow_deletes, unchanged)
    run.inputs = inputs_of(run, BASE, add)
    return Result(regrouped(tables), counts | {"chunks": rows_of(tables["text_units"])})


def _known(run: Run) -> Known:
    """None of it where this run would make other chunks of the same rows, or parts are damaged."""
    now, then = run.settings.kept(), run.parent.settings if run.parent else {}
    alike = all(then.get(name) == now[name] for name in ("input", "chunking", "models", "stages"))
    if run.code_changed or run.damaged or not alike:
        return np.empty(0, "S32")
    parts = run.of_parent["read"].parts("documents")
    known = _told_apart(read_table(run.store, parts, ["id", "content_hash"], schema.DOCUMENTS))
    known.sort()
    return known


def _told_apart(table: pa.Table) -> Known:
    """The first 64 bits of id and of content_hash, in hex."""
    halves = [pc.utf8_slice_codeunits(table[name], 0, 16) for name in ("id", "content_hash")]
    joined = pc.binary_join_element_wise(*halves, "")
    return np.asarray(joined.to_numpy().astype("S32")) if table.num_rows else np.empty(0, "S32")


def _read_batch(
    settings: Settings, known: Callable[[], Known], store: Store, batch: RowBatch
) -> Iterator[Mapping[str, pa.Table]]:
    documents: dict[str, Document] = {}
    unreadable: list[Unreadable] = []
    seen: list[dict[str, Any]] = []
    for one in documents_of(rows_of_batch(batch), settings.input):
        if isinstance(one, Unreadable):
            unreadable.append(one)
            continue
        seen.append({"id": one.id, "content_hash": one.content_hash, "name": one.row, "is_known": False})
        other = documents.get(one.id)
        if other is None or one.content_hash < other.content_hash:
            documents[one.id] = one
    table = pa.Table.from_pylist(seen, schema=_SEEN)
    if len(before := known()):
        mine = _told_apart(table)
        is_known = before[np.minimum(np.searchsorted(before, mine), len(before) - 1)] == mine
        table = table.set_column(3, "is_known", pa.array(is_known))
        same = table.filter(table["is_known"])
        for id_, content_hash in zip(same["id"].to_pylist(), same["content_hash"].to_pylist(), strict=True):
            if id_ in documents and documents[id_].content_hash == content_hash:
                del documents[id_]
    new = [documents[id_] for id_ in sorted(documents)]
    size = batch.nbytes if isinstance(batch, pa.Table) else sum(len(document.text) for document in new)
    limit = MIN_SPLIT_BYTES  # of a pair; a power of two. The batches of a large corpus are large.
    while limit < min(size / PAIRS_OF_A_BATCH, MAX_SPLIT_BYTES):
        limit *= 2
    yield from document_parts([*unreadable, *new], settings, limit)
    yield {"seen": table}


def _one_by_one(batch: RowBatch) -> list[RowBatch]:
    if isinstance(batch, pa.Table):
        return [batch.slice(n, 1) for n in range(batch.num_rows)]
    return [[row] for row in batch]


def _unread(settings: Settings, batch: RowBatch, why: str) -> Mapping[str, pa.Table]:
    """What stands for rows of which processes die."""
    found = list(documents_of(rows_of_batch(batch), settings.input))
    return {"failures": read_failures([Unreadable(ROWS, one.row, f"cannot be read: {why}") for one in found])}


def _without_repeated(run: Run, written: Written, tables: dict[str, list[list[Part]]]) -> pa.Table:
    """Leave one of the rows with the same id, whichever comes first: that with the smallest hash. Returns id
    and content_hash of the rows that the parent holds as they are."""
    parts = {n: done["seen"] for n, done in enumerate(written) if done.get("seen")}
    found = [
        table.append_column("batch", pa.array([n] * table.num_rows, pa.int64()))
        for n, of in parts.items()
        for table in [read_table(run.store, of, None, _SEEN)]
    ]
    seen = pa.concat_tables(found) if found else _SEEN.append(pa.field("batch", pa.int64())).empty_table()
    same = pc.value_counts(seen["id"])
    ids = same.field("values").filter(pc.greater(same.field("counts"), 1))
    if not len(ids):
        return seen.filter(seen["is_known"]).select(["id", "content_hash"])
    repeated = seen.filter(pc.is_in(seen["id"], ids))
    order = [(name, "ascending") for name in ("id", "content_hash", "batch")]
    first: dict[str, dict[str, Any]] = {}
    rest: dict[int, set[str]] = {}
    for row in repeated.sort_by(order).to_pylist():
        if first.setdefault(row["id"], row)["batch"] != row["batch"]:
            rest.setdefault(row["batch"], set()).add(row["id"])
    leave_out(run, tables, rest)
    if run.settings.input.id_column is None:
        n = repeated.num_rows - len(ids)
        told = plural(n, "row of INPUT repeats another", "rows of INPUT repeat others")
        run.observer.note(f"{told}: each text is indexed once")
    else:
        column = run.settings.input.id_column
        why = f"several rows have this id (column {column!r}): one of them is indexed"
        failed = read_failures([Unreadable(ROWS, row["name"], why) for row in first.values()])
        tables["failures"].append(run.write("read", "failures", [failed]))
    stay = seen.filter(seen["is_known"]).select(["id", "content_hash"])
    lost = {(row["id"], row["content_hash"]) for row in repeated.to_pylist()}
    lost -= {(row["id"], row["content_hash"]) for row in first.values()}
    both = pc.binary_join_element_wise(stay["id"], stay["content_hash"], "")
    stay = stay.filter(pc.invert(pc.is_in(both, pa.array(sorted(map("".join, lost)), pa.string()))))
    return stay.group_by(["id", "content_hash"]).aggregate([])


def _join(store: Store, pairs: Sequence[tuple[list[Part], list[Part]]]) -> Iterator[Mapping[str, pa.Table]]:
    documents = read_table(store, [p for d, _ in pairs for p in d], None, schema.DOCUMENTS)
    units = read_table(store, [p for _, u in pairs for p in u], None, schema.TEXT_UNITS)
    order = [("document_id", "ascending"), ("position", "ascending")]
    yield {"documents": documents.sort_by("id"), "text_units": units.sort_by(order)}
