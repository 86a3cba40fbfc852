"""The gateway to all models: sends requests and accounts for them. Independent of GraphRAG.

ask ─► model client ─► permits ─► limiter ─► endpoint client ─► endpoint
       (embeddings are batched first; local models such as the offline engine are called directly)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import FatalCallError, NoEndpoint, PermanentCallError
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Reply,
    Request,
    RerankReply,
    RerankRequest,
    StreamListener,
    Usage,
)
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.providers import PROVIDERS, Client, LocalProvider
from graphrag_ray.llm.accounting import CallRecord, sum_usage
from graphrag_ray.llm.limiter import Limiter
from graphrag_ray.llm.model_client import CallResult, ModelClient, Runtime
from graphrag_ray.llm.request_sizes import (
    PACK_TOKENS,
    TOKENS_PER_MESSAGE,
    count_rerank_tokens,
    count_text_tokens,
)

T = TypeVar("T")
_CountedReply: TypeAlias = tuple[ChatReply, Usage]
_Answer: TypeAlias = asyncio.Future[CallResult[EmbeddingReply]]

PACK_HOLD_S = 0.01  # how long an embedding request waits for others
BATCH_CALLS = 16  # maximum number of calls that go to another process in one message
_MODEL = Model()


class Gateway:
    """Calls models. Belongs to one event loop; `close` it when done.

    A model that is not in `models` is answered by the `local` provider with its name, or by the offline
    engine. `runtime` contains the remaining fields of `Runtime`.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        limiter: Limiter,
        clients: Mapping[str, Sequence[Client | FatalCallError]],
        local: Mapping[str, LocalProvider] | None = None,
        **runtime: Any,
    ) -> None:
        self._runtime = Runtime(limiter, **runtime)
        self._models = {
            name: ModelClient(name, model, clients[name], self._runtime)
            for name, model in models.items()
            if not model.is_local
        }
        self._packers = {}
        for name, client in self._models.items():
            model = client.model
            limits = (limit for e in model.endpoints if (limit := e.tokens_per_minute) is not None)
            size, max_tokens = partial(count_text_tokens, model=model), min(limits, default=math.inf)
            self._packers[name] = Packer(
                client.embed, size, model.embedding_batch_size, PACK_HOLD_S, max_tokens
            )
        self._providers = dict(local or {})
        self._local_models: dict[str, LocalModelClient] = {}

    async def ask(self, request: Request, stage: str) -> Reply:
        """Send a request, and return its reply. The cost counts towards the stage.

        Raises:
            PermanentCallError: This request can never succeed.
            TransientCallError: The request failed after `attempts` attempts, but may succeed later.
            FatalCallError: No request can succeed.
        """
        return (await self.answer(request, stage)).reply

    async def answer(
        self, request: Request, stage: str, listener: StreamListener | None = None
    ) -> CallResult[Reply]:
        """Like `ask`, with details of the call. A `listener` receives a chat reply piece by piece."""
        result: CallResult[ChatReply] | CallResult[EmbeddingReply] | CallResult[RerankReply]
        name = request.call.model
        client = self._models.get(name)
        if client and client.model.address_unknown:
            raise NoEndpoint(f"This machine has no endpoint for the model {client.model.model!r}")
        if isinstance(request, EmbeddingRequest):
            if name not in self._packers:
                self._packers[name] = Packer(self._local_model(name).embed, len, texts=1024, hold_s=0.0)
            result = await self._packers[name].add(request, stage)
        elif isinstance(request, RerankRequest):
            result = await (client or self._local_model(name)).rerank(request, stage)
        elif client:
            result = await client.chat(request, stage, listener)
        else:
            result = await self._local_model(name).chat(request, stage, listener)
        return CallResult(result.reply, result.endpoint, result.latency_s, result.attempts)

    async def close(self) -> None:
        for packer in self._packers.values():
            await packer.finish()
        for client in self._models.values():
            await client.close()

    def _local_model(self, name: str) -> LocalModelClient:
        if name not in self._local_models:
            provider = self._providers.get(name) or PROVIDERS["offline"]
            assert isinstance(provider, LocalProvider)
            self._local_models[name] = LocalModelClient(provider, self._runtime)
        return self._local_models[name]


@dataclass
class _Pack:
    timer: asyncio.TimerHandle
    items: list[tuple[EmbeddingRequest, _Answer]] = field(default_factory=list)
    tokens: int = 0


class Packer:
    """Packs embedding requests with the same stage and dimensions into shared calls.

    A pack is sent after `hold_s` seconds, or with `texts` texts or `max_tokens` tokens as counted by `size`;
    only a single text may exceed them. A pack that fails permanently is halved until the text responsible is
    alone.
    """

    def __init__(
        self,
        send: Callable[[Sequence[EmbeddingRequest], str], Awaitable[CallResult[list[EmbeddingReply]]]],
        size: Callable[[str], int],
        texts: int,
        hold_s: float,
        max_tokens: float = PACK_TOKENS,
    ) -> None:
        self._send = send
        self._size = size
        self._texts = texts
        self._hold_s = hold_s
        self._max_tokens = min(max_tokens, PACK_TOKENS)
        self._open: dict[tuple[str, int | None], _Pack] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, request: EmbeddingRequest, stage: str) -> CallResult[EmbeddingReply]:
        """Embed a text, and return its reply with its share of the pack's usage."""
        loop = asyncio.get_running_loop()
        key = (stage, request.dimensions)
        tokens = self._size(request.text)
        pack = self._open.get(key)
        if pack is not None and pack.tokens + tokens > self._max_tokens:
            self._close(key)
            pack = None
        if pack is None:
            pack = self._open[key] = _Pack(loop.call_later(self._hold_s, self._close, key))
        answer: _Answer = loop.create_future()
        pack.items.append((request, answer))
        pack.tokens += tokens
        if len(pack.items) >= self._texts:
            self._close(key)
        return await answer

    async def finish(self) -> None:
        """Cancel all open packs and calls."""
        while self._open:
            pack = self._open.popitem()[1]
            pack.timer.cancel()
            for _, answer in pack.items:
                answer.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _close(self, key: tuple[str, int | None]) -> None:
        pack = self._open.pop(key)
        pack.timer.cancel()
        items = [(request, answer) for request, answer in pack.items if not answer.done()]
        if items:
            task = asyncio.ensure_future(self._deliver(items, key[0]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(self, items: list[tuple[EmbeddingRequest, _Answer]], stage: str) -> None:
        """Send a pack, and deliver the replies or the error to the callers."""
        try:
            result = await self._send([request for request, _ in items], stage)
        except Exception as e:  # noqa: BLE001 - handed to the callers, with its type
            if isinstance(e, PermanentCallError) and len(items) > 1:
                middle = len(items) // 2
                await self._deliver(items[:middle], stage)
                await self._deliver(items[middle:], stage)
                return
            for _, answer in items:
                if not answer.done():
                    answer.set_exception(e)
        except asyncio.CancelledError:
            for _, answer in items:
                answer.cancel()
            raise
        else:
            for (_, answer), reply in zip(items, result.reply, strict=True):
                if not answer.done():
                    answer.set_result(CallResult(reply, result.endpoint, result.latency_s, result.attempts))


class LocalModelClient:
    """Calls a local model, in this process or in a pool.

    Calls are short. They run in the event loop, which gets a turn after each call, or in the threads or
    processes of `Runtime`. Processes receive batches, because a message takes as long as a short call.
    """

    def __init__(self, provider: LocalProvider, runtime: Runtime) -> None:
        self._provider = provider
        self._runtime, self._pool = runtime, runtime.pool
        self._waiting: list[tuple[ChatRequest, asyncio.Future[_CountedReply | None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def chat(
        self, request: ChatRequest, stage: str, listener: StreamListener | None = None
    ) -> CallResult[ChatReply]:
        """Make a chat call. A `listener` receives the reply in one piece."""
        started = self._runtime.clock()
        counted = await self._in_pool(request) if self._pool and self._pool.is_up() else None
        if counted is None:
            call = partial(_chat, self._provider, request)
            counted = self._pool.run_here(call) if self._pool else await self._run(call)
        reply, usage = counted
        if listener is not None:
            listener.on_start()
            listener.on_text(reply.text)
        return await self._account(replace(reply, usage=usage), request, stage, usage, started)

    async def embed(
        self, requests: Sequence[EmbeddingRequest], stage: str
    ) -> CallResult[list[EmbeddingReply]]:
        started = self._runtime.clock()
        replies = await self._run(partial(self._provider.embed, requests))
        usages = [Usage(count_text_tokens(r.text, _MODEL), reported=False) for r in requests]
        counted = [replace(reply, usage=u) for reply, u in zip(replies, usages, strict=True)]
        return await self._account(counted, requests[0], stage, sum_usage(usages), started)

    async def rerank(self, request: RerankRequest, stage: str) -> CallResult[RerankReply]:
        started = self._runtime.clock()
        reply = await self._run(partial(self._provider.rerank, request))
        usage = Usage(count_rerank_tokens(request, _MODEL), reported=False)
        return await self._account(replace(reply, usage=usage), request, stage, usage, started)

    async def _account(
        self, reply: T, request: Request, stage: str, usage: Usage, started: float
    ) -> CallResult[T]:
        """Account for a call, and yield to the event loop."""
        latency_s = self._runtime.clock() - started
        record = CallRecord(stage, request.prompt, request.call.model_id, "", "ok", usage, 0, latency_s)
        record.attempts, record.busy_s = 1, latency_s
        self._runtime.on_call(record)
        await asyncio.sleep(0)
        return CallResult(reply, latency_s=latency_s)

    async def _run(self, call: Callable[[], T]) -> T:
        threads = self._runtime.thread_pool
        return call() if threads is None else await asyncio.get_running_loop().run_in_executor(threads, call)

    async def _in_pool(self, request: ChatRequest) -> _CountedReply | None:
        """Call the pool, batched with other requests of this event loop cycle. Returns None on failure."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_CountedReply | None] = loop.create_future()
        self._waiting.append((request, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), BATCH_CALLS):
            task = asyncio.ensure_future(self._deliver(waiting[start : start + BATCH_CALLS]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(
        self, batch: Sequence[tuple[ChatRequest, asyncio.Future[_CountedReply | None]]]
    ) -> None:
        assert self._pool is not None
        replies: list[_CountedReply | None] = [None] * len(batch)
        future = self._pool.submit(_chat_batch, self._provider, [request for request, _ in batch])
        if future is not None:
            done = asyncio.wrap_future(future)
            await asyncio.wait([done])
            done.exception()  # Mark it as retrieved, or asyncio logs it.
            with suppress(Exception):  # The caller repeats the request in this process and sees the error.
                replies = self._pool.result(future)
        for (_, answer), counted in zip(batch, replies, strict=True):
            if not answer.done():
                answer.set_result(counted)


def _chat(provider: LocalProvider, request: ChatRequest) -> _CountedReply:
    reply = provider.chat(request)
    if not isinstance(reply, ChatReply):
        kind = type(provider)
        raise PluginError(
            f"The model provider {kind.__module__}.{kind.__qualname__} returned a "
            f"{type(reply).__qualname__} instead of a ChatReply"
        )
    prompt = sum(count_text_tokens(m.content, _MODEL) + TOKENS_PER_MESSAGE for m in request.messages)
    return reply, Usage(prompt, count_text_tokens(reply.text, _MODEL), reported=False)


def _chat_batch(provider: LocalProvider, requests: Sequence[ChatRequest]) -> list[_CountedReply | None]:
    """Answer requests, with None for each that failed. The caller repeats these and sees the error."""
    replies: list[_CountedReply | None] = [None] * len(requests)
    for n, request in enumerate(requests):
        with suppress(BaseException):  # a panic in a Rust library is not an Exception
            replies[n] = _chat(provider, request)
    return replies
