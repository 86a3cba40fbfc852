from __future__ import annotations

import numpy as np
import pytest
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph import soft_clusters as module
from graphrag_ray.graph.soft_clusters import check_installed, soft_clusters
from graphrag_ray.store.search.vector_index import normalize

UMAP_AND_PCA = pytest.mark.parametrize("reduction", ["umap", "pca"])


def topics(n: int, n_topics: int, dimensions: int = 24, noise: float = 0.1, seed: int = 3):
    """Vectors of n texts that alternate between topics."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_topics, dimensions))
    return normalize(
        (centres[np.arange(n) % n_topics] + noise * rng.standard_normal((n, dimensions))).astype("f4")
    )


def covers(clusters, n):
    return sorted({row for own in clusters for row in own.tolist()}) == list(range(n))


@st.composite
def texts(draw):
    """Vectors that are equal, collinear, few or arbitrary."""
    n = draw(st.integers(0, 40))
    number = st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.3])
    shape = draw(st.sampled_from(["same", "line", "any"]))
    if shape == "same":
        vectors = np.ones((n, 3))
    elif shape == "line":
        vectors = np.outer(np.arange(n) + 1.0, [1.0, 2.0, 0.0])
        vectors[:, 2] = 1.0
    else:
        rows = draw(st.lists(st.tuples(number, number, number), min_size=n, max_size=n))
        vectors = np.array(rows, dtype=np.float64).reshape(n, 3)
    sizes = draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    return normalize(vectors.astype(np.float32)), np.array(sizes, dtype=np.int64)


@given(texts(), st.integers(1, 120), st.sampled_from(["umap", "pca"]))
@fewer(3)
def test_every_text_is_in_a_cluster_and_none_is_too_long(texts_, most, reduction):
    vectors, sizes = texts_
    clusters = soft_clusters(vectors, sizes, most, reduction)
    assert covers(clusters, len(vectors))
    assert all(len(own) == 1 or sizes[own].sum() <= most for own in clusters)
    assert all(np.all(np.diff(own) > 0) for own in clusters)
    assert len({tuple(own.tolist()) for own in clusters}) == len(clusters)
    assert len(clusters) <= module.MAX_CLUSTERS**2 * max(1, len(vectors))


@UMAP_AND_PCA
def test_texts_of_one_topic_are_together(reduction):
    vectors = topics(120, 6)
    clusters = soft_clusters(vectors, np.full(120, 10), 10_000, reduction)
    assert all(len({row % 6 for row in own.tolist()}) == 1 for own in clusters)
    assert 6 <= len(clusters) <= 60


@UMAP_AND_PCA
def test_the_same_texts_make_the_same_clusters(reduction):
    vectors, sizes = topics(90, 5), np.arange(90) % 7 + 1
    first, second = (soft_clusters(vectors, sizes, 40, reduction) for _ in range(2))
    assert [own.tolist() for own in first] == [own.tolist() for own in second]


def test_text_between_topics_is_in_two_clusters_only_in_soft_divisions():
    sides = np.where(np.arange(400) % 2, 2.0, -2.0)[:, None] * [1.0, 0.0]
    points = sides + np.random.default_rng(5).standard_normal((400, 2))
    soft, hard = (module._mixture_components(points, soft) for soft in (True, False))
    assert len(soft) == len(hard) == 2 and sum(map(len, hard)) == 400 < sum(map(len, soft)) < 480
    both = set(soft[0].tolist()) & set(soft[1].tolist())
    assert both and all(abs(points[row, 0]) < 1 for row in both)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 11, 12])
def test_few_texts_need_no_umap(n):
    clusters = soft_clusters(topics(n, 2), np.full(n, 10), 1_000)
    assert covers(clusters, n)
    assert n > 11 or [own.tolist() for own in clusters] == [list(range(n))]


def test_equal_texts_are_split_into_pieces_that_fit():
    clusters = soft_clusters(np.ones((300, 8), np.float32) / 8**0.5, np.full(300, 10), 45)
    assert covers(clusters, 300) and max(map(len, clusters)) <= 4


def test_singleton_joins_the_nearest_cluster_with_room():
    near, far = np.eye(3, dtype=np.float32)[:2]
    vectors = normalize(np.stack([near] * 3 + [far] * 3 + [near + 0.1 * far]).astype(np.float32))
    found = module._merge_singletons(
        [np.array([0, 1, 2]), np.array([3, 4, 5]), np.array([6])], vectors, np.ones(7, np.int64), 4
    )
    assert [own.tolist() for own in found] == [[0, 1, 2, 6], [3, 4, 5]]
    full = module._merge_singletons(
        [np.array([0, 1, 2]), np.array([3, 4, 5]), np.array([6])], vectors, np.ones(7, np.int64), 3
    )
    assert [own.tolist() for own in full] == [[0, 1, 2], [3, 4, 5], [6]]


def test_missing_library_is_reported_with_the_extra_to_install(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "umap" else object())
    with pytest.raises(
        SettingsError, match=r"needs umap-learn. Run pip install '\.\[tree\]' .*, or set tree.dim"
    ):
        check_installed("umap")
    check_installed("pca")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"needs scikit-learn. Run pip install '\.\[tree\]' .* folder\.$"):
        check_installed("pca")


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=49))
def test_number_of_components_is_the_best_one_tried(values):
    tried: dict[int, float] = {}

    def bic(n: int) -> float:
        tried[n] = values[n - 1]
        return tried[n]

    found = module._lowest_bic(bic, len(values))
    assert tried[found] == min(tried.values())
    assert {1, len(values)} <= tried.keys() and len(tried) <= 25


def test_minimum_of_a_unimodal_criterion_is_found():
    for floor in range(1, 50):
        assert module._lowest_bic(lambda n, at=floor: abs(n - at) ** 1.5, 49) == floor
