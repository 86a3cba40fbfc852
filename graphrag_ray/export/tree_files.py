"""A tree of summaries as GraphML or CSV: what each summary was written from.

Nodes   s12 is a summary, c7 a chunk, by the short ids that `inspect` takes; label (a summary's title, or
where
        the chunk is), kind, level (0 is the highest; chunks have none), size (chunks that it rests on), text
        of a summary
Edges   from a summary to each summary or chunk that it was written from. A node may be under several.

GraphML: graph.graphml, directed. CSV: nodes.csv and edges.csv.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.export.cells import for_xml
from graphrag_ray.export.graphml import FOOT, document_head, elements
from graphrag_ray.export.members import AT_ONCE, Places
from graphrag_ray.export.output import Output
from graphrag_ray.export.spreadsheets import guarded, write_rows
from graphrag_ray.query.reading import Reader
from graphrag_ray.query.sources import place

GRAPH, NODES, EDGES = "graph.graphml", "nodes.csv", "edges.csv"
_NODE = {"label": "string", "kind": "string", "level": "long", "size": "long", "text": "string"}
_NODES = pa.schema(
    [("id", pa.string()), *((n, pa.int64() if t == "long" else pa.string()) for n, t in _NODE.items())]
)
_EDGES = pa.schema([("source", pa.string()), ("target", pa.string())])


def write_tree(reader: Reader, output: Output, kind: HierarchyKind, format: str) -> list[str]:
    """Raises CorruptPart, SnapshotRemoved, StoreError."""
    if format == "csv":
        write_rows(output, NODES, _first(_NODES, map(guarded, _nodes(reader, kind))))
        write_rows(output, EDGES, _first(_EDGES, _edges(reader, kind)))
        return []
    rows = 0
    with output.file(GRAPH) as local, open(local, "w", encoding="utf-8", newline="\n") as file:
        file.write(document_head([(name, "node", type_) for name, type_ in _NODE.items()], directed=True))
        for table in _nodes(reader, kind):
            rows += table.num_rows
            opened = (f'<node id="{id_}">' for id_ in table["id"].to_pylist())
            columns = {
                name: for_xml(table[name]) if t == "string" else table[name] for name, t in _NODE.items()
            }
            file.write("".join(elements(opened, columns, "</node>")))
        for table in _edges(reader, kind):
            ends = zip(table["source"].to_pylist(), table["target"].to_pylist(), strict=True)
            file.write("".join(f'    <edge source="{a}" target="{b}"/>\n' for a, b in ends))
        file.write(FOOT)
    output.rows[GRAPH] = rows
    return []


def _first(of: pa.Schema, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield of.empty_table()
    yield from tables


def _nodes(reader: Reader, kind: HierarchyKind) -> Iterator[pa.Table]:
    """Summaries, then those that failed, which stand between others all the same, then chunks."""
    columns = ["human_readable_id", "title", "level", "size"]
    written = [np.empty(0, np.int64)]
    for part in reader.pieces(kind.reports_table, [*columns, "summary"], AT_ONCE):
        written.append(part["human_readable_id"].to_numpy())
        yield _summaries(part, part["summary"])
    for part in reader.pieces(kind.communities, columns, AT_ONCE):
        failed = ~np.isin(part["human_readable_id"].to_numpy(), np.concatenate(written))
        rest = part.filter(pa.array(failed))
        yield _summaries(rest, pa.nulls(rest.num_rows, pa.string()))
    documents = reader.table("documents", ["id", "path", "row"]).to_pylist()
    where = {row["id"]: place(row["path"] or "", row["row"] or "") for row in documents}
    units = ["human_readable_id", "document_id", "start", "end"]
    for part in reader.pieces("text_units", units, AT_ONCE):
        rows = zip(*(part[name].to_pylist() for name in units[1:]), strict=True)
        labels = pa.array([f"{where.get(of, '')}, characters {a}–{b}" for of, a, b in rows], pa.string())
        n = part.num_rows
        none, what = pa.nulls(n, pa.int64()), pa.array(["chunk"] * n, pa.string())
        text = pa.nulls(n, pa.string())
        yield pa.table(
            [_named("c", part["human_readable_id"]), labels, what, none, none, text], schema=_NODES
        )


def _summaries(rows: pa.Table, text: pa.Array | pa.ChunkedArray) -> pa.Table:
    what = pa.array(["summary"] * rows.num_rows, pa.string())
    ids = _named("s", rows["human_readable_id"])
    return pa.table([ids, rows["title"], what, rows["level"], rows["size"], text], schema=_NODES)


def _edges(reader: Reader, kind: HierarchyKind) -> Iterator[pa.Table]:
    chunks = Places.of(reader, "text_units")
    columns = ["community", "children", "text_unit_ids"]
    for part in reader.pieces(kind.communities, columns, AT_ONCE):
        lists = part["children"].combine_chunks()
        of = pc.list_parent_indices(lists)
        sources, targets = part["community"].take(of), pc.list_flatten(lists)
        yield pa.table([_named("s", sources), _named("s", targets)], schema=_EDGES)
        lowest = part.filter(pc.equal(pc.list_value_length(part["children"]), 0))
        lists = lowest["text_unit_ids"].combine_chunks()
        sources = lowest["community"].take(pc.list_parent_indices(lists))
        yield pa.table(
            [_named("s", sources), _named("c", chunks.numbers(pc.list_flatten(lists)))], schema=_EDGES
        )


def _named(letter: str, numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.binary_join_element_wise(letter, pc.cast(numbers, pa.string()), "")
