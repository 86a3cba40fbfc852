"""Many questions to one index: answered side by side, through one engine, one limiter and one journal.

Every question is answered as `Index.ask` would. What it asks of models becomes items of one sweep, on Ray or
in this process; the replies are journalled beside the answers, and the index is only read. So a batch that is
killed is continued by the same command, and asked again it costs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from graphrag_ray.ask import MAX_QUESTION_CHARACTERS, Index
from graphrag_ray.engine.cache import FEW, MANY, tidy
from graphrag_ray.engine.executor import Executor, Progress
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.local import LocalExecutor
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.engine.stopping import Stop, listening
from graphrag_ray.errors import FAILED_ITEMS, LockHeld, StoreError
from graphrag_ray.query import methods
from graphrag_ray.question_sweep import Batch, QuestionSweep
from graphrag_ray.questions import AnswersFile, read_questions
from graphrag_ray.settings import Settings
from graphrag_ray.steps.record import MEANINGS, ending
from graphrag_ray.steps.run import iso
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store
from graphrag_ray.terminal.progress import Observer
from graphrag_ray.urls import shown

_log = logging.getLogger(__name__)


def answer_batch(
    index: Index,
    questions: str,
    out: str,
    *,
    method: str = methods.DEFAULT,
    level: str | int | None = None,
    where: Sequence[str] = (),
    on_ray: bool = False,
    address: str | None = None,
    observer: Observer | None = None,
) -> Batch:
    """Answer the questions of a file, and write the answers (`questions.ANSWERS`) to another.

    questions   .csv, .jsonl or .parquet, with a column `question` or `question_text`, and maybe `id`
    out         a .parquet file; the journal is the cache of the index, where it has one, else the folder of
                this name with `.work` at its end. In that folder `outcome.json` tells how it ended
    on_ray      on Ray: the cluster of `address`, else as `index` finds or starts one; else in this process
    observer    who is told how it goes; None: nobody

    Raises UsageError for what cannot be asked, before anything is spent; RunStopped where it must not go on
    (what was answered is kept, and nothing is written to `out`); StoreError.
    """
    observer = observer or Observer(quiet=True)
    settings, began = index.settings, time.monotonic()
    check_prices(settings.budget, Models.of(settings))
    methods.method(method)
    methods.check(method, level, where)
    posed = read_questions(questions, settings.storage.of(questions), MAX_QUESTION_CHARACTERS)
    file = AnswersFile.at(out, settings.storage.of(out))
    work = index.cache or file.work
    sweep = QuestionSweep(index, posed, work, method, level, tuple(where))
    stop = Stop(say=observer.note)
    engine = _Engine(work, settings, lambda p: observer.progress(sweep.progress(p)), stop)
    with (
        _told(file.work, {"snapshot": index.manifest.number, "questions": len(posed)}) as told,
        engine.on_ray(address) if on_ray or address else engine.here() as executor,
        observer,
        listening(stop),
        _locked(work, f"query --batch {shown(questions)}", MERGED_WITHIN_S if index.cache else 0.0) as lock,
    ):
        tidy(work, lock.check, MANY)
        try:
            accounts = sweep.run(executor)
        finally:
            told |= {"failed": sweep.failed, "usage": executor.spending.before.to_dict()}
        file.write(sweep.rows())
        tidy(work, lock.check, FEW)
    return Batch(file.url, len(posed), sweep.failed, accounts, time.monotonic() - began)


OUTCOME = "outcome.json"
MERGED_WITHIN_S = 10.0
"""A service that answers from the same cache holds its lock while it merges parts."""
LOOK_S = 0.2


def _locked(work: Store, note: str, within_s: float) -> locks.Lock:
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
def _told(beside: Store, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """However the block ends, it stands beside the answers, for whoever does not see the exit code of a job.
    The block adds what it comes to."""
    started = time.time()
    try:
        yield told
    except BaseException as e:
        told |= ending(e)
        raise
    else:
        told |= {"outcome": "answered", "exit_code": FAILED_ITEMS if told["failed"] else 0, "message": ""}
    finally:
        told |= {"exit_meaning": MEANINGS[told["exit_code"]]}
        told |= {"started_at": iso(started), "ended_at": iso(time.time())}
        try:
            beside.write(OUTCOME, orjson.dumps(told, option=orjson.OPT_INDENT_2))
        except StoreError as e:
            _log.warning("how this ended was not written beside the answers: %s", e)


WAITED_FOR_S = 0.5
"""Between journal writes: a reply is handed on when it is written, and a question waits for it."""


@dataclass(frozen=True)
class _Engine:
    """Where the dialogues of a batch run. store: of their journal."""

    store: Store
    settings: Settings
    on_progress: Callable[[Progress], None]
    stop: Stop

    @contextmanager
    def here(self) -> Iterator[Executor]:
        run = self.settings.run
        yield LocalExecutor(
            self.store,
            Models.of(self.settings),
            run.max_failed_fraction,
            min(run.flush_s, WAITED_FOR_S),
            on_progress=self.on_progress,
            spending=Spending(self.settings.budget, time.monotonic()),
            stop=self.stop,
        )

    @contextmanager
    def on_ray(self, address: str | None) -> Iterator[Executor]:
        # Ray is imported here: it takes a second.
        from graphrag_ray.distributed.cluster import connected, will_be_private
        from graphrag_ray.distributed.executor import RayExecutor
        from graphrag_ray.distributed.nodes import check_nodes

        run, private = self.settings.run, will_be_private(address)
        with connected(address):
            fit = set() if private else check_nodes(self.store, [])
            executor = RayExecutor(
                self.store,
                Models.of(self.settings),
                run.max_failed_fraction,
                run.flush_s,
                run.workers_per_node,
                self.on_progress,
                Spending(self.settings.budget, time.monotonic()),
                self.stop,
                fit=fit,
            )
            executor.start()
            try:
                yield executor
            finally:
                executor.close()
