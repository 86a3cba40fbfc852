"""Win rates of pairs of conditions, and how far their judge can be trusted (GraphRAG 3.3, 4.1, F.2).

A verdict gives 100 to the winner, 0 to the loser and 50 to both for a tie. The score of a question, for one
pair and criterion, is the mean over the two orders of the answers of the mean of the verdicts in that order:
a judge that always names the answer shown first gives exactly 50, however many replicates were shown in each
order. Where only one order has a verdict, its mean is the score. The win rate is the mean over the questions.

Inside this module the conditions of a pair are in alphabetical order, and a score is a number from -1 (the
second one) over 0 (tie) to 1 (the first), which for Wilcoxon's test is as good as 2 * score - 100.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from graphrag_ray.base.ids import stable_id

Floats: TypeAlias = npt.NDArray[np.float64]

SIGNIFICANT = 0.05
"""Win rates whose corrected p is below it are marked."""

JUDGEMENTS = pa.schema(
    [
        # one row for each time that a judge compared two answers
        ("question_id", pa.string()),
        ("criterion", pa.string()),
        ("first", pa.string()),  # the conditions, in the order in which they were named
        ("second", pa.string()),
        ("replicate", pa.int64()),  # from 0
        ("swapped", pa.bool_()),  # the judge saw the answer of `second` as answer 1
        ("winner", pa.string()),  # one of the two conditions; "" for a tie; null where there is no verdict
        ("reason", pa.string()),
        ("error", pa.string()),  # why there is no verdict; null where there is one
    ]
)

WIN_RATES = pa.schema(
    [
        # one row for each criterion and pair of conditions
        ("criterion", pa.string()),
        ("first", pa.string()),
        ("second", pa.string()),
        ("questions", pa.int64()),  # that have a verdict
        ("win_rate", pa.float64()),  # of `first`, 0 to 100: mean score of the questions
        ("low", pa.float64()),  # 95 % interval of it: bootstrap over questions
        ("high", pa.float64()),
        ("ties", pa.float64()),  # share of the verdicts
        ("z", pa.float64()),  # Wilcoxon's signed-rank test over the scores; negative: `second` wins more
        ("p", pa.float64()),  # two-sided; exact for fewer than 26 questions with a winner, else by z
        ("p_holm", pa.float64()),  # the same after Holm's correction over the pairs of one criterion
        ("normal_p", pa.float64()),  # Shapiro-Wilk: small where scores are not normal; null for fewer than 3
        ("failed", pa.int64()),  # judgements without a verdict
    ]
)

RELIABILITY = pa.schema(
    [
        # one row for each criterion
        ("criterion", pa.string()),
        ("verdicts", pa.int64()),
        ("failed", pa.int64()),
        # share of the verdicts that are no tie and name the answer shown first
        ("first_shown", pa.float64()),
        # share of the pairs of answers that were shown in both orders where swapping them changes the verdict
        ("position_bias", pa.float64()),
        # share of the pairs of replicates of the same two answers, in the same order, with the same verdict
        ("agreement", pa.float64()),
    ]
)

EXACT_BELOW = 26
"""Scores that are no tie, below which the normal approximation is too rough."""
RESAMPLES = 2_000
SEED = 20_240_424
"""Of the bootstrap: the same judgements have the same interval."""
_DECIMALS = 9
"""Equal scores are to have equal ranks, and ties are to be zeros, whatever was rounded on the way."""
_PAIR = ["criterion", "first", "second"]


def is_swapped(question_id: str, replicate: int) -> bool:
    """Whether a judge is to see the second condition's answer as answer 1.

    Every other replicate is. The first is for about half of the questions, by a hash of their ids: an odd
    number of replicates, or a single one, is then balanced over the questions.
    """
    return (replicate + int(stable_id("swapped", question_id)[-1], 16)) % 2 == 1


def win_rates(judgements: pa.Table, order: Sequence[tuple[str, str]]) -> pa.Table:
    """Of JUDGEMENTS, a table WIN_RATES: criteria by name, within each the pairs as `order` has them.

    A judgement counts for its pair whichever condition it names first. Holm's correction is over the pairs of
    a criterion that have a verdict; a pair without one has z 0 and p 1. `normal_p` is null where all scores
    are the same, and inexact from 5,000 questions on.

    Raises ValueError where a pair is in `order` twice, either way round, and for a winner that is neither
    condition of its pair.
    """
    if len({frozenset(pair) for pair in order}) < len(order):
        raise ValueError("a pair of conditions is named twice")
    if not len(judgements):
        return WIN_RATES.empty_table()
    frame = _read(judgements)
    given = frame[~frame.failed]
    in_order = given.groupby([*_PAIR, "question_id", "swapped"])["sign"].mean()
    by_question = in_order.groupby([*_PAIR, "question_id"]).mean().round(_DECIMALS)
    scores = {pair: own.to_numpy() for pair, own in by_question.groupby(_PAIR)}
    ties = given.tied.groupby([given[name] for name in _PAIR]).mean().to_dict()
    failed = frame.groupby(_PAIR)["failed"].sum().to_dict()
    rows: list[dict[str, Any]] = []
    for criterion in sorted(frame.criterion.unique()):
        own: list[dict[str, Any]] = []
        for first, second in order:
            pair = (criterion, *sorted((first, second)))
            score = scores.get(pair, np.zeros(0))
            row = {"criterion": criterion, "first": first, "second": second}
            row |= {"ties": ties.get(pair), "failed": failed.get(pair, 0)}
            own.append(row | _tested(score if first == pair[1] else -score))
        tested = [row for row in own if row["questions"]]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = p
        rows += own
    return pa.Table.from_pylist(rows, schema=WIN_RATES)


def reliability(judgements: pa.Table) -> pa.Table:
    """Of JUDGEMENTS, a table RELIABILITY: criteria by name. A share of nothing is null.

    `first_shown` is over the verdicts that are no tie: a judge that does not mind the order has 0.5. For
    `position_bias` the verdict of an order is the condition that more of its replicates name, or a tie; with
    few replicates chance changes it too: see `agreement`. Raises ValueError as `win_rates` does.
    """
    if not len(judgements):
        return RELIABILITY.empty_table()
    frame = _read(judgements)
    criteria = sorted(frame.criterion.unique())
    given = frame[~frame.failed]
    decided = given[~given.tied]
    names_first = decided.won != decided.swapped
    cells = given.groupby([*_PAIR, "question_id", "swapped"])[["won", "lost", "tied"]].sum()
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
    # A share of nothing is not a number in pandas.
    return pa.table(
        [pa.array(columns[f.name], f.type, from_pandas=True) for f in RELIABILITY], schema=RELIABILITY
    )


def majorities(judgements: pa.Table) -> pd.DataFrame:
    """Of JUDGEMENTS, for each criterion, pair of conditions (`first` and `second` in alphabetical order) and
    question_id with a verdict, in this order, the `winner`: it is named by more verdicts than the other
    condition, and by more than are ties; "" where there is none. Raises ValueError as `win_rates` does."""
    frame = _read(judgements)
    votes = frame[~frame.failed].groupby([*_PAIR, "question_id"])[["won", "lost", "tied"]].sum().reset_index()
    first, second = votes["first"], votes["second"]
    named_second = np.where(votes.lost > np.maximum(votes.won, votes.tied), second, "")
    named_first = votes.won > np.maximum(votes.lost, votes.tied)
    votes["winner"] = np.where(named_first, first, named_second)
    return votes[[*_PAIR, "question_id", "winner"]]


def agreement(
    counts: Mapping[tuple[str, str], float], judgements: pa.Table, criterion: str
) -> tuple[float | None, int]:
    """How often the judge's winner has more claims or clusters (None without a case), and the number of
    cases: questions and pairs of conditions with a majority, where both answers have counts that differ.

    counts: by question id and condition. Raises ValueError as `majorities` does.
    """
    rows = majorities(judgements.filter(pc.equal(judgements["criterion"], criterion)))
    agreed = cases = 0
    for _, first, second, question, winner in rows.itertuples(index=False):
        a, b = counts.get((question, first)), counts.get((question, second))
        if winner and a is not None and b is not None and a != b:
            cases += 1
            agreed += winner == (first if a > b else second)
    return agreed / cases if cases else None, cases


def two_sided_p(z: float) -> float:
    """The probability that a standard normal variable is as far from 0 as z, or farther."""
    return math.erfc(abs(z) / math.sqrt(2))


def holm(p: Sequence[float]) -> list[float]:
    """p values, each adjusted for the others (Holm 1979), in the order given.

    The k-th smallest of m, from 0, is multiplied by m - k; none becomes less than a smaller one, or more
    than 1.
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for k, at in enumerate(sorted(range(len(p)), key=lambda at: p[at])):
        largest = max(largest, min(1.0, (len(p) - k) * p[at]))
        adjusted[at] = largest
    return adjusted


def _read(judgements: pa.Table) -> pd.DataFrame:
    """A row for each judgement: criterion, question_id, first and second in alphabetical order; swapped: the
    second one's answer was shown first; failed: there is no verdict; won, lost, tied: by the first one; sign:
    1, -1, 0. Raises ValueError for a winner that is neither condition of its pair."""
    frame = judgements.select(
        ["criterion", "question_id", "first", "second", "swapped", "winner"]
    ).to_pandas()
    winner, first, second = frame.winner, frame["first"], frame["second"]
    wrong = frame[winner.notna() & (winner != "") & (winner != first) & (winner != second)]
    if len(wrong):
        _, _, a, b, _, w = wrong.iloc[0]
        raise ValueError(f"the winner {w!r} is neither {a!r} nor {b!r}")
    turned = first > second
    low, high = first.where(~turned, second), second.where(~turned, first)
    # For a condition against itself: whoever wins, it is a tie.
    won, lost = (winner == low) & (low != high), (winner == high) & (low != high)
    return frame.assign(
        first=low,
        second=high,
        swapped=frame.swapped.astype(bool) != turned,
        failed=winner.isna(),
        won=won,
        lost=lost,
        tied=winner.notna() & ~won & ~lost,
        sign=won.astype(int) - lost.astype(int),
    )


def _tested(score: Floats) -> dict[str, Any]:
    """The columns of WIN_RATES that follow from the scores, from -1 to 1, of a pair's questions."""
    score = np.sort(score)  # the order of the judgements then changes no digit
    if not len(score):
        unknown = dict.fromkeys(("win_rate", "low", "high", "normal_p"))
        return {"questions": 0, "z": 0.0, "p": 1.0, "p_holm": 1.0, **unknown}
    # The interval is a bootstrap's (Efron 1979): questions drawn with replacement. How often each distinct
    # score is drawn has a multinomial distribution, whose drawing takes no longer for a million questions.
    values, counts = np.unique(score, return_counts=True)
    drawn = np.random.default_rng(SEED).multinomial(len(score), counts / len(score), RESAMPLES)
    low, high = np.percentile(50 + 50 * (drawn @ values / len(score)), [2.5, 97.5])
    z, p = _wilcoxon(score[score != 0])
    normal_p = None
    if len(values) > 1 and len(score) > 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # above 5,000 scores, as `win_rates` says
            normal_p = float(stats.shapiro(score).pvalue)
    return {
        "questions": len(score),
        "win_rate": 50 + 50 * float(score.mean()),
        "low": float(low),
        "high": float(high),
        "z": z,
        "p": p,
        "p_holm": p,
        "normal_p": normal_p,
    }


def _wilcoxon(score: Floats) -> tuple[float, float]:
    """z of Wilcoxon's signed-rank test by its normal approximation without a correction for continuity, and
    the two-sided p: by z, or over few scores by all ways to give signs to their ranks. Equal scores share
    their mean rank. No score is 0."""
    if not len(score):
        return 0.0, 1.0
    ranks = stats.rankdata(np.abs(score))
    plus = ranks[score > 0].sum()
    z = float((plus - ranks.sum() / 2) / math.sqrt((ranks**2).sum() / 4))
    if len(score) >= EXACT_BELOW:
        return z, two_sided_p(z)
    doubled = (2 * ranks).astype(int)  # whole numbers
    ways = np.zeros(doubled.sum() + 1)  # of each sum of the ranks with a plus
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] += ways[: len(ways) - rank].copy()
    at = int(2 * plus)
    return z, float(min(1.0, 2 * min(ways[: at + 1].sum(), ways[at:].sum()) / ways.sum()))
