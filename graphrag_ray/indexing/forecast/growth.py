"""How many different names a corpus has, from those of a sample of its chunks.

The number of different names grows with the number of chunks as that of words with the length of a text
(Herdan 1960, Heaps 1978). At any size the slope of that growth, on logarithmic scales, is the share of
names that stand in one chunk only: leave a random chunk out, and just these are lost (Good 1953). So a
sample tells both how many names it has and how fast they grow, without a curve being fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_DISTINCT = 30
"""Fewer names say nothing about how fast they grow."""
SLOPE_RATIO = (0.5, 2.0)
"""Two ways of extracting the same text do not differ more than this in how fast their names grow; where a
small sample says so, it is chance."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the names (entities, or relationships as pairs of names) in some chunks.

    distinct   different names
    once       of these, in one chunk only
    pairs      of a name and a chunk that it is in
    """

    chunks: float
    distinct: float
    once: float
    pairs: float

    @property
    def slope(self) -> float:
        return self.once / self.distinct if self.distinct else 0.0

    def times(self, factor: float) -> Size:
        """So many times as many names, each as frequent as before."""
        return Size(self.chunks, self.distinct * factor, self.once * factor, self.pairs * factor)


def grown(size: Size, chunks: float) -> Size:
    """The names of more chunks of the same kind, the slope staying what it is.

    The slope falls, slowly, with the size of the corpus: far from the sample this is too many names
    rather than too few.
    """
    if not size.chunks or not size.distinct:
        return Size(chunks, 0.0, 0.0, 0.0)
    ratio = chunks / size.chunks
    pairs = size.pairs * ratio
    distinct = min(size.distinct * ratio**size.slope, pairs)
    return Size(chunks, distinct, size.slope * distinct, pairs)


def carried(own: Size, reference: Size, reference_of_all: Size) -> Size:
    """The names of the whole corpus as one extractor would find them, from its names in a part of it.

    own               its names in the part
    reference         another extractor's names in the same part; reference_of_all: in the whole

    A ratio estimate (Cochran 1977, chapter 6): the other extractor has read both, so it knows how much
    the rest of this corpus repeats that part. Where the slopes in the part differ, so do the growths, in
    the same proportion.
    """
    ratio = reference_of_all.chunks / own.chunks
    if min(own.distinct, reference.distinct) < MIN_DISTINCT or not reference.once or not own.once:
        return grown(own, reference_of_all.chunks)
    low, high = SLOPE_RATIO
    steeper = min(high, max(low, own.slope / reference.slope))
    pairs = own.pairs * ratio
    distinct = own.distinct * (reference_of_all.distinct / reference.distinct) ** steeper
    distinct = min(max(distinct, own.distinct), pairs)
    slope = min(1.0, steeper * reference_of_all.slope)
    return Size(reference_of_all.chunks, distinct, slope * distinct, pairs)
