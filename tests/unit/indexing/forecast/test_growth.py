"""Names of a corpus from those of a part of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.forecast.growth import Size, carried, grown


def size_of(chunks: list[np.ndarray]) -> Size:
    """The size of some chunks, each an array of different names."""
    _, counts = np.unique(np.concatenate(chunks), return_counts=True)
    return Size(len(chunks), len(counts), int((counts == 1).sum()), sum(map(len, chunks)))


def zipf_chunks(n: int, seed: int, names: int = 200_000, exponent: float = 1.1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, names + 1) ** exponent
    return [np.unique(rng.choice(names, size=12, p=weights / weights.sum())) for _ in range(n)]


@st.composite
def sizes(draw) -> Size:
    chunks = draw(st.integers(1, 1_000))
    distinct = draw(st.integers(1, 5_000))
    once = draw(st.integers(0, distinct))
    pairs = once + 2 * (distinct - once) + draw(st.integers(0, 5_000))
    return Size(chunks, distinct, once, pairs)


@given(sizes(), st.floats(1, 1_000))
def test_growth_never_loses_a_name_nor_finds_more_than_are_mentioned(size: Size, ratio: float):
    later = grown(size, size.chunks * ratio)
    assert size.distinct <= later.distinct * (1 + 1e-9) <= later.pairs * (1 + 1e-6)
    assert 0 <= later.once <= later.distinct
    assert later.pairs == pytest.approx(size.pairs * ratio)


@given(sizes())
def test_the_whole_corpus_is_not_extrapolated(size: Size):
    assert grown(size, size.chunks).distinct == pytest.approx(size.distinct)
    assert carried(size, size, size).distinct == pytest.approx(size.distinct)


def test_a_quarter_of_a_corpus_tells_its_names_to_within_a_tenth():
    chunks = zipf_chunks(2_000, seed=7)
    told, whole = grown(size_of(chunks[:500]), 2_000), size_of(chunks)
    assert told.distinct == pytest.approx(whole.distinct, rel=0.1)
    assert told.once == pytest.approx(whole.once, rel=0.1)


def test_a_reader_of_the_whole_corrects_what_a_small_part_says():
    """The model sees half of the names that the reference sees; the corpus repeats itself after a part."""
    part = zipf_chunks(100, seed=3)
    corpus = part + zipf_chunks(100, seed=3) + zipf_chunks(100, seed=3) + zipf_chunks(700, seed=4)

    def half(chunks: list[np.ndarray]) -> Size:
        return size_of([c[c % 2 == 0] for c in chunks])

    told = carried(half(part), size_of(part), size_of(corpus))
    alone = grown(half(part), 1_000)
    truth = half(corpus).distinct
    assert told.distinct == pytest.approx(truth, rel=0.1)
    assert abs(told.distinct - truth) < abs(alone.distinct - truth)


def test_a_corpus_without_names_stays_without():
    nothing = Size(10, 0, 0, 0)
    assert grown(nothing, 1_000).distinct == 0
    assert carried(nothing, nothing, Size(1_000, 0, 0, 0)).pairs == 0
