"""An answer as a stream: its text piece by piece while it is written, then all that is known of it.

with index.stream("What are the main themes?") as stream:
    for piece in stream:
        print(piece, end="", flush=True)
print(stream.answer.references)
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeAlias

from graphrag_ray.query.answer import Answer
from graphrag_ray.query.written import Written

Say: TypeAlias = Callable[[str], None]
Answering: TypeAlias = Callable[[Say], Coroutine[Any, Any, Answer]]
"""Answers, and says the pieces while it does."""


class StartsAgain(str):
    """A piece of a stream that says: what was shown before it counts no more. The whole text follows."""


FAILED_MIDWAY = "\n\n[The endpoint failed in the middle of the answer, which begins again:]\n\n"
CORRECTED = "\n\n[What was shown above was not the final text, which follows:]\n\n"
UNFINISHED = "the stream has not ended: read all of its pieces first"


class Telling:
    """A `Listener` that says what of an answer's last reply may be shown already (`query/written.py`).

    told   what was said and still counts: a beginning of the answer's text
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._expected: Callable[[], Written] | None = None
        self._written: Written | None = None
        self.told = ""

    def expect(self, written: Callable[[], Written]) -> None:
        """The next reply is the answer's."""
        self._expected = written

    def begins(self) -> None:
        if self.told:
            self._starts_again(FAILED_MIDWAY)
        self._written = self._expected() if self._expected else None

    def piece(self, text: str) -> None:
        if self._written is not None and (shown := self._written.add(text)):
            self.told += shown
            self._say(shown)

    def end(self, text: str) -> None:
        """The answer is there: say what of its text was held back."""
        if not text.startswith(self.told):
            self._starts_again(CORRECTED)
        if rest := text[len(self.told) :]:
            self.told = text
            self._say(rest)

    def _starts_again(self, why: str) -> None:
        self.told = ""
        self._say(StartsAgain(why))


class AnswerStream:
    """Pieces of an answer's text, once each, for a caller without an event loop.

    Together they are `answer.text`, where no piece is a StartsAgain; else those after the last one are. What
    fails is raised by the iteration. To stop early, leave its `with` block, or `close` it: what is in flight
    is given up.
    """

    def __init__(self, answering: Answering) -> None:
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended: Answer | BaseException | None = None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Answer]] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(answering,), name="ask", daemon=True)
        self._thread.start()

    @property
    def answer(self) -> Answer:
        """The answer; there when the iteration has ended. Raises RuntimeError before."""
        if isinstance(self._ended, Answer):
            return self._ended
        raise RuntimeError(UNFINISHED)

    def __iter__(self) -> Iterator[str]:
        while (piece := self._said.get()) is not None:
            yield piece
        self._said.put(None)  # for another look
        self._thread.join()
        if isinstance(self._ended, BaseException):
            raise self._ended

    def close(self) -> None:
        self._closed = True
        if self._running is not None and self._thread.is_alive():
            loop, task = self._running
            loop.call_soon_threadsafe(task.cancel)
        self._thread.join()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, answering: Answering) -> None:
        async def answer() -> Answer:
            task = asyncio.ensure_future(answering(self._said.put))
            self._running = asyncio.get_running_loop(), task
            if self._closed:
                task.cancel()
            return await task

        try:
            self._ended = asyncio.run(answer())
        except BaseException as e:  # noqa: BLE001 - raised again by the iteration
            self._ended = e
        finally:
            self._said.put(None)


class AsyncAnswerStream:
    """The same for a caller with an event loop: `async for`, `async with`, `aclose`."""

    def __init__(self, answering: Answering) -> None:
        self._said: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(answering(self._said.put_nowait))
        self._task.add_done_callback(lambda _: self._said.put_nowait(None))

    @property
    def answer(self) -> Answer:
        """The answer; there when the iteration has ended. Raises RuntimeError before."""
        if self._task.done() and not self._task.cancelled() and self._task.exception() is None:
            return self._task.result()
        raise RuntimeError(UNFINISHED)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (piece := await self._said.get()) is not None:
            yield piece
        self._said.put_nowait(None)  # for another look
        await self._task

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
