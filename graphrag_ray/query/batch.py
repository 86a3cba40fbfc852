"""Answer many questions concurrently, with one engine, one limiter and one journal.

Each question is answered as by `Index.ask`. Its dialogues become items of one sweep, on Ray or in this
process. Replies are journalled next to the answers, and nothing is written to the index. So the same command
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
import pyarrow as pa

from graphrag_ray.base.errors import EXIT_FAILED_ITEMS, GraphRagError, LockHeld, StoreError
from graphrag_ray.base.urls import display_path
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.input_rows import InputRows, read_batch
from graphrag_ray.engine.interrupts import InterruptState, handle_signals
from graphrag_ray.engine.model_access import Models, check_endpoints
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.ray.discovery import is_submitted_job, starts_private_ray
from graphrag_ray.engine.reply_cache import MERGE_FROM_PARTS, MERGE_FROM_PARTS_AT_END, merge_small_parts
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.indexing.run import format_utc
from graphrag_ray.indexing.run_record import EXIT_CODE_MEANINGS, describe_ending
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.method import MAX_QUESTION_CHARACTERS, AskRequest
from graphrag_ray.query.question_files import (
    ANSWERS,
    QUESTION_COLUMNS,
    AnswersFile,
    BatchQuestion,
    questions_of,
    read_questions,
)
from graphrag_ray.query.question_sweep import BatchResult, QuestionSweep, question_executor
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.run_records import RUNNING

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index

_log = logging.getLogger(__name__)

_ANSWER_STAGES = ("map", "reduce", "answer")
"""Stages whose models every answer needs."""
OUTCOME = "outcome.json"
"""File next to the answers that records how the last batch, or attempt at one, ended, because the exit code
of a job is not always visible. `_outcome` lists its keys."""
LOCK_WAIT_S = 10.0
"""Maximum wait for the lock of a cache. A service that shares it holds the lock while it merges parts."""
POLL_INTERVAL_S = 0.2


def answer_batch(
    index: Index,
    questions: str | Sequence[BatchQuestion],
    out: str,
    ask: AskRequest | None = None,
    *,
    on_ray: bool = False,
    address: str | None = None,
    observer: Observer | None = None,
) -> BatchResult:
    """Answer the questions of a file, and write the answers (`question_files.ANSWERS`) to another file.

    Args:
        questions: A .csv, .jsonl or .parquet file with a column `question` or `question_text` and optionally
            `id`, or its rows.
        out: A .parquet, .jsonl or .csv file. The folder `<out>.work` holds the outcome of the batch
            (`outcome.json`) and, if the index has no cache, the journal.
        ask: How to ask each question.
        on_ray: Run on Ray (at `address`, or found or started as by `index`) instead of in this process.
        observer: Receives progress.

    Raises:
        UsageError: A question or option is not valid; nothing has been spent.
        RunStopped: The batch was stopped. Replies are stored, but nothing is written to `out`.
        StoreError: The storage failed.
    """
    observer, ask = observer or Observer(), ask or AskRequest()
    settings, began = index.settings, time.monotonic()
    file = AnswersFile.locate(out, settings.storage.fsspec_options(out))
    note = f"query --batch {display_path(questions) if isinstance(questions, str) else 'ask_all'}"
    work, timeout_s = index.cache or file.work, LOCK_WAIT_S if index.cache else 0.0
    with ExitStack() as stack:
        with record_failed_start(file.work):
            models = Models.from_settings(settings, index.manifest.usage)
            check_prices(settings.budget, models)
            methods.check_method(ask.method, ask.level, ask.where)
            batch_questions = questions
            if isinstance(batch_questions, str):
                options = settings.storage.fsspec_options(batch_questions)
                batch_questions = read_questions(batch_questions, options, MAX_QUESTION_CHARACTERS)
            if uses_local_keys(on_ray, address):
                models = check_endpoints(
                    models, settings, _ANSWER_STAGES, bool(work.list("work")), observer.message
                )
            sweep = QuestionSweep(index, batch_questions, work, ask)
            work_lock = stack.enter_context(wait_for_lock(file.work, note, timeout_s))
        record = {"snapshot": index.manifest.number, "questions": len(batch_questions)}
        outcome = stack.enter_context(_record_outcome(file.work, work_lock, record))
        lock = work_lock if work == file.work else stack.enter_context(wait_for_lock(work, note, timeout_s))
        stop, spending = InterruptState(notify=observer.message), Spending(settings.budget, time.monotonic())

        def on_progress(progress: SweepProgress) -> None:
            observer.progress(sweep.progress(progress))

        with (
            question_executor(
                work, settings, models, on_progress, stop, spending, on_ray, address
            ) as executor,
            observer,
            handle_signals(stop),
        ):
            merge_small_parts(work, lock.check, MERGE_FROM_PARTS)
            try:
                accounts = sweep.run(executor)
            finally:
                outcome |= {"failed": sweep.failed, "usage": executor.spending.earlier.to_dict()}
            file.write(sweep.rows())
            merge_small_parts(work, lock.check, MERGE_FROM_PARTS_AT_END)
    seconds = time.monotonic() - began
    return BatchResult(file.url, len(batch_questions), sweep.failed, accounts, seconds, sweep.rows)


def answer_all(
    index: Index, questions: Any, ask: AskRequest, *, out: str | None, on_ray: bool | None, **options: Any
) -> Any:
    """Implement `Index.ask_all`."""
    input_rows = InputRows(questions)
    dataset = input_rows.dataset
    if dataset is None and not hasattr(questions, "__arrow_c_stream__"):
        items = [questions] if isinstance(questions, str) else questions
        input_rows = InputRows([{"question": q} if isinstance(q, str) else q for q in items])

    def find_problem(columns: Sequence[str]) -> str:
        wanted = " or ".join(QUESTION_COLUMNS)
        present = set(columns) & set(QUESTION_COLUMNS)
        return "" if present else f"no column {wanted}; it has {', '.join(columns)}"

    input_rows.resolve(find_problem)
    rows = (row for batch in input_rows for row in read_batch(batch))
    numbered = (replace(row, number=number) for number, row in enumerate(rows, start=1))
    batch_questions = questions_of(numbered, str(input_rows), "", MAX_QUESTION_CHARACTERS)
    with ExitStack() as stack:
        if out is None:
            out = str(Path(stack.enter_context(TemporaryDirectory())) / "answers.parquet")
        on_ray = dataset is not None if on_ray is None else on_ray
        result = answer_batch(index, batch_questions, out, ask, on_ray=on_ray, **options)
    answers = [{name: row[name] for name in ANSWERS.names} for row in result.rows()]
    if dataset is None:
        return answers
    from graphrag_ray.engine.ray.datasets import dataset_of_table

    return dataset_of_table(pa.Table.from_pylist(answers, schema=ANSWERS))


def uses_local_keys(on_ray: bool, address: str | None) -> bool:
    """Whether models are called with the API keys of this process."""
    return not (on_ray or address) or starts_private_ray(address)


def wait_for_lock(work: Store, note: str, timeout_s: float) -> locks.Lock:
    """Acquire a lock. Raises LockHeld if another process holds it for longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return locks.acquire(work, note=note)
        except LockHeld:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_INTERVAL_S)


@contextmanager
def record_failed_start(work: Store, always: bool = True) -> Iterator[None]:
    """If an error occurs before the batch starts, record it as the outcome.

    Nothing is recorded while another batch with the same answers file is running, because the outcome belongs
    to it. Detecting a batch on another machine takes up to 20 s. A submitted job waits for that; any other
    process reports its error immediately, and records nothing if a lock exists.

    Args:
        always: Record the error even if there is no outcome yet.
    """
    started = time.time()
    try:
        yield
    except LockHeld:
        raise
    except BaseException as e:
        try:
            running = locks.find_live_holder if is_submitted_job() else locks.find_holder
            if (always or work.exists(OUTCOME)) and running(work) is None:
                work.write(OUTCOME, _outcome(started, describe_ending(e)))
        except GraphRagError as failure:
            _log.info("Could not record this error next to the answers: %s", failure)
        raise


@contextmanager
def _record_outcome(work: Store, lock: locks.Lock, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Record "running" during the block, then how it ended, unless another batch has taken the lock."""
    started = time.time()

    def write() -> None:
        try:
            lock.check()
            work.write(OUTCOME, _outcome(started, record))
        except StoreError as e:
            _log.warning("Could not record the outcome next to the answers: %s", e)

    record |= {"outcome": RUNNING}
    try:
        write()
        yield record
        record |= {"outcome": "answered", "exit_code": EXIT_FAILED_ITEMS if record["failed"] else 0}
    except BaseException as e:
        record |= describe_ending(e)
        raise
    finally:
        write()


def _outcome(started: float, record: Mapping[str, Any]) -> bytes:
    """Encode an outcome: "answered", "running" or one of `run_record.OUTCOMES`. Unknown values are null."""
    code = record.get("exit_code")
    ending = {
        "outcome": record["outcome"],
        "exit_code": code,
        "exit_meaning": None if code is None else EXIT_CODE_MEANINGS[code],
        "message": record.get("message", ""),
    }
    counts = {name: record.get(name) for name in ("snapshot", "questions", "failed", "usage")}
    times = {"started_at": format_utc(started), "ended_at": None if code is None else format_utc(time.time())}
    return orjson.dumps(ending | counts | times, option=orjson.OPT_INDENT_2)
