"""The graph as CSV files, for spreadsheets, databases and Gephi's importer.

nodes.csv        id, label, type, description, degree, frequency, C0, C1, … (as in `graphml.py`)
edges.csv        id, source, target, source_label, target_label, weight, description
communities.csv  id, level, parent, size, rank, title, summary; of a community without a report the last
                 three are empty, parent is empty at the root
memberships.csv  community, level, entity: a row for each entity of each community at its own level

Ids are the short ids that `inspect` takes. UTF-8 with a byte order mark, without which Excel reads another
encoding; Python's `utf-8-sig` and pandas take it off. Text that a spreadsheet would take for a formula has
a single quote before it (OWASP, CSV Injection); numbers are never quoted, so that -1 stays a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from graphrag_ray.export.cells import for_spreadsheet
from graphrag_ray.export.members import AT_ONCE, Nodes, read_nodes
from graphrag_ray.export.output import Output
from graphrag_ray.query.reading import Reader, schema_of

FILES = ("nodes.csv", "edges.csv", "communities.csv", "memberships.csv")
BOM = b"\xef\xbb\xbf"

_COMMUNITY = ["community", "level", "parent", "size"]

Pieces: TypeAlias = Iterator[pa.Table]


def write_csv(reader: Reader, output: Output) -> list[str]:
    """The four files. Raises CorruptPart, SnapshotRemoved, StoreError."""
    nodes = read_nodes(reader)
    tables = (_nodes(reader, nodes), _edges(reader, nodes), _communities(reader), _memberships(reader, nodes))
    for path, pieces in zip(FILES, tables, strict=True):
        write_rows(output, path, pieces)
    return []


def write_rows(output: Output, path: str, pieces: Pieces) -> None:
    """pieces: the first tells the columns, and may be empty."""
    first = next(pieces)
    rows = 0
    with output.file(path) as local, open(local, "wb") as file:
        file.write(BOM)
        with csv.CSVWriter(file, first.schema) as writer:
            for piece in _and(first, pieces):
                writer.write_table(piece)
                rows += piece.num_rows
    output.rows[path] = rows


def _and(first: pa.Table, rest: Pieces) -> Pieces:
    yield first
    yield from rest


def _nodes(reader: Reader, nodes: Nodes) -> Pieces:
    columns = ["human_readable_id", "title", "type", "description", "degree", "frequency"]
    start = 0
    for part in _with_schema(reader, "entities", columns):
        end = start + part.num_rows
        piece = _renamed(part, {"human_readable_id": "id", "title": "label"})
        for level in range(len(nodes.community)):
            piece = piece.append_column(f"C{level}", nodes.at_level(level, start, end))
        yield guarded(piece)
        start = end


def _edges(reader: Reader, nodes: Nodes) -> Pieces:
    columns = ["human_readable_id", "source_id", "target_id", "source", "target", "weight", "description"]
    for part in _with_schema(reader, "relationships", columns):
        ends = [nodes.numbers(part[end]) for end in ("source_id", "target_id")]
        piece = pa.table([part["human_readable_id"], *ends], names=["id", "source", "target"])
        for name, column in (("source_label", "source"), ("target_label", "target")):
            piece = piece.append_column(name, part[column])
        for column in ("weight", "description"):
            piece = piece.append_column(column, part[column])
        yield guarded(piece)


def _communities(reader: Reader) -> Pieces:
    """Those with a report, then those without."""
    told = ["rank", "title", "summary"]
    reported = [np.empty(0, np.int64)]
    for part in _with_schema(reader, "community_reports", [*_COMMUNITY, *told]):
        reported.append(part["community"].to_numpy())
        yield guarded(_community_columns(part, [part[column] for column in told]))
    for part in reader.pieces("communities", _COMMUNITY, AT_ONCE):
        rest = part.filter(pa.array(~np.isin(part["community"].to_numpy(), np.concatenate(reported))))
        none = [pa.nulls(rest.num_rows, field.type) for field in schema_of("community_reports", told)]
        yield guarded(_community_columns(rest, none))


def _community_columns(rows: pa.Table, told: list[Any]) -> pa.Table:
    root = pc.less(rows["parent"], 0)
    parent = pc.if_else(root, pa.scalar(None, pa.int64()), rows["parent"])
    columns = [rows["community"], rows["level"], parent, rows["size"], *told]
    return pa.table(columns, names=["id", "level", "parent", "size", "rank", "title", "summary"])


def _memberships(reader: Reader, nodes: Nodes) -> Pieces:
    for part in _with_schema(reader, "communities", ["community", "level", "entity_ids"]):
        lists = part["entity_ids"].combine_chunks()
        of = pc.list_parent_indices(lists)
        yield pa.table(
            [part["community"].take(of), part["level"].take(of), nodes.numbers(pc.list_flatten(lists))],
            names=["community", "level", "entity"],
        )


def _with_schema(reader: Reader, table: str, columns: Sequence[str]) -> Pieces:
    """The pieces of a table, after an empty one."""
    yield schema_of(table, columns).empty_table()
    yield from reader.pieces(table, columns, AT_ONCE)


def _renamed(table: pa.Table, names: dict[str, str]) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def guarded(table: pa.Table) -> pa.Table:
    columns: list[Any] = [
        for_spreadsheet(column) if pa.types.is_string(column.type) else column for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
