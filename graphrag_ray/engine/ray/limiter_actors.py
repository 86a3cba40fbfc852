"""Cluster-wide rate limits: one actor per model, which wraps the in-process limiter."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphrag_ray.base import logs
from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.logs import LogConfig
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray.metrics import RayRecorder
from graphrag_ray.llm.call_metrics import ENDPOINT_METRICS, SERVICE_STAGE, CallMeter, WatchedEndpoints
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.llm.limits import CallOutcome, FreedPermit

_log = logging.getLogger(__name__)

T = TypeVar("T")

HOLDER_TIMEOUT_S = 30.0
"""A holder without a heartbeat for this long is considered dead."""
HEARTBEAT_S = 5.0
UNUSED_S = 300.0
"""A detached limiter exits after this long without a heartbeat from any holder."""
RECORD_INTERVAL_S = 0.9 * HEARTBEAT_S
"""Minimum time between recordings of endpoint metrics by a detached limiter."""
REMEMBERED_CALLS = 300
"""Answers stored per holder. A holder with a broken connection makes no further calls."""
RESTART_S = 1.0
"""Delay before a lost limiter is restarted."""

LINGER_S = 0.05
"""Default maximum delay before a released permit is reported, unless the next request includes it. A call
costs the actor as much as a hundred settlements."""
MAX_LINGER_S = 0.1
BATCHES_PER_S = 640
"""Target for settlement calls per second from all workers. With many workers, each lingers longer."""
LINGER_SHARE = 0.05
"""Maximum delay as a share of the call's duration, because others may wait for its permit."""
MIN_LINGER_S = 0.002
"""Maximum delay for an unused permit, and after very short calls."""

Batch: TypeAlias = Mapping[str, Sequence[FreedPermit]]
"""Released permits by limiter incarnation, that is, by the actor process that granted them."""


@dataclass(frozen=True)
class GrantedPermits:
    """Endpoints for the first waiters, granted by the limiter incarnation `life`."""

    life: str
    endpoints: Sequence[int]
    quirks: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)


class SeenCalls:
    """An actor's answers to the latest calls of one holder, by unique call name.

    Makes calls idempotent: when a connection between two living processes breaks, Ray raises
    `ActorUnavailableError` or repeats the call, which may already have been executed.
    """

    def __init__(self, remembered: int = REMEMBERED_CALLS) -> None:
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._remembered = remembered

    async def answer(self, call: str, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the call's answer, computing it only the first time."""
        if call not in self._answers:
            self._answers[call] = asyncio.ensure_future(answer())
            if len(self._answers) > self._remembered:
                oldest = next(iter(self._answers))
                if not (evicted := self._answers.pop(oldest)).done():
                    self._answers[oldest] = evicted
        result: T = await asyncio.shield(self._answers[call])
        return result


class ModelLimiter:
    """The limiter of one model, run as an actor.

    A restarted limiter starts with empty buckets, which prevents a burst. It does not know the calls granted
    by its earlier incarnation, so up to twice as many calls may be in flight until these end. Ray repeats a
    call if its answer was lost; `SeenCalls` prevents a second grant, which would never be released.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        initial_in_flight: int,
        logging: LogConfig | None = None,
        unused_s: float | None = None,
        run: str = "",
    ) -> None:
        # Exits after `unused_s` without a heartbeat. Records endpoint metrics only if `run` is set.
        logs.follow_driver(logging)
        self._limiter = LocalLimiter({name: model}, initial_in_flight)
        self._life = uuid.uuid4().hex
        self._seen_calls: defaultdict[str, SeenCalls] = defaultdict(SeenCalls)
        self._name = name
        self._seen_at: dict[str, float] = {}
        self._last_beat_at = time.monotonic()
        self._meter = CallMeter(RayRecorder((ENDPOINT_METRICS, {"run": run})), {name: model}) if run else None
        self._recorded_at = -math.inf
        if unused_s is not None:
            threading.Thread(target=self._exit_when_unused, args=(unused_s,), daemon=True).start()

    async def acquire(
        self, call: str, model: str, wants: Sequence[int], usable: Sequence[int], holder: str, batch: Batch
    ) -> GrantedPermits:
        """Settle `batch`, then wait for permits."""

        async def answer() -> GrantedPermits:
            await self._settle(model, batch, holder)
            endpoints = await self._limiter.acquire(model, wants, usable, holder)
            return GrantedPermits(self._life, endpoints, dict(self._limiter.all_quirks))

        return await self._seen_calls[holder].answer(call, answer)

    async def settle(self, call: str, model: str, batch: Batch, holder: str) -> None:
        await self._seen_calls[holder].answer(call, partial(self._settle, model, batch, holder))

    async def _settle(self, model: str, batch: Batch, holder: str) -> None:
        for life, settled in batch.items():
            # Do not let a permit of an earlier incarnation release one of this incarnation.
            permit_holder = holder if life == self._life else f"{holder} of another incarnation"
            self._limiter.settle_all(model, settled, permit_holder)

    async def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        self._limiter.penalise(model, endpoint, retry_after_s)

    async def learn(self, model: str, endpoint: int, quirks: Sequence[str]) -> None:
        self._limiter.learn(model, endpoint, quirks)

    async def forget(self, holder: str, call: str | None = None) -> None:
        """Release all permits of a holder, and drop its requests.

        A holder that continues passes `call`, so that a repetition does not release newer permits.
        """

        async def answer() -> None:
            self._limiter.drop_holder(holder)

        await (answer() if call is None else self._seen_calls[holder].answer(call, answer))
        if call is None:
            self._seen_calls.pop(holder, None)

    async def beat(self, holder: str) -> None:
        """Record a heartbeat of a holder, and forget dead holders."""
        now = time.monotonic()
        self._seen_at[holder] = self._last_beat_at = now
        for silent in [h for h, seen_at in self._seen_at.items() if now - seen_at > HOLDER_TIMEOUT_S]:
            del self._seen_at[silent]
            await self.forget(silent)
        if self._meter is not None and now - self._recorded_at >= RECORD_INTERVAL_S:
            self._recorded_at = now
            self._meter.endpoints(SERVICE_STAGE, await self.endpoint_states())

    async def take_peak(self) -> int:
        return self._limiter.take_peak()

    async def endpoint_states(self) -> WatchedEndpoints:
        return WatchedEndpoints(self._name, self._life, self._limiter.endpoint_states(self._name))

    def _exit_when_unused(self, unused_s: float) -> None:
        """Exit without heartbeats. Runs in a thread because a restarted actor may never be called."""
        while (left := self._last_beat_at + unused_s - time.monotonic()) > 0:
            time.sleep(left)
        ray.kill(ray.get_runtime_context().current_actor)


def on_driver_node() -> NodeAffinitySchedulingStrategy:
    """Pin actors that a run depends on to the driver's node, because its loss ends the run anyway.

    The affinity is hard because Ray ignores soft affinity for actors without CPUs.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


_Actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=1000)(ModelLimiter)


def start_limiters(
    prefix: str, models: Models, namespace: str | None = None, run: str = "", logging: LogConfig | None = None
) -> list[Any]:
    """Start one limiter actor, named `<prefix>-<model>`, for each model with endpoints.

    With a namespace they are detached: they outlive this process, may already exist (in which case they are
    shared), record their metrics under `run`, and exit when heartbeats stop. Without one they are private.
    """
    options: dict[str, Any] = {"scheduling_strategy": on_driver_node()}
    unused_s = None
    if namespace:  # detached actors may outlive this node, so do not pin them to it
        options = {"namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        unused_s = UNUSED_S
    return [
        _Actor.options(name=f"{prefix}-{name}", **options).remote(
            name, model, models.initial_in_flight, logging or logs.current_config(), unused_s, run
        )
        for name, model in models.online.items()
    ]


class RayLimiter:
    """A worker's `Limiter`, which calls the model's actor.

    Settlements are not awaited. They go to the actor in batches, alone or with the next request, and Ray
    repeats each call until it succeeds. If this process dies, unsent settlements are lost. Then `reset`, or
    the process that notices the death, releases their permits. `holders` is the number of workers that share
    the limiter.
    """

    def __init__(self, prefix: str, holder: str, models: Iterable[str], namespace: str | None = None) -> None:
        self._holder, self.holders = holder, 1
        self._lives: defaultdict[tuple[str, int], deque[str]] = defaultdict(deque)
        self._actors = {name: ray.get_actor(f"{prefix}-{name}", namespace) for name in models}
        # Unsent settlements with their times, by model and by the incarnation that granted the permit.
        self._unsent: dict[str, dict[str, list[tuple[float, FreedPermit]]]] = {
            name: {} for name in self._actors
        }
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._calls = map(f"{uuid.uuid4().hex}-{{}}".format, count())
        self._quirks: dict[tuple[str, int], frozenset[str]] = {}

    async def reset(self) -> None:
        """Release permits and drop requests of an aborted sweep or an earlier incarnation of this worker.

        Otherwise other workers might wait for these permits forever. It is awaited because a late release
        would cancel the first requests of this incarnation.
        """
        await asyncio.gather(*self._forget())

    def _forget(self) -> list[Any]:
        self.send()
        self._lives.clear()
        return [actor.forget.remote(self._holder, next(self._calls)) for actor in self._actors.values()]

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        permits: GrantedPermits = await self._actors[model].acquire.remote(
            next(self._calls), model, list(wants), list(usable), self._holder, self._take(model)
        )
        for endpoint_of_model, quirks in permits.quirks.items():
            self._quirks[endpoint_of_model] = self._quirks.get(endpoint_of_model, frozenset()) | quirks
        for endpoint in permits.endpoints:
            self._lives[model, endpoint].append(permits.life)
        return permits.endpoints

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None) -> None:
        # Permits of an endpoint are interchangeable, so release the oldest one.
        lives = self._lives[model, endpoint]
        life = lives.popleft() if lives else ""
        settled = FreedPermit(endpoint, delta_tokens, ended)
        self._unsent[model].setdefault(life, []).append((time.monotonic(), settled))
        linger_s = MIN_LINGER_S
        if ended is not None:
            linger_s = max(linger_s, LINGER_SHARE * ended.latency_s)
            if ended.rate_limits is not None:  # other workers need news about limits immediately
                linger_s = 0.0
        loop, timer = asyncio.get_running_loop(), self._timers.get(model)
        max_linger_s = max(LINGER_S, min(MAX_LINGER_S, self.holders / BATCHES_PER_S))
        due = loop.time() + min(max_linger_s, linger_s)
        if timer is None or timer.when() > due:
            if timer is not None:
                timer.cancel()
            self._timers[model] = loop.call_at(due, self._send, model)

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        """Report a rate limit immediately, because it affects all workers."""
        self._actors[model].penalise.remote(model, endpoint, retry_after_s)

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        names = sorted(quirks)
        self._quirks[model, endpoint] = self.quirks(model, endpoint) | frozenset(names)
        self._actors[model].learn.remote(model, endpoint, names)

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        return self._quirks.get((model, endpoint), frozenset())

    def send(self) -> None:
        """Send all settlements now, because there may be no further request to include them."""
        for model in self._unsent:
            self._send(model)

    def _send(self, model: str) -> None:
        if batch := self._take(model):
            self._actors[model].settle.remote(next(self._calls), model, batch, self._holder)

    def _take(self, model: str) -> Batch:
        """Remove and return the unsent settlements, which the caller must send."""
        unsent, self._unsent[model] = self._unsent[model], {}
        if timer := self._timers.pop(model, None):
            timer.cancel()
        now = time.monotonic()
        return {
            life: [
                permit._replace(ended=permit.ended._replace(ago_s=now - settled_at))
                if permit.ended
                else permit
                for settled_at, permit in settled
            ]
            for life, settled in unsent.items()
        }


class SharedLimiter(RayLimiter):
    """A `RayLimiter` for holders that come and go unsupervised, such as replicas of a service.

    Sends heartbeats, and restarts an actor that died permanently. Bound to the event loop that creates it.
    """

    def __init__(
        self,
        prefix: str,
        holder: str,
        models: Models,
        namespace: str,
        run: str = "",
        logging: LogConfig | None = None,
    ) -> None:
        self._start = partial(start_limiters, prefix, models, namespace, run, logging)
        self._start()
        # The name is unique, so closing an earlier limiter of this holder does not release these permits.
        super().__init__(prefix, f"{holder}/{uuid.uuid4().hex[:8]}", models.online, namespace)
        self._models = models.online
        self._beating = asyncio.ensure_future(self._beat())

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        while True:
            try:
                return await super().acquire(model, wants, usable)
            except (RayActorError, ActorUnschedulableError):
                _log.warning("Lost the rate limiter of model %s; restarting it", model)
                await asyncio.sleep(RESTART_S)  # Ray must free its name first
                with suppress(RayError, ValueError):  # try again if this fails
                    actors = await asyncio.to_thread(self._start)
                    self._actors.update(zip(self._models, actors, strict=True))
            except TaskCancelledError:
                _log.warning(
                    "The rate limiter of model %s dropped a request after missing heartbeats; retrying", model
                )

    def close(self) -> None:
        """Stop the heartbeats and release all permits."""
        self._beating.cancel()
        self._forget()

    async def _beat(self) -> None:
        while True:
            for actor in self._actors.values():
                actor.beat.remote(self._holder)
            await asyncio.sleep(HEARTBEAT_S)
