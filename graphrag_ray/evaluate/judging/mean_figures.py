"""Summarise scores of questions: mean, standard deviation and 95% interval."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

RESAMPLES = 2_000
SEED = 20_240_424  # Makes the bootstrap interval reproducible.
MAX_DISTINCT = 1_000
"""Maximum number of distinct scores for the bootstrap. Beyond it, the mean is almost normally distributed,
and resampling would take long."""


def mean_interval(scores: Floats) -> tuple[float, float]:
    """Return the 95% interval of the mean of one score or more, by bootstrap over the questions (Efron 1979).

    Questions are drawn with replacement. The counts of the distinct scores in a draw are multinomial, so
    the time depends only on their number. With more than MAX_DISTINCT, uses the normal distribution.
    """
    values, counts = np.unique(scores, return_counts=True)
    if len(values) > MAX_DISTINCT:
        margin = 1.96 * float(scores.std(ddof=1)) / math.sqrt(len(scores))
        return float(scores.mean()) - margin, float(scores.mean()) + margin
    drawn = np.random.default_rng(SEED).multinomial(len(scores), counts / len(scores), RESAMPLES)
    low, high = np.percentile(drawn @ values / len(scores), [2.5, 97.5])
    return float(low), float(high)


def mean_figures(scores: Floats) -> dict[str, Any]:
    """Return the number of questions, and mean, standard deviation, low and high of at least one score."""
    scores = np.sort(scores)  # The result must not depend on the order of the questions.
    low, high = mean_interval(scores)
    return {
        "questions": len(scores),
        "mean": float(scores.mean()),
        "deviation": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "low": low,
        "high": high,
    }
