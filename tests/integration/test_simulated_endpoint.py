"""The benchmarks' simulated endpoint as a process, called by `openai`, aiohttp and an index run."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from graphrag_ray import open_index
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing.index import index
from graphrag_ray.store.files import Store

ROOT = Path(__file__).parents[2]
KINDS = {"extract", "glean_missing", "claims", "describe", "about", "report", "embeddings"}
PLAIN = {
    "rpm": None, "tpm": None, "charge": "actual", "headers": True, "latency": 0.0, "embedding_s": 0.0,
    "speed": 1.0, "slots": None, "batch": None, "errors": 0.0, "drops": 0.0, "hangs": 0.0, "hang_s": 0.0,
    "garbage": 0.0, "truncate": 0.0, "replies": "written",
}  # fmt: skip


class Running:
    """The process, and requests to its control URLs."""

    def __init__(self, log: Path) -> None:
        command = [
            sys.executable,
            str(ROOT / "benchmarks" / "endpoint"),
            "--count",
            "chars",
            "--log",
            str(log),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.base_url = self.process.stdout.readline().strip()
        self.client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0, timeout=30)

    def own(self, path: str, value: Any = None) -> Any:
        """GET or POST a value outside /v1."""
        url = self.base_url.removesuffix("/v1") + path
        if value is None:
            return self.client.get(url, cast_to=object)
        return self.client.post(url, body=value, cast_to=object)

    def set(self, **changes: Any) -> None:
        self.own("/settings", PLAIN | changes)

    def stats(self) -> Any:
        return self.own("/stats")

    def ask(self, text: str, **more: Any) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model="m", messages=messages, **more)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("endpoint") / "log.jsonl"
    running = Running(log)
    yield running
    running.process.terminate()
    _, errors = running.process.communicate(timeout=20)
    assert running.process.returncode == 0, errors
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    assert "options" in lines[0]
    calls = lines[1:]
    assert {c["status"] for c in calls} <= {200, 429, 500, 0, 499}
    assert all(c["arrived"] <= (c["started"] or c["arrived"]) <= c["ended"] for c in calls)


@pytest.fixture
def endpoint(process: Running) -> Running:
    process.set()
    process.own("/stats/reset?windows", {})
    return process


def test_models_are_listed(endpoint: Running) -> None:
    assert len(endpoint.client.models.list().data) == 1


def test_call_reports_its_usage(endpoint: Running) -> None:
    reply = endpoint.ask("12345678")
    text = reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == 2 + 4 + 3
    assert reply.usage.completion_tokens == -(-len(text) // 4)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert endpoint.stats()["by_kind"]["other"]["prompt_tokens"] == 9


def test_reply_ends_at_its_limit(endpoint: Running) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        reply = endpoint.ask("go on", **{name: 5})
        assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 5)


def test_json_is_returned_on_request(endpoint: Running) -> None:
    properties = {"n": {"type": "integer"}, "names": {"type": "array", "items": {"type": "string"}}}
    schema = {"name": "s", "schema": {"type": "object", "properties": properties}}
    reply = endpoint.ask("go on", response_format={"type": "json_schema", "json_schema": schema})
    found = json.loads(reply.choices[0].message.content)
    assert (type(found["n"]), type(found["names"][0])) == (int, str)


def test_stream_has_the_same_content_as_a_whole_reply(endpoint: Running) -> None:
    endpoint.set(latency=None, ttft=0.0, tokens_per_s=500.0)
    whole = endpoint.ask("tell me")
    chunks = list(endpoint.ask("tell me", stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(chunks) > 3
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert endpoint.stats()["answered_twice"]["bodies"] == 1


def test_embeddings_are_unit_vectors_in_both_encodings(endpoint: Running) -> None:
    def vectors(**more: Any) -> Any:
        reply = endpoint.client.embeddings.create(model="m", input=["one", "two", "one"], **more)
        return [d.embedding for d in reply.data], reply.usage.prompt_tokens

    floats, n = vectors(dimensions=12, encoding_format="float")
    encoded, _ = vectors(dimensions=12, encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(e), "<f4") for e in encoded]
    assert n == 3
    assert np.allclose(floats, decoded)
    assert np.allclose(np.linalg.norm(floats, axis=1), 1.0)
    assert floats[0] == floats[2] != floats[1]
    assert len(vectors()[0][0]) == 256
    assert endpoint.stats()["texts_embedded_twice"] == 1 + 3 + 1


def test_reranked_documents_are_scored_by_shared_words(endpoint: Running) -> None:
    body = {"model": "m", "query": "red apple", "documents": ["a pear", "a red apple", "a red car"]}
    reply: Any = endpoint.client.post("/rerank", body=body, cast_to=object)
    assert [(r["index"], r["relevance_score"]) for r in reply["results"]] == [(1, 1.0), (2, 0.5), (0, 0.0)]
    assert reply["usage"]["total_tokens"] > 0 and endpoint.own("/stats")["by_kind"]["rerank"]["answered"] == 1


def test_call_over_the_limit_is_rejected_with_a_waiting_time(endpoint: Running) -> None:
    endpoint.set(rpm=3, tpm=1_000_000, speed=0.1)
    for n in range(3):
        endpoint.ask(f"call {n}")
    with pytest.raises(openai.RateLimitError) as refused:
        endpoint.ask("one more")
    headers = refused.value.response.headers
    assert headers["x-ratelimit-limit-requests"] == "3"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert 0 < int(headers["retry-after-ms"]) <= 600_000
    assert int(headers["retry-after"]) == -(-int(headers["retry-after-ms"]) // 1000)
    assert refused.value.code == "rate_limit_exceeded"
    assert "requests per min" in refused.value.message
    endpoint.set(rpm=3, headers=False)
    with pytest.raises(openai.RateLimitError) as refused:
        endpoint.ask("one more")
    assert "retry-after" not in refused.value.response.headers
    stats = endpoint.stats()
    assert stats["refused_429"]["all"] == stats["refused_429"]["requests"] >= 2


def test_call_is_charged_for_prompt_and_reply(endpoint: Running) -> None:
    endpoint.set(tpm=100_000)
    raw = endpoint.client.chat.completions.with_raw_response

    def left(text: str) -> int:
        reply: Any = raw.create(model="m", messages=[{"role": "user", "content": text}])
        used.append(reply.parse().usage.total_tokens)
        return int(reply.headers["x-ratelimit-remaining-tokens"])

    used: list[int] = []
    assert left("a") - left("b") == used[1]
    with pytest.raises(openai.RateLimitError, match="Request too large"):
        endpoint.ask("x" * 500_000)


def test_every_fault_is_visible_and_counted(endpoint: Running) -> None:
    endpoint.set(errors=1.0)
    with pytest.raises(openai.InternalServerError):
        endpoint.ask("a")
    for fault in ("drops", "hangs"):
        endpoint.set(**{fault: 1.0})
        with pytest.raises(openai.APIConnectionError):
            endpoint.ask("a")
    endpoint.set(garbage=1.0)
    replies = [_outcome(endpoint, f"g{i}") for i in range(8)]
    assert {"not JSON", "stop"} == set(replies)
    endpoint.set(truncate=1.0)
    replies = [_outcome(endpoint, f"t{i}") for i in range(8)]
    assert {"broken off", "length"} == set(replies)
    faults = endpoint.stats()["faults"]
    assert faults["error"] == faults["drop"] == faults["hang"] == 1
    assert faults["garbage_body"] + faults["garbage_text"] == 8
    assert faults["truncated_body"] + faults["truncated_text"] == 8
    assert endpoint.stats()["in_flight"]["now"] == 0


def _outcome(endpoint: Running, text: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}

    async def post() -> str:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.post(f"{endpoint.base_url}/chat/completions", json=body) as response:
                    content = await response.read()
            except aiohttp.ClientPayloadError:
                return "broken off"
        try:
            return str(json.loads(content)["choices"][0]["finish_reason"])
        except json.JSONDecodeError:
            return "not JSON"

    return asyncio.run(post())


def test_stream_can_break_off(endpoint: Running) -> None:
    endpoint.set(truncate=1.0, latency=None, ttft=0.0, tokens_per_s=5000.0)
    ends = set()
    for i in range(8):
        try:
            ends.add([c.choices[0].finish_reason for c in endpoint.ask(f"s{i}", stream=True)][-1])
        except openai.APIConnectionError:
            ends.add("broken off")
    assert ends == {"length", "broken off"}


def test_work_paid_twice_is_distinguished_from_work_lost_to_faults(endpoint: Running) -> None:
    endpoint.set(garbage=1.0)
    _outcome(endpoint, "again")
    endpoint.set()
    assert _outcome(endpoint, "again") == "stop"
    after = endpoint.stats()
    assert after["answered_twice"]["bodies"] == 0
    assert after["answered_twice_after_fault"]["bodies"] == 1
    for _ in range(2):
        tokens = endpoint.ask("again").usage.total_tokens
    twice = endpoint.stats()
    assert twice["answered_twice"] == {"bodies": 1, "extra_answers": 2, "extra_tokens": 2 * tokens}
    assert twice["answered_twice_after_fault"]["bodies"] == 1
    assert twice["distinct_bodies"] == 1


def test_disconnected_client_frees_its_slot(endpoint: Running) -> None:
    endpoint.set(slots=1, latency=600.0)
    with pytest.raises(openai.APITimeoutError):
        endpoint.client.with_options(timeout=0.3).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "slow"}]
        )
    endpoint.set(slots=1)
    endpoint.ask("quick")
    stats = endpoint.stats()
    assert stats["client_left"] == 1
    assert stats["in_flight"] == stats["in_flight"] | {"now": 0, "peak": 1}
    assert stats["answered_twice"]["bodies"] == 0


def test_settings_change_while_calls_are_in_flight(endpoint: Running) -> None:
    endpoint.set(latency=3000.0)

    async def main() -> int:
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": "x"}]
        calls = [
            asyncio.create_task(client.chat.completions.create(model="m", messages=messages, user=str(i)))
            for i in range(40)
        ]
        while (await asyncio.to_thread(endpoint.stats))["in_flight"]["now"] < 40:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(endpoint.set, speed=1e6)
        return len({(await call).id for call in calls})

    assert asyncio.run(main()) == 1
    stats = endpoint.stats()
    assert stats["in_flight"]["peak"] == 40
    assert stats["answered_twice"] == stats["answered_twice"] | {"bodies": 1, "extra_answers": 39}
    assert sum(endpoint.own("/stats/series")["admitted_requests"]) == 40


def test_invalid_setting_or_body_is_rejected_with_a_reason(endpoint: Running) -> None:
    for change in ({"rps": 1}, {"errors": 2.0}, {"rpm": 0}, {"replies": "none"}, {"slots": 1.5}):
        with pytest.raises(openai.BadRequestError, match=next(iter(change))):
            endpoint.own("/settings", change)
    for path, body in (
        ("/chat/completions", {"model": "m"}),
        ("/embeddings", {"input": []}),
        ("/rerank", {"query": "q", "documents": [1]}),
        ("/chat/completions", []),
    ):
        with pytest.raises(openai.BadRequestError):
            endpoint.client.post(path, body=body, cast_to=object)


def test_bodies_of_several_megabytes_are_accepted(endpoint: Running) -> None:
    assert endpoint.ask("word " * 1_000_000).usage.prompt_tokens == 1_250_007


def test_demo_corpus_can_be_indexed(endpoint: Running, tmp_path: Path) -> None:
    endpoint.set(jitter=0.2)
    given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 32}
    model = {"provider": "openai", "model": "m", "endpoints": [given]}
    models = {"default": model, "embedding": model}
    settings = parse_settings(
        {"models": models, "claims": {"enabled": True}, "run": {"journal_flush_s": 0.1}}
    )
    executor = LocalExecutor(Store(str(tmp_path)), Models.from_settings(settings), 0.1, 0.1)
    done = index(str(ROOT / "demo" / "corpus"), executor, settings, Observer())
    counts = done.manifest.counts
    stats = endpoint.stats()
    assert done.failed == 0
    assert 50 < counts["entities"] < 1000
    assert counts["relationships"] > counts["entities"] / 2
    assert set(stats["by_kind"]) == KINDS
    assert stats["answered_twice"]["bodies"] == 0
    assert stats["by_kind"]["glean_missing"]["answered"] == stats["by_kind"]["extract"]["answered"]
    # Some of its replies are useless, like some of a model's.
    opened = open_index(str(tmp_path), settings=settings)
    questions = ("What happened to the harbour?", "Who is against the plan?", "What are the themes?", "Why?")
    answer = next(a for a in map(opened.ask, questions) if a.found)
    assert answer.references
    assert not answer.dropped_references
    assert set(endpoint.stats()["by_kind"]) == KINDS | {"map", "reduce"}
