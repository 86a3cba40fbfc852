"""Storage that is unavailable during a sweep: no calls are paid for whose replies cannot be stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint import Answer, Endpoint
from faulty import OutageStore
from listed import Listed

from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.executor import Executor
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.store import files
from graphrag_ray.store.journal import JournalIndex

CALL = CallParameters("default", "m")
IN_FLIGHT = 8
ITEMS = 300
TEXTS = [f"item {i}" for i in range(ITEMS)]


class Model:
    """Answers in upper case. At request number `out_at`, it creates the file `out`: the outage begins."""

    def __init__(self, out: Path, out_at: int) -> None:
        self.out, self.out_at = out, out_at
        self.asked: list[tuple[float, str]] = []

    def __call__(self, body: dict[str, Any]) -> Answer:
        text = body["messages"][-1]["content"]
        self.asked.append((time.monotonic(), text))
        if len(self.asked) == self.out_at:
            self.out.touch()
        return Answer(text.upper(), delay_s=0.1)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path / "OUT", 60)


@pytest.fixture
def endpoint(model: Model) -> Iterator[Endpoint]:
    with Endpoint(model) as running:
        yield running


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.cluster)])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Executor]]:
    monkeypatch.setattr(files, "FIRST_DELAY_S", files.FIRST_DELAY_S)  # undone afterwards
    given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": IN_FLIGHT}
    settings = parse_settings(
        {"models": {"default": {"provider": "openai", "model": "m", "endpoints": [given]}}}
    )
    store, models = OutageStore(f"outage://{tmp_path}/index"), Models.from_settings(settings)
    made: list[Any] = []

    def build() -> Executor:
        if request.param == "local":
            return LocalExecutor(store, models, journal_flush_s=0.2)
        request.getfixturevalue("on_ray")
        from graphrag_ray.engine.ray.ray_executor import RayExecutor

        made.append(RayExecutor(store, models, journal_flush_s=0.2, workers_per_node=1))
        return made[-1]

    yield build
    for executor in made:
        executor.close()


def start(store: Any, row: Row) -> Generator[Any, Any, str]:
    reply = yield ChatRequest("p", (Message("user", row["text"]),), CALL)
    return str(reply.text)


def label(row: Row) -> tuple[str, str]:
    return row["text"], ""


WORK = Work("echo", start, label)


def test_long_outage_stops_spending_and_then_the_run(make: Callable[[], Executor], model: Model):
    executor = make()
    with pytest.raises(StoreError) as raised:
        executor.sweep(WORK, Listed(TEXTS), JournalIndex.load(executor.store, "echo"))
    told, ended = str(raised.value), time.monotonic()
    assert "Cannot write outage://" in told and "after 8 attempts: the storage is out of reach" in told
    assert "run the same command again" in told and "journal rows) could not be stored" in told
    assert "Traceback" not in told
    assert ended - model.asked[-1][0] > 1.0, "nothing was asked while nothing could be kept"
    paid = len(model.asked)
    assert 0 < JournalIndex.load(executor.store, "echo").count_done() < paid < ITEMS

    model.out.unlink()
    model.out_at = -1
    source = Listed(TEXTS)
    again = make()
    index = JournalIndex.load(again.store, "echo")  # A write that had started may have succeeded by now.
    again.sweep(WORK, source, index)
    assert len(source.outcomes) == ITEMS
    assert len(model.asked) - paid == ITEMS - index.count_done(), (
        "asked again: what was not kept, and nothing else"
    )


def test_short_outage_delays_a_run_at_no_cost(make: Callable[[], Executor], model: Model):
    """The outage ends before the store stops retrying."""
    executor, source = make(), Listed(TEXTS)
    ending = threading.Thread(target=_end_soon, args=(model.out,), daemon=True)
    ending.start()
    executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    assert not model.out.exists() and len(model.asked) > model.out_at
    assert len(source.outcomes) == ITEMS == len(model.asked)


def _end_soon(out: Path) -> None:
    while not out.exists():
        time.sleep(0.02)
    time.sleep(0.7)
    out.unlink()
