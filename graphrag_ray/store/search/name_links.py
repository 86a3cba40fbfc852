"""Which chunks hold a name, and which names a chunk holds: the graph that `walk.py` goes through.

A shard of an index is one file, of which only the links of what a walk comes to are read:

    high, low             the halves of the chunks' ids, sorted; top.high: some of the former
    name.high, name.low   the halves of the names' ids, sorted; top.name: some of the former
    holders_end           where the links of each name end
    holders               links: the places of the chunks that hold the name, rising
    holders_weight        links: their weights
    total                 the weights of each name's links together
    text_end, text        where the text of each name ends, and all of them, in UTF-8
    names_end, names, names_weight   the same the other way round: the names of each chunk

Names with the same words are one name (`base/ids.name_id`). A name that is in several shards has links in
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search.mapped_arrays import (
    ByteSource,
    Ids,
    Ints,
    Shard,
    packed,
    sorted_halves,
    spread,
    tops,
    unpacked,
)

MOST_WEIGHT = 255
_BITS = 32
"""Of a place."""

_TYPES = {"high": "<u8", "low": "<u8", "top.high": "<u8", "name.high": "<u8", "name.low": "<u8"}
_TYPES |= {"top.name": "<u8", "holders_end": "<i8", "holders": "<i4", "holders_weight": "<u1"}
_TYPES |= {"total": "<i8", "text_end": "<i8", "text": "<u1"}
_TYPES |= {"names_end": "<i8", "names": "<i4", "names_weight": "<u1"}


@dataclass(frozen=True)
class Linked:
    """Links of some names, or of some chunks.

    whose    which of those that were asked for each is of
    place    what it leads to
    weight   of each
    total    the weights of all links of each that was asked for, together
    """

    whose: Ints
    place: Ints
    weight: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]


class NameLinks(Shard):
    """A shard: arrays as above, of chunks."""

    @property
    def names(self) -> Ids:
        return Ids(*(self.arrays[name] for name in ("name.high", "name.low", "top.name")))

    def holder_counts(self, places: Ints) -> Ints:
        """How many chunks hold each of these names."""
        start, end = self.arrays["holders_end"].spans(places)
        return end - start

    def totals(self, places: Ints) -> npt.NDArray[np.float64]:
        """The weights of the links of each of these names."""
        return np.asarray(self.arrays["total"].take(places), np.float64)

    def of_names(self, places: Ints) -> Linked:
        """Links of names to chunks."""
        return self._linked("holders", places, len(self))

    def of_chunks(self, places: Ints) -> Linked:
        """Links of chunks to names."""
        return self._linked("names", places, len(self.arrays["name.high"]))

    def name_texts(self, places: Ints) -> list[str]:
        start, end = self.arrays["text_end"].spans(places)
        text = self.arrays["text"]
        spans = zip(start.tolist(), end.tolist(), strict=True)
        return [bytes(text.run(*span)).decode(errors="replace") for span in spans]

    def _linked(self, name: str, places: Ints, n: int) -> Linked:
        start, end = self.arrays[f"{name}_end"].spans(places)
        place = self.arrays[name].runs(start, end).astype(np.int64)
        if len(place) and (place.min() < 0 or place.max() >= n):
            raise self.source.refused("a link leads out of it")
        weight = self.arrays[f"{name}_weight"].runs(start, end).astype(np.float64)
        whose = spread(start, end)[1]
        total = np.bincount(whose, weight, minlength=len(places)).astype(np.float64)
        return Linked(whose, place, weight, total)


def build(
    chunks: Sequence[str],
    names: Mapping[str, str],
    chunk: npt.NDArray[np.integer],
    name: npt.NDArray[np.integer],
    weight: npt.NDArray[np.integer],
) -> bytes:
    """The bytes of a shard: the same for the same links, whatever their order.

    chunks                distinct ids
    names                 id -> text
    chunk, name, weight   of each link, the former as places among these. Of two links between the same, the
                          heavier one counts
    Raises ValueError for what is no id.
    """
    chunk_halves, chunk_order = sorted_halves(chunks)
    name_halves, name_order = sorted_halves(list(names))
    texts = list(names.values())
    in_order = [texts[at].encode(errors="replace") for at in name_order.tolist()]
    c, n = np.argsort(chunk_order)[chunk], np.argsort(name_order)[name]
    # A pair of places as one number is sorted in a fraction of the time.
    pairs = n << _BITS | c
    order = np.argsort(pairs)
    pairs, first = np.unique(pairs[order], return_index=True)
    w = np.clip(weight, 1, MOST_WEIGHT)[order]
    w = np.maximum.reduceat(w, first) if len(first) else w
    c, n = pairs & (1 << _BITS) - 1, pairs >> _BITS
    by_chunk = np.argsort(c << _BITS | n)
    arrays = {
        "high": chunk_halves[0],
        "low": chunk_halves[1],
        "top.high": tops(chunk_halves[0]),
        "name.high": name_halves[0],
        "name.low": name_halves[1],
        "top.name": tops(name_halves[0]),
        "holders_end": np.cumsum(np.bincount(n, minlength=len(names))),
        "holders": c,
        "holders_weight": w,
        "total": np.bincount(n, w, minlength=len(names)),
        "text_end": np.cumsum([len(text) for text in in_order], dtype="<i8"),
        "text": np.frombuffer(b"".join(in_order), "<u1"),
        "names_end": np.cumsum(np.bincount(c, minlength=len(chunks))),
        "names": n[by_chunk],
        "names_weight": w[by_chunk],
    }
    return packed(arrays, _TYPES)


def read(source: ByteSource) -> NameLinks:
    """A shard. Raises what `source.refused` makes for what is none."""
    equal = (
        ("high", "low", "names_end"),
        ("name.high", "name.low", "holders_end", "total", "text_end"),
        ("holders", "holders_weight", "names", "names_weight"),
    )
    top_of = {"top.high": "high", "top.name": "name.high"}
    arrays = unpacked(source, _TYPES, _TYPES, equal, top_of)
    return NameLinks(source, arrays)
