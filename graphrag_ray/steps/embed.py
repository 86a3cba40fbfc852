"""Embeddings of entities, relationships, chunks and reports: one request a text, many packed in a call.

The offline engine's are computed where the texts are read: they cost nothing, and to keep each in the journal
took four times as long as to make it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray import schema
from graphrag_ray.embedding import Embedder
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.ids import report_id
from graphrag_ray.messages import Dialogue
from graphrag_ray.reports.context import shown_content
from graphrag_ray.steps.run import (
    ROWS_AT_ONCE,
    Result,
    Run,
    by_input,
    each,
    failure_rows,
    passing,
    replayed,
    rows_of,
)
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part

PART_ROWS = 8_192
"""Vectors in a stored part: 8 to 50 MB."""

TEXTS = pa.schema([("id", pa.string()), ("kind", pa.string()), ("text", pa.large_string())])


def embed_all(run: Run, corpus: Result, described: Result, reports: Result, ids: list[str]) -> Result:
    """Tables embeddings_<kind> (id, vector) for each kind of schema.EMBEDDINGS; failures.

    ids: of the communities, by number in the hierarchy; a report bears its community's.
    """
    options = run.settings.embeddings
    if not options.enabled:
        return Result()
    embedder = Embedder.of(run.settings)
    work = _work(embedder)

    def compute() -> Result:
        inputs: list[Any] = []
        report_ids = ids_of_reports(ids)
        for kind, groups in written_texts(corpus, described, reports).items():
            inputs += [
                (kind, group, report_ids if kind == "community_report" else None) for group in groups if group
            ]
        if run.settings.model(embedder.call.model).provider == "offline":
            collect = partial(_embed_here, embedder)
        else:
            index = run.sweep_rows(work, load_texts, inputs, rows_of([group for _, group, _ in inputs]))
            collect = partial(_collect, work, index)
        written = run.executor.map("embed", collect, inputs)
        names = [f"embeddings_{kind}" for kind in schema.EMBEDDINGS]
        tables = by_input(written, *names, "failures")
        counts = {"embeddings": sum(p.rows for name in names for g in tables[name] for p in g)}
        return Result(tables, counts, not passing(run.store, tables))

    depends_on = [written_texts(corpus, described, reports), ids, options, embedder]
    return run.step("embed", depends_on, compute, work.name)


def written_texts(corpus: Result, described: Result, reports: Result) -> dict[str, list[list[Part]]]:
    """By kind, the parts that hold the texts of its records."""
    return {
        "entity": described.tables["entities"],
        "relationship": described.tables["relationships"],
        "text_unit": corpus.tables["text_units"],
        "community_report": reports.tables["reports"],
    }


def ids_of_reports(ids: list[str]) -> pa.Array:
    """By number of their communities in the hierarchy. ids: of the communities."""
    return pa.array([report_id(id_) for id_ in ids], pa.string())


def _work(embedder: Embedder) -> Work[bytes]:
    return Work("embed", partial(_start, embedder), _label, turns=None)


def _start(embedder: Embedder, store: Store, row: Row) -> Dialogue[bytes]:
    return embedder.embed(row["text"])


def _label(row: Row) -> tuple[str, str]:
    return f"{row['kind']} {row['id']}", ""


def load_texts(store: Store, x: tuple[str, list[Part], pa.Array | None]) -> Iterator[pa.Table]:
    """Kind, id and text of the records that some parts of a kind hold; report_ids: for reports."""
    kind, parts, report_ids = x
    for part in parts:
        table = read_part(store, part)
        if kind == "community_report":
            assert report_ids is not None
            id_ = report_ids.take(table["number"].combine_chunks())
            text = pa.array([shown_content(t) for t in table["full_content"].to_pylist()], pa.string())
        else:
            id_ = table["id"]
            text = table["text"] if kind == "text_unit" else _element_text(kind, table)
        columns = [id_, pa.array([kind] * table.num_rows, pa.string()), text.cast(pa.large_string())]
        yield pa.table(columns, schema=TEXTS)


def _element_text(kind: str, table: pa.Table) -> pa.ChunkedArray:
    """The texts that Microsoft GraphRAG embeds: an entity's "title: description"."""
    if kind == "entity":
        return pc.binary_join_element_wise(table["title"], table["description"], ": ")
    ends = pc.binary_join_element_wise(table["source"], table["target"], " – ")
    return pc.binary_join_element_wise(ends, table["description"], ": ")


def _collect(
    work: Work[bytes],
    index: Callable[[], JournalIndex],
    store: Store,
    x: tuple[str, list[Part], pa.Array | None],
) -> Iterator[Tables]:
    done: list[tuple[str, bytes]] = []
    for batch in replayed(work, index(), store, load_texts(store, x)):
        yield {"failures": failure_rows("embed", work, batch)}
        done += [(row["id"], o.result) for row, o in batch if o.status == "complete" and o.result]
        if len(done) >= PART_ROWS:
            yield _vectors(x[0], done)
            done = []
    if done:
        yield _vectors(x[0], done)


def _embed_here(
    embedder: Embedder, store: Store, x: tuple[str, list[Part], pa.Array | None]
) -> Iterator[Tables]:
    from graphrag_ray.offline import embed_many  # not read where a model embeds

    def embedded(rows: pa.Table) -> list[bytes]:
        return embed_many([embedder.cut(text) for text in rows["text"].to_pylist()])

    done: list[tuple[str, bytes]] = []
    for table in load_texts(store, x):
        for at in range(0, table.num_rows, ROWS_AT_ONCE):
            rows = table.slice(at, ROWS_AT_ONCE)
            failed: list[tuple[Row, Outcome[bytes]]] = []
            for row, vector in each(rows, embedded):
                if isinstance(vector, str):
                    failed.append((row, Outcome("", "retry", error=vector, attempts=1)))
                else:
                    done.append((row["id"], vector))
            if failed:
                yield {"failures": failure_rows("embed", _work(embedder), failed)}
            if len(done) >= PART_ROWS:
                yield _vectors(x[0], done)
                done = []
    if done:
        yield _vectors(x[0], done)


def _vectors(kind: str, done: list[tuple[str, bytes]]) -> Tables:
    vectors = np.frombuffer(b"".join(v for _, v in done), dtype="<f4")
    dimension = len(vectors) // len(done)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimension)
    columns = [pa.array([i for i, _ in done]), column]
    return {f"embeddings_{kind}": pa.table(columns, schema=schema.EMBEDDINGS[kind](dimension))}
