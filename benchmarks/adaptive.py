"""How well a run adapts to a server with unknown limits: `graphrag-ray index` on Ray.

    python benchmarks/adaptive.py                                     # 1, 3, 10 s per call; 16, 64, 256 slots
    python benchmarks/adaptive.py --seconds 10 --slots 256 --phase 120

Each server is a separate process of the simulated endpoint (see `endpoint/`). It works on a fixed number of
concurrent calls, its slots, queues the rest, and does not announce any limit. After --phase seconds of
extraction the slots are halved. After another --phase seconds they are doubled again. A run has as many
chunks as an ideal client would finish by the end of the third phase.

Prints one row per server. For each minute since the first call, the row shows two figures from the
endpoint's log: answered calls as a share of what the slots could have answered, and the mean number of calls
at the server divided by its slots. A value above 1 means that calls are queued there. Servers that would
answer more than 100 calls a second are skipped, because they would measure CPU instead.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu import write_corpus
from simulated import endpoint, get

MOST_CALLS_PER_S = 100.0
JITTER = 0.2
WINDOW_S = 60.0


@dataclass(frozen=True)
class Server:
    """A simulated server.

    Attributes:
        seconds: median latency of a call
        slots: initial number of concurrent calls
        phase_s: time until the slots are halved, and again until they are doubled
    """

    seconds: float
    slots: int
    phase_s: float

    @property
    def mean_s(self) -> float:
        return self.seconds * math.exp(JITTER**2 / 2.0)

    def slots_at(self, t: float) -> float:
        """Slots at `t` seconds after the first call."""
        return self.slots / 2 if self.phase_s <= t < 2 * self.phase_s else self.slots

    def slot_seconds(self, start: float, end: float) -> float:
        steps = 600
        return sum(self.slots_at(start + (end - start) * (i + 0.5) / steps) for i in range(steps)) * (
            (end - start) / steps
        )

    @property
    def chunks(self) -> int:
        return math.ceil(self.slot_seconds(0.0, 3 * self.phase_s) / self.mean_s)


@dataclass(frozen=True)
class Window:
    """One minute of a run: start in seconds since the first call, share of the maximum throughput, and mean
    number of calls at the server per slot."""

    start: float
    share: float
    in_flight: float


def change_slots(url: str, server: Server, over: threading.Event) -> None:
    """Halve and double the slots, timed from the first call."""
    while not get(url)["in_flight"]["now"]:
        if over.wait(0.1):
            return
    for slots in (server.slots // 2, server.slots):
        if over.wait(server.phase_s):
            return
        body = json.dumps({"slots": slots}).encode()
        urllib.request.urlopen(urllib.request.Request(url.removesuffix("/v1") + "/settings", body)).close()


def index(server: Server, source: Path, root: Path, url: str) -> tuple[int, float]:
    """Returns exit code and seconds of the command."""
    command = [
        sys.executable, "-m", "graphrag_ray", "index", str(source), "--root", str(root), "--ray", "--quiet",
        "--model", "simulated", "--base-url", url, "--set", "models.default.endpoints.0.api_key_env=null",
        "--set", "extraction.max_gleanings=0", "--set", "embeddings.enabled=false",
    ]  # fmt: skip
    started = time.monotonic()
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    return code, time.monotonic() - started


def windows(log: Path, server: Server) -> list[Window]:
    """The complete minutes in which extraction had work for every slot."""
    calls = [json.loads(line) for line in log.read_bytes().splitlines()[1:]]
    calls = [c for c in calls if c["kind"] == "extract"]
    first = min(c["arrived"] for c in calls)
    last = max(c["arrived"] for c in calls) - first
    minutes = []
    for k in range(int(min(last, 3 * server.phase_s) // WINDOW_S)):
        start, end = k * WINDOW_S, (k + 1) * WINDOW_S
        answered = sum(c["status"] == 200 and start <= c["ended"] - first < end for c in calls)
        occupied_s = sum(
            max(0.0, min(end, c["ended"] - first) - max(start, c["arrived"] - first)) for c in calls
        )
        available_s = server.slot_seconds(start, end)
        minutes.append(Window(start, answered * server.mean_s / available_s, occupied_s / available_s))
    return minutes


def run(server: Server) -> tuple[list[Window], int, float]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_corpus(folder / "corpus.jsonl", server.chunks, 100)
        log, over = folder / "log.jsonl", threading.Event()
        options = ["--replies=fixed", f"--latency={server.seconds}", f"--jitter={JITTER}"]
        with endpoint("--log", str(log), f"--slots={server.slots}", *options) as url:
            changing = threading.Thread(target=change_slots, args=(url, server, over))
            changing.start()
            code, wall = index(server, folder / "corpus.jsonl", folder / "index", url)
            over.set()
            changing.join()
            get(url)
            time.sleep(1.5)  # The log is written once a second.
        return windows(log, server), code, wall


def print_row(server: Server, minutes: Sequence[Window], code: int, wall: float) -> None:
    def cells(start: float, end: float) -> str:
        selected = [w for w in minutes if start <= w.start < end]
        return (
            " ".join(f"{w.share:.2f}" for w in selected)
            + " | "
            + " ".join(f"{w.in_flight:.1f}" for w in selected)
        )

    p = server.phase_s
    parts = " | ".join(cells(k * p, (k + 1) * p) for k in range(3))
    note = f"{server.chunks:,} calls, exit code {code}, {wall:.0f} s"
    print(f"| {server.seconds:g} | {server.slots} | {parts} | {note} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[1.0, 3.0, 10.0], help="median seconds a call takes"
    )
    parser.add_argument(
        "--slots", type=int, nargs="+", default=[16, 64, 256], help="initial concurrent calls"
    )
    parser.add_argument("--phase", type=float, default=120.0, help="seconds until the slots change")
    args = parser.parse_args()
    print(
        "| s a call | slots | share of the maximum, by minute | calls at the server / slots "
        "| halved: share | calls / slots | doubled: share | calls / slots | run |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for seconds in args.seconds:
        for slots in args.slots:
            if slots / seconds <= MOST_CALLS_PER_S:
                server = Server(seconds, slots, args.phase)
                print_row(server, *run(server))


if __name__ == "__main__":
    main()
