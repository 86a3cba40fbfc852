"""Community quality, compared with igraph and scikit-learn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import igraph
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import calinski_harabasz_score

from graphrag_ray.evaluate import community_measures
from graphrag_ray.evaluate.judging import community_quality as quality
from graphrag_ray.evaluate.judging.community_quality import embedding_quality, modularity, sizes

LABELS = st.lists(st.sampled_from([-1, 0, 1, 2, 70_000]), min_size=1, max_size=12)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    community = np.array(draw(LABELS))
    ends = st.integers(0, len(community) - 1)
    edges = draw(st.lists(st.tuples(ends, ends, st.sampled_from([0.0, 0.5, 1.0, 7.0])), max_size=20))
    source, target, weight = (
        (np.array(column) for column in zip(*edges, strict=True)) if edges else [np.zeros(0)] * 3
    )
    return community, source.astype(np.int64), target.astype(np.int64), weight


@given(graphs())
def test_modularity_equals_igraph(drawn: tuple[Any, Any, Any, Any]):
    community, source, target, weight = drawn
    found = modularity(community, source, target, weight)
    if not weight.sum():
        assert found is None
        return
    # A member without a community counts as a community.
    label = [n if n >= 0 else -1 - at for at, n in enumerate(community.tolist())]
    membership = [list(dict.fromkeys(label)).index(n) for n in label]
    graph = igraph.Graph(len(community), list(zip(source.tolist(), target.tolist(), strict=True)))
    assert found == pytest.approx(graph.modularity(membership, weights=weight.tolist()))


@pytest.mark.parametrize(
    ("weight", "target", "problem"),
    [
        (-1.0, 1, "negative"),
        (np.nan, 1, "not finite"),
        (np.inf, 1, "not finite"),
        (1.0, 2, "unknown member"),
        (1.0, -1, "unknown member"),
    ],
)
def test_invalid_edges_are_refused(weight: float, target: int, problem: str):
    with pytest.raises(ValueError, match=problem):
        modularity(np.array([0, 0]), np.array([0]), np.array([target]), np.array([weight]))


def points(community: Any, seed: int, dims: int = 4) -> Any:
    chance = np.random.default_rng(seed)
    return chance.normal(size=(len(community), dims)) + 3 * chance.normal(size=(3, dims))[community % 3]


@given(LABELS, st.integers(0, 99), st.sampled_from([1, 7, 4_000_000]))
def test_calinski_harabasz_equals_scikit_learn(labels: list[int], seed: int, block: int):
    community = np.array(labels)
    vectors = points(community, seed)
    with patch.object(quality, "_BLOCK_SIZE", block):
        index, cosine = embedding_quality(community, vectors)
    inside = community >= 0
    n, c = int(inside.sum()), len(set(community[inside].tolist()))
    if 1 < c < n:
        assert index == pytest.approx(calinski_harabasz_score(vectors[inside], community[inside]))
    else:
        assert index is None
    cosines = []
    for name in set(community[inside].tolist()):
        own = vectors[community == name]
        centroid = own.mean(axis=0)
        cosines += [x @ centroid / (np.linalg.norm(x) * np.linalg.norm(centroid)) for x in own]
    assert cosine == (pytest.approx(np.mean(cosines)) if cosines else None)


def test_calinski_harabasz_equals_a_manual_calculation():
    community = np.array([0, 0, 1, 1])
    vectors = np.array([[0.0], [2.0], [10.0], [12.0]], np.float32)
    # Centroids 1 and 11 of a mean of 6: (4 - 2) / (2 - 1) · (2 · 25 + 2 · 25) / (1 + 1 + 1 + 1)
    assert embedding_quality(community, vectors)[0] == pytest.approx(2 * 100 / 4)


def test_calinski_harabasz_needs_scatter_and_two_communities():
    alike = np.array([[0.1, 0.7, 0.3]] * 3 + [[0.2, 0.1, 0.9]] * 3)
    assert embedding_quality(np.array([0, 0, 0, 1, 1, 1]), alike) == (None, pytest.approx(1.0))
    assert embedding_quality(np.zeros(6, np.int64), points(np.arange(6), 1))[0] is None
    assert embedding_quality(np.full(6, -1), alike) == (None, None)
    assert embedding_quality(np.zeros(0, np.int64), np.zeros((0, 3))) == (None, None)


def test_zero_vector_has_cosine_0():
    assert embedding_quality(np.array([0, 0]), np.array([[0.0, 0.0], [1.0, 0.0]]))[1] == pytest.approx(0.5)
    assert embedding_quality(np.array([0, 0]), np.array([[-1.0, 0.0], [1.0, 0.0]]))[1] == 0.0


def test_float16_values_are_summed_in_float64():
    community = np.arange(4_000) % 2
    vectors = points(community, 5).astype(np.float16)
    expected = calinski_harabasz_score(vectors.astype(np.float64), community)
    assert embedding_quality(community, vectors)[0] == pytest.approx(expected)


def test_time_per_block_does_not_depend_on_the_number_of_communities(monkeypatch: pytest.MonkeyPatch):
    shapes: list[tuple[int, int]] = []
    made = quality.csr_array
    monkeypatch.setattr(quality, "csr_array", lambda data, shape: shapes.append(shape) or made(data, shape))
    monkeypatch.setattr(quality, "_BLOCK_SIZE", 40)
    community = np.arange(100) // 2
    embedding_quality(community, points(community, 6))
    assert len(shapes) == 10 and all(rows <= columns for rows, columns in shapes)


def test_block_may_contain_no_vector(monkeypatch: pytest.MonkeyPatch):
    nothing = pa.table({"id": pa.array([], pa.string()), "vector": pa.array([], pa.list_(pa.float32(), 3))})
    monkeypatch.setattr(community_measures, "read_table", lambda *given: nothing)
    index: Any = SimpleNamespace(store=None, manifest=SimpleNamespace(parts=lambda table: [None]))
    nodes: Any = SimpleNamespace(prefix=np.array([7], np.uint64))
    assert np.array_equal(community_measures._entity_vectors(index, nodes), np.zeros((1, 3)))


def test_invalid_vectors_are_refused():
    with pytest.raises(ValueError, match="2 members need one vector each"):
        embedding_quality(np.array([0, 1]), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="2 members need one vector each"):
        embedding_quality(np.array([0, 1]), np.zeros(2))
    with pytest.raises(ValueError, match="not finite"):
        embedding_quality(np.array([0, 1]), np.array([[1.0], [np.nan]]))


def test_sizes():
    assert sizes(np.array([5, 5, 5, -1, 2, 9, 9, -1])) == {
        "communities": 3,
        "smallest": 1,
        "median": 2.0,
        "largest": 3,
        "singletons": 1,
        "coverage": 0.75,
    }
    nothing = {"communities": 0, "smallest": None, "median": None, "largest": None, "singletons": 0}
    assert sizes(np.array([-1, -1])) == {**nothing, "coverage": 0.0}
    assert sizes(np.zeros(0, np.int64)) == {**nothing, "coverage": None}
