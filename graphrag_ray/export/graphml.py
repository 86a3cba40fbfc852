"""Export the graph as GraphML (graphml.graphdrawing.org) for Gephi, igraph, networkx and others.

Nodes and edges have the columns of `graph_tables.py` but no coordinates, because the reading program computes
the layout. Edges are undirected in a graph and directed in a tree. In a graph, ids such as n12 and e7 contain
the short ids that `inspect` accepts; in a tree, ids look like s12 and c7. Missing values are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from graphrag_ray.export.exporters import Exporter, Snapshot
from graphrag_ray.export.graph_tables import edge_tables, escape_xml, node_tables, read_nodes
from graphrag_ray.export.output import Output

PATH = "graph.graphml"
FOOTER = "  </graph>\n</graphml>\n"
_ENDS = ("id", "source", "target", "source_label", "target_label")
"""Columns of edges that are not exported as attributes."""


def write(snapshot: Snapshot, output: Output) -> list[str]:
    """Write graph.graphml. Raises CorruptPart, SnapshotRemoved, StoreError."""
    members = None if snapshot.is_tree else read_nodes(snapshot.reader)
    nodes, edges = node_tables(snapshot, members), edge_tables(snapshot, members)
    rows = 0
    with output.file(PATH) as local, open(local, "w", encoding="utf-8", newline="\n") as file:
        file.write(header(next(nodes), next(edges), directed=snapshot.is_tree))
        for table in nodes:
            file.write(node_lines(table))
            rows += table.num_rows
        for table in edges:
            file.write(edge_lines(table))
        file.write(FOOTER)
    output.rows[PATH] = rows
    return []


def header(nodes: pa.Table, edges: pa.Table, *, directed: bool = False) -> str:
    """Render everything before the first node. Only the columns of `nodes` and `edges` matter."""
    keys = ""
    for element, columns in (("node", _node_data(nodes)), ("edge", _edge_data(edges))):
        for id_, column in columns.items():
            is_text, is_integer = pa.types.is_string(column.type), pa.types.is_integer(column.type)
            kind = "string" if is_text else "long" if is_integer else "double"
            name = id_.removeprefix("edge_")
            keys += f'  <key id="{id_}" for="{element}" attr.name="{name}" attr.type="{kind}"/>\n'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"\n'
        '    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
        '    xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns '
        'http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">\n'
        f'{keys}  <graph edgedefault="{"directed" if directed else "undirected"}">\n'
    )


def node_lines(nodes: pa.Table) -> str:
    return "".join(
        _elements((f'<node id="{id_}">' for id_ in _ids(nodes, "id")), _node_data(nodes), "</node>")
    )


def edge_lines(edges: pa.Table) -> str:
    ends = list(zip(_ids(edges, "source"), _ids(edges, "target"), strict=True))
    if "id" not in edges.column_names:
        return "".join(f'    <edge source="{a}" target="{b}"/>\n' for a, b in ends)
    start_tags = (
        f'<edge id="e{id_}" source="{a}" target="{b}">'
        for id_, (a, b) in zip(edges["id"].to_pylist(), ends, strict=True)
    )
    return "".join(_elements(start_tags, _edge_data(edges), "</edge>"))


def _ids(table: pa.Table, name: str) -> Iterator[str]:
    return (id_ if isinstance(id_, str) else f"n{id_}" for id_ in table[name].to_pylist())


def _node_data(nodes: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return attributes by key id, which is unique in the document. Nodes of a graph also have a title."""
    label = {"label": nodes["label"]} | ({"title": nodes["label"]} if "type" in nodes.column_names else {})
    return label | {name: nodes[name] for name in nodes.column_names if name not in ("id", "label")}


def _edge_data(edges: pa.Table) -> dict[str, pa.ChunkedArray]:
    ids = {"description": "edge_description"}
    return {ids.get(name, name): edges[name] for name in edges.column_names if name not in _ENDS}


def _elements(start_tags: Iterator[str], columns: dict[str, pa.ChunkedArray], end_tag: str) -> Iterator[str]:
    data_tags = [f'<data key="{name}">' for name in columns]
    escaped = (escape_xml(c) if pa.types.is_string(c.type) else c for c in columns.values())
    values = zip(*(column.to_pylist() for column in escaped), strict=True)
    for start, row in zip(start_tags, values, strict=True):
        data = [f"{t}{v}</data>" for t, v in zip(data_tags, row, strict=True) if v is not None and v != ""]
        yield f"    {start}{''.join(data)}{end_tag}\n"


EXPORTER = Exporter(
    write,
    "the graph for Gephi and similar tools, with communities as node attributes C0, C1, …",
    (PATH,),
    lambda url: "Open it in Gephi. Colour nodes by community (C0, C1, …), or in a tree by kind or level.",
    supports_trees=True,
)
