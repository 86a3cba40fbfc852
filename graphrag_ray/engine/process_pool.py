"""Worker processes for the in-process executor, because Python code computes on one core only.

Starting a process takes a second of CPU time, so they start in the background once this process has computed
for a while. Until they are up, this process does all the work; small runs never start them. The pool is
loky's, because the standard library's would run an unguarded script again in each process.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from graphrag_ray.base import logs
from graphrag_ray.base.errors import ProcessDied
from graphrag_ray.base.providers import PROVIDERS, LocalProvider
from graphrag_ray.base.unexpected_errors import attach_location

X = TypeVar("X")
R = TypeVar("R")
T = TypeVar("T")

COMPUTED_S = 3.0
"""CPU time of this process after which starting others is worthwhile."""
INPUTS_AHEAD = 2
"""Submitted inputs per process, so that no process waits for its next input."""
_POLL_S = 1.0
_SIGNALS = signal.SIGINT, signal.SIGTERM

_log = logging.getLogger(__name__)


class ProcessPool:
    """A thread-safe pool.

    Args:
        processes: Number of processes. With fewer than 2, this process does all the work. None means one per
            core that a container or batch system lets us use.
        after_s: CPU time of this process after which the others start.
    """

    def __init__(self, processes: int | None, after_s: float = COMPUTED_S) -> None:
        self._all_cores = processes is None
        wanted = (os.cpu_count() or 1) if processes is None else processes
        self.processes = wanted if wanted > 1 else 0
        self._after_s = after_s
        self._computed_s = 0.0
        self._lock = threading.Lock()
        self._pool: Any = None
        self._first: Future[None] | None = None
        self._died = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def is_up(self) -> bool:
        """Whether the processes are up. Starts them when they are due."""
        if not self.processes or (self._pool is None and self._computed_s < self._after_s):
            return False
        if self._pool is None:  # take no lock otherwise, so that an event loop never waits for `spill`
            with self._lock:
                if self._pool is None:
                    self._start()
        first = self._first
        return not self._died and first is not None and first.done() and first.exception() is None

    def wait(self) -> None:
        """Start the processes and wait until they are up."""
        self._computed_s = self._after_s
        self.is_up()
        if self._first is not None:
            self._first.result()

    def map(self, fn: Callable[[X], R], inputs: Iterable[X]) -> Iterator[R]:
        """Yield `fn(x)` for each input, in order. If a process died, this process takes over its inputs."""
        single = isinstance(inputs, list | tuple) and len(inputs) < 2
        waiting: deque[tuple[X, Future[R] | None]] = deque()

        def result_of(x: X, future: Future[R] | None) -> R:
            if future is not None:
                with suppress(ProcessDied):
                    return self.result(future)
            return self.run_here(fn, x)

        for x in inputs:
            waiting.append((x, self.submit(fn, x) if not single and self.is_up() else None))
            while waiting and (waiting[0][1] is None or len(waiting) > INPUTS_AHEAD * self.processes):
                yield result_of(*waiting.popleft())
        while waiting:
            yield result_of(*waiting.popleft())

    def run_here(self, fn: Callable[..., R], *args: Any) -> R:
        """Call `fn` in this process, and add up its CPU time."""
        started = time.thread_time()
        try:
            return fn(*args)
        finally:
            self._computed_s += time.thread_time() - started

    def submit(self, fn: Callable[..., R], *args: Any) -> Future[R] | None:
        """Call `fn` in another process. The pool must be up. Returns None if a process has died since."""
        from loky.process_executor import BrokenProcessPool

        try:
            submitted: Future[R] = self._pool.submit(_call, fn, *args)
        except BrokenProcessPool:
            self._record_death()
            return None
        return submitted

    def result(self, future: Future[R]) -> R:
        """Wait for a result. Raises the function's error, or ProcessDied; in that case call `run_here`."""
        from loky.process_executor import BrokenProcessPool

        try:
            return future.result()
        except BrokenProcessPool as e:
            self._record_death()
            raise ProcessDied("A process of the pool died") from e
        except Exception as e:
            attach_location(e, str(e.__cause__))
            raise

    def share(self, value: T) -> Callable[[], T]:
        """Share a large value, which each process reads once from a file."""
        return _SharedValue(value, self) if self.processes else lambda: value

    def spill(self, value: object) -> str:
        """Write the value to a file that lasts as long as the pool, and return its path."""
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="graphrag-ray-")
            number = len(os.listdir(self._folder.name))
            path = Path(self._folder.name) / f"{number}.pickle"
            try:
                with path.open("wb") as file:
                    pickle.dump(value, file, protocol=5)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            return str(path)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, kill_workers=True)
        if self._folder is not None:
            self._folder.cleanup()

    def _record_death(self) -> None:
        """Stop using the pool: loky ends all processes when one dies."""
        if not self._died:
            self._died = True
            _log.warning(
                "A worker process died: out of memory, or a crash in native code. Continuing in a single "
                "process. If it dies too, run the same command with --ray, which finds the input responsible"
            )

    def _start(self) -> None:
        try:
            from multiprocessing import resource_tracker

            from loky import ProcessPoolExecutor, cpu_count  # takes a tenth of a second

            if self._all_cores:
                self.processes = cpu_count() if cpu_count() > 1 else 0
            if not self.processes:
                return
            # loky replaces processes whose memory has grown, and warns about it.
            warnings.filterwarnings("ignore", "A worker (stopped|was restarted) while some jobs", UserWarning)
            self._pool = ProcessPoolExecutor(
                self.processes,
                timeout=None,
                initializer=_initialise,
                initargs=(os.getpid(), logs.current_config()),
            )
            # Block signals until the processes ignore Ctrl-C themselves, or it would end them with a
            # traceback. Start the tracker first because its start unblocks signals.
            resource_tracker.ensure_running()
            previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                self._first = self._pool.submit(_warm_up)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        except (OSError, ImportError) as e:  # some sandboxes have no semaphores
            self.processes = 0
            logs.log_event(_log, "cannot start worker processes", logging.WARNING, error=type(e).__name__)


class _SharedValue(Generic[T]):
    def __init__(self, value: T, pool: ProcessPool) -> None:
        self._value = value
        self._pool = pool
        self._path: str | None = None

    def __call__(self) -> T:
        return self._value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._path is None:
            try:
                self._path = self._pool.spill(self._value)
            except OSError:  # send the value with each input, which is slow but works
                self._path = ""
        return (partial, (_read, self._path)) if self._path else (partial, (_identity, self._value))


def _identity(value: T) -> T:
    return value


@lru_cache(maxsize=8)
def _read(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def _initialise(parent: int, logging_: logs.LogConfig | None) -> None:
    """Initialise a worker process. It leaves Ctrl-C to the parent, and exits with it."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    logs.follow_driver(logging_)

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _warm_up() -> None:
    provider = PROVIDERS["offline"]
    assert isinstance(provider, LocalProvider)
    provider.prepare()


def _call(fn: Callable[..., R], *args: Any) -> R:
    """Call `fn`. Replaces an error that cannot be pickled, because it would end the process."""
    from loky.backend.reduction import dumps

    try:
        return fn(*args)
    except BaseException as e:
        try:
            pickle.loads(dumps(e))
        except Exception:  # noqa: BLE001 - pickling runs arbitrary code
            raise RuntimeError(f"{type(e).__name__}: {e}").with_traceback(e.__traceback__) from None
        raise
