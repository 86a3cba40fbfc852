"""Which items the calls in flight are for: who asks is told by the context of its task."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from graphrag_ray.llm.accounting import InFlight

current_item: ContextVar[int] = ContextVar("current_item")
"""The number of the item that a task works on, and all that it starts."""


@dataclass
class SentItems(InFlight):
    """What is in flight, with the items that it is for. An embedding call counts for one of its items.

    items   how many calls of each are in flight
    begun   items that ever had one, until somebody takes them out
    """

    items: Counter[int] = field(default_factory=Counter)
    begun: set[int] = field(default_factory=set)

    def add(self, other: InFlight, sign: Literal[1, -1] = 1) -> None:
        super().add(other, sign)
        if (item := current_item.get(None)) is None:
            return
        if sign > 0:
            self.begun.add(item)
        self.items[item] += sign * other.calls
        if not self.items[item]:
            del self.items[item]

    def totals(self) -> InFlight:
        return InFlight(self.calls, self.tokens, self.cost_pico_usd)
