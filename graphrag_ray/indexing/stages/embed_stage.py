"""Embed entities, relationships, chunks and reports. Keyword search uses the same texts.

Vectors of the offline engine are not journalled, but computed when the texts are read: storing each in the
journal took four times as long as computing it again.
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
from graphrag_ray.base.declarations import HIERARCHIES, REPORT_KINDS, SEARCHABLE_KINDS
from graphrag_ray.base.ids import report_id
from graphrag_ray.corpus.document import metadata_lines, parse_raw_data
from graphrag_ray.corpus.document_titles import document_header
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.engine.executor import Tables, WrittenParts
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph.report_context import content_for_context
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import REPLAY_BATCH_ROWS, Run, apply_or_report, failure_rows, replay_rows
from graphrag_ray.indexing.stages.document_parts import pairs_of
from graphrag_ray.indexing.step_result import (
    Result,
    count_rows,
    fingerprint_of,
    has_transient_failures,
    join_results,
    parts_by_input,
)
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

PART_ROWS = 8_192
"""Maximum number of vectors in a part, 8 to 50 MB."""
TEXTS = pa.schema([("id", pa.string()), ("kind", pa.string()), ("text", pa.large_string())])


@dataclass(frozen=True)
class Texts:
    """Parts that contain the texts of records of a kind.

    If there are `documents`, each chunk's text is preceded by a header with its document's title, date and
    the metadata `columns`.
    """

    kind: str
    parts: Sequence[Part]
    documents: Sequence[Part] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Input:
    """Texts to embed, and the texts and vectors of the same group in the parent snapshot."""

    now: Texts
    before: Texts | None = None
    vectors: Sequence[Part] = ()


def current_texts(results: Results, columns: tuple[str, ...] | None) -> dict[str, list[Texts]]:
    """Return the texts of each kind in groups. Chunks have no headers if `columns` is None."""
    descriptions = results.graph.descriptions if results.graph else None
    reports = {HIERARCHIES[name].report_kind: built.reports for name, built in results.hierarchies.items()}
    return _by_kind(results.corpus, descriptions, reports, columns)


def parent_texts(steps: Mapping[str, Result], columns: tuple[str, ...] | None) -> dict[str, list[Texts]]:
    """Return the texts of a snapshot like `current_texts`, given the results of its steps."""
    last = {kind.report_kind: steps.get(kind.stages[-1], Result()) for kind in HIERARCHIES.values()}
    reports = {kind: result for kind, result in last.items() if "reports" in result.tables}
    return _by_kind(steps["read"], steps.get("describe"), reports, columns)


def _by_kind(
    corpus: Result,
    descriptions: Result | None,
    reports: Mapping[str, Result],
    columns: tuple[str, ...] | None,
) -> dict[str, list[Texts]]:
    groups: dict[str, Sequence[Sequence[Part]]] = {}
    if descriptions:
        kinds = ("entity", "relationship")
        groups = {kind: descriptions.tables[SEARCHABLE_KINDS[kind].table] for kind in kinds}
    groups |= {kind: result.tables["reports"] for kind, result in reports.items()}
    texts = {kind: [Texts(kind, group) for group in kind_groups] for kind, kind_groups in groups.items()}
    return {**texts, "text_unit": _chunk_texts(corpus, columns)}


def _chunk_texts(corpus: Result, columns: tuple[str, ...] | None) -> list[Texts]:
    if columns is None:
        return [Texts("text_unit", units) for units in corpus.tables["text_units"]]
    groups = zip(corpus.tables["text_units"], corpus.tables["documents"], strict=True)
    return [Texts("text_unit", units, documents, columns) for units, documents in groups]


def embeddings_of(results: Iterable[Result]) -> dict[str, list[list[Part]]]:
    """Return tables embeddings_<kind> of all steps."""
    tables = (item for result in results for item in result.tables.items())
    return {name: groups for name, groups in tables if name.startswith("embeddings_")}


def by_part(groups: Sequence[Texts]) -> list[Texts]:
    """Split texts into single parts. A part of chunks keeps only the documents that it needs."""
    texts = []
    for group in groups:
        if group.documents:
            for documents, parts in pairs_of(list(group.documents), list(group.parts)):
                texts += [replace(group, parts=[part], documents=documents) for part in parts]
        else:
            texts += [replace(group, parts=[part]) for part in group.parts]
    return texts


def load_texts(store: Store, texts: Texts) -> Iterator[pa.Table]:
    """Yield the texts of each part as a table `TEXTS`."""
    kind = texts.kind
    headers = _headers(store, texts)
    for part in texts.parts:
        table = read_part(store, part, ["community", "full_content"] if kind in REPORT_KINDS else None)
        if kind in REPORT_KINDS:
            id_ = pa.array([report_id(c) for c in table["community"].to_pylist()], pa.string())
            text = pa.array([content_for_context(t) for t in table["full_content"].to_pylist()], pa.string())
        elif kind == "text_unit":
            id_, text = table["id"], table["text"]
            if headers:
                chunks = zip(table["document_id"].to_pylist(), text.to_pylist(), strict=True)
                with_headers = [headers[d](t) + t if d in headers else t for d, t in chunks]
                text = pa.array(with_headers, pa.large_string())
        else:  # Microsoft GraphRAG also embeds "title: description" of an entity.
            id_ = table["id"]
            names = [table["title"]] if kind == "entity" else [table["source"], table["target"]]
            name = pc.binary_join_element_wise(*names, " – ")
            text = pc.binary_join_element_wise(name, table["description"], ": ")
        columns = [id_, pa.array([kind] * table.num_rows, pa.string()), text.cast(pa.large_string())]
        yield pa.table(columns, schema=TEXTS)


def _headers(store: Store, texts: Texts) -> dict[str, Callable[[str], str]]:
    """Return, by document id, a function that makes the header of a chunk from its text."""
    if not texts.documents:
        return {}
    names = ["id", "title", "creation_date", "path", "row", *(["raw_data"] if texts.columns else [])]
    rows = read_table(store, texts.documents, names, schema.DOCUMENTS).to_pylist()
    return {
        r["id"]: partial(
            document_header,
            *(r["title"], r["creation_date"], r["path"] or "", r["row"] or ""),
            metadata=metadata_lines(parse_raw_data(r["raw_data"]), texts.columns) if texts.columns else "",
        )
        for r in rows
    }


def embed_all(run: Run, results: Results) -> Result:
    """Return tables embeddings_<kind> (id, vector) for each kind of record, and failures."""
    if not run.settings.embeddings.enabled:
        return Result()
    known = embeddings_of(results)
    texts = current_texts(results, _header_columns(run))
    texts = {kind: groups for kind, groups in texts.items() if f"embeddings_{kind}" not in known}
    new = _embed(run, "embed", texts)
    return replace(new, tables=known | new.tables)


def embed_entities(run: Run, descriptions: Result) -> Result:
    """Embed entities before a hierarchy clusters them: table embeddings_entity, and failures."""
    texts = {"entity": [Texts("entity", group) for group in descriptions.tables["entities"]]}
    return _embed(run, "embed_entities", texts)


def embed_chunks(run: Run, corpus: Result) -> Result:
    """Embed chunks before a hierarchy clusters them: table embeddings_text_unit, and failures."""
    return _embed(run, "embed_chunks", {"text_unit": _chunk_texts(corpus, _header_columns(run))})


def embed_now(run: Run, step: str, texts: Sequence[Texts]) -> tuple[list[Part], bool]:
    """Embed texts in the middle of a step. Also returns whether the next run has nothing to retry.

    Texts that could not be embedded are missing. Step `embed` makes the same requests and reports them.
    """
    names = sorted({f"embeddings_{group.kind}" for group in texts})
    written = _write_vectors(
        run, step, Embedder.from_settings(run.settings), [_Input(group) for group in texts]
    )
    final = not has_transient_failures(run.store, parts_by_input(written, "failures"))
    return [part for tables in written for name in names for part in tables.get(name, [])], final


def _header_columns(run: Run) -> tuple[str, ...] | None:
    """Return the metadata columns in the headers of chunks, or None for no headers."""
    include_titles = run.settings.embeddings.include_titles
    return run.settings.chunking.prepended_metadata if include_titles else None


def _embed(run: Run, step: str, texts: Mapping[str, Sequence[Texts]]) -> Result:
    embedder = Embedder.from_settings(run.settings)
    depends_on = [run.settings.embeddings, embedder]

    def compute() -> Result:
        fingerprint, before = fingerprint_of([*depends_on, _header_columns(run)]), run.parent_result(step)
        is_same_model = before is not None and before.made_from.get("vectors") == [fingerprint]
        plans = {}
        for kind in schema.EMBEDDINGS:
            if kind not in texts:
                continue
            groups = [group for group in texts[kind] if group.parts]
            names = (f"embeddings_{kind}", f"failures_{kind}")
            inputs = [_Input(group) for group in groups]
            # Groups of entities and relationships are ranges of ids, whose rows can be compared one by one.
            descriptions = run.parent_result("describe") if kind in ("entity", "relationship") else None
            previous = descriptions.tables.get(SEARCHABLE_KINDS[kind].table, []) if descriptions else []
            previous = [group for group in previous if group]
            vectors = before.tables.get(names[0], []) if before and is_same_model else []
            if len(previous) == len(vectors) == len(groups):
                ranges = zip(groups, previous, vectors, strict=True)
                inputs = [_Input(group, replace(group, parts=old), done) for group, old, done in ranges]
            sources = [[group.parts, group.documents, group.columns] for group in groups]
            plans[kind] = run.reuse_plan(step, inputs, depends_on, names, identities=sources, journal="embed")
        inputs = [group for plan in plans.values() for group in plan.new_inputs]
        written = iter(
            {f"failures_{group.now.kind}" if n == "failures" else n: parts for n, parts in tables.items()}
            for group, tables in zip(inputs, _write_vectors(run, step, embedder, inputs), strict=True)
        )
        result = join_results(
            plan.merge_new(run.store, list(islice(written, len(plan.new_inputs)))) for plan in plans.values()
        )
        counts = {"embeddings": sum(count_rows(result.tables[f"embeddings_{kind}"]) for kind in plans)}
        made_from = result.made_from | {"vectors": [fingerprint]}
        return Result(result.tables, counts, not has_transient_failures(run.store, result.tables), made_from)

    return run.step(step, [texts, *depends_on], compute, "embed")


def _write_vectors(run: Run, step: str, embedder: Embedder, inputs: Sequence[_Input]) -> WrittenParts:
    work = Work(
        "embed",
        lambda store, row: embedder.embed(row["text"]),
        lambda row: (f"{row['kind']} {row['id']}", ""),
        expected_turns=None,
    )
    index = None
    if run.settings.model(embedder.call.model).provider != "offline":
        index = run.sweep_rows(work, _load, inputs, count_rows([group.now.parts for group in inputs]))
    return run.map(step, partial(_collect, work, embedder, index), inputs)


def _load(store: Store, group: _Input) -> Iterator[pa.Table]:
    yield from _missing_texts(*_texts_and_known(store, group))


def _missing_texts(texts: Iterable[pa.Table], known: pa.Table) -> Iterator[pa.Table]:
    """Yield the texts that have no vector yet."""
    for table in texts:
        yield table.filter(pc.invert(pc.is_in(table["id"], value_set=known["id"].combine_chunks())))


def _texts_and_known(store: Store, group: _Input) -> tuple[Iterable[pa.Table], pa.Table]:
    """Return all texts, and id and vector of the texts that are unchanged since the parent snapshot."""
    if group.before is None or not group.vectors or not group.before.parts:
        return load_texts(store, group.now), pa.table({"id": pa.array([], pa.string())})
    texts = list(load_texts(store, group.now))
    now, previous = pa.concat_tables(texts), pa.concat_tables(load_texts(store, group.before))
    position = pc.index_in(now["id"], value_set=previous["id"].combine_chunks())
    is_same = pc.fill_null(pc.equal(now["text"], previous["text"].take(position)), False)
    vectors = read_table(store, group.vectors, ["id", "vector"])
    unchanged = now["id"].filter(is_same).combine_chunks()
    return texts, vectors.filter(pc.is_in(vectors["id"], value_set=unchanged))


def _collect(
    work: Work[bytes],
    embedder: Embedder,
    index: Callable[[], JournalIndex] | None,
    store: Store,
    group: _Input,
) -> Iterator[Tables]:
    """Write new and known vectors in the order of the texts. Without a journal, compute the new ones."""
    kind, (texts, known) = group.now.kind, _texts_and_known(store, group)
    new = _missing_texts(texts, known)
    vectors: dict[str, bytes] = {}
    for batch in replay_rows(work, index(), store, new) if index else _compute_offline(embedder, new):
        yield {"failures": failure_rows("embed", work, batch)}
        vectors |= {row["id"]: o.result for row, o in batch if o.status == "complete" and o.result}
    if known.num_rows:
        matrix = known["vector"].combine_chunks().flatten().to_numpy().reshape(known.num_rows, -1)
        vectors |= {id_: row.tobytes() for id_, row in zip(known["id"].to_pylist(), matrix, strict=True)}
        ids = (id_ for table in texts for id_ in table["id"].to_pylist())
        vectors = {id_: vectors[id_] for id_ in ids if id_ in vectors}
    pairs = list(vectors.items())
    for start in range(0, len(pairs), PART_ROWS):
        items = pairs[start : start + PART_ROWS]
        flat = np.frombuffer(b"".join(vector for _, vector in items), dtype="<f4")
        dimension = len(flat) // len(items)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat), dimension)
        rows = pa.table([pa.array([id_ for id_, _ in items]), column], schema.EMBEDDINGS[kind](dimension))
        yield {f"embeddings_{kind}": rows}


def _compute_offline(
    embedder: Embedder, texts: Iterable[pa.Table]
) -> Iterator[list[tuple[Row, Outcome[bytes]]]]:
    from graphrag_ray.offline import embed_many  # Imported lazily: not needed with an embedding model.

    def embed(rows: pa.Table) -> list[bytes]:
        return embed_many([embedder.truncate(text) for text in rows["text"].to_pylist()])

    def outcome(result: Any) -> Outcome[bytes]:
        if isinstance(result, str):
            return Outcome("", "retry", error=result, attempts=1)
        return Outcome("", "complete", result)

    for table in texts:
        for start in range(0, table.num_rows, REPLAY_BATCH_ROWS):
            yield [
                (row, outcome(result))
                for row, result in apply_or_report(table.slice(start, REPLAY_BATCH_ROWS), embed)
            ]
