from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graphrag_ray.graph import nearest_neighbours as module
from graphrag_ray.graph.leiden import connected_components
from graphrag_ray.graph.nearest_neighbours import nearest_neighbours

small = arrays.arrays(
    np.int8, st.tuples(st.integers(0, 14), st.integers(1, 4)), elements=st.integers(-3, 3)
).map(lambda a: a.astype(np.float32))


def by_definition(vectors, k):
    n = len(vectors)
    rows, cosines = np.full((n, k), -1), np.zeros((n, k), dtype=np.float32)
    exact = vectors.astype(np.float64)
    size = np.sqrt((exact**2).sum(axis=1))
    for i in range(n):
        others = [j for j in range(n) if j != i and size[i] > 0 and size[j] > 0]
        cosine = {j: round(float(exact[i] @ exact[j] / (size[i] * size[j])), 4) for j in others}
        best = sorted(others, key=lambda j: (-cosine[j], abs(i - j), j))[:k]
        rows[i, : len(best)] = best
        cosines[i, : len(best)] = [cosine[j] for j in best]
    return rows, cosines


def themes(n, d=32, centres=200, noise=0.7, seed=0):
    """Vectors around centres of very different frequency."""
    rng = np.random.default_rng(seed)
    about = rng.standard_normal((centres, d))
    popular = rng.pareto(1.2, centres) + 0.05
    of = rng.choice(centres, n, p=popular / popular.sum())
    return (about[of] + noise * rng.standard_normal((n, d))).astype(np.float32)


@given(small, st.integers(0, 16))
def test_neighbours_match_the_definition_with_ties_and_zeros(vectors, k: int):
    rows, cosines, _ = nearest_neighbours(vectors, k)
    expected_rows, expected_cosines = by_definition(vectors, k)
    assert np.array_equal(rows, expected_rows)
    assert np.allclose(cosines, expected_cosines, atol=1e-6)
    assert rows.dtype == np.int64 and cosines.dtype == np.float32


@pytest.mark.parametrize("n", [0, 1])
def test_single_row_has_no_neighbours(n):
    rows, cosines, _ = nearest_neighbours(np.ones((n, 3), dtype=np.float32), 4)
    assert rows.tolist() == [[-1] * 4] * n and cosines.tolist() == [[0] * 4] * n


def test_vectors_without_dimensions_have_no_neighbours():
    assert (nearest_neighbours(np.zeros((3, 0), dtype=np.float32), 2)[0] == -1).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-42, 1e30])
def test_length_does_not_matter(scale):
    vectors = themes(40)
    own = np.abs(vectors).max() if scale > 1 else 1
    rows, cosines, _ = nearest_neighbours(vectors / own * np.float32(scale), 3)
    if scale > 1e-38:
        assert np.array_equal(rows, nearest_neighbours(vectors, 3)[0])
    assert np.isfinite(cosines).all() and (rows >= 0).all()


def test_vectors_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        nearest_neighbours(np.array([[1.0, np.nan], [1, 1]], dtype=np.float32), 1)


def test_equal_vectors_form_a_chain():
    rows, cosines, _ = nearest_neighbours(np.ones((6, 3), dtype=np.float32), 2)
    assert rows.tolist() == [[1, 2], [0, 2], [1, 3], [2, 4], [3, 5], [4, 3]]
    assert (cosines == 1).all()


def test_hundred_thousand_equal_vectors_form_a_chain_in_limited_time():
    n = 100_000
    vectors = np.ones((n, 16), dtype=np.float32)
    vectors[::1000] = 0
    begun = time.process_time()
    rows, _, _ = nearest_neighbours(vectors, 4)
    assert time.process_time() - begun < 60  # it takes about 6 s
    assert (rows[::1000] == -1).all()
    there = np.flatnonzero(vectors[:, 0])
    reached = np.bincount(rows[there].ravel())
    assert reached.max() <= 8  # no row is a neighbour of all others
    ends = np.stack([np.repeat(there, 4), rows[there].ravel()], axis=1)
    assert len(np.unique(connected_components(n, ends)[there])) == 1
    inner = there[2:-2]
    assert (np.abs(rows[inner] - inner[:, None]) <= 5).all()


def test_cell_search_has_high_recall(monkeypatch):
    vectors = themes(6000)
    exact, exact_cosines, _ = nearest_neighbours(vectors, 8)
    monkeypatch.setattr(module, "EXACT_ROWS", 100)
    rows, cosines, _ = nearest_neighbours(vectors, 8)
    found = [len(set(a) & set(b)) / 8 for a, b in zip(rows.tolist(), exact.tolist(), strict=True)]
    assert np.mean(found) > 0.95
    assert (cosines <= exact_cosines + 1.5e-4).all(), "but for the last digit, which the processor decides"
    again, _, _ = nearest_neighbours(vectors, 8)
    assert np.array_equal(rows, again)


@given(small, st.integers(1, 6))
def test_cell_search_is_valid_for_any_vectors(vectors, k: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EXACT_ROWS", 1)
        rows, cosines, _ = nearest_neighbours(vectors, k)
    everyone, all_cosines = by_definition(vectors, len(vectors))
    for i in range(len(vectors)):
        found = rows[i][rows[i] >= 0].tolist()
        known = dict(zip(everyone[i].tolist(), all_cosines[i].tolist(), strict=True))
        order = [j for j in everyone[i].tolist() if j in found]
        assert found == order and len(set(found)) == len(found)
        assert np.allclose(cosines[i][: len(found)], [known[j] for j in found], atol=1e-6)
        assert (rows[i][len(found) :] == -1).all()


def test_large_cell_is_searched_in_windows(monkeypatch):
    vectors = np.concatenate([np.ones((3000, 4)), -np.ones((10, 4))]).astype(np.float32)
    monkeypatch.setattr(module, "EXACT_ROWS", 100)
    monkeypatch.setattr(module, "LARGE_CELL_FACTOR", 1)
    rows, _, _ = nearest_neighbours(vectors, 4)
    expected, _ = by_definition(vectors[:20], 4)
    assert np.array_equal(rows[:17], expected[:17])
    assert rows[1500].tolist() == [1499, 1501, 1498, 1502]
    assert rows[2999].tolist() == [2998, 2997, 2996, 2995]
    assert set(rows[3005].tolist()) == {3004, 3006, 3003, 3007}


def test_additional_row_does_not_change_other_neighbours(monkeypatch):
    monkeypatch.setattr(module, "EXACT_ROWS", 500)
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((60, 16))[rng.integers(0, 60, 3000)] + 0.4 * rng.standard_normal((3000, 16))
    before, _, centres = nearest_neighbours(vectors.astype(np.float32), 5)
    more = np.concatenate([vectors, vectors[:1] + 0.1]).astype(np.float32)
    now, _, again = nearest_neighbours(more, 5, centres)
    assert again is centres
    other = np.flatnonzero((now[:3000] != before).any(axis=1))
    assert set(other.tolist()) <= set(np.flatnonzero((now[:3000] == 3000).any(axis=1)).tolist())
    assert nearest_neighbours(more[:600], 5, centres)[2] is not centres, "there are far fewer now"
