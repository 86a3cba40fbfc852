"""An answer as a stream: its text piece by piece while it is written, then all that is known of it.

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

from graphrag_ray.base.records import Reference, may_become_reference, render_references, resolve_references
from graphrag_ray.query.methods.answer import Answer

T = TypeVar("T")

Say: TypeAlias = Callable[[str], None]
Answering: TypeAlias = Callable[[Say], Coroutine[Any, Any, Answer]]
"""Answers, and says the pieces while it does."""


class StartsAgain(str):
    """A piece of a stream that says: what was shown before it counts no more. The whole text follows."""


FAILED_MIDWAY = "\n\n[The endpoint failed in the middle of the answer, which begins again:]\n\n"
CORRECTED = "\n\n[What was shown above was not the final text, which follows:]\n\n"


class Telling:
    """A `Listener` that says what of an answer's last reply may be shown already (`Written`).

    told   what was said and still counts: a beginning of the answer's text
    expected  makes what reads the next reply, once that is the answer's
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self.expected: Callable[[], Written | None] = lambda: None
        self._written: Written | None = None
        self._told: list[str] = []

    def begins(self) -> None:
        if self._told:
            self._starts_again(FAILED_MIDWAY)
        self._written = self.expected()

    def piece(self, text: str) -> None:
        if self._written is not None and (shown := self._written.add(text)):
            self._told.append(shown)
            self._say(shown)

    def end(self, text: str) -> None:
        """The answer is there: say what of its text was held back."""
        if not text.startswith("".join(self._told)):
            self._starts_again(CORRECTED)
        if rest := text[len("".join(self._told)) :]:
            self._told = [text]
            self._say(rest)

    def _starts_again(self, why: str) -> None:
        self._told = []
        self._say(StartsAgain(why))


class Background:
    """An event loop in a thread of its own, until it is closed: what still runs then is cancelled."""

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
        """What it comes to. Cancelled, it is done at once, and the work ends soon after."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()


ENDS_WITHIN_S = 10.0
"""What was cancelled; it does not tell where it had not even begun."""


class AnswerStream:
    """Pieces of an answer's text, once each, for a caller without an event loop.

    Together they are `answer.text`, where no piece is a StartsAgain; else those after the last one are. What
    fails is raised by the iteration. To stop early, leave its `with` block, or `close` it: what is in flight
    is given up.
    """

    def __init__(self, answering: Answering, background: Background | None = None) -> None:
        """background: where it runs; None: in one of its own."""
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._over = threading.Event()

        async def answered() -> Answer:
            try:
                return await answering(self._said.put)
            finally:
                self._over.set()

        self._own = Background() if background is None else None
        self._running = (self._own or background).run(answered())  # type: ignore[union-attr]
        self._running.add_done_callback(lambda _: self._said.put(None))

    @property
    def answer(self) -> Answer:
        """The answer; there when the iteration has ended. Raises RuntimeError before."""
        return _ended(self._running)

    def __iter__(self) -> Iterator[str]:
        while (piece := self._said.get()) is not None:
            yield piece
        self._said.put(None)  # for another look
        self.close()
        self._running.result()

    def close(self) -> None:
        """Returns when it has ended."""
        self._running.cancel()
        if self._own:
            self._own.close()
        else:
            self._over.wait(ENDS_WITHIN_S)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ended(running: Future[Answer] | asyncio.Future[Answer]) -> Answer:
    if running.done() and not running.cancelled() and running.exception() is None:
        return running.result()
    raise RuntimeError("the stream has not ended: read all of its pieces first")


class AsyncAnswerStream:
    """The same for a caller with an event loop: `async for`, `async with`, `aclose`."""

    def __init__(self, answering: Answering) -> None:
        self._said: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(answering(self._said.put_nowait))
        self._task.add_done_callback(lambda _: self._said.put_nowait(None))

    @property
    def answer(self) -> Answer:
        """The answer; there when the iteration has ended. Raises RuntimeError before."""
        return _ended(self._task)

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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_SCORE = re.compile(r"<\s{0,8}/?\s{0,8}ANSWER[\s_]{0,8}HELPFULNESS", re.IGNORECASE)
_SCORE_LETTERS = "answerhelpfulness"
_LONGEST_SCORE = 48
_EMPHASIS = "*`"
"""May stand around a score."""
_LONGEST_REFERENCE = 1_000
"""A bracket that is open for longer is taken for text. Should it be a reference, the end corrects it."""
_UNDECIDED = re.compile(rf"[\s{_EMPHASIS}]*")


class Written:
    """Takes the pieces of a reply, gives what may be shown: the beginning of the text that the whole reply
    comes to, as far as it is certain. Its end, and what a score stands before, are held back for good.

    numbering   (section, local number) -> id of the records that the reply may cite
    number      their short ids
    """

    def __init__(self, numbering: Mapping[tuple[str, int], str], number: Mapping[Reference, int]) -> None:
        self._numbering, self._number = numbering, number
        self._raw = ""
        self._pending: list[str] = []
        self._space = ""
        self._begun = False
        self._over = False

    def add(self, piece: str) -> str:
        """What can be shown now."""
        if self._over:
            return ""
        self._pending.append(piece)
        if _UNDECIDED.fullmatch(piece):  # however much of it comes, it is looked at once
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
    """How many characters of a text mean the same whatever follows: up to what is a score, or may become one,
    and what may become a reference."""
    if found := _SCORE.search(text):
        text = text[: found.start()].rstrip(_EMPHASIS)
    elif len(text) - (last := text.rfind("<")) <= _LONGEST_SCORE and last >= 0:
        letters = re.sub(r"[\s_/]", "", text[last + 1 :]).lower()
        if _SCORE_LETTERS.startswith(letters):
            text = text[:last].rstrip(_EMPHASIS)
    tail = max(0, len(text) - _LONGEST_REFERENCE)
    if (opened := may_become_reference(text[tail:])) is not None:
        text = text[: tail + opened]
    # A reference takes the blanks before it with it, a score the marks.
    return min(len(text.rstrip(" \t")), len(text.rstrip(_EMPHASIS)))
