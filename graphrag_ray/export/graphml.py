"""The graph as GraphML (graphml.graphdrawing.org), for Gephi, igraph, networkx and their kin.

Nodes   label (the name that Gephi shows), title, type, description, degree, frequency, and C0, C1, …: the
        number of the community that holds the node at each level. No positions: laying out is left to
        whoever draws it.
Edges   undirected; weight, description

Ids are n12 and e7, of the short ids that `inspect` takes. What is absent has no element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

import pyarrow as pa

from graphrag_ray.export.cells import for_xml
from graphrag_ray.export.members import AT_ONCE, Nodes, read_nodes
from graphrag_ray.export.output import Output
from graphrag_ray.query.reading import Reader

FILES = ("graph.graphml",)
_NODE = {"label": "string", "title": "string", "type": "string", "description": "string", "degree": "long",
         "frequency": "long"}  # fmt: skip
_EDGE = {"weight": "double", "edge_description": "string"}
"""Attributes and their types. Ids of keys are unique in the document, their names in nodes or in edges."""


def write_graphml(reader: Reader, output: Output) -> list[str]:
    """graph.graphml. Raises CorruptPart, SnapshotRemoved, StoreError."""
    nodes = read_nodes(reader)
    with output.file(FILES[0]) as local, open(local, "w", encoding="utf-8", newline="\n") as file:
        file.write(head(len(nodes.community)))
        _write_nodes(reader, nodes, file)
        _write_edges(reader, nodes, file)
        file.write(FOOT)
    output.rows[FILES[0]] = len(nodes.number)
    return []


def head(n_levels: int) -> str:
    """Everything before the first node."""
    keys = [(name, "node", type_) for name, type_ in _NODE.items()]
    keys += [(f"C{level}", "node", "long") for level in range(n_levels)]
    keys += [(name, "edge", type_) for name, type_ in _EDGE.items()]
    return document_head(keys)


def document_head(keys: Sequence[tuple[str, str, str]], *, directed: bool = False) -> str:
    """The same, of any attributes: their ids, what they are of, and their types."""
    edges = "directed" if directed else "undirected"
    declared = "".join(
        f'  <key id="{id_}" for="{of}" attr.name="{id_.removeprefix("edge_")}" attr.type="{type_}"/>\n'
        for id_, of, type_ in keys
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"\n'
        '    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
        '    xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns '
        'http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">\n'
        f'{declared}  <graph edgedefault="{edges}">\n'
    )


FOOT = "  </graph>\n</graphml>\n"


def node_lines(entities: pa.Table, levels: list[pa.Array]) -> str:
    """Entities as elements; levels: the community of each at C0, C1, …"""
    title = for_xml(entities["title"])
    columns = {"label": title, "title": title, "type": for_xml(entities["type"])}
    columns |= {"description": for_xml(entities["description"])}
    columns |= {name: entities[name] for name in ("degree", "frequency")}
    columns |= {f"C{level}": column for level, column in enumerate(levels)}
    opened = (f'<node id="n{number}">' for number in entities["human_readable_id"].to_pylist())
    return "".join(elements(opened, columns, "</node>"))


def edge_lines(relationships: pa.Table, source: pa.Array, target: pa.Array) -> str:
    """Relationships as elements; source, target: short ids of the ends."""
    ids = relationships["human_readable_id"].to_pylist()
    opened = (
        f'<edge id="e{number}" source="n{a}" target="n{b}">'
        for number, a, b in zip(ids, source.to_pylist(), target.to_pylist(), strict=True)
    )
    columns = {"weight": relationships["weight"], "edge_description": for_xml(relationships["description"])}
    return "".join(elements(opened, columns, "</edge>"))


def elements(
    opened: Iterator[str], columns: dict[str, pa.ChunkedArray | pa.Array], closed: str
) -> Iterator[str]:
    starts = [f'<data key="{name}">' for name in columns]
    values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    for start, row in zip(opened, values, strict=True):
        data = [f"{s}{v}</data>" for s, v in zip(starts, row, strict=True) if v is not None and v != ""]
        yield f"    {start}{''.join(data)}{closed}\n"


def _write_nodes(reader: Reader, nodes: Nodes, file: TextIO) -> None:
    columns = ["human_readable_id", "title", "type", "description", "degree", "frequency"]
    start = 0
    for rows in reader.pieces("entities", columns, AT_ONCE):
        end = start + rows.num_rows
        levels = [nodes.at_level(level, start, end) for level in range(len(nodes.community))]
        file.write(node_lines(rows, levels))
        start = end


def _write_edges(reader: Reader, nodes: Nodes, file: TextIO) -> None:
    columns = ["human_readable_id", "source_id", "target_id", "weight", "description"]
    for rows in reader.pieces("relationships", columns, AT_ONCE):
        source, target = (nodes.numbers(rows[end]) for end in ("source_id", "target_id"))
        file.write(edge_lines(rows, source, target))
