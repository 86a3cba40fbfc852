"""The number of concurrent items: enough that only the models' limits restrict throughput."""

from __future__ import annotations

import pytest

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import MAX_SLOTS, OFFLINE_SLOTS, UNBOUNDED_SLOTS, Models
from graphrag_ray.store.files import Store


def models(**limits: float | None) -> Models:
    return Models({"default": Model(provider="openai", model="m", endpoints=[Endpoint(**limits)])})


def test_processes_of_the_offline_engine_add_slots():
    assert Models({}).slots("extract", 1, processes=8) == 8 * OFFLINE_SLOTS
    assert Models({}).slots("extract", 1, processes=0) == OFFLINE_SLOTS
    assert models(max_in_flight=100).slots("extract", 1, processes=8) == 108


def test_slots_match_a_configured_bound():
    assert models(max_in_flight=100).slots("extract", 1) == 108
    assert models(max_in_flight=3_000).slots("extract", 2) == 1_508


def test_without_known_limits_there_are_slots_to_discover_them():
    assert models().slots("extract", 1) == UNBOUNDED_SLOTS


@pytest.mark.parametrize(
    ("rpm", "tpm", "call_s", "call_tokens"),
    [(30_000, None, 10.0, 2_000), (None, 6_000_000, 20.0, 1_500), (10_000, 2_000_000, 10.0, 2_000)],
)
def test_slots_suffice_for_slow_calls_at_known_limits(rpm, tpm, call_s, call_tokens):
    by_limits = min((rpm or 1e9), (tpm or 1e12) / call_tokens) / 60 * call_s
    found = models(requests_per_minute=rpm, tokens_per_minute=tpm)
    assert found.slots("extract", 1) >= by_limits
    assert 2 * found.slots("extract", 2) >= by_limits


def test_slots_are_bounded_even_for_huge_limits():
    assert models(requests_per_minute=1e9).slots("extract", 1) == MAX_SLOTS


def test_the_in_process_executor_uses_the_slots_of_the_models(tmp_path):
    executor = LocalExecutor(Store(str(tmp_path)), models(requests_per_minute=10_000))
    assert executor.in_flight is None
