"""The way to every model: a request goes in, its reply comes out, accounted for. It knows no GraphRAG.

ask ─► lane of the model ─► line ─► limiter ─► client ─► endpoint
                             (embeddings are packed first; the offline engine is called directly)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from graphrag_ray.base.errors import FatalCallError, NoWay, PermanentCallError
from graphrag_ray.base.index_settings import Model
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
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.providers import PROVIDERS, Client, LocalProvider
from graphrag_ray.llm.accounting import CallRecord, sum_usage
from graphrag_ray.llm.limiter import Limiter
from graphrag_ray.llm.model_client import Called, Lane, Runtime
from graphrag_ray.llm.request_sizes import PACK_TOKENS, TOKENS_PER_MESSAGE, text_size

PACK_HOLD_S = 0.01


class Gateway:
    """Asks models. Belongs to one event loop; `close` it when done.

    models    by logical name; a name that is not here is answered offline
    clients   for each model with endpoints: of `RemoteProvider.connect`
    local     the providers of models that are answered in this process; of others, the offline engine
    runtime   the other fields of `Runtime`
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
        self._lanes = {
            name: Lane(name, model, clients[name], self._runtime)
            for name, model in models.items()
            if not model.is_local
        }
        self._packers = {}
        for name, lane in self._lanes.items():
            limits = (limit for e in lane.model.endpoints if (limit := e.tokens_per_minute) is not None)
            self._packers[name] = Packer(
                lane.embed,
                partial(text_size, model=lane.model),
                lane.model.embedding_batch,
                PACK_HOLD_S,
                min(limits, default=math.inf),
            )
        self._local = dict(local or {})
        self._local_lanes: dict[str, LocalLane] = {}

    async def ask(self, request: Request, stage: str) -> Reply:
        """The reply to one request; stage: for the accounts.

        Raises PermanentCallError (this request never succeeds), TransientCallError with `attempts`
        (it did not, this time) or FatalCallError (no request will succeed).
        """
        return (await self.answer(request, stage)).reply

    async def answer(self, request: Request, stage: str, listener: Listener | None = None) -> Called[Reply]:
        """`ask`, with the endpoint, the latency and the number of attempts.

        listener: hears a chat reply while it is written
        """
        called: Called[ChatReply] | Called[EmbeddingReply]
        name = request.call.model
        lane = self._lanes.get(name)
        if lane and lane.model.unknown:
            raise NoWay(f"this machine does not know where the model {lane.model.model!r} is")
        if isinstance(request, EmbeddingRequest):
            if name not in self._packers:
                self._packers[name] = Packer(self._local_lane(name).embed, len, texts=1024, hold_s=0.0)
            called = await self._packers[name].add(request, stage)
        elif lane:
            called = await lane.chat(request, stage, listener)
        else:
            called = await self._local_lane(name).chat(request, stage, listener)
        return Called(called.reply, called.endpoint, called.latency_s, called.attempts)

    async def close(self) -> None:
        for packer in self._packers.values():
            await packer.finish()
        for lane in self._lanes.values():
            await lane.close()

    def _local_lane(self, name: str) -> LocalLane:
        if name not in self._local_lanes:
            provider = self._local.get(name) or PROVIDERS["offline"]
            assert isinstance(provider, LocalProvider)
            self._local_lanes[name] = LocalLane(provider, self._runtime)
        return self._local_lanes[name]


_Answer: TypeAlias = asyncio.Future[Called[EmbeddingReply]]
_Wanted: TypeAlias = tuple[EmbeddingRequest, _Answer]


@dataclass
class _Pack:
    timer: asyncio.TimerHandle
    wanted: list[_Wanted] = field(default_factory=list)
    tokens: int = 0


class Packer:
    """Gathers requests per stage and dimensions for at most `hold_s` seconds or `texts` texts.

    A pack that is refused for good is halved until the text that is at fault stands alone.
    """

    def __init__(
        self,
        send: Callable[[Sequence[EmbeddingRequest], str], Awaitable[Called[list[EmbeddingReply]]]],
        size: Callable[[str], int],
        texts: int,
        hold_s: float,
        max_tokens: float = PACK_TOKENS,
    ) -> None:
        """size: tokens of a text; max_tokens: of a pack, unless one text has more."""
        self._send = send
        self._size = size
        self._texts = texts
        self._hold_s = hold_s
        self._max_tokens = min(max_tokens, PACK_TOKENS)
        self._open: dict[tuple[str, int | None], _Pack] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, request: EmbeddingRequest, stage: str) -> Called[EmbeddingReply]:
        """The reply to one request, with its share of the pack's usage."""
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
        pack.wanted.append((request, answer))
        pack.tokens += tokens
        if len(pack.wanted) >= self._texts:
            self._close(key)
        return await answer

    async def finish(self) -> None:
        """Give up what is open or under way."""
        while self._open:
            pack = self._open.popitem()[1]
            pack.timer.cancel()
            for _, answer in pack.wanted:
                answer.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _close(self, key: tuple[str, int | None]) -> None:
        pack = self._open.pop(key)
        pack.timer.cancel()
        wanted = [(request, answer) for request, answer in pack.wanted if not answer.done()]
        if wanted:
            task = asyncio.ensure_future(self._deliver(wanted, key[0]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(self, wanted: list[_Wanted], stage: str) -> None:
        """Send one pack and hand out the answers, or the error."""
        try:
            called = await self._send([request for request, _ in wanted], stage)
        except Exception as e:  # noqa: BLE001 - handed to those who asked, with its type
            if isinstance(e, PermanentCallError) and len(wanted) > 1:
                middle = len(wanted) // 2
                await self._deliver(wanted[:middle], stage)
                await self._deliver(wanted[middle:], stage)
                return
            for _, answer in wanted:
                if not answer.done():
                    answer.set_exception(e)
        except asyncio.CancelledError:
            for _, answer in wanted:
                answer.cancel()
            raise
        else:
            for (_, answer), reply in zip(wanted, called.reply, strict=True):
                if not answer.done():
                    answer.set_result(Called(reply, called.endpoint, called.latency_s, called.attempts))


T = TypeVar("T")

_Counted: TypeAlias = tuple[ChatReply, Usage]

TOGETHER = 16
"""Calls that go to another process in one message."""

_MODEL = Model()


class LocalLane:
    """Calls run here and now, or where `Runtime` says: they are short. After each, the event loop gets its
    turn. In other processes many run together: a message takes as long as a short call. Tokens are our own
    counts."""

    def __init__(self, provider: LocalProvider, runtime: Runtime) -> None:
        self._provider = provider
        self._runtime, self._pool = runtime, runtime.pool
        self._waiting: list[tuple[ChatRequest, asyncio.Future[_Counted | None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def chat(
        self, request: ChatRequest, stage: str, listener: Listener | None = None
    ) -> Called[ChatReply]:
        """listener: hears the reply, which is written at once, in one piece."""
        started = self._runtime.clock()
        counted = await self._beside(request) if self._pool and self._pool.is_up() else None
        if counted is None:
            work = partial(_counted, self._provider, request)
            counted = self._pool.here(work) if self._pool else await self._run(work)
        reply, usage = counted
        if listener is not None:
            listener.begins()
            listener.piece(reply.text)
        called = Called(replace(reply, usage=usage), latency_s=self._runtime.clock() - started)
        self._note(stage, request, usage, called.latency_s)
        await asyncio.sleep(0)
        return called

    async def embed(self, requests: Sequence[EmbeddingRequest], stage: str) -> Called[list[EmbeddingReply]]:
        started = self._runtime.clock()
        replies = await self._run(partial(self._provider.embed, requests))
        usages = [Usage(text_size(r.text, _MODEL), reported=False) for r in requests]
        counted = [replace(reply, usage=u) for reply, u in zip(replies, usages, strict=True)]
        called = Called(counted, latency_s=self._runtime.clock() - started)
        self._note(stage, requests[0], sum_usage(usages), called.latency_s)
        await asyncio.sleep(0)
        return called

    async def _run(self, work: Callable[[], T]) -> T:
        aside = self._runtime.aside
        return work() if aside is None else await asyncio.get_running_loop().run_in_executor(aside, work)

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
        record = CallRecord(stage, request.prompt, request.call.model_id, "", "ok", usage, 0, latency_s)
        record.attempts, record.busy_s = 1, latency_s
        self._runtime.on_call(record)


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
    found: list[_Counted | None] = [None] * len(requests)
    for n, request in enumerate(requests):
        with suppress(BaseException):  # a panic of a library in Rust is no Exception
            found[n] = _counted(provider, request)
    return found
