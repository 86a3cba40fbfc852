"""The budget of a run. Pure: the executors report spending and time."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

from graphrag_ray.base.errors import BudgetSpent, SettingsError
from graphrag_ray.base.index_settings import Budget
from graphrag_ray.base.messages import Usage
from graphrag_ray.base.urls import display_url
from graphrag_ray.base.wording import plural, price_hint
from graphrag_ray.engine.model_access import Models
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.llm.pricing import PICO_USD, cost_pico_usd, price_of

FIRST_ITEM = Usage(prompt_tokens=7_000, completion_tokens=1_000)
"""Assumed usage of an item before any call was made: that of an extraction with one gleaning."""
FIRST_ITEMS = 8
"""Maximum number of items to start before any call was made."""


@dataclass
class Spending:
    """The spending of one run over all its sweeps.

    Attributes:
        started_at: Start of the run in seconds on the executor's clock.
        earlier: Accounts of finished sweeps.
    """

    budget: Budget = field(default_factory=Budget)
    started_at: float = 0.0
    earlier: Accounts = field(default_factory=Accounts)

    def check(self, accounts: Accounts, in_flight: InFlight, now: float) -> None:
        """Raise BudgetSpent if the running sweep has reached a limit.

        The run will wait for calls in flight, so their estimated cost and the median latency count as spent.
        """
        budget, calls = self.budget, in_flight.calls
        if budget.max_duration_s is not None:
            median_s = (accounts.total.latency.quantile(0.5) or 0.0) if calls else 0.0
            elapsed_s = now - self.started_at
            if elapsed_s + median_s >= budget.max_duration_s:
                raise _budget_spent(
                    "max_duration_s", f"{elapsed_s:.0f} s", calls, f"{budget.max_duration_s:g} s"
                )
        if budget.max_total_tokens is None and budget.max_cost_usd is None:
            return
        total = Accounts.merged([self.earlier, accounts]).total
        tokens, max_tokens = total.total_tokens, budget.max_total_tokens
        if max_tokens is not None and tokens + in_flight.tokens >= max_tokens:
            raise _budget_spent("max_total_tokens", f"{tokens:,} tokens", calls, f"{max_tokens:,}")
        pico_usd, max_usd = total.cost_pico_usd or 0, budget.max_cost_usd
        if max_usd is not None and (pico_usd + in_flight.cost_pico_usd) / PICO_USD >= max_usd:
            raise _budget_spent("max_cost_usd", f"${pico_usd / PICO_USD:.4f}", calls, f"${max_usd:g}")

    def affordable_items(
        self,
        accounts: Accounts,
        finished: int,
        models: Models,
        in_flight: InFlight | None = None,
        turns: float | None = None,
    ) -> int | None:
        """Return how many items of the running sweep fit the budget, or None if there is no limit.

        Includes started items. An item is estimated to cost all spending so far, divided by the number of
        finished items. This errs on the safe side because unfinished items have spent some of it. Before an
        item has finished, the estimate is `turns` times the average call (`turns` is None if a call answers
        many items), and before any call, FIRST_ITEM.
        """
        budget = self.budget
        if budget.max_total_tokens is None and budget.max_cost_usd is None:
            return None
        earlier, current = self.earlier.total, accounts.total
        free = 0
        if (
            not current.total_tokens
        ):  # finished items made no successful call, so they say nothing about costs
            free, finished = finished, 0
        unfinished = InFlight() if finished or in_flight is None else in_flight
        items = finished or (current.calls + unfinished.calls) / (turns or math.inf)
        budgets: list[tuple[float, float]] = []  # remaining budget, and its estimated use per item
        if budget.max_total_tokens is not None:
            first = FIRST_ITEM.prompt_tokens + FIRST_ITEM.completion_tokens
            each = (current.total_tokens + unfinished.tokens) / items if items else first
            budgets.append((budget.max_total_tokens - earlier.total_tokens, each))
        if budget.max_cost_usd is not None:
            costs = (cost_pico_usd(FIRST_ITEM, price_of(m)) or 0 for m in models.online.values())
            paid = (current.cost_pico_usd or 0) + unfinished.cost_pico_usd
            each = paid / items if items else max(costs, default=0)
            budgets.append((budget.max_cost_usd * PICO_USD - (earlier.cost_pico_usd or 0), each))
        n_items = min(int(amount // each) if each else sys.maxsize for amount, each in budgets)
        if not items and turns:
            n_items = min(n_items, FIRST_ITEMS)
        has_budget = finished == 0 and all(amount > 0 for amount, _ in budgets)
        return free + (max(1, n_items) if has_budget else n_items)

    def exhausted_error(self, accounts: Accounts) -> BudgetSpent:
        """Create the error to raise when the budget allows no further item."""
        total = Accounts.merged([self.earlier, accounts]).total
        tokens, usd = total.total_tokens, total.cost_usd or 0.0
        max_tokens, max_usd = self.budget.max_total_tokens, self.budget.max_cost_usd
        if max_tokens is None or (max_usd is not None and usd / max_usd > tokens / max_tokens):
            return _budget_spent("max_cost_usd", f"${usd:.4f}", 0, f"${max_usd:g}")
        return _budget_spent("max_total_tokens", f"{tokens:,} tokens", 0, f"{max_tokens:,}")


def check_prices(budget: Budget, models: Models) -> None:
    """Raise SettingsError if the budget limits the cost and a model's price is unknown."""
    if budget.max_cost_usd is None:
        return
    for name, model in models.online.items():
        for endpoint in model.endpoints:
            if price_of(model, endpoint) is None:
                raise SettingsError(
                    f"budget.max_cost_usd is set, but the price of {model.model!r} at "
                    f"{display_url(endpoint.base_url)} is unknown. Set it with {price_hint(name)}"
                )


def _budget_spent(limit: str, spent: str, calls: int, allowed: str) -> BudgetSpent:
    in_flight = f", plus {plural(calls, 'call')} in flight that had to finish" if calls else ""
    return BudgetSpent(
        f"Stopped: {spent} spent{in_flight}; budget.{limit} is {allowed}. All replies are stored; raise the "
        "limit and run the same command to continue."
    )
