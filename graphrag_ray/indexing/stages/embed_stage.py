"""Embeddings of entities, relationships, chunks and reports: one request a text, many packed in a call.

The offline engine's are computed where the texts are read: they cost nothing, and to keep each in the journal
took four times as long as to make it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.document_titles import header
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.corpus.metadata import columns_of, metadata_lines
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.indexing.run import (
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
from graphrag_ray.indexing.stages.kept_documents import pairs_of
from graphrag_ray.reports.report_context import shown_content
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

PART_ROWS = 8_192
"""Vectors in a stored part: 8 to 50 MB."""

TEXTS = pa.schema([("id", pa.string()), ("kind", pa.string()), ("text", pa.large_string())])
_ABOUT = ["id", "title", "creation_date", "path", "row"]


@dataclass(frozen=True)
class Texts:
    """Parts that hold the texts of records of a kind.

    documents    of chunks: parts that hold their documents, whose titles and dates are said above them;
                 none: nothing is said
    columns      of the documents' metadata, which are said, too
    report_ids   of reports, by number of their communities in the hierarchy
    """

    kind: str
    parts: Sequence[Part]
    documents: Sequence[Part] = ()
    columns: tuple[str, ...] = ()
    report_ids: pa.Array | None = None


def embed_all(run: Run, corpus: Result, described: Result, reports: Result, ids: list[str]) -> Result:
    """Tables embeddings_<kind> (id, vector) for each kind of schema.EMBEDDINGS; failures.

    ids: of the communities, by number in the hierarchy; a report bears its community's.
    """
    options = run.settings.embeddings
    if not options.enabled:
        return Result()
    embedder = Embedder.of(run.settings)
    work = _work(embedder)
    columns = run.settings.chunking.prepended_metadata if options.with_titles else None
    texts = written_texts(corpus, described, reports, columns)

    def compute() -> Result:
        report_ids = ids_of_reports(ids)
        inputs = [
            replace(x, report_ids=report_ids if kind == "community_report" else None)
            for kind, groups in texts.items()
            for x in groups
            if x.parts
        ]
        if run.settings.model(embedder.call.model).provider == "offline":
            collect = partial(_embed_here, embedder)
        else:
            index = run.sweep_rows(work, load_texts, inputs, rows_of([x.parts for x in inputs]))
            collect = partial(_collect, work, index)
        written = run.executor.map("embed", collect, inputs)
        names = [f"embeddings_{kind}" for kind in schema.EMBEDDINGS]
        tables = by_input(written, *names, "failures")
        counts = {"embeddings": sum(p.rows for name in names for g in tables[name] for p in g)}
        return Result(tables, counts, not passing(run.store, tables))

    depends_on = [texts, ids, options, embedder]
    return run.step("embed", depends_on, compute, work.name)


def written_texts(
    corpus: Result, described: Result, reports: Result, columns: tuple[str, ...] | None
) -> dict[str, list[Texts]]:
    """By kind, in groups, the parts that hold the texts of its records.

    columns: of the documents' metadata, which are said above chunks beside title and date; None: nothing is
    """
    groups: Mapping[str, Sequence[Sequence[Part]]] = {
        "entity": described.tables["entities"],
        "relationship": described.tables["relationships"],
        "text_unit": corpus.tables["text_units"],
        "community_report": reports.tables["reports"],
    }
    found = {kind: [Texts(kind, group) for group in groups_] for kind, groups_ in groups.items()}
    if columns is not None:
        documents = corpus.tables["documents"]
        found["text_unit"] = [
            replace(x, documents=of, columns=columns)
            for x, of in zip(found["text_unit"], documents, strict=True)
        ]
    return found


def by_part(groups: Sequence[Texts]) -> list[Texts]:
    """The parts one by one; of chunks, each with no more documents than it takes."""
    found = []
    for x in groups:
        if not x.documents:
            found += [replace(x, parts=[part]) for part in x.parts]
            continue
        for documents, parts in pairs_of(list(x.documents), list(x.parts)):
            found += [replace(x, parts=[part], documents=documents) for part in parts]
    return found


def ids_of_reports(ids: list[str]) -> pa.Array:
    """By number of their communities in the hierarchy. ids: of the communities."""
    return pa.array([report_id(id_) for id_ in ids], pa.string())


def _work(embedder: Embedder) -> Work[bytes]:
    return Work("embed", partial(_start, embedder), _label, turns=None)


def _start(embedder: Embedder, store: Store, row: Row) -> Dialogue[bytes]:
    return embedder.embed(row["text"])


def _label(row: Row) -> tuple[str, str]:
    return f"{row['kind']} {row['id']}", ""


def load_texts(store: Store, x: Texts) -> Iterator[pa.Table]:
    """Kind, id and text of the records that some parts of a kind hold."""
    kind = x.kind
    headers = _headers(store, x)
    for part in x.parts:
        table = read_part(store, part)
        if kind == "community_report":
            assert x.report_ids is not None
            id_ = x.report_ids.take(table["number"].combine_chunks())
            text = pa.array([shown_content(t) for t in table["full_content"].to_pylist()], pa.string())
        else:
            id_ = table["id"]
            text = _chunk_text(table, headers) if kind == "text_unit" else _element_text(kind, table)
        columns = [id_, pa.array([kind] * table.num_rows, pa.string()), text.cast(pa.large_string())]
        yield pa.table(columns, schema=TEXTS)


def _headers(store: Store, x: Texts) -> dict[str, Callable[[str], str]]:
    """By id of a document, what makes the header of a chunk's text."""
    if not x.documents:
        return {}
    names = [*_ABOUT, "raw_data"] if x.columns else _ABOUT
    rows = read_table(store, x.documents, names, schema.DOCUMENTS).to_pylist()
    return {
        r["id"]: partial(
            header,
            *(r["title"], r["creation_date"], r["path"] or "", r["row"] or ""),
            more=metadata_lines(columns_of(r["raw_data"]), x.columns) if x.columns else "",
        )
        for r in rows
    }


def _chunk_text(table: pa.Table, headers: Mapping[str, Callable[[str], str]]) -> pa.Array | pa.ChunkedArray:
    """The texts of chunks, below what is said of their documents."""
    if not headers:
        return table["text"]
    texts, of = table["text"].to_pylist(), table["document_id"].to_pylist()
    return pa.array(
        [headers[d](t) + t if d in headers else t for d, t in zip(of, texts, strict=True)],
        pa.large_string(),
    )


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
    x: Texts,
) -> Iterator[Tables]:
    done: list[tuple[str, bytes]] = []
    for batch in replayed(work, index(), store, load_texts(store, x)):
        yield {"failures": failure_rows("embed", work, batch)}
        done += [(row["id"], o.result) for row, o in batch if o.status == "complete" and o.result]
        if len(done) >= PART_ROWS:
            yield _vectors(x.kind, done)
            done = []
    if done:
        yield _vectors(x.kind, done)


def _embed_here(embedder: Embedder, store: Store, x: Texts) -> Iterator[Tables]:
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
                yield _vectors(x.kind, done)
                done = []
    if done:
        yield _vectors(x.kind, done)


def _vectors(kind: str, done: list[tuple[str, bytes]]) -> Tables:
    vectors = np.frombuffer(b"".join(v for _, v in done), dtype="<f4")
    dimension = len(vectors) // len(done)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimension)
    columns = [pa.array([i for i, _ in done]), column]
    return {f"embeddings_{kind}": pa.table(columns, schema=schema.EMBEDDINGS[kind](dimension))}
