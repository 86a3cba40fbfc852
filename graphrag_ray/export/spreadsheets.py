"""Export the graph as CSV files for spreadsheets, databases and Gephi's importer.

    nodes.csv, edges.csv   the columns of `graph_tables.py`
    communities.csv        id, level, parent (empty at the root), size, period_start, period_end; rank, title
                           and summary of the report
    memberships.csv        community, level, entity: a row per entity of each community

A tree has only nodes and edges. Ids are the short ids that `inspect` accepts. Files are UTF-8 with a byte
order mark, which Excel needs and pandas and Python's `utf-8-sig` skip. Text that a spreadsheet would
interpret as a formula has a leading single quote (OWASP, CSV Injection). Numbers are never quoted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from graphrag_ray.base import schema
from graphrag_ray.export.exporters import Exporter, Snapshot
from graphrag_ray.export.graph_tables import (
    MAX_PIECE_ROWS,
    Nodes,
    edge_tables,
    escape_spreadsheet,
    node_tables,
    pieces,
    read_nodes,
)
from graphrag_ray.export.output import Output
from graphrag_ray.query.row_reader import Reader, schema_of

FILES = ("nodes.csv", "edges.csv", "communities.csv", "memberships.csv")
BOM = b"\xef\xbb\xbf"


def write(snapshot: Snapshot, output: Output) -> list[str]:
    """Write the CSV files. Raises CorruptPart, SnapshotRemoved, StoreError."""
    nodes = None if snapshot.is_tree else read_nodes(snapshot.reader)
    tables = [node_tables(snapshot, nodes), edge_tables(snapshot, nodes)]
    if nodes is not None:
        tables += [_communities(snapshot.reader), _memberships(snapshot.reader, nodes)]
    for path, table in zip(FILES, tables, strict=False):
        first = next(table)  # an empty table with the columns
        rows = 0
        with output.file(path) as local, open(local, "wb") as file:
            file.write(BOM)
            with csv.CSVWriter(file, first.schema) as writer:
                for piece in chain([first], table):
                    strings = pa.types.is_string
                    columns = [escape_spreadsheet(c) if strings(c.type) else c for c in piece.columns]
                    writer.write_table(pa.table(columns, names=piece.column_names))
                    rows += piece.num_rows
        output.rows[path] = rows
    return []


def _communities(reader: Reader) -> Iterator[pa.Table]:
    """Yield communities with a report, then communities without one."""
    columns = ["community", "level", "parent", "size", *schema.PERIOD_COLUMNS]
    report_columns = ["rank", "title", "summary"]
    reported = [np.empty(0, np.int64)]
    for part in pieces(reader, "community_reports", [*columns, *report_columns]):
        reported.append(part["community"].to_numpy())
        yield _community_columns(part, [part[column] for column in report_columns])
    for part in reader.iter_batches("communities", columns, MAX_PIECE_ROWS):
        rows = part.filter(pa.array(~np.isin(part["community"].to_numpy(), np.concatenate(reported))))
        fields = schema_of("community_reports", report_columns)
        yield _community_columns(rows, [pa.nulls(rows.num_rows, field.type) for field in fields])


def _community_columns(rows: pa.Table, report: list[Any]) -> pa.Table:
    root = pc.less(rows["parent"], 0)
    parent = pc.if_else(root, pa.scalar(None, pa.int64()), rows["parent"])
    columns = [rows["community"], rows["level"], parent, rows["size"]]
    columns += [*(rows[name] for name in schema.PERIOD_COLUMNS), *report]
    names = ["id", "level", "parent", "size", *schema.PERIOD_COLUMNS, "rank", "title", "summary"]
    return pa.table(columns, names=names)


def _memberships(reader: Reader, nodes: Nodes) -> Iterator[pa.Table]:
    for part in pieces(reader, "communities", ["community", "level", "entity_ids"]):
        lists = part["entity_ids"].combine_chunks()
        parents = pc.list_parent_indices(lists)
        yield pa.table(
            [
                part["community"].take(parents),
                part["level"].take(parents),
                nodes.numbers(pc.list_flatten(lists)),
            ],
            names=["community", "level", "entity"],
        )


EXPORTER = Exporter(
    write,
    "nodes, edges, communities and memberships for spreadsheets",
    FILES,
    lambda url: "Text that a spreadsheet would interpret as a formula has a leading single quote.",
    supports_trees=True,
)
