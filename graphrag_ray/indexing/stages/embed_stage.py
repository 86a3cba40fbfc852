"""Embeddings of entities, relationships, chunks and reports: one request a text, many packed in a call. The
texts that are embedded are found by keyword, too.

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
from graphrag_ray.base.declarations import HIERARCHIES, REPORTS, SEARCHED
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.document import columns_of, metadata_lines
from graphrag_ray.corpus.document_titles import header
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.engine.executor import Tables, Written
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph.report_context import shown_content
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import ROWS_AT_ONCE, Run, each, failure_rows, replayed
from graphrag_ray.indexing.stages.document_parts import pairs_of
from graphrag_ray.indexing.step_result import (
    Result,
    TakenOver,
    by_input,
    fingerprint_of,
    joined,
    passing,
    rows_of,
)
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
    """

    kind: str
    parts: Sequence[Part]
    documents: Sequence[Part] = ()
    columns: tuple[str, ...] = ()


def written_texts(results: Results, columns: tuple[str, ...] | None) -> dict[str, list[Texts]]:
    """By kind, in groups, the parts that hold the texts of its records.

    columns: of the documents' metadata, which are said above chunks beside title and date; None: nothing is
    """
    described = results.graph.described if results.graph else None
    reports = {HIERARCHIES[name].reports: of.reports for name, of in results.hierarchies.items()}
    return _by_kind(results.corpus, described, reports, columns)


def earlier_texts(steps: Mapping[str, Result], columns: tuple[str, ...] | None) -> dict[str, list[Texts]]:
    """`written_texts` of a snapshot. steps: its steps' results."""
    ends = {kind.reports: steps.get(kind.stages[-1], Result()) for kind in HIERARCHIES.values()}
    reports = {kind: of for kind, of in ends.items() if "reports" in of.tables}
    return _by_kind(steps["read"], steps.get("describe"), reports, columns)


def _by_kind(
    corpus: Result,
    described: Result | None,
    reports: Mapping[str, Result],
    columns: tuple[str, ...] | None,
) -> dict[str, list[Texts]]:
    groups: dict[str, Sequence[Sequence[Part]]] = {}
    if described:
        groups = {"entity": described.tables["entities"], "relationship": described.tables["relationships"]}
    groups |= {kind: of.tables["reports"] for kind, of in reports.items()}
    found = {kind: [Texts(kind, group) for group in groups_] for kind, groups_ in groups.items()}
    return {**found, "text_unit": chunk_texts(corpus, columns)}


def chunk_texts(corpus: Result, columns: tuple[str, ...] | None) -> list[Texts]:
    """Those of chunks; columns: as for `written_texts`."""
    units, documents = corpus.tables["text_units"], corpus.tables["documents"]
    if columns is None:
        return [Texts("text_unit", group) for group in units]
    both = zip(units, documents, strict=True)
    return [Texts("text_unit", group, documents=of, columns=columns) for group, of in both]


def embeddings_of(results: Iterable[Result]) -> dict[str, list[list[Part]]]:
    """Tables embeddings_<kind>, whichever step has made them."""
    return {
        name: groups
        for result in results
        for name, groups in result.tables.items()
        if name.startswith("embeddings_")
    }


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


def load_texts(store: Store, x: Texts) -> Iterator[pa.Table]:
    """Kind, id and text of the records that some parts of a kind hold."""
    kind = x.kind
    headers = _headers(store, x)
    for part in x.parts:
        table = read_part(store, part, ["community", "full_content"] if kind in REPORTS else None)
        if kind in REPORTS:
            id_ = pa.array([report_id(of) for of in table["community"].to_pylist()], pa.string())
            text = pa.array([shown_content(t) for t in table["full_content"].to_pylist()], pa.string())
        elif kind == "text_unit":
            id_, text = table["id"], table["text"]
            if headers:
                both = zip(table["document_id"].to_pylist(), text.to_pylist(), strict=True)
                below = [headers[d](t) + t if d in headers else t for d, t in both]
                text = pa.array(below, pa.large_string())
        else:  # as Microsoft GraphRAG embeds them: an entity's "title: description"
            id_ = table["id"]
            if kind == "entity":
                name = table["title"]
            else:
                name = pc.binary_join_element_wise(table["source"], table["target"], " – ")
            text = pc.binary_join_element_wise(name, table["description"], ": ")
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
    work = Work("embed", partial(_start, embedder), _label, turns=None)
    if run.settings.model(embedder.call.model).provider == "offline":
        answers: Any = partial(_computed, embedder)
    else:
        index = run.sweep_rows(work, _load, inputs, rows_of([x.now.parts for x in inputs]))
        answers = partial(_journalled, work, index)
    return run.map(step, partial(_collect, work, answers), inputs)


def _load(store: Store, x: ToEmbed) -> Iterator[pa.Table]:
    """The texts that have no vector yet."""
    yield from _without(*_seen(store, x))


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


def _embedded(run: Run, step: str, texts: Mapping[str, Sequence[Texts]]) -> Result:
    options, embedder = run.settings.embeddings, Embedder.of(run.settings)
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

    return run.step(step, [texts, *how], compute, "embed")


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
    # Entities and relationships are in ranges of ids: the rows of a range are compared with what they were.
    described = run.before("describe") if kind in ("entity", "relationship") else None
    then = [group for group in described.tables.get(SEARCHED[kind].table, []) if group] if described else []
    before = run.before(step)
    vectors = before.tables.get(names[0], []) if before and alike else []
    if len(then) == len(vectors) == len(texts):
        inputs = [
            ToEmbed(x, replace(x, parts=old), of) for x, old, of in zip(texts, then, vectors, strict=True)
        ]
    return run.taken_over(step, inputs, how, names, told=told, journal="embed")


def _start(embedder: Embedder, store: Store, row: Row) -> Dialogue[bytes]:
    return embedder.embed(row["text"])


def _label(row: Row) -> tuple[str, str]:
    return f"{row['kind']} {row['id']}", ""


def _collect(
    work: Work[bytes],
    answers: Callable[[Store, Iterable[pa.Table]], Iterator[list[tuple[Row, Outcome[bytes]]]]],
    store: Store,
    x: ToEmbed,
) -> Iterator[Tables]:
    """The vectors of texts, those that were made and those that were there, in the order of the texts."""
    kind, (texts, known) = x.now.kind, _seen(store, x)
    vectors: dict[str, bytes] = {}
    for batch in answers(store, _without(texts, known)):
        yield {"failures": failure_rows("embed", work, batch)}
        vectors |= {row["id"]: o.result for row, o in batch if o.status == "complete" and o.result}
    if known.num_rows:
        flat = known["vector"].combine_chunks().flatten().to_numpy().reshape(known.num_rows, -1)
        vectors |= {id_: row.tobytes() for id_, row in zip(known["id"].to_pylist(), flat, strict=True)}
        ids = (id_ for table in texts for id_ in table["id"].to_pylist())
        vectors = {id_: vectors[id_] for id_ in ids if id_ in vectors}
    done = list(vectors.items())
    for at in range(0, len(done), PART_ROWS):
        some = done[at : at + PART_ROWS]
        flat = np.frombuffer(b"".join(vector for _, vector in some), dtype="<f4")
        dimension = len(flat) // len(some)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat), dimension)
        rows = pa.table([pa.array([id_ for id_, _ in some]), column], schema.EMBEDDINGS[kind](dimension))
        yield {f"embeddings_{kind}": rows}


def _journalled(
    work: Work[bytes], index: Callable[[], JournalIndex], store: Store, texts: Iterable[pa.Table]
) -> Iterator[list[tuple[Row, Outcome[bytes]]]]:
    return replayed(work, index(), store, texts)


def _computed(
    embedder: Embedder, store: Store, texts: Iterable[pa.Table]
) -> Iterator[list[tuple[Row, Outcome[bytes]]]]:
    from graphrag_ray.offline import embed_many  # not read where a model embeds

    def embedded(rows: pa.Table) -> list[bytes]:
        return embed_many([embedder.cut(text) for text in rows["text"].to_pylist()])

    for table in texts:
        for at in range(0, table.num_rows, ROWS_AT_ONCE):
            yield [
                (
                    row,
                    Outcome("", "retry", error=made, attempts=1)
                    if isinstance(made, str)
                    else Outcome("", "complete", made),
                )
                for row, made in each(table.slice(at, ROWS_AT_ONCE), embedded)
            ]
