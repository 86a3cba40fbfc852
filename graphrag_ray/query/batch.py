"""Answer many questions concurrently, with one engine, one limiter and one journal.

Each question is answered as by `Index.ask`. Its dialogues become items of one sweep, on Ray or in this
process; the replies are journalled beside the answers, and the index is only read. So the same command
resumes a killed batch, and repeating a batch costs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from graphrag_ray.base.errors import FAILED_ITEMS, GraphRagError, LockHeld, StoreError
from graphrag_ray.base.urls import shown
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.gateways import Models, probed
from graphrag_ray.engine.given_rows import GivenRows, rows_of_batch
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.ray.discovery import submitted, will_be_private
from graphrag_ray.engine.reply_cache import FEW, MANY, tidy
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.engine.stopping import Stop, listening
from graphrag_ray.indexing.run import iso
from graphrag_ray.indexing.run_record import MEANINGS, ending
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS, Ask
from graphrag_ray.query.question_files import QUESTION_COLUMNS, AnswersFile, Posed, posed_of, read_questions
from graphrag_ray.query.question_sweep import Batch, QuestionSweep, question_executor
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.runs import RUNNING

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index

_log = logging.getLogger(__name__)

ANSWERING = ("map", "reduce", "answer")
"""Stages whose models every answer needs."""
OUTCOME = "outcome.json"
"""File beside the answers that tells how the last batch, or attempt at one, ended, for those who do not see
the exit code of a job. `_outcome` lists its keys."""
LOCK_WAIT_S = 10.0
"""How long to wait for the lock of a cache: a service that shares it holds the lock while it merges parts."""
LOOK_S = 0.2


def answer_batch(
    index: Index,
    questions: str | Sequence[Posed],
    out: str,
    ask: Ask | None = None,
    *,
    on_ray: bool = False,
    address: str | None = None,
    observer: Observer | None = None,
) -> Batch:
    """Answer the questions of a file, and write the answers (`question_files.ANSWERS`) to another.

    Args:
        questions: A .csv, .jsonl or .parquet file with a column `question` or `question_text` and optionally
            `id`; or its rows.
        out: A .parquet file. The journal is the cache of the index if there is one, else the folder
            `<out>.work`. In that folder `outcome.json` tells how the batch ended.
        ask: How to ask each question.
        on_ray: Run on Ray, at `address` or as `index` finds or starts a cluster, instead of in this process.
        observer: Receives progress.

    Raises:
        UsageError: A question or option is not valid; nothing has been spent.
        RunStopped: The batch was stopped. Replies are kept, but nothing is written to `out`.
        StoreError: The storage failed.
    """
    observer, ask = observer or Observer(), ask or Ask()
    settings, began = index.settings, time.monotonic()
    file = AnswersFile.at(out, settings.storage.of(out))
    note = f"query --batch {shown(questions) if isinstance(questions, str) else 'ask_all'}"
    work, patience_s = index.cache or file.work, LOCK_WAIT_S if index.cache else 0.0
    with ExitStack() as held:
        with attempted(file.work):
            models = Models.of(settings, index.manifest.usage)
            check_prices(settings.budget, models)
            methods.check(ask.method, ask.level, ask.where)
            posed = questions
            if isinstance(posed, str):
                posed = read_questions(posed, settings.storage.of(posed), MAX_QUESTION_CHARACTERS)
            if asks_from_here(on_ray, address):
                models = probed(models, settings, ANSWERING, bool(work.list("work")), observer.note)
            sweep = QuestionSweep(index, posed, work, ask)
            own = held.enter_context(locked(file.work, note, patience_s))
        about = {"snapshot": index.manifest.number, "questions": len(posed)}
        outcome = held.enter_context(_recorded(file.work, own, about))
        lock = own if work == file.work else held.enter_context(locked(work, note, patience_s))
        stop, spending = Stop(say=observer.note), Spending(settings.budget, time.monotonic())

        def on_progress(progress: SweepProgress) -> None:
            observer.progress(sweep.progress(progress))

        with (
            question_executor(
                work, settings, models, on_progress, stop, spending, on_ray, address
            ) as executor,
            observer,
            listening(stop),
        ):
            tidy(work, lock.check, MANY)
            try:
                accounts = sweep.run(executor)
            finally:
                outcome |= {"failed": sweep.failed, "usage": executor.spending.before.to_dict()}
            file.write(sweep.rows())
            tidy(work, lock.check, FEW)
    return Batch(file.url, len(posed), sweep.failed, accounts, time.monotonic() - began)


def answer_all(
    index: Index, questions: Any, ask: Ask, *, out: str | None, on_ray: bool | None, **how: Any
) -> Any:
    """Implement `Index.ask_all`."""
    given_rows = GivenRows(questions)
    dataset = given_rows.dataset
    if dataset is None and not hasattr(questions, "__arrow_c_stream__"):
        each = [questions] if isinstance(questions, str) else questions
        given_rows = GivenRows([{"question": q} if isinstance(q, str) else q for q in each])

    def problem(columns: Sequence[str]) -> str:
        wanted = " or ".join(QUESTION_COLUMNS)
        present = set(columns) & set(QUESTION_COLUMNS)
        return "" if present else f"no column {wanted}; it has {', '.join(columns)}"

    given_rows.open(problem)
    rows = (row for batch in given_rows for row in rows_of_batch(batch))
    numbered = (replace(row, number=number) for number, row in enumerate(rows, start=1))
    posed = posed_of(numbered, str(given_rows), "", MAX_QUESTION_CHARACTERS)
    with ExitStack() as held:
        if out is None:
            out = str(Path(held.enter_context(TemporaryDirectory())) / "answers.parquet")
        answer_batch(index, posed, out, ask, on_ray=dataset is not None if on_ray is None else on_ray, **how)
        answers = AnswersFile.at(out, index.settings.storage.of(out)).read()
    if dataset is None:
        return answers.to_pylist()
    from graphrag_ray.engine.ray.datasets import dataset_from

    return dataset_from(answers)


def asks_from_here(on_ray: bool, address: str | None) -> bool:
    """Whether models are called with the API keys of this process."""
    return not (on_ray or address) or will_be_private(address)


def locked(work: Store, note: str, within_s: float) -> locks.Lock:
    """Acquire a lock. Raises LockHeld if somebody else holds it for longer than `within_s`."""
    until = time.monotonic() + within_s
    while True:
        try:
            return locks.acquire(work, note=note)
        except LockHeld:
            if time.monotonic() >= until:
                raise
        time.sleep(LOOK_S)


@contextmanager
def attempted(beside: Store, always: bool = True) -> Iterator[None]:
    """Record an error before the batch begins as its outcome.

    Nothing is recorded if another batch is running there, since the outcome is that one's. Detecting one on
    another machine takes up to 20 s: a job takes that time; otherwise nothing is recorded then, so that
    nobody waits for an error message.

    Args:
        always: Record even if there is no outcome yet.
    """
    started = time.time()
    try:
        yield
    except LockHeld:
        raise
    except BaseException as e:
        try:
            running = locks.living if submitted() else locks.holder
            if (always or beside.exists(OUTCOME)) and running(beside) is None:
                beside.write(OUTCOME, _outcome(started, ending(e)))
        except GraphRagError as failure:
            _log.info("Could not record this error beside the answers: %s", failure)
        raise


@contextmanager
def _recorded(beside: Store, lock: locks.Lock, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Record how the block ends, "running" until then, unless another batch has taken the lock."""
    started = time.time()

    def write() -> None:
        try:
            lock.check()
            beside.write(OUTCOME, _outcome(started, record))
        except StoreError as e:
            _log.warning("Could not record the outcome beside the answers: %s", e)

    record |= {"outcome": RUNNING}
    try:
        write()
        yield record
        record |= {"outcome": "answered", "exit_code": FAILED_ITEMS if record["failed"] else 0}
    except BaseException as e:
        record |= ending(e)
        raise
    finally:
        write()


def _outcome(started: float, record: Mapping[str, Any]) -> bytes:
    """Encode an outcome: "answered", "running" or one of `run_record.OUTCOMES`. Unknown values are null."""
    code = record.get("exit_code")
    ended = {
        "outcome": record["outcome"],
        "exit_code": code,
        "exit_meaning": None if code is None else MEANINGS[code],
        "message": record.get("message", ""),
    }
    known = {name: record.get(name) for name in ("snapshot", "questions", "failed", "usage")}
    times = {"started_at": iso(started), "ended_at": None if code is None else iso(time.time())}
    return orjson.dumps(ended | known | times, option=orjson.OPT_INDENT_2)
