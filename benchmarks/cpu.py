"""What a run costs in CPU: all our processes, Ray's included, per request (Linux only).

    python benchmarks/cpu.py                          # 4,000 generated chunks, 1,000 in flight, 3 s a call
    python benchmarks/cpu.py --chunks 20000 --latency 3 --in-flight 1000
    python benchmarks/cpu.py --input DIR --set chunking.size=document

It starts the simulated endpoint with precomputed replies and no limit, then `graphrag-ray index`, and
reads user and system time of every process that the run starts, known by a mark in its environment,
from /proc five times a second. What a process does after its last sample is missing: `unseen` says how
much that can be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = "GRAPHRAG_RAY_CPU_BENCHMARK"
SAMPLE_S = 0.2
TOKENS_PER_WORD = 1.35
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PARTS = (
    ("ray::", "workers"),
    ("default_worker.py", "workers"),
    ("log_monitor.py", "agents"),
    ("/agent", "agents"),
    ("gcs_server", "gcs"),
    ("raylet", "raylet"),
    ("graphrag_ray.cli", "driver"),
)


@dataclass
class Processes:
    """CPU seconds of every process that bears the mark, by (pid, start time).

    part     what it is, by its newest command line
    cpu_s    at its newest sample
    peak_rss_mb   of all of them together
    """

    mark: str
    part: dict[tuple[int, str], str] = field(default_factory=dict)
    cpu_s: dict[tuple[int, str], float] = field(default_factory=dict)
    alive: set[tuple[int, str]] = field(default_factory=set)
    ended: int = 0
    peak_rss_mb: float = 0.0
    _pids: set[int] = field(default_factory=set)

    def sample(self) -> None:
        alive, rss = set(), 0.0
        for name in os.listdir("/proc"):
            if not name.isdecimal():
                continue
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                key = (int(name), fields[19])
                if key not in self.cpu_s and not self._is_ours(key[0], int(fields[1])):
                    continue
                self.part[key] = _part(Path(f"/proc/{name}/cmdline").read_bytes()) or self.part.get(key, "")
            except OSError:  # it has just ended
                continue
            self.cpu_s[key] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            rss += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            alive.add(key)
            self._pids.add(key[0])
        self.ended += len(self.alive - alive)
        self._pids = {pid for pid, _ in alive}
        self.alive, self.peak_rss_mb = alive, max(self.peak_rss_mb, rss)

    def _is_ours(self, pid: int, parent: int) -> bool:
        # Ray's workers overwrite their environment with a title
        return parent in self._pids or self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()

    def by_part(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for key, seconds in self.cpu_s.items():
            part = self.part[key] or "other"
            out[part] = out.get(part, 0.0) + seconds
        return dict(sorted(out.items(), key=lambda item: -item[1]))

    @property
    def unseen_s(self) -> float:
        """What may be missing at most, on average half of it."""
        return self.ended * SAMPLE_S


def _part(command: bytes) -> str:
    text = command.replace(b"\0", b" ").decode("utf-8", "replace")
    return next(
        (part for sign, part in PARTS if sign in text), "driver" if "graphrag_ray.cli" in text else ""
    )


@contextmanager
def endpoint(*arguments: str) -> Iterator[str]:
    """A simulated endpoint for as long as the block lasts; its base URL."""
    command = [sys.executable, str(HERE / "endpoint"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def sampled(processes: Processes) -> Iterator[None]:
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(SAMPLE_S):
            processes.sample()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        processes.sample()


def get(base_url: str, path: str) -> Any:
    with urllib.request.urlopen(base_url.removesuffix("/v1") + path) as reply:
        return json.loads(reply.read())


def write_corpus(path: Path, chunks: int, tokens: int, seed: int = 1) -> None:
    """A .jsonl file of texts of some so many tokens each, without meaning."""
    rng = random.Random(seed)
    syllables = ("ba", "den", "far", "gol", "hin", "kel", "lor", "mas", "nor", "pet", "sil", "tor", "ven")
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(3000)]
    with path.open("w") as out:
        for i in range(chunks):
            text = " ".join(rng.choices(words, k=round(tokens / TOKENS_PER_WORD / 1.5)))
            out.write(json.dumps({"title": f"Text {i}", "text": text}) + "\n")


def run(given: argparse.Namespace, folder: Path) -> int:
    source = given.input
    if source is None:
        source = str(folder / "corpus.jsonl")
        write_corpus(Path(source), given.chunks, given.chunk_tokens)
    processes = Processes(uuid.uuid4().hex)
    with endpoint("--replies", "fixed", "--latency", str(given.latency)) as url:
        command = [
            sys.executable, "-m", "graphrag_ray.cli", "index", source, "--root", str(folder / "index"),
            "--model", "m", "--base-url", url, "--max-in-flight", str(given.in_flight), "--quiet",
            "--set", "models.default.endpoints.0.api_key_env=null", *(f"--set={s}" for s in given.set),
        ]  # fmt: skip
        began = time.monotonic()
        with sampled(processes):
            code = subprocess.run(command, env={**os.environ, MARK: processes.mark}, check=False).returncode
        wall_s = time.monotonic() - began
        report(given, code, wall_s, processes, get(url, "/stats"), get(url, "/stats/series"))
    return code


def report(
    given: argparse.Namespace,
    code: int,
    wall_s: float,
    processes: Processes,
    stats: dict[str, Any],
    series: dict[str, Any],
) -> None:
    requests = max(1, stats["requests"])
    total_s = sum(processes.cpu_s.values())
    # while there is enough to do: at least half of what is allowed is in flight
    at_work = [
        n
        for n, flying in zip(series["admitted_requests"], series["mean_in_flight"], strict=True)
        if flying >= given.in_flight / 2
    ]
    rows = [
        ("exit code", code),
        ("requests", stats["requests"]),
        ("wall s", f"{wall_s:.1f}"),
        (
            "in flight, peak / mean",
            f"{stats['in_flight']['peak']} / {stats['in_flight']['mean_while_any']:.0f}",
        ),
        (
            "requests/s while at least half in flight",
            f"{sum(at_work) / len(at_work):.0f} over {len(at_work)} s" if at_work else "never",
        ),
        ("CPU s", f"{total_s:.1f}"),
        ("CPU ms per request", f"{1000 * total_s / requests:.2f}"),
        *((f"  {part}", f"{1000 * s / requests:.2f}") for part, s in processes.by_part().items()),
        ("  unseen, at most", f"{1000 * processes.unseen_s / requests:.2f}"),
        ("endpoint's own CPU ms per request", f"{1000 * stats['cpu_s'] / requests:.2f}"),
        ("peak memory of all, MB (shared pages counted in each)", f"{processes.peak_rss_mb:.0f}"),
    ]
    for name, value in rows:
        print(f"{name:56}{value}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", help="a corpus; without it, one is generated")
    parser.add_argument("--chunks", type=int, default=4000, help="of the generated corpus")
    parser.add_argument("--chunk-tokens", type=int, default=550)
    parser.add_argument("--latency", type=float, default=3.0, help="seconds of every call")
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="of graphrag-ray index")
    with tempfile.TemporaryDirectory() as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    sys.exit(main())
