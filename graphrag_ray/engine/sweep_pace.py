"""How far a sweep is, how fast it runs and how long it will take, from its `SweepProgress`. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.llm.accounting import Accounts, CombinedLimits

RATE_OVER_S = 30.0
"""Rates and the time left are measured over this many seconds,"""
RATE_OVER = 20
"""or longer if fewer than this many calls, or items, ended in that time."""
MIN_DONE = 8
"""Calls, or items, that must have ended before the time left is estimated."""
_START = (0.0, 0.0, 0.0, 0.0)


class RecentRates:
    """What was done in the last RATE_OVER_S seconds of a sweep.

    Nothing ends in the first seconds, however fast calls are sent. Since the first calls may have been sent
    one after the other or all at once, rates count half of that time, and so mean little until half as much
    has passed again.

    Attributes:
        first_s: When the first call, or item, had ended.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ...]] = deque([_START])
        self._ended_at = self.first_s = 0.0

    def note(self, p: SweepProgress) -> None:
        done = Amount.of(p).done
        if p.seconds < self._seen[-1][0]:  # another sweep of the same step
            self._seen = deque([_START])
        if done > self._seen[-1][1]:
            self._ended_at = p.seconds
        if not self._seen[-1][1]:
            self.first_s = p.seconds
            self._seen = deque([(p.seconds / 2, 0.0, 0.0, 0.0)])
        self._seen.append((p.seconds, done, p.accounts.total.total_tokens, p.done))
        while len(self._seen) > 2 and self._seen[1][0] <= p.seconds - RATE_OVER_S:
            if self._seen[1][1] > done - RATE_OVER:  # the rest would be too little for a rate
                break
            self._seen.popleft()

    @property
    def idle_s(self) -> float:
        """Seconds since the last call, or item, ended."""
        return self._seen[-1][0] - self._ended_at

    def per_s(self, column: int = 1) -> float:
        """Rate of what `Amount` counts (1), of tokens (2) or of items (3)."""
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Amount:
    """How much of a sweep is done.

    It counts calls if each item takes at least one, because items of several calls all end late, and
    otherwise items. `total` is None if the number of items is unknown.
    """

    done: float
    total: float | None
    in_calls: bool

    @staticmethod
    def of(p: SweepProgress) -> Amount:
        calls = p.accounts.total.calls
        total = None if p.total is None else float(p.total)
        if p.expected_turns is None or calls < p.done:
            return Amount(p.done, total, False)
        if total is not None:
            # Items of few calls end first, so weight their average by the share of items that are done.
            known = p.done / total if total else 1.0
            each = p.expected_turns * (1.0 - known) + (p.turns / p.done * known if p.done else 0.0)
            total = max(total * each, calls + total - p.done)
        return Amount(calls, total, True)

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


@dataclass(frozen=True)
class StagePace:
    """The state of a sweep as plain JSON values, for progress displays.

    Values that are unknown are None.

    Attributes:
        share: Part of the work that is done, 0 to 1, in calls if they are counted, else in items.
        done, total, failed: Items.
        calls: Calls that have ended, or 0 if a call answers many items.
        calls_total: Estimated calls of all items.
        in_flight: Calls.
        cost_usd: Of the whole run so far.
        left_s: Estimated time left of this sweep, of which `seconds` have passed.
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
    def of(p: SweepProgress, recent: RecentRates) -> StagePace:
        """The pace at `p`, which `recent` must have noted."""
        amount, limits = Amount.of(p), _limits(p)
        total = Accounts.merged([p.earlier, p.accounts]).total
        return StagePace(
            stage=p.stage,
            share=amount.share,
            done=p.done,
            total=p.total,
            failed=p.failed,
            calls=int(amount.done) if amount.in_calls else 0,
            in_flight=p.in_flight.calls,
            items_per_minute=round(recent.per_s(3) * 60, 1),
            tokens_per_minute=round(recent.per_s(2) * 60, 1),
            tokens_per_minute_limit=limits.tokens_per_minute if limits else None,
            requests_per_minute_limit=limits.requests_per_minute if limits else None,
            cost_usd=total.cost_usd,
            total_tokens=total.total_tokens,
            left_s=seconds_left(p, amount, recent),
            seconds=p.seconds,
            calls_total=round(amount.total) if amount.in_calls and amount.total is not None else None,
        )


def seconds_left(p: SweepProgress, amount: Amount, recent: RecentRates) -> float | None:
    """Estimate the time left from the recent pace and the rate limits. Calls in flight count in full.

    Returns None before as many calls have ended as are in flight, while ever more are sent, and when nothing
    has ended for longer than everything should have taken because a call hangs.
    """
    enough = max(MIN_DONE, p.in_flight.calls if amount.in_calls else 0)
    if amount.total is None or amount.done < enough or p.seconds < 1.5 * recent.first_s or not recent.per_s():
        return None
    left = max(0.0, amount.total - amount.done)
    unsent = max(0.0, left - p.in_flight.calls)
    by_limit = 0.0
    sent = p.accounts.total.calls + p.in_flight.calls
    if amount.in_calls and sent and (limits := _limits(p)) is not None:
        each = (p.accounts.total.total_tokens + p.in_flight.tokens) / sent
        needs = ((unsent, limits.requests_per_minute), (unsent * each, limits.tokens_per_minute))
        by_limit = max((60.0 * needed / limit for needed, limit in needs if limit), default=0.0)
    seconds = max(left / recent.per_s(), by_limit)
    return seconds if recent.idle_s <= seconds else None


def _limits(p: SweepProgress) -> CombinedLimits | None:
    """Limits of the stage's model. Before its first call has ended, of the only model that has any."""
    models = {model for stage, model in p.accounts.by_stage if stage == p.stage}
    known = [limits for m, limits in p.accounts.limits.items() if m in models or not models]
    return known[0] if len(known) == 1 else None
