"""Budgets stop a run; unknown prices are not zero."""

from __future__ import annotations

import pytest

from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.errors import BudgetSpent, SettingsError
from graphrag_ray.llm.accounting import Accounts, Totals
from graphrag_ray.settings import Budget, Endpoint, Model, Price


def spent(tokens: int = 0, pico_usd: int | None = 0) -> Accounts:
    return Accounts({("extract", "m"): Totals(calls=1, prompt_tokens=tokens, cost_pico_usd=pico_usd)})


def test_without_limits_nothing_stops_a_run():
    Spending().check(spent(10**12, 10**18), 1e9)


def test_tokens_of_earlier_sweeps_count():
    spending = Spending(Budget(max_total_tokens=100))
    spending.add(spent(60))
    spending.check(spent(39), 0.0)
    with pytest.raises(BudgetSpent, match=r"100 tokens spent, budget.max_total_tokens is 100"):
        spending.check(spent(40), 0.0)


def test_a_cost_limit_stops_at_the_dollar():
    spending = Spending(Budget(max_cost_usd=0.5))
    spending.check(spent(1, 499_999_999_999), 0.0)
    with pytest.raises(BudgetSpent, match="max_cost_usd"):
        spending.check(spent(1, 500_000_000_000), 0.0)


def test_time_counts_from_the_start_of_the_run():
    spending = Spending(Budget(max_wall_s=10), started_at=100.0)
    spending.check(spent(), 109.9)
    with pytest.raises(BudgetSpent, match="max_wall_s"):
        spending.check(spent(), 110.0)


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
