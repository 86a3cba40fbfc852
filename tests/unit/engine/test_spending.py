"""Budgets stop a run; unknown prices are not zero."""

from __future__ import annotations

import sys

import pytest

from graphrag_ray.base.connection_settings import Endpoint, Model, Price
from graphrag_ray.base.errors import BudgetSpent, SettingsError
from graphrag_ray.base.index_settings import Budget
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.spending import FIRST_ITEMS, Spending, check_prices
from graphrag_ray.llm.accounting import Accounts, CallTotals, InFlight, Latencies


def spent(tokens: int = 0, pico_usd: int | None = 0) -> Accounts:
    return Accounts({("extract", "m"): CallTotals(calls=1, prompt_tokens=tokens, cost_pico_usd=pico_usd)})


def test_without_limits_nothing_stops_a_run():
    Spending().check(spent(10**12, 10**18), InFlight(), 1e9)


def test_tokens_of_earlier_sweeps_count():
    spending = Spending(Budget(max_total_tokens=100))
    spending.earlier.merge(spent(60))
    spending.check(spent(39), InFlight(), 0.0)
    with pytest.raises(BudgetSpent, match=r"100 tokens spent; budget.max_total_tokens is 100"):
        spending.check(spent(40), InFlight(), 0.0)


def test_a_run_stops_at_its_cost_limit():
    spending = Spending(Budget(max_cost_usd=0.5))
    spending.check(spent(1, 499_999_999_999), InFlight(), 0.0)
    with pytest.raises(BudgetSpent, match="max_cost_usd"):
        spending.check(spent(1, 500_000_000_000), InFlight(), 0.0)


def test_time_counts_from_the_start_of_the_run():
    spending = Spending(Budget(max_duration_s=10), started_at=100.0)
    spending.check(spent(), InFlight(), 109.9)
    with pytest.raises(BudgetSpent, match="max_duration_s"):
        spending.check(spent(), InFlight(), 110.0)


def test_calls_in_flight_count_as_spent():
    spending = Spending(Budget(max_total_tokens=100))
    spending.check(spent(60), InFlight(2, 39), 0.0)
    with pytest.raises(BudgetSpent, match=r"60 tokens spent, plus 2 calls in flight"):
        spending.check(spent(60), InFlight(2, 40), 0.0)
    dollars = Spending(Budget(max_cost_usd=1))
    with pytest.raises(BudgetSpent, match=r"\$0\.9000 spent, plus 1 call in flight"):
        dollars.check(spent(1, 9 * 10**11), InFlight(1, 5, 10**11), 0.0)


def test_calls_in_flight_count_with_the_median_latency():
    spending = Spending(Budget(max_duration_s=10))
    latency = Latencies()
    for _ in range(3):
        latency.add(4.0)
    so_far = Accounts({("extract", "m"): CallTotals(calls=3, latency=latency)})
    spending.check(so_far, InFlight(), 7.0)
    spending.check(so_far, InFlight(1), 5.5)
    with pytest.raises(BudgetSpent, match="max_duration_s"):
        spending.check(so_far, InFlight(1), 7.0)


def test_only_items_that_can_finish_within_the_budget_are_started():
    spending = Spending(Budget(max_total_tokens=100_000))
    offline = Models({"default": Model()})
    assert spending.affordable_items(Accounts(), 0, offline) == 12, (
        "an item is taken to need 8,000 tokens at first"
    )
    assert spending.affordable_items(spent(8_000), 4, offline) == 50
    spending.earlier.merge(spent(90_000))
    assert spending.affordable_items(spent(8_000), 4, offline) == 5
    assert spending.affordable_items(Accounts(), 0, offline) == 1
    assert Spending().affordable_items(spent(8_000), 4, offline) is None


def test_the_first_items_are_estimated_by_the_expected_cost_of_their_calls():
    spending, models = Spending(Budget(max_total_tokens=100_000)), Models({"default": Model()})
    assert spending.affordable_items(Accounts(), 0, models, InFlight(), 2.0) == FIRST_ITEMS, (
        "nothing is known of them"
    )
    reports = InFlight(4, 4 * 10_000)
    assert spending.affordable_items(Accounts(), 0, models, reports, 1.0) == 10
    assert spending.affordable_items(Accounts(), 0, models, reports, 2.0) == 5, (
        "a second call of each costs as much"
    )
    assert spending.affordable_items(spent(20_000), 0, models, InFlight(3, 20_000), 2.0) == 5, (
        "those that were answered"
    )
    assert spending.affordable_items(spent(8_000), 4, models, reports, 2.0) == 50, (
        "finished items give a better estimate"
    )
    assert spending.affordable_items(Accounts(), 0, models, InFlight(1, 50_000), None) == 12, (
        "a call of many items"
    )
    dollars = Spending(Budget(max_cost_usd=1))
    assert dollars.affordable_items(Accounts(), 0, models, InFlight(2, 5, 10**11), 1.0) == 20


def test_items_without_usage_do_not_lower_the_expected_cost():
    """Items that did not fit a model or found no endpoint may be replaced by as many others, but not more."""
    spending, models = Spending(Budget(max_total_tokens=100_000)), Models({"default": Model()})
    assert spending.affordable_items(Accounts(), 3, models, InFlight(), 2.0) == 3 + FIRST_ITEMS
    assert spending.affordable_items(Accounts(), 3, models, InFlight(4, 4 * 10_000), 2.0) == 3 + 5
    free = Spending(Budget(max_cost_usd=1))
    assert free.affordable_items(spent(8_000), 4, models, InFlight(), 2.0) == sys.maxsize, (
        "a model that costs nothing"
    )


def test_the_tighter_of_two_budgets_decides():
    priced = Model(provider="openai", model="m", price=Price(input_usd_per_mtok=1, output_usd_per_mtok=4))
    spending = Spending(Budget(max_total_tokens=10**9, max_cost_usd=1))
    assert spending.affordable_items(Accounts(), 0, Models({"default": priced})) == 90
    assert spending.affordable_items(spent(10, 10**10), 1, Models({"default": priced})) == 100
    assert "max_cost_usd" in str(spending.exhausted_error(spent(10, 10**12)))


def test_one_item_is_tried_with_any_budget_but_none_without():
    spending = Spending(Budget(max_total_tokens=100))
    offline = Models({"default": Model()})
    assert spending.affordable_items(Accounts(), 0, offline) == 1
    spending.earlier.merge(spent(100))
    assert spending.affordable_items(Accounts(), 0, offline) == 0


def test_a_cost_limit_with_an_unknown_price_is_refused():
    unknown = Model(
        provider="openai", model="my-own", endpoints=(Endpoint(base_url="http://127.0.0.1:1/v1"),)
    )
    with pytest.raises(SettingsError, match=r"my-own.*unknown"):
        check_prices(Budget(max_cost_usd=1), Models({"default": unknown}))
    check_prices(Budget(), Models({"default": unknown}))
    priced = unknown.model_copy(update={"price": Price(input_usd_per_mtok=1)})
    check_prices(Budget(max_cost_usd=1), Models({"default": priced}))


def test_the_offline_engine_costs_nothing():
    check_prices(Budget(max_cost_usd=1), Models({"default": Model()}))
