"""Opening the way to the models, for whichever executor: clients, limiter, offline engine, accounts."""

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
from graphrag_ray.base.messages import Listener, Reply, Request
from graphrag_ray.base.providers import Client, LocalProvider, RemoteProvider, provider_of, provider_to_ask
from graphrag_ray.llm.accounting import CallRecord, Limits, Quirks, quirks_in
from graphrag_ray.llm.gateway import Gateway
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.llm.limits import Ended
from graphrag_ray.llm.model_client import Called
from graphrag_ray.store.journal import JournalWriter

Ask: TypeAlias = Callable[[Request, str], Awaitable[Called[Reply]]]


class AskAloud(Protocol):
    """An Ask that can let somebody hear a chat reply while it is written."""

    def __call__(
        self, request: Request, stage: str, listener: Listener | None = None
    ) -> Awaitable[Called[Reply]]: ...


OFFLINE_PLACES = 32
"""Items that a worker of the offline engine holds: they run one after another anyway."""

EMBEDDING_PLACES = 2_048
"""Embeddings are packed many to a call, so many items must run at once to fill one."""

UNBOUNDED_PLACES = 1_024
"""Items of a worker, at least, where the limiter alone decides how many calls are in flight."""
MOST_PLACES = 8_192
SLOW_CALL_S, SMALL_CALL_TOKENS = 30.0, 1_000
"""Where limits are known, there are places for what they let through while a slow call takes its time."""


@dataclass(frozen=True)
class Models:
    """The logical models of a run. Picklable, and without secrets.

    quirks   what endpoints taught earlier runs, as in `Accounts`
    refused  by model and place among its endpoints, why one is not asked (`probed`)
    """

    by_name: Mapping[str, Model]
    default_in_flight: int = 64
    max_attempts: int = 8
    force_yes_no: bool | None = None
    hedge: bool = False
    quirks: Quirks = field(default_factory=dict, compare=False)
    refused: Mapping[tuple[str, int], str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, settings: Settings, *usages: Mapping[str, Any]) -> Models:
        """usages: of earlier runs, as manifests and records of runs hold it."""
        run, force = settings.run, settings.extraction.force_yes_no
        models, quirks = dict(settings.models), quirks_in(*usages)
        return cls(models, run.default_in_flight, run.max_attempts, force, run.hedge, quirks)

    def knowing(self, quirks: Quirks) -> Models:
        """The same, with what endpoints taught meanwhile."""
        return replace(self, quirks=quirks_in({"quirks": self.quirks}, {"quirks": quirks}))

    @property
    def online(self) -> dict[str, Model]:
        return {name: m for name, m in self.by_name.items() if not m.is_local}

    def limits(self) -> dict[str, Limits]:
        """What the endpoints of each model allow together, by model id."""
        return {model.model_id: Limits.of(model) for model in self.online.values()}

    def key_variables(self) -> list[str]:
        """Names of the environment variables that hold keys."""
        names = (e.api_key_env for m in self.online.values() for e in m.endpoints)
        return sorted({name for name in names if name})

    def workers_per_node(self, cores: int) -> int:
        """Two carry some 900 requests a second; the offline engine computes, so it wants every core."""
        return 2 if self.online else max(1, cores)

    def places(self, stage: str, workers: int, processes: int = 1) -> int:
        """Items that one of `workers` workers runs at once: enough that limits, not places, bind.

        processes: of this worker, in which the offline engine answers
        """
        if stage == "embed":
            return EMBEDDING_PLACES
        if not self.online:
            return OFFLINE_PLACES * max(1, processes)
        bounds = [self._bound(m) for m in self.online.values()]
        most = max((b for b in bounds if b is not None), default=0)
        if None in bounds:
            # Slow calls in flight at the models' known rate limits, by Little's law.
            rates = [rate for m in self.online.values() if math.isfinite(rate := self._rate(m))]
            most = max([most, *(round(rate * SLOW_CALL_S / 60.0) for rate in rates)])
            return min(MOST_PLACES, max(UNBOUNDED_PLACES, -(-most // workers)))
        return max(8, min(MOST_PLACES, -(-most // workers) + 8))

    def calls_per_second(self, model: Model, quick_call_s: float) -> float:
        """The most calls that a model's limits allow, where one takes at least so long; inf where none is
        known."""
        bound = self._bound(model)
        return min(self._rate(model) / 60.0, math.inf if bound is None else bound / quick_call_s)

    def _bound(self, model: Model) -> int | None:
        """Calls in flight that a model's endpoints allow; None where rate limits, or what an endpoint turns
        out to bear, decide."""
        bounds = [e.max_in_flight for e in model.endpoints]
        return None if None in bounds or not bounds else sum(b for b in bounds if b is not None)

    def _rate(self, model: Model) -> float:
        """Small calls a minute at the model's known rate limits; inf where none is known."""
        limits = Limits.of(model)
        calls = limits.requests_per_minute, (limits.tokens_per_minute or math.inf) / SMALL_CALL_TOKENS
        return min(calls[0] or math.inf, calls[1])


DRAIN_LOOK_S = 0.02
DRAIN_FLUSH_S = 1.0
DRAIN_S = 30.0
"""How long a stopped sweep waits for the calls that are in flight: they are paid for."""


class Gate:
    """A limiter that can be shut: whoever waits then waits in vain, what is in flight comes back. And that
    can be held, for one reason or several: then nothing is sent until it goes on."""

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
            places = await self._limiter.acquire(model, wants, usable)
            if self._open.is_set() and not self._shut:
                self._in_flight += len(places)
                return places
            for endpoint, tokens in zip(places, wants, strict=False):
                self._limiter.settle(model, endpoint, -tokens)
            if self._shut:
                await asyncio.Future()

    def hold(self, why: str) -> None:
        """Send nothing more for now; what is in flight comes back."""
        self._held_by.add(why)
        self._open.clear()

    def go_on(self, why: str) -> None:
        """The opposite of `hold`, for the same reason."""
        self._held_by.discard(why)
        if not self._held_by:
            self._open.set()

    def shut(self) -> None:
        """Send nothing more, ever; what is in flight comes back."""
        self._shut = True

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: Ended | None = None) -> None:
        self._in_flight -= 1
        self._limiter.settle(model, endpoint, delta_tokens, ended)

    async def drain(self, within_s: float = DRAIN_S, flush: Callable[[], object] = lambda: None) -> None:
        """Shut, and wait, not for ever, for what is in flight: it is paid for, and shall be journalled.

        flush: called in a thread, at once and every DRAIN_FLUSH_S: whoever told us to stop may not wait.
        """
        self.shut()
        end = time.monotonic() + within_s
        flush_at = time.monotonic()
        while self._in_flight > 0 and time.monotonic() < end:
            if time.monotonic() >= flush_at:
                await asyncio.to_thread(flush)
                flush_at = time.monotonic() + DRAIN_FLUSH_S
            await asyncio.sleep(DRAIN_LOOK_S)
        await asyncio.sleep(DRAIN_LOOK_S)  # the replies are handed on and noted


LATE_S = 2.0
"""A flush that takes longer holds up asking: what cannot be journalled shall not be paid for."""


class Keeper:
    """Writes a sweep's journal, and holds up what is asked while the storage does not take it.

    The store tries a write again for some 15 seconds. In that time calls in flight come back, and no others
    are sent; after it the sweep ends with the storage's error.
    """

    def __init__(self, writer: JournalWriter, gate: Gate) -> None:
        self._writer, self._gate = writer, gate
        self._kept_at = time.monotonic()

    @property
    def lag_s(self) -> float:
        """For how long there has been something that is not journalled; 0 where all is."""
        return time.monotonic() - self._kept_at if self._writer.pending else 0.0

    async def flush(self) -> None:
        """Journal what is pending. Raises StoreError: it stays pending, and nothing more is asked."""
        late = asyncio.get_running_loop().call_later(LATE_S, self._gate.hold, "storage")
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._writer.flush)
        except StoreError:
            self._gate.hold("storage")
            raise
        finally:
            late.cancel()
        self._kept_at = began
        self._gate.go_on("storage")

    async def close(self) -> None:
        """Journal what is pending at the end of a sweep. Raises StoreError, saying what is lost."""
        try:
            await self.flush()
        except StoreError as e:
            rows, seconds = self._writer.pending, time.monotonic() - self._kept_at
            if not rows:
                raise
            raise StoreError(
                f"{e}. What was answered in the last {seconds:.0f} s ({rows:,} rows of the journal) could "
                "not be kept, and is asked again then"
            ) from e


@asynccontextmanager
async def open_gateway(
    models: Models,
    limiter: Limiter | None,
    on_call: Callable[[CallRecord], None],
    ask_key: Callable[[str], str | None] | None = None,
    **runtime: Any,
) -> AsyncIterator[AskAloud]:
    """A function that asks, as long as the block lasts.

    limiter   shared with others; None: one of our own, for a question or two
    ask_key   where a key may be had that neither the environment nor a file holds
    runtime   other fields of `llm.model_client.Runtime`
    """
    online = models.online
    gateway = Gateway(
        online,
        limiter or LocalLimiter(online, models.default_in_flight, lend_first=True),
        {name: await asyncio.to_thread(connected_to, models, name, ask_key) for name in online},
        {n: p for n, m in models.by_name.items() if isinstance(p := provider_to_ask(m), LocalProvider)},
        on_call=on_call,
        max_attempts=models.max_attempts,
        hedge=models.hedge,
        **runtime,
    )
    try:
        yield gateway.answer
    finally:
        await gateway.close()


def connected_to(
    models: Models, name: str, ask_key: Callable[[str], str | None] | None = None
) -> Sequence[Client | FatalCallError]:
    """A client for each endpoint of a model, or why there is none. Not for an event loop."""
    model = models.by_name[name]
    known = models.quirks.get(model.model_id, {})
    provider = provider_of(model)
    assert isinstance(provider, RemoteProvider)
    clients = provider.connect(model, os.environ, ask_key, models.force_yes_no, known)
    logs.hide(c.key.get_secret_value() for c in clients if isinstance(c, Client) and c.key)
    why = {i: FatalCallError(told) for (model_name, i), told in models.refused.items() if model_name == name}
    return [c if isinstance(c, FatalCallError) else why.get(i, c) for i, c in enumerate(clients)]


GOES_ON = "What is kept is used all the same; the first request that is needed ends the run."


@dataclass(frozen=True)
class EndpointProblem:
    """An endpoint that answers nothing. final: until somebody changes something; the others may be there in
    a minute. asked: False where there is not even a way to it, as without a key."""

    model: str
    endpoint: int
    why: str
    final: bool
    asked: bool = True

    def __str__(self) -> str:
        return f"models.{self.model}: {self.why}"


def probed(
    models: Models, settings: Settings, stages: Iterable[str], may_reuse: bool, say: Callable[[str], None]
) -> Models:
    """The models, with what is known now of their endpoints; for a process that asks with its own keys.

    stages: those that are asked. may_reuse: replies may be kept from before, so that perhaps nothing
    has to be asked. Raises ModelRefused where it must, and a model has no endpoint that answers.
    """
    problems = probe(models, settings, stages)
    names = {p.model for p in problems}
    lost = {n for n in names if sum(p.model == n for p in problems) == len(models.by_name[n].endpoints)}
    if lost and not may_reuse:
        tried = any(p.asked for p in problems if p.model in lost)
        raise (ModelRefused if tried else NotConfigured)("; ".join(map(str, problems)))
    for problem in problems:
        say(str(problem))
    if lost:
        say(GOES_ON)
    refused = {(p.model, p.endpoint): p.why for p in problems if p.final or p.model in lost}
    return replace(models, refused=refused)


def probe(models: Models, settings: Settings, stages: Iterable[str]) -> list[EndpointProblem]:
    """What is wrong with the endpoints of the models that these stages ask. Takes some seconds at most; works
    where an event loop runs already."""
    asked = {
        (name, stage == "embed") for stage in stages if (name := settings.model_name(stage)) in models.online
    }

    async def one(name: str, embeds: bool) -> list[EndpointProblem]:
        clients = await asyncio.to_thread(connected_to, models, name)
        found: list[EndpointProblem] = []
        for i, client in enumerate(clients):
            if isinstance(client, FatalCallError):
                found.append(EndpointProblem(name, i, str(client), final=True, asked=False))
                continue
            try:
                why = await client.probe(embeds)
            finally:
                await client.close()
            if why is not None:
                found.append(EndpointProblem(name, i, str(why), isinstance(why, FatalCallError)))
        return found

    async def all_of_them() -> list[EndpointProblem]:
        return [p for some in await asyncio.gather(*(one(*a) for a in sorted(asked))) for p in some]

    if not asked:
        return []
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        return thread.submit(asyncio.run, all_of_them()).result()
