"""Stream an answer: its text piece by piece while it is written, then the complete answer.

Example:
    with index.stream("What are the main themes?") as stream:
        for piece in stream:
            print(piece, end="", flush=True)
    print(stream.answer.references)
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from graphrag_ray.base.context_records import (
    Reference,
    partial_reference_start,
    render_references,
    resolve_references,
)
from graphrag_ray.query.methods.answer import Answer

T = TypeVar("T")

Say: TypeAlias = Callable[[str], None]
Answering: TypeAlias = Callable[[Say], Coroutine[Any, Any, Answer]]
"""Answers, and calls back with each piece of the text."""


class StartsAgain(str):
    """A piece that retracts what was streamed before; the whole text follows."""


FAILED_MIDWAY = "\n\n[The endpoint failed in the middle of the answer, which starts again:]\n\n"
CORRECTED = "\n\n[The text above was not final. The final text follows:]\n\n"


class ReplyStreamer:
    """A `StreamListener` that streams what is certain of the last reply, parsed by what `expected`
    returns.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self.expected: Callable[[], StreamedText | None] = lambda: None
        self._text: StreamedText | None = None
        self._shown: list[str] = []

    def on_start(self) -> None:
        if self._shown:
            self._start_again(FAILED_MIDWAY)
        self._text = self.expected()

    def on_text(self, text: str) -> None:
        if self._text is not None and (shown := self._text.add(text)):
            self._shown.append(shown)
            self._say(shown)

    def end(self, text: str) -> None:
        """Stream the rest of the final text."""
        if not text.startswith("".join(self._shown)):
            self._start_again(CORRECTED)
        if rest := text[sum(map(len, self._shown)) :]:
            self._shown = [text]
            self._say(rest)

    def _start_again(self, why: str) -> None:
        self._shown = []
        self._say(StartsAgain(why))


class Background:
    """An event loop in a thread of its own. Closing it cancels what still runs."""

    def __init__(self) -> None:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def live() -> None:
            over = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), over))
            await over.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(live()), name="ask", daemon=True)
        self._thread.start()
        self._loop, self._over = started.result()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. A cancelled future is done at once; the coroutine ends soon after."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just closed
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()


ENDS_WITHIN_S = 10.0
"""Limit on waiting for a cancelled coroutine, which does not report its end if it had not begun."""


class AnswerStream:
    """The text of an answer in pieces, for a caller without an event loop.

    The pieces after the last StartsAgain, or all if there is none, add up to `answer.text`. Iteration raises
    what fails. To stop early, leave the `with` block or call `close`, which cancels calls in flight.
    """

    def __init__(self, answering: Answering, background: Background | None = None) -> None:
        """Start answering in `background`, or in an own one if that is None."""
        self._pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._over = threading.Event()

        async def answered() -> Answer:
            try:
                return await answering(self._pieces.put)
            finally:
                self._over.set()

        self._own = Background() if background is None else None
        self._running = (self._own or background).run(answered())  # type: ignore[union-attr]
        self._running.add_done_callback(lambda _: self._pieces.put(None))

    @property
    def answer(self) -> Answer:
        """The answer. Raises RuntimeError before the iteration has ended."""
        return _result(self._running)

    def __iter__(self) -> Iterator[str]:
        while (piece := self._pieces.get()) is not None:
            yield piece
        self._pieces.put(None)  # lets a second iteration end
        self.close()
        self._running.result()

    def close(self) -> None:
        """Cancel the answer, and wait until it has ended."""
        self._running.cancel()
        if self._own:
            self._own.close()
        else:
            self._over.wait(ENDS_WITHIN_S)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result(running: Future[Answer] | asyncio.Future[Answer]) -> Answer:
    if running.done() and not running.cancelled() and running.exception() is None:
        return running.result()
    raise RuntimeError("The stream has not ended: read all of its pieces first")


class AsyncAnswerStream:
    """Like `AnswerStream`, for a caller with an event loop: `async for`, `async with`, `aclose`."""

    def __init__(self, answering: Answering) -> None:
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(answering(self._pieces.put_nowait))
        self._task.add_done_callback(lambda _: self._pieces.put_nowait(None))

    @property
    def answer(self) -> Answer:
        """The answer. Raises RuntimeError before the iteration has ended."""
        return _result(self._task)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (piece := await self._pieces.get()) is not None:
            yield piece
        self._pieces.put_nowait(None)  # lets a second iteration end
        await self._task

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_SCORE = re.compile(r"<\s{0,8}/?\s{0,8}ANSWER[\s_]{0,8}HELPFULNESS", re.IGNORECASE)
_SCORE_LETTERS = "answerhelpfulness"
_LONGEST_SCORE = 48
_EMPHASIS = "*`"
"""May surround a score."""
_LONGEST_REFERENCE = 1_000
"""A bracket that stays open for longer counts as text. If it is a reference, the final text corrects it."""
_UNDECIDED = re.compile(rf"[\s{_EMPHASIS}]*")


class StreamedText:
    """Parses a reply while it arrives, and returns the prefix of the final text that is certain.

    The end of the text, and what precedes a score, are held back.

    Args:
        numbering: (section, local number) -> id of the records that the reply may cite.
        number: Short ids of these records.
    """

    def __init__(self, numbering: Mapping[tuple[str, int], str], number: Mapping[Reference, int]) -> None:
        self._numbering, self._number = numbering, number
        self._raw = ""
        self._pending: list[str] = []
        self._space = ""
        self._begun = False
        self._over = False

    def add(self, piece: str) -> str:
        """Add a piece of the reply, and return the text that has become certain."""
        if self._over:
            return ""
        self._pending.append(piece)
        if _UNDECIDED.fullmatch(piece):  # keeps a long run of white space linear
            return ""
        self._raw, self._pending = "".join([self._raw, *self._pending]), []
        self._over = _SCORE.search(self._raw) is not None
        decided = _decided(self._raw)
        resolved, _, _ = resolve_references(self._raw[:decided], self._numbering)
        self._raw = self._raw[decided:]
        text = self._space + render_references(resolved, self._number.get)
        if not self._begun:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._begun = self._begun or bool(shown)
        return shown


def _decided(text: str) -> int:
    """Length of the prefix whose meaning is certain: up to a possible score or reference."""
    if match := _SCORE.search(text):
        text = text[: match.start()].rstrip(_EMPHASIS)
    elif len(text) - (last := text.rfind("<")) <= _LONGEST_SCORE and last >= 0:
        letters = re.sub(r"[\s_/]", "", text[last + 1 :]).lower()
        if _SCORE_LETTERS.startswith(letters):
            text = text[:last].rstrip(_EMPHASIS)
    tail = max(0, len(text) - _LONGEST_REFERENCE)
    if (opened := partial_reference_start(text[tail:])) is not None:
        text = text[: tail + opened]
    # A reference swallows the blanks before it, and a score the emphasis.
    return min(len(text.rstrip(" \t")), len(text.rstrip(_EMPHASIS)))
