"""Account for model calls, tokens, costs and latencies per stage and model. Pure; merging is commutative."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from graphrag_ray.base.connection_settings import Model, Price
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.pricing import PICO_USD, cost_pico_usd

# Names of endpoint quirks (`quirks.NAMES`), by model id and endpoint.
Quirks: TypeAlias = Mapping[str, Mapping[str, Collection[str]]]
CallStatus: TypeAlias = Literal["ok", "transient", "permanent", "fatal", "cancelled"]

_MIN_LATENCY_S = 0.001
_BUCKETS_PER_DOUBLING = 8


@dataclass
class InFlight:
    """Requests sent but not yet answered.

    Tokens and costs are estimates. They include failed attempts of unfinished calls.
    """

    calls: int = 0
    tokens: int = 0
    cost_pico_usd: int = 0

    def add(self, other: InFlight, sign: Literal[1, -1] = 1) -> None:
        self.calls += sign * other.calls
        self.tokens += sign * other.tokens
        self.cost_pico_usd += sign * other.cost_pico_usd

    @staticmethod
    def sum(parts: Iterable[InFlight]) -> InFlight:
        total = InFlight()
        for part in parts:
            total.add(part)
        return total


@dataclass(slots=True)
class CallRecord:
    """One logical call with all its attempts: a chat request, or a pack of embedding requests.

    Attributes:
        endpoint: Address used by the last attempt. Empty for the offline engine.
        status: "ok", or the kind of the last failure.
        usage: Tokens of all attempts, as reported, or estimated for `unanswered` ones.
        cost_pico_usd: None if the price is unknown.
        latency_s: Duration of the last attempt, without waiting for the limiter.
        attempts: Requests sent, without hedges. `excused` ones do not count against max_attempts.
        busy_s: Seconds in flight, summed over all requests.
        hedged: Number of hedges. Cancelled requests are counted with the usage of the successful one.
        unanswered: Estimated usage of requests that were not answered but may be billed.
        learned: Quirks that the endpoint revealed during this call (`quirks.NAMES`).
        sent: Expected usage of the attempt in flight, and its price.
        failed_attempts: Usage of failed attempts, which counts as in flight until the call has ended.
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
    failed_attempts: InFlight = field(default_factory=InFlight)

    @property
    def cost_usd(self) -> float | None:
        return None if self.cost_pico_usd is None else self.cost_pico_usd / PICO_USD

    def begin(self, endpoint: str, usage: Usage, price: Price | None) -> InFlight:
        """Count an attempt about to be sent, and return its expected usage. An unknown price counts as 0."""
        self.attempts += 1
        self.endpoint, self.sent = endpoint, (usage, price)
        tokens = usage.prompt_tokens + usage.completion_tokens
        return InFlight(1, tokens, cost_pico_usd(usage, price) or 0)

    def add_attempt(self, usage: Usage, price: Price | None) -> InFlight:
        """Add the usage of an attempt, and return it as an `InFlight` with zero calls."""
        cost = cost_pico_usd(usage, price)
        self.cost_pico_usd = _sum(self.cost_pico_usd, cost)
        self.usage = sum_usage([self.usage, usage])
        return InFlight(0, usage.prompt_tokens + usage.completion_tokens, cost or 0)

    def add_failed_attempt(self, usage: Usage, price: Price | None) -> InFlight:
        """Like `add_attempt`, for a failed attempt."""
        added = self.add_attempt(usage, price)
        self.failed_attempts.add(added)
        return added

    def abandon(self) -> InFlight:
        """Like `add_failed_attempt`, for the attempt in flight if it will not be answered."""
        if self.sent is None:
            return InFlight()
        (usage, price), self.sent = self.sent, None
        self.unanswered += (replace(usage, reported=False),)
        return self.add_failed_attempt(self.unanswered[-1], price)

    def add_hedge(self, other: CallRecord) -> None:
        """Add the record of a hedge."""
        self.hedged += other.attempts
        self.busy_s += other.busy_s
        self.rate_limited += other.rate_limited
        self.cost_pico_usd = _sum(self.cost_pico_usd, other.cost_pico_usd)
        self.usage = sum_usage([self.usage, other.usage])
        self.unanswered += other.unanswered
        self.failed_attempts.add(other.failed_attempts)
        self.learned |= other.learned


def sum_usage(usages: Iterable[Usage]) -> Usage:
    prompt = completion = cached = searches = 0
    reported = True
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_tokens
        searches += usage.searches
        reported = reported and usage.reported
    return Usage(prompt, completion, cached, reported, searches)


@dataclass
class Latencies:
    """A histogram of durations of at least 1 ms with buckets 9% wide, and the longest duration."""

    counts: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        bucket = math.floor(math.log2(max(seconds, _MIN_LATENCY_S) / _MIN_LATENCY_S) * _BUCKETS_PER_DOUBLING)
        self.counts[bucket] += 1
        self.longest_s = max(self.longest_s, seconds)

    @staticmethod
    def midpoint_s(bucket: int) -> float:
        """Return the duration at the midpoint of a bucket."""
        return _MIN_LATENCY_S * math.exp2((bucket + 0.5) / _BUCKETS_PER_DOUBLING)

    def quantile(self, share: float) -> float | None:
        """Return the duration, to within 9%, that this share of calls did not exceed. None without calls."""
        rank = math.ceil(share * sum(self.counts.values()))
        cumulative = 0
        for bucket in sorted(self.counts):
            cumulative += self.counts[bucket]
            if cumulative >= max(rank, 1):
                return min(self.longest_s, _MIN_LATENCY_S * math.exp2((bucket + 1) / _BUCKETS_PER_DOUBLING))
        return None

    def merge(self, other: Latencies) -> None:
        self.counts.update(other.counts)
        self.longest_s = max(self.longest_s, other.longest_s)


@dataclass
class CallTotals:
    """Sums over logical calls, including all their requests.

    Tokens of `unanswered` requests are estimates. `unreported` counts calls for which the endpoint
    reported no usage, so we counted the tokens ourselves. The cost is None if any price was unknown.
    `busy_ms` is the time in flight in milliseconds.
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

    def merge(self, other: CallTotals) -> None:
        self.latency.merge(other.latency)
        self.cost_pico_usd = _sum(self.cost_pico_usd, other.cost_pico_usd)
        for count in _COUNTS:
            setattr(self, count, getattr(self, count) + getattr(other, count))


_COUNTS = [f.name for f in fields(CallTotals) if f.name not in ("latency", "cost_pico_usd")]
_DISPLAYED = (
    *("calls", "requests", "retries", "hedged", "rate_limited", "failed", "unanswered", "unreported"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd"),
)


@dataclass
class StageTiming:
    """Duration of a stage's sweeps, and its maximum number of calls in flight."""

    ms: int = 0
    peak_in_flight: int = 0

    def merge(self, other: StageTiming) -> None:
        self.ms += other.ms
        self.peak_in_flight = max(self.peak_in_flight, other.peak_in_flight)


@dataclass(frozen=True)
class CombinedLimits:
    """The combined rate limits of a model's endpoints. None if an endpoint has no known limit."""

    requests_per_minute: float | None
    tokens_per_minute: float | None

    @staticmethod
    def of(model: Model) -> CombinedLimits:
        return CombinedLimits(
            sum_known([e.requests_per_minute for e in model.endpoints]),
            sum_known([e.tokens_per_minute for e in model.endpoints]),
        )

    def share(self, totals: CallTotals, seconds: float) -> float | None:
        """Return the used share of the tighter limit over a time span, or None if no limit is known."""
        used = ((totals.requests, self.requests_per_minute), (totals.total_tokens, self.tokens_per_minute))
        shares = [amount / (limit * seconds / 60) for amount, limit in used if limit and seconds > 0]
        return max(shares, default=None)


@dataclass
class Accounts:
    """Totals by (stage, model id), time spans by stage, and rate limits and quirks by model id."""

    by_stage: dict[tuple[str, str], CallTotals] = field(default_factory=dict)
    spans: dict[str, StageTiming] = field(default_factory=dict)
    limits: dict[str, CombinedLimits] = field(default_factory=dict)
    quirks: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, record: CallRecord) -> None:
        self.by_stage.setdefault((record.stage, record.model_id), CallTotals()).add(record)
        if record.learned:
            add_quirks(self.quirks, {record.model_id: {record.endpoint: record.learned}})

    def merge(self, other: Accounts) -> None:
        """Add the totals of other accounts to these."""
        for key, totals in other.by_stage.items():
            self.by_stage.setdefault(key, CallTotals()).merge(totals)
        for stage, span in other.spans.items():
            self.spans.setdefault(stage, StageTiming()).merge(span)
        self.limits.update(other.limits)
        add_quirks(self.quirks, other.quirks)

    def take(self) -> Accounts:
        """Return the accounts since the last `take`, and reset these."""
        taken = Accounts(self.by_stage, quirks=self.quirks)
        self.by_stage, self.quirks = {}, {}
        return taken

    @staticmethod
    def merged(many: Iterable[Accounts]) -> Accounts:
        merged = Accounts()
        for accounts in many:
            merged.merge(accounts)
        return merged

    @property
    def unpriced_stage(self) -> str:
        """A stage with calls of unknown price, or "" if there is none."""
        return next((stage for (stage, _), t in self.by_stage.items() if t.cost_pico_usd is None), "")

    @property
    def total(self) -> CallTotals:
        """Totals over all stages and models."""
        total = CallTotals()
        for totals in self.by_stage.values():
            total.merge(totals)
        return total

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one flat row per stage and model, sorted, for display and `--json`.

        seconds, mean_in_flight, peak_in_flight and share_of_limit are None if no span was recorded.
        share_of_limit is also None if no limit is known.
        """
        for (stage, model_id), totals in sorted(self.by_stage.items()):
            span = self.spans.get(stage)
            seconds = span.ms / 1000 if span else None
            limits, latency = self.limits.get(model_id), totals.latency
            yield {
                "stage": stage,
                "model": model_id,
                **{name: getattr(totals, name) for name in _DISPLAYED},
                **{f"latency_p{percent}_s": latency.quantile(percent / 100) for percent in (50, 95, 99)},
                "seconds": seconds,
                "mean_in_flight": totals.busy_ms / span.ms if span and span.ms else None,
                "peak_in_flight": span.peak_in_flight if span else None,
                "share_of_limit": limits.share(totals, seconds) if limits and seconds else None,
            }

    def to_dict(self) -> dict[str, Any]:
        """Serialise to JSON values: the flat rows, plus the exact values for `from_dict`."""
        stages = []
        for row in self.rows():
            totals = self.by_stage[row["stage"], row["model"]]
            exact = {
                "cost_pico_usd": totals.cost_pico_usd,
                "busy_ms": totals.busy_ms,
                "latency_longest_s": totals.latency.longest_s,
                "latency_histogram": {str(k): v for k, v in sorted(totals.latency.counts.items())},
            }
            stages.append({**row, **exact})
        return {
            "stages": stages,
            "spans": {stage: asdict(span) for stage, span in sorted(self.spans.items())},
            "limits": {model: asdict(limits) for model, limits in sorted(self.limits.items())},
            "quirks": self.quirks,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Accounts:
        accounts = Accounts(
            spans={stage: StageTiming(**span) for stage, span in data.get("spans", {}).items()},
            limits={model: CombinedLimits(**limits) for model, limits in data.get("limits", {}).items()},
        )
        add_quirks(accounts.quirks, data.get("quirks", {}))
        for row in data.get("stages", []):
            histogram = Counter({int(k): int(v) for k, v in row["latency_histogram"].items()})
            latency = Latencies(histogram, float(row["latency_longest_s"]))
            # Snapshots of earlier versions lack some counts.
            counts = {name: row[name] for name in (*_COUNTS, "cost_pico_usd") if name in row}
            accounts.by_stage[row["stage"], row["model"]] = CallTotals(**counts, latency=latency)
        return accounts


def stored_quirks(*usages: Mapping[str, Any]) -> Quirks:
    """Return the quirks in stored accounts (`Accounts.to_dict`). Ignores malformed accounts."""
    quirks: dict[str, dict[str, list[str]]] = {}
    for usage in usages:
        with suppress(AttributeError, TypeError, ValueError):
            add_quirks(quirks, usage.get("quirks", {}))
    return quirks


def new_quirks(current: Quirks, *earlier: Quirks) -> Iterator[tuple[str, list[str]]]:
    """Yield each endpoint with its quirks that no earlier mapping contains."""
    for model_id, by_endpoint in current.items():
        for endpoint, names in by_endpoint.items():
            known = {name for b in earlier for name in b.get(model_id, {}).get(endpoint, ())}
            if new := sorted(set(names) - known):
                yield endpoint, new


def add_quirks(known: dict[str, dict[str, list[str]]], learned: Quirks) -> None:
    for model_id, by_endpoint in learned.items():
        for endpoint, names in by_endpoint.items():
            previous = known.setdefault(model_id, {}).get(endpoint, ())
            known[model_id][endpoint] = sorted({*previous, *names})


def sum_known(values: Sequence[float | None]) -> float | None:
    """Return the sum of values, or None if there are none or one of them is unknown."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers and len(numbers) == len(values) else None


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
