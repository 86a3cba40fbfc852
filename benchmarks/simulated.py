"""Start the simulated endpoint (`endpoint/`) for a benchmark, and read its statistics."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from processes import Totals, measure


@contextmanager
def endpoint(*options: str) -> Iterator[str]:
    """Context manager for the endpoint as a process. Yields its base URL."""
    command = [sys.executable, str(Path(__file__).resolve().parent / "endpoint"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                sys.exit("the simulated endpoint did not start")
            yield url
        finally:
            process.terminate()


def get(base_url: str, path: str = "/stats") -> dict[str, Any]:
    with urllib.request.urlopen(base_url.removesuffix("/v1") + path) as reply:
        return dict(json.loads(reply.read()))


def no_laps(line: str) -> str | None:
    return None


def measure_separately(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    lap_of: Callable[[str], str | None] = no_laps,
) -> tuple[Totals, str]:
    """Call `processes.measured` in a separate process, so that the endpoint is not measured.

    `lap_of` must be a module-level function, because the other process imports it.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, command, lap_of, env, timeout_s).result()
