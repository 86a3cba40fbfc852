"""Chunks chosen by their embeddings are distinct, representative and the same in every run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.chunk_sample import diverse, nearest_to_centroid


def unit(rows):
    vectors = np.asarray(rows, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(norms > 0, vectors / np.maximum(norms, 1e-9), vectors)


@given(
    st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=30),
    st.integers(0, 40),
    st.sampled_from([diverse, nearest_to_centroid]),
)
def test_distinct_positions_are_chosen(rows, n, choose):
    vectors = unit(rows) if rows else np.zeros((0, 3), np.float32)
    chosen = choose(vectors, n)
    assert len(chosen) == len(set(chosen)) == min(n, len(rows))
    assert set(chosen) <= set(range(len(rows)))
    assert chosen == choose(vectors.copy(), n)


def test_a_diverse_sample_has_one_chunk_of_each_topic():
    rng = np.random.default_rng(7)
    topics = np.repeat(np.eye(4), [80, 10, 5, 5], axis=0)
    vectors = unit(topics + rng.normal(0, 0.05, topics.shape))
    assert sorted(topics[diverse(vectors, 4)].argmax(axis=1)) == [0, 1, 2, 3]


def test_a_diverse_sample_prefers_the_typical_member_of_a_topic():
    topic = unit([[1, 0.3], [1, 0], [1, -0.3]])
    other = unit([[-1, 1.4], [-1, 1], [-1, 0.7]])
    assert sorted(diverse(np.concatenate([topic, other]), 2)) == [1, 4]


def test_the_chunks_nearest_to_the_centroid_are_typical():
    vectors = unit([[0, 1], [1, 0.1], [1, 0], [1, -0.1], [-1, 0]])
    assert set(nearest_to_centroid(vectors, 3)) == {1, 2, 3}


@pytest.mark.parametrize("choose", [diverse, nearest_to_centroid])
def test_texts_without_tokens_can_be_chosen(choose):
    assert len(choose(np.zeros((5, 3), np.float32), 3)) == 3
