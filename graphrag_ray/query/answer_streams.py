"""Stream an answer in pieces while it is written, then return the complete answer.

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

Emit: TypeAlias = Callable[[str], None]
AnswerFunction: TypeAlias = Callable[[Emit], Coroutine[Any, Any, Answer]]
"""Answers a question, and passes each piece of the text to a callback."""


class StartsAgain(str):
    """A piece that retracts all earlier pieces. The whole text follows."""


FAILED_MIDWAY = "\n\n[The endpoint failed before the answer was complete. The answer starts again:]\n\n"
CORRECTED = "\n\n[The text above was not final. The final text follows:]\n\n"


class ReplyStreamer:
    """A `StreamListener` that streams the answer."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._create_parser: Callable[[], StreamedText | None] = lambda: None
        self._text: StreamedText | None = None
        self._streamed: list[str] = []

    def begin(self, create_parser: Callable[[], StreamedText | None]) -> None:
        """Start an answer, which replaces an earlier one that found nothing."""
        if self._streamed:
            self._retract(CORRECTED)
        self._create_parser = create_parser

    def on_start(self) -> None:
        if self._streamed:
            self._retract(FAILED_MIDWAY)
        self._text = self._create_parser()

    def on_text(self, text: str) -> None:
        if self._text is not None and (certain := self._text.add(text)):
            self._streamed.append(certain)
            self._emit(certain)

    def end(self, text: str) -> None:
        """Stream the remainder of the final text."""
        if not text.startswith("".join(self._streamed)):
            self._retract(CORRECTED)
        if remainder := text[sum(map(len, self._streamed)) :]:
            self._streamed = [text]
            self._emit(remainder)

    def _retract(self, reason: str) -> None:
        self._streamed = []
        self._emit(StartsAgain(reason))


class Background:
    """An event loop in its own thread. Closing it cancels the coroutines that are still running."""

    def __init__(self) -> None:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:
            closed = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), closed))
            await closed.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="ask", daemon=True)
        self._thread.start()
        self._loop, self._closed = started.result()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. Cancelling the future takes effect immediately, before the coroutine ends."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just closed
                self._loop.call_soon_threadsafe(self._closed.set)
            self._thread.join()


CANCEL_TIMEOUT_S = 10.0
"""Maximum time to wait for a cancelled coroutine. One that had not started yet never reports its end."""


class AnswerStream:
    """The text of an answer in pieces, for a caller without an event loop.

    The pieces after the last StartsAgain, if there is one, add up to `answer.text`. Iteration raises the
    error if answering fails. To stop early, leave the `with` block or call `close`, which cancels calls.
    """

    def __init__(self, answer_fn: AnswerFunction, background: Background | None = None) -> None:
        """Start answering in `background`, or in a new one if it is None."""
        self._pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended = threading.Event()

        async def run() -> Answer:
            try:
                return await answer_fn(self._pieces.put)
            finally:
                self._ended.set()

        self._own_background = Background() if background is None else None
        self._running = (self._own_background or background).run(run())  # type: ignore[union-attr]
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
        """Cancel the question, and wait until it has ended."""
        self._running.cancel()
        if self._own_background:
            self._own_background.close()
        else:
            self._ended.wait(CANCEL_TIMEOUT_S)

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

    def __init__(self, answer_fn: AnswerFunction) -> None:
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(answer_fn(self._pieces.put_nowait))
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
_MAX_SCORE_LENGTH = 48
_EMPHASIS = "*`"
"""Markdown characters that may surround a score."""
_MAX_REFERENCE_LENGTH = 1_000
"""A bracket left open for longer counts as text. If it is a reference, the final text corrects it."""
_BLANK = re.compile(rf"[\s{_EMPHASIS}]*")


class StreamedText:
    """Parses a reply as it arrives, and returns the text that is certain to be in the final answer.

    Trailing whitespace and emphasis, and a possible score or reference, are withheld until more text arrives.

    Args:
        numbering: (section, local number) -> id of the records that the reply may cite.
        short_ids: Short ids of these records.
    """

    def __init__(self, numbering: Mapping[tuple[str, int], str], short_ids: Mapping[Reference, int]) -> None:
        self._ids_by_number, self._short_ids = numbering, short_ids
        self._raw = ""
        self._pending: list[str] = []
        self._trailing_space = ""
        self._started = False
        self._ended = False

    def add(self, piece: str) -> str:
        """Add a piece of the reply, and return the text that has become certain."""
        if self._ended:
            return ""
        self._pending.append(piece)
        if _BLANK.fullmatch(piece):  # do not parse again: a long run of whitespace would take quadratic time
            return ""
        self._raw, self._pending = "".join([self._raw, *self._pending]), []
        self._ended = _SCORE.search(self._raw) is not None
        certain_length = _certain_prefix_length(self._raw)
        resolved, _, _ = resolve_references(self._raw[:certain_length], self._ids_by_number)
        self._raw = self._raw[certain_length:]
        text = self._trailing_space + render_references(resolved, self._short_ids.get)
        if not self._started:
            text = text.lstrip()
        stripped = text.rstrip()
        self._trailing_space = text[len(stripped) :]
        self._started = self._started or bool(stripped)
        return stripped


def _certain_prefix_length(text: str) -> int:
    """Return the length of the text before a possible score or reference at its end."""
    if match := _SCORE.search(text):
        text = text[: match.start()].rstrip(_EMPHASIS)
    elif len(text) - (last := text.rfind("<")) <= _MAX_SCORE_LENGTH and last >= 0:
        letters = re.sub(r"[\s_/]", "", text[last + 1 :]).lower()
        if _SCORE_LETTERS.startswith(letters):
            text = text[:last].rstrip(_EMPHASIS)
    tail = max(0, len(text) - _MAX_REFERENCE_LENGTH)
    if (opened := partial_reference_start(text[tail:])) is not None:
        text = text[: tail + opened]
    # Blanks before a reference and emphasis before a score are removed from the answer.
    return min(len(text.rstrip(" \t")), len(text.rstrip(_EMPHASIS)))
