"""Win rates of pairs of conditions, significance tests, and the reliability of the judge."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from graphrag_ray.evaluate.judging.head_to_head import (
    JUDGEMENTS,
    RELIABILITY,
    WIN_RATES,
    holm,
    is_swapped,
    majorities,
    reliability,
    two_sided_p,
    win_rates,
)

Row = tuple[str, str, str, str, bool, str | None]
"""question, criterion, first, second, swapped, winner"""

NAMES = ["A", "B", "C"]


def table(rows: Iterable[Row]) -> pa.Table:
    names = ["question_id", "criterion", "first", "second", "swapped", "winner"]
    made: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    seen: Counter[tuple[object, ...]] = Counter()
    for row in made:
        key = tuple(row[name] for name in names[:4])
        row |= {"replicate": seen[key], "reason": "", "error": None if row["winner"] is not None else "no"}
        seen[key] += 1
    return pa.Table.from_pylist(made, schema=JUDGEMENTS)


def judged(
    questions: int,
    verdict: Callable[[str, str, str], str | None],
    pairs: Iterable[tuple[str, str]] = (("A", "B"),),
    replicates: int = 5,
) -> pa.Table:
    """Create judgements. verdict(question, first answer, second answer) returns the winner."""
    rows = []
    for q in (f"q{n}" for n in range(questions)):
        for first, second in pairs:
            for replicate in range(replicates):
                swapped = is_swapped(q, replicate)
                shown = (second, first) if swapped else (first, second)
                rows.append((q, "c", first, second, swapped, verdict(q, *shown)))
    return table(rows)


@st.composite
def judgements(draw: st.DrawFn) -> list[Row]:
    pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))
    rows = []
    for _ in range(draw(st.integers(0, 40))):
        first, second = draw(pairs)
        winner = draw(st.sampled_from([first, second, "", None]))
        question, criterion = draw(st.sampled_from(["q1", "q2", "q3"])), draw(st.sampled_from(["c", "d"]))
        rows.append((question, criterion, first, second, draw(st.booleans()), winner))
    return rows


# scores


def scores_of(rows: list[Row], criterion: str, a: str, b: str) -> list[float]:
    """Compute the score of `a` for each question by the definition."""
    verdicts: dict[str, dict[bool, list[float]]] = {}
    for question, own, first, second, swapped, winner in rows:
        if own == criterion and sorted((first, second)) == sorted((a, b)) and winner is not None:
            score = 50.0 if winner == "" or first == second else 100.0 * (winner == a)
            shown_first = second if swapped else first
            verdicts.setdefault(question, {}).setdefault(shown_first == a, []).append(score)
    means = [[sum(o) / len(o) for o in orders.values()] for orders in verdicts.values()]
    return [sum(m) / len(m) for m in means]


@given(judgements(), st.randoms(use_true_random=False))
def test_win_rate_is_the_mean_over_questions_orders_and_replicates(rows: list[Row], chance: random.Random):
    # If a condition is compared with itself, rows do not contain the order.
    rows = [row for row in rows if row[2] != row[3]]
    order = [("B", "A"), ("A", "C"), ("C", "B")]
    found = win_rates(table(rows), order)
    assert found.schema == WIN_RATES
    expected_rows = [(c, *pair) for c in sorted({row[1] for row in rows}) for pair in order]
    assert [(r["criterion"], r["first"], r["second"]) for r in found.to_pylist()] == expected_rows
    for row in found.to_pylist():
        scores = scores_of(rows, row["criterion"], row["first"], row["second"])
        own = [r for r in rows if r[1] == row["criterion"] and {r[2], r[3]} == {row["first"], row["second"]}]
        given_ = [r[5] for r in own if r[5] is not None]
        assert (row["questions"], row["failed"]) == (len(scores), len(own) - len(given_))
        if not scores:
            assert (row["win_rate"], row["low"], row["high"], row["ties"]) == (None,) * 4
            assert (row["z"], row["p"], row["p_holm"]) == (0.0, 1.0, 1.0)
        else:
            assert row["win_rate"] == pytest.approx(sum(scores) / len(scores))
            assert row["ties"] == pytest.approx(given_.count("") / len(given_))
            assert 0 <= row["low"] <= row["win_rate"] + 1e-9 and row["win_rate"] - 1e-9 <= row["high"] <= 100
        assert row["p"] <= row["p_holm"] <= 1
    shuffled = chance.sample(rows, len(rows))
    assert win_rates(table(shuffled), order).equals(found)


@given(judgements())
def test_reversing_a_pair_mirrors_its_result(rows: list[Row]):
    there = win_rates(table(rows), [("A", "B")]).to_pylist()
    back = win_rates(table(rows), [("B", "A")]).to_pylist()
    flipped = [(q, c, second, first, not swapped, winner) for q, c, first, second, swapped, winner in rows]
    assert win_rates(table(flipped), [("A", "B")]).to_pylist() == there
    for row, other in zip(there, back, strict=True):
        for name in ("questions", "ties", "p", "failed"):
            assert row[name] == other[name]
        assert row["z"] == pytest.approx(-other["z"])
        if row["questions"]:
            assert row["win_rate"] == pytest.approx(100 - other["win_rate"])


def test_judge_that_always_prefers_the_first_answer_scores_fifty_and_is_detected():
    verdicts = judged(40, lambda q, first, second: first)
    row = win_rates(verdicts, [("A", "B")]).to_pylist()[0]
    assert (row["win_rate"], row["low"], row["high"], row["z"], row["p"]) == (50.0, 50.0, 50.0, 0.0, 1.0)
    assert reliability(verdicts).to_pylist() == [
        {
            "criterion": "c",
            "verdicts": 200,
            "failed": 0,
            "first_shown": 1.0,
            "position_bias": 1.0,
            "agreement": 1.0,
        }
    ]


def test_judge_that_ignores_the_order_has_no_position_bias():
    verdicts = judged(40, lambda q, first, second: "A")
    row = win_rates(verdicts, [("A", "B")]).to_pylist()[0]
    assert (row["win_rate"], row["low"], row["high"]) == (100.0, 100.0, 100.0)
    assert row["z"] > 5 and row["p"] < 1e-6
    found = reliability(verdicts).to_pylist()[0]
    assert (found["position_bias"], found["agreement"]) == (0.0, 1.0)
    assert found["first_shown"] == pytest.approx(0.5, abs=0.1)


def test_condition_against_itself_wins_half():
    for verdict in ("", "A"):
        verdicts = judged(9, lambda q, first, second, result=verdict: result, [("A", "A")])  # type: ignore[misc]
        row = win_rates(verdicts, [("A", "A")]).to_pylist()[0]
        assert (row["win_rate"], row["z"], row["p"], row["p_holm"], row["ties"]) == (50.0, 0.0, 1.0, 1.0, 1.0)
        assert row["normal_p"] is None


def test_failed_order_leaves_the_other_order_to_count():
    rows: list[Row] = [("q", "c", "A", "B", False, "A"), ("q", "c", "A", "B", False, "")]
    failed: list[Row] = [("q", "c", "A", "B", True, None)] * 3
    row = win_rates(table(rows + failed), [("A", "B")]).to_pylist()[0]
    assert (row["win_rate"], row["questions"], row["failed"], row["ties"]) == (75.0, 1, 3, 0.5)


def test_failed_judgements_leave_a_row_without_a_win_rate():
    found = win_rates(table([("q", "c", "A", "B", True, None)]), [("A", "B"), ("A", "C")]).to_pylist()
    assert [(r["questions"], r["win_rate"], r["failed"]) for r in found] == [(0, None, 1), (0, None, 0)]
    row = reliability(table([("q", "c", "A", "B", True, None)])).to_pylist()[0]
    assert (row["verdicts"], row["failed"]) == (0, 1)
    assert (row["first_shown"], row["position_bias"], row["agreement"]) == (None, None, None)


def test_no_judgements_give_empty_tables():
    nothing = table([])
    assert win_rates(nothing, [("A", "B")]).equals(WIN_RATES.empty_table())
    assert reliability(nothing).equals(RELIABILITY.empty_table())
    assert len(majorities(nothing)) == 0


def test_winner_that_is_neither_condition_is_refused():
    wrong = table([("q", "c", "A", "B", False, "A"), ("q", "c", "A", "B", False, "C")])
    for read in (lambda t: win_rates(t, [("A", "B")]), reliability, majorities):
        with pytest.raises(ValueError, match="The winner 'C' is neither 'A' nor 'B'"):
            read(wrong)


def test_repeated_pair_is_refused():
    for order in ([("A", "B"), ("B", "A")], [("A", "B"), ("A", "B")], [("A", "A"), ("A", "A")]):
        with pytest.raises(ValueError, match="occurs twice"):
            win_rates(table([]), order)


# tests of significance


TABLE_6 = {
    # Edge et al. 2024, podcast transcripts, comprehensiveness: Z and the adjusted p; None: less than .001
    "C0/TS": (-0.06, 1.0),
    "C1/TS": (-1.56, 0.633),
    "C2/TS": (-4.1, None),
    "C3/TS": (-3.42, 0.006),
    "C0/SS": (-6.2, None),
    "C1/SS": (-7.45, None),
    "C2/SS": (-8.17, None),
    "C3/SS": (-8.12, None),
    "TS/SS": (-8.85, None),
    "C0/C1": (-1.96, 0.389),
    "C0/C2": (-0.23, 1.0),
    "C1/C2": (-1.62, 0.633),
    "C0/C3": (-0.56, 1.0),
    "C1/C3": (-0.66, 1.0),
    "C2/C3": (-1.97, 0.389),
}


def test_published_p_values_follow_from_published_z():
    adjusted = holm([two_sided_p(z) for z, _ in TABLE_6.values()])
    for pair, found, (_, published) in zip(TABLE_6, adjusted, TABLE_6.values(), strict=True):
        if published is None:
            assert found < 0.001, pair
        else:
            assert found == pytest.approx(published, abs=0.002), pair


@given(st.floats(-8, 8))
def test_two_sided_p_equals_the_normal_distribution(z: float):
    assert two_sided_p(z) == pytest.approx(2 * float(stats.norm.sf(abs(z))))


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_equals_the_step_down_procedure(p: list[float]):
    adjusted = holm(p)
    for level in (0.001, 0.01, 0.05, 0.3):
        refused = set()
        for k, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
            if p[at] * (len(p) - k) > level:
                break
            refused.add(at)
        assert {at for at, value in enumerate(adjusted) if value <= level} == refused
    assert all(own <= value <= 1 for own, value in zip(p, adjusted, strict=True))


def test_holm_multiplies_the_smallest_p_by_the_largest_factor():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def drawn(seed: int, questions: int) -> tuple[pa.Table, list[float]]:
    """Return judgements of a judge that slightly prefers A, and their scores."""
    chance = random.Random(seed)
    verdicts = judged(questions, lambda q, first, second: chance.choice(["A", "A", "B", ""]))
    columns = ("question_id", "criterion", "first", "second", "swapped", "winner")
    rows: list[Row] = list(zip(*(verdicts[name].to_pylist() for name in columns), strict=True))
    return verdicts, scores_of(rows, "c", "A", "B")


@pytest.mark.parametrize("seed", range(3))
def test_significance_tests_equal_scipy(seed: int):
    verdicts, scores = drawn(seed, 60)
    row = win_rates(verdicts, [("A", "B")]).to_pylist()[0]
    differences = np.round([2 * score - 100 for score in scores], 6)
    wilcoxon = stats.wilcoxon(differences, correction=False, method="asymptotic")
    assert row["p"] == pytest.approx(wilcoxon.pvalue)
    assert row["z"] == pytest.approx(-wilcoxon.zstatistic) and row["z"] > 0
    assert row["normal_p"] == pytest.approx(stats.shapiro(scores).pvalue)


def test_wilcoxon_equals_a_manual_calculation():
    rows: list[Row] = [
        (f"q{n}", "c", "A", "B", False, winner) for n, winner in enumerate(["A", "A", "B", ""])
    ]
    row = win_rates(table(rows), [("A", "B")]).to_pylist()[0]
    # Three differences of equal size have rank 2 each: 4 for A, of a mean of 3.
    assert row["z"] == pytest.approx((4 - 3) / math.sqrt((3 * 4 * 7 - (27 - 3) / 2) / 24))


def test_interval_equals_a_bootstrap_over_questions():
    verdicts, scores = drawn(7, 60)
    row = win_rates(verdicts, [("A", "B")]).to_pylist()[0]
    found = stats.bootstrap((scores,), np.mean, method="percentile", rng=np.random.default_rng(0))
    assert row["low"] == pytest.approx(found.confidence_interval.low, abs=1)
    assert row["high"] == pytest.approx(found.confidence_interval.high, abs=1)


def test_correction_covers_the_judged_pairs_of_one_criterion():
    chance = random.Random(3)
    verdicts = judged(20, lambda q, *shown: chance.choice([max(shown), *shown]), combinations("ABC", 2))
    other = verdicts.set_column(1, "criterion", pa.array(["d"] * len(verdicts)))
    both = pa.concat_tables([verdicts, other.slice(0, 100)])
    order = [*combinations("ABC", 2), ("A", "X")]
    found = win_rates(both, order).to_pylist()
    for criterion in ("c", "d"):
        rows = [row for row in found if row["criterion"] == criterion]
        assert [row["p_holm"] for row in rows[:3]] == holm([row["p"] for row in rows[:3]])
        assert rows[3]["p_holm"] == 1.0 and rows[3]["questions"] == 0


def test_scores_that_differ_only_by_rounding_are_ties():
    """In another order of summation, 1/3 + 1/3 + 1/3 is not exactly 1."""
    rows: list[Row] = []
    for n in range(6):
        winners = ["A", "B", ""] if n % 2 else ["", "B", "A"]
        rows += [(f"q{n}", "c", "A", "B", False, winner) for winner in winners]
        rows += [(f"q{n}", "c", "A", "B", True, winner) for winner in ("B", "A")]
    row = win_rates(table(rows), [("A", "B")]).to_pylist()[0]
    assert (row["z"], row["p"], row["normal_p"]) == (0.0, 1.0, None)


# the judge


@given(judgements())
def test_reliability_columns(rows: list[Row]):
    rows = [row for row in rows if row[2] != row[3]]
    found = reliability(table(rows))
    assert found.schema == RELIABILITY and found["criterion"].to_pylist() == sorted({r[1] for r in rows})
    for row in found.to_pylist():
        own = [r for r in rows if r[1] == row["criterion"]]
        assert row["failed"] == sum(r[5] is None for r in own)
        orders: dict[tuple[str, ...], dict[str, list[str]]] = {}
        first = decided = 0
        for question, _, a, b, swapped, winner in own:
            if winner is None:
                continue
            shown = b if swapped else a
            orders.setdefault((question, *sorted((a, b))), {}).setdefault(shown, []).append(winner)
            decided += winner != ""
            first += winner == shown
        assert row["first_shown"] == (pytest.approx(first / decided) if decided else None)
        pairs = [
            x == y for by in orders.values() for result in by.values() for x, y in combinations(result, 2)
        ]
        assert row["agreement"] == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)
        changed = []
        for (_, a, b), by in orders.items():
            if len(by) == 2:
                x, y = (np.sign(result.count(a) - result.count(b)) for result in by.values())
                changed.append(x != y)
        assert row["position_bias"] == (pytest.approx(sum(changed) / len(changed)) if changed else None)


@given(judgements())
def test_majority_needs_more_verdicts_than_any_alternative(rows: list[Row]):
    expected = {}
    for question, criterion, first, second, _, winner in rows:
        if winner is not None:
            key = (criterion, *sorted((first, second)), question)
            result = "" if first == second else winner
            expected.setdefault(key, Counter[str]())[result] += 1
    found = majorities(table(rows)).to_dict("records")
    keys = ("criterion", "first", "second", "question_id")
    assert [tuple(row[k] for k in keys) for row in found] == sorted(expected)
    for row in found:
        (most, n), *rest = expected[tuple(row[k] for k in keys)].most_common()
        assert row["winner"] == (most if all(n > other for _, other in rest) else "")


# order of presentation


@given(st.text(), st.integers(0, 50))
def test_every_second_replicate_is_swapped(question: str, replicate: int):
    assert is_swapped(question, replicate) != is_swapped(question, replicate + 1)
    assert is_swapped(question, replicate) == is_swapped(question, replicate + 2)


def test_the_first_replicate_is_swapped_for_about_half_of_the_questions():
    n = 2_000
    swapped = sum(is_swapped(f"question {at}", 0) for at in range(n))
    assert abs(swapped - n / 2) < 4 * math.sqrt(n / 4)
    of_five = [is_swapped(f"question {at}", r) for at in range(n) for r in range(5)]
    assert abs(sum(of_five) / len(of_five) - 0.5) < 0.02


def test_swapped_questions_are_the_same_in_every_process():
    """A run that is continued in another process must present the answers in the same order."""
    assert [n for n in range(8) if is_swapped(f"q{n}", 0)] == [0, 1, 3, 6, 7]


def test_many_judgements_are_processed_quickly():
    n = 100_000
    at = np.arange(n)
    names = np.array(["A", "B", ""], object)
    columns = {
        "question_id": (at // 5).astype(str).astype(object),
        "criterion": np.full(n, "c", object),
        "first": np.full(n, "A", object),
        "second": np.full(n, "B", object),
        "replicate": at % 5,
        "swapped": at % 2 == 0,
        "winner": names[np.random.default_rng(0).integers(0, 3, n)],
        "reason": np.full(n, "", object),
        "error": pa.nulls(n, pa.string()),
    }
    verdicts = pa.table(columns, schema=JUDGEMENTS)
    start = time.process_time()
    assert win_rates(verdicts, [("A", "B")])["questions"].to_pylist() == [n // 5]
    assert reliability(verdicts)["verdicts"].to_pylist() == [n]
    assert len(majorities(verdicts)) == n // 5
    assert time.process_time() - start < 5


@given(st.lists(st.sampled_from("AB"), min_size=1, max_size=25))
def test_p_is_exact_for_few_questions(winners: list[str]):
    """If all differences are equal, the signed-rank test equals the sign test."""
    rows: list[Row] = [(f"q{n}", "c", "A", "B", False, winner) for n, winner in enumerate(winners)]
    (p,) = win_rates(table(rows), [("A", "B")])["p"].to_pylist()
    assert p == pytest.approx(stats.binomtest(winners.count("A"), len(winners)).pvalue)


def test_ranks_count_for_few_questions():
    pairs = [("A", 5), ("A", 4), ("A", 3), ("B", 1)]  # The other replicates of five are ties.
    rows: list[Row] = [
        (f"q{n}", "c", "A", "B", False, winner if at < size else "")
        for n, (winner, size) in enumerate(pairs)
        for at in range(5)
    ]
    (p,) = win_rates(table(rows), [("A", "B")])["p"].to_pylist()
    assert p == pytest.approx(stats.wilcoxon([5, 4, 3, -1], method="exact").pvalue)
