"""An item of work: a dialogue to run, its outcome, and the coroutine that runs it.

Both executors run items with `run_item` and read results with `replay_outcomes`; results do not depend on the
executor.
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
"""Seconds between journal writes if other items wait for the results."""
BEGIN_BATCH = 128
"""Items whose dialogues are started together in a thread."""

Row: TypeAlias = Mapping[str, Any]
"""The table row that an item is made from, with plain values only."""


@dataclass(frozen=True)
class Work(Generic[T]):
    """One kind of dialogue.

    Attributes:
        name: Folder of the journal, `work/<name>/`, and the stage in failures and accounts.
        start: Creates the dialogue of a row. It may read from the store and is not called on an event loop.
        label: Returns (item, document path) of a row, for the list of failures.
        needs_results: Whether the source needs results during the sweep because later items depend on them.
        expected_turns: Expected calls per item before any has finished; None if a call answers many items.
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
        status: "failed" is permanent until something changes; the next run retries a "retry"; "open" is not
            yet answered.
        first_at, last_at: Unix seconds of its first and last failure.
        turns: Number of replies in this run.
        replies: Usage of each reply, in this run or an earlier one.
        known_failure: Whether it failed in an earlier run and this one found nothing new.
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
    """The outcome according to the journal alone."""
    turns = [r for r in rows if r.kind == TURN]
    replies = tuple(ReplyUsage(r.prompt, r.model, r.endpoint, usage_of(r), r.latency_s) for r in turns)
    if isinstance(state, Complete):
        return Outcome(key, "complete", state.result, replies=replies)
    if isinstance(state, GaveUp):
        # Every run retries a bug: that costs no request, and the next version may fix it.
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
"""Items with their dialogues and journal rows."""


def start_items(work: Work[T], store: Store, index: JournalIndex, rows: Iterable[Row]) -> StartedItems[T]:
    """Start the dialogues of many items and look up their journal rows.

    An item that killed its workers, or whose dialogue cannot be started, fails at once. Reads the store: do
    not call it on an event loop.
    """
    rows = list(rows)
    names = [row_key(work, row) for row in rows] if index.any_killed else []
    killed = index.lookup(names)
    drivers: list[DialogueRunner[T]] = []
    for position, row in enumerate(rows):
        if names and (failures := killed.get(names[position])):
            driver: DialogueRunner[T] = DialogueRunner(failing(DialogueFailed(failures[-1].error or "")))
            driver.key = names[position]
        else:
            try:
                dialogue = work.start(store, row)
            except BaseException as e:
                if not is_unexpected(e):
                    raise
                dialogue = failing(e)
            driver = DialogueRunner(dialogue)
            if isinstance(driver.state, GaveUp) and driver.state.bug:
                driver.key = driver.key or row_key(work, row)
        drivers.append(driver)
    journal = index.lookup([d.key for d in drivers if d.key])
    return [(driver, journal.get(driver.key, [])) for driver in drivers]


def row_key(work: Work[T], row: Row) -> str:
    """The key of an item whose dialogue may not be started: a hash of its row, 64 hex characters."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        data = orjson.dumps([work.name, dict(row)], default=repr, option=options)
    except TypeError:  # a lone surrogate, which may be why the dialogue cannot be started
        data = repr((work.name, dict(row))).encode()
    return hashlib.sha256(data).hexdigest()


def killed_row(work: Work[T], row: Row, times: int, at: float) -> JournalRow:
    """The journal row of an item that killed `times` workers, at a time in Unix seconds.

    The failure is permanent because each attempt costs the worker's other calls in flight.
    """
    error = (
        f"The process that worked on it died {times} times, the last time while it had no other item: out of "
        "memory, or a crash in native code"
    )
    key = row_key(work, row)
    return JournalRow(key, 0, 0, "", KILLED, at, work.name, error=error, attempts=times)


def replay_outcomes(
    work: Work[T], store: Store, index: JournalIndex, rows: Sequence[Row]
) -> list[tuple[Row, Outcome[T]]]:
    """Replay many items against the journal, without asking a model."""
    started = start_items(work, store, index, rows)
    return [
        (row, outcome_from_journal(driver.key, replay(driver, journalled), journalled))
        for row, (driver, journalled) in zip(rows, started, strict=True)
    ]


@dataclass(frozen=True)
class DialogueIO:
    """The I/O that executors provide to dialogues: `ask` raises a CallError, `now` returns Unix seconds."""

    ask: Callable[[Request, str], Awaitable[CallResult[Reply]]]
    journal: Callable[[JournalRow], object] | None
    now: Callable[[], float]


async def run_item(
    stage: str, driver: DialogueRunner[T], rows: Sequence[JournalRow], io: DialogueIO
) -> Outcome[T]:
    """Run one item to its end: replay its journal rows, ask for the rest, and journal every reply.

    A journalled permanent failure is not retried. An unexpected error fails the item, and the next run
    retries it.

    Raises:
        FatalCallError: No request will succeed; no failure is journalled.
    """
    logs.set_item_context(stage, driver.key)
    state = replay(driver, rows)
    written = list(rows)
    known_errors = frozenset(r.error for r in rows if r.error)

    def note(**values: Any) -> None:
        row = JournalRow(key=driver.key, at=io.now(), **values)
        if io.journal is not None:
            io.journal(row)
        written.append(row)

    while isinstance(state, Waiting):
        failure = latest_failure(state, written)
        if failure is not None and not failure.retryable:
            break
        replies = journalled_replies(state, written)
        calls = [
            _ask(stage, state.turn, slot, request, io, note, known_errors)
            for slot, request in enumerate(state.requests)
            if slot not in replies
        ]
        new_replies = await asyncio.gather(*calls)
        if not all(r is not None for _, r in new_replies):
            break
        replies |= {slot: r for slot, r in new_replies if r is not None}
        state = driver.send([replies[slot] for slot in range(len(state.requests))])
    # The end is journalled once, with a refusal's reason, which `failures` shows for an index without a
    # snapshot. A bug is no end: every run retries the replies.
    about = {"turn": 0, "slot": 0, "request_hash": "", "prompt": stage}
    ended = isinstance(state, Waiting) or any(r.kind in (DONE, KILLED) for r in rows)
    if driver.key and isinstance(state, GaveUp) and state.bug:
        if state.error not in known_errors:
            note(**about, kind=FAILED, error=state.error, retryable=True)
    elif driver.key and not ended:
        note(**about, kind=DONE, error=state.error if isinstance(state, GaveUp) else None)
    new = written[len(rows) :]
    outcome = outcome_from_journal(driver.key, state, written)
    known = outcome.status != "complete" and bool(rows) and not new
    return replace(outcome, turns=sum(r.kind == TURN for r in new), known_failure=known)


async def _ask(
    stage: str,
    turn: int,
    slot: int,
    request: Request,
    io: DialogueIO,
    note: Callable[..., None],
    known_errors: Container[str],
) -> tuple[int, Reply | None]:
    where = {"turn": turn, "slot": slot, "request_hash": request.hash, "prompt": request.prompt}
    try:
        answer = await io.ask(request, stage)
        reply = answer.reply
        if isinstance(reply, ChatReply):
            # Replay must see the same text, and no table can hold a lone surrogate.
            reply = reply if reply.text.isascii() else replace(reply, text=join_surrogates(reply.text))
            content: dict[str, Any] = {"reply": reply.text, "finish_reason": reply.finish_reason}
        else:
            content = {"vector": reply.vector, "finish_reason": "stop"}
        note(
            **where,
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
        # A request that still does not fit is no news, and would make every run look like a change.
        if not (isinstance(e, RequestTooLarge) and str(e) in known_errors):
            note(**where, kind=FAILED, error=str(e), retryable=e.retry_next_run, attempts=attempts)
    except BaseException as e:
        if not is_unexpected(e):
            raise
        if (error := record_bug(e)) not in known_errors:
            note(**where, kind=FAILED, error=error, retryable=True)
    return slot, None
