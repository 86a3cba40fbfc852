"""Accounts of two endpoints with separate limits and prices agree with what the endpoints received."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from endpoint import Answer, Endpoint, in_turn, rate_limited

from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

COLUMNS = {
    "stage", "model", "calls", "requests", "retries", "hedged", "rate_limited", "failed", "unreported",
    "unanswered", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "latency_p50_s",
    "latency_p95_s", "latency_p99_s", "seconds", "mean_in_flight", "peak_in_flight", "share_of_limit",
}  # fmt: skip
REPLIED = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}


def once(store: Any, row: Row) -> Generator[Any, Any, str]:
    reply = yield ChatRequest("p", (Message("user", row["text"]),), CallParameters("default", "m"))
    return reply.text


class Rows:
    """A source whose items are all available from the start."""

    def __init__(self, n: int) -> None:
        self.total: int | None = n
        self._rows: list[Row] | None = [{"text": f"item {i}"} for i in range(n)]

    def take(self) -> list[Row] | None:
        rows, self._rows = self._rows, None
        return rows

    def on_finished(self, number: int, outcome: Any) -> None: ...


def test_accounts_add_up_both_endpoints(tmp_path: Path):
    answer = Answer("yes", usage=REPLIED, delay_s=0.05)
    with Endpoint(in_turn(rate_limited("0.2"), answer)) as cheap, Endpoint(lambda body: answer) as dear:
        ends = [
            {"base_url": e.base_url, "api_key_env": None, "requests_per_minute": 3_000, "price": price}
            for e, price in (
                (cheap, {"input_usd_per_mtok": 1, "cached_usd_per_mtok": 0.5, "output_usd_per_mtok": 4}),
                (dear, {"input_usd_per_mtok": 10, "output_usd_per_mtok": 40}),
            )
        ]
        model = {"provider": "openai", "model": "m", "endpoints": ends}
        settings = parse_settings({"models": {"default": model}, "run": {"journal_flush_s": 0.2}})
        store = Store(str(tmp_path / "index"))
        executor = LocalExecutor(store, Models.from_settings(settings), journal_flush_s=0.2)
        work = Work("extract", once, lambda row: (row["text"], ""))
        swept = executor.sweep(work, Rows(60), JournalIndex.load(store, "extract"))
        asked = len(cheap.requests) - 1, len(dear.requests)

    assert min(asked) > 0 and sum(asked) == 60
    (row,) = Accounts.from_dict(swept.accounts.to_dict()).rows()
    assert set(row) == COLUMNS
    assert (row["calls"], row["requests"], row["retries"], row["rate_limited"]) == (60, 61, 1, 1)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (6_000, 2_400, 600)
    by_hand = asked[0] * (60 * 1 + 40 * 0.5 + 10 * 4) + asked[1] * (100 * 10 + 10 * 40)
    assert row["cost_usd"] == pytest.approx(by_hand / 1e6)
    assert 0.05 <= row["latency_p50_s"] <= row["latency_p95_s"] <= row["latency_p99_s"]
    assert 0 < row["mean_in_flight"] <= row["peak_in_flight"] <= 60
    assert row["share_of_limit"] == pytest.approx(61 / (6_000 * row["seconds"] / 60))
