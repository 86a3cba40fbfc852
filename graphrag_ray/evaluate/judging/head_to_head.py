"""Win rates of pairs of conditions, and how far their judge can be trusted (GraphRAG 3.3, 4.1, F.2).

A verdict gives 100 to the winner, 0 to the loser and 50 to both for a tie. The score of a question, for one
pair and criterion, is the mean over the two orders in which the answers were shown of the mean of the
verdicts in that order. A judge that always names the answer shown first thus gives exactly 50, although of
five replicates three were shown in one order and two in the other. Where only one order has a verdict, its
mean is the score. The win rate is the mean over the questions.

Inside this module a score is a number from -1 (the second condition) over 0 (tie) to 1 (the first), which
for Wilcoxon's test is as good as 2 * score - 100.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.ids import stable_id

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Number = TypeVar("Number", int, Ints)

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
        (
            "first_shown",
            pa.float64(),
        ),  # share of the verdicts that are no tie and name the answer shown first
        # share of the pairs of answers that were shown in both orders where swapping them changes the verdict
        ("position_bias", pa.float64()),
        # share of the pairs of replicates of the same two answers, in the same order, with the same verdict
        ("agreement", pa.float64()),
    ]
)

MAJORITIES = pa.schema(
    [
        # one row for each question, criterion and pair of conditions that has a verdict
        ("question_id", pa.string()),
        ("criterion", pa.string()),
        ("first", pa.string()),  # the conditions in alphabetical order
        ("second", pa.string()),
        # named by more verdicts than the other condition, and by more than are ties; "" where there is none
        ("winner", pa.string()),
    ]
)

EXACT_BELOW = 26
"""Scores that are no tie, below which the normal approximation is too rough."""
RESAMPLES = 2_000
SEED = 20_240_424
"""Of the bootstrap: the same judgements have the same interval."""
_BLOCK = 1_000_000
"""Counts that the bootstrap holds at once."""
_DECIMALS = 9
"""Equal scores are to have equal ranks, and ties are to be zeros, whatever was rounded on the way."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """Judgements as numbers, one element each. The conditions of a pair are in alphabetical order here."""

    criteria: list[str]  # sorted, as are the next two
    questions: list[str]
    conditions: list[str]
    group: Ints  # criterion and pair of conditions, see `_group`
    question: Ints
    swapped: Bools  # the answer of the pair's second condition was shown first
    sign: Ints  # 1: the pair's first condition wins; -1: the second; 0: a tie, or no verdict
    given: Bools  # there is a verdict

    def cells(self) -> tuple[Ints, Ints]:
        """Verdicts that differ in nothing but their replicate: (keys [cells], in order; cell [verdicts])."""
        key = (self.group * max(len(self.questions), 1) + self.question) * 2 + self.swapped
        keys, cell = np.unique(key[self.given], return_inverse=True)
        return keys, cell


def is_swapped(question_id: str, replicate: int) -> bool:
    """Whether a judge is to see the second condition's answer as answer 1.

    Every other replicate is. The first is for about half of the questions, by a hash of their ids: an odd
    number of replicates, or a single one, is then balanced over the questions.
    """
    return (replicate + int(stable_id("swapped", question_id)[-1], 16)) % 2 == 1


def win_rates(judgements: pa.Table, order: Sequence[tuple[str, str]]) -> pa.Table:
    """Of JUDGEMENTS, a table WIN_RATES: criteria by name, within each the pairs as `order` has them.

    A judgement counts for its pair whichever of the two it names first; judgements of other pairs are passed
    over. Holm's correction is over the pairs of a criterion that have a verdict. A pair without one has z 0
    and p 1. `normal_p` is null also where all scores are the same, which no test can tell from anything. From
    5,000 questions on it is not exact.

    Raises ValueError where a pair is in `order` twice, either way round, and for a winner that is neither
    condition of its pair.
    """
    if len({frozenset(pair) for pair in order}) < len(order):
        raise ValueError("a pair of conditions is named twice")
    judged = _read(judgements)
    n_questions, n_conditions = max(len(judged.questions), 1), len(judged.conditions)
    n_groups = len(judged.criteria) * n_conditions**2
    keys, cell = judged.cells()
    means = _means(cell, judged.sign[judged.given])
    asked, cells_question = np.unique(keys // 2, return_inverse=True)  # at most two cells each, one an order
    scores = np.round(_means(cells_question, means), _DECIMALS)
    starts = np.searchsorted(asked // n_questions, np.arange(n_groups + 1))
    n_given, n_ties, n_failed = (
        np.bincount(judged.group[rows], minlength=n_groups)
        for rows in (judged.given, judged.given & (judged.sign == 0), ~judged.given)
    )
    number = {name: n for n, name in enumerate(judged.conditions)}
    rows: list[dict[str, Any]] = []
    for at, criterion in enumerate(judged.criteria):
        own: list[dict[str, Any]] = []
        for first, second in order:
            row: dict[str, Any] = {"criterion": criterion, "first": first, "second": second}
            low, high = sorted((first, second))
            if low in number and high in number:
                group = _group(n_conditions, at, number[low], number[high])
                score = scores[starts[group] : starts[group + 1]]
                ties = float(n_ties[group] / n_given[group]) if n_given[group] else None
                row |= {"ties": ties, "failed": int(n_failed[group])}
                row |= _tested(score if first == low else -score)
            else:
                row |= {"ties": None, "failed": 0} | _tested(np.zeros(0))
            own.append(row)
        tested = [row for row in own if row["questions"]]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = p
        rows += own
    return pa.Table.from_pylist(rows, schema=WIN_RATES)


def reliability(judgements: pa.Table) -> pa.Table:
    """Of JUDGEMENTS, a table RELIABILITY: criteria by name. A share of nothing is null.

    Of `first_shown` the whole are the verdicts that are no tie: a judge that does not mind the order has 0.5.
    For `position_bias` the verdict of an order is the condition that more replicates in this order name than
    name the other, or a tie. Where an order has few replicates, chance changes it too; `agreement` says how
    much chance there is. Raises ValueError as `win_rates` does.
    """
    judged = _read(judgements)
    n_criteria, n_questions = len(judged.criteria), max(len(judged.questions), 1)
    n_pairs = max(len(judged.conditions) ** 2, 1)
    criterion = judged.group // n_pairs
    decided = judged.sign != 0
    names_first = decided & ((judged.sign > 0) != judged.swapped)
    keys, cell = judged.cells()
    n = np.stack([np.bincount(cell, judged.sign[judged.given] == s, len(keys)) for s in (1, 0, -1)])
    of_cell = keys // (2 * n_questions * n_pairs)
    pairs, same = n.sum(0) * (n.sum(0) - 1) / 2, (n * (n - 1) / 2).sum(0)
    verdict = np.sign(n[0] - n[2])
    both = np.flatnonzero(keys[1:] // 2 == keys[:-1] // 2)

    def total(criteria: Ints, weights: npt.NDArray[Any] | None = None) -> list[float]:
        found: list[float] = np.bincount(criteria, weights, n_criteria).tolist()
        return found

    def shares(parts: list[float], wholes: list[float]) -> list[float | None]:
        return [part / whole if whole else None for part, whole in zip(parts, wholes, strict=True)]

    columns = {
        "criterion": judged.criteria,
        "verdicts": total(criterion[judged.given]),
        "failed": total(criterion[~judged.given]),
        "first_shown": shares(total(criterion[names_first]), total(criterion[decided])),
        "position_bias": shares(
            total(of_cell[both], verdict[both] != verdict[both + 1]), total(of_cell[both])
        ),
        "agreement": shares(total(of_cell, same), total(of_cell, pairs)),
    }
    return pa.table(columns, schema=RELIABILITY)


def majorities(judgements: pa.Table) -> pa.Table:
    """Of JUDGEMENTS, a table MAJORITIES in the order of its columns `criterion`, `first`, `second` and
    `question_id`. Raises ValueError as `win_rates` does."""
    judged = _read(judgements)
    keys, cell = judged.cells()
    asked, cells_question = np.unique(keys // 2, return_inverse=True)
    sign, of = judged.sign[judged.given], cells_question[cell]
    first, tie, second = (np.bincount(of, sign == s, len(asked)) for s in (1, 0, -1))
    names = np.array([*judged.conditions, ""], dtype=object)
    group, question = np.divmod(asked, max(len(judged.questions), 1))
    rest, b = np.divmod(group, max(len(judged.conditions), 1))
    criterion, a = np.divmod(rest, max(len(judged.conditions), 1))
    winner = np.full(len(asked), len(judged.conditions))
    winner = np.where(first > np.maximum(tie, second), a, winner)
    winner = np.where(second > np.maximum(tie, first), b, winner)
    columns = [
        np.array([*judged.questions, ""], dtype=object)[question],
        np.array([*judged.criteria, ""], dtype=object)[criterion],
        names[a],
        names[b],
        names[winner],
    ]
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=MAJORITIES)


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


def _read(judgements: pa.Table) -> _Judged:
    """Raises ValueError for a winner that is neither condition of its pair."""
    criteria, criterion = _numbered(judgements["criterion"])
    questions, question = _numbered(judgements["question_id"])
    columns = [judgements[name].cast(pa.string()) for name in ("first", "second", "winner")]
    named = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    conditions, numbers = _numbered(named)  # among them "", for ties
    first, second, winner = numbers.reshape(3, -1)
    given = winner >= 0
    decided = given & (np.array([*map(bool, conditions), False])[winner])
    wrong = np.flatnonzero(decided & (winner != first) & (winner != second))
    if len(wrong):
        w, a, b = (conditions[column[wrong[0]]] for column in (winner, first, second))
        raise ValueError(f"the winner {w!r} is neither {a!r} nor {b!r}")
    low, high = np.minimum(first, second), np.maximum(first, second)
    # For a condition against itself both terms are the same: whoever wins, it is a tie.
    sign = np.where(decided, (winner == low).astype(np.int64) - (winner == high), 0)
    swapped = judgements["swapped"].to_numpy().astype(np.bool_) != (first > second)
    group = _group(len(conditions), criterion, low, high)
    return _Judged(criteria, questions, conditions, group, question, swapped, sign, given)


def _group(n_conditions: int, criterion: Number, first: Number, second: Number) -> Number:
    """The number of a criterion and pair of conditions."""
    return (criterion * n_conditions + first) * n_conditions + second


def _numbered(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """The distinct texts of a column, sorted, and for each row the number of its text; -1 for null."""
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    found = encoded.dictionary.to_pylist()
    names = sorted(found)
    number = {name: n for n, name in enumerate(names)}
    numbers = np.array([*(number[name] for name in found), -1], np.int64)
    return names, numbers[encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)]


def _means(group: Ints, values: npt.NDArray[Any]) -> Floats:
    """The mean of the values of each group; groups are numbers from 0, and none is empty."""
    means: Floats = np.bincount(group, values) / np.bincount(group)
    return means


def _tested(score: Floats) -> dict[str, Any]:
    """The columns of WIN_RATES that follow from the scores, from -1 to 1, of a pair's questions."""
    score = np.sort(score)  # the order of the judgements then changes no digit
    low, high = _interval(score)
    z = _wilcoxon_z(score)
    few = score[score != 0]
    p = _exact_p(few) if len(few) < EXACT_BELOW else two_sided_p(z)
    return {
        "questions": len(score),
        "win_rate": 50 + 50 * float(score.mean()) if len(score) else None,
        "low": low,
        "high": high,
        "z": z,
        "p": p,
        "p_holm": p,
        "normal_p": _shapiro_p(score),
    }


def _interval(score: Floats) -> tuple[float | None, float | None]:
    """The 95 % percentile interval of the win rate (Efron 1979): questions drawn with replacement.

    How often each distinct score is drawn has a multinomial distribution. Drawing these counts takes the same
    time for a hundred questions and for a million.
    """
    if not len(score):
        return None, None
    values, counts = np.unique(score, return_counts=True)
    generator = np.random.default_rng(SEED)
    means = np.empty(RESAMPLES)
    step = max(1, _BLOCK // len(values))
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        drawn = generator.multinomial(len(score), counts / len(score), size=size)
        means[start : start + size] = drawn @ values / len(score)
    low, high = np.percentile(50 + 50 * means, [2.5, 97.5])
    return float(low), float(high)


def _exact_p(score: Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test over few scores, none of them 0, by all ways to give signs
    to their ranks. Equal scores share their mean rank."""
    if not len(score):
        return 1.0
    size, counts = np.unique(np.abs(score), return_counts=True)
    # Twice the ranks, which are whole numbers.
    ranks = (2 * np.cumsum(counts) - counts + 1)[np.searchsorted(size, np.abs(score))]
    ways = np.zeros(ranks.sum() + 1)  # of each sum of the ranks with a plus
    ways[0] = 1.0
    for rank in ranks:
        ways[rank:] += ways[: len(ways) - rank].copy()
    plus = ranks[score > 0].sum()
    smaller, larger = ways[: plus + 1].sum(), ways[plus:].sum()
    return float(min(1.0, 2 * min(smaller, larger) / ways.sum()))


def _wilcoxon_z(score: Floats) -> float:
    """z of Wilcoxon's signed-rank test by its normal approximation, zeros dropped, no correction for
    continuity; 0 where nothing is left."""
    if not score.any():
        return 0.0
    from scipy import stats

    # One-sided, since scipy's two-sided z has lost its sign.
    found = stats.wilcoxon(
        score, zero_method="wilcox", correction=False, alternative="greater", method="asymptotic"
    )
    return float(found.zstatistic)


def _shapiro_p(score: Floats) -> float | None:
    """p of the Shapiro-Wilk test; None for fewer than 3 scores, and where all are the same."""
    if len(score) < 3 or score[0] == score[-1]:
        return None
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # above 5,000 scores, as `win_rates` says
        return float(stats.shapiro(score).pvalue)
