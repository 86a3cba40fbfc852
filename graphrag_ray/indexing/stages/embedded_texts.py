"""The texts of records that are embedded, and found by keyword: one form for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, REPORTS
from graphrag_ray.base.ids import report_id
from graphrag_ray.corpus.document import columns_of, metadata_lines
from graphrag_ray.corpus.document_titles import header
from graphrag_ray.graph.report_context import shown_content
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.stages.kept_documents import pairs_of
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

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
        table = read_part(store, part)
        if kind in REPORTS:
            id_ = pa.array([report_id(of) for of in table["community"].to_pylist()], pa.string())
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
