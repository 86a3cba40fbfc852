"""Limits for the whole cluster: one actor per model, a shell around the limiter of one process."""

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
from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.logs import Logging
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.ray.metrics import RayRecorder
from graphrag_ray.llm.call_metrics import ENDPOINTS, SERVED, CallMeter, Watched
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.llm.limits import Ended, Settled

_log = logging.getLogger(__name__)

T = TypeVar("T")

SILENT_S = 30.0
"""A holder that showed itself and then did not for so long is dead."""
PULSE_S = 5.0
"""Between two signs of life."""
UNUSED_S = 300.0
"""A limiter that outlives who started it ends when nobody has shown himself for so long."""
TOLD_EVERY_S = 0.9 * PULSE_S
"""Between two records of what it sees of endpoints, where nobody else records that."""
REMEMBERED_CALLS = 300
"""Of each holder: while its connection is broken, it makes no others."""
AGAIN_S = 1.0
"""Before a limiter that is gone is started again, and again."""


LINGER_S = 0.05
"""A place that is free again is told of after so long at the latest, or with the next question, together with
all others: a call of an actor costs it as much as a hundred settles."""
LONGEST_LINGER_S = 0.1
BATCHES_S = 640
"""Such calls a second, of all workers together: with many, each lingers longer."""
LINGER_SHARE = 0.05
"""Of the time that a call took: while others wait for its place, no more of it shall be lost."""
SHORTEST_LINGER_S = 0.002
"""For a place that was not used, and after the shortest calls."""

Batch: TypeAlias = Mapping[str, Sequence[Settled]]
"""Places that are free again, by the life of the limiter that gave them."""


@dataclass(frozen=True)
class GivenPermits:
    """Endpoints for the first waiters, and which life of the limiter gave them.

    quirks     what endpoints have taught anybody
    """

    life: str
    endpoints: Sequence[int]
    quirks: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)


class Once:
    """What an actor answered to the latest calls of one holder, each of which has a name that no other has.

    Where a connection between two living processes breaks, Ray says `ActorUnavailableError`, or repeats the
    call by itself: in either case it may have been carried out already.
    """

    def __init__(self, remembered: int = REMEMBERED_CALLS) -> None:
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._remembered = remembered

    async def answer(self, call: str, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the call answers, or answered when it came first."""
        if call not in self._answers:
            self._answers[call] = asyncio.ensure_future(answer())
            if len(self._answers) > self._remembered:
                oldest = next(iter(self._answers))
                if not (answered := self._answers.pop(oldest)).done():
                    self._answers[oldest] = answered
        found: T = await asyncio.shield(self._answers[call])
        return found


class LimiterShell:
    """After a restart it starts empty: no burst of what its buckets hold follows. It does not know of the
    calls that its earlier life let go: for as long as these take, twice as many may be in flight.

    Ray repeats calls whose answers are lost: a place that was given twice would be taken for ever.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        default_in_flight: int,
        logging: Logging | None = None,
        unused_s: float | None = None,
        run: str = "",
    ) -> None:
        """unused_s: without any `beat` for so long, its actor ends; None: never. run: by which it records
        what it sees of endpoints, as long as it is beaten; "": whoever asks `watched` does."""
        logs.follow(logging)
        self._limiter = LocalLimiter({name: model}, default_in_flight)
        self._life = uuid.uuid4().hex
        self._once: defaultdict[str, Once] = defaultdict(Once)
        self._name = name
        self._seen: dict[str, float] = {}
        self._beaten_at = time.monotonic()
        self._meter = CallMeter(RayRecorder((ENDPOINTS, {"run": run})), {name: model}) if run else None
        self._told_at = -math.inf
        if unused_s is not None:
            threading.Thread(target=self._end_unused, args=(unused_s,), daemon=True).start()

    async def acquire(
        self, call: str, model: str, wants: Sequence[int], usable: Sequence[int], holder: str, batch: Batch
    ) -> GivenPermits:
        """batch: to settle before."""

        async def answer() -> GivenPermits:
            self._settle(model, batch, holder)
            endpoints = await self._limiter.acquire(model, wants, usable, holder)
            return GivenPermits(self._life, endpoints, dict(self._limiter.all_quirks))

        return await self._once[holder].answer(call, answer)

    async def settle(self, call: str, model: str, batch: Batch, holder: str) -> None:
        async def answer() -> None:
            self._settle(model, batch, holder)

        await self._once[holder].answer(call, answer)

    def _settle(self, model: str, batch: Batch, holder: str) -> None:
        for life, settled in batch.items():
            # A place that an earlier life gave frees none of this one's.
            known = holder if life == self._life else f"{holder} in another life"
            self._limiter.settle_all(model, settled, known)

    async def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        self._limiter.penalise(model, endpoint, retry_after_s)

    async def learn(self, model: str, endpoint: int, quirks: Sequence[str]) -> None:
        self._limiter.learn(model, endpoint, quirks)

    async def forget(self, holder: str, call: str | None = None) -> None:
        """call: of a holder that goes on, and is not to lose what it has got since."""

        async def answer() -> None:
            self._limiter.forget(holder)

        await (answer() if call is None else self._once[holder].answer(call, answer))
        if call is None:
            self._once.pop(holder, None)

    async def beat(self, holder: str) -> None:
        """A holder that nobody watches is alive. What others had, which were silent for long, is over."""
        now = time.monotonic()
        self._seen[holder] = self._beaten_at = now
        for silent in [h for h, at in self._seen.items() if now - at > SILENT_S]:
            del self._seen[silent]
            await self.forget(silent)
        if self._meter is not None and now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            self._meter.endpoints(SERVED, await self.watched())

    async def take_peak(self) -> int:
        return self._limiter.take_peak()

    async def watched(self) -> Watched:
        return Watched(self._name, self._life, self._limiter.seen(self._name))

    def _end_unused(self, unused_s: float) -> None:
        """In a thread: an actor that has just been restarted may never be called again."""
        while (left := self._beaten_at + unused_s - time.monotonic()) > 0:
            time.sleep(left)
        ray.kill(ray.get_runtime_context().current_actor)


def beside_driver() -> NodeAffinitySchedulingStrategy:
    """For actors that a run cannot do without: on the driver's node, whose loss ends the run anyway. Not
    softly: of an actor without CPUs that would be no more than a wish, which Ray does not look at."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


_Actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=1000)(LimiterShell)


def start_limiters(
    prefix: str, models: Models, namespace: str | None = None, run: str = "", logging: Logging | None = None
) -> list[Any]:
    """One limiter actor for each model with endpoints, named `<prefix>-<model>`.

    namespace   where they outlive us, and are those of whoever came first, until nobody beats them any more;
                None: they are ours alone
    run         by which each records what it sees; "": we do
    logging     None: it logs as we do
    """
    options: dict[str, Any] = {"scheduling_strategy": beside_driver()}
    unused_s = None
    if namespace:  # they outlive our node, too: Ray starts them again on another one
        options = {"namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        unused_s = UNUSED_S
    return [
        _Actor.options(name=f"{prefix}-{name}", **options).remote(
            name, model, models.default_in_flight, logging or logs.current(), unused_s, run
        )
        for name, model in models.online.items()
    ]


class RayLimiter:
    """The `Limiter` of a worker: asks the model's actor. Settling is not waited for: what is settled goes in
    batches, each in one call that Ray repeats until it is done, or with the next question. Lost with the
    process is what it had not sent; its places come back with `start_afresh`, or when somebody forgets it.

    holders   that ask beside it, as far as somebody says
    """

    def __init__(self, prefix: str, holder: str, models: Iterable[str], namespace: str | None = None) -> None:
        self._holder, self.holders = holder, 1
        self._lives: defaultdict[tuple[str, int], deque[str]] = defaultdict(deque)
        self._actors = {name: ray.get_actor(f"{prefix}-{name}", namespace) for name in models}
        # Places that are free again and not told of yet, by model and by the life that gave them,
        # with when they were settled; and the timers that send them.
        self._unsent: dict[str, dict[str, list[tuple[float, Settled]]]] = {name: {} for name in self._actors}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._calls = map(f"{uuid.uuid4().hex}-{{}}".format, count())
        self._quirks: dict[tuple[str, int], frozenset[str]] = {}

    async def start_afresh(self) -> None:
        """What an earlier life of this worker, or a sweep that was broken off, had in flight or asked for is
        over. Were it not said at once, other workers might wait for these places for ever; and were it not
        waited for, it might come after the first questions of this life, and end these."""
        await asyncio.gather(*self._forget())

    def _forget(self) -> list[Any]:
        self.send()
        self._lives.clear()
        return [actor.forget.remote(self._holder, next(self._calls)) for actor in self._actors.values()]

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        places: GivenPermits = await self._actors[model].acquire.remote(
            next(self._calls), model, list(wants), list(usable), self._holder, self._take(model)
        )
        for at, quirks in places.quirks.items():
            self._quirks[at] = self._quirks.get(at, frozenset()) | quirks
        for endpoint in places.endpoints:
            self._lives[model, endpoint].append(places.life)
        return places.endpoints

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: Ended | None = None) -> None:
        # Calls are alike: the oldest place is the one that is given back.
        lives = self._lives[model, endpoint]
        life = lives.popleft() if lives else ""
        settled = Settled(endpoint, delta_tokens, ended)
        self._unsent[model].setdefault(life, []).append((time.monotonic(), settled))
        linger_s = SHORTEST_LINGER_S
        if ended is not None:
            linger_s = max(linger_s, LINGER_SHARE * ended.latency_s)
            if ended.told is not None:  # it holds for everyone
                linger_s = 0.0
        loop, timer = asyncio.get_running_loop(), self._timers.get(model)
        longest_s = max(LINGER_S, min(LONGEST_LINGER_S, self.holders / BATCHES_S))
        due = loop.time() + min(longest_s, linger_s)
        if timer is None or timer.when() > due:
            if timer is not None:
                timer.cancel()
            self._timers[model] = loop.call_at(due, self._send, model)

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        """At once: everyone shall know."""
        self._actors[model].penalise.remote(model, endpoint, retry_after_s)

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        names = sorted(quirks)
        self._quirks[model, endpoint] = self.quirks(model, endpoint) | frozenset(names)
        self._actors[model].learn.remote(model, endpoint, names)

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        return self._quirks.get((model, endpoint), frozenset())

    def send(self) -> None:
        """Tell now what is settled: nobody may call us any more."""
        for model in self._unsent:
            self._send(model)

    def _send(self, model: str) -> None:
        if batch := self._take(model):
            self._actors[model].settle.remote(next(self._calls), model, batch, self._holder)

    def _take(self, model: str) -> Batch:
        """What is to be sent; it is with whoever takes it."""
        batch, self._unsent[model] = self._unsent[model], {}
        if timer := self._timers.pop(model, None):
            timer.cancel()
        now = time.monotonic()
        return {
            life: [
                one._replace(ended=one.ended._replace(ago_s=now - at)) if one.ended else one
                for at, one in settled
            ]
            for life, settled in batch.items()
        }


class SharedLimiter(RayLimiter):
    """Of one holder among several that come and go, as replicas of a service do, and are watched by nobody:
    it shows from time to time that it is alive, and starts an actor again that is gone for good. Belongs to
    the event loop in which it is made."""

    def __init__(
        self,
        prefix: str,
        holder: str,
        models: Models,
        namespace: str,
        run: str = "",
        logging: Logging | None = None,
    ) -> None:
        """run, logging: of the actors, as for `start_limiters`."""
        self._start = partial(start_limiters, prefix, models, namespace, run, logging)
        self._start()
        # Not the name of a limiter before it, whose end would take away the places of this one.
        super().__init__(prefix, f"{holder}/{uuid.uuid4().hex[:8]}", models.online, namespace)
        self._models = models.online
        self._beating = asyncio.ensure_future(self._beat())

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        while True:
            try:
                return await super().acquire(model, wants, usable)
            except (RayActorError, ActorUnschedulableError):
                _log.warning("the limiter of model %s is gone: it is started again", model)
                await asyncio.sleep(AGAIN_S)  # until its name is free
                with suppress(RayError, ValueError):  # else the next attempt says so
                    found = await asyncio.to_thread(self._start)
                    self._actors.update(zip(self._models, found, strict=True))
            except TaskCancelledError:
                _log.warning("the limiter of model %s had not heard of us for long: it is asked again", model)

    def close(self) -> None:
        """It is used no more: what is in flight is over."""
        self._beating.cancel()
        self._forget()

    async def _beat(self) -> None:
        while True:
            for actor in self._actors.values():
                actor.beat.remote(self._holder)
            await asyncio.sleep(PULSE_S)
