"""Many embedding requests, one call: what is asked for at about the same time is packed together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from graphrag_ray.base.errors import PermanentCallError
from graphrag_ray.base.messages import EmbeddingReply, EmbeddingRequest
from graphrag_ray.llm.model_client import Called
from graphrag_ray.llm.request_sizes import PACK_TOKENS

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
        except PermanentCallError as e:
            if len(wanted) == 1:
                _fail(wanted, e)
                return
            middle = len(wanted) // 2
            await self._deliver(wanted[:middle], stage)
            await self._deliver(wanted[middle:], stage)
        except Exception as e:  # noqa: BLE001 - handed to those who asked, with its type
            _fail(wanted, e)
        except asyncio.CancelledError:
            for _, answer in wanted:
                answer.cancel()
            raise
        else:
            for (_, answer), reply in zip(wanted, called.reply, strict=True):
                if not answer.done():
                    answer.set_result(Called(reply, called.endpoint, called.latency_s, called.attempts))


def _fail(wanted: list[_Wanted], error: Exception) -> None:
    for _, answer in wanted:
        if not answer.done():
            answer.set_exception(error)
