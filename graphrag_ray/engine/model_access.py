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
from graphrag_ray.base.errors import FatalCallError, ModelRefused, NotConfigured, StoreError
from graphrag_ray.base.index_settings import Model, Settings
from graphrag_ray.base.messages import Reply, Request, StreamListener
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
    """An Ask that can stream a chat reply to a listener."""

    def __call__(
        self, request: Request, stage: str, listener: StreamListener | None = None
    ) -> Awaitable[CallResult[Reply]]: ...


OFFLINE_SLOTS = 32
"""Items per process of the offline engine, which runs them one after another."""
EMBEDDING_SLOTS = 2_048
"""Embeddings share calls, so a large number of items must run at once to fill one."""
UNBOUNDED_SLOTS = 1_024
"""Minimum items per worker if only the limiter decides how many calls are in flight."""
MAX_SLOTS = 8_192
SLOW_CALL_S, SMALL_CALL_TOKENS = 30.0, 1_000
"""With known rate limits, slots suffice for small calls sent at the limit that are all slow."""


@dataclass(frozen=True)
class Models:
    """The logical models of a run. Picklable and without secrets.

    Attributes:
        quirks: What endpoints taught earlier runs, as in `Accounts`.
        refused_endpoints: Why endpoints are not asked, by model and endpoint number (see `probed`).
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
        """The models of these settings; `usages` are stored accounts of earlier runs."""
        run, force = settings.run, settings.extraction.force_yes_no
        models, quirks = dict(settings.models), stored_quirks(*usages)
        return cls(models, run.initial_in_flight, run.max_attempts, force, run.hedge, quirks)

    def with_quirks(self, quirks: Quirks) -> Models:
        """A copy with quirks that were learned meanwhile."""
        return replace(self, quirks=stored_quirks({"quirks": self.quirks}, {"quirks": quirks}))

    @property
    def online(self) -> dict[str, Model]:
        return {name: m for name, m in self.by_name.items() if not m.is_local}

    def limits(self) -> dict[str, CombinedLimits]:
        """Combined limits of the endpoints of each model, by model id."""
        return {model.model_id: CombinedLimits.of(model) for model in self.online.values()}

    def key_variables(self) -> list[str]:
        """Names of the environment variables that hold API keys."""
        names = (e.api_key_env for m in self.online.values() for e in m.endpoints)
        return sorted({name for name in names if name})

    def workers_per_node(self, cores: int) -> int:
        """Two workers carry some 900 requests a second; the offline engine computes and uses every core."""
        return 2 if self.online else max(1, cores)

    def slots(self, stage: str, workers: int, processes: int = 1) -> int:
        """Items that each of `workers` workers runs at once, enough that only the models' limits bind.

        `processes` are those of the worker in which the offline engine runs.
        """
        if stage == "embed":
            return EMBEDDING_SLOTS
        if not self.online:
            return OFFLINE_SLOTS * max(1, processes)
        bounds = [self._bound(m) for m in self.online.values()]
        most = max((b for b in bounds if b is not None), default=0)
        if None in bounds:
            # Slow calls in flight at the models' known rate limits, by Little's law.
            rates = [rate for m in self.online.values() if math.isfinite(rate := self._rate(m))]
            most = max([most, *(round(rate * SLOW_CALL_S / 60.0) for rate in rates)])
            return min(MAX_SLOTS, max(UNBOUNDED_SLOTS, -(-most // workers)))
        return max(8, min(MAX_SLOTS, -(-most // workers) + 8))

    def calls_per_second(self, model: Model, quick_call_s: float) -> float:
        """Calls that the limits allow if each takes at least `quick_call_s`; inf if no limit is known."""
        bound = self._bound(model)
        return min(self._rate(model) / 60.0, math.inf if bound is None else bound / quick_call_s)

    def _bound(self, model: Model) -> int | None:
        """Configured bound on calls in flight; None if rate limits or the adaptive limiter decide."""
        bounds = [e.max_in_flight for e in model.endpoints]
        return None if None in bounds or not bounds else sum(b for b in bounds if b is not None)

    def _rate(self, model: Model) -> float:
        """Small calls a minute that the model's known rate limits allow; inf if none is known."""
        limits = CombinedLimits.of(model)
        calls = limits.requests_per_minute, (limits.tokens_per_minute or math.inf) / SMALL_CALL_TOKENS
        return min(calls[0] or math.inf, calls[1])


DRAIN_POLL_S = 0.02
DRAIN_FLUSH_S = 1.0
DRAIN_S = 30.0
"""How long a stopped sweep waits for calls in flight, which are paid for."""


class Gate:
    """A limiter that can be shut for good, or held for one or several reasons.

    While it is held nothing is sent. Once it is shut, waiting requests wait forever. Calls in flight return
    in both cases.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._in_flight = 0
        self._shut = False
        self._held_by = set[str]()
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

    def hold(self, reason: str) -> None:
        self._held_by.add(reason)
        self._open.clear()

    def resume(self, reason: str) -> None:
        """End a hold. Requests are sent again once no reason is left."""
        self._held_by.discard(reason)
        if not self._held_by:
            self._open.set()

    def shut(self) -> None:
        self._shut = True

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None) -> None:
        self._in_flight -= 1
        self._limiter.settle(model, endpoint, delta_tokens, ended)

    async def drain(self, within_s: float = DRAIN_S, flush: Callable[[], object] = lambda: None) -> None:
        """Shut, and wait up to `within_s` for calls in flight.

        Meanwhile `flush` is called in a thread every DRAIN_FLUSH_S, since we may be killed.
        """
        self.shut()
        end, flush_at = time.monotonic() + within_s, time.monotonic()
        while self._in_flight > 0 and time.monotonic() < end:
            if time.monotonic() >= flush_at:
                await asyncio.to_thread(flush)
                flush_at = time.monotonic() + DRAIN_FLUSH_S
            await asyncio.sleep(DRAIN_POLL_S)
        await asyncio.sleep(DRAIN_POLL_S)  # the dialogues receive the replies and journal them


SLOW_FLUSH_S = 2.0
"""A longer flush holds the gate: no request is paid for whose reply may not be journalled."""


class JournalGuard:
    """Writes a sweep's journal, and holds the gate while the storage does not accept it.

    The store retries a write for about 15 seconds. Meanwhile calls in flight return and no others are sent.
    After that the sweep ends with the storage's error.
    """

    def __init__(self, writer: JournalWriter, gate: Gate) -> None:
        self._writer, self._gate = writer, gate
        self._flushed_at = time.monotonic()

    @property
    def lag_s(self) -> float:
        """Age of the oldest row that is not journalled; 0 if there is none."""
        return time.monotonic() - self._flushed_at if self._writer.pending else 0.0

    async def flush(self) -> None:
        """Journal pending rows. After a StoreError they stay pending and no requests are sent."""
        slow = asyncio.get_running_loop().call_later(SLOW_FLUSH_S, self._gate.hold, "storage")
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._writer.flush)
        except StoreError:
            self._gate.hold("storage")
            raise
        finally:
            slow.cancel()
        self._flushed_at = began
        self._gate.resume("storage")

    async def close(self) -> None:
        """Journal pending rows at the end of a sweep. Raises StoreError that says what is lost."""
        try:
            await self.flush()
        except StoreError as e:
            rows, seconds = self._writer.pending, time.monotonic() - self._flushed_at
            if not rows:
                raise
            raise StoreError(
                f"{e}. Replies of the last {seconds:.0f} s ({rows:,} rows of the journal) could not be kept "
                "and will be requested again."
            ) from e


@asynccontextmanager
async def open_gateway(
    models: Models,
    limiter: Limiter | None,
    on_call: Callable[[CallRecord], None],
    ask_key: Callable[[str], str | None] | None = None,
    **runtime: Any,
) -> AsyncIterator[StreamingAsk]:
    """Open clients for the duration of the block, and yield a function that asks.

    Args:
        limiter: None creates one, for a question or two.
        ask_key: Looks up API keys that neither the environment nor a file holds.
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
    """A client for each endpoint of a model, or why there is none. Blocks."""
    model = models.by_name[name]
    provider = load_provider(model)
    assert isinstance(provider, RemoteProvider)
    quirks = models.quirks.get(model.model_id, {})
    clients = provider.connect(model, os.environ, ask_key, models.force_yes_no, quirks)
    logs.hide_values(c.key.get_secret_value() for c in clients if isinstance(c, Client) and c.key)
    why = {
        i: FatalCallError(text)
        for (model_name, i), text in models.refused_endpoints.items()
        if model_name == name
    }
    return [c if isinstance(c, FatalCallError) else why.get(i, c) for i, c in enumerate(clients)]


@dataclass(frozen=True)
class EndpointProblem:
    """An endpoint that does not answer until somebody changes something (`final`), or for the moment.

    `asked` is False if it could not even be asked, for example without a key.
    """

    model: str
    endpoint: int
    why: str
    final: bool
    asked: bool = True

    def __str__(self) -> str:
        return f"models.{self.model}: {self.why}"


def check_endpoints(
    models: Models, settings: Settings, stages: Iterable[str], may_reuse: bool, say: Callable[[str], None]
) -> Models:
    """Probe the endpoints that `stages` ask, say what is wrong, and return the models with these findings.

    Raises:
        ModelRefused, NotConfigured: No endpoint of a model answers, unless the run `may_reuse` earlier
            replies.
    """
    problems = probe_endpoints(models, settings, stages)
    names = {p.model for p in problems}
    lost = {n for n in names if sum(p.model == n for p in problems) == len(models.by_name[n].endpoints)}
    if lost and not may_reuse:
        tried = any(p.asked for p in problems if p.model in lost)
        raise (ModelRefused if tried else NotConfigured)("; ".join(map(str, problems)))
    for problem in problems:
        say(str(problem))
    if lost:
        say("Continuing with the replies in the journal; the first new request ends the run.")
    refused = {(p.model, p.endpoint): p.why for p in problems if p.final or p.model in lost}
    return replace(models, refused_endpoints=refused)


def probe_endpoints(models: Models, settings: Settings, stages: Iterable[str]) -> list[EndpointProblem]:
    """Find what is wrong with the endpoints of the models that `stages` ask.

    Takes a few seconds and works while an event loop runs.
    """
    to_probe = {
        (name, stage == "embed") for stage in stages if (name := settings.model_name(stage)) in models.online
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
            p for some in await asyncio.gather(*(probe_model(*m) for m in sorted(to_probe))) for p in some
        ]

    if not to_probe:
        return []
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        return thread.submit(asyncio.run, probe_all()).result()
