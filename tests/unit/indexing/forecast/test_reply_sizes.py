"""Lengths and latencies learned from calls that were made."""

from __future__ import annotations

import numpy as np
import pytest

from graphrag_ray.indexing.forecast.reply_sizes import Replies, measured_latency, measured_slowness


def replies(prompts: np.ndarray, completions: np.ndarray) -> Replies:
    return Replies(prompts, completions, 0.5 + completions / 40.0, "test")


def test_replies_that_grow_with_the_prompt_are_foretold_for_longer_prompts():
    prompts = np.linspace(100, 1_000, 50)
    found = replies(prompts, 20 + prompts / 10)
    assert found.mean_reply(np.array([500.0, 700.0])) == pytest.approx(80.0)


def test_no_reply_is_foretold_longer_or_shorter_than_any_that_was_seen():
    prompts = np.linspace(100, 1_000, 50)
    found = replies(prompts, 20 + prompts / 10)
    assert found.mean_reply(np.array([1e6])) == pytest.approx(120.0)
    assert found.mean_reply(np.array([0.0])) == pytest.approx(30.0)


def test_few_replies_or_prompts_all_alike_give_their_mean():
    few = replies(np.array([1.0, 1_000.0]), np.array([10.0, 30.0]))
    alike = replies(np.full(100, 500.0), np.arange(100.0))
    assert few.mean_reply(np.array([2_000.0])) == 20.0
    assert alike.mean_reply(np.array([2_000.0])) == pytest.approx(49.5)


def test_latency_is_split_into_the_first_token_and_the_rest():
    found = measured_latency([replies(np.zeros(60), np.linspace(1, 600, 60))])
    assert found == (pytest.approx(0.5), pytest.approx(40.0), 60)


def test_latencies_that_tell_nothing_are_not_used():
    assert measured_latency([]) is None
    assert measured_latency([replies(np.zeros(60), np.full(60, 5.0))]) is None
    falling = Replies(np.zeros(60), np.arange(60.0), 60.0 - np.arange(60.0), "test")
    assert measured_latency([falling]) is None


def test_slow_calls_are_told_from_long_replies():
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 900, 600).astype(float)
    latency = (0.5 + tokens / 60.0) * rng.uniform(0.9, 1.1, 600)
    slow = rng.choice(600, 12, replace=False)
    latency[slow] *= 8.0
    found = measured_slowness([Replies(tokens, tokens, latency, "test")])
    assert found is not None
    share, factor, n = found
    assert (share, n) == (12 / 600, 600)
    assert factor == pytest.approx(8.0, rel=0.1)


def test_few_calls_do_not_tell_how_many_are_slow():
    few = Replies(np.ones(150), np.ones(150), np.ones(150), "test")
    assert measured_slowness([few]) is None
    assert measured_slowness([few, few]) == (0.0, 1.0, 300)
