"""The nodes of the graph as integers, and the community of each at every level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.graph.integer_arrays import id_prefixes
from graphrag_ray.query.reading import Reader

Ints = npt.NDArray[np.int64]
NONE = -1
AT_ONCE = 8_192
"""Rows that are text at the same time."""


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
        parts = [
            (_prefixes(part["id"]), part["human_readable_id"].to_numpy())
            for part in reader.pieces(table, ["id", "human_readable_id"])
        ]
        prefix = np.concatenate([np.empty(0, np.uint64), *(p for p, _ in parts)])
        number = np.concatenate([np.empty(0, np.int64), *(n for _, n in parts)])
        order = np.argsort(prefix, kind="stable")
        return cls(prefix[order], number[order])

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

    def at_level(self, level: int, start: int, end: int) -> pa.Array:
        """The communities of some nodes at one level, null where there is none."""
        found = self.community[level, start:end]
        return pa.array(found, mask=found == NONE)


def read_nodes(reader: Reader, communities: str = "communities") -> Nodes:
    """Raises CorruptPart, SnapshotRemoved."""
    entities = Places.of(reader, "entities")
    prefix, number = entities.prefix, entities.number
    levels = reader.table(communities, ["level"])["level"]
    n_levels = (pc.max(levels).as_py() + 1) if len(levels) else 0
    nodes = Nodes(prefix, number, np.full((n_levels, len(prefix)), NONE, dtype=np.int32))
    for part in reader.pieces(communities, ["community", "level", "entity_ids"]):
        _fill(nodes, part)
    for level in range(1, n_levels):
        above, here = nodes.community[level - 1], nodes.community[level]
        np.copyto(here, above, where=here == NONE)
    return nodes


def _fill(nodes: Nodes, communities: pa.Table) -> None:
    for batch in communities.to_batches():
        of = pc.list_parent_indices(batch["entity_ids"]).to_numpy()
        level, community = batch["level"].to_numpy()[of], batch["community"].to_numpy()[of]
        nodes.community[level, nodes.places(pc.list_flatten(batch["entity_ids"]))] = community


def _prefixes(ids: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.uint64]:
    found = id_prefixes(ids)
    if found is None:
        raise ValueError("a column of ids holds what is no id")
    return found
