"""Adaptive bound on the calls in flight at an endpoint without a known limit. Pure: the time is an argument.

A server that batches or queues does not report that it is full; its calls only take longer. The signal is how
the throughput T = n / L (Little's law: n calls in flight, L seconds each) grows with n. We maximise T**4 / L,
Kleinrock's generalised power ("Power and deterministic rules of thumb for probabilistic problems in computer
communications", ICC 1979): n grows as long as 1% more calls yield more than WORTH % more throughput. A server
with a fixed number of slots is therefore filled without a queue, and a server that batches is filled until a
call takes about 1 / WORTH times as long as a single one.

The search follows PCC Vivace (Dong et al., NSDI 2018): try a bound for a while, compare it with the previous
one, continue in growing steps while that helps, and reverse with a short step when it does not. It begins
with a slow start: doubling, or halving if the first calls evidently waited for each other. A 429, or a high
rate of other failures, cuts the bound immediately, as in AIMD (Chiu and Jain, 1989), and sets a ceiling there
that rises slowly.

Replies differ in length, so L is the latency of a reply of mean length: within each trial, latency is
regressed on tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WORTH = 0.2  # minimum relative gain of throughput per relative change of calls in flight
MIN_STEP, MAX_STEP = math.log(1.15), math.log(2.0)
OVERSHOT = 0.5  # elasticity over a doubling below which we assume a knee rather than a gentle bend
BACK_OFF = 0.8  # factor applied to the bound after a 429 or many failures
# Share of failures that indicates overload. Lower rates, such as 1% of dropped connections, are ignored.
OVERLOAD_FAILURE_SHARE = 0.1
MIN_CALLS = 12  # minimum number of calls to end a trial, and of failures to assume overload
# A trial ends when the calls that began and ended in it make up this share of the time in flight. Earlier,
# only short calls would count. The second value applies to the slow start after the first trial.
COVERED, COVERED_AT_START = 0.3, 0.2
WAVES = 0.25  # relative deviation of latencies that shows that the first calls waited for each other
SLOW_S = 20.0  # If the first calls take longer, the bound may be too high, so do not try a higher one.
IN_USE = 0.9  # share of the bound that must be in flight in a trial, or there is another bottleneck
CEILING, CEILING_GROWTH = 0.9, 1.05  # ceiling relative to calls in flight at a failure; growth per trial
MAX_BOUND = 8_192
_REMEMBERED_CALLS = 1_000  # window of the mean reply length
_MIN_SPREAD = 8.0  # deviation of reply lengths, in tokens, needed to estimate the time per token


@dataclass(slots=True)
class _Trial:
    """Sums over finished calls at one bound: tokens x, seconds y, and their products.

    Calls count from `since`, when the bound was reached. In the very first trial, earlier calls count, too.
    `area` integrates the calls in flight until the last one ended, at `until`. `failures` and `successes`
    count from `began`.
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

    def advance(self, now: float, in_flight: int) -> None:
        """Integrate the calls in flight. Their mean over calls would be wrong if calls end in waves."""
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
        """Whether the calls waited for each other: latencies vary more than the reply lengths explain."""
        n = self.calls
        sxx = self.xx - self.x * self.x / n
        sxy = self.xy - self.x * self.y / n
        syy = self.yy - self.y * self.y / n
        unexplained = syy - (sxy * sxy / sxx if sxx > n * _MIN_SPREAD**2 else 0.0)
        return unexplained > (WAVES * self.y) ** 2 / n

    def result(self, prior_slope: float) -> _Result:
        """Compute the result. `prior_slope` (seconds per token) is used if all replies are equally long."""
        n = self.calls
        x, y = self.x / n, self.y / n
        prior = n * _MIN_SPREAD**2
        sxx = max(0.0, self.xx - n * x * x)
        sxy = self.xy - n * x * y
        slope = max(0.0, (sxy + prior * prior_slope) / (sxx + prior))
        seconds = self.until - (self.since or 0.0)
        return _Result(self.area / seconds if seconds > 0 else 0.0, x, y, slope)


@dataclass(frozen=True, slots=True)
class _Result:
    """Means over the calls of a trial, and the slope of latency in seconds per token."""

    in_flight: float
    tokens: float
    latency_s: float
    slope: float

    def latency_of(self, tokens: float) -> float:
        """Return the expected latency of a reply of this length."""
        return max(1e-6, 1e-3 * self.latency_s, self.latency_s + self.slope * (tokens - self.tokens))


class AdaptiveBound:
    """A bound on the calls in flight that adapts to observed latencies and failures."""

    def __init__(self, start: int, now: float) -> None:
        self.bound = start
        self._trial = _Trial(now, first=True)
        self._previous: _Result | None = None
        self._starting = True
        self._direction = 0
        self._streak = 0
        self._ceiling = float(MAX_BOUND)
        self._cut = False
        self._seen = 0
        self._tokens = 0.0

    def ended(
        self, now: float, in_flight: int, latency_s: float, tokens: int, ok: bool, ago_s: float = 0.0
    ) -> None:
        """Record a call that ended `ago_s` ago, with `in_flight` calls in flight, including itself.

        `tokens` counts generated or embedded tokens. `ok` is False if a failure may be due to load.
        """
        trial = self._trial
        sent_at = now - ago_s - latency_s
        if not ok:
            if sent_at < trial.began or self._cut:
                return
            trial.failures += 1
            share = trial.failures / (trial.failures + trial.successes)
            if trial.failures >= MIN_CALLS and share > OVERLOAD_FAILURE_SHARE:
                self._back_off(now, in_flight)
            return
        trial.successes += 1
        self._seen = min(self._seen + 1, _REMEMBERED_CALLS)
        self._tokens += (tokens - self._tokens) / self._seen
        if trial.since is None or now < trial.since:  # The clock was set back: restart the trial.
            near = IN_USE * self.bound <= in_flight <= self.bound / IN_USE + 1
            trial.since = None
            if near:
                trial.since = trial.until = sent_at if trial.first else now
                trial.advance(now, in_flight)
                self._cut = False
            if not (near and trial.first):
                return
        else:
            trial.advance(now, in_flight)
        if sent_at >= (trial.since or 0.0):
            trial.add(tokens, latency_s)
        if trial.calls < MIN_CALLS:
            return
        share = COVERED_AT_START if self._starting and self._previous else COVERED
        covered = trial.y >= share * self.bound * (now - (trial.since or 0.0))
        if covered or (trial.first and trial.in_waves):
            self._decide(now)

    def refused(self, now: float, in_flight: int) -> None:
        """Record a 429. Further ones from calls that are already in flight do not count."""
        if not self._cut:
            self._back_off(now, in_flight)

    def _back_off(self, now: float, in_flight: int) -> None:
        in_use = min(self.bound, in_flight)
        self._ceiling = max(1.0, CEILING * in_use)
        self._starting, self._direction, self._streak = False, 1, 0
        self._previous = None
        self._begin(now, BACK_OFF * in_use)
        self._cut = True

    def _decide(self, now: float) -> None:
        """End the trial and choose the bound of the next one."""
        previous = self._previous
        result = self._trial.result(previous.slope if previous else 0.0)
        if result.in_flight < IN_USE * self.bound:
            self._begin(now, self.bound)
            return
        self._ceiling = min(MAX_BOUND, self._ceiling * CEILING_GROWTH)
        if self._trial.first and self._trial.in_waves:  # Too high, but latencies do not show by how much.
            self._begin(now, self.bound / 2.0)
            return
        self._previous = result
        if previous is None:
            up = 2.0 if self._trial.first and result.latency_s < SLOW_S else 0.5
            self._direction = 1 if up > 1.0 else 0
            self._begin(now, self.bound * (up if self._starting else math.exp(MIN_STEP)))
            return
        # Elasticity: relative change of throughput per relative change of calls in flight, at mean length.
        change = math.log(result.in_flight / previous.in_flight)
        if abs(change) < MIN_STEP / 4.0:
            self._streak, self._direction = 0, 1
            self._begin(now, self.bound * math.exp(MIN_STEP))
            return
        slower = math.log(result.latency_of(self._tokens) / previous.latency_of(self._tokens))
        low, high = sorted((previous.in_flight, result.in_flight))
        self._begin(now, self._next(low, high, (change - slower) / change))

    def _next(self, low: float, high: float, gain: float) -> float:
        """Return the next bound after trials at `low` and `high` calls in flight with elasticity `gain`."""
        overshot = self._starting and self._direction > 0 and high > 1.9 * low and gain < OVERSHOT
        direction = 1 if gain > WORTH and not overshot else -1
        keep_going = self._direction in (0, direction) and not overshot
        self._direction = direction
        if self._starting and keep_going:
            if direction < 0:
                return low / 2.0
            step = MAX_STEP * (min(gain, 1.0) - WORTH) / (1.0 - WORTH)
            return high * math.exp(max(MIN_STEP, min(step, 2.0 * math.log(high / low))))
        self._starting = False
        if keep_going:
            self._streak += 1
            step = min(MAX_STEP, MIN_STEP * 2.0 ** (self._streak - 1))
            return self.bound * math.exp(direction * step)
        self._streak = 0
        # If throughput is proportional to calls up to a knee and flat above, this is the knee.
        return low * math.pow(high / low, max(-0.5, min(1.0, gain)))

    def _begin(self, now: float, bound: float) -> None:
        previous = self.bound
        self.bound = max(1, round(min(bound, self._ceiling)))
        if self.bound == previous and self._direction > 0 and previous < self._ceiling:
            self.bound = previous + 1
        self._trial = _Trial(now)
