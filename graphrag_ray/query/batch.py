"""Many questions to one index: answered side by side, through one engine, one limiter and one journal.

Every question is answered as `Index.ask` would. What it asks of models becomes items of one sweep, on Ray or
in this process; the replies are journalled beside the answers, and the index is only read. So a batch that is
killed is continued by the same command, and asked again it costs nothing.
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

    questions   .csv, .jsonl or .parquet, with a column `question` or `question_text`, and maybe `id`; or what
                was read
    out         a .parquet file; the journal is the cache of the index, where it has one, else the folder of
                this name with `.work` at its end. In that folder `outcome.json` tells how it ended
    ask         how each is asked
    on_ray      on Ray: the cluster of `address`, else as `index` finds or starts one; else in this process
    observer    who is told how it goes; None: nobody

    Raises UsageError for what cannot be asked, before anything is spent; RunStopped where it must not go on
    (what was answered is kept, and nothing is written to `out`); StoreError.
    """
    observer, ask = observer or Observer(), ask or Ask()
    settings, began = index.settings, time.monotonic()
    file = AnswersFile.at(out, settings.storage.of(out))
    note = f"query --batch {shown(questions) if isinstance(questions, str) else 'ask_all'}"
    work, patience_s = index.cache or file.work, MERGED_WITHIN_S if index.cache else 0.0
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
        told = held.enter_context(_told(file.work, own, about))
        lock = own if work == file.work else held.enter_context(locked(work, note, patience_s))
        stop, spending = Stop(say=observer.note), Spending(settings.budget, time.monotonic())

        def progressed(progress: SweepProgress) -> None:
            observer.progress(sweep.progress(progress))

        with (
            question_executor(
                work, settings, models, progressed, stop, spending, on_ray, address
            ) as executor,
            observer,
            listening(stop),
        ):
            tidy(work, lock.check, MANY)
            try:
                accounts = sweep.run(executor)
            finally:
                told |= {"failed": sweep.failed, "usage": executor.spending.before.to_dict()}
            file.write(sweep.rows())
            tidy(work, lock.check, FEW)
    return Batch(file.url, len(posed), sweep.failed, accounts, time.monotonic() - began)


def answer_all(
    index: Index, questions: Any, ask: Ask, *, out: str | None, on_ray: bool | None, **how: Any
) -> Any:
    """See `Index.ask_all`."""
    given = GivenRows(questions)
    dataset = given.dataset
    if dataset is None and not hasattr(questions, "__arrow_c_stream__"):
        each = [questions] if isinstance(questions, str) else questions
        given = GivenRows([{"question": q} if isinstance(q, str) else q for q in each])

    def lacks(columns: Sequence[str]) -> str:
        wanted = " or ".join(QUESTION_COLUMNS)
        there = set(columns) & set(QUESTION_COLUMNS)
        return "" if there else f"no column {wanted}; it has {', '.join(columns)}"

    given.open(lacks)
    found = (row for batch in given for row in rows_of_batch(batch))
    rows = (replace(row, number=number) for number, row in enumerate(found, start=1))
    posed = posed_of(rows, str(given), "", MAX_QUESTION_CHARACTERS)
    with ExitStack() as held:
        if out is None:
            out = str(Path(held.enter_context(TemporaryDirectory())) / "answers.parquet")
        answer_batch(index, posed, out, ask, on_ray=dataset is not None if on_ray is None else on_ray, **how)
        answers = AnswersFile.at(out, index.settings.storage.of(out)).read()
    if dataset is None:
        return answers.to_pylist()
    from graphrag_ray.engine.ray.datasets import dataset_from

    return dataset_from(answers)


ANSWERING = ("map", "reduce", "answer")
"""Stages without whose models there are no answers."""


def asks_from_here(on_ray: bool, address: str | None) -> bool:
    """Whether models are asked with this process's keys."""
    return not (on_ray or address) or will_be_private(address)


OUTCOME = "outcome.json"
"""Beside the answers, for whoever does not see the exit code of a job: how the last batch, or attempt at one,
ended. Keys as in `_outcome`."""
MERGED_WITHIN_S = 10.0
"""A service that answers from the same cache holds its lock while it merges parts."""
LOOK_S = 0.2


def locked(work: Store, note: str, within_s: float) -> locks.Lock:
    """Raises LockHeld where somebody else has the lock for longer."""
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
    """Around what comes before a batch: where that ends with an error, it is the outcome. Nothing is told
    where another batch is at work there: the outcome is that one's. To know that of one on another machine
    takes up to 20 s: a job takes them; else nothing is told then, and nobody waits for a message.

    always: also where no outcome stands there yet
    """
    started = time.time()
    try:
        yield
    except LockHeld:
        raise
    except BaseException as e:
        try:
            at_work = locks.living if submitted() else locks.holder
            if (always or beside.exists(OUTCOME)) and at_work(beside) is None:
                beside.write(OUTCOME, _outcome(started, ending(e)))
        except GraphRagError as untold:
            _log.info("beside the answers nobody is told of this: %s", untold)
        raise


@contextmanager
def _told(beside: Store, lock: locks.Lock, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """However the block ends, that is the outcome; until then, and for good where it is killed, "running".
    The block adds what it comes to.

    lock: of `beside`; where another took it over, the outcome is that one's
    """
    started = time.time()

    def tell() -> None:
        try:
            lock.check()
            beside.write(OUTCOME, _outcome(started, told))
        except StoreError as e:
            _log.warning("what became of this was not written beside the answers: %s", e)

    told |= {"outcome": RUNNING}
    try:
        tell()
        yield told
        told |= {"outcome": "answered", "exit_code": FAILED_ITEMS if told["failed"] else 0}
    except BaseException as e:
        told |= ending(e)
        raise
    finally:
        tell()


def _outcome(started: float, told: Mapping[str, Any]) -> bytes:
    """The keys are always the same; null is what is not known, or not yet. outcome: "answered", "running", or
    in a word what stopped it (`record.OUTCOMES`)."""
    code = told.get("exit_code")
    ended = {
        "outcome": told["outcome"],
        "exit_code": code,
        "exit_meaning": None if code is None else MEANINGS[code],
        "message": told.get("message", ""),
    }
    known = {name: told.get(name) for name in ("snapshot", "questions", "failed", "usage")}
    times = {"started_at": iso(started), "ended_at": None if code is None else iso(time.time())}
    return orjson.dumps(ended | known | times, option=orjson.OPT_INDENT_2)
