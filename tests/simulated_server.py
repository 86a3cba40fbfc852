"""A discrete-event simulation of a model server. It runs in virtual time, about a thousand times as fast.

Up to `slots` requests run concurrently at the same pace, and others queue in order. Fixed slots, processor
sharing and continuous batching differ only in how the pace depends on the number of running requests.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.llm.limits import CallOutcome, LimiterState


@dataclass(frozen=True)
class Server:
    """A server that runs a limited number of requests concurrently.

    Attributes:
        slots: Maximum number of running requests.
        pace: Tokens per second that each of n running requests generates.
        prompt_cost_tokens: Time to process the prompt, as a number of generated tokens.
        max_in_flight: Number of requests in flight above which further ones get a 503.
    """

    slots: int
    pace: Callable[[int], float]
    prompt_cost_tokens: float = 30.0
    max_in_flight: float = math.inf

    def best(self, mean_tokens: float) -> float:
        """The highest throughput in requests per second for any number in flight."""
        return max(n * self.pace(n) for n in range(1, self.slots + 1)) / (
            mean_tokens + self.prompt_cost_tokens
        )

    def needed(self, share: float = 0.9) -> int:
        """The smallest number in flight that reaches this share of the highest throughput."""
        totals = [n * self.pace(n) for n in range(1, self.slots + 1)]
        return next(n for n, t in enumerate(totals, 1) if t >= share * max(totals))


def fixed(slots: int, tokens_per_s: float = 60.0) -> Server:
    return Server(slots, lambda n: tokens_per_s)


def sharing(total_tokens_per_s: float, tokens_per_s: float = 60.0) -> Server:
    """Run everything concurrently. Above total / tokens_per_s requests, all share the total equally."""
    return Server(2_000, lambda n: min(tokens_per_s, total_tokens_per_s / n))


def batching(slots: int, step_s: float = 0.015, per_request_s: float = 0.0001) -> Server:
    """Continuous batching: each step generates one token per request. Larger batches take longer."""
    return Server(slots, lambda n: 1.0 / (step_s + per_request_s * n))


def mixture(rng: random.Random) -> int:
    """Return the tokens of a reply. Half of the replies are "yes" or "no", and half are long."""
    return 1 if rng.random() < 0.5 else rng.randint(100, 800)


MIXTURE_MEAN = 225.5
WORKERS = 8


@dataclass
class World:
    """An unlimited number of requests to one server through the limiter.

    `slow_share` is the share of replies that take eight times as long, `lost_share` that of lost replies.
    Workers report finished calls to the limiter in batches, each `lag_s` after its first call.
    """

    server: Server
    tokens: Callable[[random.Random], int] = mixture
    start: int = 64
    seed: int = 1
    slow_share: float = 0.0
    lost_share: float = 0.0
    demand: float = math.inf
    lag_s: float = 0.0
    limits: LimiterState = field(init=False)
    now: float = 0.0
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, requests in flight, replies so far) for every quarter of a second."""

    def __post_init__(self) -> None:
        self.limits = LimiterState([Endpoint(api_key_env=None)], self.start, 0.0)
        self._rng = random.Random(self.seed)
        self._virtual = 0.0
        self._running: list[tuple[float, float, int]] = []
        self._queue: deque[tuple[float, float, int]] = deque()
        self._rejected: list[float] = []
        self._done = 0
        self._batches: dict[int, tuple[float, list[CallOutcome]]] = {}
        self._next_sample = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._queue) + len(self._rejected)

    def run(self, until: float) -> World:
        while self.now < until:
            self._send()
            at = min([self.now + 0.25, *(due for due, _ in self._batches.values())])
            if self._running:
                pace = self.server.pace(len(self._running))
                at = min(at, self.now + max(0.0, self._running[0][0] - self._virtual) / pace)
                self._virtual += pace * (at - self.now)
            self.now = at
            while self._running and self._running[0][0] <= self._virtual + 1e-9:
                _, sent_at, tokens = heapq.heappop(self._running)
                ok = self._rng.random() >= self.lost_share
                self._done += ok
                self._end(CallOutcome(self.now - sent_at, tokens, ok))
            while self._rejected and self._rejected[0] <= self.now:
                self._end(CallOutcome(self.now - self._rejected.pop(0) + 0.05, 0, False))
            self._report()
            self._fill()
            if self.now >= self._next_sample:
                self.samples.append((self.now, self.in_flight, self._done))
                self._next_sample = self.now + 0.25
        return self

    def _end(self, ended: CallOutcome) -> None:
        if not self.lag_s:
            self.limits.settle(self.now, "w", 0, 0, ended)
            return
        due = self.now + self.lag_s
        self._batches.setdefault(self._rng.randrange(WORKERS), (due, []))[1].append(
            ended._replace(ago_s=self.now)
        )

    def _report(self) -> None:
        for worker, (due, batch) in list(self._batches.items()):
            if due <= self.now + 1e-9:
                del self._batches[worker]
                for ended in batch:
                    ago_s = self.now - ended.ago_s
                    self.limits.settle(self.now, "w", 0, 0, ended._replace(ago_s=ago_s))

    def _send(self) -> None:
        room = min(self.demand - self.in_flight, 256)
        if room < 1:
            return
        ticket = self.limits.ask("w", [500] * int(room), [0])
        granted, _ = self.limits.grants(self.now)
        self.limits.withdraw(ticket)
        for _ in range(sum(len(g.endpoints) for g in granted)):
            if self.in_flight >= self.server.max_in_flight:
                self._rejected.append(self.now + 0.05)
                continue
            tokens = self.tokens(self._rng)
            work = self.server.prompt_cost_tokens + tokens
            if self._rng.random() < self.slow_share:
                work *= 8.0
            self._queue.append((work, self.now, tokens))
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.server.slots:
            work, sent_at, tokens = self._queue.popleft()
            heapq.heappush(self._running, (self._virtual + work, sent_at, tokens))

    def throughput(self, start: float, end: float) -> float:
        """Replies per second between two times."""
        samples = [(t, done) for t, _, done in self.samples if start <= t <= end]
        return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])

    def mean_in_flight(self, start: float, end: float) -> float:
        samples = [n for t, n, _ in self.samples if start <= t <= end]
        return sum(samples) / len(samples)
