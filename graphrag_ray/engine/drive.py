"""Driving one dialogue: feeding a generator its replies, from a journal or from a list.

Pure: no clock, no network. The executors add those around it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from graphrag_ray.base import logs, unforeseen
from graphrag_ray.base.errors import DialogueFailed, GraphRagError, StoreError
from graphrag_ray.base.messages import (
    ChatReply,
    Dialogue,
    EmbeddingReply,
    EmbeddingRequest,
    Reply,
    Request,
    Usage,
    item_key,
)
from graphrag_ray.store.journal_rows import JournalRow

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Complete(Generic[T]):
    """The dialogue returned `result`."""

    result: T


@dataclass(frozen=True, slots=True)
class Refused:
    """The dialogue cannot use its replies; asking again would change nothing.

    bug: it failed by an error that nobody foresaw; another version of our code may use the same replies
    """

    error: str
    bug: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """The dialogue waits for the replies to `requests`, its turn number `turn`."""

    turn: int
    requests: tuple[Request, ...]


State: TypeAlias = Complete[T] | Refused | Open


class Driver(Generic[T]):
    """One running dialogue. `state` is Open until the dialogue returns or gives up.

    `key` is the item's key: the hash of its first turn; "" for a dialogue that asks nothing.
    """

    def __init__(self, dialogue: Dialogue[T]) -> None:
        self._dialogue = dialogue
        self._listed = False
        self._turn = -1
        self.key = ""
        self.state: State[T] = self._advance(None)

    def send(self, replies: Sequence[Reply]) -> State[T]:
        """Answer the open turn: one reply for each of its requests, in order. No thoughts of a model
        reach the dialogue, whoever recorded them."""
        if not isinstance(self.state, Open) or len(replies) != len(self.state.requests):
            raise ValueError("a reply for each request of the open turn is needed")
        said = [r.without_thoughts if isinstance(r, ChatReply) else r for r in replies]
        self.state = self._advance(said if self._listed else said[0])
        return self.state

    def _advance(self, value: Reply | list[Reply] | None) -> State[T]:
        try:
            turn = next(self._dialogue) if value is None else self._dialogue.send(value)
            listed = isinstance(turn, list | tuple)
            requests = tuple(turn) if listed else (turn,)
            # Whoever replays needs the hashes; what cannot be hashed is this item's failure.
            key = self.key or (item_key(turn) if self._turn < 0 else "")
            for request in requests:
                _ = request.hash
        except StopIteration as stop:
            return Complete(stop.value)
        except DialogueFailed as failure:
            return Refused(str(failure))
        except BaseException as error:
            if isinstance(error, StoreError) or not (
                isinstance(error, GraphRagError) or unforeseen.is_unforeseen(error)
            ):
                raise
            return Refused(note_bug(error), bug=True)
        self._turn += 1
        self._listed, self.key = listed, key
        return Open(self._turn, requests)


def raising(error: BaseException) -> Dialogue[Any]:
    """A dialogue that fails before it asks anything."""
    raise error
    yield  # pragma: no cover - what makes it a generator


def note_bug(error: BaseException) -> str:
    """An unforeseen error in a line, for a failure row, which is its record. The log tells its place, and no
    message, which may quote a document."""
    place = unforeseen.place_of(error)
    logs.event(logger, "failed by an error that is a bug", error=type(error).__name__, place=place)
    logger.debug("the error", exc_info=error)
    return logs.without_any_secret(unforeseen.told(error))


def replay(driver: Driver[T], rows: Sequence[JournalRow]) -> State[T]:
    """Feed a dialogue its journalled replies as long as the request hashes agree.

    rows: the resolved rows of the item's key. Stops at the first turn of which a reply is missing.
    """
    while isinstance(driver.state, Open):
        found = answered(driver.state, rows)
        if len(found) < len(driver.state.requests):
            break
        driver.send([found[slot] for slot in range(len(found))])
    return driver.state


def failure_of(state: Open, rows: Sequence[JournalRow]) -> JournalRow | None:
    """The journalled failure that stands against the open turn, if there is one: the latest."""
    hashes = {r.hash for r in state.requests}
    failed = [r for r in rows if r.kind == "failed" and r.request_hash in hashes]
    return max(failed, key=lambda r: (r.at, r.error)) if failed else None


def answered(state: Open, rows: Sequence[JournalRow]) -> dict[int, Reply]:
    """Replies that the journal already holds for some of the open turn's requests, by slot."""
    known = {(r.slot, r.request_hash): r for r in rows if r.kind == "turn" and r.turn == state.turn}
    return {
        slot: reply_of(known[slot, request.hash], request)
        for slot, request in enumerate(state.requests)
        if (slot, request.hash) in known
    }


def run(dialogue: Dialogue[T], answer: Callable[[Request], Reply]) -> T:
    """Drive a dialogue with a function that answers. For tests, notebooks and the offline engine.

    Raises DialogueFailed where the dialogue does.
    """
    driver = Driver(dialogue)
    while isinstance(driver.state, Open):
        driver.send([answer(request) for request in driver.state.requests])
    if isinstance(driver.state, Refused):
        raise DialogueFailed(driver.state.error)
    return driver.state.result


def reply_of(row: JournalRow, request: Request) -> Reply:
    """The reply that a journal row holds."""
    usage = Usage(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reported)
    if isinstance(request, EmbeddingRequest):
        return EmbeddingReply(row.vector or b"", usage)
    return ChatReply(row.reply or "", row.finish_reason or "stop", usage)
