"""A token bucket in two dimensions, requests and tokens, whose admissions fit any sliding window.

Pure: every method is told the time (`now`, seconds on any clock that runs forward).

An endpoint counts what arrives in windows of W = 60 s. A bucket with burst b over a window W can let
through b more than its rate in one of them, so it gives up b/W of its rate; a single reservation larger
than the burst is a burst of its own, so it counts as b too. The bucket starts empty: a limiter that is
restarted must not let a second burst follow the first.
"""

from __future__ import annotations

from graphrag_ray.base.errors import DoesNotFit

BURST_S = 0.1
WINDOW_S = 60.0
HOLD = 0.5
"""Share of a burst that is gathered before waiters are answered: they are answered in groups, and an
answer that comes late by the other half loses nothing."""
MAX_BURST_SHARE = 0.5
"""The largest share of its rate that a bucket gives up for reservations near a whole minute's limit."""
_ENOUGH = 1e-9
"""Relative rounding slack of a level that refilled for exactly as long as it was said to need."""


class RequestTooLarge(DoesNotFit):
    """One request needs more than a whole minute's limit: it would wait for ever."""


def check_within_limit(tokens: int, tokens_per_minute: float | None) -> None:
    """Raises RequestTooLarge, with both numbers, for a request larger than a minute's limit."""
    if tokens_per_minute is not None and tokens > tokens_per_minute:
        raise RequestTooLarge(
            f"a request of {tokens} tokens is larger than the limit of {tokens_per_minute:g} tokens per "
            "minute: raise tokens_per_minute, or make contexts and chunks smaller"
        )


class BucketLevel:
    """One dimension of a bucket: a level that refills at a little less than the limit.

    Levels above the cap come from refunds or from waiting for one large reservation, and are kept.
    """

    def __init__(self, per_minute: float) -> None:
        self.limit = per_minute * WINDOW_S / 60.0
        self.cap = self.limit * BURST_S / WINDOW_S
        self.level = 0.0
        self._largest = [0.0, 0.0]  # of this window and the one before
        self._window_end = 0.0

    def note_size(self, now: float, amount: float) -> None:
        """Remember the largest reservation of the last one to two windows."""
        if now >= self._window_end:
            stale = now >= self._window_end + WINDOW_S
            self._largest = [0.0, 0.0 if stale else self._largest[0]]
            self._window_end = now + WINDOW_S
        self._largest[0] = max(self._largest[0], amount)

    @property
    def rate(self) -> float:
        """Refill per second."""
        burst = max(self.cap, max(self._largest) + self.cap * HOLD)
        share = min(MAX_BURST_SHARE, burst / self.limit)
        return self.limit / WINDOW_S * (1.0 - share)

    def refill(self, seconds: float, goal: float) -> None:
        """goal: what the first waiter needs, which may be more than the cap; half a burst may gather
        above it, so that looking late loses nothing."""
        full = max(self.cap, goal + self.cap * HOLD)
        if self.level < full:
            self.level = min(full, self.level + self.rate * seconds)

    def has(self, amount: float) -> bool:
        return self.level >= amount * (1.0 - _ENOUGH)

    def wait_s(self, amount: float) -> float:
        return 0.0 if self.has(amount) else (amount - self.level) / self.rate


class Bucket:
    """Requests and tokens per minute of one endpoint. A limit that is None does not bind.

    requests_per_minute, tokens_per_minute    positive
    now                                       the time at which the bucket is empty
    """

    def __init__(
        self,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        now: float,
    ) -> None:
        self._requests: BucketLevel | None = None
        self._tokens: BucketLevel | None = None
        self._goal = (0.0, 0.0)
        self._credit = False
        self._now = self._filled_at = self._paused_until = now
        self.relimit(now, requests_per_minute, tokens_per_minute)

    def lend(self, now: float) -> None:
        """Let the first request go at once, on credit: what follows waits until it is paid back, so that no
        window holds more than it would. For a bucket from which nothing was ever taken."""
        self._refill(now)
        self._credit = True

    def relimit(self, now: float, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """Other limits from now on. What is saved up stays below a burst of the new ones; a limit that was
        not there starts empty."""
        self._refill(now)
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute

        def changed(before: BucketLevel | None, per_minute: float | None) -> BucketLevel | None:
            if per_minute is None:
                return None
            level = BucketLevel(per_minute)
            level.level = min(before.level, level.cap) if before else 0.0
            return level

        self._requests = changed(self._requests, requests_per_minute)
        self._tokens = changed(self._tokens, tokens_per_minute)

    @property
    def limited(self) -> bool:
        return self._requests is not None or self._tokens is not None

    @property
    def load(self) -> float:
        """How little is left: 1 for empty, 0 for full or not limited."""
        meters = [m for m in (self._requests, self._tokens) if m is not None]
        return max((1.0 - min(1.0, m.level / m.cap) for m in meters), default=0.0)

    def opens_in(self, now: float, first: float, waiting: int, waiting_tokens: int) -> float:
        """Seconds until waiters should be answered; 0 for now.

        first: tokens of the first waiter; waiting, waiting_tokens: of all of them. Answers go to
        groups: when all fit or a share HOLD of the burst is there, but never before the first fits.
        """
        self._refill(now)
        if self._credit:
            return self._pause(now)
        wait = self._paused_until - now
        if self._requests is not None:
            group = min(float(waiting), HOLD * self._requests.cap)
            wait = max(wait, self._pause(now) + self._requests.wait_s(max(1.0, group)))
        if self._tokens is not None:
            group = min(float(waiting_tokens), HOLD * self._tokens.cap)
            wait = max(wait, self._pause(now) + self._tokens.wait_s(max(float(first), group)))
        return max(0.0, wait)

    def fits(self, tokens: float) -> bool:
        """Whether a request of so many tokens may go at the level of the last `opens_in`."""
        if self._credit:
            return True
        requests_ok = self._requests is None or self._requests.has(1.0)
        return requests_ok and (self._tokens is None or self._tokens.has(tokens))

    def take(self, now: float, tokens: float) -> None:
        """Take one request of so many tokens out."""
        self._credit = False
        if self._requests is not None:
            self._requests.level -= 1.0
        if self._tokens is not None:
            self._tokens.note_size(now, tokens)
            self._tokens.level -= tokens

    def wait_for(self, now: float, tokens: float) -> None:
        """Say what the first waiter needs (0: nobody waits), so that the level may rise that far."""
        self._refill(now)
        self._goal = (1.0 if tokens else 0.0, tokens)
        if self._tokens is not None and tokens:
            self._tokens.note_size(now, tokens)

    def settle(self, now: float, delta_tokens: int) -> None:
        """delta_tokens: actual minus reserved. The level may fall below zero; refunds are kept."""
        self._refill(now)
        if self._tokens is not None:
            self._tokens.level -= delta_tokens

    def pause_until(self, now: float, until: float) -> None:
        """Admit nothing before `until`, and start from empty then."""
        self._refill(now)
        self._paused_until = max(self._paused_until, until)
        self._filled_at = max(self._filled_at, self._paused_until)
        for meter in (self._requests, self._tokens):
            if meter is not None:
                meter.level = min(meter.level, 0.0)

    def _pause(self, now: float) -> float:
        return max(0.0, self._paused_until - now)

    def _refill(self, now: float) -> None:
        if now < self._now:  # the clock was set back: keep durations, not instants
            self._filled_at -= self._now - now
            self._paused_until -= self._now - now
        self._now = now
        seconds = now - self._filled_at
        if seconds <= 0:
            return
        self._filled_at = now
        if self._requests is not None:
            self._requests.refill(seconds, self._goal[0])
        if self._tokens is not None:
            self._tokens.refill(seconds, self._goal[1])
