"""A hostile client cannot make the service fail, hang, reply at length or block other clients.

Section F of the threat model in docs/guides/security.md.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest
import toy_model
from endpoint import Endpoint
from served import Served, until
from world import TOWN, World, know

from graphrag_ray.base.errors import UsageError
from graphrag_ray.service.access import find_token
from graphrag_ray.service.faults import MAX_MESSAGE_CHARS
from graphrag_ray.service.service_options import ServiceOptions

THEMES = "What are the THEMES?"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": THEMES}
JSON = {"Content-Type": "application/json"}
Start = Callable[..., Served]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(tmp_path_factory.mktemp("attacked"), endpoint)
        world.write(TOWN)
        world.index(communities={"pack_components_below": 1})
        yield world


@pytest.fixture
def serve(town: World) -> Iterator[Start]:
    know(town.endpoint, "m", "e", max_in_flight=16)
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
    (query('"\\ud800": 1'), "expects a JSON object"),
    (query('"budget_tokens": 1' + "0" * 5_000), "parsing"),
    (query('"max_seconds": NaN'), "max_seconds"),
    (query('"budget_usd": -1e308'), "budget_usd"),
    (query('"level": 1' + "0" * 3_000), "There is no level"),
    (query('"level": "C²"'), "There is no level"),
    (query('"level": true, "method": "\\u0000"'), "Unknown search method"),
    (query('"level": "' + " " * 500_000 + '"'), "There is no level"),
    (query('"method": "text", "where": ["path~' + "*a" * 1_900 + '"]'), "No document satisfies"),
    (query('"method": "text", "where": ["' + " " * 500_000 + '"]'), "where.0: String should have at most"),
    (query('"method": "text", "where": ["' + " " * 3_900 + '"]'), "write it as NAME=VALUE"),
    (query('"where": [' + '"a=b",' * 50_000 + '"a=b"]'), "where: List should have at most 100 items"),
    (query('"where": [' + "1," * 300_000 + "1]"), "where.0: Input should be a valid string"),
    (query('"history": [[]]'), "history.0"),
    (query('"history": [' + "{}," * 200_000 + "{}]"), "history.0.question: Field required"),
    (query('"history": [' + '{"question":"","answer":""},' * 30_000 + "{}]"), "at most 1000 items"),
    (query(",".join(f'"{n}": 1' for n in range(80_000))), "keys, but at most 100"),
    (b'{"question": "\xff\xfe"}', "parsing"),
    (b'{"question": {"question": "x"}}', "question"),
    (b'"What?"', "expects a JSON object"),
    (b"", "expects a JSON object"),
]
CHATS = [
    (chat(n=100), "n must be 1"),
    (chat(messages=[0] * 300_000), "messages.0"),
    (chat(messages=[USER] * 15_000), "at most 10000 items"),
    (chat(messages=[{"role": "user", "content": [0] * 300_000}]), "messages.0.content"),
    (chat(messages=[]), "messages"),
    (chat(messages=[{"role": "user", "content": []}]), "The question is empty"),
    (chat(messages=[{"role": "user", "content": [[["x"]]]}]), "messages.0.content"),
    (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "only text"),
    (chat(messages=[USER, {"role": "critic", "content": "x"}, USER]), "role 'critic'"),
    (chat(messages=[{"role": "system", "content": THEMES}]), "The last message"),
    (chat(messages=[{"role": "user", "content": "x" * 100_000}]), "100000 characters"),
    (chat(tools=[{"type": "function"}]), "Tool calls are not supported"),
    (chat(response_format={"type": ["json"]}), "response_format"),
    (chat(model="x" * 100_000), "does not exist"),
    (chat(model="graphrag-ray/global/"), "There is no level"),
    (chat(model="graphrag-ray/global/C0/C1"), "does not exist"),
]


def test_no_body_makes_the_service_fail_or_reply_at_length(town: World, serve: Start):
    client, asked = serve().client, town.asked()
    for path, bodies in (("/query", QUERIES), (CHAT, CHATS)):
        for body, said in bodies:
            answer = client.post(path, content=body, headers=JSON)
            error = answer.json()["error"]
            assert answer.status_code in (400, 404) and said in error["message"], (body[:80], answer.text)
            assert len(error["message"]) <= MAX_MESSAGE_CHARS >= len(error["param"] or "")
    assert town.asked() == asked
    for strange in (
        "\u0000",
        "\U0001f600" * 10_000,
        "</s>{question}{{context}}<|endoftext|>",
        "\ud800 THEMES",
    ):
        assert (
            client.post("/query", content=json.dumps({"question": strange}), headers=JSON).status_code == 200
        )
    # Clients of the protocol send fields without a value as null.
    assert client.post(CHAT, content=chat(stream=None, tools=None, n=None), headers=JSON).status_code == 200


def test_missing_body_times_out_without_blocking_other_clients(town: World, serve: Start):
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


def test_wrong_method_is_answered_with_the_allowed_ones(town: World, serve: Start):
    client = serve(token="right").client
    refused = client.get("/query")
    assert refused.status_code == 405 and refused.headers["Allow"] == "POST"
    assert refused.json()["error"]["code"] == "http_error"
    assert client.head("/healthz").status_code == 200


def test_wrong_tokens_are_rejected_and_invalid_characters_in_the_configured_one(town: World, serve: Start):
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
        with pytest.raises(UsageError, match="GRAPHRAG_RAY_TOKEN contains characters"):
            find_token(ServiceOptions(root="x"), {"GRAPHRAG_RAY_TOKEN": token})


# Requests from other websites


def test_scripts_of_allowed_origins_may_send_requests(town: World, serve: Start):
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


# Invalid requests


def raw(served: Served, *pieces: bytes) -> bytes:
    """Send raw bytes and return the response."""
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as one:
        one.settimeout(60)
        answered = b""
        try:
            for piece in pieces:
                one.sendall(piece)
            while piece := one.recv(65_536):
                answered += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answered


HEAD = b"POST /query HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"


def test_endless_body_is_cut_off_at_the_limit(town: World, serve: Start):
    served = serve(max_body_bytes=100_000)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    endless = raw(served, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 50)
    assert endless == b"" or endless.startswith(b"HTTP/1.1 413 ")  # closed while more was sent
    said = raw(served, HEAD + b"Content-Length: 9" + b"9" * 18 + b"\r\n\r\n{")
    assert said.split(b" ")[1] in (b"400", b"413")
    assert served.ask(THEMES).status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS, to a port without
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v1/models/%00%ff/../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 500_000 + b"\r\nConnection: close\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
    ],
    ids=["tls", "version", "bytes", "path", "long path", "long header", "two lengths", "negative"],
)
def test_invalid_request_is_rejected_and_the_next_one_answered(town: World, serve: Start, request_: bytes):
    served = serve()
    answered = raw(served, request_)
    assert answered == b"" or 400 <= int(answered.split(b" ")[1]) < 500, answered[:200]
    assert b"Traceback" not in answered
    assert served.client.get("/healthz").status_code == 200


def test_content_type_does_not_change_how_a_body_is_parsed(town: World, serve: Start):
    client, asked = serve().client, town.asked()
    for type_ in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "\u00e9", ""):
        answer = client.post(
            "/query", content=json.dumps({"question": THEMES}), headers={"Content-Type": type_.encode()}
        )
        assert answer.status_code == 400, type_
    assert town.asked() == asked, "a page of others can send these without being asked first"
    twice = client.post("/query", content=f'{{"question": "", "question": "{THEMES}"}}', headers=JSON)
    assert twice.status_code == 200 and twice.json()["question"] == THEMES


def test_no_text_can_end_or_forge_a_stream_event(town: World, serve: Start):
    question = "THEMES\r\n\r\nevent: error\ndata: {}\x00\x1b[2J\u2028\u0085"
    with serve().client.stream("POST", "/query", json={"question": question, "stream": True}) as got:
        names = [line for line in got.read().split(b"\n") if line.startswith(b"event: ")]
    assert b"event: error" not in names and names[-1] == b"event: answer"


def test_abandoned_streams_free_their_slots(town: World, serve: Start):
    served = serve(max_running=2, max_waiting=2)
    body = json.dumps({"question": THEMES, "stream": True}).encode()
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as one:
            one.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    until(lambda: served.ask(THEMES).status_code == 200)
