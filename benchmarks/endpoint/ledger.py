"""Records of the endpoint's calls: counts, calls in flight over time, work done twice, and a log.

The log starts with the line {"unix": time at 0, "options": {…}}, followed by one line per call in the order
in which calls ended. Malformed calls are not logged. Times are in seconds since the endpoint's start:

    kind       extract, glean_check, …, embeddings, other
    dialogue   hash of the first user message: the turns of one conversation share it
    key        hash of the body without volatile fields
    arrived, started, ended    started: when the call got a slot; null if it did not
    status     HTTP status; 0: closed without a complete answer; 499: the client disconnected
    fault      see draws.FAULTS, or ""
    prompt, completion, cached    tokens; completion: of the reply that would have been sent
    drawn_s    seconds drawn at speed 1, without queueing and sharing
    texts      hashes of the texts of an embedding call
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import orjson

from .draws import EATS_ANSWER

CLOSED = 0
CLIENT_LEFT = 499


@dataclass(slots=True)
class Call:
    """One call, filled in while it runs."""

    kind: str
    key: bytes
    dialogue: str
    arrived: float
    prompt: int
    completion: int = 0
    cached: int = 0
    started: float | None = None
    ended: float = 0.0
    status: int = CLOSED
    fault: str = ""
    drawn_s: float = 0.0
    refused_for: str = ""
    texts: tuple[str, ...] = ()


@dataclass(slots=True)
class _Answers:
    """The answers to one body. `admitted`: how often it was admitted.

    `good`, `eaten`: complete 200 responses sent without and with a fault.
    """

    admitted: int = 0
    good: int = 0
    eaten: int = 0
    twice: bool = False
    after_fault: bool = False


@dataclass
class _Repeats:
    bodies: int = 0
    extra_answers: int = 0
    extra_tokens: int = 0

    def add(self, new: bool, tokens: int) -> None:
        self.bodies += new
        self.extra_answers += 1
        self.extra_tokens += tokens


@dataclass
class _InFlight:
    """The number of calls in flight over time: its peak, its integral, and the integral in each second."""

    at: float
    now: int = 0
    peak: int = 0
    area: float = 0.0
    busy_s: float = 0.0
    by_second: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def step(self, change: int, at: float) -> None:
        if self.now:
            self.area += self.now * (at - self.at)
            self.busy_s += at - self.at
            while self.at < at:
                second = int(self.at)
                until = min(at, second + 1.0)
                self.by_second[second] += self.now * (until - self.at)
                self.at = until
        self.at = at
        self.now += change
        self.peak = max(self.peak, self.now)


class Ledger:
    """Records calls. `now` is a monotonic clock in seconds; times are stored as seconds since the start."""

    def __init__(self, now: Callable[[], float], log: IO[bytes] | None, options: Mapping[str, Any]) -> None:
        self._now = now
        self._log = log
        self._zero = now()
        if log is not None:
            log.write(orjson.dumps({"unix": time.time(), "options": dict(options)}) + b"\n")
        self._in_flight = _InFlight(0.0)
        self.reset()

    def time(self) -> float:
        return self._now() - self._zero

    def reset(self) -> None:
        """Forget everything except calls in flight."""
        self._in_flight = _InFlight(self.time(), self._in_flight.now, self._in_flight.now)
        self._since = self.time()
        self._first: float | None = None
        self._last = 0.0
        self._cpu_s = time.process_time()
        self._by_kind: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._status: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._requests: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()
        self._refused_in: Counter[int] = Counter()
        self._bodies: dict[bytes, _Answers] = {}
        self._twice = _Repeats()
        self._after_fault = _Repeats()
        self._embedded: set[int] = set()
        self._embedded_twice = 0

    def admit(self, call: Call, charged: int) -> int:
        """Record an admitted call. Returns how often its body has been admitted, including this time."""
        at = self.time()
        self._requests[int(at)] += 1
        self._tokens[int(at)] += charged
        self._in_flight.step(+1, at)
        body = self._bodies.setdefault(call.key, _Answers())
        body.admitted += 1
        return body.admitted

    def leave(self, call: Call) -> None:
        """Record the end of an admitted call."""
        self._in_flight.step(-1, self.time())
        if call.fault:
            self._faults[call.fault] += 1
        if call.status == 200:
            self._answered(call)
        self._close(call)

    def refuse(self, call: Call) -> None:
        """Record a call answered with 429."""
        call.status = 429
        self._refused[call.refused_for] += 1
        self._refused_in[int(self.time())] += 1
        self._close(call)

    def malformed(self, status: int) -> None:
        self._status[str(status)] += 1

    def embedded(self, texts: Sequence[Any], dimensions: int) -> None:
        """Record a good answer with the vectors of these texts."""
        for text in texts:
            state = hash((text if isinstance(text, str) else repr(text), dimensions))
            self._embedded_twice += state in self._embedded
            self._embedded.add(state)

    def _answered(self, call: Call) -> None:
        counts = self._by_kind[call.kind]
        counts["answered"] += 1
        counts["prompt_tokens"] += call.prompt
        counts["completion_tokens"] += call.completion
        counts["cached_tokens"] += call.cached
        body = self._bodies.setdefault(call.key, _Answers())
        tokens = call.prompt + call.completion
        if body.good:
            self._twice.add(not body.twice, tokens)
            body.twice = True
        elif body.eaten:
            self._after_fault.add(not body.after_fault, tokens)
            body.after_fault = True
        if call.fault in EATS_ANSWER:
            body.eaten += 1
        else:
            body.good += 1

    def _close(self, call: Call) -> None:
        call.ended = self.time()
        self._first = call.arrived if self._first is None else min(self._first, call.arrived)
        self._last = call.ended
        self._by_kind[call.kind]["requests"] += 1
        self._status[str(call.status)] += 1
        if self._log is not None:
            self._log.write(orjson.dumps(_line(call)) + b"\n")

    def statistics(self) -> dict[str, Any]:
        self._in_flight.step(0, self.time())
        flow = self._in_flight
        seconds = self._last - self._first if self._first is not None else 0.0
        totals: Counter[str] = Counter()
        for counts in self._by_kind.values():
            totals.update(counts)
        names = ("requests", "answered", "prompt_tokens", "completion_tokens", "cached_tokens")
        return {
            "seconds": round(seconds, 3),
            "requests": totals["requests"],
            "total": {name: totals[name] for name in names},
            "by_kind": {
                kind: {name: counts[name] for name in names} for kind, counts in sorted(self._by_kind.items())
            },
            "by_status": dict(sorted(self._status.items())),
            "refused_429": {"all": self._refused.total(), **self._refused},
            "faults": dict(sorted(self._faults.items())),
            "client_left": self._status[str(CLIENT_LEFT)],
            "in_flight": {
                "now": flow.now,
                "peak": flow.peak,
                "mean_while_any": round(flow.area / flow.busy_s, 3) if flow.busy_s else 0.0,
                "mean": round(flow.area / seconds, 3) if seconds else 0.0,
            },
            "distinct_bodies": len(self._bodies),
            "answered_twice": vars(self._twice),
            "answered_twice_after_fault": vars(self._after_fault),
            "texts_embedded_twice": self._embedded_twice,
            "cpu_s": round(time.process_time() - self._cpu_s, 3),
        }

    def series(self) -> dict[str, Any]:
        """Counts for each second since the start or the last reset."""
        self._in_flight.step(0, self.time())
        flow = self._in_flight.by_second
        first, last = int(self._since), int(self.time())
        seconds = range(first, last + 1)
        return {
            "first_second": first,
            "admitted_requests": [self._requests[s] for s in seconds],
            "admitted_tokens": [self._tokens[s] for s in seconds],
            "refused": [self._refused_in[s] for s in seconds],
            "mean_in_flight": [round(flow.get(s, 0.0), 3) for s in seconds],
        }

    def flush(self) -> None:
        if self._log is not None:
            self._log.flush()


def _line(call: Call) -> dict[str, Any]:
    return {
        "kind": call.kind,
        "dialogue": call.dialogue,
        "key": call.key.hex()[:16],
        "arrived": round(call.arrived, 4),
        "started": None if call.started is None else round(call.started, 4),
        "ended": round(call.ended, 4),
        "status": call.status,
        "fault": call.fault,
        "prompt": call.prompt,
        "completion": call.completion,
        "cached": call.cached,
        "drawn_s": round(call.drawn_s, 4),
        "texts": call.texts,
    }
