"""How many items run at once: enough that the limits of the models bind, and not the places."""

from __future__ import annotations

import pytest

from graphrag_ray.base.index_settings import Endpoint, Model
from graphrag_ray.engine.gateways import MAX_SLOTS, OFFLINE_SLOTS, UNBOUNDED_SLOTS, Models
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.store.files import Store


def models(**limits: float | None) -> Models:
    return Models({"default": Model(provider="openai", model="m", endpoints=[Endpoint(**limits)])})


def test_other_processes_have_places_where_they_answer():
    assert Models({}).slots("extract", 1, processes=8) == 8 * OFFLINE_SLOTS
    assert Models({}).slots("extract", 1, processes=0) == OFFLINE_SLOTS
    assert models(max_in_flight=100).slots("extract", 1, processes=8) == 108


def test_a_bound_of_the_user_s_is_what_there_are_places_for():
    assert models(max_in_flight=100).slots("extract", 1) == 108
    assert models(max_in_flight=3_000).slots("extract", 2) == 1_508


def test_without_a_known_limit_the_places_leave_room_for_what_is_found_out():
    assert models().slots("extract", 1) == UNBOUNDED_SLOTS


@pytest.mark.parametrize(
    ("rpm", "tpm", "call_s", "call_tokens"),
    [(30_000, None, 10.0, 2_000), (None, 6_000_000, 20.0, 1_500), (10_000, 2_000_000, 10.0, 2_000)],
)
def test_known_limits_are_used_up_whatever_a_call_takes(rpm, tpm, call_s, call_tokens):
    by_limits = min((rpm or 1e9), (tpm or 1e12) / call_tokens) / 60 * call_s
    found = models(requests_per_minute=rpm, tokens_per_minute=tpm)
    assert found.slots("extract", 1) >= by_limits
    assert 2 * found.slots("extract", 2) >= by_limits


def test_limits_beyond_measure_do_not_fill_the_memory():
    assert models(requests_per_minute=1e9).slots("extract", 1) == MAX_SLOTS


def test_the_executor_of_one_process_has_no_smaller_bound_of_its_own(tmp_path):
    executor = LocalExecutor(Store(str(tmp_path)), models(requests_per_minute=10_000))
    assert executor.in_flight is None
