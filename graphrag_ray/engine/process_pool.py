"""Processes of this machine that compute beside the in-process executor: Python computes on one core only.

They cost a second of computing each, so they start when this process has computed for a while, and in the
background: until they are up, and in small runs for ever, everything is done here. By loky, since the
standard library's pool runs the script of whoever called us again in each process, unless it is written for
that.
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
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from graphrag_ray.base import logs
from graphrag_ray.base.errors import ProcessDied
from graphrag_ray.base.providers import PROVIDERS, LocalProvider
from graphrag_ray.base.unforeseen import from_elsewhere

X = TypeVar("X")
R = TypeVar("R")
T = TypeVar("T")

COMPUTED_S = 3.0
"""What this process has computed before it is worth while to start others."""
AHEAD = 2
"""Inputs that each process is given at once, so that none waits for the next."""
_LOOK_S = 1.0
_SIGNALS = signal.SIGINT, signal.SIGTERM

_log = logging.getLogger(__name__)


class ProcessPool:
    """Thread-safe.

    processes   how many; below 2: none, all is done here. None: one for each core that we may use, of which
                a container or a batch system may allow fewer than the machine has
    after_s     see COMPUTED_S
    """

    def __init__(self, processes: int | None, after_s: float = COMPUTED_S) -> None:
        self._all_cores = processes is None
        self.processes = _several(processes if processes is not None else os.cpu_count() or 1)
        self._after_s = after_s
        self._computed_s = 0.0
        self._lock = threading.Lock()
        self._pool: Any = None
        self._first: Future[None] | None = None
        self._died = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def is_up(self) -> bool:
        """Whether the others compute. Starts them when it is time."""
        if not self.processes or (self._pool is None and self._computed_s < self._after_s):
            return False
        if self._pool is None:  # no lock beyond that: an event loop shall not wait while `file` writes
            with self._lock:
                if self._pool is None:
                    self._start()
        first = self._first
        return not self._died and first is not None and first.done() and first.exception() is None

    def wait(self) -> None:
        """Until they are up."""
        self._computed_s = self._after_s
        self.is_up()
        if self._first is not None:
            self._first.result()

    def each(self, fn: Callable[[X], R], inputs: Iterable[X]) -> Iterator[R]:
        """What `fn` returns for each input, in order. What a process that died had is done here."""
        only_one = isinstance(inputs, list | tuple) and len(inputs) < 2
        waiting: deque[tuple[X, Future[R]]] = deque()

        def first() -> R:
            x, future = waiting.popleft()
            try:
                return self.result(future)
            except ProcessDied:
                return self.here(fn, x)

        for x in inputs:
            future = self.submit(fn, x) if not only_one and self.is_up() else None
            if future is None:
                while waiting:
                    yield first()
                yield self.here(fn, x)
                continue
            waiting.append((x, future))
            if len(waiting) > AHEAD * self.processes:
                yield first()
        while waiting:
            yield first()

    def here(self, fn: Callable[..., R], *args: Any) -> R:
        """`fn` in this process. It counts as computed."""
        started = time.thread_time()
        try:
            return fn(*args)
        finally:
            self._computed_s += time.thread_time() - started

    def submit(self, fn: Callable[..., R], *args: Any) -> Future[R] | None:
        """`fn` in another process, once they are up; None where one has died since."""
        from loky.process_executor import BrokenProcessPool

        try:
            submitted: Future[R] = self._pool.submit(_called, fn, *args)
        except BrokenProcessPool:
            self._note_death()
            return None
        return submitted

    def result(self, future: Future[R]) -> R:
        """Raises what the function raised; ProcessDied where its process died, which has to be done here."""
        from loky.process_executor import BrokenProcessPool

        try:
            return future.result()
        except BrokenProcessPool as e:
            self._note_death()
            raise ProcessDied("a process beside this one died") from e
        except Exception as e:
            from_elsewhere(e, str(e.__cause__))
            raise

    def share(self, value: T) -> Callable[[], T]:
        """A handle to a large value: each process reads it once, from a file."""
        return _Shared(value, self) if self.processes else lambda: value

    def file(self, value: object) -> str:
        """A file that holds the value, as long as the pool lasts."""
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

    def _note_death(self) -> None:
        """One that dies takes the others along: everything is done here from now on."""
        if not self._died:
            self._died = True
            _log.warning(
                "A process that computed beside this one died: out of memory, or a crash in native code. "
                "What it had is done in this process. If this one dies, too, run the same again with --ray, "
                "which finds out what kills."
            )

    def _start(self) -> None:
        try:
            from multiprocessing import resource_tracker

            from loky import ProcessPoolExecutor, cpu_count  # takes a tenth of a second

            if self._all_cores:
                self.processes = _several(cpu_count())
            if not self.processes:
                return
            # One that has grown is replaced, as it should be.
            warnings.filterwarnings("ignore", "A worker (stopped|was restarted) while some jobs", UserWarning)
            self._pool = ProcessPoolExecutor(
                self.processes, timeout=None, initializer=_begin, initargs=(os.getpid(), logs.current())
            )
            # Ctrl-C reaches them as well: until they ignore it, it would end them with a traceback. The
            # tracker comes first, since its start lets signals through again.
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                self._first = self._pool.submit(_nothing)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except (OSError, ImportError) as e:  # no semaphores, as in some sandboxes
            self.processes = 0
            logs.event(_log, "no processes beside this one", logging.WARNING, error=type(e).__name__)


def _several(processes: int) -> int:
    return processes if processes > 1 else 0


class _Shared(Generic[T]):
    def __init__(self, value: T, pool: ProcessPool) -> None:
        self._value = value
        self._pool = pool
        self._path: str | None = None

    def __call__(self) -> T:
        return self._value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._path is None:
            try:
                self._path = self._pool.file(self._value)
            except OSError:  # the value goes with each input: slow, but it goes
                self._path = ""
        return (partial, (_read, self._path)) if self._path else (partial, (_same, self._value))


def _same(value: T) -> T:
    return value


@lru_cache(maxsize=8)
def _read(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def _begin(parent: int, logging_: logs.Logging | None) -> None:
    """Of each process. Ctrl-C is for the parent alone; without it there is nothing to do."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    logs.follow(logging_)

    def end_with_the_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=end_with_the_parent, daemon=True).start()


def _nothing() -> None:
    provider = PROVIDERS["offline"]
    assert isinstance(provider, LocalProvider)
    provider.prepare()


def _called(fn: Callable[..., R], *args: Any) -> R:
    """`fn` in another process. An error that cannot be sent would end that: one that can tells of it."""
    from loky.backend.reduction import dumps

    try:
        return fn(*args)
    except BaseException as e:
        try:
            pickle.loads(dumps(e))
        except Exception:  # noqa: BLE001 - whatever its class does
            raise RuntimeError(f"{type(e).__name__}: {e}").with_traceback(e.__traceback__) from None
        raise
