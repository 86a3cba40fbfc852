"""What a run may spend. Pure: the executors tell it what was spent and what time it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphrag_ray.engine.gateways import Models
from graphrag_ray.errors import BudgetSpent, SettingsError
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.keys import display_url
from graphrag_ray.llm.pricing import price_of
from graphrag_ray.settings import Budget


@dataclass
class Spending:
    """Of one run, over all its sweeps.

    before       accounts of the sweeps that have ended
    started_at   seconds by the executor's clock
    """

    budget: Budget = field(default_factory=Budget)
    started_at: float = 0.0
    before: Accounts = field(default_factory=Accounts)

    def check(self, accounts: Accounts, now: float) -> None:
        """accounts: of the sweep that runs. Raises BudgetSpent when a limit is reached."""
        budget = self.budget
        if budget.max_wall_s is not None and now - self.started_at >= budget.max_wall_s:
            raise _spent("max_wall_s", f"{now - self.started_at:.0f} s", f"{budget.max_wall_s:g} s")
        if budget.max_total_tokens is None and budget.max_cost_usd is None:
            return
        total = Accounts.merged([self.before, accounts]).total
        if budget.max_total_tokens is not None and total.total_tokens >= budget.max_total_tokens:
            tokens = f"{total.total_tokens:,} tokens"
            raise _spent("max_total_tokens", tokens, f"{budget.max_total_tokens:,}")
        if budget.max_cost_usd is not None and (total.cost_usd or 0.0) >= budget.max_cost_usd:
            raise _spent("max_cost_usd", f"${total.cost_usd:.4f}", f"${budget.max_cost_usd:g}")

    def add(self, accounts: Accounts) -> None:
        """A sweep has ended."""
        self.before.absorb(accounts)


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
                    f"unknown. Say it: --set models.{name}.price.input_usd_per_mtok=… "
                    "(and output_usd_per_mtok)"
                )


def _spent(limit: str, spent: str, allowed: str) -> BudgetSpent:
    return BudgetSpent(
        f"stopped: {spent} spent, budget.{limit} is {allowed}. Everything that was answered is kept; raise "
        "the limit and run the same command to continue."
    )
