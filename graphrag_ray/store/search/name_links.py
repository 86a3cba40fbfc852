"""The graph of names and the chunks that contain them, which `pagerank.py` traverses.

A shard of the index is one file. Only the links of visited nodes are read from it. Names with the same words
are one name (`base/ids.name_id`). A name in several shards has links in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search import mapped_arrays
from graphrag_ray.store.search.mapped_arrays import ByteSource, Ids, Ints, Shard, block_heads, sorted_halves

MAX_WEIGHT = 255
_POSITION_BITS = 32

_TYPES = {
    "high": "<u8",  # Halves of the sorted chunk ids, and their block heads.
    "low": "<u8",
    "top.high": "<u8",
    "name.high": "<u8",  # The same for name ids.
    "name.low": "<u8",
    "top.name": "<u8",
    "holders_end": "<i8",  # End of each name's links to chunks.
    "holders": "<i4",  # Sorted positions of the linked chunks, and the weights of these links.
    "holders_weight": "<u1",
    "total": "<i8",  # Sum of each name's link weights.
    "text_end": "<i8",  # End of each name's text in `text`, which is UTF-8.
    "text": "<u1",
    "names_end": "<i8",  # The same links by chunk.
    "names": "<i4",
    "names_weight": "<u1",
}


@dataclass(frozen=True)
class NodeLinks:
    """Links of some nodes (names or chunks)."""

    node_index: Ints  # [links] Index of the source of each link among the given nodes.
    target: Ints  # [links] Position of the node to which each link leads.
    weight: npt.NDArray[np.float64]  # [links]
    total: npt.NDArray[np.float64]  # [nodes] Sum of the link weights of each given node.


class NameLinks(Shard):
    """A shard of the index; its records are chunks."""

    @property
    def names(self) -> Ids:
        return Ids(*(self.arrays[name] for name in ("name.high", "name.low", "top.name")))

    def holder_counts(self, positions: Ints) -> Ints:
        """Count the chunks that contain each of some names."""
        start, end = self.arrays["holders_end"].spans(positions)
        return end - start

    def totals(self, positions: Ints) -> npt.NDArray[np.float64]:
        """Return the sum of the link weights of some names."""
        return np.asarray(self.arrays["total"].take(positions), np.float64)

    def links_of_names(self, positions: Ints) -> NodeLinks:
        """Return the links of names to chunks."""
        return self._links("holders", positions, len(self))

    def links_of_chunks(self, positions: Ints) -> NodeLinks:
        """Return the links of chunks to names."""
        return self._links("names", positions, len(self.arrays["name.high"]))

    def name_texts(self, positions: Ints) -> list[str]:
        start, end = self.arrays["text_end"].spans(positions)
        text = self.arrays["text"]
        spans = zip(start.tolist(), end.tolist(), strict=True)
        return [bytes(text.run(*span)).decode(errors="replace") for span in spans]

    def _links(self, name: str, positions: Ints, n: int) -> NodeLinks:
        start, end = self.arrays[f"{name}_end"].spans(positions)
        target = self.arrays[name].runs(start, end).astype(np.int64)
        if len(target) and (target.min() < 0 or target.max() >= n):
            raise self.source.invalid("a link leads to an unknown node")
        weight = self.arrays[f"{name}_weight"].runs(start, end).astype(np.float64)
        node_index = mapped_arrays.expand_ranges(start, end)[1]
        total = np.bincount(node_index, weight, minlength=len(positions)).astype(np.float64)
        return NodeLinks(node_index, target, weight, total)


def build(
    chunks: Sequence[str],
    names: Mapping[str, str],
    chunk: npt.NDArray[np.integer],
    name: npt.NDArray[np.integer],
    weight: npt.NDArray[np.integer],
) -> bytes:
    """Return the bytes of a shard, which do not depend on the order of the links.

    Args:
        chunks: Distinct ids.
        names: Id -> text.
        chunk: [links] Position in `chunks`.
        name: [links] Position in `names`.
        weight: [links] If there are several links between two nodes, the heaviest counts.
    """
    chunk_halves, chunk_order = sorted_halves(chunks)
    name_halves, name_order = sorted_halves(list(names))
    texts = list(names.values())
    sorted_texts = [texts[i].encode(errors="replace") for i in name_order.tolist()]
    c, n = np.argsort(chunk_order)[chunk], np.argsort(name_order)[name]
    # Sorting pairs of positions as single numbers takes a fraction of the time.
    pairs = n << _POSITION_BITS | c
    order = np.argsort(pairs)
    pairs, first = np.unique(pairs[order], return_index=True)
    w = np.clip(weight, 1, MAX_WEIGHT)[order]
    w = np.maximum.reduceat(w, first) if len(first) else w
    c, n = pairs & (1 << _POSITION_BITS) - 1, pairs >> _POSITION_BITS
    by_chunk = np.argsort(c << _POSITION_BITS | n)
    arrays = {
        "high": chunk_halves[0],
        "low": chunk_halves[1],
        "top.high": block_heads(chunk_halves[0]),
        "name.high": name_halves[0],
        "name.low": name_halves[1],
        "top.name": block_heads(name_halves[0]),
        "holders_end": np.cumsum(np.bincount(n, minlength=len(names))),
        "holders": c,
        "holders_weight": w,
        "total": np.bincount(n, w, minlength=len(names)),
        "text_end": np.cumsum([len(text) for text in sorted_texts], dtype="<i8"),
        "text": np.frombuffer(b"".join(sorted_texts), "<u1"),
        "names_end": np.cumsum(np.bincount(c, minlength=len(chunks))),
        "names": n[by_chunk],
        "names_weight": w[by_chunk],
    }
    return mapped_arrays.pack(arrays, _TYPES)


def read(source: ByteSource) -> NameLinks:
    """Open a shard. Invalid files raise `source.invalid`."""
    equal = (
        ("high", "low", "names_end"),
        ("name.high", "name.low", "holders_end", "total", "text_end"),
        ("holders", "holders_weight", "names", "names_weight"),
    )
    heads_of = {"top.high": "high", "top.name": "name.high"}
    return NameLinks(source, mapped_arrays.unpack(source, _TYPES, _TYPES, equal, heads_of))
