"""`graphrag-ray serve` as a process with its own Ray and two replicas, queried over HTTP."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import toy_model
from collector import Collector, collecting
from endpoint import Answer, Endpoint, Hang, Response, rate_limited
from prometheus_client.parser import text_string_to_metric_families
from served import KEY, TOKEN, Running, events, until
from world import TOWN, World, know, prompt_of

pytestmark = pytest.mark.cluster

THEMES = "What are the THEMES?"
IN_FLIGHT = 3
SETTLED_S = 3
SECRET_WORDS = "periwinkle"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(tmp_path_factory.mktemp("service"), endpoint)
        world.write(TOWN)
        world.index(communities={"pack_components_below": 1})
        yield world


@pytest.fixture(scope="module")
def traced() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def service(town: World, traced: Collector) -> Iterator[Running]:
    endpoint = "models.default.endpoints.0"
    limits = (
        "--set",
        f"{endpoint}.max_in_flight={IN_FLIGHT}",
        "--set",
        f"{endpoint}.api_key_env=OPENAI_API_KEY",
    )
    more = ("--replicas", "2", "--follow-s", "0.2", "--max-seconds", "50", "--max-body-bytes", "100000")
    environment = os.environ | traced.environment | {"GRAPHRAG_RAY_LOG": "info,json"}
    told = ("--set", "models.default.timeout_s=40")
    running = Running(town.root, *limits, *more, *told, environment=environment)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _as_ever(request: pytest.FixtureRequest) -> None:
    if "town" in request.fixturenames:
        endpoint = request.getfixturevalue("town").endpoint
        endpoint.respond = toy_model.respond
        know(endpoint, "m", "e", max_in_flight=IN_FLIGHT)


def reducing(world: World, reply: Response) -> None:
    def respond(body: dict[str, Any]) -> Response:
        return reply if prompt_of(body) == "reduce" else toy_model.respond(body)

    world.endpoint.respond = respond


def test_openai_clients_are_served(town: World, service: Running):
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key=TOKEN, max_retries=0)
    assert "graphrag-ray/global/C0" in [model.id for model in client.models.list()]
    messages: Any = [{"role": "user", "content": THEMES}]
    done = client.chat.completions.create(model="graphrag-ray", messages=messages)
    text = done.choices[0].message.content or ""
    assert text.startswith(town.open().ask(THEMES).text) and "Reports cited:" in text
    stream = client.chat.completions.create(model="graphrag-ray", messages=messages, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text and len([p for p in pieces if p]) > 3
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_answers_are_streamed_while_the_model_writes(town: World, service: Running):
    over = threading.Event()
    reducing(town, Answer("One thing, another thing, and a last thing.", until=over))
    with service.client.stream("POST", "/query", json={"question": THEMES, "stream": True}) as got:
        coming = events(got)
        assert next(data["text"] for name, data in coming if name == "text").startswith("One")
        over.set()
        assert [name for name, _ in coming][-1] == "answer"


def test_fifty_concurrent_questions_during_a_new_snapshot(town: World, service: Running):
    def respond(body: dict[str, Any]) -> Response:
        return Answer(toy_model.respond(body), delay_s=0.02)

    town.endpoint.respond, town.endpoint.peak_in_flight = respond, 0
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(service.ask, THEMES) for _ in range(50)]
        town.endpoint.respond = toy_model.respond
        town.write({"zoo.txt": "ZOE feeds YURI."})
        town.index(communities={"pack_components_below": 1})
        answers = [one.result() for one in asked]
    assert {a.status_code for a in answers} == {200}
    told = [a.json() for a in answers]
    assert {t["snapshot"] for t in told} <= {1, 2}
    by_snapshot = {t["snapshot"]: t["text"] for t in told}
    assert all(t["text"] == by_snapshot[t["snapshot"]] for t in told)
    # Both replicas follow.
    until(lambda: {service.ask("What about YURI ?").json()["snapshot"] for _ in range(10)} == {2})
    assert "ZOE" in service.ask("What about YURI ?").json()["text"]


def test_replicas_share_the_limits_of_the_model(town: World, service: Running):
    def respond(body: dict[str, Any]) -> Response:
        return Answer(toy_model.respond(body), delay_s=0.05)

    town.endpoint.respond, town.endpoint.peak_in_flight = respond, 0
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: service.ask(THEMES), range(20)))
    assert {a.status_code for a in answers} == {200}
    assert town.endpoint.peak_in_flight == IN_FLIGHT


def test_a_disconnected_client_ends_its_question(town: World, service: Running):
    reducing(town, Hang(60))
    asked = town.asked()

    def leave(number: int) -> None:
        with pytest.raises(httpx.ReadTimeout):
            service.client.post("/query", json={"question": THEMES, "stream": bool(number % 2)}, timeout=3.0)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(leave, range(IN_FLIGHT)))
    assert town.prompts(asked)["reduce"] == IN_FLIGHT
    town.endpoint.respond = toy_model.respond
    # They had all slots at the model, and would have kept them for longer than this question may take.
    assert service.ask(THEMES, max_seconds=20).status_code == 200


def test_forbidden_requests_are_rejected(town: World, service: Running):
    assert httpx.post(f"{service.url}/query", json={"question": THEMES}).status_code == 401
    assert httpx.get(f"{service.url}/metrics").status_code == 401
    assert httpx.get(f"{service.url}/healthz").status_code == 200
    large = service.ask("x" * 200_000)
    assert large.status_code == 413 and large.json()["error"]["code"] == "request_too_large"
    reducing(town, Hang(60))
    late = service.ask(THEMES, max_seconds=0.5)
    assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
    assert service.ask(THEMES, level="C9").status_code == 404
    assert "graphrag_ray_service_questions_total" in service.client.get("/metrics").text


def test_calls_answered_with_429_are_retried(town: World, service: Running):
    refusals = [rate_limited("0.05")]
    town.endpoint.respond = lambda body: refusals.pop() if refusals else toy_model.respond(body)
    assert service.ask(THEMES).status_code == 200 and not refusals


def test_ray_metrics_include_those_of_each_replica(town: World, service: Running):
    """The service's own address reaches any one of the replicas, which Prometheus cannot follow."""
    told: dict[str, float] = {}

    def both() -> bool:
        told.update(samples(service.client.get("/metrics").text, "graphrag_ray_"))
        return len({labels.partition(" ")[0] for labels in told}) == 2

    until(both)
    (port,) = [p.read_text() for p in session_of(service).glob("metrics_export_port_*")]

    def read() -> dict[str, float]:
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        return samples(page, "ray_graphrag_ray_")

    until(lambda: read().items() >= told.items())
    assert sum(count for labels, count in told.items() if "status=200" in labels) > 50


def test_metrics_count_model_calls_of_all_replicas_once(town: World, service: Running):
    """Endpoints are measured by the limiter, which the replicas share."""
    (port,) = [p.read_text() for p in session_of(service).glob("metrics_export_port_*")]
    at = {"run": "graphrag", "model": "m", "endpoint": town.endpoint.base_url, "stage": "questions"}

    def read(name: str, **labels: str) -> float:
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        found = [s for family in text_string_to_metric_families(page) for s in family.samples]
        full = f"ray_graphrag_ray_{name}"
        return sum(s.value for s in found if s.name == full and labels.items() <= s.labels.items())

    def told() -> dict[str, int]:
        values = {
            "answered": read("llm_requests_total", **at, result="answered"),
            "timed": read("llm_latency_seconds_count", **at),
            "failed": read("llm_requests_total", **at, result="failed"),
            "limited": read("llm_rate_limited_total", **at),
            "calls": read("llm_calls_total"),
            "retries": read("llm_retries_total"),
            "refused": read("service_requests_total", application="graphrag", path="/query", status="401"),
        }
        return {name: round(value) for name, value in values.items()}

    def settled() -> dict[str, int]:
        """Wait for the metrics of earlier tests, which Ray forwards every two seconds."""
        while (before := told()) != (time.sleep(SETTLED_S), told())[1]:
            pass
        return before

    assert service.ask(THEMES).status_code == 200
    until(lambda: read("llm_requests_in_flight", **at) == 0 < read("llm_calls_total"))
    before, asked, refusals = settled(), len(town.endpoint.requests), [rate_limited("0.05")]
    town.endpoint.respond = lambda body: refusals.pop() if refusals else toy_model.respond(body)
    assert service.ask(THEMES).status_code == 200
    assert httpx.post(f"{service.url}/query", json={"question": THEMES}).status_code == 401
    answered = len(town.endpoint.requests) - asked - 1
    once = dict.fromkeys(("failed", "limited", "retries", "refused"), 1)
    expected = {"answered": answered, "timed": answered, "calls": answered, **once}
    until(lambda: {name: value - before[name] for name, value in told().items()} == expected)
    assert read("llm_max_in_flight", **at) == IN_FLIGHT
    assert read("llm_prompt_tokens_total", stage="map") > 100


def samples(page: str, prefix: str) -> dict[str, float]:
    """How many questions have ended, by replica, method and status; and the snapshots in use."""
    found = [s for family in text_string_to_metric_families(page) for s in family.samples]
    names = (f"{prefix}service_questions_total", f"{prefix}service_snapshot")
    shown = ("replica", "method", "status")
    return {
        " ".join(f"{key}={s.labels[key]}" for key in shown if key in s.labels): s.value
        for s in found if s.name in names
    }  # fmt: skip


def test_shutdown_finishes_running_questions_and_no_secret_was_logged(
    town: World, service: Running, traced: Collector
):
    over = threading.Event()
    reducing(town, Answer("One thing, another thing, and a last thing.", until=over))
    session, question = session_of(service), f"What are the THEMES of {SECRET_WORDS}?"
    with ThreadPoolExecutor(1) as pool:
        with service.client.stream("POST", "/query", json={"question": question, "stream": True}) as got:
            coming = events(got)
            next(data for name, data in coming if name == "text")
            ending = pool.submit(service.end)
            time.sleep(1)
            assert not ending.done()
            over.set()
            assert [name for name, _ in coming][-1] == "answer"
        code, told = ending.result()
    assert code == 0 and "Stopping" in told
    logs = "".join(p.read_text(errors="replace") for p in session.glob("logs/**/*") if p.is_file())
    (last,) = [r for r in records_of(session) if r.get("message") == "Question finished"][-1:]
    assert (last["method"], last["status"], last["levelname"]) == ("global", 200, "INFO")
    assert last["seconds"] > 1 and last["calls"] > 1 and last["tokens"] > 100 and last["cost_usd"] is None
    assert len(last["question"]) == 24 and last["application"] == "graphrag" and last["replica"]
    told_to_wait = [line for line in logs.splitlines() if "asks to wait: pausing requests" in line]
    assert {json.loads(line)["run"] for line in told_to_wait} == {"graphrag"}, "of the limiter"
    for secret in (TOKEN, KEY, SECRET_WORDS):
        assert secret not in told + logs
        assert secret.encode() not in traced.received
    assert b"invoke_workflow graphrag global" in traced.received


def records_of(session: Path) -> list[dict[str, Any]]:
    """The JSON log lines of replicas, in order."""
    lines = [line for p in session.glob("logs/serve/replica_*.log") for line in p.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda record: record["timestamp_ns"])


def session_of(service: Running) -> Path:
    """The folder of its Ray session."""
    return max(Path("/tmp/ray").glob(f"session_*_{service.process.pid}"))
