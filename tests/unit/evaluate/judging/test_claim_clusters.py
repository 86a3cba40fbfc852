"""Counting distinct claims and their clusters."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats
from scipy.cluster import hierarchy

from graphrag_ray.evaluate.judging.answer_metrics import (
    MAX_CLAIM_WORDS,
    MAX_CLAIMS,
    THRESHOLDS,
    count_clusters,
    distinct_claims,
    normalise,
    rouge_l,
)
from graphrag_ray.evaluate.judging.head_to_head import JUDGEMENTS, agreement, count_tests, holm

MEANS = {"A": 30, "B": 29, "C": 20}
QUESTIONS = [f"q{n}" for n in range(60)]

CLAIMS = st.lists(
    st.lists(st.sampled_from(["the", "mill", "closed", "in", "March", "2014", "again"]), max_size=6).map(
        " ".join
    ),
    max_size=12,
)


def test_repeats_within_an_answer_are_removed():
    claims = ["The mill closed.", "A mill closed", "the MILL, closed!", "It closed.", "...", ""]
    assert distinct_claims(claims) == ["The mill closed.", "It closed."]


@given(st.lists(texts(), max_size=8))
def test_first_claim_of_a_normal_form_is_kept(claims: list[str]):
    kept = distinct_claims(iter(claims))
    first = {normalise(claim): claim for claim in reversed(claims)}
    first.pop("", None)
    assert sorted(kept) == sorted(first.values())
    assert kept == [claim for n, claim in enumerate(claims) if claim in kept and claim not in claims[:n]]
    assert distinct_claims(kept) == kept


def test_similar_claims_form_one_cluster():
    claims = [
        "The mill in Denholm closed in March 2014.",
        "The mill in Denholm closed in 2014.",
        "Orla Quist leads Kestrel Marine.",
    ]
    assert count_clusters(claims) == {0.5: 2, 0.6: 2, 0.7: 2, 0.8: 2}


def test_distance_equal_to_the_threshold_is_within_it():
    # 1 - 2 · 3 / (10 + 10) is 0.7, and 1 - 2 · 2 / (10 + 10) is 0.8.
    for common, threshold in ((5, 0.5), (4, 0.6), (3, 0.7), (2, 0.8)):
        a = [*(f"s{n}" for n in range(common)), *(f"a{n}" for n in range(10 - common))]
        b = [*(f"s{n}" for n in range(common)), *(f"b{n}" for n in range(10 - common))]
        found = count_clusters([" ".join(a), " ".join(b)])
        assert found == {t: 1 if t >= threshold else 2 for t in THRESHOLDS}


def test_no_two_claims_of_a_cluster_are_farther_apart_than_the_threshold():
    """Complete linkage: b is near a and c, but a and c are not near each other."""
    a, b, c = "one two three four", "three four five six", "five six seven eight"
    assert count_clusters([a, b, c], [0.5]) == {0.5: 2}


@given(CLAIMS)
def test_clusters_equal_scipy_with_rouge_score_distances(claims: list[str]):
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    distances = [1 - scorer.score(a, b)["rougeL"].fmeasure for a, b in combinations(claims, 2)]
    found = count_clusters(claims)
    assert list(found) == list(THRESHOLDS)
    for threshold, n in found.items():
        if len(claims) < 2:
            assert n == len(claims)
        else:
            tree = hierarchy.linkage(np.round(distances, 9), "complete")
            assert n == len(set(hierarchy.fcluster(tree, threshold, "distance")))


@given(st.lists(texts(), max_size=6))
def test_larger_thresholds_never_give_more_clusters(claims: list[str]):
    found = count_clusters(claims, [0.0, *THRESHOLDS, 1.0])
    numbers = list(found.values())
    assert numbers == sorted(numbers, reverse=True) and numbers[0] <= len(claims)
    assert numbers[-1] == min(1, len(claims))
    if len(claims) == 2:
        assert (found[0.5] == 1) == (rouge_l(claims[0], claims[1:]) >= 0.5)


def test_very_many_claims_are_clustered_in_blocks():
    claims = ["the mill closed"] * (2 * MAX_CLAIMS + 1)
    assert count_clusters(claims) == dict.fromkeys(THRESHOLDS, 3)
    alone = [f"claim{n} word{n}" for n in range(MAX_CLAIMS + 2)]
    assert count_clusters(alone, [0.5]) == {0.5: MAX_CLAIMS + 2}


def test_very_long_claims_are_compared_by_their_first_words():
    same = "mill " * MAX_CLAIM_WORDS
    assert count_clusters([same + "closed", same + "opened again in March"], [0.0]) == {0.0: 1}


def test_claims_of_an_answer_are_clustered_quickly():
    claims = [" ".join(f"w{(7 * n + k * k) % 211}" for k in range(20)) for n in range(MAX_CLAIMS)]
    start = time.process_time()
    count_clusters(claims)
    assert time.process_time() - start < 5


def judgements(*rows: tuple[str, str, str, str, list[str | None]]) -> pa.Table:
    """question, criterion, first, second, winners"""
    made = [
        {
            "question_id": question,
            "criterion": criterion,
            "first": first,
            "second": second,
            "replicate": n,
            "swapped": n % 2 == 1,
            "winner": winner,
            "reason": "",
        }
        for question, criterion, first, second, winners in rows
        for n, winner in enumerate(winners)
    ]
    return pa.Table.from_pylist(made, schema=JUDGEMENTS)


def test_agreement_covers_majorities_with_different_counts():
    counts = {
        ("q1", "A"): 30,
        ("q1", "B"): 20,
        ("q2", "A"): 5,
        ("q2", "B"): 9,
        ("q3", "A"): 7,
        ("q3", "B"): 7,
    }
    counts |= {("q4", "A"): 1, ("q4", "B"): 2}
    verdicts = judgements(
        ("q1", "c", "A", "B", ["A", "A", "B"]),  # agrees
        ("q2", "c", "B", "A", ["A", "A", None]),  # does not
        ("q3", "c", "A", "B", ["A", "A", "A"]),  # counts are the same
        ("q4", "c", "A", "B", ["A", "B", ""]),  # no majority
        ("q5", "c", "A", "B", ["A"]),  # no counts
        ("q1", "d", "A", "B", ["B"]),  # another criterion
    )
    assert agreement(counts, verdicts, "c") == (0.5, 2, 0.8)
    assert agreement(counts, verdicts, "d") == (0.0, 1, 1.0)
    assert agreement(counts, verdicts, "e") == (None, 0, None)


def test_differences_in_counts_are_tested_like_win_rates():
    rng = np.random.default_rng(3)
    counts = {(f"q{n}", c): float(rng.poisson(mean)) for n in range(60) for c, mean in MEANS.items()}
    del counts["q7", "B"]
    order = [("A", "B"), ("A", "C"), ("B", "C")]
    rows = count_tests({"claims": counts, "clusters": dict(counts)}, order).to_pylist()
    assert [(r["measure"], r["first"], r["second"]) for r in rows[:3]] == [("claims", *p) for p in order]
    assert [r["questions"] for r in rows[:3]] == [59, 60, 59]
    for row, (a, b) in zip(rows[:3], order, strict=True):
        pairs = [(counts[q, a], counts[q, b]) for q in QUESTIONS if {(q, a), (q, b)} <= counts.keys()]
        difference = np.subtract(*np.array(pairs).T)
        expected = stats.wilcoxon(difference, method="approx")
        assert row["difference"] == pytest.approx(difference.mean())
        assert row["p"] == pytest.approx(expected.pvalue)
        assert row["normal_p"] == pytest.approx(stats.shapiro(difference).pvalue)
        assert (row["z"] > 0) == (row["difference"] > 0)
    assert [r["p_holm"] for r in rows[:3]] == holm([r["p"] for r in rows[:3]])
    assert [{**r, "measure": "claims"} for r in rows[3:]] == rows[:3]
    assert rows[1]["p_holm"] < 0.001 and rows[0]["p_holm"] > 0.05


def test_differences_without_data_are_not_significant():
    assert count_tests({}, [("A", "B")]).num_rows == 0
    (nothing,) = count_tests({"claims": {("q", "A"): 3.0}}, [("A", "B")]).to_pylist()
    assert (nothing["questions"], nothing["difference"], nothing["p_holm"]) == (0, None, 1.0)
    equal = {(q, c): 3.0 for q in QUESTIONS for c in "AB"}
    (row,) = count_tests({"claims": equal}, [("A", "B")]).to_pylist()
    assert (row["difference"], row["z"], row["p"], row["normal_p"]) == (0.0, 0.0, 1.0, None)


def test_agreement_rejects_impossible_winners():
    with pytest.raises(ValueError, match="is neither"):
        agreement({}, judgements(("q", "c", "A", "B", ["C"])), "c")
