"""How far a sweep is, how fast it goes and how long it will take, from glimpses of it (`Progress`). Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from graphrag_ray.engine.executor import Progress
from graphrag_ray.llm.accounting import Accounts, Limits

RATE_OVER_S = 30.0
"""Rates and the time left follow what was done in so many seconds."""

_Seen: TypeAlias = tuple[float, float, float, float]
_NOTHING: _Seen = (0.0, 0.0, 0.0, 0.0)


class Recent:
    """What was done in the last RATE_OVER_S seconds of a sweep."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque([_NOTHING])

    def note(self, p: Progress) -> None:
        if p.seconds < self._seen[-1][0]:  # another sweep of the same step
            self._seen = deque([_NOTHING])
        self._seen.append((p.seconds, Amount.of(p).begun, p.accounts.total.total_tokens, p.done))
        while len(self._seen) > 2 and self._seen[1][0] <= p.seconds - RATE_OVER_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        """What `Amount` counts, each second."""
        return self._rate(1)

    @property
    def tokens_per_minute(self) -> float:
        return self._rate(2) * 60

    @property
    def items_per_minute(self) -> float:
        return self._rate(3) * 60

    def _rate(self, column: int) -> float:
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Amount:
    """How much of a sweep is done: counted in calls, where an item takes one or more, since items that take
    several calls all end late; else in items.

    done, begun   begun: with those in flight; half of these, where no limit says how fast they are sent
    total         calls that all items will take; None where it is not known how many items there are
    in_calls      whether calls are counted
    """

    done: float
    begun: float
    total: float | None
    in_calls: bool

    @staticmethod
    def of(p: Progress) -> Amount:
        calls = p.accounts.total.calls
        total = None if p.total is None else float(p.total)
        if p.turns_each is None or calls < p.done:
            return Amount(p.done, p.done, total, False)
        if total is not None:
            # The first to end are those that take few calls: what they took counts as far as all are done.
            known = p.done / total if total else 1.0
            each = p.turns_each * (1.0 - known) + (p.turns / p.done * known if p.done else 0.0)
            total = max(total * each, calls + total - p.done)
        in_flight = p.in_flight.calls if _limits(p) is not None else p.in_flight.calls / 2
        return Amount(calls, calls + in_flight, total, True)

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


@dataclass(frozen=True)
class Pace:
    """A glimpse of a sweep in plain numbers, as people are shown it; what JSON can hold.

    share      of the work, 0 to 1; None while it is not known how much there is
    done, total, failed   items; total: None while it is not known
    calls      that have ended, where an item takes one or more; else 0
    in_flight  calls
    tokens_per_minute_limit, requests_per_minute_limit   of the stage's model; None where not known
    cost_usd   of the whole run so far; None where a price is unknown
    left_s     of this sweep, None where nothing tells; seconds: since it began
    """

    stage: str
    share: float | None
    done: int
    total: int | None
    failed: int
    calls: int
    in_flight: int
    items_per_minute: float
    tokens_per_minute: float
    tokens_per_minute_limit: float | None
    requests_per_minute_limit: float | None
    cost_usd: float | None
    total_tokens: int
    left_s: float | None
    seconds: float

    @staticmethod
    def of(p: Progress, recent: Recent) -> Pace:
        """recent: that was told of `p` too."""
        amount, limits = Amount.of(p), _limits(p)
        total = Accounts.merged([p.before, p.accounts]).total
        return Pace(
            stage=p.stage,
            share=amount.share,
            done=p.done,
            total=p.total,
            failed=p.failed,
            calls=int(amount.done) if amount.in_calls else 0,
            in_flight=p.in_flight.calls,
            items_per_minute=round(recent.items_per_minute, 1),
            tokens_per_minute=round(recent.tokens_per_minute, 1),
            tokens_per_minute_limit=limits.tokens_per_minute if limits else None,
            requests_per_minute_limit=limits.requests_per_minute if limits else None,
            cost_usd=total.cost_usd,
            total_tokens=total.total_tokens,
            left_s=seconds_left(p, amount, recent),
            seconds=p.seconds,
        )


def seconds_left(p: Progress, amount: Amount, recent: Recent) -> float | None:
    """By the pace of the last half minute; at first, when that says little, by the limit where one is known.
    However few are left, the last call takes as long as most do. None where nothing tells."""
    if amount.total is None:
        return None
    left = max(0.0, amount.total - amount.begun)
    by_limit = _seconds_by_limit(p, left) if amount.in_calls else None
    usual_s = (p.accounts.total.latency.quantile(0.5) or 0.0) if p.in_flight.calls else 0.0
    if by_limit is not None and (p.seconds < RATE_OVER_S or recent.per_s <= 0):
        return by_limit + usual_s
    return left / recent.per_s + usual_s if recent.per_s > 0 else None


def _seconds_by_limit(p: Progress, calls: float) -> float | None:
    """The least time of so many calls like those that were sent, at the limits of the stage's model."""
    limits = _limits(p)
    sent = p.accounts.total.calls + p.in_flight.calls
    if limits is None or not sent:
        return None
    each = (p.accounts.total.total_tokens + p.in_flight.tokens) / sent
    needs = ((calls, limits.requests_per_minute), (calls * each, limits.tokens_per_minute))
    return max((60.0 * amount / limit for amount, limit in needs if limit), default=None)


def _limits(p: Progress) -> Limits | None:
    """Those of the stage's model; of the only one that has any, before the stage's first call has ended."""
    models = {model for stage, model in p.accounts.by_stage if stage == p.stage}
    known = [limits for m, limits in p.accounts.limits.items() if m in models or not models]
    return known[0] if len(known) == 1 else None
