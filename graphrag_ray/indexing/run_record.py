"""Write the record of a run (`store/run_records.py`), or of an attempt that failed before it became a run.

A heartbeat thread writes the run's progress next to the index (`LiveRun`), where other machines can see it.
If the store is slow or unavailable, a few beats are lost but no sweep is delayed. A run that ends before the
first beat writes no progress.
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

from graphrag_ray.base import errors, logs
from graphrag_ray.base.errors import EXIT_FAILED_ITEMS, BudgetSpent, GraphRagError, LockHeld, StoreError
from graphrag_ray.base.keys import scrub
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.base.urls import redact_urls
from graphrag_ray.base.wording import plural
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.sweep_pace import RecentRates, StagePace
from graphrag_ray.indexing.run import Run, format_utc
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store import compaction, run_records
from graphrag_ray.store.files import Store
from graphrag_ray.store.run_records import LiveRun, RefusedRun, RunRecord

# The outcome of a run that an exception ended, most specific exception first. Any other is a "crash".
OUTCOMES: dict[type[BaseException], str] = {
    BudgetSpent: "budget",
    errors.Terminated: "terminated",
    errors.Interrupted: "interrupted",
    KeyboardInterrupt: "interrupted",
    errors.TooManyFailures: "failures",
    errors.ModelUnavailable: "refused",
    errors.LockLost: "lost",
    LockHeld: "held",
    errors.UsageError: "usage",
    GraphRagError: "error",
}

# How messages describe a run with this outcome.
OUTCOME_DESCRIPTIONS = {
    "running": "was killed",
    "killed": "was killed",
    "budget": "was stopped by its budget",
    "terminated": "was stopped by SIGTERM",
    "interrupted": "was stopped by Ctrl-C",
    "failures": "was stopped because too many items failed",
    "refused": "was stopped because the model refused",
    "lost": "lost its lock to another run",
    "held": "was refused because another run was active",
    "usage": "was refused",
    "error": "ended with an error",
    "crash": "crashed",
}

EXIT_CODE_MEANINGS = {
    0: "done",
    1: "stopped by an error",
    2: "wrong usage or settings",
    EXIT_FAILED_ITEMS: "done, but some items failed",
    4: "stopped by a budget",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
BEAT_INTERVAL_S = 5.0  # also the delay before the first beat
BEATS_PER_LOG_LINE = 6
LAST_BEAT_TIMEOUT_S = 2.0  # How long the end of a run waits for a beat that is being written.

_log = logging.getLogger(__name__)


class Heartbeat:
    """Writes the progress of a run that holds its lock. The last progress file remains if `keep` is set."""

    def __init__(self, run: Run, now: Callable[[], float]) -> None:
        assert run.lock is not None
        self._run, self._lock, self._now = run, run.lock, now
        self.keep = False
        self._on_progress = run.executor.on_progress
        self._recent = RecentRates()
        self._pace: tuple[str, StagePace] | None = None
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_beats, name="heartbeat", daemon=True)

    def _note_pace(self, progress: SweepProgress) -> None:
        self._on_progress(progress)
        if self._run.current_step is None:
            return
        step = self._run.current_step[0]
        if self._pace is None or self._pace[0] != step:
            self._recent = RecentRates()
        self._recent.add(progress)
        self._pace = step, StagePace.of(progress, self._recent)

    def current_progress(self) -> Mapping[str, Any]:
        """Return the current step, its duration so far, and the pace of its sweep; {} between steps."""
        current, pace = self._run.current_step, self._pace
        if current is None:
            return {}
        step, started = current
        step_pace = asdict(pace[1]) if pace is not None and pace[0] == step else {}
        return {"step": step, "seconds": round(time.monotonic() - started, 1), "pace": step_pace}

    def __enter__(self) -> Heartbeat:
        self._run.executor.on_progress = self._note_pace
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.executor.on_progress = self._on_progress
        self._ended.set()
        self._thread.join(LAST_BEAT_TIMEOUT_S)
        if self._beats and not self.keep:
            try:
                self._run.store.delete(run_records.live_path(self._lock.epoch))
            except StoreError as e:
                _log.warning("The progress file of this run was not removed: %s", e)

    def _write_beats(self) -> None:
        while not self._ended.wait(BEAT_INTERVAL_S):
            if not (progress := self.current_progress()):
                continue
            self._beats += 1
            if self._beats % BEATS_PER_LOG_LINE == 0:
                pace = {name: progress["pace"].get(name) for name in ("done", "total", "left_s")}
                logs.log_event(_log, "progress", step=progress["step"], seconds=progress["seconds"], **pace)
            live = LiveRun(self._lock.holder.nonce, self._beats, self._now(), **progress)
            try:
                run_records.write_live(self._run.store, self._lock.epoch, live)
            except StoreError as e:
                _log.warning("The progress of this run was not written: %s", e)


@dataclass
class RunRecorder:
    """Writes the record of a run. A failure to write it is only logged: nothing depends on the record."""

    run: Run
    record: RunRecord
    now: Callable[[], float]
    written: bool = False

    def write(self, **changes: Any) -> None:
        """Write the record with these changes, and the steps and usage so far."""
        run = self.run
        steps = {
            name: {
                "seconds": round(s, 3),
                "counts": run.step_records[name]["counts"]
                if name in run.step_records
                else run.maintenance[name],
                "reused": name in run.reused_steps,
            }
            for name, s in run.seconds.items()
        }
        changes |= {
            "usage": run.executor.spending.earlier.to_dict(),
            "settings": snapshot_settings(run.settings),
        }
        self.record = replace(self.record, steps=steps, **changes)
        self.written = False
        try:
            run_records.write_record(run.store, self.record)
            self.written = True
        except StoreError as e:
            _log.warning("The record of this run was not written: %s", e)

    def finish(self, outcome: str, snapshot: int, failed: int) -> None:
        """Record that the run completed."""
        code = EXIT_FAILED_ITEMS if failed else 0
        self.write(outcome=outcome, exit_code=code, snapshot=snapshot, failed=failed, ended_at=self.now())
        self.log_end(failed=failed, snapshot=snapshot)

    def log_end(self, level: int = logging.INFO, **extra_fields: Any) -> None:
        """Log the end of the run. Error messages are left out because they may quote an endpoint."""
        record, total = self.record, Accounts.from_dict(self.record.usage).total
        fields = {
            "epoch": record.epoch,
            "outcome": record.outcome,
            "exit_code": record.exit_code,
            "seconds": round(record.ended_at - record.started_at, 3),
            "calls": total.calls,
            "tokens": total.total_tokens,
            "cost_usd": total.cost_usd,
        }
        logs.log_event(_log, "run ended", level, **fields, **extra_fields)


@contextmanager
def record_run(run: Run, options: Mapping[str, Any], now: Callable[[], float]) -> Iterator[RunRecorder]:
    """Record a run that holds its lock, however it ends."""
    assert run.lock is not None
    record = RunRecord(
        epoch=run.lock.epoch,
        nonce=run.lock.holder.nonce,
        started_at=now(),
        version=version("graphrag-ray"),
        given=options,
        settings=snapshot_settings(run.settings),
        host=run.lock.holder.host,
        pid=run.lock.holder.pid,
    )
    recorder = RunRecorder(run, record, now)
    recorder.write()
    root, input_path = run.store.url, options.get("input")
    logs.log_event(
        _log, "run started", epoch=record.epoch, root=root, input=input_path, version=record.version
    )
    run.after_step = recorder.write
    with Heartbeat(run, now) as heartbeat:
        try:
            yield recorder
        except BaseException as e:
            # Ctrl-C between two sweeps raises KeyboardInterrupt.
            error = run.executor.stop.error() if isinstance(e, KeyboardInterrupt) else e
            if isinstance(error, BudgetSpent):
                # Include the calls that were in flight when the run was stopped.
                total = run.executor.spending.earlier.total
                cost = "" if total.cost_usd is None else f" and ${total.cost_usd:.4f}"
                error.args = (f"{error} In total, this run used {total.total_tokens:,} tokens{cost}.",)
            if recorder.record.outcome == run_records.RUNNING:
                progress = heartbeat.current_progress()
                recorder.write(**describe_ending(error), reached=progress, ended_at=now())
                # The command prints a final message for people. This event is for programs that read logs.
                level = logging.WARNING if logs.as_json() else logging.INFO
                recorder.log_end(level, error=type(error).__name__)
            raise
        finally:
            heartbeat.keep = not recorder.written


@contextmanager
def record_refusal(store: Store, options: Mapping[str, Any], always: bool = False) -> Iterator[None]:
    """Record an error that ends an attempt before it becomes a run.

    Unless `always` is set, the error is recorded only if the index has runs, so that nothing is written to a
    mistyped root. Storage errors are not recorded.
    """
    started = time.time()
    try:
        yield
    except BaseException as error:
        if isinstance(error, StoreError) and not isinstance(error, LockHeld):
            raise
        try:
            last = run_records.latest_run(store)
            became_run = last is not None and last.started_at >= started
            became_run &= last is not None and (last.host, last.pid) == (socket.gethostname(), os.getpid())
            if not became_run and (last is not None or always):
                after = last.epoch if last else 0
                refusal = RefusedRun(after=after, at=time.time(), given=options, **describe_ending(error))
                run_records.write_refusal(store, refusal)
        except GraphRagError as e:
            _log.info("The failed attempt was not recorded next to the index: %s", e)
        raise


def describe_ending(error: BaseException) -> dict[str, Any]:
    """Return the fields of a run record that describe how the run ended."""
    code = error.exit_code if isinstance(error, GraphRagError) else 1
    code = 130 if isinstance(error, KeyboardInterrupt) else code
    outcome = next((word for kind, word in OUTCOMES.items() if isinstance(error, kind)), "crash")
    message = f"{type(error).__name__}: {error}" if outcome == "crash" else str(error)
    # Everyone with access to the index can read the record, so it must not contain secrets.
    message = scrub(redact_urls(message), logs.secrets_in(os.environ))
    return {"outcome": outcome, "exit_code": code, "message": message[:2_000]}


def unfinished_note(store: Store, journals: tuple[str, ...]) -> str | None:
    """Describe the usage of runs since the last completed one, or return None if they used nothing."""
    unfinished = run_records.unfinished_runs(store)  # newest first
    ends = [math.inf, *(r.started_at for r in unfinished)]
    tokens = []
    for record, end in zip(unfinished, ends, strict=False):
        if record.outcome == run_records.RUNNING:
            # It was killed, so only the journal shows the usage after its last step.
            totals = [compaction.totals(store, name, record.started_at, end) for name in journals]
            models = (m for total in totals for m in total.by_model.values())
            tokens.append(sum(m.prompt_tokens + m.completion_tokens for m in models))
        else:
            tokens.append(Accounts.from_dict(record.usage).total.total_tokens)
    if not sum(tokens):
        return None
    last, n = unfinished[0], len(unfinished)
    usage = f"It used {tokens[0]:,} tokens"
    if n > 1:
        usage = f"It and {plural(n - 1, 'earlier run')} used {sum(tokens):,} tokens"
    return (
        f"The previous run, started at {format_utc(last.started_at)}, "
        f"{OUTCOME_DESCRIPTIONS.get(last.outcome, last.outcome)}. {usage}. "
        "Its replies are reused, and budgets apply to this run alone."
    )
