"""An index run on Ray against a self-hosted server with slots, a queue and no announced limits."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing.index import index
from graphrag_ray.indexing.status import index_status
from graphrag_ray.store.files import Store

ENDPOINT = Path(__file__).parents[2] / "benchmarks" / "endpoint"
LATENCY_S = 0.5
BEFORE, AFTER = 8, 24
"""Slots: few and slow. At many calls per second this machine, busy with other tests, would bound them."""
CHUNKS, FIRST_ANSWERS, SETTLED_LOOKS = 800, 150, 20
"""Other programs may disturb the search at first. So the server gets more slots only after the calls in
flight have fitted it in this many checks, after this many answers."""


def fit(in_flight: Sequence[int], slots: int) -> bool:
    return 0.6 * slots <= sum(in_flight) / len(in_flight) <= 6 * slots


@dataclass
class Watched:
    """The server process, polled five times per second. Once concurrency has settled, it gets AFTER slots."""

    base_url: str
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    """Slots, calls in flight, answers so far."""
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self, path: str, change: dict[str, Any] | None = None) -> Any:
        url = self.base_url.removesuffix("/v1") + path
        body = None if change is None else json.dumps(change).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as reply:
            return json.loads(reply.read())

    def watch(self) -> None:
        slots = BEFORE
        while not self.over.wait(0.2):
            stats = self.ask("/stats")
            answered = stats["total"]["answered"]
            self.seen.append((slots, stats["in_flight"]["now"], answered))
            latest = self.in_flight(BEFORE, FIRST_ANSWERS)[-SETTLED_LOOKS:]
            if slots == BEFORE and len(latest) == SETTLED_LOOKS and fit(latest, BEFORE):
                slots = AFTER
                self.ask("/settings", {"slots": slots})

    def in_flight(self, slots: int, first: int, last: int = CHUNKS) -> list[int]:
        """Return the calls in flight at a number of slots, within a range of numbers of answers."""
        return [n for s, n, answered in self.seen if s == slots and first <= answered <= last]


@pytest.fixture
def server() -> Iterator[Watched]:
    options = ["--latency", str(LATENCY_S), "--slots", str(BEFORE), "--replies", "fixed", "--count", "chars"]
    with subprocess.Popen(
        [sys.executable, str(ENDPOINT), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        watched = Watched(process.stdout.readline().strip())
        thread = threading.Thread(target=watched.watch)
        thread.start()
        try:
            yield watched
        finally:
            watched.over.set()
            thread.join()
            process.terminate()


def test_concurrency_without_known_limits_follows_the_server_capacity(
    on_ray: None, server: Watched, tmp_path: Path
) -> None:
    from graphrag_ray.engine.ray.ray_executor import RayExecutor

    texts = [json.dumps({"title": f"t{i}", "text": f"Ann met Bob in year {i}."}) for i in range(CHUNKS)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(texts))
    model = {
        "provider": "openai",
        "model": "m",
        "endpoints": [{"base_url": server.base_url, "api_key_env": None}],
    }
    settings = parse_settings(
        {
            "models": {"default": model},
            "extraction": {"max_gleanings": 0},
            "embeddings": {"enabled": False},
        }
    )
    store = Store(str(tmp_path / "index"))
    executor = RayExecutor(store, Models.from_settings(settings))
    try:
        done = index(str(tmp_path / "corpus.jsonl"), executor, settings, Observer())
    finally:
        executor.close()

    assert done.committed and done.failed == 0
    rows = {row["stage"]: row for row in index_status(store)["usage"]}
    assert rows["extract"]["requests"] == CHUNKS and rows["extract"]["rate_limited"] == 0
    assert max(n for _, n, _ in server.seen) <= 4 * settings.run.initial_in_flight
    followed = server.in_flight(AFTER, 0, CHUNKS - 2 * AFTER)
    assert followed, ("never settled", server.in_flight(BEFORE, FIRST_ANSWERS))
    # Only for a while, because other load on the machine slows replies, and fewer calls are right then.
    assert any(
        fit(followed[i : i + SETTLED_LOOKS], AFTER) for i in range(max(1, len(followed) - SETTLED_LOOKS))
    ), followed
