"""Runs one dialogue: sends its generator the replies that come from a journal or a function.

Pure: the executors provide clock and network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from graphrag_ray.base import logs, unexpected_errors
from graphrag_ray.base.errors import DialogueFailed, GraphRagError, StoreError
from graphrag_ray.base.messages import (
    RERANK,
    ChatReply,
    Dialogue,
    EmbeddingReply,
    EmbeddingRequest,
    Reply,
    Request,
    RerankReply,
    RerankRequest,
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
class GaveUp:
    """The dialogue cannot use its replies, and asking again would not help.

    `bug` marks an unexpected error; a later version of the code may be able to use the same replies.
    """

    error: str
    bug: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The dialogue waits for replies to the `requests` of turn number `turn`."""

    turn: int
    requests: tuple[Request, ...]


State: TypeAlias = Complete[T] | GaveUp | Waiting


class DialogueRunner(Generic[T]):
    """A running dialogue.

    Attributes:
        state: Waiting until the dialogue completes or gives up.
        key: The item's key, a hash of the first turn; "" for a dialogue without requests.
    """

    def __init__(self, dialogue: Dialogue[T]) -> None:
        self._dialogue = dialogue
        self._is_list = False
        self._turn = -1
        self.key = ""
        self.state: State[T] = self._advance(None)

    def send(self, replies: Sequence[Reply]) -> State[T]:
        """Answer the open turn with one reply per request, in order. Removes reasoning from the replies."""
        if not isinstance(self.state, Waiting) or len(replies) != len(self.state.requests):
            raise ValueError("Pass one reply for each request of the open turn")
        cleaned = [r.without_reasoning if isinstance(r, ChatReply) else r for r in replies]
        self.state = self._advance(cleaned if self._is_list else cleaned[0])
        return self.state

    def _advance(self, value: Reply | list[Reply] | None) -> State[T]:
        try:
            turn = next(self._dialogue) if value is None else self._dialogue.send(value)
            is_list = isinstance(turn, list | tuple)
            requests = tuple(turn) if is_list else (turn,)
            # Hash requests here, so that a request that cannot be hashed fails only this item.
            key = self.key or (item_key(turn) if self._turn < 0 else "")
            for request in requests:
                _ = request.hash
        except StopIteration as stop:
            return Complete(stop.value)
        except DialogueFailed as failure:
            return GaveUp(str(failure))
        except BaseException as error:
            if isinstance(error, StoreError) or not (
                isinstance(error, GraphRagError) or unexpected_errors.is_unexpected(error)
            ):
                raise
            return GaveUp(record_bug(error), bug=True)
        self._turn += 1
        self._is_list, self.key = is_list, key
        return Waiting(self._turn, requests)


def failing(error: BaseException) -> Dialogue[Any]:
    """Create a dialogue that fails before its first request."""
    raise error
    yield  # pragma: no cover - makes it a generator


def record_bug(error: BaseException) -> str:
    """Log an unexpected error and describe it in one line for a failure row.

    The log says where the error occurred but omits its message, which may quote a document.
    """
    location = unexpected_errors.error_location(error)
    logs.log_event(logger, "item failed with an unexpected error", error=type(error).__name__, place=location)
    logger.debug("Unexpected error", exc_info=error)
    return logs.scrub_secrets(unexpected_errors.describe_unexpected_error(error))


def replay(runner: DialogueRunner[T], rows: Sequence[JournalRow]) -> State[T]:
    """Send a dialogue its journalled replies while the request hashes match.

    Stops at the first turn without all of its replies. `rows` are the resolved rows of the item's key.
    """
    while isinstance(runner.state, Waiting):
        replies = journalled_replies(runner.state, rows)
        if len(replies) < len(runner.state.requests):
            break
        runner.send([replies[slot] for slot in range(len(replies))])
    return runner.state


def latest_failure(state: Waiting, rows: Sequence[JournalRow]) -> JournalRow | None:
    """Return the latest journalled failure of the open turn, if any."""
    hashes = {r.hash for r in state.requests}
    failed = [r for r in rows if r.kind == "failed" and r.request_hash in hashes]
    return max(failed, key=lambda r: (r.at, r.error)) if failed else None


def journalled_replies(state: Waiting, rows: Sequence[JournalRow]) -> dict[int, Reply]:
    """Return the journalled replies to the open turn, by slot (position of the request)."""
    turn_rows = {(r.slot, r.request_hash): r for r in rows if r.kind == "turn" and r.turn == state.turn}
    return {
        slot: reply_from_row(turn_rows[slot, request.hash], request)
        for slot, request in enumerate(state.requests)
        if (slot, request.hash) in turn_rows
    }


def run_dialogue(dialogue: Dialogue[T], answer: Callable[[Request], Reply]) -> T:
    """Run a dialogue with a function that answers its requests, for tests, notebooks and forecasts.

    Raises:
        DialogueFailed: The dialogue gave up.
    """
    runner = DialogueRunner(dialogue)
    while isinstance(runner.state, Waiting):
        runner.send([answer(request) for request in runner.state.requests])
    if isinstance(runner.state, GaveUp):
        raise DialogueFailed(runner.state.error)
    return runner.state.result


def reply_from_row(row: JournalRow, request: Request) -> Reply:
    if isinstance(request, EmbeddingRequest):
        return EmbeddingReply(row.vector or b"", usage_of(row))
    if isinstance(request, RerankRequest):
        return RerankReply(row.vector or b"", usage_of(row))
    return ChatReply(row.reply or "", row.finish_reason or "stop", usage_of(row))


def usage_of(row: JournalRow) -> Usage:
    # The journal does not store the number of searches, which is one for up to 100 short documents.
    searches = int(row.prompt == RERANK)
    return Usage(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reported, searches)
