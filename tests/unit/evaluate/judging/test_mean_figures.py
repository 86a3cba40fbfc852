"""Means of scores, with deviation and interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.evaluate.judging.mean_figures import MAX_DISTINCT, mean_figures

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(SCORES, st.randoms())
def test_interval_contains_the_mean_whatever_the_order(scores: list[float], random: object):
    found = mean_figures(np.array(scores))
    assert found["mean"] == pytest.approx(np.mean(scores))
    assert min(scores) - 1e-9 <= found["low"] <= found["mean"] + 1e-9
    assert found["mean"] - 1e-9 <= found["high"] <= max(scores) + 1e-9
    random.shuffle(scores)  # type: ignore[attr-defined]
    assert mean_figures(np.array(scores)) == found


def test_one_score_has_no_deviation():
    assert mean_figures(np.array([0.5])) == {
        "questions": 1,
        "mean": 0.5,
        "deviation": None,
        "low": 0.5,
        "high": 0.5,
    }
    assert mean_figures(np.array([0.0, 1.0]))["deviation"] == pytest.approx(0.5**0.5)


def test_normal_interval_of_many_scores_agrees_with_the_bootstrap():
    scores = np.random.default_rng(1).random(MAX_DISTINCT + 1)
    normal, bootstrap = mean_figures(scores), mean_figures(scores[:-1])
    for end in ("low", "high"):
        assert normal[end] == pytest.approx(bootstrap[end], abs=0.005)
