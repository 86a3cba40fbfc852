"""Embeddings of entities, relationships, chunks and reports: one request a text, many packed in a call.

The offline engine's are computed where the texts are read: they cost nothing, and to keep each in the journal
took four times as long as to make it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import SEARCHED
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.engine.executor import Tables, Written
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import ROWS_AT_ONCE, Run, each, failure_rows, replayed
from graphrag_ray.indexing.stages.embedded_texts import (
    Texts,
    chunk_texts,
    embeddings_of,
    load_texts,
    written_texts,
)
from graphrag_ray.indexing.stages.known_chunks import earlier_groups
from graphrag_ray.indexing.step_result import (
    Result,
    by_input,
    fingerprint_of,
    joined,
    passing,
    rows_of,
)
from graphrag_ray.indexing.taken_over import TakenOver
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_table

PART_ROWS = 8_192
"""Vectors in a stored part: 8 to 50 MB."""


def embed_all(run: Run, results: Results) -> Result:
    """Tables embeddings_<kind> (id, vector) for each kind of record that the index has; failures."""
    options = run.settings.embeddings
    if not options.enabled:
        return Result()
    texts = written_texts(results, _said_above(run))
    known = embeddings_of(results)
    texts = {kind: of for kind, of in texts.items() if f"embeddings_{kind}" not in known}
    made = _embedded(run, "embed", texts)
    return replace(made, tables=known | made.tables)


def embed_entities(run: Run, described: Result) -> Result:
    """Table embeddings_entity before there is any community; failures."""
    texts = {"entity": [Texts("entity", group) for group in described.tables["entities"]]}
    return _embedded(run, "embed_entities", texts)


def embed_chunks(run: Run, corpus: Result) -> Result:
    """Table embeddings_text_unit before there is any summary of chunks; failures."""
    return _embedded(run, "embed_chunks", {"text_unit": chunk_texts(corpus, _said_above(run))})


def _said_above(run: Run) -> tuple[str, ...] | None:
    """Columns of metadata that chunks are embedded with, see `written_texts`."""
    with_titles = run.settings.embeddings.with_titles
    return run.settings.chunking.prepended_metadata if with_titles else None


def embed_now(run: Run, step: str, inputs: Sequence[Texts]) -> tuple[list[Part], bool]:
    """Parts with id and vector of some texts, in the middle of a step, and whether the next run has nothing
    to try again. Texts that could not be embedded are not there; step `embed` tells of them, since it asks
    for the same."""
    names = sorted({f"embeddings_{x.kind}" for x in inputs})
    written = _written(run, step, Embedder.of(run.settings), [ToEmbed(x) for x in inputs])
    final = not passing(run.store, by_input(written, "failures"))
    return [part for w in written for name in names for part in w.get(name, [])], final


def _written(run: Run, step: str, embedder: Embedder, inputs: Sequence[ToEmbed]) -> Written:
    work = _work(embedder)
    if run.settings.model(embedder.call.model).provider == "offline":
        collect = partial(_embed_here, embedder)
    else:
        index = run.sweep_rows(work, _load, inputs, rows_of([x.now.parts for x in inputs]))
        collect = partial(_collect, work, index)
    return run.executor.map(step, collect, inputs)


def _load(store: Store, x: ToEmbed) -> Iterator[pa.Table]:
    """The texts that have no vector yet."""
    texts, known = _seen(store, x)
    return _without(texts, known)


def _without(texts: Iterable[pa.Table], known: pa.Table) -> Iterator[pa.Table]:
    for table in texts:
        yield table.filter(pc.invert(pc.is_in(table["id"], value_set=known["id"].combine_chunks())))


def _seen(store: Store, x: ToEmbed) -> tuple[Iterable[pa.Table], pa.Table]:
    """The texts; and id and vector of those that are as they were in the parent snapshot."""
    if x.before is None or not x.vectors or not x.before.parts:
        return load_texts(store, x.now), pa.table({"id": pa.array([], pa.string())})
    texts = list(load_texts(store, x.now))
    now, then = pa.concat_tables(texts), pa.concat_tables(load_texts(store, x.before))
    at = pc.index_in(now["id"], value_set=then["id"].combine_chunks())
    same = pc.fill_null(pc.equal(now["text"], then["text"].take(at)), False)
    vectors = read_table(store, x.vectors, ["id", "vector"])
    return texts, vectors.filter(pc.is_in(vectors["id"], value_set=now["id"].filter(same).combine_chunks()))


def _all_vectors(
    kind: str, texts: Iterable[pa.Table], known: pa.Table, done: list[tuple[str, bytes]]
) -> Iterator[Tables]:
    """Those that were made and those that were there, in the order of the texts."""
    if known.num_rows:
        flat = known["vector"].combine_chunks().flatten().to_numpy().reshape(known.num_rows, -1)
        held = {id_: row.tobytes() for id_, row in zip(known["id"].to_pylist(), flat, strict=True)}
        held |= dict(done)
        ids = [id_ for table in texts for id_ in table["id"].to_pylist()]
        done = [(id_, held[id_]) for id_ in ids if id_ in held]
    for at in range(0, len(done), PART_ROWS):
        yield _vectors(kind, done[at : at + PART_ROWS])


def _embedded(run: Run, step: str, texts: Mapping[str, Sequence[Texts]]) -> Result:
    options, embedder = run.settings.embeddings, Embedder.of(run.settings)
    work = _work(embedder)
    how = [options, embedder]

    def compute() -> Result:
        told, before = fingerprint_of([*how, _said_above(run)]), run.before(step)
        alike = before is not None and before.made_from.get("vectors") == [told]
        known = {
            kind: _known(run, step, kind, [x for x in texts[kind] if x.parts], how, alike)
            for kind in schema.EMBEDDINGS
            if kind in texts
        }
        inputs = [x for of in known.values() for x in of.new]
        written = [
            {name if name != "failures" else f"failures_{x.now.kind}": parts for name, parts in done.items()}
            for x, done in zip(inputs, _written(run, step, embedder, inputs), strict=True)
        ]
        done = iter(written)
        result = joined(of.with_new(run.store, list(islice(done, len(of.new)))) for of in known.values())
        counts = {"embeddings": sum(rows_of(result.tables[f"embeddings_{kind}"]) for kind in known)}
        made_from = result.made_from | {"vectors": [told]}
        return Result(result.tables, counts, not passing(run.store, result.tables), made_from)

    return run.step(step, [texts, *how], compute, work.name)


@dataclass(frozen=True)
class ToEmbed:
    """Texts; before, vectors: those of the same group in the parent snapshot, and what came of them."""

    now: Texts
    before: Texts | None = None
    vectors: Sequence[Part] = ()


def _known(
    run: Run, step: str, kind: str, texts: Sequence[Texts], how: Any, alike: bool
) -> TakenOver[ToEmbed]:
    """alike: the parent's vectors are of the same model."""
    names = (f"embeddings_{kind}", f"failures_{kind}")
    told = [[x.parts, x.documents, x.columns] for x in texts]
    inputs = [ToEmbed(x) for x in texts]
    then, before = _before(run, kind), run.before(step)
    vectors = before.tables.get(names[0], []) if before and alike else []
    if len(then) == len(vectors) == len(texts) and not run.lost([p for g in [*then, *vectors] for p in g]):
        inputs = [
            ToEmbed(x, replace(x, parts=old), of) for x, old, of in zip(texts, then, vectors, strict=True)
        ]
    known = run.taken_over(step, inputs, how, names, told=told, journal="embed")
    if kind == "text_unit" and vectors and "read" in run.of_parent:
        known = replace(known, new=_with_earlier_chunks(run, known.new, vectors))
    return known


def _with_earlier_chunks(
    run: Run, new: Sequence[ToEmbed], vectors: Sequence[Sequence[Part]]
) -> list[ToEmbed]:
    """With groups of the parent snapshot that hold some of the same chunks. vectors: of its groups."""
    corpus, found = run.of_parent["read"].tables, []
    needed = [vectors, corpus.get("documents", [])]
    for x, at in zip(new, earlier_groups(run, [x.now.parts for x in new], needed), strict=True):
        units, documents = ([p for n in at for p in corpus[name][n]] for name in ("text_units", "documents"))
        then = replace(x.now, parts=units, documents=documents if x.now.documents else ()) if at else None
        found.append(ToEmbed(x.now, then, [part for n in at for part in vectors[n]]))
    return found


def _before(run: Run, kind: str) -> list[list[Part]]:
    """The parts of entities or relationships in the parent snapshot, which are in ranges of ids: the rows of
    a range are compared with what they were. [] for other kinds."""
    described = run.before("describe") if kind in ("entity", "relationship") else None
    groups = described.tables.get(SEARCHED[kind].table, []) if described else []
    return [group for group in groups if group]


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
    x: ToEmbed,
) -> Iterator[Tables]:
    done: list[tuple[str, bytes]] = []
    texts, known = _seen(store, x)
    for batch in replayed(work, index(), store, _without(texts, known)):
        yield {"failures": failure_rows("embed", work, batch)}
        done += [(row["id"], o.result) for row, o in batch if o.status == "complete" and o.result]
        while x.before is None and len(done) >= PART_ROWS:
            yield _vectors(x.now.kind, done[:PART_ROWS])
            done = done[PART_ROWS:]
    yield from _all_vectors(x.now.kind, texts, known, done)


def _embed_here(embedder: Embedder, store: Store, x: ToEmbed) -> Iterator[Tables]:
    from graphrag_ray.offline import embed_many  # not read where a model embeds

    def embedded(rows: pa.Table) -> list[bytes]:
        return embed_many([embedder.cut(text) for text in rows["text"].to_pylist()])

    done: list[tuple[str, bytes]] = []
    texts, known = _seen(store, x)
    for table in _without(texts, known):
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
            while x.before is None and len(done) >= PART_ROWS:
                yield _vectors(x.now.kind, done[:PART_ROWS])
                done = done[PART_ROWS:]
    yield from _all_vectors(x.now.kind, texts, known, done)


def _vectors(kind: str, done: list[tuple[str, bytes]]) -> Tables:
    vectors = np.frombuffer(b"".join(v for _, v in done), dtype="<f4")
    dimension = len(vectors) // len(done)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimension)
    columns = [pa.array([i for i, _ in done]), column]
    return {f"embeddings_{kind}": pa.table(columns, schema=schema.EMBEDDINGS[kind](dimension))}
