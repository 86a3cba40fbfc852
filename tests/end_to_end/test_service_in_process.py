"""The service without Ray: real HTTP in this process, over a small index and a model behind HTTP."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import toy_model
import yaml
from documents import TOP, blocks
from endpoint import WRONG_KEY, Answer, Broken, Hang, Response, Status, rate_limited
from served import Served, until
from world import TOWN, Command, World, know, prompt_of, python

from graphrag_ray.cli.commands.serve_command import _problem
from graphrag_ray.indexing.purge import clean_up
from graphrag_ray.query.ask import Index
from graphrag_ray.service import answering
from graphrag_ray.service.chat_api import CITED_SEPARATOR
from graphrag_ray.service.service_metrics import PATHS
from graphrag_ray.service.service_options import ServiceOptions
from graphrag_ray.store.gc import GcOptions

THEMES = "What are the THEMES?"
TOKEN = "client-token"
Start = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Start]:
    made: list[Served] = []

    def start(token: str | None = None, **options: Any) -> Served:
        made.append(Served(token, root=str(tmp_path / "index"), follow_s=0.05, **options))
        return made[-1]

    yield start
    for served in made:
        served.close()


def set_reduce_reply(world: World, reply: Response) -> None:
    def respond(body: dict[str, Any]) -> Response:
        return reply if prompt_of(body) == "reduce" else toy_model.respond(body)

    world.endpoint.respond = respond


def add_snapshot(world: World) -> None:
    """Commit another snapshot, in which ZOE feeds YURI."""
    world.write({"zoo.txt": "ZOE feeds YURI."})
    world.index(communities={"pack_components_below": 1})


# POST /query


def test_answer_matches_the_index_and_names_cited_records(town: World, serve: Start):
    answer = serve().ask(THEMES)
    payload, asked = answer.json(), town.open().ask(THEMES)
    assert answer.status_code == 200 and payload["text"] == asked.text and payload["snapshot"] == 1
    assert [r["id"] for r in payload["references"]] == [r.id for r in asked.references]
    assert all(f"({r['number']})" in payload["text"] and r["name"] for r in payload["references"])
    assert payload["usage"]["total_tokens"] > 0 and payload["phases"].keys() == {"map", "reduce"}
    assert payload["seconds"] > 0 and "sources" not in payload and "contexts" not in payload


def test_sources_are_returned_on_request(town: World, serve: Start):
    payload = serve().ask("What did DAVE do?", method="local", sources=True).json()
    assert any(c["document"] == "harbour.txt" for s in payload["sources"] for c in s["chunks"])


def test_a_stream_sends_phases_then_pieces_then_the_answer(town: World, serve: Start):
    events = list(serve().stream(THEMES))
    names = [name for name, _ in events]
    assert names[0] == "phase" and names[-1] == "answer" and names.count("text") > 3
    text = "".join(data["text"] for name, data in events if name == "text")
    assert text == events[-1][1]["text"] == town.open().ask(THEMES).text
    begun = [data["phase"] for name, data in events if name == "phase" and not data["ended"]]
    assert begun == ["map", "reduce"]


def test_passages_follow_an_answer_that_found_nothing_and_leave_the_conversation(town: World, serve: Start):
    served, question = serve(), "Who is NOBODY at the harbour ?"
    payload = served.ask(question).json()
    assert not payload["found"] and payload["passages"][0]["words"]
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": question}]
    reply = client.chat.completions.create(model="graphrag-ray", messages=messages).choices[0].message.content
    assert reply and reply.startswith(payload["text"]) and "Passages that may help" in reply
    stream = client.chat.completions.create(model="graphrag-ray", messages=messages, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == reply
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And him?"}]
    asked = town.asked()
    client.chat.completions.create(model="graphrag-ray", messages=messages)
    condensed = town.endpoint.bodies()[asked]["messages"][-1]["content"]
    assert payload["text"] in condensed and "Passages that may help" not in condensed


def test_accept_event_stream_gets_a_stream(town: World, serve: Start):
    served = serve()
    headers = {"Accept": "text/event-stream"}
    answer = served.client.post("/query", json={"question": THEMES}, headers=headers)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.text.rpartition("event: ")[2].startswith("answer")


def test_follow_up_questions_use_the_conversation(town: World, serve: Start):
    asked = town.asked()
    answer = serve().ask(
        "And him?", history=[{"question": "Who is ERIN?", "answer": "DAVE sold her a boat."}]
    )
    assert answer.status_code == 200
    condensed = town.endpoint.bodies()[asked]
    assert prompt_of(condensed) == "condense" and "DAVE sold her" in condensed["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("params", "status", "message"),
    [
        ({"method": "magic"}, 400, "Unknown search method 'magic'"),
        ({"method": "vector", "level": "C0"}, 400, "vector search has no levels"),
        ({"level": "C9"}, 404, "C9"),
        ({"question": " "}, 400, "The question is empty"),
        ({"question": "x" * 20_001}, 400, "20001 characters"),
        ({"where": ["path=x"]}, 400, "does not support conditions"),
        ({"colour": "red"}, 400, "colour"),
        ({"question": 7}, 400, "question: "),
        ({"budget_tokens": 5}, 400, "budget_tokens"),
        ({"max_seconds": 9_999}, 400, "max_seconds can be at most 300"),
    ],
)
def test_invalid_questions_are_rejected_with_a_reason(
    town: World, serve: Start, params: dict[str, Any], status: int, message: str
):
    answers = [
        serve().ask(**({"question": THEMES} | params | {"stream": stream})) for stream in (False, True)
    ]
    for answer in answers:
        assert answer.status_code == status and message in answer.json()["error"]["message"]


def test_invalid_and_oversized_bodies_are_rejected(town: World, serve: Start):
    client = serve(max_body_bytes=1_000).client
    assert (
        client.post("/query", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    )
    # A page in a browser can send this to another address without a preflight request.
    simple = client.post("/query", content=b'{"question": "x"}', headers={"Content-Type": "text/plain"})
    assert simple.status_code == 400
    # `curl -d hello` sends this.
    form = client.post(
        "/query", content=b"hello", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert '-d \'{"question": ' in form.json()["error"]["message"] and "hello" not in form.text
    chat = client.post("/v1/chat/completions", content=b"[1", headers={"Content-Type": "application/json"})
    assert '"messages": [{"role": "user"' in chat.json()["error"]["message"]
    large = client.post("/query", json={"question": "x" * 1_000})
    assert large.status_code == 413 and large.json()["error"]["code"] == "request_too_large"

    def endless() -> Iterator[bytes]:
        yield from (b" " * 400 for _ in range(10))

    headers = {"Content-Type": "application/json"}
    assert client.post("/query", content=endless(), headers=headers).status_code == 413
    assert client.get("/nowhere").json()["error"]["code"] == "http_error"


def test_the_root_lists_the_endpoints(town: World, serve: Start):
    served = serve()
    payload = served.client.get("/").json()
    assert {*payload["POST"], *payload["GET"], "/"} == {*PATHS}
    for path, body in payload["POST"].items():
        assert served.client.post(path, json=body).status_code == 200
    for method, path in (("GET", "/query"), ("GET", "/nowhere"), ("POST", "/index")):
        assert "GET / lists the endpoints" in served.client.request(method, path).json()["error"]["message"]


def test_the_service_describes_its_index_and_health(town: World, serve: Start):
    served = serve(token=TOKEN)
    index = served.client.get("/index").json()
    assert index["snapshot"] == 1 and index["counts"]["documents"] == 6 and index["levels"][0]["name"] == "C0"
    assert httpx.get(f"{served.url}/healthz").json() == {"status": "ok", "snapshot": 1}
    for path in ("/index", "/metrics", "/v1/models", "/openapi.json"):
        assert httpx.get(f"{served.url}{path}").status_code == 401
    described = served.client.get("/openapi.json").json()["paths"]
    assert {"/query", "/index", "/v1/chat/completions", "/healthz"} <= described.keys()
    assert served.client.get("/docs").status_code == 404, "it would load third-party scripts"
    served.ask(THEMES)
    served.ask(THEMES, method="magic")
    questions = served.measured("questions_total")
    assert questions['{method="global",replica="",status="200"}'] == 1
    assert questions['{method="unknown",replica="",status="400"}'] == 1
    assert served.measured("snapshot") == {'{replica=""}': 1}
    assert served.measured("questions_running") == {'{replica=""}': 0}


def test_requests_are_counted_by_status_including_rejected_ones(town: World, serve: Start):
    served = serve(token=TOKEN, max_body_bytes=1_000)
    client, json_ = served.client, {"Content-Type": "application/json"}
    served.ask(THEMES)
    httpx.post(f"{served.url}/query", json={"question": THEMES})
    served.ask("x" * 1_000)
    client.post("/query", content=(b" " * 400 for _ in range(10)), headers=json_)
    client.post("/query", content=b"{", headers=json_)
    client.get("/query")
    client.post("/v1/chat/completions", json={"model": "gpt-5", "messages": [{"role": "user"}]})
    client.get("/v1/models/gpt-5")
    client.get("/made/up")
    counted = served.measured("requests_total")
    expected = {
        ("/query", 200): 1, ("/query", 401): 1, ("/query", 413): 2, ("/query", 400): 1, ("/query", 405): 1,
        ("/v1/chat/completions", 404): 1, ("/v1/models", 404): 1, ("other", 404): 1,
    }  # fmt: skip
    assert counted == {f'{{path="{p}",replica="",status="{s}"}}': n for (p, s), n in expected.items()}


def test_values_from_clients_do_not_become_labels(town: World, serve: Start):
    served = serve()
    for n in range(3):
        served.ask(THEMES, method=f"made-up-{n}")
        served.client.get(f"/made-up-{n}")
        served.client.get(f"/v1/models/made-up-{n}")
    assert "made-up" not in served.client.get("/metrics").text
    served_at = {route.path.partition("/{")[0] for route in served.app.routes}  # type: ignore[attr-defined]
    assert served_at == {*PATHS}


def test_model_calls_are_measured_as_in_a_run(town: World, serve: Start):
    refusals = [rate_limited("0.01"), Status(500), WRONG_KEY]

    def respond(body: dict[str, Any]) -> Response:
        return refusals.pop(0) if refusals and prompt_of(body) == "reduce" else toy_model.respond(body)

    before = len(town.endpoint.requests)
    town.endpoint.respond = respond
    served = serve(overrides=("models.default.endpoints.0.tokens_per_minute=6e7",))
    assert served.ask(THEMES).status_code == 503 and not refusals
    asked = len(town.endpoint.requests) - before
    at = f'endpoint="{town.endpoint.base_url}",model="m",replica=""'
    of = f'{{{at},stage="questions"}}'

    def measured(name: str) -> dict[str, float]:
        return served.measured(name, "llm")

    results = {f'{{{at},result="{result}",stage="questions"}}': result for result in ("answered", "failed")}
    requests = {results[labels]: count for labels, count in measured("requests_total").items()}
    assert requests["answered"] == asked - 3 == measured("latency_seconds_count")[of]
    assert requests["failed"] >= 2 and measured("rate_limited_total") == {of: 1}
    assert measured("limit_tokens_per_minute") == {of: 6e7}
    assert 0 < measured("charged_tokens_total")[of] < 6e7 and measured("requests_in_flight") == {of: 0}
    reduce = '{model="m",replica="",stage="reduce"}'
    assert measured("calls_total")[reduce] == measured("calls_failed_total")[reduce] == 1
    assert measured("retries_total")[reduce] == 2
    assert measured("prompt_tokens_total")['{model="m",replica="",stage="map"}'] > 0


# Limits


def test_a_question_that_takes_too_long_is_cancelled(town: World, serve: Start):
    set_reduce_reply(town, Hang(30))
    served = serve(max_seconds=60)
    late = served.ask(THEMES, max_seconds=0.5)
    assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
    events = list(served.stream(THEMES, max_seconds=0.5))
    assert events[-1][0] == "error" and events[-1][1]["status"] == 504
    set_reduce_reply(town, "All is well.")
    assert served.ask(THEMES).json()["text"] == "All is well."


def test_a_full_queue_rejects_questions_with_retry_after(town: World, serve: Start):
    finish = threading.Event()
    set_reduce_reply(town, Answer("One thing, another thing, and a last thing.", until=finish))
    served = serve(max_running=1, max_waiting=1)
    with ThreadPoolExecutor(2) as pool:
        # A stream waits for its end; the other question waits for its slot.
        first = pool.submit(lambda: list(served.stream(THEMES)))
        until(lambda: served.service.slots.running == 1)
        second = pool.submit(served.ask, THEMES)
        until(lambda: served.service.slots.waiting == 1)
        full = served.ask(THEMES)
        assert full.status_code == 429 and int(full.headers["Retry-After"]) >= 1
        assert full.json()["error"]["type"] == "rate_limit_error"
        finish.set()
        assert first.result()[-1][0] == "answer" and second.result().status_code == 200


def test_a_request_can_lower_but_not_raise_the_budget(town: World, serve: Start):
    served = serve(overrides=("query.budget_tokens=100000",))
    assert served.ask(THEMES, budget_tokens=99_999).status_code == 200
    assert served.ask(THEMES, budget_tokens=100_001).status_code == 400
    low = served.ask(THEMES, budget_tokens=10).json()
    assert low["error"]["code"] == "budget_exceeded"


def test_concurrent_questions_share_a_limiter_and_have_their_own_accounts(town: World, serve: Start):
    served = serve(overrides=("models.default.endpoints.0.max_in_flight=2",))
    set_reduce_reply(town, Answer("All is well.", delay_s=0.1))
    alone = served.ask(THEMES).json()["usage"]
    left = town.endpoint.in_flight  # Questions of earlier tests, whose clients disconnected.
    town.endpoint.peak_in_flight = 0
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: served.ask(THEMES).json(), range(12)))
    assert {tuple(a["usage"].items()) for a in answers} == {tuple(alone.items())}
    assert len({a["text"] for a in answers}) == 1 and 2 <= town.endpoint.peak_in_flight <= left + 2


# Disconnected clients


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnected_client_ends_its_question(town: World, serve: Start, stream: bool):
    set_reduce_reply(town, Hang(60))
    served = serve(overrides=("models.default.endpoints.0.max_in_flight=1",))
    asked = town.asked()
    with pytest.raises(httpx.ReadTimeout):
        served.client.post("/query", json={"question": THEMES, "stream": stream}, timeout=1.0)
    until(lambda: served.service.slots.running == 0)
    assert town.prompts(asked)["reduce"] == 1
    assert served.measured("questions_total") == {'{method="global",replica="",status="499"}': 1}
    # Calls made so far are counted, and the slot at the model is free again.
    assert served.measured("calls_total", "llm")['{model="m",replica="",stage="reduce"}'] == 1
    set_reduce_reply(town, "All is well.")
    assert served.ask(THEMES).json()["text"] == "All is well."


# Failures


def test_a_rejected_key_is_reported_with_a_status(town: World, serve: Start):
    town.endpoint.respond = lambda body: WRONG_KEY
    served = serve()
    answer = served.ask(THEMES)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "model_unavailable"
    name, payload = list(served.stream(THEMES))[-1]
    assert name == "error" and payload["status"] == 503 and payload["error"]["code"] == "model_unavailable"


def test_an_interrupted_answer_starts_again(town: World, serve: Start):
    replies = [Broken("One thing, another thing, and a last thing.", after=4), "All is well."]

    def respond(body: dict[str, Any]) -> Response:
        return replies.pop(0) if prompt_of(body) == "reduce" else toy_model.respond(body)

    town.endpoint.respond = respond
    events = list(serve().stream(THEMES))
    names = [name for name, _ in events]
    assert names.index("restart") < len(names) - 1 and names[-1] == "answer"
    after = events[names.index("restart") + 1 :]
    assert "".join(data["text"] for name, data in after if name == "text") == "All is well."


@pytest.mark.parametrize("error", [ValueError("as DAVE wrote"), TimeoutError("as DAVE wrote")])
def test_a_bug_is_reported_logged_and_counted(
    town: World,
    serve: Start,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    def fail(*given: object) -> None:
        raise error

    served = serve()
    monkeypatch.setattr(answering, "_build_answer", fail)
    answer = served.ask(THEMES)
    assert answer.status_code == 500 and "DAVE" not in answer.text
    assert re.search("service.s log under question=[0-9a-f]{24}", answer.json()["error"]["message"])
    assert list(served.stream(THEMES))[-1][1]["status"] == 500
    assert served.measured("questions_total") == {'{method="global",replica="",status="500"}': 2}
    bugs = [r for r in caplog.records if r.exc_info]
    # Our log lines omit the text of exceptions; the server's would include it.
    assert {r.name for r in bugs} == {"graphrag_ray.service.answering"} and len(bugs) == 2


def test_a_paid_answer_is_returned_whatever_else_fails(
    town: World, serve: Start, monkeypatch: pytest.MonkeyPatch
):
    def fail(*given: object) -> None:
        raise ZeroDivisionError("as DAVE wrote")

    served = serve()
    for name in ("sources", "short_numbers", "cited_records"):
        monkeypatch.setattr(Index, name, fail)
    answer = served.ask(THEMES, sources=True)
    assert answer.status_code == 200 and answer.json()["text"]
    failed = [note for note in answer.json()["notes"] if "ZeroDivisionError (service/answering.py:" in note]
    assert len(failed) == 3 and "as DAVE wrote" not in answer.text
    assert "answer" in dict(served.stream(THEMES))


def test_only_the_type_of_storage_errors_is_shown(town: World, serve: Start, monkeypatch: pytest.MonkeyPatch):
    served = serve()

    def fail(number: int) -> None:
        raise OSError("no access to private-bucket")

    monkeypatch.setattr(served.service.live, "_open", fail)
    add_snapshot(town)
    until(lambda: "OSError" in served.client.get("/index").json()["problem"])
    assert "private-bucket" not in served.client.get("/index").text


# Snapshots


def test_new_snapshots_are_used_and_running_questions_finish_on_theirs(town: World, serve: Start):
    finish = threading.Event()
    set_reduce_reply(town, Answer("One thing, another thing, and a last thing.", until=finish))
    served = serve()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: list(served.stream(THEMES)))
        until(lambda: served.service.slots.running == 1)
        town.endpoint.respond = toy_model.respond
        add_snapshot(town)
        until(lambda: served.client.get("/healthz").json()["snapshot"] == 2)
        assert "ZOE" in served.ask("What about YURI ?").json()["text"]
        finish.set()
        assert running.result()[-1][1]["snapshot"] == 1


def test_a_question_keeps_its_connections_through_two_changes_of_the_snapshot(town: World, serve: Start):
    finish = threading.Event()
    written = "One thing, another thing, and a last thing."
    set_reduce_reply(town, Answer(written, until=finish))
    served = serve()
    live, coming = served.service.live, served.stream(THEMES)
    assert next(data["text"] for name, data in coming if name == "text").startswith("One")
    connections = live.require_current().connections
    town.endpoint.respond = toy_model.respond
    add_snapshot(town)
    until(lambda: live.require_current().number == 2)
    assert live.require_current().connections is connections
    know(town.endpoint, "m", max_in_flight=3)
    town.write({"ferry.txt": "ZOE sailed with XENIA."})
    town.index(communities={"pack_components_below": 1})
    until(lambda: live.require_current().number == 3)
    assert live.require_current().connections is not connections
    town.store.write("snapshots/4.json", b"{")
    until(lambda: live.failed_refreshes >= 2)  # Every refresh closes unused connections.
    finish.set()
    rest = list(coming)
    assert "restart" not in [name for name, _ in rest]
    assert rest[-1][1]["text"] == written and rest[-1][1]["snapshot"] == 1


def test_a_service_without_an_index_waits_for_one(
    world: World, serve: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GRAPHRAG_RAY_TOKEN", TOKEN)
    served = serve(token=TOKEN)
    health = served.client.get("/healthz")
    assert health.status_code == 503 and health.json() == {"status": "no snapshot"}  # Readable by everyone.
    assert "There is no snapshot at" in _problem(served.service.options, served.url)
    early = served.ask(THEMES)
    assert early.status_code == 503 and early.json()["error"]["code"] == "no_snapshot"
    assert served.client.get("/v1/models").status_code == 503
    world.write(TOWN)
    world.index(communities={"pack_components_below": 1})
    until(lambda: served.client.get("/healthz").status_code == 200)
    assert served.ask(THEMES).status_code == 200


def test_a_snapshot_removed_during_a_question_is_reported_and_the_next_is_used(
    town: World, serve: Start, monkeypatch: pytest.MonkeyPatch
):
    served = serve()
    # The question has not seen the new snapshot when the old one is removed, nor read all of the old one.
    with monkeypatch.context() as blind:
        blind.setattr(served.service.live, "refresh", _never)
        add_snapshot(town)
        clean_up(town.store, GcOptions(keep=1, grace_s=0.0), delete=True)
        removed = served.ask(THEMES, method="text")
    error = removed.json()["error"]
    assert removed.status_code == 503 and error["code"] == "snapshot_removed"
    assert removed.headers["Retry-After"] == "1" and "the newest snapshot, 2" in error["message"]
    until(lambda: served.ask(THEMES, method="text").status_code == 200)


async def _never() -> None: ...


def test_a_snapshot_that_cannot_be_opened_leaves_the_current_one_in_use(town: World, serve: Start):
    served = serve()
    town.store.write("snapshots/2.json", b"{")
    until(lambda: "damaged" in served.client.get("/index").json()["problem"])
    assert served.ask(THEMES).json()["snapshot"] == 1
    assert served.measured("snapshot_checks_failed")['{replica=""}'] >= 1


def test_a_removed_snapshot_is_not_used_even_if_the_newest_cannot_be_opened(town: World, serve: Start):
    served = serve()
    assert served.ask(THEMES).status_code == 200
    town.store.write("snapshots/2.json", b"{")
    town.store.delete("snapshots/1.json")
    (part, *_) = town.store.list("tables/documents")
    town.store.delete(part.path)
    until(lambda: served.client.get("/healthz").status_code == 503)
    refused = served.ask(THEMES)
    assert refused.status_code == 503 and "damaged" in refused.json()["error"]["message"]


# OpenAI protocol


def test_a_chat_client_works_unchanged(town: World, serve: Start, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    served = serve(token=TOKEN)
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0)
    names = [model.id for model in client.models.list()]
    assert [client.models.retrieve(name).id for name in names] == names
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("graphrag-ray/magic")
    assert names[0] == "graphrag-ray" and {"graphrag-ray/global/C0", "graphrag-ray/local"} <= {*names}
    messages: Any = [{"role": "user", "content": THEMES}]
    done = client.chat.completions.create(model="graphrag-ray", messages=messages)
    text = done.choices[0].message.content or ""
    assert text.startswith(town.open().ask(THEMES).text + CITED_SEPARATOR) and "Reports cited:" in text
    assert done.usage is not None and done.usage.total_tokens > 0
    assert done.model_extra is not None and done.model_extra["graphrag"]["references"]
    pieces = list(
        client.chat.completions.create(
            model="graphrag-ray/global/C0",
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == text
    (streamed,) = {p.id.removeprefix("chatcmpl-") for p in pieces}
    assert streamed in [payload["question"] for payload in questions_logged(caplog)]
    assert pieces[-1].usage is not None and pieces[-2].choices[0].finish_reason == "stop"
    again = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "And DAVE ?"}]
    assert (
        client.chat.completions.create(model="graphrag-ray/vector", messages=again).choices[0].message.content
    )


def test_errors_have_the_format_of_the_client(town: World, serve: Start):
    served = serve(token=TOKEN)
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0)
    messages: Any = [{"role": "user", "content": THEMES}]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-5", messages=messages)
    with pytest.raises(openai.NotFoundError, match="C9"):
        client.chat.completions.create(model="graphrag-ray/global/C9", messages=messages)
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        client.chat.completions.create(model="graphrag-ray", messages=messages, n=2)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(model="graphrag-ray", messages=messages)
    town.endpoint.respond = lambda body: WRONG_KEY
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="graphrag-ray", messages=messages, stream=True))


def test_documentation_examples_run(
    town: World, serve: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (TOP / "docs" / "guides" / "service.md").read_text("utf-8")
    served = serve(token=TOKEN)
    monkeypatch.setenv("GRAPHRAG_RAY_TOKEN", TOKEN)
    (example,) = blocks(page, {"python"})
    exec(compile(example.replace("http://127.0.0.1:8000", served.url), "docs/guides/service.md", "exec"), {})
    assert capsys.readouterr().out.strip()
    (asked,) = re.findall(r"--json '(.+)'", page)
    assert served.client.post("/query", json=json.loads(asked)).json()["sources"] is not None
    (config,) = (yaml.safe_load(block) for block in blocks(page, {"yaml"}))
    ServiceOptions.model_validate(config["applications"][0]["args"])


# Privacy


def test_questions_are_not_logged(town: World, serve: Start, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="graphrag_ray")
    served = serve(token=TOKEN)
    served.ask("What did DAVE do in secret?")
    served.ask("What did DAVE do in secret?", colour="red")
    served.ask("x", method="secret")
    good, bad = questions_logged(caplog)
    assert (good["method"], good["status"]) == ("global", 200) and good["calls"] > 0 < good["tokens"]
    assert (bad["method"], bad["status"], bad["calls"]) == ("unknown", 400, 0)
    logged = caplog.text + str([vars(record) for record in caplog.records])
    assert "secret" not in logged and TOKEN not in logged


def questions_logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The log records of finished questions."""
    return [r.graphrag_ray_fields for r in caplog.records if r.message == "Question finished"]  # type: ignore[attr-defined]


# Start-up


def test_addresses_beyond_this_machine_need_a_token(
    town: World, run: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GRAPHRAG_RAY_TOKEN", raising=False)
    done = run("serve", "--root", town.root, "--host", "0.0.0.0")
    assert done.exit_code == 2 and "GRAPHRAG_RAY_TOKEN is not set" in done.output
    assert "--allow-anonymous" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "magic"], "Unknown search method 'magic'"),
        (["--method", "vector", "--level", "C0"], "vector search has no levels"),
        (["--replicas", "0"], "--replicas"),
        (["--set", "query.colour=red"], "unknown setting"),
        (["--root", "/nowhere/at/all"], "here is no index"),
    ],
)
def test_an_index_that_cannot_be_served_is_reported_immediately(
    town: World, run: Command, options: list[str], message: str
):
    done = run("serve", "--root", town.root, *options)
    assert done.exit_code == 2 and message in done.output


def test_a_port_in_use_is_reported_immediately(town: World):
    port = town.endpoint.base_url.split(":")[2].split("/")[0]
    command = [sys.executable, "-m", "graphrag_ray", "serve", "--root", str(town.root), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and f"Cannot listen on 127.0.0.1:{port}" in done.stderr


def test_commands_do_not_import_the_service():
    done = python(
        "import sys; from click.testing import CliRunner; from graphrag_ray.cli.command_line import main\n"
        "for given in (['--help'], ['query', 'x', '--root', '/nowhere']): CliRunner().invoke(main, given)\n"
        "print([m for m in ('fastapi', 'starlette', 'prometheus_client', 'ray') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done
