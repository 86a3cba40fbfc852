"""A real HTTP server on a free loopback port that speaks the OpenAI protocol and can misbehave.

    with Endpoint(respond=lambda body: "Hello.") as endpoint:
        Model(provider="openai", model="m", endpoints=(settings.Endpoint(base_url=endpoint.base_url),))

`respond` gets the decoded body of each chat call and returns the text of the reply, an `Answer` or one of the
faults below; it runs in the server's thread. All requests are recorded.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from aiohttp import web

from graphrag_ray.corpus.tokens import count_tokens


@dataclass(frozen=True)
class Answer:
    """A chat reply.

    `usage` is reported as given ("count": the true numbers; None: none). The last piece of a stream is not
    sent before `until` is set.
    """

    text: str
    finish_reason: str = "stop"
    usage: Mapping[str, Any] | str | None = "count"
    delay_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    until: threading.Event | None = None


@dataclass(frozen=True)
class Broken:
    """A stream that fails after some pieces: the connection drops, the stream ends without its end marker,
    an event reports an error, or an event is not JSON."""

    text: str
    after: int
    how: Literal["drop", "end", "error", "garbage"] = "drop"


@dataclass(frozen=True)
class Status:
    """An HTTP error with an error body of the protocol."""

    status: int
    message: str = "no"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """Any bytes with any status."""

    body: bytes
    status: int = 200


@dataclass(frozen=True)
class Hang:
    """No answer for some seconds."""

    seconds: float = 3600.0


@dataclass(frozen=True)
class Drop:
    """Closes the connection instead of answering."""


Response: TypeAlias = str | Answer | Broken | Status | Raw | Hang | Drop
Respond: TypeAlias = Callable[[dict[str, Any]], Response]


def rate_limited(retry_after: str | None = None, **headers: str) -> Status:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if retry_after is not None:
        named["Retry-After"] = retry_after
    return Status(429, "Rate limit reached", "rate_limit_exceeded", headers=named)


def unsupported(parameter: str) -> Status:
    message = f"Unsupported parameter: '{parameter}' is not supported with this model."
    return Status(400, message, "unsupported_parameter", parameter)


WRONG_KEY = Status(401, "Incorrect API key provided", "invalid_api_key")
FORBIDDEN = Status(403, "Your country is not supported")
NO_SUCH_MODEL = Status(404, "The model `m` does not exist", "model_not_found")
NO_QUOTA = Status(429, "You exceeded your current quota", "insufficient_quota")
TOO_LONG = Status(400, "This model's maximum context length is 8192 tokens", "context_length_exceeded")
BROKEN = Status(500, "The server had an error")
GARBAGE = Raw(b"<html>bad gateway</html>")


def in_turn(*responses: Response) -> Respond:
    """Give each response once, in order, and the last one repeatedly."""
    left = list(responses)

    def respond(body: dict[str, Any]) -> Response:
        return left.pop(0) if len(left) > 1 else left[0]

    return respond


LISTED = ("m", "m-1", "e", "x", "cheap", "dear", "other", "another", "simulated", "gpt-4o", "gpt-4o-mini",
          "gpt-5", "deepseek-r1", "text-embedding-3-small")  # fmt: skip
"""Models that tests ask for."""


@dataclass(frozen=True)
class Received:
    """A request as received: path under /v1, decoded body, headers (case-insensitive), and
    time.monotonic().
    """

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    at: float


class Endpoint:
    """The server.

    `respond` answers chat calls, and `embed` and `rerank` replace embedding and reranking.
    Reranking counts the words that a document shares with the query. `key` is the required key (None: any).
    `dimensions` are those of embeddings unless a request names others. Without `streams`, streams are
    answered in one reply. `lists` has the models that it lists.
    """

    def __init__(
        self,
        respond: Respond | None = None,
        *,
        embed: Respond | None = None,
        rerank: Respond | None = None,
        key: str | None = None,
        dimensions: int = 8,
        streams: bool = True,
        lists: Sequence[str] = LISTED,
    ) -> None:
        self.respond: Respond = respond or (lambda body: "Hello.")
        self.embed = embed
        self.rerank = rerank
        self.key = key
        self.dimensions = dimensions
        self.streams = streams
        self.lists = lists
        self.requests: list[Received] = []
        self.in_flight = 0
        self.peak_in_flight = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._port: int | None = None
        self._ready = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def bodies(self, path: str = "/chat/completions") -> list[dict[str, Any]]:
        return [r.body for r in self.requests if r.path == path]

    def __enter__(self) -> Endpoint:
        self._thread.start()
        assert self._ready.wait(10), "the test endpoint did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/v1/rerank", self._rerank)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        self._loop.run_until_complete(site.start())
        self._port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):  # Hanging requests.
            task.cancel()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request):
            return await _misbehave(request, refused)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.lists]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._receive(request)
        response = self._refusal(request) or self.respond(body)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            if isinstance(response, str):
                response = Answer(response)
            if isinstance(response, Broken):
                return await self._stream(request, body, response)
            if not isinstance(response, Answer):
                return await _misbehave(request, response)
            await asyncio.sleep(response.delay_s)
            if body.get("stream") and self.streams:
                return await self._stream(request, body, response)
            return web.json_response(_chat_body(body, response), headers=dict(response.headers))
        finally:
            self.in_flight -= 1

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any], answer: Answer | Broken
    ) -> web.StreamResponse:
        headers = dict(answer.headers) if isinstance(answer, Answer) else {}
        out = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await out.prepare(request)

        async def say(data: Any) -> None:
            await out.write(
                b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"
            )

        pieces = pieces_of(answer.text)
        for i, piece in enumerate(pieces):
            if isinstance(answer, Broken) and i == answer.after:
                break
            if isinstance(answer, Answer) and answer.until and i == len(pieces) - 1:
                await asyncio.to_thread(answer.until.wait, 10)
            await say(_event(body, {"content": piece}))
        if isinstance(answer, Broken):
            if answer.how == "drop" and request.transport is not None:
                await asyncio.sleep(0.05)  # Let clients read what was written before.
                request.transport.abort()
            elif answer.how == "error":
                await say({"error": {"message": "The server had an error", "type": "server_error"}})
            elif answer.how == "garbage":
                await say(b"<html>")
            return out
        await say(_event(body, {}, answer.finish_reason))
        if answer.usage is not None and (body.get("stream_options") or {}).get("include_usage"):
            used = _counted(body["messages"], answer.text) if answer.usage == "count" else answer.usage
            await say({"id": "chatcmpl-test", "model": body["model"], "choices": [], "usage": used})
        await say(b"[DONE]")
        return out

    async def _embeddings(self, request: web.Request) -> web.Response:
        body = await self._receive(request)
        response = self._refusal(request)
        if response is None and self.embed is not None:
            response = self.embed(body)
        if isinstance(response, Status | Raw | Hang | Drop):
            return await _misbehave(request, response)
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        dimensions = body.get("dimensions") or self.dimensions
        encoded = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _vector(text, dimensions, encoded)}
            for i, text in enumerate(texts)
        ]
        tokens = sum(count_tokens(text, "cl100k_base") for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        data.reverse()  # The protocol numbers embeddings and does not promise their order.
        return web.json_response({"object": "list", "model": body["model"], "data": data, "usage": usage})

    async def _rerank(self, request: web.Request) -> web.Response:
        body = await self._receive(request)
        response = self._refusal(request) or (self.rerank(body) if self.rerank else None)
        if isinstance(response, Status | Raw | Hang | Drop):
            return await _misbehave(request, response)
        query = set(body["query"].split())
        results = [
            {"index": i, "relevance_score": len(query & set(text.split())), "document": {"text": text}}
            for i, text in enumerate(body["documents"])
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        tokens = sum(count_tokens(body["query"] + text, "cl100k_base") for text in body["documents"])
        return web.json_response({"results": results, "usage": {"total_tokens": tokens}})

    async def _receive(self, request: web.Request) -> dict[str, Any]:
        at = time.monotonic()
        body = json.loads(await request.read())
        self.requests.append(Received(request.path.removeprefix("/v1"), body, request.headers, at))
        return body

    def _refusal(self, request: web.Request) -> Status | None:
        right = self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}"
        return None if right else WRONG_KEY


async def _misbehave(request: web.Request, fault: Status | Raw | Hang | Drop) -> web.Response:
    if isinstance(fault, Hang):
        await asyncio.sleep(fault.seconds)
        return web.Response(status=500)
    if isinstance(fault, Drop):
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)
    if isinstance(fault, Raw):
        return web.Response(body=fault.body, status=fault.status)
    error = {"message": fault.message, "type": "error", "code": fault.code, "param": fault.param}
    return web.json_response({"error": error}, status=fault.status, headers=dict(fault.headers))


def pieces_of(text: str) -> list[str]:
    """Split a text into stream pieces of a few characters, also inside words."""
    return [text[i : i + 7] for i in range(0, len(text), 7)] or [""]


def _event(body: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-test",
        "object": "chat.completion.chunk",
        "model": body["model"],
        "choices": [choice],
    }


def _chat_body(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    out: dict[str, Any] = {
        "id": "chatcmpl-test",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
    }
    if answer.usage == "count":
        out["usage"] = _counted(body["messages"], answer.text)
    elif answer.usage is not None:
        out["usage"] = answer.usage
    return out


def _counted(messages: Sequence[Mapping[str, str]], reply: str) -> dict[str, int]:
    prompt = sum(count_tokens(m["content"], "cl100k_base") + 4 for m in messages)
    completion = count_tokens(reply, "cl100k_base")
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _vector(text: str, dimensions: int, encoded: bool) -> str | list[float]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    vector = np.random.default_rng(seed).standard_normal(dimensions).astype("<f4")
    return base64.b64encode(vector.tobytes()).decode() if encoded else vector.tolist()
