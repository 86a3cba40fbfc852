"""Write a note on every document, which is shown above its chunks (`input.document_context: model`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.corpus.chunks import chunk_header
from graphrag_ray.corpus.document import Document, parse_raw_data
from graphrag_ray.corpus.document_context import BEGINNING_CHARACTERS
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph.document_note import document_note, note_spec
from graphrag_ray.graph.extraction_dialogue import ChunkText
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.step_result import Result, count_rows, has_transient_failures, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part

NOTES = pa.schema([("document_id", pa.string()), ("note", pa.string())])
_COLUMNS = ["id", "title", "creation_date", "path", "row", "raw_data", "text"]


def write_notes(run: Run, corpus: Result) -> Result:
    """Write the notes. Returns tables notes (`NOTES`) and failures, both in the groups of the documents.

    A document without a note, because its request failed, is extracted with its title and date alone.
    """
    if run.settings.input.document_context != "model":
        return Result()
    spec, documents = note_spec(run.prompts, run.settings), corpus.tables["documents"]
    options = run.settings.chunking

    def header(row: Row) -> str:
        metadata = parse_raw_data(row["raw_data"])
        document = Document(row["path"], row["row"], row["title"], "", row["creation_date"], metadata)
        return chunk_header(document, options)("")

    work = Work(
        "context",
        lambda store, row: document_note(ChunkText(row["text"], header(row)), spec),
        lambda row: (row["id"], row["id"]),
    )

    def compute() -> Result:
        n_documents = count_rows(documents)
        run.item_totals[work.name] = n_documents, "documents"
        tables = ("notes", "failures")
        plan = run.reuse_plan(work.name, documents, [spec_key(spec)], tables, journal=work.name)
        index = run.sweep_rows(work, _load, plan.new_inputs, count_rows(plan.new_inputs))
        result = plan.merge_new(
            run.store, run.map(work.name, partial(_collect, work, index), plan.new_inputs)
        )
        is_final = not has_transient_failures(run.store, result.tables)
        return Result(result.tables, {}, is_final, result.made_from)

    return run.step(work.name, [documents, spec_key(spec)], compute, work.name)


def _load(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    for part in parts:
        table = read_part(store, part, _COLUMNS)
        beginnings = [text.as_py()[:BEGINNING_CHARACTERS] for text in table["text"]]
        column = table.schema.get_field_index("text")
        yield table.set_column(column, "text", pa.array(beginnings, pa.string()))


def _collect(
    work: Work[str], index: Callable[[], JournalIndex], store: Store, parts: list[Part]
) -> Iterator[Tables]:
    notes, failures = [NOTES.empty_table()], [schema.FAILURES.empty_table()]
    for batch in replay_rows(work, index(), store, _load(store, parts)):
        rows = [
            {"document_id": row["id"], "note": outcome.result}
            for row, outcome in batch
            if outcome.status == "complete"
        ]
        notes.append(pa.Table.from_pylist(rows, schema=NOTES))
        failures.append(failure_rows(work.name, work, batch))
    yield {"notes": pa.concat_tables(notes), "failures": pa.concat_tables(failures)}
