"""Work items: dialogues to run, their outcomes, and the coroutine that runs them.

Both executors run items with `run_item` and read results with `replay_outcomes`, so results do not depend on
the executor.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import orjson

from graphrag_ray.base import logs
from graphrag_ray.base.errors import DialogueFailed, PermanentCallError, RequestTooLarge, TransientCallError
from graphrag_ray.base.messages import ChatReply, Dialogue, Reply, Request, Usage, join_surrogates
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.engine.dialogue_runner import (
    Complete,
    DialogueRunner,
    GaveUp,
    State,
    Waiting,
    failing,
    journalled_replies,
    latest_failure,
    record_bug,
    replay,
    usage_of,
)
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, TURN, JournalRow

T = TypeVar("T")
logger = logging.getLogger(__name__)
URGENT_FLUSH_S = 0.5
"""Seconds between journal writes while other items wait for the results."""
BEGIN_BATCH = 128
"""Maximum number of items whose dialogues are started together in a thread."""

Row: TypeAlias = Mapping[str, Any]
"""The table row that an item is made from, with plain values only."""


@dataclass(frozen=True)
class Work(Generic[T]):
    """One kind of dialogue.

    Attributes:
        name: Name of the journal folder `work/<name>/`, and of the stage in failures and accounts.
        start: Creates the dialogue of a row. May read from the store, so it is not called on an event loop.
        label: Returns (item, document path) of a row, for the list of failures.
        needs_results: Whether the source needs results during the sweep because later items depend on them.
        expected_turns: Expected calls per item before any has finished. None if one call answers many items.
    """

    name: str
    start: Callable[[Store, Row], Dialogue[T]]
    label: Callable[[Row], tuple[str, str]]
    needs_results: bool = False
    expected_turns: float | None = 1.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The outcome of an item.

    Attributes:
        status: "failed" is permanent until its prompt, model or input changes. The next run retries an item
            with status "retry". "open" means that replies are still missing.
        first_at, last_at: Unix time of its first and last failure.
        turns: Number of replies in this run.
        replies: Usage of each reply, in this run or an earlier one.
        known_failure: Whether it failed in an earlier run, and this run added nothing.
    """

    key: str
    status: Literal["complete", "failed", "retry", "open"]
    result: T | None = None
    error: str = ""
    attempts: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    turns: int = 0
    replies: tuple[ReplyUsage, ...] = ()
    known_failure: bool = False


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """The usage of one reply, for the accounts."""

    prompt: str
    model_id: str
    endpoint: str
    usage: Usage
    latency_s: float


def outcome_from_journal(key: str, state: State[T], rows: Sequence[JournalRow]) -> Outcome[T]:
    """Derive an outcome from the state of a replayed dialogue and its journal rows."""
    turns = [r for r in rows if r.kind == TURN]
    replies = tuple(ReplyUsage(r.prompt, r.model, r.endpoint, usage_of(r), r.latency_s) for r in turns)
    if isinstance(state, Complete):
        return Outcome(key, "complete", state.result, replies=replies)
    if isinstance(state, GaveUp):
        # Every run retries a bug. This costs no request, and a new version may fix it.
        error, retryable = state.error, state.bug
    elif (failure := latest_failure(state, rows)) is not None:
        error, retryable = failure.error or "", failure.retryable
    else:
        return Outcome(key, "open", replies=replies)
    failures = [r for r in rows if r.kind in (FAILED, KILLED)]
    times = [r.at for r in failures or turns] or [0.0]
    attempts = sum(r.attempts for r in failures) or len(turns)
    status: Literal["failed", "retry"] = "retry" if retryable else "failed"
    return Outcome(key, status, None, error, attempts, min(times), max(times), replies=replies)


StartedItems: TypeAlias = list[tuple[DialogueRunner[T], list[JournalRow]]]
"""Dialogues with their journal rows."""


def start_items(work: Work[T], store: Store, index: JournalIndex, rows: Iterable[Row]) -> StartedItems[T]:
    """Start the dialogues of many items and look up their journal rows.

    An item fails immediately if it crashed its workers or its dialogue cannot be started. Reads the store, so
    do not call it on an event loop.
    """
    rows = list(rows)
    names = [row_key(work, row) for row in rows] if index.any_killed else []
    killed = index.lookup(names)
    runners: list[DialogueRunner[T]] = []
    for position, row in enumerate(rows):
        if names and (failures := killed.get(names[position])):
            runner: DialogueRunner[T] = DialogueRunner(failing(DialogueFailed(failures[-1].error or "")))
            runner.key = names[position]
        else:
            try:
                dialogue = work.start(store, row)
            except BaseException as e:
                if not is_unexpected(e):
                    raise
                dialogue = failing(e)
            runner = DialogueRunner(dialogue)
            if isinstance(runner.state, GaveUp) and runner.state.bug:
                runner.key = runner.key or row_key(work, row)
        runners.append(runner)
    journal = index.lookup([d.key for d in runners if d.key])
    return [(runner, journal.get(runner.key, [])) for runner in runners]


def row_key(work: Work[T], row: Row) -> str:
    """Hash a row to 64 hex characters, as the key of an item whose dialogue cannot be started."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        data = orjson.dumps([work.name, dict(row)], default=repr, option=options)
    except TypeError:  # a lone surrogate, which may also be why the dialogue cannot be started
        data = repr((work.name, dict(row))).encode()
    return hashlib.sha256(data).hexdigest()


def killed_row(work: Work[T], row: Row, times: int, at: float) -> JournalRow:
    """Create the journal row of an item that crashed `times` workers. `at` is a Unix time.

    The failure is permanent because each attempt also loses the worker's other calls in flight.
    """
    error = (
        f"Its worker process died {times} times, the last time while it had no other item: out of memory, or "
        "a crash in native code"
    )
    key = row_key(work, row)
    return JournalRow(key, 0, 0, "", KILLED, at, work.name, error=error, attempts=times)


def replay_outcomes(
    work: Work[T], store: Store, index: JournalIndex, rows: Sequence[Row]
) -> list[tuple[Row, Outcome[T]]]:
    """Replay many items against the journal, without model calls."""
    started = start_items(work, store, index, rows)
    return [
        (row, outcome_from_journal(runner.key, replay(runner, journalled), journalled))
        for row, (runner, journalled) in zip(rows, started, strict=True)
    ]


@dataclass(frozen=True)
class DialogueIO:
    """The I/O that executors provide to dialogues. `ask` may raise a CallError; `now` returns a Unix time."""

    ask: Callable[[Request, str], Awaitable[CallResult[Reply]]]
    journal: Callable[[JournalRow], object] | None
    now: Callable[[], float]


async def run_item(
    stage: str, runner: DialogueRunner[T], rows: Sequence[JournalRow], io: DialogueIO
) -> Outcome[T]:
    """Run one item to its end: replay its journal rows, request missing replies, and journal them.

    A journalled permanent failure is not retried. An unexpected error fails the item, and the next run
    retries it.

    Raises:
        FatalCallError: No request will succeed. The item is not journalled as failed.
    """
    logs.set_item_context(stage, runner.key)
    state = replay(runner, rows)
    written = list(rows)
    known_errors = frozenset(r.error for r in rows if r.error)

    def write_row(**values: Any) -> None:
        row = JournalRow(key=runner.key, at=io.now(), **values)
        if io.journal is not None:
            io.journal(row)
        written.append(row)

    while isinstance(state, Waiting):
        replies = journalled_replies(state, written)
        failure = latest_failure(state, written)
        if failure is not None and not failure.retryable and len(replies) < len(state.requests):
            break
        calls = [
            _ask(stage, state.turn, slot, request, io, write_row, known_errors)
            for slot, request in enumerate(state.requests)
            if slot not in replies
        ]
        new_replies = await asyncio.gather(*calls)
        replies = journalled_replies(state, written) | {s: r for s, r in new_replies if r is not None}
        if len(replies) < len(state.requests):
            break
        state = runner.send([replies[slot] for slot in range(len(state.requests))])
    # Journal the end once. If the dialogue gave up, `graphrag-ray failures` shows the reason even before the
    # first snapshot. A bug does not end the item, because every run retries it.
    item_row = {"turn": 0, "slot": 0, "request_hash": "", "prompt": stage}
    ended = isinstance(state, Waiting) or any(r.kind in (DONE, KILLED) for r in rows)
    if runner.key and isinstance(state, GaveUp) and state.bug:
        if state.error not in known_errors:
            write_row(**item_row, kind=FAILED, error=state.error, retryable=True)
    elif runner.key and not ended:
        write_row(**item_row, kind=DONE, error=state.error if isinstance(state, GaveUp) else None)
    new_rows = written[len(rows) :]
    outcome = outcome_from_journal(runner.key, state, written)
    known_failure = outcome.status != "complete" and bool(rows) and not new_rows
    return replace(outcome, turns=sum(r.kind == TURN for r in new_rows), known_failure=known_failure)


async def _ask(
    stage: str,
    turn: int,
    slot: int,
    request: Request,
    io: DialogueIO,
    write_row: Callable[..., None],
    known_errors: Container[str],
) -> tuple[int, Reply | None]:
    position = {"turn": turn, "slot": slot, "request_hash": request.hash, "prompt": request.prompt}
    try:
        answer = await io.ask(request, stage)
        reply = answer.reply
        if isinstance(reply, ChatReply):
            # Replay must see the same text, but tables cannot store lone surrogates.
            reply = reply if reply.text.isascii() else replace(reply, text=join_surrogates(reply.text))
            content: dict[str, Any] = {"reply": reply.text, "finish_reason": reply.finish_reason}
        else:
            content = {"vector": reply.vector, "finish_reason": "stop"}
        write_row(
            **position,
            kind=TURN,
            **content,
            prompt_tokens=reply.usage.prompt_tokens,
            cached_tokens=reply.usage.cached_tokens,
            completion_tokens=reply.usage.completion_tokens,
            reported=reply.usage.reported,
            model=request.call.model_id,
            endpoint=answer.endpoint,
            latency_s=answer.latency_s,
            attempts=answer.attempts,
        )
        return slot, reply
    except (PermanentCallError, TransientCallError) as e:
        logger.debug("A call failed: %s", e)
        attempts = getattr(e, "attempts", 1)
        may_fail = isinstance(e, PermanentCallError) and getattr(request, "optional", False)
        retryable = e.retry_next_run and not may_fail
        # Do not journal again that a request is too large, or every run would look like a change.
        if not (retryable and isinstance(e, RequestTooLarge) and str(e) in known_errors):
            write_row(**position, kind=FAILED, error=str(e), retryable=retryable, attempts=attempts)
    except BaseException as e:
        if not is_unexpected(e):
            raise
        if (error := record_bug(e)) not in known_errors:
            write_row(**position, kind=FAILED, error=error, retryable=True)
    return slot, None
