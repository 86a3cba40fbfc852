"""Limits for the whole cluster: one actor per model, a shell around the limiter of one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ray

from graphrag_ray.engine.gateways import Models
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.llm.limits import Ended
from graphrag_ray.settings import Model


class LimiterShell:
    """After a restart it starts empty: no burst follows."""

    def __init__(self, name: str, model: Model, default_in_flight: int) -> None:
        self._limiter = LocalLimiter({name: model}, default_in_flight)

    async def acquire(
        self, model: str, wants: Sequence[int], usable: Sequence[int], holder: str
    ) -> Sequence[int]:
        return await self._limiter.acquire(model, wants, usable, holder)

    async def settle(
        self, model: str, endpoint: int, delta_tokens: int, ended: Ended | None, holder: str
    ) -> None:
        self._limiter.settle(model, endpoint, delta_tokens, ended, holder)

    async def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        self._limiter.penalise(model, endpoint, retry_after_s)

    async def forget(self, holder: str) -> None:
        self._limiter.forget(holder)

    async def take_peak(self) -> int:
        return self._limiter.take_peak()


_Actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=1000)(LimiterShell)


def start_limiters(prefix: str, models: Models) -> list[Any]:
    """One limiter actor for each model with endpoints, named `<prefix>-<model>`."""
    return [
        _Actor.options(name=f"{prefix}-{name}").remote(name, model, models.default_in_flight)
        for name, model in models.online.items()
    ]


class RayLimiter:
    """The `Limiter` of a worker: asks the model's actor. Settling is not waited for."""

    def __init__(self, prefix: str, holder: str, models: Iterable[str]) -> None:
        self._holder = holder
        self._actors = {name: ray.get_actor(f"{prefix}-{name}") for name in models}

    def start_afresh(self) -> None:
        """What an earlier life of this worker, or a sweep that was broken off, had in flight or asked for is
        over. Were it not said at once, other workers might wait for these places for ever."""
        for actor in self._actors.values():
            actor.forget.remote(self._holder)

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        granted: Sequence[int] = await self._actors[model].acquire.remote(
            model, list(wants), list(usable), self._holder
        )
        return granted

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: Ended | None = None) -> None:
        self._actors[model].settle.remote(model, endpoint, delta_tokens, ended, self._holder)

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        self._actors[model].penalise.remote(model, endpoint, retry_after_s)
