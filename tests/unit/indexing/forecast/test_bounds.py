"""Cost and minimum time of a stage."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from graphrag_ray.base.connection_settings import Endpoint, Model, Price
from graphrag_ray.indexing.forecast.bounds import (
    Latency,
    Replies,
    Volume,
    estimate_bound,
    estimate_cost,
    fit_latency,
)

LATENCY = Latency(ttft_s=1.0, tokens_per_s=100.0)
VOLUME = Volume("extract", "default", items=600, calls=600, prompt_tokens=1_000_000, completion_tokens=60_000)


def model(*ends: Endpoint, price: Price | None = None) -> Model:
    return Model(provider="openai", model="m", endpoints=ends, price=price)


@pytest.mark.parametrize(
    ("ends", "seconds", "limit"),
    [
        ([Endpoint(tokens_per_minute=530_000)], 120.0, "tokens per minute"),
        ([Endpoint(tokens_per_minute=265_000), Endpoint(tokens_per_minute=265_000)], 120.0, "tokens"),
        ([Endpoint(requests_per_minute=60)], 600.0, "requests per minute"),
        ([Endpoint(tokens_per_minute=53_000_000, max_in_flight=6)], 200.0, "6 calls in flight"),
        ([Endpoint()], 20.0, "60 calls in flight"),
        ([Endpoint(tokens_per_minute=1e12)], 2.0, "sequential calls"),
    ],
)
def test_tightest_limit_determines_the_time_and_is_named(ends: list[Endpoint], seconds: float, limit: str):
    bound = estimate_bound(VOLUME, model(*ends), LATENCY, initial_in_flight=60)
    assert bound is not None and bound.limited_by.startswith(limit)
    # The time may include the two seconds that the last call takes.
    assert seconds <= bound.seconds <= seconds + 2.0


def test_time_for_slow_calls_at_the_end_agrees_with_a_simulation():
    latency = Latency(1.0, 100.0, slow_share=0.01, slow_factor=8.0)
    typical_s = latency.mean_s(VOLUME) / 1.07
    rng, ends = random.Random(1), []
    for _ in range(2_000):
        sent = (-i / 10.0 for i in range(600))  # ten per second
        ends.append(max(t + typical_s * (8.0 if rng.random() < 0.01 else 1.0) for t in sent))
    ends.sort()
    assert latency.drain_s(VOLUME, 10.0) == pytest.approx(ends[1_000], rel=0.1)


def test_calls_of_a_chain_add_their_time_at_the_end():
    ends = [Endpoint(tokens_per_minute=530_000)]
    flat = estimate_bound(VOLUME, model(*ends), LATENCY, 60)
    chained = estimate_bound(replace(VOLUME, chain=4.0), model(*ends), LATENCY, 60)
    assert flat is not None and chained is not None
    assert chained.seconds - flat.seconds == pytest.approx(3 * LATENCY.mean_s(VOLUME))


def test_limit_applies_only_if_every_endpoint_has_it():
    endpoints = model(Endpoint(tokens_per_minute=1.0), Endpoint(requests_per_minute=1e9))
    bound = estimate_bound(VOLUME, endpoints, LATENCY, 60)
    assert bound is not None and bound.limited_by == "sequential calls"


def test_unknown_price_gives_no_cost_and_offline_engine_is_free():
    assert estimate_cost(VOLUME, model(Endpoint())) is None
    assert estimate_cost(VOLUME, Model()) == 0 and estimate_bound(VOLUME, Model(), LATENCY, 60) is None
    price = Price(input_usd_per_mtok=2.0, output_usd_per_mtok=10.0)
    assert estimate_cost(VOLUME, model(Endpoint(), price=price)) == pytest.approx(2.6)
    assert estimate_cost(VOLUME.times(0.5), model(Endpoint(), price=price)) == pytest.approx(1.3)


def test_empty_volume_takes_no_time_and_costs_nothing():
    nothing = VOLUME.times(0.0)
    bound = estimate_bound(nothing, model(Endpoint()), LATENCY, 60)
    assert bound is not None and bound.seconds == 0 and estimate_cost(nothing, model(Endpoint())) == 0


def fit(completions: np.ndarray, seconds: np.ndarray, hedge: bool = False) -> Latency:
    calls = Replies(np.zeros(len(completions)), completions, seconds, "test")
    return fit_latency({"extract": calls}, lambda name, value, source: value, hedge)


def test_latency_is_split_into_first_token_and_generation():
    tokens = np.linspace(1, 600, 60)
    latency = fit(tokens, 0.7 + tokens / 40.0)
    assert (latency.ttft_s, latency.tokens_per_s) == (pytest.approx(0.7), pytest.approx(40.0))


@pytest.mark.parametrize(
    ("completions", "seconds"),
    [([], []), ([0.0] * 60, [5.0] * 60), (np.arange(60.0), 60.0 - np.arange(60.0))],
)
def test_uninformative_latencies_are_not_used(completions, seconds):
    assert fit(np.array(completions), np.array(seconds)) == Latency(0.5, 60.0, 0.01, 5.0)


def test_slow_calls_are_shorter_with_hedging():
    assert fit(np.zeros(0), np.zeros(0), hedge=True).slow_factor == 2.0
