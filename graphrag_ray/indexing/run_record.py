"""Keeping the record of a run (`store/runs.py`): how it goes and ends, what unfinished ones paid; and of
attempts that come to no run. And telling beside the index how a run is going, for whoever has no other access
to it (`store/runs.LiveRun`).

A thread writes what was last known, every few seconds: a store that is slow, or away, holds no sweep up and
misses a few beats. A run that is over before the first one is due writes nothing.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from graphrag_ray.base import logs
from graphrag_ray.base.errors import (
    FAILED_ITEMS,
    BudgetSpent,
    GraphRagError,
    Interrupted,
    LockHeld,
    LockLost,
    ModelRefused,
    StoreError,
    Terminated,
    TooManyFailures,
    UsageError,
)
from graphrag_ray.base.keys import scrub
from graphrag_ray.base.urls import without_secrets
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.pace import Recent, StagePace
from graphrag_ray.indexing.run import Run, iso
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store import compaction, runs
from graphrag_ray.store.files import Store
from graphrag_ray.store.runs import LiveRun, RefusedRun, RunRecord

OUTCOMES: dict[type[BaseException], str] = {
    BudgetSpent: "budget",
    Terminated: "terminated",
    Interrupted: "interrupted",
    KeyboardInterrupt: "interrupted",
    TooManyFailures: "failures",
    ModelRefused: "refused",
    LockLost: "lost",
    LockHeld: "held",
    UsageError: "usage",
    GraphRagError: "error",
}
"""A word for each way of ending early; anything else is a "crash"."""

WORDS = {
    "running": "was killed",
    "killed": "was killed",
    "budget": "was stopped by its budget",
    "terminated": "was stopped by SIGTERM",
    "interrupted": "was stopped by Ctrl-C",
    "failures": "was stopped since too much failed",
    "refused": "was stopped since the model refused",
    "lost": "lost its lock to another",
    "held": "was refused: another run writes there",
    "usage": "was refused",
    "error": "ended with an error",
    "crash": "crashed",
}
"""How people are told of one that is over."""

MEANINGS = {
    0: "done",
    1: "stopped by an error",
    2: "wrong usage or settings",
    FAILED_ITEMS: "done, but some items failed",
    4: "stopped by a budget",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
"""Of exit codes."""
EVERY_S = 5.0
"""Seconds between beats, and before the first."""
LOGGED_EACH = 6
"""Beats, of which the log tells one."""
LAST_WITHIN_S = 2.0
"""A beat that is being written when the run ends is waited for so long."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Of a run that holds its lock: beats for as long as the block lasts. `_note` is called by the sweep, the
    rest by a thread of its own.

    now    unix seconds, for people
    keep   what the beats wrote stays when they end: nothing else tells where the run was
    """

    def __init__(self, run: Run, now: Callable[[], float]) -> None:
        assert run.lock is not None
        self._run, self._lock, self._now = run, run.lock, now
        self.keep = False
        self._on_progress = run.executor.on_progress
        self._recent = Recent()
        self._pace: tuple[str, StagePace] | None = None
        self._beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def _note(self, progress: SweepProgress) -> None:
        """A glimpse of the sweep that runs."""
        self._on_progress(progress)
        if self._run.doing is None:
            return
        step = self._run.doing[0]
        if self._pace is None or self._pace[0] != step:
            self._recent = Recent()
        self._recent.note(progress)
        self._pace = step, StagePace.of(progress, self._recent)

    def reached(self) -> Mapping[str, Any]:
        """Where the run is: the step, how long it takes already, the pace of its sweep; {} between steps."""
        doing, pace = self._run.doing, self._pace
        if doing is None:
            return {}
        step, since = doing
        shown = asdict(pace[1]) if pace is not None and pace[0] == step else {}
        return {"step": step, "seconds": round(time.monotonic() - since, 1), "pace": shown}

    def __enter__(self) -> Heartbeat:
        self._run.executor.on_progress = self._note
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """No more beats; what they wrote goes, unless it is to be kept."""
        self._run.executor.on_progress = self._on_progress
        self._over.set()
        self._thread.join(LAST_WITHIN_S)
        if self._beats and not self.keep:
            try:
                self._run.store.delete(runs.live_path(self._lock.epoch))
            except StoreError as e:
                _log.warning("what this run told of itself while it ran was not removed: %s", e)

    def _beat_on(self) -> None:
        while not self._over.wait(EVERY_S):
            if not (reached := self.reached()):
                continue
            self._beats += 1
            if self._beats % LOGGED_EACH == 0:
                far = {name: reached["pace"].get(name) for name in ("done", "total", "left_s")}
                logs.event(_log, "progress", step=reached["step"], seconds=reached["seconds"], **far)
            live = LiveRun(self._lock.holder.nonce, self._beats, self._now(), **reached)
            try:
                runs.write_live(self._run.store, self._lock.epoch, live)
            except StoreError as e:
                _log.warning("how this run is going was not told: %s", e)


@dataclass
class RunRecorder:
    """Writes the record of a run. A record that cannot be written is a warning: nothing is built on it.

    written   the last one was
    """

    run: Run
    record: RunRecord
    now: Callable[[], float]
    written: bool = False

    def write(self, **changes: Any) -> None:
        """The record with what has been done and spent by now. For steps, and whoever watches in between."""
        usage = self.run.executor.spending.before.to_dict()
        steps = {
            name: {
                "seconds": round(s, 3),
                "counts": self.run.memo[name]["counts"] if name in self.run.memo else self.run.chores[name],
                "reused": name in self.run.reused,
            }
            for name, s in self.run.seconds.items()
        }
        settings = self.run.settings.kept()
        self.record = replace(self.record, usage=usage, steps=steps, settings=settings, **changes)
        self.written = False
        try:
            runs.write(self.run.store, self.record)
            self.written = True
        except StoreError as e:
            _log.warning("the record of this run was not written: %s", e)

    def finish(self, outcome: str, snapshot: int, failed: int) -> None:
        """The run came to its end."""
        code = FAILED_ITEMS if failed else 0
        self.write(outcome=outcome, exit_code=code, snapshot=snapshot, failed=failed, ended_at=self.now())
        self.tell(failed=failed, snapshot=snapshot)

    def tell(self, level: int = logging.INFO, **more: Any) -> None:
        """Log the end. Not an error's message: it may hold what an endpoint said."""
        record, total = self.record, Accounts.from_dict(self.record.usage).total
        spent = {"calls": total.calls, "tokens": total.total_tokens, "cost_usd": total.cost_usd}
        seconds = round(record.ended_at - record.started_at, 3)
        ended = {"outcome": record.outcome, "exit_code": record.exit_code, "seconds": seconds}
        told: dict[str, Any] = {"epoch": record.epoch, **ended, **spent, **more}
        logs.event(_log, "run ended", level, **told)


@contextmanager
def recorded(run: Run, given: Mapping[str, Any], now: Callable[[], float]) -> Iterator[RunRecorder]:
    """Keep the record of a run that holds its lock, however it ends."""
    assert run.lock is not None
    record = RunRecord(
        epoch=run.lock.epoch,
        nonce=run.lock.holder.nonce,
        started_at=now(),
        version=version("graphrag-ray"),
        given=given,
        settings=run.settings.kept(),
        host=run.lock.holder.host,
        pid=run.lock.holder.pid,
    )
    recorder = RunRecorder(run, record, now)
    recorder.write()
    root, given_input = run.store.url, given.get("input")
    logs.event(_log, "run started", epoch=record.epoch, root=root, input=given_input, version=record.version)
    run.on_step = recorder.write
    with Heartbeat(run, now) as heart:
        try:
            yield recorder
        except BaseException as e:
            # Ctrl-C between two sweeps comes as KeyboardInterrupt.
            error = run.executor.stop.error() if isinstance(e, KeyboardInterrupt) else e
            if isinstance(error, BudgetSpent):
                # With the calls that were in flight when the run was stopped.
                total = run.executor.spending.before.total
                cost = "" if total.cost_usd is None else f" and ${total.cost_usd:.4f}"
                error.args = (f"{error} In all this run came to {total.total_tokens:,} tokens{cost}.",)
            if recorder.record.outcome == runs.RUNNING:
                recorder.write(**ending(error), reached=heart.reached(), ended_at=now())
                # People are told by the message that ends the command; a program that reads logs, by this.
                level = logging.WARNING if logs.as_json() else logging.INFO
                recorder.tell(level, error=type(error).__name__)
            raise
        finally:
            heart.keep = not recorder.written


@contextmanager
def attempted(store: Store, given: Mapping[str, Any], always: bool = False) -> Iterator[None]:
    """Around everything that comes before a run: where it ends with an error and there was no run to record
    it, it is written beside the index, for whoever sees no more than that.

    always: also where there is no index yet; else a mistyped root stays as it was. What the storage itself
    refuses is not told there.
    """
    started = time.time()
    try:
        yield
    except BaseException as error:
        if isinstance(error, StoreError) and not isinstance(error, LockHeld):
            raise
        try:
            last = runs.latest(store)
            ours = last is not None and (last.host, last.pid) == (socket.gethostname(), os.getpid())
            known = ours and last is not None and last.started_at >= started
            if not known and (last is not None or always):
                after = last.epoch if last else 0
                runs.write_refusal(
                    store, RefusedRun(after=after, at=time.time(), given=given, **ending(error))
                )
        except GraphRagError as e:
            _log.info("beside the index nobody is told of this: %s", e)
        raise


def ending(error: BaseException) -> dict[str, Any]:
    """How a record tells what ended a run."""
    code = error.exit_code if isinstance(error, GraphRagError) else 1
    code = 130 if isinstance(error, KeyboardInterrupt) else code
    # Whoever raised it should have seen to that: what is written here is shown to all who see the index.
    outcome = outcome_of(error)
    told = f"{type(error).__name__}: {error}" if outcome == "crash" else str(error)
    told = scrub(without_secrets(told), logs.secrets_in(os.environ))
    return {"outcome": outcome, "exit_code": code, "message": told[:2_000]}


def outcome_of(error: BaseException) -> str:
    """The word for how a run ended, the most special one that fits."""
    return next((word for kind, word in OUTCOMES.items() if isinstance(error, kind)), "crash")


def tell_unfinished(store: Store, journals: tuple[str, ...]) -> str | None:
    """What the runs since the last one that came to its end paid, for people; None where they paid nothing.

    To be asked before this run has a record. Raises StoreError.
    """
    found = runs.unfinished(store)
    # Nothing was paid since the last of them: no end of it is looked for by a clock, which may be another's.
    ends = [math.inf, *(r.started_at for r in found)]
    paid = []
    for record, until in zip(found, ends, strict=False):
        if record.outcome == runs.RUNNING:  # killed: the journal knows what was paid after its last step
            totals = [compaction.totals(store, name, record.started_at, until) for name in journals]
            models = (m for of in totals for m in of.by_model.values())
            paid.append(sum(m.prompt_tokens + m.completion_tokens for m in models))
        else:
            paid.append(Accounts.from_dict(record.usage).total.total_tokens)
    if not sum(paid):
        return None
    last, n = found[0], len(found)
    which = f"The run of {iso(last.started_at)} before this one {WORDS.get(last.outcome, last.outcome)}"
    paid_by = (
        f"It paid {paid[0]:,} tokens" if n == 1 else f"It and {n - 1} before it paid {sum(paid):,} tokens"
    )
    return f"{which}. {paid_by}: what came of them is kept, and budgets count this run alone."
