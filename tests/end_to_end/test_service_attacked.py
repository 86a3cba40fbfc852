"""The service without Ray, by clients that mean no good and over models and storage that fail."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import toy_model
from endpoint import NO_QUOTA, Drop, Endpoint, rate_limited
from served import Served, until
from world import TOWN, Command, World

from graphrag_ray import patience
from graphrag_ray.commands.serve import _problem
from graphrag_ray.errors import UsageError
from graphrag_ray.service.access import find_token
from graphrag_ray.service.faults import MOST_CHARACTERS
from graphrag_ray.service.options import ServiceOptions

THEMES = "What are the THEMES?"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": THEMES}
Start = Callable[..., Served]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(tmp_path_factory.mktemp("attacked"), endpoint)
        world.write(TOWN)
        world.index(communities={"small_component": 1})
        yield world


@pytest.fixture
def serve(town: World) -> Iterator[Start]:
    town.endpoint.respond = toy_model.respond
    made: list[Served] = []

    def start(token: str | None = None, **options: Any) -> Served:
        made.append(Served(token, **({"root": str(town.root)} | options)))
        return made[-1]

    yield start
    for served in made:
        served.close()


# bodies


def query(more: str) -> bytes:
    return f'{{"question": "{THEMES}", {more}}}'.encode()


def chat(**changes: Any) -> bytes:
    return json.dumps({"model": "graphrag-ray", "messages": [USER]} | changes).encode()


QUERIES = [
    (b"[" * 500_000, "parsing"),
    (b'{"question":' * 50_000 + b"1" + b"}" * 50_000, "parsing"),
    (query('"x": ' + "[" * 900 + "]" * 900), "x: Extra"),
    (query(f'"{"x" * 100_000}": 1'), "xxx"),
    (query('"\\ud800": 1'), "unicode"),
    (query('"budget_tokens": 1' + "0" * 5_000), "parsing"),
    (query('"max_seconds": NaN'), "max_seconds"),
    (query('"budget_usd": -1e308'), "budget_usd"),
    (query('"level": 1' + "0" * 3_000), "there is no level"),
    (query('"level": "C²"'), "there is no level"),
    (query('"level": true, "method": "\\u0000"'), "there is no method"),
    (query('"method": "text", "where": ["path~' + "*a" * 20_000 + '"]'), "no document fulfils"),
    (query('"history": [[]]'), "history.0"),
    (b'{"question": "\xff\xfe"}', "parsing"),
    (b'{"question": {"question": "x"}}', "question"),
    (b'"What?"', "dictionary"),
    (b"", "required"),
]
CHATS = [
    (chat(n=100), "n must be 1"),
    (chat(messages=[]), "messages"),
    (chat(messages=[{"role": "user", "content": []}]), "the question is empty"),
    (chat(messages=[{"role": "user", "content": [[["x"]]]}]), "messages.0.content"),
    (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "only text"),
    (chat(messages=[USER, {"role": "critic", "content": "x"}, USER]), "the role 'critic'"),
    (chat(messages=[{"role": "system", "content": THEMES}]), "the last message"),
    (chat(messages=[{"role": "user", "content": "x" * 100_000}]), "100000 characters"),
    (chat(tools=[{"type": "function"}]), "tools are not called"),
    (chat(response_format={"type": ["json"]}), "response_format"),
    (chat(model="x" * 100_000), "does not exist"),
    (chat(model="graphrag-ray/global/"), "there is no level"),
    (chat(model="graphrag-ray/global/C0/C1"), "does not exist"),
]


def test_no_body_makes_the_service_fail_or_talk_at_length(town: World, serve: Start):
    client, asked = serve().client, town.asked()
    headers = {"Content-Type": "application/json"}
    for path, bodies in (("/query", QUERIES), (CHAT, CHATS)):
        for body, said in bodies:
            answer = client.post(path, content=body, headers=headers)
            error = answer.json()["error"]
            assert answer.status_code in (400, 404) and said in error["message"], (body[:80], answer.text)
            assert len(error["message"]) <= MOST_CHARACTERS >= len(error["param"] or "")
    assert town.asked() == asked
    for strange in (
        "\u0000",
        "\U0001f600" * 10_000,
        "</s>{question}{{context}}<|endoftext|>",
        "\ud800 THEMES",
    ):
        assert (
            client.post("/query", content=json.dumps({"question": strange}), headers=headers).status_code
            == 200
        )
    # What clients of the protocol leave open, they send as null.
    assert (
        client.post(CHAT, content=chat(stream=None, tools=None, n=None), headers=headers).status_code == 200
    )


def test_a_body_that_does_not_come_is_not_waited_for_and_holds_nobody_up(town: World, serve: Start):
    served = serve(max_seconds=3)
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    head = b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    slow = [socket.create_connection(address) for _ in range(200)]
    for one in slow:
        one.sendall(head)
    assert served.ask(THEMES).status_code == 200
    told = [one.recv(100) for one in slow]  # for as long as a test may take
    assert all(t.startswith(b"HTTP/1.1 408 ") for t in told)
    for one in slow:
        while one.recv(1_000):  # it is closed, too
            pass
        one.close()


def test_what_a_path_can_be_asked_by_is_told(town: World, serve: Start):
    client = serve(token="right").client
    refused = client.get("/query")
    assert refused.status_code == 405 and refused.headers["Allow"] == "POST"
    assert refused.json()["error"]["code"] == "http_error"
    assert client.head("/healthz").status_code == 200


def test_a_wrong_token_may_hold_any_bytes_and_the_right_one_may_not(town: World, serve: Start):
    url = serve(token="right").url
    for wrong in (
        b"Bearer \xff\xfe",
        "Bearer r\u00efght".encode(),
        b"Bearer",
        b"Basic right",
        b"Bearer " + b"x" * 9_000,
    ):
        assert httpx.get(f"{url}/index", headers={b"Authorization": wrong}).status_code == 401
    assert httpx.get(f"{url}/index", headers={"Authorization": "bearer right"}).status_code == 200
    for token in ("schl\u00fcssel", "a\nb", "a\x7fb"):
        with pytest.raises(UsageError, match="GRAPHRAG_RAY_TOKEN holds characters"):
            find_token(ServiceOptions(root="x"), {"GRAPHRAG_RAY_TOKEN": token})


# models that fail


def test_a_model_that_refused_is_asked_again_after_a_while(
    town: World, serve: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(patience, "REFUSED_FOR_S", 1.0)
    served = serve()
    town.endpoint.respond = lambda body: NO_QUOTA
    asked = town.asked()
    for _ in range(3):
        refused = served.ask(THEMES)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_refused"
    assert town.asked() < asked + 3
    town.endpoint.respond = toy_model.respond
    while served.ask(THEMES).status_code == 503:  # for as long as a test may take
        pass
    assert served.ask(THEMES).json()["found"]


def test_an_answer_of_which_every_call_failed_is_an_error(town: World, serve: Start):
    town.endpoint.respond = lambda body: Drop()
    served = serve(max_seconds=60)
    with ThreadPoolExecutor(3) as pool:
        alone = pool.submit(served.ask, THEMES)
        streamed = pool.submit(lambda: list(served.stream(THEMES)))
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        asking: Any = {"model": "graphrag-ray", "messages": [USER]}
        chatted = pool.submit(client.chat.completions.create, **asking)
        error = alone.result()
        assert error.status_code == 503 and error.json()["error"]["code"] == "not_answered"
        assert "every call failed" in error.json()["error"]["message"]
        name, told = streamed.result()[-1]
        assert name == "error" and told["status"] == 503
        with pytest.raises(openai.InternalServerError, match="every call failed"):
            chatted.result()
    failed = served.measured("questions_total")['{method="global",replica="",status="503"}']
    assert failed == 3


def test_a_question_that_429s_keep_from_its_end_says_so(town: World, serve: Start):
    town.endpoint.respond = lambda body: rate_limited("1")
    late = serve(max_seconds=2.5).ask(THEMES)
    assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
    assert "429, too many requests" in late.json()["error"]["message"]


# what its operator forgot


def test_a_service_without_the_key_of_its_model_says_so_before_it_is_asked(
    town: World, serve: Start, caplog: pytest.LogCaptureFixture
):
    endpoint = f"{{base_url: '{town.endpoint.base_url}', api_key_env: NO_SUCH_KEY}}"
    served = serve(overrides=(f"models.default.endpoints=[{endpoint}]",))
    health = served.client.get("/healthz")
    assert health.status_code == 503 and health.json() == {"status": "no key of a model"}
    assert "NO_SUCH_KEY is not set" in served.client.get("/index").json()["problem"]
    assert "NO_SUCH_KEY is not set" in _problem(served.service.options, served.url)
    assert "NO_SUCH_KEY is not set" in caplog.text
    assert served.ask(THEMES).status_code == 503


def test_a_model_that_writes_no_answer_may_lack_its_key(town: World, serve: Start):
    endpoint = f"[{{base_url: '{town.endpoint.base_url}', api_key_env: NO_SUCH_KEY}}]"
    builder = f"models.builder={{provider: openai, model: m, endpoints: {endpoint}}}"
    served = serve(overrides=(builder, "stages.extract.model=builder"))
    assert served.client.get("/healthz").status_code == 200 and served.ask(THEMES).status_code == 200
    assert served.client.get("/index").json()["problem"] == ""


def test_a_key_that_comes_later_is_found(town: World, serve: Start, tmp_path: Path):
    key = tmp_path / "key"
    endpoint = f"[{{base_url: '{town.endpoint.base_url}', api_key_env: null, api_key_file: '{key}'}}]"
    served = serve(overrides=(f"models.default.endpoints={endpoint}",), follow_s=0.05)
    assert served.client.get("/healthz").status_code == 503
    assert served.ask(THEMES).status_code == 503, "a question opened connections without a key"
    live = served.service.live
    before = live.now().connections
    before.questions += 1  # as if that question were under way still
    key.write_text("key-that-came-later")
    until(lambda: served.client.get("/healthz").status_code == 200)
    assert served.ask(THEMES).status_code == 200
    after = live.now().connections
    assert after is not before and after.questions == 0 and before in live._retired
    before.questions -= 1
    until(lambda: before not in live._retired)


def test_a_budget_in_dollars_without_a_price_is_a_fault_of_the_service_and_not_of_who_asks(
    town: World, serve: Start, run: Command
):
    told = "query.budget_usd is set, but the price of a model is unknown"
    served = serve(overrides=("query.budget_usd=0.1",))
    assert served.client.get("/healthz").status_code == 503
    answer = served.ask(THEMES)
    assert answer.status_code == 503 and told in answer.json()["error"]["message"]
    refused = run("serve", "--root", town.root, "--budget-usd", "0.1")
    assert refused.exit_code == 2 and told in refused.output
    priced = ("models.default.price.input_usd_per_mtok=1", "models.default.price.output_usd_per_mtok=1")
    assert serve(overrides=("query.budget_usd=0.1", *priced)).ask(THEMES).status_code == 200


# pages of others


def test_scripts_of_a_page_may_ask_where_its_origin_is_named(town: World, serve: Start):
    page = {"Origin": "https://chat.example.org"}
    before = page | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    sent = page | {"Content-Type": "application/json"}
    named = serve(token="t", origins=("https://chat.example.org",))
    may = named.client.options(CHAT, headers=before | {"Authorization": ""})
    assert may.status_code == 200 and may.headers["Access-Control-Allow-Origin"] == page["Origin"]
    assert "authorization" in may.headers["Access-Control-Allow-Headers"].lower()
    answer = named.client.post(CHAT, content=chat(), headers=sent)
    assert answer.status_code == 200 and answer.headers["Access-Control-Allow-Origin"] == page["Origin"]
    assert named.client.post(CHAT, content=chat(), headers=sent | {"Authorization": ""}).status_code == 401
    other = named.client.options(CHAT, headers=before | {"Origin": "https://evil.example.org"})
    assert "Access-Control-Allow-Origin" not in other.headers
    assert "Access-Control-Allow-Origin" not in serve().client.get("/index", headers=page).headers
