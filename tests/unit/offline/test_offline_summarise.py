"""Stems, LexRank, MMR, BM25."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.offline.quotations import content_stems, lexrank, mmr, similarities, stem

SENTENCES = [content_stems(s) for s in (
    "The harbour plan would fill the marsh with sand.",
    "The marsh plan of the harbour would cost much sand.",
    "The plan fills the marsh, said the harbour master.",
    "Bakers in the old town sell bread on Sundays.",
)]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("innovate", "innovation", "innovative"),
        ("regulate", "regulations"),
        ("ships", "ship"),
        ("funding", "fund"),
    ],
)
def test_forms_of_a_word_share_a_stem(words):
    assert len({stem(w) for w in words}) == 1


def test_function_words_have_no_content():
    assert content_stems("It is what they would have been, and so on") == []


def test_similarity_is_symmetric_with_ones_on_the_diagonal():
    s = similarities(SENTENCES)
    assert np.allclose(s, s.T)
    assert np.allclose(np.diag(s), 1)
    assert s[0, 1] > s[0, 3] == 0


def test_sentence_with_most_shared_words_is_most_central():
    rank = lexrank(similarities(SENTENCES))
    assert rank.argmin() == 3
    assert rank.max() == 1


def test_no_sentences_have_no_rank():
    assert len(lexrank(similarities([]))) == 0


def test_mmr_chooses_the_best_then_novel_sentences():
    similarity = np.array([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1.0]])
    assert mmr(np.array([1.0, 0.9, 0.7]), similarity, 2) == [0, 2]
    assert mmr(np.array([1.0, 0.9, 0.7]), similarity, 2, trade_off=1.0) == [0, 1]


def test_mmr_never_chooses_copies_or_irrelevant_sentences():
    similarity = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]])
    assert mmr(np.array([1.0, 1.0, 0.0]), similarity, 3) == [0]


def test_mmr_limits_sentences_per_group():
    assert mmr(np.array([3.0, 2.0, 1.0]), np.eye(3), 3, groups=[0, 0, 1], per_group=1) == [0, 2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 10))
def test_mmr_chooses_distinct_sentences_within_the_limit(relevance, limit):
    chosen = mmr(np.array(relevance), np.eye(len(relevance)), limit)
    assert len(chosen) == len(set(chosen)) <= limit
    assert all(relevance[i] > 0 for i in chosen)
