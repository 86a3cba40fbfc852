"""A hostile endpoint cannot harm a run, and the client does not trust implausible replies.

Each case uses a real server on loopback. The bounds limit what it can send before the client hangs up.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hostile_server import HostileServer, answer, endless, start_response, trickle

from graphrag_ray.base import connection_settings
from graphrag_ray.base.errors import CallError, FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import (
    CallParameters,
    ChatRequest,
    EmbeddingRequest,
    Message,
    Request,
)
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.call_failures import OnlyReasoning, RetriesExhausted
from graphrag_ray.llm.gateway import Gateway
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.llm.openai_provider import PROVIDER

CALL = CallParameters("default", "m", max_output_tokens=200)
CHAT = ChatRequest("map", (Message("user", "Say hello."),), CALL)
MAX_SENT_BYTES = 16 << 20
"""Upper bound of what the server can send: what the client reads, plus socket buffers."""


class RecordingListener:
    def __init__(self) -> None:
        self.text = ""

    def on_start(self) -> None:
        self.text = ""

    def on_text(self, text: str) -> None:
        self.text += text


class Calls:
    """The results of requests to a hostile endpoint. `listener` has the text of streams."""

    def __init__(
        self,
        respond: Callable[[dict[str, Any]], Iterable[bytes]],
        *requests: Request,
        stream: bool = False,
        max_attempts: int = 1,
        **model: Any,
    ) -> None:
        self.accounts, self.listener = Accounts(), RecordingListener()
        with HostileServer(respond) as self.server:
            endpoint = connection_settings.Endpoint(
                base_url=self.server.base_url, api_key_env=None, max_in_flight=50
            )
            options = {
                "model": "m",
                "timeout_s": 5.0,
                "price": connection_settings.Price(input_usd_per_mtok=1),
            } | model
            settings = connection_settings.Model(provider="openai", endpoints=(endpoint,), **options)
            self.results = asyncio.run(self._all(settings, requests or (CHAT,), stream, max_attempts))
            self.sent, self.bodies = self.server.sent_bytes, self.server.bodies
        self.result = self.results[0]

    async def _all(
        self, model: connection_settings.Model, requests: Iterable[Request], stream: bool, max_attempts: int
    ) -> list[Any]:
        models = {"default": model}
        gateway = Gateway(
            models,
            LocalLimiter(models, 64),
            {"default": PROVIDER.connect(model, {})},
            max_attempts=max_attempts,
            on_call=self.accounts.add,
            rng=random.Random(3),
        )

        async def one(request: Request) -> Any:
            try:
                return (await gateway.answer(request, "stage", self.listener if stream else None)).reply
            except CallError as e:
                return e

        try:
            return await asyncio.gather(*map(one, requests))
        finally:
            await gateway.close()


def chat(text: object, finish: str = "stop", usage: object = None, **message: Any) -> dict[str, Any]:
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return {"choices": [choice], **({} if usage is None else {"usage": usage})}


def event(text: str, finish: str | None = None) -> bytes:
    data = {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


# Size and time


def test_compression_bomb_is_not_decompressed():
    packed = gzip.compress(b" " * (1 << 24))
    for encoding in ("gzip", "br", "nonsense"):
        calls = Calls(lambda body, named=encoding: answer(packed, Content_Encoding=named))
        assert isinstance(calls.result, RetriesExhausted) and "which was not requested" in str(calls.result)


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "503 Busy", "307 Elsewhere"])
@pytest.mark.parametrize("length", ["99999999999", ""])
def test_endless_body_is_read_up_to_the_maximum_size_of_a_reply(status, length):
    head = f"HTTP/1.1 {status}\r\n" + (f"Content-Length: {length}\r\n" if length else "") + "\r\n"
    calls = Calls(lambda body: (piece for part in ([head.encode()], endless(b"[")) for piece in part))
    assert isinstance(calls.result, RetriesExhausted) and "the maximum size of this reply" in str(
        calls.result
    )
    assert calls.sent < MAX_SENT_BYTES


@pytest.mark.parametrize(
    "piece",
    [b"data: ", b"x", b"\n", b": hm\n", b"data: x\n", b"data: {}\n\n", event("hm "), event("<think>")],
)
def test_endless_stream_is_read_up_to_the_maximum_size_of_a_reply(piece):
    calls = Calls(
        lambda body: (p for part in ([start_response("text/event-stream")], endless(piece)) for p in part),
        stream=True,
    )
    assert isinstance(calls.result, RetriesExhausted)
    assert calls.sent < MAX_SENT_BYTES


@pytest.mark.parametrize("piece", [b"x", b"X-More: hm\r\n", b"Set-Cookie: a=b\r\n"])
def test_endless_headers_are_not_read(piece):
    calls = Calls(lambda body: (p for part in ([b"HTTP/1.1 200 OK\r\n"], endless(piece)) for p in part))
    assert isinstance(calls.result, RetriesExhausted)
    assert calls.sent < MAX_SENT_BYTES


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nX-More: ", start_response(), start_response("text/event-stream")]
)
def test_slow_trickle_is_abandoned_after_the_call_timeout(head):
    calls = Calls(
        lambda body: (p for part in ([head], trickle(b" ")) for p in part),
        stream=b"event-stream" in head,
        timeout_s=0.5,
    )
    assert isinstance(calls.result, RetriesExhausted) and "did not answer in time" in str(calls.result)


@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 200_000, b"\xff" * 1000, b'"\\ud800']
)
def test_json_that_breaks_parsers_is_rejected(content):
    assert isinstance(Calls(lambda body: answer(content)).result, RetriesExhausted)
    stream = [start_response("text/event-stream"), b"data: ", content, b"\n\n"]
    assert isinstance(Calls(lambda body: stream, stream=True).result, RetriesExhausted)


# Where a request goes


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("same_host", [True, False])
def test_redirects_are_not_followed(status, same_host):
    with HostileServer(lambda body: answer(chat("stolen"))) as other:
        where = "/v2/chat/completions" if same_host else f"{other.base_url}/chat/completions"
        calls = Calls(lambda body: answer(b"", f"{status} Elsewhere", Location=where), max_attempts=4)
        assert isinstance(calls.result, FatalCallError) and "base_url" in str(calls.result)
        assert len(calls.bodies) == 1 and not other.bodies


@pytest.mark.parametrize("wait", ["86400", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
@pytest.mark.parametrize("status", ["408 Late", "429 Slow", "503 Busy"])
def test_excessive_retry_after_is_not_obeyed(status, wait):
    calls = Calls(lambda body: answer(b"{}", status, Retry_After=wait), max_attempts=4)
    assert isinstance(calls.result, FatalCallError) and "asks to wait" in str(calls.result)
    assert len(calls.bodies) == 1


# What a reply says


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 999_999_999, "completion_tokens": 5},
        {"prompt_tokens": 10, "completion_tokens": 999_999_999},
        {"prompt_tokens": -5, "completion_tokens": 5},
        {"prompt_tokens": True, "completion_tokens": True},
        {"prompt_tokens": "10", "completion_tokens": "5"},
        {"prompt_tokens": float("nan"), "completion_tokens": float("inf")},
        {"prompt_tokens": 10.5},
        {"prompt_tokens": 10**400},
        {"prompt_tokens": None},
        [1, 2],
        "many",
    ],
)
def test_implausible_usage_is_replaced_with_our_count_and_reported_once(usage):
    calls = Calls(lambda body: answer(chat("Hello.", usage=usage)), CHAT, CHAT, CHAT)
    assert [r.usage.reported for r in calls.results] == [False] * 3
    assert calls.accounts.total.total_tokens < 100
    assert list(calls.accounts.quirks["m"].values()) == [["usage"]]


def test_tokens_of_hidden_reasoning_are_trusted_up_to_the_limit():
    usage = {"prompt_tokens": 10, "completion_tokens": 190}
    assert Calls(lambda body: answer(chat("Hi.", usage=usage))).result.usage.completion_tokens == 190


def test_lone_surrogates_are_replaced_before_storage():
    content = b'{"choices": [{"message": {"content": "a \\ud83d b \\udc00"}, "finish_reason": "stop"}]}'
    assert Calls(lambda body: answer(content)).result.text == "a \ufffd b \ufffd"
    refused = b'{"error": {"message": "no \\ud83d", "code": "\\udc00"}}'
    error = Calls(lambda body: answer(refused, "400 Bad")).result
    assert isinstance(error, PermanentCallError) and str(error).encode()


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "reasoning_content": "hm"},
        {"content": "", "reasoning": "hm"},
        {"content": "<think>hm"},
        {"content": "<think>hm</think>\n"},
    ],
)
def test_reasoning_that_uses_up_the_limit_gets_a_higher_one_once(message):
    text = message.pop("content")
    calls = Calls(lambda body: answer(chat(text, "length", **message)), max_attempts=3)
    assert [body["max_tokens"] for body in calls.bodies] == [200, 200 + 8192]
    assert isinstance(calls.result, OnlyReasoning) and calls.result.retry_next_run
    assert "models.default.reasoning_tokens" in str(calls.result)
    assert calls.accounts.total.prompt_tokens > 10, "both attempts are counted"
    fixed = Calls(lambda body: answer(chat(text, "length", **message)), reasoning_tokens=0)
    assert isinstance(fixed.result, OnlyReasoning) and len(fixed.bodies) == 1


def test_one_word_reply_gets_a_higher_limit_if_the_model_reasons():
    def respond(body: dict[str, Any]) -> list[bytes]:
        enough = body["max_tokens"] > 1000
        return answer(chat("Y" if enough else None, "stop" if enough else "length", reasoning_content="hm"))

    check = ChatRequest("glean_check", (Message("user", "Any?"),), CALL, response="yes_no")
    calls = Calls(respond, check)
    assert calls.result.text == "Y" and len(calls.bodies) == 2


def test_reasoning_is_removed_from_streams():
    pieces = ["<th", "ink>se", "cret</thi", "nk>\n", "The ferry", " was sold."]
    stream = [
        start_response("text/event-stream"),
        *map(event, pieces),
        event("", "stop"),
        b"data: [DONE]\n\n",
    ]
    calls = Calls(lambda body: stream, stream=True)
    assert calls.listener.text == "The ferry was sold."
    assert calls.result.without_reasoning.text == "The ferry was sold."


def test_streams_that_begin_inside_reasoning_are_withheld_from_the_second_on():
    pieces = ["secret\n</think>\n", "Sold."]
    stream = [start_response("text/event-stream"), *map(event, pieces), event("", "stop")]
    calls = Calls(lambda body: stream, CHAT, stream=True)
    assert calls.result.without_reasoning.text == "Sold." and "opened" in str(calls.accounts.quirks)
    known = Calls(lambda body: stream, stream=True, model="deepseek-r1")
    assert known.listener.text == "Sold."


def test_reply_with_an_opening_tag_does_not_delay_later_streams():
    pieces = ["<think>secret</think>", "\nSold."]
    stream = [start_response("text/event-stream"), *map(event, pieces), event("", "stop")]
    calls = Calls(lambda body: stream, stream=True)
    assert calls.listener.text == "Sold." and "opened" not in str(calls.accounts.quirks)


# Embeddings

TEXTS = [EmbeddingRequest(text, CALL) for text in ("a", "b", "c")]


def vectors(*numbered: tuple[object, object]) -> dict[str, Any]:
    return {"data": [{"index": i, "embedding": v} for i, v in numbered]}


GOOD = [1.0, 2.0]


@pytest.mark.parametrize(
    "content",
    [
        vectors((0, GOOD), (1, GOOD)),
        vectors((0, GOOD), (1, GOOD), (1, GOOD)),
        vectors((0, GOOD), (1, GOOD), (-1, GOOD)),
        vectors((0, GOOD), (1, GOOD), (7, GOOD)),
        vectors((False, GOOD), (True, GOOD), (2, GOOD)),
        vectors((0, GOOD), (1, GOOD), ("2", GOOD)),
        vectors((0, GOOD), (1, GOOD), (2, [1.0])),
        vectors((0, GOOD), (1, GOOD), (2, [])),
        vectors((0, GOOD), (1, GOOD), (2, [1.0, 1e999])),
        vectors((0, GOOD), (1, GOOD), (2, [1.0, 10**400])),
        vectors((0, GOOD), (1, GOOD), (2, [1.0, 1e39])),
        vectors((0, GOOD), (1, GOOD), (2, "AAAA")),
        vectors((0, GOOD), (1, GOOD), (2, None)),
        {"data": {"0": GOOD}},
        {"data": {"0": {"index": 0, "embedding": GOOD}}},
        {"data": 3},
    ],
)
def test_reply_without_exactly_one_embedding_per_text_is_rejected(content):
    results = Calls(lambda body: answer(content), *TEXTS).results
    assert all(isinstance(r, TransientCallError) for r in results)


def test_zero_embedding_fails_only_its_text():
    def respond(body: dict[str, Any]) -> list[bytes]:
        return answer(vectors(*((i, [0.0, 0.0] if t == "b" else GOOD) for i, t in enumerate(body["input"]))))

    calls = Calls(respond, *TEXTS)
    assert [isinstance(r, PermanentCallError) for r in calls.results] == [False, True, False]
    assert np.frombuffer(calls.results[2].vector, "<f4").tolist() == GOOD


def test_embeddings_with_a_different_length_stop_the_run():
    def respond(body: dict[str, Any]) -> list[bytes]:
        return answer(vectors(*((i, GOOD * len(body["input"])) for i in range(len(body["input"])))))

    calls = Calls(respond, *TEXTS, embedding_batch_size=2)
    assert any(isinstance(r, FatalCallError) and "dimensions" in str(r) for r in calls.results)
