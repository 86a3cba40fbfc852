"""The graph of a snapshot as Arrow tables, for exporters: nodes, edges, and text that others may read.

A graph     nodes: id, label, type, description, degree, frequency, and C0, C1, …: the number of the community
            that holds the node at each level. edges: id, source, target, source_label, target_label, weight,
            description. Ids are the short ids that `inspect` takes.
A tree      nodes: s12 is a summary, c7 a chunk, by their short ids; label (a summary's title, or where the
            chunk is), kind, level (0 is the highest; chunks have none), size (chunks that it rests on), text
            of a summary. edges: source, target: from a summary to each summary or chunk that it was written
            from. A node may be under several.
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
from graphrag_ray.export.exporters import Snapshot
from graphrag_ray.graph.integer_arrays import id_prefixes
from graphrag_ray.query.reading import Reader, schema_of
from graphrag_ray.query.sources import place

Ints = npt.NDArray[np.int64]
NONE = -1
AT_ONCE = 8_192
"""Rows that are text at the same time."""


_LINE_END = r"\r\n?"
_NOT_XML = r"[\x{0}-\x{8}\x{b}\x{c}\x{e}-\x{1f}\x{7f}-\x{9f}\x{fffe}\x{ffff}]"
"""Control characters but tab and line feed, and the two other code points that XML 1.0 does not have. (It
has U+007F to U+009F, but discourages them; they steer terminals.)"""
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
_FORMULA = f"^[{_SIGNS}\t\r\n]"
"""What OWASP ("CSV Injection") names as the beginning of a cell that a spreadsheet may take for a formula,
the full-width forms included."""
_NEW_CELL = f"([;\t]\\s*[\"']?)([{_SIGNS}])"
"""The same where a new cell begins for a spreadsheet that separates at semicolons or tabs."""
_XML = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"))


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text with \\n line ends and without control characters."""
    lines = pc.replace_substring_regex(column, _LINE_END, "\n")
    return pc.replace_substring_regex(lines, _NOT_XML, "")


def for_xml(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same, escaped for elements and attributes of an XML document."""
    escaped = plain(column)
    for character, entity in _XML:
        escaped = pc.replace_substring(escaped, character, entity)
    return escaped


def for_spreadsheet(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same as `plain`, and with a single quote before what a spreadsheet would calculate, also where it
    takes semicolons or tabs in the text for separators."""
    cleaned = pc.replace_substring_regex(plain(column), _NEW_CELL, r"\1'\2")
    guarded = pc.binary_join_element_wise("'", cleaned, "")
    return pc.if_else(pc.match_substring_regex(cleaned, _FORMULA), guarded, cleaned)


@dataclass(frozen=True)
class Places:
    """Rows by id. 16 bytes a row.

    prefix      [N] the first 64 bits of their ids, ascending
    number      [N] human_readable_id
    """

    prefix: npt.NDArray[np.uint64]
    number: Ints

    @classmethod
    def of(cls, reader: Reader, table: str) -> Places:
        """Raises CorruptPart, SnapshotRemoved."""
        prefix, number = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for part in reader.pieces(table, ["id", "human_readable_id"]):
            prefix.append(_prefixes(part["id"]))
            number.append(part["human_readable_id"].to_numpy())
        prefixes = np.concatenate(prefix)
        order = np.argsort(prefixes, kind="stable")
        return cls(prefixes[order], np.concatenate(number)[order])

    def places(self, ids: pa.ChunkedArray | pa.Array) -> Ints:
        """[ids] where each stands among them. Raises ValueError for one that is none."""
        wanted = _prefixes(ids)
        at = np.searchsorted(self.prefix, wanted)
        if len(wanted) and (at.max() == len(self.prefix) or (self.prefix[at] != wanted).any()):
            raise ValueError("a relationship or community names what is not in its table")
        return at.astype(np.int64)

    def numbers(self, ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        """human_readable_id of each."""
        return pa.array(self.number[self.places(ids)])


@dataclass(frozen=True)
class Nodes(Places):
    """Entities in the order of their table, which is sorted by id. 4 bytes more for each level.

    community   [levels, N] number of the community of C_k that holds it, NONE where there is none; one that
                is not split stands at all levels below, as in the paper's C1, C2, …
    """

    community: npt.NDArray[np.int32]


def read_nodes(reader: Reader, communities: str = "communities") -> Nodes:
    """Raises CorruptPart, SnapshotRemoved."""
    entities = Places.of(reader, "entities")
    levels = reader.table(communities, ["level"])["level"]
    n_levels = (pc.max(levels).as_py() + 1) if len(levels) else 0
    held = np.full((n_levels, len(entities.prefix)), NONE, dtype=np.int32)
    for part in reader.pieces(communities, ["community", "level", "entity_ids"]):
        for batch in part.to_batches():
            of = pc.list_parent_indices(batch["entity_ids"]).to_numpy()
            level, community = batch["level"].to_numpy()[of], batch["community"].to_numpy()[of]
            held[level, entities.places(pc.list_flatten(batch["entity_ids"]))] = community
    for above, here in pairwise(held):
        np.copyto(here, above, where=here == NONE)
    return Nodes(entities.prefix, entities.number, held)


def _prefixes(ids: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.uint64]:
    found = id_prefixes(ids)
    if found is None:
        raise ValueError("a column of ids holds what is no id")
    return found


_TREE_NODES = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "label", "kind")),
        *((name, pa.int64()) for name in ("level", "size")),
        ("text", pa.string()),
    ]
)
_TREE_EDGES = pa.schema([("source", pa.string()), ("target", pa.string())])


def pieces(reader: Reader, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The pieces of a table, after an empty one, which tells the columns."""
    yield schema_of(table, columns).empty_table()
    yield from reader.pieces(table, columns, AT_ONCE)


def node_tables(snapshot: Snapshot, nodes: Nodes | None) -> Iterator[pa.Table]:
    """The nodes, after an empty table. nodes: None for a tree."""
    if nodes is None:
        yield _TREE_NODES.empty_table()
        yield from _tree_nodes(snapshot.reader, snapshot.hierarchy)
        return
    columns, start = ["title", "type", "description", "degree", "frequency"], 0
    for part in pieces(snapshot.reader, "entities", ["human_readable_id", *columns]):
        end = start + part.num_rows
        piece = part.rename_columns(["id", "label", *columns[1:]])
        for level, held in enumerate(nodes.community[:, start:end]):
            piece = piece.append_column(f"C{level}", pa.array(held, mask=held == NONE))
        yield piece
        start = end


def edge_tables(snapshot: Snapshot, nodes: Nodes | None) -> Iterator[pa.Table]:
    """The edges, after an empty table. nodes: None for a tree."""
    if nodes is None:
        yield _TREE_EDGES.empty_table()
        yield from _tree_edges(snapshot.reader, snapshot.hierarchy)
        return
    columns = ["human_readable_id", "source_id", "target_id", "source", "target", "weight", "description"]
    names = ["id", "source", "target", "source_label", "target_label", "weight", "description"]
    for part in pieces(snapshot.reader, "relationships", columns):
        ends = [nodes.numbers(part[end]) for end in ("source_id", "target_id")]
        yield pa.table([part["human_readable_id"], *ends, *(part[c] for c in columns[3:])], names=names)


def _tree_nodes(reader: Reader, kind: HierarchyKind) -> Iterator[pa.Table]:
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
    for part in reader.pieces("text_units", ["human_readable_id", "document_id", "start", "end"], AT_ONCE):
        rows = [
            {
                "id": f"c{row['human_readable_id']}",
                "label": f"{where.get(row['document_id'], '')}, characters {row['start']}–{row['end']}",
                "kind": "chunk",
            }
            for row in part.to_pylist()
        ]
        yield pa.Table.from_pylist(rows, schema=_TREE_NODES)


def _summaries(rows: pa.Table, text: pa.Array | pa.ChunkedArray) -> pa.Table:
    what = pa.array(["summary"] * rows.num_rows, pa.string())
    ids = _named("s", rows["human_readable_id"])
    return pa.table([ids, rows["title"], what, rows["level"], rows["size"], text], schema=_TREE_NODES)


def _tree_edges(reader: Reader, kind: HierarchyKind) -> Iterator[pa.Table]:
    chunks = Places.of(reader, "text_units")
    columns = ["community", "children", "text_unit_ids"]
    for part in reader.pieces(kind.communities, columns, AT_ONCE):
        lists = part["children"].combine_chunks()
        of = pc.list_parent_indices(lists)
        sources, targets = part["community"].take(of), pc.list_flatten(lists)
        yield pa.table([_named("s", sources), _named("s", targets)], schema=_TREE_EDGES)
        lowest = part.filter(pc.equal(pc.list_value_length(part["children"]), 0))
        lists = lowest["text_unit_ids"].combine_chunks()
        sources = lowest["community"].take(pc.list_parent_indices(lists))
        yield pa.table(
            [_named("s", sources), _named("c", chunks.numbers(pc.list_flatten(lists)))], schema=_TREE_EDGES
        )


def _named(letter: str, numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.binary_join_element_wise(letter, pc.cast(numbers, pa.string()), "")
