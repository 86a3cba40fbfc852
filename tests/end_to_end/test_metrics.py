"""Prometheus metrics of a run on Ray equal the counts of the endpoint and of the accounts."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import toy_model
from endpoint import Response, rate_limited
from prometheus_client.parser import text_string_to_metric_families
from world import TOWN, World

from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray.metrics import DECLARED, PREFIX
from graphrag_ray.indexing.index import index
from graphrag_ray.llm.accounting import Accounts

KEY = "sk-only-the-endpoint-may-see-this"
MARKER = "Nobody answered for a year"
EXPORTED_WITHIN_S = 30.0
"""Ray's processes hand their metrics to the agent every ten seconds."""


def scraped() -> str:
    import ray

    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read().decode()


class Read:
    """The samples of one run. `sum` adds the values of a metric over all series with these labels."""

    def __init__(self, text: str, run: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [s for f in families for s in f.samples if s.labels.get("run") == run]

    def sum(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(
            s.value for s in self.samples if s.name == f"ray_{PREFIX}{name}" and wanted <= s.labels.items()
        )

    def labels(self, name: str) -> set[str]:
        return {s.labels[name] for s in self.samples if name in s.labels}


def read_when(run: str, there: Callable[[Read], bool]) -> Read:
    until = time.monotonic() + EXPORTED_WITHIN_S
    while True:
        read = Read(scraped(), run)
        if there(read) or time.monotonic() > until:
            return read
        time.sleep(0.5)


def test_metrics_equal_the_accounts_even_after_a_limiter_restart(
    world: World, on_ray: None, monkeypatch: pytest.MonkeyPatch
):
    import ray

    from graphrag_ray.engine.ray.ray_executor import RayExecutor

    refused, number, lock = count(), count(), threading.Lock()

    def respond(body: dict[str, Any]) -> Response:
        with lock:
            if next(number) % 7 == 3:
                next(refused)
                return rate_limited("0.05")
        return toy_model.respond(body)

    monkeypatch.setenv("GRAPHRAG_TEST_METRICS_KEY", KEY)
    world.endpoint.respond, world.endpoint.key = respond, KEY
    world.write(TOWN)
    given = {
        "base_url": world.endpoint.base_url,
        "api_key_env": "GRAPHRAG_TEST_METRICS_KEY",
        "tokens_per_minute": 6e7,
        "max_in_flight": 4,
    }
    price = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}
    model = {"provider": "openai", "model": "m", "endpoints": [given], "price": price}
    settings = world.settings(models={"default": model})
    executor = RayExecutor(world.store, Models.from_settings(settings), journal_flush_s=0.1)
    spent: list[Accounts] = []
    try:
        for n in range(2):
            world.write({f"{n}.txt": f"MALLORY met TRENT in year {n}."})
            spent.append(index(str(world.input), executor, settings, world.observer).accounts)
            ray.kill(executor.start().limiters[0], no_restart=False)
        asked, refusals = len(world.endpoint.requests), next(refused)

        def whole(read: Read) -> bool:  # The agent receives metrics one by one.
            items = read.sum("items_total", stage="extract")
            return read.sum("llm_requests_total") >= asked and items >= len(TOWN) + 2

        read = read_when(executor.run, whole)
    finally:
        executor.close()

    total = Accounts.merged(spent).total
    assert refusals > 2
    assert read.sum("llm_requests_total") == asked == total.requests
    assert read.sum("llm_requests_total", result="failed") == read.sum("llm_rate_limited_total") == refusals
    assert read.sum("llm_latency_seconds_count") == asked - refusals
    assert (
        read.sum("llm_calls_total") == total.calls
        and read.sum("llm_retries_total") == total.retries == refusals
    )
    assert read.sum("llm_prompt_tokens_total") == total.prompt_tokens
    assert read.sum("llm_completion_tokens_total") == total.completion_tokens
    assert read.sum("llm_charged_tokens_total") >= total.total_tokens
    assert read.sum("llm_cost_usd_total") == pytest.approx(total.cost_usd) and total.cost_usd
    by_stage = {stage: t.calls for (stage, _), t in Accounts.merged(spent).by_stage.items()}
    assert {stage: read.sum("llm_calls_total", stage=stage) for stage in by_stage} == by_stage
    assert read.sum("items_total", stage="extract", result="complete") == len(TOWN) + 2
    assert (
        read.sum("llm_requests_in_flight") == read.sum("queue_items") == read.sum("journal_lag_seconds") == 0
    )
    assert read.sum("llm_limit_tokens_per_minute", stage="extract") == 6e7
    assert read.labels("endpoint") == {world.endpoint.base_url} and "extract" in read.labels("stage")

    page = scraped()
    names = {re.sub("_(total|bucket|count|sum|created)$", "", s.name) for s in read.samples}
    assert names <= {f"ray_{PREFIX}{d.name}" for d in DECLARED}
    assert KEY not in page and MARKER not in page
