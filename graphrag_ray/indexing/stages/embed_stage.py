"""Embeddings of entities, relationships, chunks and reports: one request a text, many packed in a call.

The offline engine's are computed where the texts are read: they cost nothing, and to keep each in the journal
took four times as long as to make it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.engine.executor import Tables, Written
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import ROWS_AT_ONCE, Run, each, failure_rows, replayed
from graphrag_ray.indexing.stages.embedded_texts import (
    Texts,
    chunk_texts,
    communities_of,
    ids_of_reports,
    load_texts,
    written_texts,
)
from graphrag_ray.indexing.step_result import Result, by_input, passing, rows_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part

PART_ROWS = 8_192
"""Vectors in a stored part: 8 to 50 MB."""


def embed_all(run: Run, results: Results) -> Result:
    """Tables embeddings_<kind> (id, vector) for each kind of record that the index has; failures."""
    options = run.settings.embeddings
    if not options.enabled:
        return Result()
    texts, ids = written_texts(results, _said_above(run)), communities_of(results)
    known = {
        name: groups
        for result in results
        for name, groups in result.tables.items()
        if name.startswith("embeddings_")
    }
    texts = {kind: of for kind, of in texts.items() if f"embeddings_{kind}" not in known}
    made = _embedded(run, "embed", texts, ids)
    return replace(made, tables=known | made.tables)


def embed_entities(run: Run, described: Result) -> Result:
    """Table embeddings_entity before there is any community; failures."""
    texts = {"entity": [Texts("entity", group) for group in described.tables["entities"]]}
    return _embedded(run, "embed_entities", texts, {})


def embed_chunks(run: Run, corpus: Result) -> Result:
    """Table embeddings_text_unit before there is any summary of chunks; failures."""
    return _embedded(run, "embed_chunks", {"text_unit": chunk_texts(corpus, _said_above(run))}, {})


def _said_above(run: Run) -> tuple[str, ...] | None:
    """Columns of metadata that chunks are embedded with, see `written_texts`."""
    with_titles = run.settings.embeddings.with_titles
    return run.settings.chunking.prepended_metadata if with_titles else None


def embed_now(run: Run, step: str, inputs: Sequence[Texts]) -> tuple[list[Part], bool]:
    """Parts with id and vector of some texts, in the middle of a step, and whether the next run has nothing
    to try again. Texts that could not be embedded are not there; step `embed` tells of them, since it asks
    for the same."""
    names = sorted({f"embeddings_{x.kind}" for x in inputs})
    written = _written(run, step, Embedder.of(run.settings), inputs)
    final = not passing(run.store, by_input(written, "failures"))
    return [part for w in written for name in names for part in w.get(name, [])], final


def _written(run: Run, step: str, embedder: Embedder, inputs: Sequence[Texts]) -> Written:
    work = _work(embedder)
    if run.settings.model(embedder.call.model).provider == "offline":
        collect = partial(_embed_here, embedder)
    else:
        index = run.sweep_rows(work, load_texts, inputs, rows_of([x.parts for x in inputs]))
        collect = partial(_collect, work, index)
    return run.executor.map(step, collect, inputs)


def _embedded(
    run: Run, step: str, texts: Mapping[str, Sequence[Texts]], ids: Mapping[str, list[str]]
) -> Result:
    options, embedder = run.settings.embeddings, Embedder.of(run.settings)

    def compute() -> Result:
        report_ids = {kind: ids_of_reports(of) for kind, of in ids.items()}
        inputs = [
            replace(x, report_ids=report_ids.get(kind))
            for kind, groups in texts.items()
            for x in groups
            if x.parts
        ]
        written = _written(run, step, embedder, inputs)
        names = [f"embeddings_{kind}" for kind in schema.EMBEDDINGS if kind in texts]
        tables = by_input(written, *names, "failures")
        counts = {"embeddings": sum(p.rows for name in names for g in tables[name] for p in g)}
        return Result(tables, counts, not passing(run.store, tables))

    depends_on = [texts, [i for of in ids.values() for i in of], options, embedder]
    return run.step(step, depends_on, compute, _work(embedder).name)


def _work(embedder: Embedder) -> Work[bytes]:
    return Work("embed", partial(_start, embedder), _label, turns=None)


def _start(embedder: Embedder, store: Store, row: Row) -> Dialogue[bytes]:
    return embedder.embed(row["text"])


def _label(row: Row) -> tuple[str, str]:
    return f"{row['kind']} {row['id']}", ""


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
