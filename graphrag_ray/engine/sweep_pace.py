"""Progress, speed and remaining time of a sweep, computed from its `SweepProgress`. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.llm.accounting import Accounts, CombinedLimits

RATE_WINDOW_S = 30.0
"""Length in seconds of the window for rates."""
MIN_RATE_CALLS = 20
"""Minimum number of calls or items in that window, which is longer if necessary."""
MIN_DONE = 8
"""Calls or items that must have ended before the remaining time is estimated."""
_START = (0.0, 0.0, 0.0, 0.0)


class RecentRates:
    """Rates over the last RATE_WINDOW_S seconds of a sweep.

    No call ends in the first seconds, however fast calls are sent. They may have been sent one by one or all
    together, so half of this time counts. Rates are therefore unreliable until half as much time has passed
    again.

    Attributes:
        first_s: Seconds from the start of the sweep until the first call or item had ended.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ...]] = deque([_START])
        self._ended_at = self.first_s = 0.0

    def add(self, p: SweepProgress) -> None:
        done = Amount.of(p).done
        if p.seconds < self._seen[-1][0]:  # a new sweep of the same step
            self._seen = deque([_START])
        if done > self._seen[-1][1]:
            self._ended_at = p.seconds
        if not self._seen[-1][1]:
            self.first_s = p.seconds
            self._seen = deque([(p.seconds / 2, 0.0, 0.0, 0.0)])
        self._seen.append((p.seconds, done, p.accounts.total.total_tokens, p.done))
        while len(self._seen) > 2 and self._seen[1][0] <= p.seconds - RATE_WINDOW_S:
            if self._seen[1][1] > done - MIN_RATE_CALLS:  # too few would remain for a rate
                break
            self._seen.popleft()

    @property
    def idle_s(self) -> float:
        """Seconds since the last call or item ended."""
        return self._seen[-1][0] - self._ended_at

    def per_s(self, column: int = 1) -> float:
        """Rate per second of calls or items as counted by `Amount` (1), of tokens (2), or of items (3)."""
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Amount:
    """How much of a sweep is done.

    Counts calls if each item takes at least one, because items with several calls all end late. Otherwise
    counts items. `total` is None if the number of items is unknown.
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
            # Items with few calls end first, so weight their average by the share of items that are done.
            done_share = p.done / total if total else 1.0
            each = p.expected_turns * (1.0 - done_share) + (p.turns / p.done * done_share if p.done else 0.0)
            total = max(total * each, calls + total - p.done)
        return Amount(calls, total, True)

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


@dataclass(frozen=True)
class StagePace:
    """The state of a sweep as plain JSON values, for progress displays. Unknown values are None.

    Attributes:
        share: Share of the work that is done, from 0 to 1; see `Amount`.
        done, total, failed: Numbers of items.
        calls: Calls that have ended, or 0 if one call answers many items.
        calls_total: Estimated number of calls for all items.
        in_flight: Number of calls in flight.
        cost_usd: Cost of the whole run so far.
        left_s: Estimated remaining time of this sweep.
        seconds: Time since the start of this sweep.
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
        """Create the pace at `p`. `recent` must already include `p`."""
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
            left_s=estimate_remaining_s(p, amount, recent),
            seconds=p.seconds,
            calls_total=round(amount.total) if amount.in_calls and amount.total is not None else None,
        )


def estimate_remaining_s(p: SweepProgress, amount: Amount, recent: RecentRates) -> float | None:
    """Estimate the remaining time from the recent rate and the rate limits. Calls in flight count in full.

    Returns None while fewer calls have ended than are in flight, because the number in flight may still be
    growing. Also returns None if nothing has ended for longer than the estimate, because a call hangs.
    """
    enough = max(MIN_DONE, p.in_flight.calls if amount.in_calls else 0)
    if amount.total is None or amount.done < enough or p.seconds < 1.5 * recent.first_s or not recent.per_s():
        return None
    remaining = max(0.0, amount.total - amount.done)
    unsent = max(0.0, remaining - p.in_flight.calls)
    by_limit = 0.0
    n_sent = p.accounts.total.calls + p.in_flight.calls
    if amount.in_calls and n_sent and (limits := _limits(p)) is not None:
        each = (p.accounts.total.total_tokens + p.in_flight.tokens) / n_sent
        needs = ((unsent, limits.requests_per_minute), (unsent * each, limits.tokens_per_minute))
        by_limit = max((60.0 * needed / limit for needed, limit in needs if limit), default=0.0)
    seconds = max(remaining / recent.per_s(), by_limit)
    return seconds if recent.idle_s <= seconds else None


def _limits(p: SweepProgress) -> CombinedLimits | None:
    """Return the limits of the stage's model. Before its first call ends, those of the only limited model."""
    models = {model for stage, model in p.accounts.by_stage if stage == p.stage}
    candidates = [limits for m, limits in p.accounts.limits.items() if m in models or not models]
    return candidates[0] if len(candidates) == 1 else None
