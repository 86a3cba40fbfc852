"""Who may call which endpoint, and when: the limits of one logical model, shared by all who call it.

Pure: every method is told the time. `limiter.LocalLimiter` is its shell in one process; a cluster's
limiter is one actor around that.
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

MAX_PAUSE_S = 600.0
"""An endpoint that asks for a longer pause is tried again after this: one request is cheap."""
FIRST_PAUSE_S = 0.5
"""After a 429 that names no time; doubled when the next comes sooner after it than it was long, halved
when it does not."""
LONGEST_GUESS_S = 60.0
TOLD_PAUSE_S = 30.0
"""People are told of pauses from here on."""
MAX_GROUP = 128
"""Places given in one answer, so that one caller does not take all that there are."""


class Ended(NamedTuple):
    """How a call ended, for whoever learns from it.

    tokens    of the reply; of the texts, where these were embedded
    ok        False for a failure that may be the endpoint's load
    told      what the endpoint said about its limits, where that is news
    ago_s     since it ended
    """

    latency_s: float
    tokens: int
    ok: bool = True
    told: RateLimitInfo | None = None
    ago_s: float = 0.0


class Settled(NamedTuple):
    """A place that is free again, as `LimiterState.settle` is told of it."""

    endpoint: int
    delta_tokens: int
    ended: Ended | None = None


@dataclass
class Tally:
    """What came of one endpoint since its limiter was started.

    answered      requests that got a reply; failed: that failed in a way that may be the endpoint's load
    rate_limited  of those that failed, answered 429 or with how long to wait
    tokens        charged against its limit: of requests in flight, what was reserved for them
    latency       of the requests that got a reply
    """

    answered: int = 0
    failed: int = 0
    rate_limited: int = 0
    tokens: int = 0
    latency: Latencies = field(default_factory=Latencies)

    def note(self, ended: Ended) -> None:
        if ended.ok:
            self.answered += 1
            self.latency.add(ended.latency_s)
        else:
            self.failed += 1


@dataclass(frozen=True)
class EndpointState:
    """One endpoint, for whoever watches. Limits are those that are kept to now; None where none is known.

    most_in_flight   the bound on requests in flight; None: rates decide
    pause_s          for so long nothing more is sent there
    """

    tally: Tally
    in_flight: int
    most_in_flight: int | None
    requests_per_minute: float | None
    tokens_per_minute: float | None
    pause_s: float


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to a ticket: for its first len(endpoints) wants, in order, the endpoint to call."""

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

    largest     tokens that a request may have. Only the settings forbid one: limits that the endpoint
                tells are not trusted so far
    dearest     tokens that a request takes from the bucket at most: a whole minute's limit
    in_flight   calls of each holder; busy: of all
    waiting     wants of all tickets that would use it, and their tokens: kept up, since they are looked at
                with every settle
    """

    def __init__(self, endpoint: Endpoint, default_in_flight: int, now: float) -> None:
        rpm, tpm = endpoint.requests_per_minute, endpoint.tokens_per_minute
        self.endpoint = endpoint
        self.bucket = Bucket(rpm, tpm, now)
        self.max_in_flight = endpoint.max_in_flight
        self.adaptive: AdaptiveBound | None = None
        if self.max_in_flight is None and not self.bucket.limited:
            self.adaptive = AdaptiveBound(default_in_flight, now)
            self.max_in_flight = default_in_flight
        self.largest = math.inf if tpm is None else tpm
        self.dearest = self.largest
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
        """Whether a request may go now, at the level of the last look."""
        return self.has_place and self.bucket.fits(min(tokens, self.dearest))

    def enter(self, now: float, holder: str, tokens: int) -> None:
        self.bucket.take(now, min(tokens, self.dearest))
        self.tally.tokens += tokens
        self.in_flight[holder] += 1
        self.busy += 1

    def leave(self, holder: str, calls: int) -> None:
        """After a restart of the limiter, calls end that it never granted."""
        calls = min(calls, self.in_flight[holder])
        self.in_flight[holder] -= calls
        self.busy -= calls

    def learn(self, now: float, ended: Ended) -> None:
        if ended.told is not None:
            self.adopt(now, ended.told)
        if self.adaptive is not None:
            self.adaptive.ended(now, self.busy, ended.latency_s, ended.tokens, ended.ok, ended.ago_s)
            self.max_in_flight = self.adaptive.bound

    def refused(self, now: float) -> None:
        """A 429."""
        if self.adaptive is not None:
            self.adaptive.refused(now, self.busy)
            self.max_in_flight = self.adaptive.bound

    def adopt(self, now: float, told: RateLimitInfo) -> None:
        """Limits that the endpoint tells stand where the settings have none, and where they are lower."""
        if told.wait_s > 0:
            self.bucket.pause_until(now, now + told.wait_s)
        ours, bucket, where = self.endpoint, self.bucket, display_url(self.endpoint.base_url)

        def lower(what: str, ours: float | None, told: float | None, before: float | None) -> float | None:
            after = before if told is None else told if ours is None else min(ours, told)
            if after is not None and after != before and ours is None:
                logger.info(
                    "%s says that it allows %s %s a minute: this is used", where, f"{after:,.0f}", what
                )
            elif after is not None and after != before and ours is not None and after < ours:
                logger.warning(
                    "%s says that it allows %s %s a minute, the settings say %s: the lower is used",
                    where, f"{after:,.0f}", what, f"{ours:,.0f}",
                )  # fmt: skip
            return after

        before = bucket.requests_per_minute, bucket.tokens_per_minute
        rpm = lower("requests", ours.requests_per_minute, told.requests_per_minute, before[0])
        tpm = lower("tokens", ours.tokens_per_minute, told.tokens_per_minute, before[1])
        if (rpm, tpm) == before:
            return
        bucket.relimit(now, rpm, tpm)
        self.dearest = math.inf if tpm is None else tpm
        if self.adaptive is not None and bucket.limited:
            self.adaptive = None
            self.max_in_flight = None

    def seen(self, now: float) -> EndpointState:
        bucket, pause_s = self.bucket, max(0.0, self.paused_until - now)
        limits = bucket.requests_per_minute, bucket.tokens_per_minute
        return EndpointState(deepcopy(self.tally), self.busy, self.max_in_flight, *limits, pause_s)

    @property
    def load(self) -> float:
        """0 idle, 1 nothing left."""
        places = self.busy / (self.max_in_flight or self.busy + 64.0)
        return max(places, self.bucket.load)


class LimiterState:
    """The endpoints of one logical model and the tickets that wait for them.

    A holder (a worker) has one ticket at a time, for all its waiters. Tickets are answered in order;
    an answer may hold fewer places than were wanted, and the rest asks again.
    """

    def __init__(self, endpoints: Sequence[Endpoint], default_in_flight: int, now: float) -> None:
        self._gates = [_Gate(e, default_in_flight, now) for e in endpoints]
        self._queue: list[_Ticket] = []
        self._next = 0
        self._peak = 0

    def lend(self, now: float, endpoints: Iterable[int]) -> None:
        """Let the first request to each of these go at once, on credit."""
        for i in endpoints:
            self._gates[i].bucket.lend(now)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Calls in flight for each endpoint."""
        return tuple(g.busy for g in self._gates)

    def take_peak(self) -> int:
        """The most calls in flight at once since this was asked last."""
        peak, self._peak = self._peak, sum(self.in_flight)
        return peak

    def seen(self, now: float) -> list[EndpointState]:
        """Each endpoint as it is now."""
        return [gate.seen(now) for gate in self._gates]

    def ask(self, holder: str, wants: Sequence[int], usable: Sequence[int]) -> int:
        """Queue up for len(wants) places; returns the ticket's number.

        wants: tokens that each waiter's call will use, at least 1. usable: endpoints that the holder
        would call. Raises RequestTooLarge if one of them needs more than any of these ever gives.
        """
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
        """A holder died: its tickets go, and its calls in flight are over."""
        self._drop(lambda t: t.holder == holder)
        for gate in self._gates:
            gate.leave(holder, gate.in_flight[holder])
            del gate.in_flight[holder]

    def settle(
        self, now: float, holder: str, endpoint: int, delta_tokens: int, ended: Ended | None = None
    ) -> None:
        """A place is free again. delta_tokens: what was used minus what was reserved; ended: how the call
        went, where one was made and says something about the endpoint."""
        gate = self._gates[endpoint]
        gate.bucket.settle(now, delta_tokens)
        gate.tally.tokens += delta_tokens
        if ended is not None:
            gate.tally.note(ended)
        if ended is not None and (gate.adaptive is not None or ended.told is not None):
            gate.learn(now, ended)
        gate.leave(holder, 1)

    def penalise(self, now: float, endpoint: int, retry_after_s: float | None) -> None:
        """The endpoint said 429, or asked to wait. Everyone leaves it alone for as long, or ever longer."""
        gate = self._gates[endpoint]
        gate.refused(now)
        gate.tally.rate_limited += 1
        if retry_after_s is None:
            if now < gate.paused_until:  # one burst of 429s is one strike
                return
            soon = now - gate.paused_until < gate.pause_s
            guess_s = gate.pause_s * 2.0 if soon else gate.pause_s / 2.0
            retry_after_s = gate.pause_s = min(LONGEST_GUESS_S, max(FIRST_PAUSE_S, guess_s))
        if gate.paused_until <= now:
            where, pause_s = display_url(gate.endpoint.base_url), min(retry_after_s, MAX_PAUSE_S)
            level = logging.WARNING if pause_s >= TOLD_PAUSE_S else logging.INFO
            logger.log(level, "%s asks to wait: nothing is sent there for %.1f s", where, pause_s)
        gate.paused_until = max(gate.paused_until, now + min(retry_after_s, MAX_PAUSE_S))
        gate.bucket.pause_until(now, gate.paused_until)

    def grants(self, now: float) -> tuple[list[Granted], float | None]:
        """Who may go now, and when to look again (None: not before somebody asks or settles)."""
        granted: list[Granted] = []
        waiting: list[_Ticket] = []
        # Endpoints that answer now: they have a place, and room for the first who would use them.
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
        """Seconds until an endpoint's bucket answers those who wait for it; None if nobody does."""
        gate = self._gates[endpoint]
        mine = (t.wants[0] for t in self._queue if endpoint in t.usable)
        first = next((tokens for tokens in mine if tokens <= gate.largest), None)
        if first is None:
            gate.bucket.wait_for(now, 0)
            return None
        needed = min(first, gate.dearest)
        gate.bucket.wait_for(now, needed)
        return gate.bucket.opens_in(now, needed, gate.waiting, gate.waiting_tokens)

    def _serve(self, now: float, ticket: _Ticket, open_: set[int]) -> list[int]:
        """Places for the first wants of a ticket. Endpoints that it has to wait for are closed to those
        behind it, so that small requests do not starve a large one."""
        places: list[int] = []
        for tokens in ticket.wants[:MAX_GROUP]:
            wanted = [i for i in ticket.usable if i in open_ and tokens <= self._gates[i].largest]
            ready = [i for i in wanted if self._gates[i].fits(tokens)]
            if not ready:
                open_.difference_update(wanted)
                break
            best = ready[0] if len(ready) == 1 else min(ready, key=lambda i: self._gates[i].load)
            self._gates[best].enter(now, ticket.holder, tokens)
            places.append(best)
        self._peak = max(self._peak, sum(self.in_flight))
        return places

    def _drop(self, gone: Callable[[_Ticket], bool]) -> None:
        """Take tickets out of the queue."""
        for ticket in filter(gone, self._queue):
            self._count(ticket, -1)
        self._queue = [t for t in self._queue if not gone(t)]

    def _count(self, ticket: _Ticket, sign: Literal[1, -1]) -> None:
        """A ticket has come or is gone."""
        for i in ticket.usable:
            self._gates[i].waiting += sign * len(ticket.wants)
            self._gates[i].waiting_tokens += sign * ticket.tokens
