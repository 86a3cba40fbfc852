"""A token bucket for requests and tokens that respects the limit in every sliding window.

Pure: every method takes the time, `now`, in seconds on a monotonic clock.

An endpoint counts arrivals in windows of W = 60 s. In such a window a bucket with burst b can admit b more
than its rate allows, so we reduce its rate by b/W. A single reservation larger than the burst counts as a
burst itself. The bucket starts empty, so that restarting a limiter does not allow a second burst.
"""

from __future__ import annotations

from graphrag_ray.base.errors import RequestTooLarge

BURST_S = 0.1
WINDOW_S = 60.0
# Share of a burst to accumulate before answering waiters in a group. The bucket can fill further during the
# other half, so a late answer wastes nothing.
ACCUMULATED_SHARE = 0.5
MAX_BURST_SHARE = 0.5  # maximum reduction of the rate, for reservations near a whole minute's limit
_TOLERANCE = 1e-9  # relative rounding error of a level that has just refilled


def check_within_limit(tokens: int, tokens_per_minute: float | None) -> None:
    """Raise RequestTooLarge if a request needs more tokens than the limit per minute."""
    if tokens_per_minute is not None and tokens > tokens_per_minute:
        raise RequestTooLarge(
            f"A request of {tokens} tokens exceeds the limit of {tokens_per_minute:g} tokens per minute. "
            "Raise tokens_per_minute, or make contexts and chunks smaller."
        )


class BucketLevel:
    """One dimension of a bucket: a level that refills slightly slower than the limit."""

    def __init__(self, per_minute: float, level: float) -> None:
        self.limit = per_minute * WINDOW_S / 60.0
        self.cap = self.limit * BURST_S / WINDOW_S
        self.level = min(level, self.cap)
        self._largest = [0.0, 0.0]  # largest reservation of this window and of the previous one
        self._window_end = 0.0

    def note_size(self, now: float, amount: float) -> None:
        """Record the size of a reservation. `rate` depends on the largest one of the last two windows."""
        if now >= self._window_end:
            stale = now >= self._window_end + WINDOW_S
            self._largest = [0.0, 0.0 if stale else self._largest[0]]
            self._window_end = now + WINDOW_S
        self._largest[0] = max(self._largest[0], amount)

    @property
    def rate(self) -> float:
        """Refill per second."""
        burst = max(self.cap, max(self._largest) + self.cap * ACCUMULATED_SHARE)
        share = min(MAX_BURST_SHARE, burst / self.limit)
        return self.limit / WINDOW_S * (1.0 - share)

    def refill(self, seconds: float, goal: float) -> None:
        """Refill up to the cap, or to half a burst above the first waiter's need (`goal`) if that is more."""
        full = max(self.cap, goal + self.cap * ACCUMULATED_SHARE)
        if self.level < full:
            self.level = min(full, self.level + self.rate * seconds)

    def has(self, amount: float) -> bool:
        return self.level >= amount * (1.0 - _TOLERANCE)

    def wait_s(self, amount: float) -> float:
        return 0.0 if self.has(amount) else (amount - self.level) / self.rate


class Bucket:
    """A bucket for the requests and tokens per minute of one endpoint. Limits are positive or None."""

    def __init__(
        self, requests_per_minute: float | None, tokens_per_minute: float | None, now: float
    ) -> None:
        self._requests: BucketLevel | None = None
        self._tokens: BucketLevel | None = None
        self._goal = (0.0, 0.0)
        self._credit = False
        self._now = self._filled_at = self._paused_until = now
        self.relimit(now, requests_per_minute, tokens_per_minute)

    def lend(self, now: float) -> None:
        """Let the first request go immediately, on credit. Later requests wait until it is paid back."""
        self._refill(now)
        self._credit = True

    def relimit(self, now: float, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """Change the limits. The level is capped at a burst of the new limit; a new limit starts empty."""
        self._refill(now)
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute

        def resized(previous: BucketLevel | None, per_minute: float | None) -> BucketLevel | None:
            return (
                None if per_minute is None else BucketLevel(per_minute, previous.level if previous else 0.0)
            )

        self._requests = resized(self._requests, requests_per_minute)
        self._tokens = resized(self._tokens, tokens_per_minute)

    @property
    def limited(self) -> bool:
        return self._requests is not None or self._tokens is not None

    @property
    def load(self) -> float:
        """Load from 0 (full or unlimited) to 1 (empty)."""
        levels = [m for m in (self._requests, self._tokens) if m is not None]
        return max((1.0 - min(1.0, m.level / m.cap) for m in levels), default=0.0)

    def opens_in(self, now: float, first: float, waiting: int, waiting_tokens: int) -> float:
        """Return the seconds until waiters should be answered.

        Waiters are answered in groups, when all of them fit or ACCUMULATED_SHARE of a burst has accumulated,
        but not before the first one, with `first` tokens, fits.
        """
        self._refill(now)
        if self._credit:
            return self._pause(now)
        pause = wait = self._pause(now)
        for level, needed, total in ((self._requests, 1.0, waiting), (self._tokens, first, waiting_tokens)):
            if level is not None:
                group = min(float(total), ACCUMULATED_SHARE * level.cap)
                wait = max(wait, pause + level.wait_s(max(needed, group)))
        return wait

    def fits(self, tokens: float) -> bool:
        """Whether a request may be sent, at the level since the last `opens_in`."""
        if self._credit:
            return True
        requests_ok = self._requests is None or self._requests.has(1.0)
        return requests_ok and (self._tokens is None or self._tokens.has(tokens))

    def take(self, now: float, tokens: float) -> None:
        """Withdraw one request and its tokens."""
        self._credit = False
        if self._requests is not None:
            self._requests.level -= 1.0
        if self._tokens is not None:
            self._tokens.note_size(now, tokens)
            self._tokens.level -= tokens

    def wait_for(self, now: float, tokens: float) -> None:
        """Set the first waiter's tokens (0 for nobody), so that the level may rise that far."""
        self._refill(now)
        self._goal = (1.0 if tokens else 0.0, tokens)
        if self._tokens is not None and tokens:
            self._tokens.note_size(now, tokens)

    def settle(self, now: float, delta_tokens: int) -> None:
        """Charge tokens used minus tokens reserved. The level may become negative."""
        self._refill(now)
        if self._tokens is not None:
            self._tokens.level -= delta_tokens

    def pause_until(self, now: float, until: float) -> None:
        """Admit nothing before `until`, and then start with an empty bucket."""
        self._refill(now)
        self._paused_until = max(self._paused_until, until)
        self._filled_at = max(self._filled_at, self._paused_until)
        for level in (self._requests, self._tokens):
            if level is not None:
                level.level = min(level.level, 0.0)

    def _pause(self, now: float) -> float:
        return max(0.0, self._paused_until - now)

    def _refill(self, now: float) -> None:
        if now < self._now:  # the clock was set back: keep durations, not absolute times
            self._filled_at -= self._now - now
            self._paused_until -= self._now - now
        self._now = now
        seconds = now - self._filled_at
        if seconds <= 0:
            return
        self._filled_at = now
        for level, goal in zip((self._requests, self._tokens), self._goal, strict=True):
            if level is not None:
                level.refill(seconds, goal)
