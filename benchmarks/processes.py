"""Measure the CPU time, memory and I/O of a command and its descendants, from /proc. Linux only.

This process adopts orphans (PR_SET_CHILD_SUBREAPER), so all processes that the command starts remain its
descendants. They are sampled every PERIOD_S, and the last sample of each process counts. Resources used after
that sample are not counted: at most PERIOD_S of one core per process. The kernel's totals for waited-for
children cannot replace sampling, because a raylet does not wait for its workers, so their CPU time would be
missing. Linux adds a child's I/O to that of the process that waits for it; we subtract it again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PERIOD_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_SET_CHILD_SUBREAPER = 36
_KB = 1024


@dataclass(slots=True)
class _ProcessUsage:
    """The resources used by one process: CPU seconds and bytes.

    Attributes:
        parent: Process id of the parent.
        private: Private memory in the last sample.
        read, written: Bytes read, and bytes sent to disk, by the process itself.
        io: Bytes read and sent to disk as counted by Linux, which includes children that it waited for.
    """

    role: str
    parent: int = 0
    cpu_s: float = 0.0
    private: int = 0
    peak_private: int = 0
    peak_shared: int = 0
    read: int = 0
    written: int = 0
    io: tuple[int, int] = (0, 0)
    alive: bool = True


@dataclass
class Totals:
    """The resources used by a command. Memory in bytes, CPU in seconds.

    Attributes:
        timed_out: Whether the command was killed because it took too long.
        cpu_s: CPU time by role: driver, worker, raylet, gcs, other (Ray's agents and everything else).
        driver_peak: Peak private memory of the driver, which excludes mapped files and shared memory.
        worker_peak: Peak private memory of the largest worker.
        workers_peak: Peak of the private memory of all workers together.
        all_peak: Peak of the private memory of all processes together.
        store_peak: Peak shared memory of the raylet, which is Ray's object store.
        read: Bytes read from files and pipes, including the page cache and Python's own modules, but neither
            memory-mapped files nor the network.
        written: Bytes sent to disk, including those of files that were deleted later.
        laps: By lap: wall and CPU seconds, and the peak private memory of the driver and of all workers. Lap
            names must be unique.
    """

    wall_s: float = 0.0
    exit_code: int = 0
    timed_out: bool = False
    n_processes: int = 0
    cpu_s: dict[str, float] = field(default_factory=dict)
    driver_peak: int = 0
    worker_peak: int = 0
    workers_peak: int = 0
    all_peak: int = 0
    store_peak: int = 0
    read: int = 0
    written: int = 0
    laps: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())


def measure(
    command: Sequence[str],
    lap_of: Callable[[str], str | None],
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> tuple[Totals, str]:
    """Run a command. Returns the resources that it used and its output.

    Args:
        lap_of: Returns the name of the lap that ends with a line of output, or None.
        timeout_s: Seconds after which the command and its process group are killed.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    # fmt: off
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, process_group=0
    )
    # fmt: on
    sampler = _Sampler(process.pid)
    sampler.start()
    printed: list[str] = []
    with _killed_after(process, timeout_s) as killed:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if lap := lap_of(line):
                sampler.lap(lap)
        exit_code = process.wait()
    totals = sampler.stop()
    totals.wall_s, totals.exit_code = time.monotonic() - started, exit_code
    totals.timed_out = killed.is_set()
    return totals, "".join(printed)


@contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float | None) -> Iterator[threading.Event]:
    """Kill a process and its group after some seconds, or if the block is left early.

    Yields an event that is set once the process has been killed.
    """
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, kill) if seconds is not None else None
    if timer:
        timer.start()
    try:
        yield killed
    finally:
        if timer:
            timer.cancel()
        if process.poll() is None:
            kill()


class _Sampler:
    def __init__(self, driver: int) -> None:
        self._driver = driver
        self._processes: dict[tuple[int, str], _ProcessUsage] = {}
        self._totals = Totals()
        self._lap = {"wall_s": time.monotonic(), "cpu_s": 0.0}
        self._lap_peaks = {"driver_peak": 0, "workers_peak": 0}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def lap(self, name: str) -> None:
        """End the current lap, and name it `name`."""
        with self._lock:
            self._sample()
            now, cpu_s = time.monotonic(), sum(s.cpu_s for s in self._processes.values())
            used = {"wall_s": now - self._lap["wall_s"], "cpu_s": cpu_s - self._lap["cpu_s"]}
            self._totals.laps[name] = {**used, **self._lap_peaks}
            self._lap = {"wall_s": now, "cpu_s": cpu_s}
            self._lap_peaks = dict.fromkeys(self._lap_peaks, 0)

    def stop(self) -> Totals:
        self.lap("end")
        self._stopped.set()
        self._thread.join()
        totals, processes = self._totals, self._processes.values()
        totals.n_processes = len(processes)
        for process in processes:
            totals.cpu_s[process.role] = totals.cpu_s.get(process.role, 0.0) + process.cpu_s
        totals.driver_peak = max((s.peak_private for s in processes if s.role == "driver"), default=0)
        totals.worker_peak = max((s.peak_private for s in processes if s.role == "worker"), default=0)
        totals.store_peak = max((s.peak_shared for s in processes if s.role == "raylet"), default=0)
        totals.read = sum(s.read for s in processes)
        totals.written = sum(s.written for s in processes)
        return totals

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            with self._lock:
                self._sample()

    def _sample(self) -> None:
        stats = {pid: stat for pid in _pids() if (stat := _stat(pid))}
        ended: dict[int, list[tuple[int, int]]] = {}
        for (pid, born), process in self._processes.items():
            if process.alive and (pid not in stats or stats[pid][2] != born):
                ended.setdefault(process.parent, []).append(process.io)
            process.alive = False
        for pid, (parent, cpu_s, born) in stats.items():
            if not self._is_descendant(pid, stats):
                continue
            process = self._processes.setdefault((pid, born), _ProcessUsage(""))
            process.alive = True
            process.parent, process.cpu_s = parent, cpu_s
            # A worker's command line identifies it only after a while, a forked process's only after exec.
            if process.role in ("", "other"):
                process.role = "driver" if pid == self._driver else _role(pid)
            memory = _fields(pid, "status")
            process.private = memory.get("RssAnon", 0) * _KB
            process.peak_private = max(process.peak_private, process.private)
            process.peak_shared = max(process.peak_shared, memory.get("RssShmem", 0) * _KB)
            if io := _fields(pid, "io"):
                now = io["rchar"], io["write_bytes"]
                read, written = _own_io(process.io, now, ended.get(pid, ()))
                process.read, process.written, process.io = (
                    process.read + read,
                    process.written + written,
                    now,
                )
        self._note_peaks()

    def _note_peaks(self) -> None:
        alive = [s for s in self._processes.values() if s.alive]
        workers = sum(s.private for s in alive if s.role == "worker")
        driver = sum(s.private for s in alive if s.role == "driver")
        totals = self._totals
        totals.workers_peak = max(totals.workers_peak, workers)
        totals.all_peak = max(totals.all_peak, sum(s.private for s in alive))
        peaks = self._lap_peaks
        peaks["driver_peak"] = max(peaks["driver_peak"], driver)
        peaks["workers_peak"] = max(peaks["workers_peak"], workers)

    def _is_descendant(self, pid: int, stats: Mapping[int, tuple[int, float, str]]) -> bool:
        me, ancestor = os.getpid(), pid
        for _ in range(len(stats)):
            if ancestor not in stats or ancestor == me:
                break
            ancestor = stats[ancestor][0]
        return ancestor == me and pid != me


def _own_io(
    before: tuple[int, int], now: tuple[int, int], ended: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Return the bytes that a process itself read and wrote between two samples.

    `ended` contains the last counters of the children that ended in between. If the process waited for a
    child, its own counters include them.
    """
    read, written = now[0] - before[0], now[1] - before[1]
    for child_io in ended:
        if child_io[0] <= read and child_io[1] <= written:
            read, written = read - child_io[0], written - child_io[1]
    return read, written


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, float, str] | None:
    """Return (parent, CPU seconds, start time in ticks), or None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, fields[19]


def _role(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            line = stream.read().replace(b"\x00", b" ").decode("utf-8", "replace")
    except OSError:
        return "other"
    program = line.split(" ", 1)[0]
    if (name := os.path.basename(program)) in ("raylet", "gcs_server"):
        return name.removesuffix("_server")
    if "Agent" in program or "dashboard" in line:
        return "other"
    if program.startswith("ray::") or "default_worker.py" in line:
        return "worker"
    return "other"


def _fields(pid: int, name: str) -> dict[str, int]:
    """Parse the numbers in a /proc file with lines `name: number …`."""
    try:
        with open(f"/proc/{pid}/{name}") as stream:
            lines = [line.split() for line in stream]
    except OSError:
        return {}
    return {parts[0].rstrip(":"): int(parts[1]) for parts in lines if len(parts) > 1 and parts[1].isdigit()}


if __name__ == "__main__":
    used, text = measure(sys.argv[1:], lambda line: None)
    sys.stdout.write(text)
    print(used)
