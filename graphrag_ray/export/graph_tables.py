"""The graph of a snapshot as Arrow tables, and text escaping, for exporters.

Graph: nodes have the columns id, label, type, description, degree, frequency, and C0, C1, …, with the number
of their community at each level. Edges have the columns id, source, target, source_label, target_label,
weight, description, relation (by the schema, from source to target, or ""). Ids are the short ids that
`inspect` accepts.

Tree: nodes are summaries (s12) and chunks (c7). They have the columns id, label (the title of a summary, or
the document and offsets of a chunk), kind, level (0 is the top; null for chunks), size (number of chunks that
a summary covers) and text (of a summary). Edges lead from a summary to each summary or chunk that it was
written from. A node may have several parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.wording import document_location
from graphrag_ray.export.exporters import Snapshot
from graphrag_ray.graph.integer_arrays import id_hash64
from graphrag_ray.query.row_reader import Reader, schema_of

Ints = npt.NDArray[np.int64]
NO_COMMUNITY = -1
MAX_PIECE_ROWS = 8_192
"""Maximum number of rows to convert to text at a time."""
_LINE_END = r"\r\n?"
_NOT_XML = r"[\x{0}-\x{8}\x{b}\x{c}\x{e}-\x{1f}\x{7f}-\x{9f}\x{fffe}\x{ffff}]"
"""Control characters except tab and line feed, and other code points that XML 1.0 excludes or discourages."""
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
_FORMULA = f"^[{_SIGNS}\t\r\n]"
"""Cells that a spreadsheet may interpret as a formula, also with full-width signs (OWASP, CSV Injection)."""
_NEW_CELL = f"([;\t]\\s*[\"']?)([{_SIGNS}])"
"""Formulas after a semicolon or tab, where some spreadsheets begin a new cell."""


def clean_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Normalise line endings to \\n and remove control characters."""
    lines = pc.replace_substring_regex(column, _LINE_END, "\n")
    return pc.replace_substring_regex(lines, _NOT_XML, "")


def escape_xml(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Clean text and escape it for XML elements and attributes."""
    escaped = clean_text(column)
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        escaped = pc.replace_substring(escaped, character, entity)
    return escaped


def escape_spreadsheet(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Clean text and put a single quote before formulas, also after a semicolon or tab."""
    cleaned = pc.replace_substring_regex(clean_text(column), _NEW_CELL, r"\1'\2")
    guarded = pc.binary_join_element_wise("'", cleaned, "")
    return pc.if_else(pc.match_substring_regex(cleaned, _FORMULA), guarded, cleaned)


@dataclass(frozen=True)
class IdIndex:
    """Maps ids to short numbers. Needs 16 bytes per row."""

    prefix: npt.NDArray[np.uint64]  # [N] first 64 bits of the ids, ascending
    number: Ints  # [N] human_readable_id

    @classmethod
    def of(cls, reader: Reader, table: str) -> IdIndex:
        prefix, number = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for part in reader.iter_batches(table, ["id", "human_readable_id"]):
            prefix.append(_prefixes(part["id"]))
            number.append(part["human_readable_id"].to_numpy())
        prefixes = np.concatenate(prefix)
        order = np.argsort(prefixes, kind="stable")
        return cls(prefixes[order], np.concatenate(number)[order])

    def positions(self, ids: pa.ChunkedArray | pa.Array) -> Ints:
        """Find the position of each id in `prefix`. Raises ValueError if an id is unknown."""
        wanted = _prefixes(ids)
        positions = np.searchsorted(self.prefix, wanted)
        if len(wanted) and (positions.max() == len(self.prefix) or (self.prefix[positions] != wanted).any()):
            raise ValueError("A relationship or community refers to a record that is not in its table")
        return positions.astype(np.int64)

    def numbers(self, ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        return pa.array(self.number[self.positions(ids)])


@dataclass(frozen=True)
class Nodes(IdIndex):
    """Entities by id, with their communities. Needs another 4 bytes per entity and level.

    Attributes:
        community: [levels, N] number of the entity's community at each level, or NO_COMMUNITY. As in the
            paper, a community that is not split also belongs to all finer levels.
    """

    community: npt.NDArray[np.int32]


def read_nodes(reader: Reader, communities: str = "communities") -> Nodes:
    """Read entities and communities. Raises CorruptPart, SnapshotRemoved."""
    entities = IdIndex.of(reader, "entities")
    levels = reader.table(communities, ["level"])["level"]
    n_levels = (pc.max(levels).as_py() + 1) if len(levels) else 0
    community_of = np.full((n_levels, len(entities.prefix)), NO_COMMUNITY, dtype=np.int32)
    for part in reader.iter_batches(communities, ["community", "level", "entity_ids"]):
        for batch in part.to_batches():
            rows = pc.list_parent_indices(batch["entity_ids"]).to_numpy()
            level, community = batch["level"].to_numpy()[rows], batch["community"].to_numpy()[rows]
            community_of[level, entities.positions(pc.list_flatten(batch["entity_ids"]))] = community
    for above, here in pairwise(community_of):
        np.copyto(here, above, where=here == NO_COMMUNITY)
    return Nodes(entities.prefix, entities.number, community_of)


def _prefixes(ids: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.uint64]:
    prefixes = id_hash64(ids)
    if prefixes is None:
        raise ValueError("An id column contains a value that is not an id")
    return prefixes


_TREE_NODES = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "label", "kind")),
        *((name, pa.int64()) for name in ("level", "size")),
        ("text", pa.string()),
    ]
)
_TREE_EDGES = pa.schema([("source", pa.string()), ("target", pa.string())])


def pieces(reader: Reader, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield an empty table with the columns, then the pieces of the table."""
    yield schema_of(table, columns).empty_table()
    yield from reader.iter_batches(table, columns, MAX_PIECE_ROWS)


def node_tables(snapshot: Snapshot, nodes: Nodes | None) -> Iterator[pa.Table]:
    """Yield an empty table, then the nodes. Pass nodes=None for a tree."""
    if nodes is None:
        yield _TREE_NODES.empty_table()
        yield from _tree_nodes(snapshot.reader, snapshot.hierarchy)
        return
    columns, start = ["title", "type", "description", "degree", "frequency"], 0
    for part in pieces(snapshot.reader, "entities", ["human_readable_id", *columns]):
        end = start + part.num_rows
        piece = part.rename_columns(["id", "label", *columns[1:]])
        for level, community in enumerate(nodes.community[:, start:end]):
            mask = community == NO_COMMUNITY
            piece = piece.append_column(f"C{level}", pa.array(community, mask=mask))
        yield piece
        start = end


def edge_tables(snapshot: Snapshot, nodes: Nodes | None) -> Iterator[pa.Table]:
    """Yield an empty table, then the edges. Pass nodes=None for a tree."""
    if nodes is None:
        yield _TREE_EDGES.empty_table()
        yield from _tree_edges(snapshot.reader, snapshot.hierarchy)
        return
    columns = ["human_readable_id", "source_id", "target_id", "source", "target", "weight", "description"]
    names = ["id", "source", "target", "source_label", "target_label", "weight", "description", "relation"]
    relation = ["relation", "relation_reversed"]
    for part in pieces(snapshot.reader, "relationships", [*columns, *relation]):
        turned = pc.fill_null(part["relation_reversed"], False)
        ends = [nodes.numbers(part[end]) for end in ("source_id", "target_id")]
        labels = [part[end] for end in ("source", "target")]
        directed = [pc.if_else(turned, *pair) for a, b in (ends, labels) for pair in ((b, a), (a, b))]
        rest = [part["weight"], part["description"], pc.fill_null(part["relation"], "")]
        yield pa.table([part["human_readable_id"], *directed, *rest], names=names)


def _tree_nodes(reader: Reader, kind: HierarchyKind) -> Iterator[pa.Table]:
    """Yield summaries, failed summaries (which connect other nodes) and chunks."""
    columns = ["human_readable_id", "title", "level", "size"]
    written = [np.empty(0, np.int64)]
    for part in reader.iter_batches(kind.reports_table, [*columns, "summary"], MAX_PIECE_ROWS):
        written.append(part["human_readable_id"].to_numpy())
        yield _summaries(part, part["summary"])
    for part in reader.iter_batches(kind.communities_table, columns, MAX_PIECE_ROWS):
        failed = ~np.isin(part["human_readable_id"].to_numpy(), np.concatenate(written))
        rows = part.filter(pa.array(failed))
        yield _summaries(rows, pa.nulls(rows.num_rows, pa.string()))
    documents = reader.table("documents", ["id", "path", "row"]).to_pylist()
    places = {row["id"]: document_location(row["path"] or "", row["row"] or "") for row in documents}
    for part in reader.iter_batches(
        "text_units", ["human_readable_id", "document_id", "start", "end"], MAX_PIECE_ROWS
    ):
        chunks = [
            {
                "id": f"c{row['human_readable_id']}",
                "label": f"{places.get(row['document_id'], '')}, characters {row['start']}–{row['end']}",
                "kind": "chunk",
            }
            for row in part.to_pylist()
        ]
        yield pa.Table.from_pylist(chunks, schema=_TREE_NODES)


def _summaries(rows: pa.Table, text: pa.Array | pa.ChunkedArray) -> pa.Table:
    kind = pa.array(["summary"] * rows.num_rows, pa.string())
    ids = _prefixed("s", rows["human_readable_id"])
    return pa.table([ids, rows["title"], kind, rows["level"], rows["size"], text], schema=_TREE_NODES)


def _tree_edges(reader: Reader, kind: HierarchyKind) -> Iterator[pa.Table]:
    chunks = IdIndex.of(reader, "text_units")
    for part in reader.iter_batches(
        kind.communities_table, ["community", "children", "text_unit_ids"], MAX_PIECE_ROWS
    ):
        children = part["children"].combine_chunks()
        sources = part["community"].take(pc.list_parent_indices(children))
        targets = _prefixed("s", pc.list_flatten(children))
        yield pa.table([_prefixed("s", sources), targets], schema=_TREE_EDGES)
        lowest = part.filter(pc.equal(pc.list_value_length(part["children"]), 0))
        units = lowest["text_unit_ids"].combine_chunks()
        sources = lowest["community"].take(pc.list_parent_indices(units))
        targets = _prefixed("c", chunks.numbers(pc.list_flatten(units)))
        yield pa.table([_prefixed("s", sources), targets], schema=_TREE_EDGES)


def _prefixed(letter: str, numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.binary_join_element_wise(letter, pc.cast(numbers, pa.string()), "")
