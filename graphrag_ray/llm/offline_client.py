"""The offline engine's place among the models: no limiter and no price, but the same accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Listener,
    Reply,
    Request,
    Usage,
)
from graphrag_ray.llm.accounting import CallRecord
from graphrag_ray.llm.call_progress import sum_usage
from graphrag_ray.llm.model_client import Called
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE, text_size
from graphrag_ray.settings.index_settings import Model

T = TypeVar("T")

_MODEL = Model()


class OfflineLane:
    """Calls run here and now: they are short, and this process has nothing better to do. After each,
    the event loop gets its turn. Tokens are our own counts.

    aside   where they run instead, for an event loop that serves others meanwhile
    """

    def __init__(
        self,
        answer: Callable[[Request], Reply],
        embed: Callable[[Sequence[EmbeddingRequest]], Sequence[EmbeddingReply]],
        on_call: Callable[[CallRecord], None],
        clock: Callable[[], float],
        aside: Executor | None = None,
    ) -> None:
        self._answer = answer
        self._embed = embed
        self._on_call = on_call
        self._clock = clock
        self._aside = aside

    async def chat(
        self, request: ChatRequest, stage: str, listener: Listener | None = None
    ) -> Called[ChatReply]:
        """listener: hears the reply, which is written at once, in one piece."""
        started = self._clock()
        reply, usage = await self._run(partial(self._counted, request))
        if listener is not None:
            listener.begins()
            listener.piece(reply.text)
        called = Called(replace(reply, usage=usage), latency_s=self._clock() - started)
        self._note(stage, request, usage, called.latency_s)
        await asyncio.sleep(0)
        return called

    async def embed(self, requests: Sequence[EmbeddingRequest], stage: str) -> Called[list[EmbeddingReply]]:
        started = self._clock()
        replies = await self._run(partial(self._embed, requests))
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

    def _counted(self, request: ChatRequest) -> tuple[ChatReply, Usage]:
        reply = self._answer(request)
        assert isinstance(reply, ChatReply)
        prompt = sum(text_size(m.content, _MODEL) + TOKENS_PER_MESSAGE for m in request.messages)
        return reply, Usage(prompt, text_size(reply.text, _MODEL), reported=False)

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
