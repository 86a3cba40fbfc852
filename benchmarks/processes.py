"""CPU, memory, reads and writes of a command and all of its child processes, from /proc. Linux only.

This process adopts orphans (PR_SET_CHILD_SUBREAPER), so every process that the command starts remains a
descendant. All of them are sampled every PERIOD_S seconds, and a process counts with its last sample. What it
uses after that is lost: at most PERIOD_S seconds of one core for each process that ended.

The operating system's sum over waited-for children would be too low, because a raylet does not wait for its
workers. Linux adds the bytes that a child has read and written to those of the process that waits for it.
These bytes are subtracted, so they count once.
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
class Seen:
    """Usage of one process: CPU seconds, private memory and its peak, bytes read and written to disk.

    parent  process id
    io      bytes read and written as Linux counts them, including children that were waited for
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

    timed_out       it was killed because it took too long
    cpu_s           by role: driver, worker, raylet, gcs, other (Ray's agents and whatever else)
    driver_peak     private memory, without mapped files and shared memory
    worker_peak     private memory of the largest worker
    workers_peak    of all workers at one moment
    all_peak        of all processes at one moment
    store_peak      shared memory of the raylet: Ray's object store
    read            bytes read from files and pipes, including the page cache and Python's modules, but not
                    memory-mapped files or the network
    written         bytes written to disk, including files deleted later
    laps            by lap: wall and CPU seconds, peak private memory of the driver and of all workers.
                    Names must be unique
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
    """Run a command. Returns its resource usage and its output.

    lap_of: returns the name of the lap that ends with a printed line, or None.
    timeout_s: kill the command and its process group after this many seconds.
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
    """Kill a process group after this many seconds, or when the block exits early. The event is set if it
    timed out."""
    over = threading.Event()

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
        """End the current lap and name it."""
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
            # A worker sets its command line only after some time, and a fork only after its exec.
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
    """Bytes that a process itself has read and written between two samples.

    ended: last samples of children that ended in between. The numbers of a child that was waited for are
    part of its parent's numbers.
    """
    read, written = now[0] - before[0], now[1] - before[1]
    for child_io in ended:
        if child_io[0] <= read and child_io[1] <= written:
            read, written = read - child_io[0], written - child_io[1]
    return read, written


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, float, str] | None:
    """(parent, CPU seconds, start time in ticks), or None if the process has ended."""
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
    """Parse the numbers in a file with lines `name: number …`."""
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
