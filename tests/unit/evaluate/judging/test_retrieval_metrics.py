"""Retrieval metrics against gold documents, texts and answers."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.evaluate.judging.answer_metrics import KS, retrieval_scores

IDS = st.sampled_from("abcdefgh")
RANKED = st.lists(IDS, max_size=12)
GOLD = st.lists(IDS, min_size=1, max_size=4)


def documents(ranked: list[str], gold: list[str], k: int) -> tuple[float, float, float]:
    """Return recall, all_within and precision."""
    found = retrieval_scores(ranked, gold, ks=(k,))
    return found[f"recall@{k}"], found[f"all_within@{k}"], found[f"precision@{k}"]


def test_documents_count_once_at_their_first_rank():
    found = [documents(["a", "a", "b", "a", "c", "d"], ["b", "d"], k) for k in (1, 2, 3, 4)]
    assert found == [(0.0, 0.0, 0.0), (0.5, 0.0, 0.5), (0.5, 0.0, 1 / 3), (1.0, 1.0, 0.5)]


def test_precision_is_relative_to_fewer_than_k_retrieved_documents():
    assert documents(["a", "b", "a"], ["a"], 20)[2] == 0.5
    assert documents([], ["a"], 20)[2] == 0.0


@given(RANKED, GOLD, st.integers(1, 10))
def test_document_measures_match_their_definitions(ranked: list[str], gold: list[str], k: int):
    first: list[str] = []
    for id_ in ranked:
        if id_ not in first and len(first) < k:
            first.append(id_)
    hits = sum(id_ in gold for id_ in first)
    precision = hits / len(first) if first else 0.0
    assert documents(ranked, gold, k) == (hits / len(set(gold)), set(gold) <= set(first), precision)


def test_k_below_1_is_refused():
    with pytest.raises(ValueError, match="k is 0"):
        retrieval_scores(["a"], ["a"], ks=(2, 0))


def overlap(retrieved: list[str], gold: list[str]) -> tuple[float, float]:
    found = retrieval_scores(texts=retrieved, gold_texts=gold)
    return found["token_precision"], found["token_recall"]


def test_tokens_are_counted_as_often_as_they_occur():
    precision, recall = overlap(["The cat, the dog.", "a cat"], ["the CAT sat"])
    assert (precision, recall) == (2 / 6, 2 / 3)
    assert overlap([], ["cat"]) == (0.0, 0.0)
    assert overlap(["?!"], ["…"]) == (0.0, 0.0)


@given(*[st.lists(st.text("ab1 -_.", max_size=20), min_size=1, max_size=3)] * 2)
def test_token_overlap_uses_multisets(retrieved: list[str], gold: list[str]):
    result, wanted = (Counter(re.findall("[a-z0-9]+", " ".join(some))) for some in (retrieved, gold))
    common = sum((result & wanted).values())
    expected = (common / max(1, result.total()), common / max(1, wanted.total()))
    assert overlap(retrieved, gold) == expected


@pytest.mark.parametrize(
    ("context", "gold", "expected"),
    [
        (["Nothing.", "In the year 2014 (March)."], ["year 2014"], 1.0),
        (["Orla", "Quist"], ["Orla Quist"], 0.0),  # in no single text
        (["Orla Quist"], ["Bo", "ORLA QUIST."], 1.0),
        (["anything"], ["the", "!"], 0.0),
        ([""], ["the"], 0.0),
        ([], ["Orla"], 0.0),
    ],
)
def test_answer_must_be_contained_in_a_single_text(context: list[str], gold: list[str], expected: float):
    assert retrieval_scores(texts=context, answers=gold) == {"answer_in_context": expected}


def test_only_measures_with_gold_data_are_scored():
    assert retrieval_scores(["a"], [], ["text"]) == {}
    found = retrieval_scores(["a", "b"], ["b"], ["A cat."], ["cat"], ["cat"], ks=(1, 2))
    assert found == {
        "recall@1": 0.0,
        "recall@2": 1.0,
        "all_within@1": 0.0,
        "all_within@2": 1.0,
        "precision@1": 0.0,
        "precision@2": 0.5,
        "token_precision": 0.5,
        "token_recall": 1.0,
        "substring_recall": 1.0,
        "substring_precision": 1.0,
        "answer_in_context": 1.0,
    }
    assert len(retrieval_scores(["a"], ["b"])) == 3 * len(KS)


@given(
    RANKED, GOLD, st.lists(texts(), max_size=3), st.lists(texts(), max_size=3), st.lists(texts(), max_size=2)
)
def test_scores_are_between_0_and_1(
    ranked: list[str], gold: list[str], some: list[str], wanted: list[str], answers: list[str]
):
    scores = retrieval_scores(ranked, gold, some, wanted, answers)
    assert all(isinstance(score, float) and 0 <= score <= 1 for score in scores.values())
