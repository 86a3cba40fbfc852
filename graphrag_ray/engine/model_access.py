"""Access to the models for both executors: clients, limiter, offline engine, accounts."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from graphrag_ray.base import logs
from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import FatalCallError, ModelUnavailable, NotConfigured, StoreError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import RERANK, Reply, Request, StreamListener
from graphrag_ray.base.providers import (
    Client,
    LocalProvider,
    RemoteProvider,
    load_provider,
    provider_or_unavailable,
)
from graphrag_ray.llm.accounting import CallRecord, CombinedLimits, Quirks, stored_quirks
from graphrag_ray.llm.gateway import Gateway
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.llm.limits import CallOutcome
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.store.journal import JournalWriter

Ask: TypeAlias = Callable[[Request, str], Awaitable[CallResult[Reply]]]


class StreamingAsk(Protocol):
    """An `Ask` that can stream a chat reply to a listener."""

    def __call__(
        self, request: Request, stage: str, listener: StreamListener | None = None
    ) -> Awaitable[CallResult[Reply]]: ...


OFFLINE_SLOTS = 32
"""Items per process of the offline engine. It runs them one by one, so a few suffice to keep it busy."""
EMBEDDING_SLOTS = 2_048
"""Items of the embedding stage. Many must run concurrently because they share calls."""
UNBOUNDED_SLOTS = 1_024
"""Minimum number of items per worker if the number of calls in flight has no configured bound."""
MAX_SLOTS = 8_192
"""Maximum number of items per worker."""
SLOW_CALL_S, SMALL_CALL_TOKENS = 30.0, 1_000
"""Worst case for which slots must suffice at known rate limits: small calls that all take this long."""


@dataclass(frozen=True)
class Models:
    """The logical models of a run. Picklable, and contains no secrets.

    Attributes:
        quirks: Endpoint quirks learned in earlier runs, as in `Accounts`.
        refused_endpoints: Why an endpoint is not used, by model and endpoint number (see `check_endpoints`).
    """

    by_name: Mapping[str, Model]
    initial_in_flight: int = 64
    max_attempts: int = 8
    force_yes_no: bool | None = None
    hedge: bool = False
    quirks: Quirks = field(default_factory=dict, compare=False)
    refused_endpoints: Mapping[tuple[str, int], str] = field(default_factory=dict, compare=False)

    @classmethod
    def from_settings(cls, settings: Settings, *usages: Mapping[str, Any]) -> Models:
        """Create the models of these settings. `usages` are stored accounts of earlier runs."""
        run, force = settings.run, settings.extraction.force_yes_no
        models, quirks = dict(settings.models), stored_quirks(*usages)
        return cls(models, run.initial_in_flight, run.max_attempts, force, run.hedge, quirks)

    def with_quirks(self, quirks: Quirks) -> Models:
        """Return a copy that also knows these quirks."""
        return replace(self, quirks=stored_quirks({"quirks": self.quirks}, {"quirks": quirks}))

    @property
    def online(self) -> dict[str, Model]:
        return {name: m for name, m in self.by_name.items() if not m.is_local}

    def limits(self) -> dict[str, CombinedLimits]:
        """Return the combined limits of each model's endpoints, by model id."""
        return {model.model_id: CombinedLimits.of(model) for model in self.online.values()}

    def key_variables(self) -> list[str]:
        """Return the names of the environment variables that contain API keys."""
        names = (e.api_key_env for m in self.online.values() for e in m.endpoints)
        return sorted({name for name in names if name})

    def workers_per_node(self, cores: int) -> int:
        """Return 2 (about 900 requests per second), or one per core for the CPU-bound offline engine."""
        return 2 if self.online else max(1, cores)

    def slots(self, stage: str, workers: int, processes: int = 1) -> int:
        """Return how many items each worker runs concurrently: enough that only the models' limits apply.

        `processes` is the number of offline engine processes per worker.
        """
        if stage == "embed":
            return EMBEDDING_SLOTS
        if not self.online:
            return OFFLINE_SLOTS * max(1, processes)
        bounds = [self._bound(m) for m in self.online.values()]
        total = max((b for b in bounds if b is not None), default=0)
        if None in bounds:
            # By Little's law, the number of slow calls in flight at the models' known rate limits.
            rates = [rate for m in self.online.values() if math.isfinite(rate := self._rate(m))]
            total = max([total, *(round(rate * SLOW_CALL_S / 60.0) for rate in rates)])
            return min(MAX_SLOTS, max(UNBOUNDED_SLOTS, -(-total // workers)))
        return max(8, min(MAX_SLOTS, -(-total // workers) + 8))

    def calls_per_second(self, model: Model, quick_call_s: float) -> float:
        """Return the calls per second that the limits allow if each takes `quick_call_s`, or inf."""
        bound = self._bound(model)
        return min(self._rate(model) / 60.0, math.inf if bound is None else bound / quick_call_s)

    def _bound(self, model: Model) -> int | None:
        """Return the configured bound on calls in flight, or None if rate limits or the limiter decide."""
        bounds = [e.max_in_flight for e in model.endpoints]
        return None if None in bounds or not bounds else sum(b for b in bounds if b is not None)

    def _rate(self, model: Model) -> float:
        """Return how many small calls per minute the known rate limits allow; inf if none is known."""
        limits = CombinedLimits.of(model)
        bounds = limits.requests_per_minute, (limits.tokens_per_minute or math.inf) / SMALL_CALL_TOKENS
        return min(bounds[0] or math.inf, bounds[1])


DRAIN_POLL_S = 0.02
DRAIN_FLUSH_S = 1.0
"""Seconds between journal writes while draining."""
DRAIN_S = 30.0
"""How long a stopped sweep waits for calls in flight, because they are already paid for."""


class Gate:
    """A limiter that can be paused for one or more reasons, or shut permanently.

    No request is sent while the gate is paused or shut, but calls in flight can finish. Once it is shut,
    waiting requests wait forever.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._in_flight = 0
        self._shut = False
        self._paused_by = set[str]()
        self._open = asyncio.Event()
        self._open.set()
        self.penalise, self.learn, self.quirks = limiter.penalise, limiter.learn, limiter.quirks

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        while True:
            await self._open.wait()
            permits = await self._limiter.acquire(model, wants, usable)
            if self._open.is_set() and not self._shut:
                self._in_flight += len(permits)
                return permits
            for endpoint, tokens in zip(permits, wants, strict=False):
                self._limiter.settle(model, endpoint, -tokens)
            if self._shut:
                await asyncio.Future()

    def pause(self, reason: str) -> None:
        self._paused_by.add(reason)
        self._open.clear()

    def resume(self, reason: str) -> None:
        """Remove a reason to pause. Requests are sent again once no reason is left."""
        self._paused_by.discard(reason)
        if not self._paused_by:
            self._open.set()

    def shut(self) -> None:
        self._shut = True

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None) -> None:
        self._in_flight -= 1
        self._limiter.settle(model, endpoint, delta_tokens, ended)

    async def drain(self, within_s: float = DRAIN_S, flush: Callable[[], object] = lambda: None) -> None:
        """Shut the gate, and wait up to `within_s` for calls in flight.

        `flush` is called in a thread every DRAIN_FLUSH_S, because the process may be killed while it waits.
        """
        self.shut()
        end, flush_at = time.monotonic() + within_s, time.monotonic()
        while self._in_flight > 0 and time.monotonic() < end:
            if time.monotonic() >= flush_at:
                await asyncio.to_thread(flush)
                flush_at = time.monotonic() + DRAIN_FLUSH_S
            await asyncio.sleep(DRAIN_POLL_S)
        await asyncio.sleep(DRAIN_POLL_S)  # let the dialogues journal the last replies


SLOW_FLUSH_S = 2.0
"""A longer flush pauses requests, so that we do not pay for replies that may not get journalled."""


class JournalGuard:
    """Writes a sweep's journal, and pauses the gate while the storage rejects writes.

    The store retries a write for about 15 seconds. During this time calls in flight can finish but no request
    is sent. After that the sweep ends with the storage error.
    """

    def __init__(self, writer: JournalWriter, gate: Gate) -> None:
        self._writer, self._gate = writer, gate
        self._flushed_at = time.monotonic()

    @property
    def lag_s(self) -> float:
        """Age of the oldest row that is not journalled yet, or 0."""
        return time.monotonic() - self._flushed_at if self._writer.pending else 0.0

    async def flush(self) -> None:
        """Journal pending rows. After a StoreError they stay pending, and no requests are sent."""
        slow = asyncio.get_running_loop().call_later(SLOW_FLUSH_S, self._gate.pause, "storage")
        started_at = time.monotonic()
        try:
            await asyncio.to_thread(self._writer.flush)
        except StoreError:
            self._gate.pause("storage")
            raise
        finally:
            slow.cancel()
        self._flushed_at = started_at
        self._gate.resume("storage")

    async def close(self) -> None:
        """Journal pending rows at the end of a sweep. Raises a StoreError that says how much was lost."""
        try:
            await self.flush()
        except StoreError as e:
            rows, seconds = self._writer.pending, time.monotonic() - self._flushed_at
            if not rows:
                raise
            raise StoreError(
                f"{e}. Replies of the last {seconds:.0f} s ({rows:,} journal rows) could not be stored and "
                "will be requested again."
            ) from e


@asynccontextmanager
async def open_gateway(
    models: Models,
    limiter: Limiter | None,
    on_call: Callable[[CallRecord], None],
    ask_key: Callable[[str], str | None] | None = None,
    **runtime: Any,
) -> AsyncIterator[StreamingAsk]:
    """Open clients for the duration of the block, and yield a function that sends requests.

    Args:
        limiter: None creates one, which suits a few questions.
        ask_key: Looks up API keys that are neither in the environment nor in a file.
        runtime: Other fields of `llm.model_client.Runtime`.
    """
    online = models.online
    gateway = Gateway(
        online,
        limiter or LocalLimiter(online, models.initial_in_flight, lend_first=True),
        {name: await asyncio.to_thread(connect_clients, models, name, ask_key) for name in online},
        {
            n: p
            for n, m in models.by_name.items()
            if isinstance(p := provider_or_unavailable(m), LocalProvider)
        },
        on_call=on_call,
        max_attempts=models.max_attempts,
        hedge=models.hedge,
        **runtime,
    )
    try:
        yield gateway.answer
    finally:
        await gateway.close()


def connect_clients(
    models: Models, name: str, ask_key: Callable[[str], str | None] | None = None
) -> Sequence[Client | FatalCallError]:
    """Create a client for each endpoint of a model, or an error that says why it is unusable. Blocks."""
    model = models.by_name[name]
    provider = load_provider(model)
    assert isinstance(provider, RemoteProvider)
    quirks = models.quirks.get(model.model_id, {})
    clients = provider.connect(model, os.environ, ask_key, models.force_yes_no, quirks)
    logs.redact_values(c.key.get_secret_value() for c in clients if isinstance(c, Client) and c.key)
    refused = {i: why for (model_name, i), why in models.refused_endpoints.items() if model_name == name}
    return [
        c if isinstance(c, FatalCallError) or i not in refused else FatalCallError(refused[i])
        for i, c in enumerate(clients)
    ]


@dataclass(frozen=True)
class EndpointProblem:
    """Why an endpoint cannot be used.

    `final` problems last until the user fixes them; others may go away. `asked` is False if no request could
    be sent, for example because the API key is missing.
    """

    model: str
    endpoint: int
    why: str
    final: bool
    asked: bool = True

    def __str__(self) -> str:
        return f"models.{self.model}: {self.why}"


def check_endpoints(
    models: Models, settings: Settings, stages: Iterable[str], may_reuse: bool, notify: Callable[[str], None]
) -> Models:
    """Probe the endpoints that `stages` use, report problems, and return the models without those endpoints.

    Raises:
        ModelUnavailable, NotConfigured: No endpoint of a model works, and the run cannot reuse earlier
            replies (`may_reuse`).
    """
    problems = probe_endpoints(models, settings, stages)
    names = {p.model for p in problems}
    unusable = {n for n in names if sum(p.model == n for p in problems) == len(models.by_name[n].endpoints)}
    if unusable and not may_reuse:
        tried = any(p.asked for p in problems if p.model in unusable)
        raise (ModelUnavailable if tried else NotConfigured)("; ".join(map(str, problems)))
    for problem in problems:
        notify(str(problem))
    if unusable:
        notify(
            "Continuing with journalled replies. The run stops at the first request that needs this model."
        )
    refused = {(p.model, p.endpoint): p.why for p in problems if p.final or p.model in unusable}
    return replace(models, refused_endpoints=refused)


def probe_endpoints(models: Models, settings: Settings, stages: Iterable[str]) -> list[EndpointProblem]:
    """Find problems with the endpoints of the models that `stages` use.

    Takes a few seconds. May be called while an event loop is running. Rerankers are not probed, because they
    answer neither chat requests nor, in general, a request to list models.
    """
    to_probe = {
        (name, stage == "embed")
        for stage in stages
        if stage != RERANK and (name := settings.model_name(stage)) in models.online
    }

    async def probe_model(name: str, embeds: bool) -> list[EndpointProblem]:
        problems: list[EndpointProblem] = []
        for i, client in enumerate(await asyncio.to_thread(connect_clients, models, name)):
            if isinstance(client, FatalCallError):
                problems.append(EndpointProblem(name, i, str(client), final=True, asked=False))
                continue
            try:
                if (why := await client.probe(embeds)) is not None:
                    problems.append(EndpointProblem(name, i, str(why), isinstance(why, FatalCallError)))
            finally:
                await client.close()
        return problems

    async def probe_all() -> list[EndpointProblem]:
        return [
            p for found in await asyncio.gather(*(probe_model(*m) for m in sorted(to_probe))) for p in found
        ]

    if not to_probe:
        return []
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        return thread.submit(asyncio.run, probe_all()).result()
