"""The service under load: many concurrent clients, each asking one question after another.

    python benchmarks/service.py --root ./index --clients 1 10 100 --questions 300

Starts `graphrag-ray serve` on a private Ray instance on this machine and queries it over HTTP with --method
and --level. Questions are those of --file (a .csv with a column question_text), or four built-in ones, in
rotation.

Prints one row for each number of clients. Seconds are what a client waits, including time in the queue. CPU
time per question covers the replicas and Serve's proxy. The clients' CPU time is not included, although they
use the same cores. Prints measurements; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx

DEFAULT_QUESTIONS = (
    "What are the main themes?",
    "Who decides, and who opposes them?",
    "Which risks are mentioned?",
    "What has changed over time?",
)
COLUMNS = (
    "clients",
    "questions",
    "errors",
    "a second",
    "p50 s",
    "p95 s",
    "max s",
    "CPU ms",
    "of which proxy",
)
WIDTHS = (8, 10, 7, 9, 7, 7, 7, 8, 16)
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--questions", type=int, default=300, help="questions for each number of clients")
    parser.add_argument("--file", help="a .csv with a column question_text")
    parser.add_argument("--method", default="global")
    parser.add_argument("--level")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--stream", action="store_true", help="stream answers as server-sent events")
    args = parser.parse_args()
    questions = _questions(args.file)
    with serving(args.root, args.replicas) as (url, pid):
        body = {"method": args.method, "level": args.level, "stream": args.stream}
        asyncio.run(load(url, questions, 2 * args.replicas, 1, body))  # Warm up: load what is loaded once.
        print("".join(name.rjust(width) for name, width in zip(COLUMNS, WIDTHS, strict=True)))
        for clients in args.clients:
            before, began = cpu_s(pid), time.monotonic()
            seconds, statuses = asyncio.run(load(url, questions, args.questions, clients, body))
            wall, used = time.monotonic() - began, cpu_s(pid)
            row = line(clients, seconds, statuses, wall, {k: used[k] - before[k] for k in used})
            print("".join(cell.rjust(width) for cell, width in zip(row, WIDTHS, strict=True)), flush=True)


def _questions(file: str | None) -> Sequence[str]:
    if file is None:
        return DEFAULT_QUESTIONS
    with Path(file).open(newline="", encoding="utf-8") as rows:
        return [row["question_text"] for row in csv.DictReader(rows)]


@contextmanager
def serving(root: str, replicas: int) -> Iterator[tuple[str, int]]:
    """Address and process of the service, as a context manager."""
    command = [sys.executable, "-m", "graphrag_ray", "serve", "--root", root, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--replicas", str(replicas)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        url = ""
        for printed in process.stdout:
            url = url or "".join(re.findall(r"^Serving .* at (http://\S+)", printed))
            if "Ctrl-C ends it" in printed:
                break
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def load(
    url: str, questions: Sequence[str], n: int, clients: int, body: dict[str, object]
) -> tuple[list[float], Counter[str]]:
    """Seconds of each answered question, and the outcomes of all questions."""
    left, seconds, statuses = iter(range(n)), list[float](), Counter[str]()
    bound = httpx.Limits(max_connections=clients)

    async def ask(client: httpx.AsyncClient) -> None:
        for number in left:
            started = time.monotonic()
            try:
                reply = await client.post(
                    f"{url}/query", json=body | {"question": questions[number % len(questions)]}
                )
                outcome = "error" if "event: error" in reply.text else str(reply.status_code)
            except httpx.HTTPError as e:
                outcome = type(e).__name__
            statuses[outcome] += 1
            if outcome == "200":
                seconds.append(time.monotonic() - started)

    async with httpx.AsyncClient(limits=bound, timeout=300) as client:
        await asyncio.gather(*(ask(client) for _ in range(clients)))
    return seconds, statuses


def cpu_s(service: int) -> dict[str, float]:
    """CPU seconds so far of replicas and of the proxy, which are children of the service's process."""
    used = {"replicas": 0.0, "proxy": 0.0}
    session = os.getsid(service)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "cmdline").read_text().partition("\0")[0]
            kind = "replicas" if "ServeReplica" in name else "proxy" if "ProxyActor" in name else ""
            if kind and os.getsid(int(path.name)) == session:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                used[kind] += (int(fields[11]) + int(fields[12])) / _TICKS
        except (OSError, ValueError):
            continue
    return used


def line(
    clients: int, seconds: list[float], statuses: Counter[str], wall_s: float, used_s: dict[str, float]
) -> tuple[str, ...]:
    n = statuses.total()
    last = sorted(seconds) or [0.0]
    return (
        str(clients),
        str(n),
        str(n - statuses["200"]),
        f"{n / wall_s:.1f}",
        f"{statistics.median(last):.2f}",
        f"{last[max(0, round(0.95 * len(last)) - 1)]:.2f}",
        f"{last[-1]:.2f}",
        f"{1000 * sum(used_s.values()) / n:.0f}",
        f"{1000 * used_s['proxy'] / n:.1f}",
    )


if __name__ == "__main__":
    main()
