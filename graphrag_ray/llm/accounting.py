"""What was asked of models and what it cost: totals per stage and model, for people and for budgets.

Pure. `merged` is associative and commutative: counts and costs are whole numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from graphrag_ray.base.index_settings import Model, Price
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.pricing import PICO_USD, cost_pico_usd

Quirks: TypeAlias = Mapping[str, Mapping[str, Collection[str]]]
"""What endpoints taught (`quirks.NAMES`), by model id and endpoint."""
CallStatus: TypeAlias = Literal["ok", "transient", "permanent", "fatal", "cancelled"]


@dataclass
class InFlight:
    """What was sent and not yet answered.

    tokens, cost_pico_usd   as estimated when they were sent; and of failed attempts of calls that are tried
                            again, what these are paid for
    """

    calls: int = 0
    tokens: int = 0
    cost_pico_usd: int = 0

    def add(self, other: InFlight, sign: Literal[1, -1] = 1) -> None:
        self.calls += sign * other.calls
        self.tokens += sign * other.tokens
        self.cost_pico_usd += sign * other.cost_pico_usd

    @staticmethod
    def sum(many: Iterable[InFlight]) -> InFlight:
        out = InFlight()
        for one in many:
            out.add(one)
        return out


@dataclass(slots=True)
class CallRecord:
    """One logical call: a chat request, or a pack of embedding requests, with all its attempts. It is kept
    up to date while the call goes on.

    endpoint        address of the last attempt; empty for the offline engine
    status          how it ended: "ok", or the kind of its last failure
    usage           tokens of all attempts that reported any, and of those that may have used some
    cost_pico_usd   picodollars; None where the price is unknown
    latency_s       seconds of the last attempt, without waiting for the limiter
    busy_s          seconds in flight, of all requests
    attempts        requests sent, without hedges; excused: of these, not counted against max_attempts
    rate_limited    of all requests, answered 429
    hedged          second requests sent because the first was slow. Of a request that was cancelled for the
                    other's answer, nobody says what it used: it is taken to have used as much
    unanswered      requests that timed out, broke off or were given up after they were sent. They may be
                    billed: each is taken to have used its prompt and a usual reply, which is in `usage` too
    learned         what its endpoint taught with this call (`quirks.NAMES`)
    sent            what the attempt in flight is expected to use, by our own count, and its price
    owed            what failed attempts are paid for: counted with what is in flight until the call has
                    ended, so that a budget need not wait for its last attempt
    """

    stage: str
    prompt: str
    model_id: str
    endpoint: str = ""
    status: CallStatus = "cancelled"
    usage: Usage = field(default_factory=Usage)
    cost_pico_usd: int | None = 0
    latency_s: float = 0.0
    attempts: int = 0
    rate_limited: int = 0
    busy_s: float = 0.0
    hedged: int = 0
    unanswered: tuple[Usage, ...] = ()
    learned: frozenset[str] = frozenset()
    excused: int = 0
    sent: tuple[Usage, Price | None] | None = None
    owed: InFlight = field(default_factory=InFlight)

    @property
    def cost_usd(self) -> float | None:
        return None if self.cost_pico_usd is None else self.cost_pico_usd / PICO_USD

    def begin(self, endpoint: str, usage: Usage, price: Price | None) -> InFlight:
        """Count an attempt that is sent now. Returns what it is expected to use; an unknown price costs
        nothing there."""
        self.attempts += 1
        self.endpoint, self.sent = endpoint, (usage, price)
        tokens = usage.prompt_tokens + usage.completion_tokens
        return InFlight(1, tokens, cost_pico_usd(usage, price) or 0)

    def pay(self, usage: Usage, price: Price | None) -> InFlight:
        """Add what an attempt used. Returns it, without a call."""
        cost = cost_pico_usd(usage, price)
        self.cost_pico_usd = _sum(self.cost_pico_usd, cost)
        self.usage = sum_usage([self.usage, usage])
        return InFlight(0, usage.prompt_tokens + usage.completion_tokens, cost or 0)

    def owe(self, usage: Usage, price: Price | None) -> InFlight:
        """`pay`, for an attempt that failed."""
        paid = self.pay(usage, price)
        self.owed.add(paid)
        return paid

    def give_up(self) -> InFlight:
        """`owe`, for what is in flight and will not be answered."""
        if self.sent is None:
            return InFlight()
        (usage, price), self.sent = self.sent, None
        self.unanswered += (replace(usage, reported=False),)
        return self.owe(self.unanswered[-1], price)

    def add_hedge(self, other: CallRecord) -> None:
        """Count what a second request came to."""
        self.hedged += other.attempts
        self.busy_s += other.busy_s
        self.rate_limited += other.rate_limited
        self.cost_pico_usd = _sum(self.cost_pico_usd, other.cost_pico_usd)
        self.usage = sum_usage([self.usage, other.usage])
        self.unanswered += other.unanswered
        self.owed.add(other.owed)
        self.learned |= other.learned


def sum_usage(usages: Iterable[Usage]) -> Usage:
    prompt = completion = cached = 0
    reported = True
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_tokens
        reported = reported and usage.reported
    return Usage(prompt, completion, cached, reported)


_FIRST_S = 0.001
_PER_DOUBLING = 8


@dataclass
class Latencies:
    """A histogram of durations from 1 ms on, in buckets 9% wide, and the longest."""

    counts: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        bucket = math.floor(math.log2(max(seconds, _FIRST_S) / _FIRST_S) * _PER_DOUBLING)
        self.counts[bucket] += 1
        self.longest_s = max(self.longest_s, seconds)

    @staticmethod
    def middle_s(bucket: int) -> float:
        """A duration in the middle of a bucket."""
        return _FIRST_S * math.exp2((bucket + 0.5) / _PER_DOUBLING)

    def quantile(self, share: float) -> float | None:
        """The duration that `share` of calls stayed under, to within 9%; None without calls."""
        rank = math.ceil(share * sum(self.counts.values()))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= max(rank, 1):
                return min(self.longest_s, _FIRST_S * math.exp2((bucket + 1) / _PER_DOUBLING))
        return None

    def absorb(self, other: Latencies) -> None:
        self.counts.update(other.counts)
        self.longest_s = max(self.longest_s, other.longest_s)


@dataclass
class CallTotals:
    """Sums over calls.

    calls        logical calls; requests: what was sent for them; hedged: of these, second requests for
                 slow calls; retries: requests - hedged - calls
    rate_limited 429s; failed: calls that ended without a reply
    unanswered   requests that were sent and never answered; their tokens are our own estimate
    unreported   calls whose tokens are our own counts
    cost_pico_usd   None once any call's price was unknown
    busy_ms      milliseconds in flight, of all requests
    """

    calls: int = 0
    requests: int = 0
    hedged: int = 0
    rate_limited: int = 0
    failed: int = 0
    unanswered: int = 0
    unreported: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_pico_usd: int | None = 0
    busy_ms: int = 0
    latency: Latencies = field(default_factory=Latencies)

    @property
    def retries(self) -> int:
        return max(0, self.requests - self.hedged - self.calls)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost_usd(self) -> float | None:
        return None if self.cost_pico_usd is None else self.cost_pico_usd / PICO_USD

    def add(self, record: CallRecord) -> None:
        self.calls += 1
        self.requests += record.attempts + record.hedged
        self.hedged += record.hedged
        self.rate_limited += record.rate_limited
        self.failed += record.status != "ok"
        self.unanswered += len(record.unanswered)
        self.unreported += record.status == "ok" and not record.usage.reported
        self.prompt_tokens += record.usage.prompt_tokens
        self.cached_tokens += record.usage.cached_tokens
        self.completion_tokens += record.usage.completion_tokens
        self.cost_pico_usd = _sum(self.cost_pico_usd, record.cost_pico_usd)
        self.busy_ms += round(record.busy_s * 1000)
        if record.status == "ok":
            self.latency.add(record.latency_s)

    def absorb(self, other: CallTotals) -> None:
        self.latency.absorb(other.latency)
        cost = _sum(self.cost_pico_usd, other.cost_pico_usd)
        for count in _COUNTS:
            setattr(self, count, getattr(self, count) + getattr(other, count))
        self.cost_pico_usd = cost


_SHOWN = (
    *("calls", "requests", "retries", "hedged", "rate_limited", "failed", "unanswered", "unreported"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd"),
)
_COUNTS = [f.name for f in fields(CallTotals) if f.name not in ("latency", "cost_pico_usd")]


@dataclass
class Span:
    """How long a stage asked models, over all its sweeps, and the most calls seen in flight at once."""

    ms: int = 0
    peak_in_flight: int = 0

    def absorb(self, other: Span) -> None:
        self.ms += other.ms
        self.peak_in_flight = max(self.peak_in_flight, other.peak_in_flight)


@dataclass(frozen=True)
class Limits:
    """What all endpoints of a model allow together in a minute; None where one of them has no known limit."""

    requests_per_minute: float | None
    tokens_per_minute: float | None

    @staticmethod
    def of(model: Model) -> Limits:
        def total(limits: list[float | None]) -> float | None:
            known = [limit for limit in limits if limit is not None]
            return sum(known) if known and len(known) == len(limits) else None

        return Limits(
            total([e.requests_per_minute for e in model.endpoints]),
            total([e.tokens_per_minute for e in model.endpoints]),
        )

    def share(self, totals: CallTotals, seconds: float) -> float | None:
        """The part of the tighter limit that was used over so many seconds; None where none is known."""
        used = ((totals.requests, self.requests_per_minute), (totals.total_tokens, self.tokens_per_minute))
        shares = [amount / (limit * seconds / 60) for amount, limit in used if limit and seconds > 0]
        return max(shares, default=None)


@dataclass
class Accounts:
    """Totals per (stage, model id).

    spans    how long each stage took; workers have none, since they work side by side
    limits   of each model id, where any is known
    quirks   by model id and endpoint, what an endpoint taught about what it takes
    """

    by_stage: dict[tuple[str, str], CallTotals] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    quirks: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, record: CallRecord) -> None:
        self.by_stage.setdefault((record.stage, record.model_id), CallTotals()).add(record)
        if record.learned:
            add_quirks(self.quirks, {record.model_id: {record.endpoint: record.learned}})

    def absorb(self, other: Accounts) -> None:
        """Add another's totals to these."""
        for key, totals in other.by_stage.items():
            self.by_stage.setdefault(key, CallTotals()).absorb(totals)
        for stage, span in other.spans.items():
            self.spans.setdefault(stage, Span()).absorb(span)
        self.limits.update(other.limits)
        add_quirks(self.quirks, other.quirks)

    def take(self) -> Accounts:
        """What has gathered since the last `take`; these accounts are empty afterwards."""
        taken = Accounts(self.by_stage, quirks=self.quirks)
        self.by_stage, self.quirks = {}, {}
        return taken

    @staticmethod
    def merged(many: Iterable[Accounts]) -> Accounts:
        out = Accounts()
        for accounts in many:
            out.absorb(accounts)
        return out

    @property
    def total(self) -> CallTotals:
        """Over all stages and models."""
        out = CallTotals()
        for totals in self.by_stage.values():
            out.absorb(totals)
        return out

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat row per stage and model, in order, for people and `--json`.

        seconds, mean_in_flight, peak_in_flight, share_of_limit are None where no span was noted; the
        last also where no limit is known.
        """
        for (stage, model_id), t in sorted(self.by_stage.items()):
            span = self.spans.get(stage)
            seconds = span.ms / 1000 if span else None
            limits = self.limits.get(model_id)
            yield {
                "stage": stage,
                "model": model_id,
                **{name: getattr(t, name) for name in _SHOWN},
                **{f"latency_p{percent}_s": t.latency.quantile(percent / 100) for percent in (50, 95, 99)},
                "seconds": seconds,
                "mean_in_flight": t.busy_ms / span.ms if span and span.ms else None,
                "peak_in_flight": span.peak_in_flight if span else None,
                "share_of_limit": limits.share(t, seconds) if limits and seconds else None,
            }

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: the flat rows and what `from_dict` needs beside them."""
        out = []
        for row in self.rows():
            totals = self.by_stage[row["stage"], row["model"]]
            histogram = {str(k): v for k, v in sorted(totals.latency.counts.items())}
            exact = {
                "cost_pico_usd": totals.cost_pico_usd,
                "busy_ms": totals.busy_ms,
                "latency_longest_s": totals.latency.longest_s,
            }
            out.append({**row, **exact, "latency_histogram": histogram})
        return {
            "stages": out,
            "spans": {stage: asdict(span) for stage, span in sorted(self.spans.items())},
            "limits": {model: asdict(limits) for model, limits in sorted(self.limits.items())},
            "quirks": self.quirks,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Accounts:
        counts = (*_COUNTS, "cost_pico_usd")
        out = Accounts(
            spans={stage: Span(**span) for stage, span in data.get("spans", {}).items()},
            limits={model: Limits(**limits) for model, limits in data.get("limits", {}).items()},
        )
        add_quirks(out.quirks, data.get("quirks", {}))
        for row in data.get("stages", []):
            histogram = Counter({int(k): int(v) for k, v in row["latency_histogram"].items()})
            latency = Latencies(histogram, float(row["latency_longest_s"]))
            known = {c: row[c] for c in counts if c in row}  # a snapshot of an earlier version has fewer
            out.by_stage[row["stage"], row["model"]] = CallTotals(**known, latency=latency)
        return out


def quirks_in(*usages: Mapping[str, Any]) -> Quirks:
    """What earlier runs were taught, from `Accounts.to_dict` as it is stored: nothing where it is no such."""
    out: dict[str, dict[str, list[str]]] = {}
    for usage in usages:
        with suppress(AttributeError, TypeError, ValueError):
            add_quirks(out, usage.get("quirks", {}))
    return out


def new_quirks(now: Quirks, *before: Quirks) -> Iterator[tuple[str, list[str]]]:
    """What endpoints taught that stands in none of those before: (endpoint, names)."""
    for model_id, by_endpoint in now.items():
        for endpoint, names in by_endpoint.items():
            known = {name for b in before for name in b.get(model_id, {}).get(endpoint, ())}
            if new := sorted(set(names) - known):
                yield endpoint, new


def add_quirks(known: dict[str, dict[str, list[str]]], learned: Quirks) -> None:
    for model_id, by_endpoint in learned.items():
        for endpoint, names in by_endpoint.items():
            before = known.setdefault(model_id, {}).get(endpoint, ())
            known[model_id][endpoint] = sorted({*before, *names})


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
