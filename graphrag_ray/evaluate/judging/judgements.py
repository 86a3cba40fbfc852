"""Columns of what judges said, and of what follows from it."""

from __future__ import annotations

import pyarrow as pa

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
