"""What one logical call has come to so far: attempts, tokens, money."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from graphrag_ray.base.index_settings import Price
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.accounting import CallStatus, InFlight
from graphrag_ray.llm.pricing import cost_pico_usd


@dataclass
class SentAttempt:
    """An attempt in flight: what it is expected to use, by our own count, and at which price."""

    usage: Usage
    price: Price | None

    @property
    def in_flight(self) -> InFlight:
        """An unknown price costs nothing here."""
        return InFlight(1, _tokens(self.usage), cost_pico_usd(self.usage, self.price) or 0)


@dataclass
class CallProgress:
    """Becomes the call's record.

    sent         the attempt that is in flight; of one that was cancelled, it stays
    unanswered   what attempts are taken to have used that were sent and never answered
    learned      what its endpoint taught, that nobody else had learned (`quirks.NAMES`)
    owed         what failed attempts are paid for, as long as no record says it: counted with what is in
                 flight, so that a budget need not wait for the call's last attempt
    """

    endpoint: str = ""
    attempts: int = 0
    excused: int = 0
    rate_limited: int = 0
    hedged: int = 0
    latency_s: float = 0.0
    busy_s: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cost_pico_usd: int | None = 0
    status: CallStatus = "cancelled"
    sent: SentAttempt | None = None
    unanswered: tuple[Usage, ...] = ()
    owed: InFlight = field(default_factory=InFlight)
    learned: set[str] = field(default_factory=set)

    def pay(self, usage: Usage, price: Price | None) -> InFlight:
        """What was paid, without a call."""
        cost = cost_pico_usd(usage, price)
        self.cost_pico_usd = None if cost is None or self.cost_pico_usd is None else self.cost_pico_usd + cost
        self.usage = add_usage(self.usage, usage)
        return InFlight(0, _tokens(usage), cost or 0)

    def owe(self, usage: Usage, price: Price | None) -> InFlight:
        """`pay`, for an attempt that failed."""
        paid = self.pay(usage, price)
        self.owed.add(paid)
        return paid

    def give_up(self) -> InFlight:
        """`owe`, for what is in flight and will not be answered."""
        if self.sent is None:
            return InFlight()
        sent, self.sent = self.sent, None
        usage = replace(sent.usage, reported=False)
        self.unanswered += (usage,)
        return self.owe(usage, sent.price)

    def add_hedge(self, other: CallProgress) -> None:
        """Count what a second request came to."""
        self.hedged += other.attempts
        self.busy_s += other.busy_s
        self.rate_limited += other.rate_limited
        unknown = self.cost_pico_usd is None or other.cost_pico_usd is None
        self.cost_pico_usd = None if unknown else (self.cost_pico_usd or 0) + (other.cost_pico_usd or 0)
        self.usage = add_usage(self.usage, other.usage)
        self.unanswered += other.unanswered
        self.owed.add(other.owed)
        self.learned |= other.learned


def sum_usage(usages: Iterable[Usage]) -> Usage:
    return reduce(add_usage, usages, Usage())


def add_usage(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.prompt_tokens + b.prompt_tokens,
        a.completion_tokens + b.completion_tokens,
        a.cached_tokens + b.cached_tokens,
        a.reported and b.reported,
    )


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens
