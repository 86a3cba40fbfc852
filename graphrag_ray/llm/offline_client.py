"""Models that are answered in this process: no limiter and no price, but the same accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Listener,
    Request,
    Usage,
)
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.providers import LocalProvider
from graphrag_ray.llm.accounting import CallRecord
from graphrag_ray.llm.call_progress import sum_usage
from graphrag_ray.llm.model_client import Called
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE, text_size

T = TypeVar("T")

_Counted: TypeAlias = tuple[ChatReply, Usage]

TOGETHER = 16
"""Calls that go to another process in one message."""

_MODEL = Model()


class Processes(Protocol):
    """Processes that compute beside this one, once they are up."""

    def is_up(self) -> bool: ...

    def here(self, fn: Callable[..., T], *args: Any) -> T: ...

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T] | None: ...

    def result(self, future: Future[T]) -> T: ...


class LocalLane:
    """Calls run here and now: they are short, and this process has nothing better to do. After each,
    the event loop gets its turn. Tokens are our own counts.

    aside   where they run instead, for an event loop that serves others meanwhile
    pool    where they run once it is up, many together: a message to a process takes as long as a short call
    """

    def __init__(
        self,
        provider: LocalProvider,
        on_call: Callable[[CallRecord], None],
        clock: Callable[[], float],
        aside: Executor | None = None,
        pool: Processes | None = None,
    ) -> None:
        self._provider = provider
        self._on_call = on_call
        self._clock = clock
        self._aside = aside
        self._pool = pool
        self._waiting: list[tuple[ChatRequest, asyncio.Future[_Counted | None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def chat(
        self, request: ChatRequest, stage: str, listener: Listener | None = None
    ) -> Called[ChatReply]:
        """listener: hears the reply, which is written at once, in one piece."""
        started = self._clock()
        counted = await self._beside(request) if self._pool and self._pool.is_up() else None
        if counted is None:
            work = partial(_counted, self._provider, request)
            counted = self._pool.here(work) if self._pool else await self._run(work)
        reply, usage = counted
        if listener is not None:
            listener.begins()
            listener.piece(reply.text)
        called = Called(replace(reply, usage=usage), latency_s=self._clock() - started)
        self._note(stage, request, usage, called.latency_s)
        await asyncio.sleep(0)
        return called

    async def embed(self, requests: Sequence[EmbeddingRequest], stage: str) -> Called[list[EmbeddingReply]]:
        started = self._clock()
        replies = await self._run(partial(self._provider.embed, requests))
        usages = [Usage(text_size(r.text, _MODEL), reported=False) for r in requests]
        counted = [replace(reply, usage=u) for reply, u in zip(replies, usages, strict=True)]
        called = Called(counted, latency_s=self._clock() - started)
        self._note(stage, requests[0], sum_usage(usages), called.latency_s)
        await asyncio.sleep(0)
        return called

    async def _run(self, work: Callable[[], T]) -> T:
        if self._aside is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._aside, work)

    async def _beside(self, request: ChatRequest) -> _Counted | None:
        """The pool's answer, asked for with those that are asked for now; None where it failed."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Counted | None] = loop.create_future()
        self._waiting.append((request, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), TOGETHER):
            task = asyncio.ensure_future(self._deliver(waiting[at : at + TOGETHER]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(self, wanted: Sequence[tuple[ChatRequest, asyncio.Future[_Counted | None]]]) -> None:
        assert self._pool is not None
        found: list[_Counted | None] = [None] * len(wanted)
        sent = self._pool.submit(_counted_together, self._provider, [request for request, _ in wanted])
        if sent is not None:
            waited = asyncio.wrap_future(sent)
            await asyncio.wait([waited])
            waited.exception()  # looked at, or asyncio logs it
            with suppress(Exception):  # whoever asked answers it, and sees the error where it arises
                found = self._pool.result(sent)
        for (_, answer), counted in zip(wanted, found, strict=True):
            if not answer.done():
                answer.set_result(counted)

    def _note(self, stage: str, request: Request, usage: Usage, latency_s: float) -> None:
        self._on_call(
            CallRecord(
                stage=stage,
                prompt=request.prompt,
                model_id=request.call.model_id,
                endpoint="",
                status="ok",
                usage=usage,
                cost_pico_usd=0,
                latency_s=latency_s,
                attempts=1,
                rate_limited=0,
                busy_s=latency_s,
            )
        )


def _counted(provider: LocalProvider, request: ChatRequest) -> _Counted:
    reply = provider.chat(request)
    if not isinstance(reply, ChatReply):
        kind = type(provider)
        raise PluginError(
            f"The model provider {kind.__module__}.{kind.__qualname__} answered with a "
            f"{type(reply).__qualname__}, not a ChatReply"
        )
    prompt = sum(text_size(m.content, _MODEL) + TOKENS_PER_MESSAGE for m in request.messages)
    return reply, Usage(prompt, text_size(reply.text, _MODEL), reported=False)


def _counted_together(provider: LocalProvider, requests: Sequence[ChatRequest]) -> list[_Counted | None]:
    """None for one that fails: it is answered again by whoever asked, who sees where it does."""
    found: list[_Counted | None] = []
    for request in requests:
        try:
            found.append(_counted(provider, request))
        except BaseException:  # noqa: BLE001 - see above; a panic of a library in Rust is no Exception
            found.append(None)
    return found
