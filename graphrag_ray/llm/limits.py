"""Who may call which endpoint, and when: the limits of one logical model, shared by all callers.

Pure: the time is an argument. `limiter.LocalLimiter` wraps this, and on a cluster an actor wraps that.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from graphrag_ray.base.index_settings import Endpoint
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import Latencies
from graphrag_ray.llm.adaptive import AdaptiveBound
from graphrag_ray.llm.limit_headers import RateLimitInfo
from graphrag_ray.llm.token_bucket import Bucket, check_within_limit

logger = logging.getLogger(__name__)

MAX_PAUSE_S = 600.0  # An endpoint that asks for a longer pause is tried again after this: a request is cheap.
# Pause after a 429 without a time: doubled if it comes within the length of the last pause, else halved.
FIRST_PAUSE_S, LONGEST_GUESS_S = 0.5, 60.0
WARN_FROM_S = 30.0  # Shorter pauses are logged at level INFO.
MAX_GROUP = 128  # Places per grant, so that one caller does not take all of them.


class CallOutcome(NamedTuple):
    """How a call ended, `ago_s` seconds ago.

    `tokens` are those of the reply, or of embedded texts; `ok` is False for a failure that may be due to
    load; `rate_limits` is news from the endpoint about its limits.
    """

    latency_s: float
    tokens: int
    ok: bool = True
    rate_limits: RateLimitInfo | None = None
    ago_s: float = 0.0


class FreedPlace(NamedTuple):
    """A freed place: the arguments of `LimiterState.settle`."""

    endpoint: int
    delta_tokens: int
    ended: CallOutcome | None = None


@dataclass
class Tally:
    """Counts of one endpoint since its limiter was started.

    `failed` requests may be due to load; `rate_limited` of them were answered with 429 or a time to wait.
    `tokens` were charged against the limit, including reservations of requests in flight.
    """

    answered: int = 0
    failed: int = 0
    rate_limited: int = 0
    tokens: int = 0
    latency: Latencies = field(default_factory=Latencies)


@dataclass(frozen=True)
class EndpointState:
    """An endpoint's state for metrics, with the limits in use; None if unknown or unlimited."""

    tally: Tally
    in_flight: int
    max_in_flight: int | None
    requests_per_minute: float | None
    tokens_per_minute: float | None
    pause_s: float


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to a ticket: the endpoints to call for its first len(endpoints) wants, in order."""

    ticket: int
    endpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Ticket:
    number: int
    holder: str
    wants: tuple[int, ...]
    usable: tuple[int, ...]
    tokens: int


class _Gate:
    """One endpoint: its bucket, its bound on calls in flight, and its pauses.

    `largest` is the most tokens of a request, which only settings limit; `dearest` the most that it takes
    from the bucket, a minute's limit. `waiting` and `waiting_tokens` count the wants of all tickets that
    could use the endpoint, kept up to date since every settlement reads them.
    """

    def __init__(self, endpoint: Endpoint, initial_in_flight: int, now: float) -> None:
        rpm, tpm = endpoint.requests_per_minute, endpoint.tokens_per_minute
        self.endpoint = endpoint
        self.bucket = Bucket(rpm, tpm, now)
        self.max_in_flight = endpoint.max_in_flight
        self.adaptive: AdaptiveBound | None = None
        if self.max_in_flight is None and not self.bucket.limited:
            self.adaptive = AdaptiveBound(initial_in_flight, now)
            self.max_in_flight = initial_in_flight
        self.largest = self.dearest = math.inf if tpm is None else tpm
        self.in_flight: Counter[str] = Counter()
        self.busy = 0
        self.waiting = self.waiting_tokens = 0
        self.paused_until = now
        self.pause_s = 0.0
        self.tally = Tally()

    @property
    def has_place(self) -> bool:
        return self.max_in_flight is None or self.busy < self.max_in_flight

    def fits(self, tokens: int) -> bool:
        """Whether a request may be sent now, at the bucket's level when it was last refilled."""
        return self.has_place and self.bucket.fits(min(tokens, self.dearest))

    def enter(self, now: float, holder: str, tokens: int) -> None:
        self.bucket.take(now, min(tokens, self.dearest))
        self.tally.tokens += tokens
        self.in_flight[holder] += 1
        self.busy += 1

    def leave(self, holder: str, calls: int) -> None:
        """Free places. After a restart of the limiter, calls end that it never granted."""
        calls = min(calls, self.in_flight[holder])
        self.in_flight[holder] -= calls
        self.busy -= calls

    def learn(self, now: float, ended: CallOutcome) -> None:
        if ended.ok:
            self.tally.answered += 1
            self.tally.latency.add(ended.latency_s)
        else:
            self.tally.failed += 1
        if ended.rate_limits is not None:
            self.adopt(now, ended.rate_limits)
        if self.adaptive is not None:
            self.adaptive.ended(now, self.busy, ended.latency_s, ended.tokens, ended.ok, ended.ago_s)
            self.max_in_flight = self.adaptive.bound

    def adopt(self, now: float, info: RateLimitInfo) -> None:
        """Apply reported limits if settings have none or higher ones."""
        if info.wait_s > 0:
            self.bucket.pause_until(now, now + info.wait_s)
        bucket, where = self.bucket, display_url(self.endpoint.base_url)

        def lower(
            unit: str, setting: float | None, reported: float | None, before: float | None
        ) -> float | None:
            if reported is None:
                return before
            after = reported if setting is None else min(setting, reported)
            if after != before and setting is None:
                logger.info("%s reports a limit of %s %s per minute: using it", where, f"{after:,.0f}", unit)
            elif after != before and setting is not None and after < setting:
                logger.warning(
                    "%s reports a limit of %s %s per minute, but the settings say %s: using the lower one",
                    where, f"{after:,.0f}", unit, f"{setting:,.0f}",
                )  # fmt: skip
            return after

        settings, before = self.endpoint, (bucket.requests_per_minute, bucket.tokens_per_minute)
        rpm = lower("requests", settings.requests_per_minute, info.requests_per_minute, before[0])
        tpm = lower("tokens", settings.tokens_per_minute, info.tokens_per_minute, before[1])
        if (rpm, tpm) == before:
            return
        bucket.relimit(now, rpm, tpm)
        self.dearest = math.inf if tpm is None else tpm
        if self.adaptive is not None and bucket.limited:
            self.adaptive = None
            self.max_in_flight = None

    @property
    def load(self) -> float:
        """0 when idle, 1 when exhausted."""
        places = self.busy / (self.max_in_flight or self.busy + 64.0)
        return max(places, self.bucket.load)


class LimiterState:
    """The endpoints of one logical model and the tickets that wait for them.

    A holder (a worker) has one ticket at a time for all its waiters. Tickets are answered in order. An answer
    may grant fewer places than wanted; the remaining waiters ask again.
    """

    def __init__(self, endpoints: Sequence[Endpoint], initial_in_flight: int, now: float) -> None:
        self._gates = [_Gate(e, initial_in_flight, now) for e in endpoints]
        self._queue: list[_Ticket] = []
        self._next = 0
        self._peak = 0

    def lend(self, now: float, endpoints: Iterable[int]) -> None:
        """Let the first request to each of these endpoints go at once, on credit."""
        for i in endpoints:
            self._gates[i].bucket.lend(now)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Calls in flight at each endpoint."""
        return tuple(g.busy for g in self._gates)

    def take_peak(self) -> int:
        """The most calls in flight at once since the last `take_peak`."""
        peak, self._peak = self._peak, sum(self.in_flight)
        return peak

    def seen(self, now: float) -> list[EndpointState]:
        """The current state of each endpoint."""
        return [
            EndpointState(
                deepcopy(gate.tally),
                gate.busy,
                gate.max_in_flight,
                gate.bucket.requests_per_minute,
                gate.bucket.tokens_per_minute,
                max(0.0, gate.paused_until - now),
            )
            for gate in self._gates
        ]

    def ask(self, holder: str, wants: Sequence[int], usable: Sequence[int]) -> int:
        """Queue for len(wants) places, and return the ticket's number. Raises RequestTooLarge."""
        limits = [self._gates[i].endpoint.tokens_per_minute for i in usable]
        if wants and None not in limits:
            check_within_limit(max(wants), max(limit for limit in limits if limit is not None))
        self._next += 1
        ticket = _Ticket(self._next, holder, tuple(wants), tuple(usable), sum(wants))
        self._queue.append(ticket)
        self._count(ticket, 1)
        return self._next

    def withdraw(self, ticket: int) -> None:
        self._drop(lambda t: t.number == ticket)

    def forget(self, holder: str) -> None:
        """Drop the tickets and the calls in flight of a holder that died."""
        self._drop(lambda t: t.holder == holder)
        for gate in self._gates:
            gate.leave(holder, gate.in_flight[holder])
            del gate.in_flight[holder]

    def settle(
        self, now: float, holder: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None
    ) -> None:
        """Free a place, and charge tokens used minus tokens reserved. See `Limiter.settle`."""
        gate = self._gates[endpoint]
        gate.bucket.settle(now, delta_tokens)
        gate.tally.tokens += delta_tokens
        if ended is not None:
            gate.learn(now, ended)
        gate.leave(holder, 1)

    def penalise(self, now: float, endpoint: int, retry_after_s: float | None) -> None:
        """Pause an endpoint that answered 429 or asked to wait; without a given time, ever longer."""
        gate = self._gates[endpoint]
        if gate.adaptive is not None:
            gate.adaptive.refused(now, gate.busy)
            gate.max_in_flight = gate.adaptive.bound
        gate.tally.rate_limited += 1
        if retry_after_s is None:
            if now < gate.paused_until:  # A burst of 429s counts once.
                return
            soon = now - gate.paused_until < gate.pause_s
            guess_s = gate.pause_s * 2.0 if soon else gate.pause_s / 2.0
            retry_after_s = gate.pause_s = min(LONGEST_GUESS_S, max(FIRST_PAUSE_S, guess_s))
        pause_s = min(retry_after_s, MAX_PAUSE_S)
        if gate.paused_until <= now:
            level = logging.WARNING if pause_s >= WARN_FROM_S else logging.INFO
            where = display_url(gate.endpoint.base_url)
            logger.log(level, "%s asks to wait: pausing requests for %.1f s", where, pause_s)
        gate.paused_until = max(gate.paused_until, now + pause_s)
        gate.bucket.pause_until(now, gate.paused_until)

    def grants(self, now: float) -> tuple[list[Granted], float | None]:
        """Grant places. Also returns when to look again; None: once a ticket is queued or a place freed."""
        granted: list[Granted] = []
        waiting: list[_Ticket] = []
        # Open endpoints have a place, and room for the first ticket that could use them.
        open_ = {i for i, gate in enumerate(self._gates) if gate.has_place and self._opens_in(now, i) == 0}
        for n, ticket in enumerate(self._queue):
            if not open_:
                waiting += self._queue[n:]
                break
            if places := self._serve(now, ticket, open_):
                granted.append(Granted(ticket.number, tuple(places)))
                self._count(ticket, -1)
            else:
                waiting.append(ticket)
        self._queue = waiting
        waits = [self._opens_in(now, i) for i, gate in enumerate(self._gates) if gate.has_place]
        known = [w for w in waits if w is not None]
        return granted, now + min(known) if known and self._queue else None

    def _opens_in(self, now: float, endpoint: int) -> float | None:
        """Seconds until an endpoint's bucket can serve those who wait for it; None if nobody does."""
        gate = self._gates[endpoint]
        wants = (t.wants[0] for t in self._queue if endpoint in t.usable)
        first = next((tokens for tokens in wants if tokens <= gate.largest), None)
        if first is None:
            gate.bucket.wait_for(now, 0)
            return None
        needed = min(first, gate.dearest)
        gate.bucket.wait_for(now, needed)
        return gate.bucket.opens_in(now, needed, gate.waiting, gate.waiting_tokens)

    def _serve(self, now: float, ticket: _Ticket, open_: set[int]) -> list[int]:
        """Places for the first wants. Endpoints it has to wait for are closed to later, smaller tickets."""
        places: list[int] = []
        for tokens in ticket.wants[:MAX_GROUP]:
            candidates = [i for i in ticket.usable if i in open_ and tokens <= self._gates[i].largest]
            ready = [i for i in candidates if self._gates[i].fits(tokens)]
            if not ready:
                open_.difference_update(candidates)
                break
            best = ready[0] if len(ready) == 1 else min(ready, key=lambda i: self._gates[i].load)
            self._gates[best].enter(now, ticket.holder, tokens)
            places.append(best)
        self._peak = max(self._peak, sum(self.in_flight))
        return places

    def _drop(self, gone: Callable[[_Ticket], bool]) -> None:
        """Remove tickets from the queue."""
        for ticket in filter(gone, self._queue):
            self._count(ticket, -1)
        self._queue = [t for t in self._queue if not gone(t)]

    def _count(self, ticket: _Ticket, sign: Literal[1, -1]) -> None:
        """Add a ticket's wants to its endpoints, or subtract them."""
        for i in ticket.usable:
            self._gates[i].waiting += sign * len(ticket.wants)
            self._gates[i].waiting_tokens += sign * ticket.tokens
