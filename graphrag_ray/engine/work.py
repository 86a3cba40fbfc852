"""An item of work: one dialogue to run, its outcome, and the coroutine that runs it.

Both executors run items through `run_item`; both read results through `outcomes`. So what a result is
does not depend on who computed it.
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
from graphrag_ray.base.errors import DialogueFailed, DoesNotFit, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import ChatReply, Dialogue, Reply, Request, Usage, whole
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.drive import (
    Complete,
    Driver,
    Open,
    Refused,
    State,
    answered,
    failure_of,
    note_bug,
    raising,
    replay,
)
from graphrag_ray.llm.model_client import Called
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, TURN, JournalRow

T = TypeVar("T")
logger = logging.getLogger(__name__)
WAITED_FOR_S = 0.5
"""Between journal writes where other items wait for the results."""
BEGUN_TOGETHER = 128
"""Items whose dialogues are started at once, in a thread, by whoever runs them."""

Row: TypeAlias = Mapping[str, Any]
"""What an item is made from: a row of a table, plain values only."""


@dataclass(frozen=True)
class Work(Generic[T]):
    """One kind of dialogue.

    name    folder of the journal, `work/<name>/`, and the stage in failures and accounting
    start   makes the dialogue of a row; may read from the store, and is not called on an event loop
    label   (item, document path) of a row, for the list of failures
    turns   calls that an item takes, as expected before any has told; None: a call answers many items
    returns  True: the source wants the results while the sweep runs (what comes next depends on them)
    """

    name: str
    start: Callable[[Store, Row], Dialogue[T]]
    label: Callable[[Row], tuple[str, str]]
    returns: bool = False
    turns: float | None = 1.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of an item.

    status   "complete": `result` holds; "failed": for good, until something changes; "retry": failed,
             and the next run tries again; "open": not yet answered
    turns    replies that it took in this run
    replies  what each of its replies used, in this run or an earlier one
    known    it failed in an earlier run, and this one found nothing new about it
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
    known: bool = False


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """A reply, for the accounts."""

    prompt: str
    model_id: str
    endpoint: str
    usage: Usage
    latency_s: float


def outcome_of(key: str, state: State[T], rows: Sequence[JournalRow]) -> Outcome[T]:
    """The outcome that the journal alone says."""
    turns = [r for r in rows if r.kind == TURN]
    replies = tuple(
        ReplyUsage(
            r.prompt,
            r.model,
            r.endpoint,
            Usage(r.prompt_tokens, r.completion_tokens, r.cached_tokens, r.reported),
            r.latency_s,
        )
        for r in turns
    )
    if isinstance(state, Complete):
        return Outcome(key, "complete", state.result, replies=replies)
    if isinstance(state, Refused):
        # A bug is looked at by every run: that asks for nothing, and the next version may do better.
        error, again = state.error, state.bug
    elif (failure := failure_of(state, rows)) is not None:
        error, again = failure.error or "", failure.retryable
    else:
        return Outcome(key, "open", replies=replies)
    failures = [r for r in rows if r.kind in (FAILED, KILLED)]
    times = [r.at for r in failures or turns] or [0.0]
    attempts = sum(r.attempts for r in failures) or len(turns)
    status: Literal["failed", "retry"] = "retry" if again else "failed"
    return Outcome(key, status, None, error, attempts, min(times), max(times), replies=replies)


def begin(
    work: Work[T], store: Store, index: JournalIndex, rows: Iterable[Row]
) -> list[tuple[Driver[T], list[JournalRow]]]:
    """Start the dialogues of many items, each with what is journalled of it. Reads the store: not for an
    event loop. An item that killed its workers is not started: it is refused from the first, as is one that
    cannot be started."""
    rows = list(rows)
    names = [identity(work, row) for row in rows] if index.any_killed else []
    killed = index.lookup(names)
    drivers: list[Driver[T]] = []
    for place, row in enumerate(rows):
        if names and (told := killed.get(names[place])):
            driver: Driver[T] = Driver(raising(DialogueFailed(told[-1].error or "")))
            driver.key = names[place]
        else:
            try:
                dialogue = work.start(store, row)
            except BaseException as e:
                if not is_unforeseen(e):
                    raise
                dialogue = raising(e)
            driver = Driver(dialogue)
            if isinstance(driver.state, Refused) and driver.state.bug:
                driver.key = driver.key or identity(work, row)
        drivers.append(driver)
    journal = index.lookup([d.key for d in drivers if d.key])
    return [(driver, journal.get(driver.key, [])) for driver in drivers]


def identity(work: Work[T], row: Row) -> str:
    """What names an item whose dialogue may not be started, 64 hex characters: a hash of its row."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        data = orjson.dumps([work.name, dict(row)], default=repr, option=options)
    except TypeError:  # half a surrogate pair, which may be why it cannot be started
        data = repr((work.name, dict(row))).encode()
    return hashlib.sha256(data).hexdigest()


def killed_row(work: Work[T], row: Row, times: int, at: float) -> JournalRow:
    """The journal's row of an item of which `times` workers died. It fails for good: each attempt costs what
    its worker had in flight beside it. at: unix seconds."""
    error = (
        f"the process that worked on it died {times} times, the last time with nothing else in hand: out of "
        "memory, or a crash in native code"
    )
    key = identity(work, row)
    return JournalRow(key, 0, 0, "", KILLED, at, work.name, error=error, attempts=times)


def outcomes(
    work: Work[T], store: Store, index: JournalIndex, rows: Sequence[Row]
) -> list[tuple[Row, Outcome[T]]]:
    """Replay many items against the journal: what each came to, without asking any model."""
    begun = begin(work, store, index, rows)
    return [
        (row, outcome_of(driver.key, replay(driver, journalled), journalled))
        for row, (driver, journalled) in zip(rows, begun, strict=True)
    ]


@dataclass(frozen=True)
class Asking:
    """How to ask: what the executors put around a dialogue.

    ask      answers a request or raises a CallError; says the stage
    journal  takes a row; None: nobody wants to keep any
    now      Unix seconds
    """

    ask: Callable[[Request, str], Awaitable[Called[Reply]]]
    journal: Callable[[JournalRow], object] | None
    now: Callable[[], float]


async def run_item(stage: str, driver: Driver[T], rows: Sequence[JournalRow], asking: Asking) -> Outcome[T]:
    """Run one item to its end: replay what is journalled, ask for the rest, journal every reply.

    A failure for good that is journalled is not tried again. An error that nobody foresaw is a failure of the
    item, which the next run looks at again. Raises FatalCallError, and writes no failure for it.
    """
    logs.about(stage, driver.key)
    state = replay(driver, rows)
    written = list(rows)
    told = frozenset(r.error for r in rows if r.error)

    def note(**values: Any) -> None:
        row = JournalRow(key=driver.key, at=asking.now(), **values)
        if asking.journal is not None:
            asking.journal(row)
        written.append(row)

    while isinstance(state, Open):
        known = failure_of(state, written)
        if known is not None and not known.retryable:
            break
        replies = answered(state, written)
        asked = [
            _ask(stage, state.turn, slot, request, asking, note, told)
            for slot, request in enumerate(state.requests)
            if slot not in replies
        ]
        got = await asyncio.gather(*asked)
        if not all(r is not None for _, r in got):
            break
        replies |= {slot: r for slot, r in got if r is not None}
        state = driver.send([replies[slot] for slot in range(len(state.requests))])
    # How it ended is journalled once. A refusal's reason stands with it, for `failures` of an index without a
    # snapshot. A bug is no end: the replies stand, and every run tries them.
    about = {"turn": 0, "slot": 0, "request_hash": "", "prompt": stage}
    ended = isinstance(state, Open) or any(r.kind in (DONE, KILLED) for r in rows)
    if driver.key and isinstance(state, Refused) and state.bug:
        if state.error not in told:
            note(**about, kind=FAILED, error=state.error, retryable=True)
    elif driver.key and not ended:
        note(**about, kind=DONE, error=state.error if isinstance(state, Refused) else None)
    new = written[len(rows) :]
    outcome = outcome_of(driver.key, state, written)
    again = outcome.status != "complete" and bool(rows) and not new
    return replace(outcome, turns=sum(r.kind == TURN for r in new), known=again)


async def _ask(
    stage: str,
    turn: int,
    slot: int,
    request: Request,
    asking: Asking,
    note: Callable[..., None],
    told: Container[str],
) -> tuple[int, Reply | None]:
    where = {"turn": turn, "slot": slot, "request_hash": request.hash, "prompt": request.prompt}
    try:
        answer = await asking.ask(request, stage)
        reply = answer.reply
        if isinstance(reply, ChatReply):
            # What is replayed must be what was replied, and no table can hold half a surrogate pair.
            reply = reply if reply.text.isascii() else replace(reply, text=whole(reply.text))
            said: dict[str, Any] = {"reply": reply.text, "finish_reason": reply.finish_reason}
        else:
            said = {"vector": reply.vector, "finish_reason": "stop"}
        note(
            **where,
            kind=TURN,
            **said,
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
        logger.debug("a call failed: %s", e)
        attempts = getattr(e, "attempts", 1)
        # What did not fit and still does not is no news: it would make every run look like a change.
        if not (isinstance(e, DoesNotFit) and str(e) in told):
            note(**where, kind=FAILED, error=str(e), retryable=e.next_run, attempts=attempts)
    except BaseException as e:
        if not is_unforeseen(e):
            raise
        if (error := note_bug(e)) not in told:
            note(**where, kind=FAILED, error=error, retryable=True)
    return slot, None
