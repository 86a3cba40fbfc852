"""The rate limits of one logical model, which all callers share.

Pure: the time is an argument. `limiter.LocalLimiter` wraps this. On a cluster, an actor wraps the limiter.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import Latencies
from graphrag_ray.llm.adaptive import AdaptiveBound
from graphrag_ray.llm.limit_headers import RateLimitInfo
from graphrag_ray.llm.token_bucket import Bucket, check_within_limit

logger = logging.getLogger(__name__)

MAX_PAUSE_S = 600.0  # If an endpoint asks for a longer pause, try it again after this time anyway.
# Pause after a 429 without a waiting time. It doubles if the next 429 follows soon, and halves otherwise.
MIN_GUESSED_PAUSE_S, MAX_GUESSED_PAUSE_S = 0.5, 60.0
MIN_WARNED_PAUSE_S = 30.0  # Shorter pauses are logged at level INFO.
MAX_GROUP = 128  # maximum number of permits per grant, so that one caller cannot take all of them


class CallOutcome(NamedTuple):
    """The outcome of a call that ended `ago_s` seconds ago.

    `tokens` counts the tokens of the reply or of the embedded texts. `ok` is False if a failure may be due to
    load. `rate_limits` contains new information about the endpoint's limits, if any.
    """

    latency_s: float
    tokens: int
    ok: bool = True
    rate_limits: RateLimitInfo | None = None
    ago_s: float = 0.0


class FreedPermit(NamedTuple):
    """A released permit: the arguments of `LimiterState.settle`."""

    endpoint: int
    delta_tokens: int
    ended: CallOutcome | None = None


@dataclass
class Tally:
    """Counts of one endpoint since its limiter was started.

    `failed` counts failures that may be due to load; `rate_limited` of them were 429s or requests to wait.
    `tokens` were charged against the limit, including reservations for requests in flight.
    """

    answered: int = 0
    failed: int = 0
    rate_limited: int = 0
    tokens: int = 0
    latency: Latencies = field(default_factory=Latencies)


@dataclass(frozen=True)
class EndpointState:
    """An endpoint's state for metrics, with the limits in use (None if unknown or unlimited)."""

    tally: Tally
    in_flight: int
    max_in_flight: int | None
    requests_per_minute: float | None
    tokens_per_minute: float | None
    pause_s: float


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to a ticket: the endpoints for its first len(endpoints) wants, in order."""

    ticket: int
    endpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Ticket:
    number: int
    holder: str
    wants: tuple[int, ...]
    usable: tuple[int, ...]
    tokens: int


class _EndpointLimits:
    """The limits of one endpoint: its bucket, its bound on calls in flight, and its pauses.

    `max_request_tokens` limits the size of a request according to the settings. A request takes at most
    `max_charge` tokens from the bucket: the tokens per minute. `waiting` and `waiting_tokens` count the wants
    of all tickets that could use the endpoint. They are updated incrementally because every settlement reads
    them.
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
        self.max_request_tokens = self.max_charge = math.inf if tpm is None else tpm
        self.in_flight: Counter[str] = Counter()
        self.busy = 0
        self.waiting = self.waiting_tokens = 0
        self.paused_until = now
        self.pause_s = 0.0
        self.tally = Tally()

    @property
    def has_room(self) -> bool:
        return self.max_in_flight is None or self.busy < self.max_in_flight

    def fits(self, tokens: int) -> bool:
        """Whether a request may be sent now, according to the bucket's level at its last refill."""
        return self.has_room and self.bucket.fits(min(tokens, self.max_charge))

    def enter(self, now: float, holder: str, tokens: int) -> None:
        self.bucket.take(now, min(tokens, self.max_charge))
        self.tally.tokens += tokens
        self.in_flight[holder] += 1
        self.busy += 1

    def leave(self, holder: str, calls: int) -> None:
        """Release permits, at most as many as granted: a restarted limiter may get unknown ones back."""
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
        """Apply reported limits that the settings lack or exceed."""
        if info.wait_s > 0:
            self.bucket.pause_until(now, now + info.wait_s)
        bucket, where = self.bucket, display_url(self.endpoint.base_url)

        def lower(
            unit: str, setting: float | None, reported: float | None, current: float | None
        ) -> float | None:
            if reported is None:
                return current
            after = reported if setting is None else min(setting, reported)
            if after != current and setting is None:
                logger.info("%s reports a limit of %s %s per minute: using it", where, f"{after:,.0f}", unit)
            elif after != current and setting is not None and after < setting:
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
        self.max_charge = math.inf if tpm is None else tpm
        if self.adaptive is not None and bucket.limited:
            self.adaptive = None
            self.max_in_flight = None

    @property
    def load(self) -> float:
        """Load from 0 (idle) to 1 (exhausted)."""
        calls = self.busy / (self.max_in_flight or self.busy + 64.0)
        return max(calls, self.bucket.load)


class LimiterState:
    """The endpoints of one logical model, and the tickets that wait for them.

    A holder, such as a worker, has one ticket at a time for all its waiters. Tickets are answered in order.
    An answer may grant fewer permits than wanted; the remaining waiters ask again.
    """

    def __init__(self, endpoints: Sequence[Endpoint], initial_in_flight: int, now: float) -> None:
        self._endpoints = [_EndpointLimits(e, initial_in_flight, now) for e in endpoints]
        self._queue: list[_Ticket] = []
        self._next = 0
        self._peak = 0

    def lend(self, now: float, endpoints: Iterable[int]) -> None:
        """Let the first request to each of these endpoints go immediately, on credit."""
        for i in endpoints:
            self._endpoints[i].bucket.lend(now)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The number of calls in flight at each endpoint."""
        return tuple(g.busy for g in self._endpoints)

    def take_peak(self) -> int:
        """Return the maximum number of calls in flight since the last `take_peak`."""
        peak, self._peak = self._peak, sum(self.in_flight)
        return peak

    def endpoint_states(self, now: float) -> list[EndpointState]:
        return [
            EndpointState(
                deepcopy(limits.tally),
                limits.busy,
                limits.max_in_flight,
                limits.bucket.requests_per_minute,
                limits.bucket.tokens_per_minute,
                max(0.0, limits.paused_until - now),
            )
            for limits in self._endpoints
        ]

    def ask(self, holder: str, wants: Sequence[int], usable: Sequence[int]) -> int:
        """Queue for len(wants) permits, and return the ticket's number. Raises RequestTooLarge."""
        limits = [self._endpoints[i].endpoint.tokens_per_minute for i in usable]
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
        for limits in self._endpoints:
            limits.leave(holder, limits.in_flight[holder])
            del limits.in_flight[holder]

    def settle(
        self, now: float, holder: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None
    ) -> None:
        """Release a permit, and charge tokens used minus tokens reserved. See `Limiter.settle`."""
        limits = self._endpoints[endpoint]
        limits.bucket.settle(now, delta_tokens)
        limits.tally.tokens += delta_tokens
        if ended is not None:
            limits.learn(now, ended)
        limits.leave(holder, 1)

    def penalise(self, now: float, endpoint: int, retry_after_s: float | None) -> None:
        """Pause an endpoint that answered 429 or asked to wait. Without a given time, pauses grow."""
        limits = self._endpoints[endpoint]
        if limits.adaptive is not None:
            limits.adaptive.refused(now, limits.busy)
            limits.max_in_flight = limits.adaptive.bound
        limits.tally.rate_limited += 1
        if retry_after_s is None:
            if now < limits.paused_until:  # count a burst of 429s once
                return
            soon = now - limits.paused_until < limits.pause_s
            guess_s = limits.pause_s * 2.0 if soon else limits.pause_s / 2.0
            retry_after_s = limits.pause_s = min(MAX_GUESSED_PAUSE_S, max(MIN_GUESSED_PAUSE_S, guess_s))
        pause_s = min(retry_after_s, MAX_PAUSE_S)
        if limits.paused_until <= now:
            level = logging.WARNING if pause_s >= MIN_WARNED_PAUSE_S else logging.INFO
            where = display_url(limits.endpoint.base_url)
            logger.log(level, "%s asks to wait: pausing requests for %.1f s", where, pause_s)
        limits.paused_until = max(limits.paused_until, now + pause_s)
        limits.bucket.pause_until(now, limits.paused_until)

    def grants(self, now: float) -> tuple[list[Granted], float | None]:
        """Grant permits. Also returns when to check again, or None to wait for a new ticket or settlement."""
        granted: list[Granted] = []
        waiting: list[_Ticket] = []
        # An endpoint is open if it has room, and its bucket can serve the first ticket that could use it.
        open_ = {i for i, e in enumerate(self._endpoints) if e.has_room and self._opens_in(now, i) == 0}
        for n, ticket in enumerate(self._queue):
            if not open_:
                waiting += self._queue[n:]
                break
            if endpoints := self._serve(now, ticket, open_):
                granted.append(Granted(ticket.number, tuple(endpoints)))
                self._count(ticket, -1)
            else:
                waiting.append(ticket)
        self._queue = waiting
        waits = [self._opens_in(now, i) for i, limits in enumerate(self._endpoints) if limits.has_room]
        delays = [w for w in waits if w is not None]
        return granted, now + min(delays) if delays and self._queue else None

    def _opens_in(self, now: float, endpoint: int) -> float | None:
        """Return the seconds until an endpoint's bucket can serve its waiters, or None without waiters."""
        limits = self._endpoints[endpoint]
        wants = (t.wants[0] for t in self._queue if endpoint in t.usable)
        first = next((tokens for tokens in wants if tokens <= limits.max_request_tokens), None)
        if first is None:
            limits.bucket.wait_for(now, 0)
            return None
        needed = min(first, limits.max_charge)
        limits.bucket.wait_for(now, needed)
        return limits.bucket.opens_in(now, needed, limits.waiting, limits.waiting_tokens)

    def _serve(self, now: float, ticket: _Ticket, open_: set[int]) -> list[int]:
        """Return endpoints for the first wants. Closes endpoints for which the ticket must wait."""
        endpoints: list[int] = []
        for tokens in ticket.wants[:MAX_GROUP]:
            usable = [i for i in ticket.usable if i in open_]
            candidates = [i for i in usable if tokens <= self._endpoints[i].max_request_tokens]
            ready = [i for i in candidates if self._endpoints[i].fits(tokens)]
            if not ready:
                open_.difference_update(candidates)
                break
            best = ready[0] if len(ready) == 1 else min(ready, key=lambda i: self._endpoints[i].load)
            self._endpoints[best].enter(now, ticket.holder, tokens)
            endpoints.append(best)
        self._peak = max(self._peak, sum(self.in_flight))
        return endpoints

    def _drop(self, is_dropped: Callable[[_Ticket], bool]) -> None:
        """Remove tickets from the queue."""
        for ticket in filter(is_dropped, self._queue):
            self._count(ticket, -1)
        self._queue = [t for t in self._queue if not is_dropped(t)]

    def _count(self, ticket: _Ticket, sign: Literal[1, -1]) -> None:
        """Add or subtract a ticket's wants at its endpoints."""
        for i in ticket.usable:
            self._endpoints[i].waiting += sign * len(ticket.wants)
            self._endpoints[i].waiting_tokens += sign * ticket.tokens
