"""Telling beside the index how a run is going, for whoever has no other access to it (`store/runs.LiveRun`).

A thread writes what was last known, every few seconds: a store that is slow, or away, holds no sweep up and
misses a few beats. A run that is over before the first one is due writes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from graphrag_ray.base import logs
from graphrag_ray.base.errors import StoreError
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.pace import Recent, StagePace
from graphrag_ray.indexing.run import Run
from graphrag_ray.store import runs
from graphrag_ray.store.runs import LiveRun

EVERY_S = 5.0
"""Seconds between beats, and before the first."""
LOGGED_EACH = 6
"""Beats, of which the log tells one."""
LAST_WITHIN_S = 2.0
"""A beat that is being written when the run ends is waited for so long."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Of a run that holds its lock. `note` is called by the sweep, the rest by a thread of its own.

    keep   what the beats wrote stays when they end: nothing else tells where the run was
    """

    def __init__(self, run: Run, now: Callable[[], float]) -> None:
        assert run.lock is not None
        self._run, self._lock, self._now = run, run.lock, now
        self.keep = False
        self._recent = Recent()
        self._pace: tuple[str, StagePace] | None = None
        self._beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def note(self, progress: SweepProgress) -> None:
        """A glimpse of the sweep that runs."""
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

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """No more beats; what they wrote goes, unless it is to be kept."""
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


@contextmanager
def heartbeat(run: Run, now: Callable[[], float]) -> Iterator[Heartbeat]:
    """Beats for as long as the block lasts. now: unix seconds, for people."""
    heart, told = Heartbeat(run, now), run.executor.on_progress

    def tell(progress: SweepProgress) -> None:
        told(progress)
        heart.note(progress)

    run.executor.on_progress = tell  # type: ignore[misc]
    heart.start()
    try:
        yield heart
    finally:
        run.executor.on_progress = told  # type: ignore[misc]
        heart.end()
