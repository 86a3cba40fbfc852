"""How many calls an endpoint without any known limit gets at once: as many as its throughput gains from.

A server that batches or queues does not say that it is full; its calls only take longer. What tells is how
the throughput T = n / L (Little's law: n calls in flight, L seconds each) grows with n. We look for the
largest T**4 / L, Kleinrock's generalised power ("Power and deterministic rules of thumb for probabilistic
problems in computer communications", ICC 1979): n grows as long as one percent more calls give more than
WORTH percent more throughput. Slots with a queue are filled, and not queued for; a server that batches is
filled until a call takes some 1 / WORTH times as long as alone.

The search is that of PCC Vivace (Dong et al., NSDI 2018): try a number for a while, compare with the one
before, go on in growing steps while that helps, turn round in a short one when it does not. It begins as a
slow start: doubling, or halving where the first calls have visibly waited for each other. 429s, and other
failures when they are many, take a share off at once, as in AIMD (Chiu and Jain, 1989), and put a ceiling
there that rises slowly.

Replies are of all lengths, so L is that of a reply of mean length: within each trial, latency is regressed
on tokens. Pure: the time is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WORTH = 0.2
"""Share of a change of calls in flight that must show in the throughput."""
SHORTEST_STEP = math.log(1.15)
LONGEST_STEP = math.log(2.0)
OVERSHOT = 0.5
"""Elasticity over a doubling below which a knee in between is more likely than a gentle bend."""
BACK_OFF = 0.8
"""What is left after a 429, or when failures are many."""
MANY_FAILURES = 0.1
"""Share of failures from which on they are a matter of load. Fewer are the weather: were they to count, one
percent of dropped connections would hold down any endpoint."""
FEWEST_CALLS = 12
"""That make a trial, or (of failures) a verdict."""
COVERED = 0.3
"""A trial ends when the calls that began and ended in it make up this share of the time in flight: sooner,
they are only the short ones."""
COVERED_AT_START = 0.2
"""The same while it doubles, but for the first trial of all."""
WAVES = 0.25
"""Deviation of latencies, by their mean, from which on the first calls of all have waited for each other."""
SLOW_S = 20.0
"""Where the first calls take longer, the start may be far too high already: a trial above it would take for
ever."""
REACHED = 0.9
"""Share of the bound that must be in flight in a trial: else something else binds."""
CEILING = 0.9
CEILING_RISES = 1.05
"""Where the ceiling is put, by calls in flight at a failure; and what it rises by, with each trial."""
LARGEST = 8_192
_REMEMBERED_CALLS = 1_000
"""Over which the mean length of replies runs."""
_KNOWN_SPREAD = 8.0
"""Replies whose lengths differ by fewer tokens do not say what a token costs."""


@dataclass(slots=True)
class _Trial:
    """Sums over the calls that were sent at one bound and have ended.

    since   when the bound was reached: calls sent before do not count; None: not yet
    until   of the last call that ended; area: calls in flight, summed over time, until then
    failures, successes   of calls that ended since the trial began, reached or not
    x, y    tokens and seconds
    first   whether it is the first of all: there are no calls from before it, so those count that made it
            reach the bound
    """

    began: float
    first: bool = False
    since: float | None = None
    until: float = 0.0
    area: float = 0.0
    failures: int = 0
    successes: int = 0
    calls: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def reach(self, now: float, in_flight: int, sent_at: float) -> None:
        """The bound is reached."""
        self.since = self.until = sent_at if self.first else now
        self.pass_time(now, in_flight)

    def pass_time(self, now: float, in_flight: int) -> None:
        """in_flight: since the call before ended. Calls may end in waves, so the mean over calls misleads."""
        self.area += in_flight * (now - self.until)
        self.until = now

    def add(self, tokens: float, latency_s: float) -> None:
        self.calls += 1
        self.x += tokens
        self.y += latency_s
        self.xx += tokens * tokens
        self.xy += tokens * latency_s
        self.yy += latency_s * latency_s

    @property
    def in_waves(self) -> bool:
        """Whether calls that were sent together took longer one after another, for other reasons than
        their lengths: they waited for each other."""
        n = self.calls
        sxx = self.xx - self.x * self.x / n
        sxy = self.xy - self.x * self.y / n
        syy = self.yy - self.y * self.y / n
        unexplained = syy - (sxy * sxy / sxx if sxx > n * _KNOWN_SPREAD**2 else 0.0)
        return unexplained > (WAVES * self.y) ** 2 / n

    def result(self, usual_slope: float) -> _Result:
        """usual_slope: seconds per token, to stand where all replies are of one length."""
        n = self.calls
        x, y = self.x / n, self.y / n
        prior = n * _KNOWN_SPREAD**2
        sxx = max(0.0, self.xx - n * x * x)
        sxy = self.xy - n * x * y
        slope = max(0.0, (sxy + prior * usual_slope) / (sxx + prior))
        seconds = self.until - (self.since or 0.0)
        return _Result(self.area / seconds if seconds > 0 else 0.0, x, y, slope)


@dataclass(frozen=True, slots=True)
class _Result:
    """What a trial came to: means over its calls, and seconds per token."""

    in_flight: float
    tokens: float
    latency_s: float
    slope: float

    def at(self, tokens: float) -> float:
        """Latency of a reply of so many tokens."""
        return max(1e-6, 1e-3 * self.latency_s, self.latency_s + self.slope * (tokens - self.tokens))


class AdaptiveBound:
    """bound: calls that may be in flight now."""

    def __init__(self, start: int, now: float) -> None:
        self.bound = start
        self._trial = _Trial(now, first=True)
        self._before: _Result | None = None
        self._starting = True
        self._direction = 0
        self._streak = 0
        self._ceiling = float(LARGEST)
        self._cut = False
        self._seen = 0
        self._tokens = 0.0

    def ended(
        self, now: float, in_flight: int, latency_s: float, tokens: int, ok: bool, ago_s: float = 0.0
    ) -> None:
        """A call ended. in_flight: with this one; tokens: that it made, or read where it only read; ago_s:
        since it ended, so that none counts for a trial that was sent before it."""
        trial = self._trial
        sent_at = now - ago_s - latency_s
        if not ok:
            self._failed(now, in_flight, sent_at)
            return
        trial.successes += 1
        self._seen = min(self._seen + 1, _REMEMBERED_CALLS)
        self._tokens += (tokens - self._tokens) / self._seen
        if trial.since is None or now < trial.since:  # a clock that was set back starts a trial anew
            near = REACHED * self.bound <= in_flight <= self.bound / REACHED + 1
            trial.since = None
            if near:
                trial.reach(now, in_flight, sent_at)
                self._cut = False
            if not (near and trial.first):
                return
        else:
            trial.pass_time(now, in_flight)
        if sent_at >= (trial.since or 0.0):
            trial.add(tokens, latency_s)
        self._look(now)

    def _look(self, now: float) -> None:
        """End the trial when it says enough."""
        trial, before = self._trial, self._before
        if trial.calls < FEWEST_CALLS:
            return
        share = COVERED_AT_START if self._starting and before else COVERED
        seconds = now - (trial.since or 0.0)
        if trial.y >= share * self.bound * seconds or (trial.first and trial.in_waves):
            self._decide(now)

    def refused(self, now: float, in_flight: int) -> None:
        """A 429. Those of the calls that were on their way at the first count as one."""
        if not self._cut:
            self._back_off(now, in_flight)

    def _failed(self, now: float, in_flight: int, sent_at: float) -> None:
        trial = self._trial
        if sent_at < trial.began or self._cut:
            return
        trial.failures += 1
        ended = trial.failures + trial.successes
        if trial.failures >= FEWEST_CALLS and trial.failures > MANY_FAILURES * ended:
            self._back_off(now, in_flight)

    def _back_off(self, now: float, in_flight: int) -> None:
        reached = min(self.bound, in_flight)
        self._ceiling = max(1.0, CEILING * reached)
        self._starting, self._direction, self._streak = False, 1, 0
        self._before = None
        self._begin(now, BACK_OFF * reached)
        self._cut = True

    def _decide(self, now: float) -> None:
        before = self._before
        result = self._trial.result(before.slope if before else 0.0)
        if result.in_flight < REACHED * self.bound:
            self._begin(now, self.bound)
            return
        self._ceiling = min(LARGEST, self._ceiling * CEILING_RISES)
        if self._trial.first and self._trial.in_waves:  # far too high, and it does not say how slow that is
            self._begin(now, self.bound / 2.0)
            return
        self._before = result
        if before is None:
            up = 2.0 if self._trial.first and result.latency_s < SLOW_S else 0.5
            self._direction = 1 if up > 1.0 else 0
            self._begin(now, self.bound * (up if self._starting else math.exp(SHORTEST_STEP)))
            return
        # Elasticity: change of throughput by change of calls in flight, both relative, at the mean length.
        change = math.log(result.in_flight / before.in_flight)
        if abs(change) < SHORTEST_STEP / 4.0:
            self._streak, self._direction = 0, 1
            self._begin(now, self.bound * math.exp(SHORTEST_STEP))
            return
        slower = math.log(result.at(self._tokens) / before.at(self._tokens))
        low, high = sorted((before.in_flight, result.in_flight))
        self._begin(now, self._next(low, high, (change - slower) / change))

    def _next(self, low: float, high: float, gain: float) -> float:
        """The next bound, after two trials at low and high calls in flight with this elasticity."""
        overshot = self._starting and self._direction > 0 and high > 1.9 * low and gain < OVERSHOT
        direction = 1 if gain > WORTH and not overshot else -1
        go_on = self._direction in (0, direction) and not overshot
        self._direction = direction
        if self._starting and go_on:
            if direction < 0:
                return low / 2.0
            step = LONGEST_STEP * (min(gain, 1.0) - WORTH) / (1.0 - WORTH)
            return high * math.exp(max(SHORTEST_STEP, min(step, 2.0 * math.log(high / low))))
        self._starting = False
        if go_on:
            self._streak += 1
            step = min(LONGEST_STEP, SHORTEST_STEP * 2.0 ** (self._streak - 1))
            return self.bound * math.exp(direction * step)
        self._streak = 0
        # Throughput that rises in proportion up to a knee and is flat above has the knee here.
        return low * math.pow(high / low, max(-0.5, min(1.0, gain)))

    def _begin(self, now: float, bound: float) -> None:
        old = self.bound
        self.bound = max(1, round(min(bound, self._ceiling)))
        if self.bound == old and self._direction > 0 and old < self._ceiling:
            self.bound = old + 1
        self._trial = _Trial(now)
