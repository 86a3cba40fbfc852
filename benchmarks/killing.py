"""Start nodes and index runs as separate processes, and kill some of them.

Linux only. Each process gets a separate session (`setsid`), in which its children remain after it dies. Only
processes of these sessions are inspected and killed.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from graphrag_ray.store.files import Store
from graphrag_ray.store.snapshots import read_latest

STEPS = ("read", "extract", "merge", "describe", "communities", "reports", "embed", "finish")
"""Steps by the names that the command prints when they end."""
KEPT_S = 5.0
"""Calls answered this long before a kill must never be repeated."""
ENDS_WITHIN_S = 3600.0
_LOOK_S = 0.02
_ROLES = {"Worker": "worker", "ModelLimiter": "limiter"}
_RAYS_OWN = ("DashboardAgent", "RuntimeEnvAgent", "_StatsActor", "_AutoscalingCoordinatorActor")


@dataclass(frozen=True)
class Process:
    """`role`: leader (of the session: a driver, or the process that started a node), worker, limiter (our
    actors), task (a process of Ray Data), idle, raylet, gcs or other."""

    pid: int
    role: str


def processes(sessions: Iterable[int]) -> list[Process]:
    """The living processes of these sessions."""
    wanted, living = set(sessions), []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(name)
            state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) in wanted and state not in "ZX":
                living.append(Process(pid, "leader" if pid in wanted else _role(pid)))
    return living


def _role(pid: int) -> str:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\x00", b" ").decode("utf-8", "replace")
    program = os.path.basename(line.split(" ", 1)[0])
    if program in ("raylet", "gcs_server"):
        return program.removesuffix("_server")
    if not line.startswith("ray::"):
        return "other"
    name = line.removeprefix("ray::").split()[0].split(".")[0].split("(")[0]
    if name in _RAYS_OWN:
        return "other"
    return "idle" if name == "IDLE" else _ROLES.get(name, "task")


def kill(victims: Iterable[Process]) -> list[int]:
    """Send SIGKILL to all of them, and return when they are dead."""
    killed = []
    for process in victims:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)
    while any(_state(pid) not in "ZX" for pid in killed):
        time.sleep(_LOOK_S)
    return killed


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def kill_sessions(sessions: Sequence[int]) -> None:
    """Send SIGKILL to all processes of these sessions until none is left."""
    until = time.monotonic() + 60
    while (left := processes(sessions)) and time.monotonic() < until:
        kill(left)
        time.sleep(_LOOK_S)


class Run:
    """A command that prints its steps to standard error, in its own session."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.began = time.monotonic()
        self.printed: list[str] = []
        self.ended: dict[str, float] = {}
        """Steps that ended, and when: time.monotonic()."""
        # fmt: off
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env,
            start_new_session=True,
        )
        # fmt: on
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def session(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for the exit code. Raises TimeoutExpired if it hangs."""
        code = self.process.wait(ENDS_WITHIN_S)
        self._reader.join(10)
        return code

    def wait_for(self, step: str, share: float, usual_s: Mapping[str, float]) -> bool:
        """Wait for this share of the usual time of a step; "start" and "commit" are the times before the
        first and after the last step. Returns False if the run ended before."""
        names = ("start", *STEPS, "commit")
        before = names[max(0, names.index(step) - 1)]
        until = time.monotonic() + ENDS_WITHIN_S
        while step != "start" and before not in self.ended and (step != "read" or not self.printed):
            if not self.alive:
                return False
            if time.monotonic() > until:
                raise TimeoutError(f"step {before} does not end: {self.printed[-5:]}")
            time.sleep(_LOOK_S)
        began = self.began if step == "start" else self.ended.get(before, time.monotonic())
        while time.monotonic() < began + share * usual_s[step]:
            if not self.alive:
                return False
            time.sleep(_LOOK_S)
        return self.alive

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.printed.append(line.rstrip())
            name, *rest = line.split() or [""]
            if name in STEPS and len(rest) > 1 and rest[1] == "s":
                self.ended[name] = time.monotonic()


_SMALL_PARTITIONS = """
from graphrag_ray.cli.command_line import main
from graphrag_ray.indexing.stages import merge_stage
merge_stage.RANGE_ROWS = dict.fromkeys(merge_stage.RANGE_ROWS, 100)
main()
"""


def index_command(corpus: Path, root: Path, url: str, *more: str, small_partitions: bool = True) -> list[str]:
    """`graphrag-ray index` with the model at `url`.

    With `small_partitions`, even a small corpus has several merge partitions, so its shuffle is real.
    """
    program = ["-c", _SMALL_PARTITIONS] if small_partitions else ["-m", "graphrag_ray"]
    command = [sys.executable, *program, "index", str(corpus), "--root", str(root), "--ray"]
    command += ["--model", "simulated", "--base-url", url]
    return [*command, "--set", "models.default.endpoints.0.api_key_env=null", *more]


def parts_of(root: Path) -> dict[str, list[str]]:
    """The parts of each table of the newest snapshot, which are named by the hash of their content."""
    manifest = read_latest(Store(str(root)))
    assert manifest is not None, f"{root} has no snapshot"
    return {name: [part.path for part in parts] for name, parts in manifest.tables.items()}


@dataclass
class Again:
    """Requests and texts to embed that were answered more than once, and the tokens of repeated answers.

    `late` counts those that had been answered more than KEPT_S before every kill that could explain them.
    """

    answers: int = 0
    tokens: int = 0
    late: list[str] = field(default_factory=list)


def paid_again(log: Path, kills: Sequence[float]) -> Again:
    """What the endpoint's log shows. `kills` are Unix times."""
    first, *lines = log.read_bytes().splitlines()
    zero = json.loads(first)["unix"]
    answered: defaultdict[str, list[tuple[float, float, int, str]]] = defaultdict(list)
    for line in lines:
        call = json.loads(line)
        if call["status"] != 200:
            continue
        tokens = call["prompt"] + call["completion"]
        units = call["texts"] or [call["key"]]
        for unit in units:
            spent = tokens // len(units)
            answered[unit].append((zero + call["arrived"], zero + call["ended"], spent, call["kind"]))
    again = Again()
    for calls in answered.values():
        calls.sort(key=lambda c: c[1])
        _, ended, _, _ = calls[0]
        for arrived, _, tokens, kind in calls[1:]:
            again.answers += 1
            again.tokens += tokens
            if not any(k - KEPT_S < ended and k <= arrived for k in kills):
                again.late.append(f"{kind} answered at {ended:.1f}, asked again at {arrived:.1f}")
    return again


class Private:
    """No cluster: each run starts its own Ray, in the session of its driver."""

    def __init__(self) -> None:
        ours = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        self.env = {**ours, "RAY_USAGE_STATS_ENABLED": "0"}
        self.options: list[str] = []

    def keep(self, n: int) -> list[int]:
        return []


class Cluster:
    """A Ray cluster of nodes on this machine. Each node has a separate session, which identifies its
    processes."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **(env or {})}
        # A local Ray started by this process tells others not to join it (`engine/ray/cluster.py`).
        self.env.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
        self.env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    @property
    def options(self) -> list[str]:
        """Options with which a command joins the cluster at its current address."""
        return ["--address", self.address]

    def start_node(
        self,
        *more: str,
        python: str = sys.executable,
        within: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Start a node, the first one as the head.

        Returns its session. `within`: a command that runs commands.
        """
        command = [*within, python, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += ["--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"]
        command += ["--dashboard-agent-listen-port=0", "--num-cpus=2", "--object-store-memory=100000000"]
        if not self.nodes:
            command += ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false"]
            command += [f"--ray-client-server-port={free_port()}", f"--temp-dir={self.folder}"]
        else:
            command += [f"--address={self.address}"]
        output = self.folder / f"node-{len(self.nodes)}.txt"
        with output.open("wb") as log:
            # fmt: off
            node = subprocess.Popen(
                [*command, *more], env={**self.env, **(env or {})}, cwd=self.folder,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )
            # fmt: on
        self.nodes.append(node)
        until = time.monotonic() + ENDS_WITHIN_S
        while b"Ray runtime started" not in output.read_bytes():
            if node.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the node did not start: {output.read_text()}")
            time.sleep(0.1)
        return node.pid

    def keep(self, n: int) -> list[int]:
        """Start missing nodes, or all of them if the head is dead. Returns their sessions."""
        alive = [n for n in self.nodes if any(p.role == "raylet" for p in processes([n.pid]))]
        if not alive or alive[0] is not self.nodes[0]:
            self.stop()
            alive, self.address = [], f"127.0.0.1:{free_port()}"
        self.nodes = alive
        while len(self.nodes) < n:
            self.start_node()
        return [node.pid for node in self.nodes]

    def kill_node(self, session: int) -> None:
        """Kill the raylet, its workers and all other processes of a node."""
        kill_sessions([session])
        for node in self.nodes:
            if node.pid == session:
                node.wait()

    def stop(self) -> None:
        kill_sessions([node.pid for node in self.nodes])
        for node in self.nodes:
            node.wait()


@contextmanager
def cluster(env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster that ends with the block, also on SIGTERM. Ray's sockets need a folder with a short path."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="gr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray_cluster = Cluster(Path(folder), env)
        try:
            yield ray_cluster
        finally:
            ray_cluster.stop()
            signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def one_of(candidates: Sequence[Process], role: str, rng: Random) -> list[Process]:
    """A random process of a role, or [] if there is none."""
    matching = [p for p in candidates if p.role == role]
    return [rng.choice(matching)] if matching else []
