"""How far a sweep is, how fast it goes and how long it will take, from glimpses of it (`SweepProgress`).

Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.llm.accounting import Accounts, Limits

RATE_OVER_S = 30.0
"""Rates and the time left follow what was done in so many seconds,"""
RATE_OVER = 20
"""and in as many more as so many calls, or items, took."""
TOLD_FROM = 8
"""Calls, or items, that have ended before a rate says how long the others will take."""

_Seen: TypeAlias = tuple[float, float, float, float]


class Recent:
    """What was done in the last RATE_OVER_S seconds of a sweep.

    Nothing ends in the first seconds, however fast calls are sent. Rates count half of that time: the first
    calls may have been sent one after the other, or all at once. So they say little before half as much time
    has passed again.

    first_s   when the first call, or item, had ended
    """

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque([(0.0, 0.0, 0.0, 0.0)])
        self._ended_at = self.first_s = 0.0

    def note(self, p: SweepProgress) -> None:
        done = Amount.of(p).done
        if p.seconds < self._seen[-1][0]:  # another sweep of the same step
            self._seen = deque([(0.0, 0.0, 0.0, 0.0)])
        if done > self._seen[-1][1]:
            self._ended_at = p.seconds
        if not self._seen[-1][1]:
            self.first_s = p.seconds
            self._seen = deque([(p.seconds / 2, 0.0, 0.0, 0.0)])
        self._seen.append((p.seconds, done, p.accounts.total.total_tokens, p.done))
        while len(self._seen) > 2 and self._enough_from(1):
            self._seen.popleft()

    def _enough_from(self, place: int) -> bool:
        """Whether what was seen from there on tells a rate."""
        since, last = self._seen[place], self._seen[-1]
        return since[0] <= last[0] - RATE_OVER_S and since[1] <= last[1] - RATE_OVER

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

    @property
    def idle_s(self) -> float:
        """Since the last call, or item, has ended."""
        return self._seen[-1][0] - self._ended_at

    def _rate(self, column: int) -> float:
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Amount:
    """How much of a sweep is done: counted in calls, where an item takes one or more, since items that take
    several calls all end late; else in items.

    total         calls that all items will take; None where it is not known how many items there are
    in_calls      whether calls are counted
    """

    done: float
    total: float | None
    in_calls: bool

    @staticmethod
    def of(p: SweepProgress) -> Amount:
        calls = p.accounts.total.calls
        total = None if p.total is None else float(p.total)
        if p.turns_each is None or calls < p.done:
            return Amount(p.done, total, False)
        if total is not None:
            # The first to end are those that take few calls: what they took counts as far as all are done.
            known = p.done / total if total else 1.0
            each = p.turns_each * (1.0 - known) + (p.turns / p.done * known if p.done else 0.0)
            total = max(total * each, calls + total - p.done)
        return Amount(calls, total, True)

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


@dataclass(frozen=True)
class StagePace:
    """A glimpse of a sweep in plain numbers, as people are shown it; what JSON can hold.

    share      of the work, 0 to 1: calls of calls_total where calls are counted, else done of total; None
               while it is not known how much there is
    done, total, failed   items; total: None while it is not known
    calls      that have ended, where an item takes one or more; else 0
    calls_total   that all items will take, as far as it can be known
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
    calls_total: int | None = None

    @staticmethod
    def of(p: SweepProgress, recent: Recent) -> StagePace:
        """recent: that was told of `p` too."""
        amount, limits = Amount.of(p), _limits(p)
        total = Accounts.merged([p.before, p.accounts]).total
        return StagePace(
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
            calls_total=round(amount.total) if amount.in_calls and amount.total is not None else None,
        )


def seconds_left(p: SweepProgress, amount: Amount, recent: Recent) -> float | None:
    """What has not ended yet, by the pace of the last half minute: so calls in flight count whole, and take
    as long as such calls took. No less than the limits allow.

    None where nothing tells: before as many calls have ended as are in flight, while more and more are sent;
    and when nothing has ended for longer than all should have taken, as where one call hangs.
    """
    enough = max(TOLD_FROM, p.in_flight.calls if amount.in_calls else 0)
    if amount.total is None or amount.done < enough or p.seconds < 1.5 * recent.first_s or not recent.per_s:
        return None
    left = max(0.0, amount.total - amount.done)
    unsent = max(0.0, left - p.in_flight.calls)
    by_limit = _seconds_by_limit(p, unsent) if amount.in_calls else None
    seconds = max(left / recent.per_s, by_limit or 0.0)
    return seconds if recent.idle_s <= seconds else None


def _seconds_by_limit(p: SweepProgress, calls: float) -> float | None:
    """The least time of so many calls like those that were sent, at the limits of the stage's model."""
    limits = _limits(p)
    sent = p.accounts.total.calls + p.in_flight.calls
    if limits is None or not sent:
        return None
    each = (p.accounts.total.total_tokens + p.in_flight.tokens) / sent
    needs = ((calls, limits.requests_per_minute), (calls * each, limits.tokens_per_minute))
    return max((60.0 * amount / limit for amount, limit in needs if limit), default=None)


def _limits(p: SweepProgress) -> Limits | None:
    """Those of the stage's model; of the only one that has any, before the stage's first call has ended."""
    models = {model for stage, model in p.accounts.by_stage if stage == p.stage}
    known = [limits for m, limits in p.accounts.limits.items() if m in models or not models]
    return known[0] if len(known) == 1 else None
