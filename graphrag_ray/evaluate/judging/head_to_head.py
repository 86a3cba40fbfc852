"""Compute win rates of pairs of conditions, and the reliability of the judge (GraphRAG 3.3, 4.1, F.2).

A verdict gives 100 to the winner and 0 to the loser, or 50 to both for a tie. To score a question for one
pair and criterion, we average the verdicts for each order of the answers, and then average over the orders
that have verdicts. So a judge that always prefers the first answer scores exactly 50. The win rate is the
mean over the questions.

Internally, the conditions of a pair are in alphabetical order, and a score is -1 (second), 0 (tie) or 1
(first).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from graphrag_ray.base.ids import stable_id
from graphrag_ray.evaluate.judging.mean_figures import Floats, mean_interval

SIGNIFICANT = 0.05  # Win rates with a corrected p below this are marked.

JUDGEMENTS = pa.schema(
    [
        # One row per comparison of two answers by a judge.
        ("question_id", pa.string()),
        ("criterion", pa.string()),
        ("first", pa.string()),  # the two conditions, in the order passed
        ("second", pa.string()),
        ("replicate", pa.int64()),  # from 0
        ("swapped", pa.bool_()),  # whether the answer of `second` was presented first
        ("winner", pa.string()),  # a condition; "" for a tie; null without a verdict
        ("reason", pa.string()),
        ("error", pa.string()),  # why there is no verdict
    ]
)

WIN_RATES = pa.schema(
    [
        # One row per criterion and pair of conditions.
        ("criterion", pa.string()),
        ("first", pa.string()),
        ("second", pa.string()),
        ("questions", pa.int64()),  # number of questions with a verdict
        ("win_rate", pa.float64()),  # mean score of `first` over the questions, 0 to 100
        ("low", pa.float64()),  # 95% bootstrap interval over the questions
        ("high", pa.float64()),
        ("ties", pa.float64()),  # share of the verdicts
        ("z", pa.float64()),  # Wilcoxon signed-rank test; negative if `second` wins more
        ("p", pa.float64()),  # two-sided; exact below 26 questions with a winner, otherwise from z
        ("p_holm", pa.float64()),  # Holm-corrected over the pairs of the criterion
        ("normal_p", pa.float64()),  # Shapiro-Wilk test; small if scores are not normally distributed
        ("failed", pa.int64()),  # judgements without a verdict
    ]
)

RELIABILITY = pa.schema(
    [
        # One row per criterion.
        ("criterion", pa.string()),
        ("verdicts", pa.int64()),
        ("failed", pa.int64()),
        ("first_shown", pa.float64()),  # share of the verdicts, except ties, for the first answer
        ("position_bias", pa.float64()),  # share of the answer pairs whose verdict changes when swapped
        ("agreement", pa.float64()),  # share of the replicate pairs, in the same order, that agree
    ]
)

COUNT_TESTS = pa.schema(
    [
        # One row per measure (claims, clusters) and pair of conditions. Tests as in WIN_RATES.
        ("measure", pa.string()),
        ("first", pa.string()),
        ("second", pa.string()),
        ("questions", pa.int64()),  # number of questions with counts of both
        ("difference", pa.float64()),  # mean count of `first` minus that of `second`
        ("z", pa.float64()),
        ("p", pa.float64()),
        ("p_holm", pa.float64()),  # Holm-corrected over the pairs of the measure
        ("normal_p", pa.float64()),  # of the differences
    ]
)

EXACT_BELOW = 26  # Below this number of nonzero scores, the normal approximation is too rough.
_DECIMALS = 9  # Scores are rounded so that equal scores share a rank and ties are zero.
_PAIR = ["criterion", "first", "second"]


def is_swapped(question_id: str, replicate: int) -> bool:
    """Whether the second condition's answer is presented to the judge first.

    Replicates alternate. A hash of the question id decides the first order, so that an odd number of
    replicates is balanced over the questions, too.
    """
    return (replicate + int(stable_id("swapped", question_id)[-1], 16)) % 2 == 1


def win_rates(judgements: pa.Table, order: Sequence[tuple[str, str]]) -> pa.Table:
    """Compute WIN_RATES from JUDGEMENTS, sorted by criterion, then by pair as in `order`.

    The order of the conditions in a judgement does not matter. Holm's correction covers the pairs of a
    criterion that have a verdict; a pair without a verdict has z 0 and p 1. `normal_p` is null if there are
    fewer than three scores or all are equal, and inexact above 5,000 questions.

    Raises:
        ValueError: A pair occurs twice in `order`, or a winner is neither condition of its pair.
    """
    if len({frozenset(pair) for pair in order}) < len(order):
        raise ValueError("A pair of conditions occurs twice")
    if not len(judgements):
        return WIN_RATES.empty_table()
    frame = _read(judgements)
    decided = frame[~frame.failed]
    by_order = decided.groupby([*_PAIR, "question_id", "swapped"])["sign"].mean()
    by_question = by_order.groupby([*_PAIR, "question_id"]).mean().round(_DECIMALS)
    scores = {pair: values.to_numpy() for pair, values in by_question.groupby(_PAIR)}
    ties = decided.groupby(_PAIR)["tied"].mean().to_dict()
    failed = frame.groupby(_PAIR)["failed"].sum().to_dict()
    rows: list[dict[str, Any]] = []
    for criterion in sorted(frame.criterion.unique()):
        pairs: list[dict[str, Any]] = []
        for first, second in order:
            pair = (criterion, *sorted((first, second)))
            score = scores.get(pair, np.zeros(0))
            row = {"criterion": criterion, "first": first, "second": second}
            row |= {"ties": ties.get(pair), "failed": failed.get(pair, 0)}
            pairs.append(row | _score_statistics(score if first == pair[1] else -score))
        rows += _corrected(pairs)
    return pa.Table.from_pylist(rows, schema=WIN_RATES)


def count_tests(
    counts: Mapping[str, Mapping[tuple[str, str], float]], order: Sequence[tuple[str, str]]
) -> pa.Table:
    """Compute COUNT_TESTS (GraphRAG 5.2: the tests of win rates, on counts) for the pairs in `order`.

    Args:
        counts: Measure -> (question id, condition) -> count.
    """
    rows: list[dict[str, Any]] = []
    for measure, by_answer in counts.items():
        pairs: list[dict[str, Any]] = []
        all_questions = dict.fromkeys(q for q, _ in by_answer)
        for first, second in order:
            questions = [q for q in all_questions if (q, first) in by_answer and (q, second) in by_answer]
            difference = np.array([by_answer[q, first] - by_answer[q, second] for q in questions], float)
            row: dict[str, Any] = {"measure": measure, "first": first, "second": second}
            row |= {"questions": len(questions), **_significance(np.sort(difference))}
            pairs.append(row | {"difference": float(difference.mean()) if questions else None})
        rows += _corrected(pairs)
    return pa.Table.from_pylist(rows, schema=COUNT_TESTS)


def _corrected(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Set `p_holm` of the rows of a family of tests."""
    tested = [row for row in pairs if row["questions"]]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return pairs


def reliability(judgements: pa.Table) -> pa.Table:
    """Compute RELIABILITY from JUDGEMENTS, sorted by criterion. Shares of zero cases are null.

    A judge that ignores the order has a `first_shown` of 0.5. For `position_bias`, the verdict of an order is
    the condition that wins most of its replicates, or a tie. With few replicates, it also varies by chance.
    Raises ValueError like `win_rates`.
    """
    if not len(judgements):
        return RELIABILITY.empty_table()
    frame = _read(judgements)
    criteria = sorted(frame.criterion.unique())
    valid = frame[~frame.failed]
    decided = valid[~valid.tied]
    names_first = decided.won != decided.swapped
    cells = valid.groupby([*_PAIR, "question_id", "swapped"])[["won", "lost", "tied"]].sum()
    n, verdict = cells.sum(axis=1), np.sign(cells.won - cells.lost)
    orders = [verdict[cells.index.get_level_values("swapped") == swapped] for swapped in (False, True)]
    both = pd.concat([order.droplevel("swapped") for order in orders], axis=1, join="inner")
    changed = both.iloc[:, 0] != both.iloc[:, 1]
    same = (cells * (cells - 1)).sum(axis=1).groupby("criterion").sum()
    shares = {
        "first_shown": names_first.groupby(decided.criterion).mean(),
        "position_bias": changed.groupby("criterion").mean(),
        "agreement": same / (n * (n - 1)).groupby("criterion").sum(),
    }
    columns = {
        "criterion": criteria,
        "verdicts": (~frame.failed).groupby(frame.criterion).sum(),
        "failed": frame.failed.groupby(frame.criterion).sum(),
        **{name: share.reindex(criteria) for name, share in shares.items()},
    }
    # pandas represents shares of zero cases as NaN.
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in RELIABILITY]
    return pa.table(arrays, schema=RELIABILITY)


def majorities(judgements: pa.Table) -> pd.DataFrame:
    """Return the majority winner per criterion, pair and question_id with a verdict, sorted in this order.

    A condition wins if it has more verdicts than the other one and more than there are ties; otherwise,
    `winner` is "". The pair (`first`, `second`) is in alphabetical order. Raises ValueError like `win_rates`.
    """
    frame = _read(judgements)
    votes = frame[~frame.failed].groupby([*_PAIR, "question_id"])[["won", "lost", "tied"]].sum().reset_index()
    second_wins = np.where(votes.lost > np.maximum(votes.won, votes.tied), votes["second"], "")
    first_wins = votes.won > np.maximum(votes.lost, votes.tied)
    votes["winner"] = np.where(first_wins, votes["first"], second_wins)
    return votes[[*_PAIR, "question_id", "winner"]]


def agreement(
    counts: Mapping[tuple[str, str], float], judgements: pa.Table, criterion: str
) -> tuple[float | None, int, float | None]:
    """Return how often the judge's winner has more claims or clusters, the number of cases, and majorities.

    A case is a question and pair of conditions with a majority and different counts. If there are no cases,
    the share is None. The third value is the share of the judged pairs of answers with a majority. counts: by
    question id and condition. Raises ValueError like `win_rates`.
    """
    rows = majorities(judgements.filter(pc.equal(judgements["criterion"], criterion)))
    agreed = cases = 0
    for _, first, second, question, winner in rows.itertuples(index=False):
        a, b = counts.get((question, first)), counts.get((question, second))
        if winner and a is not None and b is not None and a != b:
            cases += 1
            agreed += winner == (first if a > b else second)
    with_majority = float((rows["winner"] != "").mean()) if len(rows) else None
    return agreed / cases if cases else None, cases, with_majority


def two_sided_p(z: float) -> float:
    """Return the probability that a standard normal variable is at least as far from 0 as z."""
    return math.erfc(abs(z) / math.sqrt(2))


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p values for multiple tests (Holm 1979), in the given order.

    The k-th smallest of m values, counted from 0, is multiplied by m - k. The results are monotonic and at
    most 1.
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for k, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - k) * p[i]))
        adjusted[i] = largest
    return adjusted


def _read(judgements: pa.Table) -> pd.DataFrame:
    """Return one row per judgement: criterion, question_id, first and second in alphabetical order.

    swapped: the answer of `second` was presented first. failed: no verdict. won, lost, tied: whether `first`
    won, lost or tied. sign: 1, -1 or 0. Raises ValueError for a winner that is neither condition of its pair.
    """
    frame = judgements.select(
        ["criterion", "question_id", "first", "second", "swapped", "winner"]
    ).to_pandas()
    winner, first, second = frame.winner, frame["first"], frame["second"]
    wrong = frame[winner.notna() & (winner != "") & (winner != first) & (winner != second)]
    if len(wrong):
        _, _, a, b, _, w = wrong.iloc[0]
        raise ValueError(f"The winner {w!r} is neither {a!r} nor {b!r}")
    reversed_pair = first > second
    low, high = first.where(~reversed_pair, second), second.where(~reversed_pair, first)
    # A condition compared with itself always ties.
    won, lost = (winner == low) & (low != high), (winner == high) & (low != high)
    return frame.assign(
        first=low,
        second=high,
        swapped=frame.swapped.astype(bool) != reversed_pair,
        failed=winner.isna(),
        won=won,
        lost=lost,
        tied=winner.notna() & ~won & ~lost,
        sign=won.astype(int) - lost.astype(int),
    )


def _score_statistics(score: Floats) -> dict[str, Any]:
    """Compute columns of WIN_RATES from the scores of a pair's questions, from -1 to 1."""
    score = np.sort(score)  # The result must not depend on the order of the judgements.
    if not len(score):
        return {"questions": 0, **dict.fromkeys(("win_rate", "low", "high")), **_significance(score)}
    low, high = mean_interval(score)
    return {
        "questions": len(score),
        "win_rate": 50 + 50 * float(score.mean()),
        "low": 50 + 50 * low,
        "high": 50 + 50 * high,
        **_significance(score),
    }


def _significance(score: Floats) -> dict[str, float | None]:
    """Compute the columns z, p, p_holm (not corrected yet) and normal_p from sorted scores or differences."""
    z, p = _wilcoxon(score[score != 0])
    normal_p = None
    if len(score) > 2 and score[0] < score[-1]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Raised above 5,000 scores.
            normal_p = float(stats.shapiro(score).pvalue)
    return {"z": z, "p": p, "p_holm": p, "normal_p": normal_p}


def _wilcoxon(score: Floats) -> tuple[float, float]:
    """Return z and the two-sided p of Wilcoxon's signed-rank test over nonzero scores.

    Ties share their mean rank. z is the normal approximation without continuity correction. For few scores, p
    is exact: it covers all sign assignments.
    """
    if not len(score):
        return 0.0, 1.0
    ranks = stats.rankdata(np.abs(score))
    plus = ranks[score > 0].sum()
    z = float((plus - ranks.sum() / 2) / math.sqrt((ranks**2).sum() / 4))
    if len(score) >= EXACT_BELOW:
        return z, two_sided_p(z)
    doubled = (2 * ranks).astype(int)  # Mean ranks may be halves.
    ways = np.zeros(doubled.sum() + 1)  # Number of sign assignments by doubled sum of the positive ranks.
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] += ways[: len(ways) - rank].copy()
    observed = int(2 * plus)
    tail = min(ways[: observed + 1].sum(), ways[observed:].sum())
    return z, float(min(1.0, 2 * tail / ways.sum()))
