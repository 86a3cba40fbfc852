"""What a run may spend. Pure: the executors tell it what was spent and what time it is."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

from graphrag_ray.base.errors import BudgetSpent, SettingsError
from graphrag_ray.base.index_settings import Budget
from graphrag_ray.base.messages import Usage
from graphrag_ray.base.urls import display_url
from graphrag_ray.base.wording import price_setting
from graphrag_ray.engine.gateways import Models
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.llm.pricing import PICO_USD, cost_pico_usd, price_of

FIRST_ITEM = Usage(prompt_tokens=4_000, completion_tokens=1_000)
"""What an item may use before a call of one has been seen: an extraction with a gleaning, say."""
FIRST_TRIED = 8
"""Items that are started before that."""


@dataclass
class Spending:
    """Of one run, over all its sweeps.

    before       accounts of the sweeps that have ended
    started_at   seconds by the executor's clock
    """

    budget: Budget = field(default_factory=Budget)
    started_at: float = 0.0
    before: Accounts = field(default_factory=Accounts)

    def check(self, accounts: Accounts, in_flight: InFlight, now: float) -> None:
        """accounts, in_flight: of the sweep that runs.

        What is in flight counts as if it were answered as estimated, and for the clock as if it took
        as long as most calls did: it will be waited for. Raises BudgetSpent when a limit is reached.
        """
        budget, calls = self.budget, in_flight.calls
        if budget.max_wall_s is not None:
            usual_s = (accounts.total.latency.quantile(0.5) or 0.0) if calls else 0.0
            if now - self.started_at + usual_s >= budget.max_wall_s:
                raise _spent(
                    "max_wall_s", f"{now - self.started_at:.0f} s", calls, f"{budget.max_wall_s:g} s"
                )
        if budget.max_total_tokens is None and budget.max_cost_usd is None:
            return
        total = Accounts.merged([self.before, accounts]).total
        tokens, most = total.total_tokens, budget.max_total_tokens
        if most is not None and tokens + in_flight.tokens >= most:
            raise _spent("max_total_tokens", f"{tokens:,} tokens", calls, f"{most:,}")
        pico_usd, most_usd = total.cost_pico_usd or 0, budget.max_cost_usd
        if most_usd is not None and (pico_usd + in_flight.cost_pico_usd) / PICO_USD >= most_usd:
            raise _spent("max_cost_usd", f"${pico_usd / PICO_USD:.4f}", calls, f"${most_usd:g}")

    def items(
        self,
        accounts: Accounts,
        finished: int,
        models: Models,
        in_flight: InFlight | None = None,
        turns: float | None = None,
    ) -> int | None:
        """How many items of the sweep that runs may have been started by now, so that all of them can
        also be finished within the budget; None: any number.

        accounts, finished, in_flight: of the sweep. An item costs what finished ones did on average; what
        is paid for unfinished ones is in there too, which errs on the safe side. Before the first has
        finished, it costs `turns` times what its calls do, by their prompts, which are counted, and the
        replies that are expected; before the first was sent, FIRST_ITEM.

        turns: calls that an item takes; None: a call answers many items, and tells nothing of one
        """
        budget = self.budget
        if budget.max_total_tokens is None and budget.max_cost_usd is None:
            return None
        before, now = self.before.total, accounts.total
        free = 0
        if not now.total_tokens:  # what did not fit, or was never connected, tells nothing of the others
            free, finished = finished, 0
        sent = InFlight() if finished or in_flight is None else in_flight
        items = finished or (now.calls + sent.calls) / (turns or math.inf)
        left: list[tuple[float, float]] = []  # of a budget, and what an item takes of it
        if budget.max_total_tokens is not None:
            first = FIRST_ITEM.prompt_tokens + FIRST_ITEM.completion_tokens
            each = (now.total_tokens + sent.tokens) / items if items else first
            left.append((budget.max_total_tokens - before.total_tokens, each))
        if budget.max_cost_usd is not None:
            costs = (cost_pico_usd(FIRST_ITEM, price_of(m)) or 0 for m in models.online.values())
            paid = (now.cost_pico_usd or 0) + sent.cost_pico_usd
            each = paid / items if items else max(costs, default=0)
            left.append((budget.max_cost_usd * PICO_USD - (before.cost_pico_usd or 0), each))
        most = min(int(amount // each) if each else sys.maxsize for amount, each in left)
        if not items and turns:
            most = min(most, FIRST_TRIED)
        started_with_something = finished == 0 and all(amount > 0 for amount, _ in left)
        return free + (max(1, most) if started_with_something else most)

    def exhausted(self, accounts: Accounts) -> BudgetSpent:
        """Why no other item of the sweep that runs can be started."""
        total = Accounts.merged([self.before, accounts]).total
        tokens, usd = f"{total.total_tokens:,} tokens", total.cost_usd or 0.0
        most, most_usd = self.budget.max_total_tokens, self.budget.max_cost_usd
        if most is None or (most_usd is not None and usd / most_usd > total.total_tokens / most):
            return _spent("max_cost_usd", f"${usd:.4f}", 0, f"${most_usd:g}")
        return _spent("max_total_tokens", tokens, 0, f"{most:,}")


def check_prices(budget: Budget, models: Models) -> None:
    """A limit on cost means nothing where a price is unknown. Raises SettingsError naming the model."""
    if budget.max_cost_usd is None:
        return
    for name, model in models.online.items():
        for endpoint in model.endpoints:
            if price_of(model, endpoint) is None:
                where = display_url(endpoint.base_url)
                raise SettingsError(
                    f"budget.max_cost_usd is set, but the price of {model.model!r} at {where} is "
                    f"unknown. Say it: {price_setting(name)}"
                )


def _spent(limit: str, spent: str, calls: int, allowed: str) -> BudgetSpent:
    waited_for = f" and {calls:,} calls in flight, which were waited for and come on top" if calls else ""
    return BudgetSpent(
        f"stopped: {spent} spent{waited_for}; budget.{limit} is {allowed}. Everything that was answered is "
        "kept; raise the limit and run the same command to continue."
    )
