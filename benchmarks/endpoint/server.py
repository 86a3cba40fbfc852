"""The HTTP server: admits calls, simulates their duration, answers or fails, and keeps statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from random import Random
from typing import Any, NoReturn

import orjson
from aiohttp import web

from . import protocol, replies, tokens
from .capacity import Capacity
from .draws import Draw, call_seconds, draw
from .ledger import CLIENT_LEFT, CLOSED, Call, Ledger
from .options import Options
from .prompts import Messages, asked_first, kind_of
from .prose import lorem
from .protocol import Reply
from .window import Refused, Windows

MAX_BODY = 2**28
WINDOW_S = 60.0
_MOST_WAITING = 20_000
"""Maximum number of replies cached for rejected calls, which clients will retry."""
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"
_JSON = "application/json"


class _Closed(Exception):
    """The connection was closed on purpose."""


class Server:
    """The HTTP application. Use it from one event loop only."""

    def __init__(self, options: Options, ledger: Ledger, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._ledger = ledger
        self._windows = Windows()
        self._capacity = Capacity(loop)
        self._capacity.set(options.slots, options.batch, options.speed)
        self._prefixes = tokens.PrefixCache()
        self._waiting: dict[bytes, Reply] = {}
        self._fixed: dict[tuple[str, str], Reply] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/v1/rerank", self._rerank)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/stats/series", self._series)
        app.router.add_post("/stats/reset", self._reset)
        app.router.add_get("/settings", self._settings)
        app.router.add_post("/settings", self._change_settings)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": "simulated", "object": "model", "created": 0, "owned_by": "benchmarks"}
        return _json({"object": "list", "data": [model]})

    async def _stats(self, _: web.Request) -> web.Response:
        return _json({**self._ledger.statistics(), "queued": self._capacity.queued})

    async def _series(self, _: web.Request) -> web.Response:
        return _json(self._ledger.series())

    async def _reset(self, request: web.Request) -> web.Response:
        self._ledger.reset()
        if "windows" in request.query:
            self._windows = Windows()
        return _json({})

    async def _settings(self, _: web.Request) -> web.Response:
        return _json(asdict(self._options))

    async def _change_settings(self, request: web.Request) -> web.Response:
        try:
            options = self._options.changed(orjson.loads(await request.read()))
        except (ValueError, AttributeError) as e:
            return web.Response(body=protocol.error(str(e), "invalid_request_error"), status=400,
                                content_type=_JSON)  # fmt: skip
        self._options = options
        self._waiting.clear()
        self._fixed.clear()
        self._capacity.set(options.slots, options.batch, options.speed)
        return _json(asdict(options))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        arrived = self._ledger.time()
        try:
            body = _object(await request.read())
            messages, limit = protocol.messages_of(body), protocol.max_tokens_of(body)
        except ValueError as e:
            return self._malformed(str(e))
        options = self._options
        key = protocol.key_of("chat", body)
        call = self._chat_call(key, messages, arrived)
        if self._windows.full_of_requests(arrived, options.rpm, WINDOW_S / options.speed):
            return self._refused(call, self._admit(call, 0), body, 0)
        reply = self._waiting.get(key) or self._reply(key, body, messages, limit)
        call.completion = reply.tokens
        completion = limit or reply.tokens if options.charge == "max_tokens" else reply.tokens
        charged = call.prompt + completion
        if refused := self._admit(call, charged):
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.clear()
            self._waiting[key] = reply
            return self._refused(call, refused, body, charged)
        self._waiting.pop(key, None)
        luck = draw(key, self._ledger.admit(call, charged), options)
        first_s, rest_s = call_seconds(reply.tokens, luck.slowness, options)
        return await self._answer(request, call, luck, body, reply, first_s, rest_s)

    def _chat_call(self, key: bytes, messages: Messages, arrived: float) -> Call:
        vocabulary = self._options.count
        counts = [
            (tokens.count_often if role == "system" else tokens.count)(text, vocabulary) + tokens.PER_MESSAGE
            for role, text in messages
        ]
        _, first = asked_first(messages)
        return Call(
            kind=kind_of(messages[-1][1]),
            key=key,
            dialogue=protocol.hash_of(first).hex(),
            arrived=arrived,
            prompt=sum(counts) + tokens.PER_PROMPT,
            cached=self._prefixes.tokens(messages, counts),
        )

    def _reply(self, key: bytes, body: Mapping[str, Any], messages: Messages, limit: int | None) -> Reply:
        """The reply to a chat call, truncated at its limit."""
        options = self._options
        last = kind_of(messages[-1][1])
        if options.replies == "fixed" and last != "glean_check":
            kind = (last, asked_first(messages)[0])
            if kind not in self._fixed:
                self._fixed[kind] = self._written(b"", body, messages)
            reply = self._fixed[kind]
        else:
            reply = self._written(key, body, messages)
        if limit is None or reply.tokens < limit:
            return reply
        return Reply(tokens.first(reply.text, limit, options.count), limit, "length")

    def _written(self, key: bytes, body: Mapping[str, Any], messages: Messages) -> Reply:
        options = self._options
        seed = int.from_bytes(key[:8], "big") ^ options.seed
        text = replies.write(messages, body, seed, options.gleanings, options.count)
        return Reply(text, max(1, tokens.count(text, options.count)))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        arrived = self._ledger.time()
        try:
            body = _object(await request.read())
            texts = protocol.texts_of(body)
        except ValueError as e:
            return self._malformed(str(e))
        options = self._options
        n = sum(tokens.count(t, options.count) if isinstance(t, str) else len(t) for t in texts)
        key = protocol.key_of("embeddings", body)
        call = Call("embeddings", key, key.hex()[:16], arrived, n)
        call.texts = tuple(protocol.hash_of(t if isinstance(t, str) else repr(t)).hex() for t in texts)
        if refused := self._admit(call, n):
            return self._refused(call, refused, body, n)
        luck = draw(key, self._ledger.admit(call, n), options)
        return await self._answer(request, call, luck, body, texts, options.embedding_s * luck.slowness, 0.0)

    async def _rerank(self, request: web.Request) -> web.StreamResponse:
        arrived = self._ledger.time()
        try:
            body = _object(await request.read())
            query, documents = protocol.documents_of(body)
        except ValueError as e:
            return self._malformed(str(e))
        options = self._options
        n = sum(tokens.count(query + document, options.count) for document in documents)
        key = protocol.key_of("rerank", body)
        call = Call("rerank", key, key.hex()[:16], arrived, n)
        if refused := self._admit(call, n):
            return self._refused(call, refused, body, n)
        luck = draw(key, self._ledger.admit(call, n), options)
        content = protocol.rerank_body(str(body.get("model")), query, documents, n)
        return await self._answer(
            request, call, luck, body, content, options.embedding_s * luck.slowness, 0.0
        )

    def _admit(self, call: Call, charged: int) -> Refused | None:
        o = self._options
        return self._windows.admit(charged, self._ledger.time(), o.rpm, o.tpm, WINDOW_S / o.speed)

    def _refused(
        self, call: Call, refused: Refused | None, body: Mapping[str, Any], charged: int
    ) -> web.Response:
        assert refused is not None
        call.refused_for = refused.limit
        self._ledger.refuse(call)
        headers = self._headers() | protocol.retry_headers(refused, self._options)
        content = protocol.refusal(refused, str(body.get("model")), charged, self._options)
        return web.Response(body=content, status=429, headers=headers, content_type=_JSON)

    def _malformed(self, why: str) -> web.Response:
        self._ledger.malformed(400)
        return web.Response(body=protocol.error(why, "invalid_request_error"), status=400, content_type=_JSON)

    def _headers(self) -> dict[str, str]:
        return protocol.limit_headers(self._windows, self._ledger.time(), self._options)

    async def _answer(
        self,
        request: web.Request,
        call: Call,
        luck: Draw,
        body: Mapping[str, Any],
        content: Reply | list[Any] | bytes,
        first_s: float,
        rest_s: float,
    ) -> web.StreamResponse:
        """Process an admitted call and answer it as drawn. Its end is always recorded."""
        call.fault, call.drawn_s = luck.fault, first_s + rest_s
        headers = self._headers()
        try:
            if luck.fault == "hang":
                await asyncio.sleep(self._options.hang_s / self._options.speed)
                _close(request)
            async with self._capacity.slot():
                call.started = self._ledger.time()
                if isinstance(content, Reply) and body.get("stream") and luck.fault in _STREAMS:
                    return await self._stream(request, call, luck, body, content, headers, first_s, rest_s)
                await self._capacity.work((first_s + rest_s) * (luck.at if luck.fault == "drop" else 1.0))
            if luck.fault == "drop":
                _close(request)
            return await self._send(request, call, luck, body, content, headers)
        except asyncio.CancelledError:
            call.status = CLIENT_LEFT
            raise
        except (_Closed, ConnectionError):
            call.status = CLOSED
            return web.Response(status=500)
        finally:
            self._ledger.leave(call)

    async def _send(
        self,
        request: web.Request,
        call: Call,
        luck: Draw,
        body: Mapping[str, Any],
        content: Reply | list[Any] | bytes,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        status, type_ = 200, _JSON
        if luck.fault == "error":
            status, out = 500, protocol.error("The server had an error (simulated)", "server_error")
        elif luck.fault == "garbage_body" or (
            luck.fault == "garbage_text" and not isinstance(content, Reply)
        ):
            type_, out = "text/html", _HTML
        elif isinstance(content, list):
            out = self._vectors(body, content, call.prompt)
        elif isinstance(content, bytes):
            out = content
        else:
            reply = self._spoilt(call, luck, content)
            out = protocol.chat_body(call.key, str(body.get("model")), reply, call.prompt, call.cached)
        if luck.fault == "truncated_body" or (
            luck.fault == "truncated_text" and not isinstance(content, Reply)
        ):
            call.status = 200
            return await _send_part(request, out, luck.at, headers)
        response = web.Response(body=out, status=status, headers=headers, content_type=type_)
        await response.prepare(request)
        await response.write_eof()
        call.status = status
        if isinstance(content, list) and status == 200 and not luck.fault:
            self._ledger.embedded(content, self._dimensions(body))
        return response

    def _vectors(self, body: Mapping[str, Any], texts: list[Any], n_tokens: int) -> bytes:
        encoded = body.get("encoding_format") == "base64"
        return protocol.embeddings_body(
            str(body.get("model")), texts, self._dimensions(body), encoded, n_tokens
        )

    def _dimensions(self, body: Mapping[str, Any]) -> int:
        requested = body.get("dimensions")
        return requested if isinstance(requested, int) and requested > 0 else self._options.dimensions

    def _spoilt(self, call: Call, luck: Draw, reply: Reply) -> Reply:
        """The reply with the drawn fault."""
        if luck.fault == "garbage_text":
            reply = Reply(text := lorem(reply.tokens, Random(call.key)), self._count(text))
        elif luck.fault == "truncated_text":
            n = max(1, int(reply.tokens * luck.at))
            reply = Reply(tokens.first(reply.text, n, self._options.count), n, "length")
        call.completion = reply.tokens
        return reply

    def _count(self, text: str) -> int:
        return max(1, tokens.count(text, self._options.count))

    async def _stream(
        self,
        request: web.Request,
        call: Call,
        luck: Draw,
        body: Mapping[str, Any],
        reply: Reply,
        headers: Mapping[str, str],
        first_s: float,
        rest_s: float,
    ) -> web.StreamResponse:
        """Server-sent events, spread over the time of the tokens."""
        reply, model = self._spoilt(call, luck, reply), str(body.get("model"))
        n = protocol.n_chunks(reply.text, rest_s / self._options.speed)
        until = n * luck.at if luck.fault in ("truncated_body", "drop") else n + 1
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await self._capacity.work(first_s)
        await response.prepare(request)
        for i, event in enumerate(protocol.chat_chunks(call.key, model, reply, n)):
            if i >= until:
                call.status = 200 if luck.fault == "truncated_body" else CLOSED
                if luck.fault == "drop":
                    _close(request)
                return _end(request, response)
            await response.write(event)
            await self._capacity.work(rest_s / n)
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(protocol.usage_event(call.key, model, reply, call.prompt, call.cached))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        call.status = 200
        return response


_STREAMS = ("", "drop", "garbage_text", "truncated_body", "truncated_text")
"""Faults that occur during a stream; all others replace it."""


async def _send_part(
    request: web.Request, out: bytes, share: float, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send part of a body with the Content-Length of the whole, then close the connection."""
    response = web.StreamResponse(headers={**headers, "Content-Type": _JSON})
    response.content_length = len(out)
    await response.prepare(request)
    await response.write(out[: max(1, min(len(out) - 1, int(len(out) * share)))])
    return _end(request, response)


def _end(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection once pending data is sent."""
    if request.transport is not None:
        request.transport.close()
    response.force_close()
    return response


def _close(request: web.Request) -> NoReturn:
    """Close the connection immediately."""
    if request.transport is not None:
        request.transport.abort()
    raise _Closed


def _object(content: bytes) -> dict[str, Any]:
    """Raises ValueError if the body is not a JSON object."""
    body = orjson.loads(content)
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), content_type=_JSON)
