"""Whether endpoints are there and know our key and the model: asked once, before anything takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from graphrag_ray.base.errors import CallError, FatalCallError, ModelRefused, NotConfigured
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.engine.gateways import Models, connected_to

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


def probed(models: Models, settings: Settings, stages: Iterable[str], may_reuse: bool,
           say: Callable[[str], None]) -> Models:  # fmt: skip
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
    if not asked:
        return []
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        return thread.submit(asyncio.run, _probe(models, sorted(asked))).result()


async def _probe(models: Models, asked: Iterable[tuple[str, bool]]) -> list[EndpointProblem]:
    async def one(name: str, embeds: bool) -> list[EndpointProblem]:
        clients = await asyncio.to_thread(connected_to, models, name)
        found: list[EndpointProblem] = []
        for i, client in enumerate(clients):
            if isinstance(client, FatalCallError):
                found.append(EndpointProblem(name, i, str(client), final=True, asked=False))
                continue
            try:
                why: CallError | None = await client.probe(embeds)
            finally:
                await client.close()
            if why is not None:
                found.append(EndpointProblem(name, i, str(why), isinstance(why, FatalCallError)))
        return found

    return [p for some in await asyncio.gather(*(one(*a) for a in asked)) for p in some]
