"""One endpoint of one model: a request goes out, a reply or a CallError comes back. Nothing is retried here.

HTTP is the `openai` client's with its aiohttp transport, through its low-level `post`: half the CPU of
`chat.completions.create`, since no reply becomes an object that we take apart again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import openai
from openai import RequestOptions
from pydantic import SecretStr

from graphrag_ray.errors import CallError, FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.llm.failures import (
    BrokenOff,
    ParameterRefused,
    Refusal,
    Unanswered,
    classify,
    transport_errors,
)
from graphrag_ray.llm.headers import LimitHeaders
from graphrag_ray.llm.keys import find_key, scrub
from graphrag_ray.llm.peculiarities import Peculiarities, yes_no_bias
from graphrag_ray.llm.pricing import price_of
from graphrag_ray.llm.replies import decoded, read_chat, read_embeddings
from graphrag_ray.llm.sizes import output_limit, prompt_size, text_size, vocabulary_of
from graphrag_ray.llm.streams import Pieces
from graphrag_ray.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Listener,
    Usage,
)
from graphrag_ray.settings import Endpoint, Model
from graphrag_ray.urls import display_url

T = TypeVar("T")
logger = logging.getLogger(__name__)

CONNECT_S = 15.0
CONNECT_SHARE = 0.9
"""Of a time-out: one that ends a call has found somebody who listened, and may be billed."""
KEEP_ALIVE_S = 4.0
"""Shorter than the five seconds of common servers: a request never meets a connection just closed."""
_CHAT = "/chat/completions"
_NO_BOUND = 1_000_000
"""The limiter bounds calls in flight, not the connection pool."""


class EndpointClient:
    """Calls one endpoint. Cheap to make; connects at the first call; belongs to one event loop.

    where   the address as it may be shown
    price   US dollars per million tokens there; None where unknown
    limits  what its answers' headers say about limits
    key     None for an endpoint that wants none
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: Model,
        key: SecretStr | None,
        force_yes_no: bool | None = None,
    ) -> None:
        """force_yes_no: force the reply of yes_no requests by logit bias; None: only where the
        vocabulary is known to be the model's. Raises FatalCallError for a base_url that is no address, and
        for a key or header that cannot be sent."""
        _check_address(endpoint.base_url)
        _check_headers(endpoint, key)
        self.where = display_url(endpoint.base_url)
        self.price = price_of(model, endpoint)
        self.limits = LimitHeaders()
        self._model = model
        self._name = endpoint.model or model.model
        self.key = key
        vocabulary = vocabulary_of(model.model, model.tokenizer)
        forced = vocabulary.known if force_yes_no is None else force_yes_no
        self._bias = yes_no_bias(vocabulary.name) if forced else None
        self._peculiarities = Peculiarities(self.where)
        self._failures = transport_errors()
        self._openai = _openai_client(endpoint, model, key)
        self._options: RequestOptions = {"headers": {"Authorization": openai.Omit()}} if key is None else {}

    def __repr__(self) -> str:
        return f"EndpointClient({self.where!r}, {self._name!r})"

    async def chat(
        self, request: ChatRequest, prompt_tokens: int | None = None, listener: Listener | None = None
    ) -> ChatReply:
        """One chat call. prompt_tokens: `prompt_size` of the request where it is known already. listener:
        hears the reply while it is written; all at once, where the endpoint cannot say it piece by piece.

        Raises DoesNotFit for a request larger than the context window, before sending it; BrokenOff where
        the endpoint fails after something was heard.
        """
        counted = prompt_size(request, self._model) if prompt_tokens is None else prompt_tokens
        limit = output_limit(request, self._model)
        aloud = listener is not None
        body = self._peculiarities.chat_body(request, self._name, limit, self._bias, aloud)

        def read(reply: Mapping[str, Any]) -> ChatReply:
            return read_chat(reply, request, counted, self._count, self.where)

        if listener is None:
            return await self._post(_CHAT, body, read)
        listener.begins()
        pieces = Pieces(self.where)
        try:
            if "stream" in body:
                return await self._send(body, lambda: self._stream(body, pieces, listener, read))
            reply = await self._post(_CHAT, body, read)
        except TransientCallError as e:
            if not pieces.text:
                raise
            usage = Usage(counted, self._count(pieces.text), reported=False)
            failure = BrokenOff(f"it broke off in the middle of its reply: {e}", status=e.status, usage=usage)
        else:
            listener.piece(reply.text)
            return reply
        raise failure

    async def embed(self, requests: Sequence[EmbeddingRequest]) -> list[EmbeddingReply]:
        """One call that embeds all texts. All requests ask for the same number of dimensions."""
        texts = [r.text for r in requests]
        body = self._peculiarities.embedding_body(texts, self._name, requests[0].dimensions)

        def read(reply: Mapping[str, Any]) -> list[EmbeddingReply]:
            return read_embeddings(reply, requests, [self._count(t) for t in texts], self.where)

        return await self._post("/embeddings", body, read)

    async def close(self) -> None:
        await self._openai.close()

    async def _post(self, path: str, body: dict[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
        """One HTTP request; what `read` makes of a good answer. Raises the CallError of any other."""

        async def post() -> T:
            asked = self._openai.post(path, body=body, cast_to=httpx2.Response, options=self._options)
            response = await asked
            self.limits.note(response.headers, time.time())
            return read(decoded(response.content, self.where))

        return await self._send(body, post)

    async def _stream(
        self,
        body: dict[str, Any],
        pieces: Pieces,
        listener: Listener,
        read: Callable[[Mapping[str, Any]], ChatReply],
    ) -> ChatReply:
        """One HTTP request whose answer comes in pieces. Raises as the client library does, and
        TransientCallError for an answer that is no stream."""
        events = await self._openai.post(
            _CHAT,
            body=body,
            cast_to=object,
            options=self._options,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        async with events:
            self.limits.note(events.response.headers, time.time())
            if "event-stream" not in events.response.headers.get("content-type", ""):
                reply = read(decoded(await events.response.aread(), self.where))
                listener.piece(reply.text)
                return reply
            try:
                async for event in events:
                    if piece := pieces.add(event):
                        listener.piece(piece)
            except json.JSONDecodeError:
                raise TransientCallError(f"{self.where} sent an event that is not JSON") from None
        return read(pieces.body())

    async def _send(self, body: Mapping[str, Any], call: Callable[[], Awaitable[T]]) -> T:
        """What a request comes to. Raises the CallError of any that fails.

        It is raised outside the handlers: no exception of the library, whose request holds the key,
        hangs on ours.
        """
        try:
            async with asyncio.timeout(self._model.timeout_s):
                return await call()
        except CallError as e:
            failure = e
        except self._failures as e:
            failure = self._failure(e, body)
        except Exception as e:  # by what no library foresaw one call fails, and not the run
            logger.error("a call ended in a way that nobody foresaw, please report it", exc_info=True)
            failure = Unanswered(f"no answer from {self.where}: {type(e).__name__}: {e}")
        failure.args = (scrub(str(failure), [self.key]),)
        failure.__context__ = None
        raise failure

    def _failure(self, error: Exception, body: Mapping[str, Any]) -> CallError:
        if isinstance(error, openai.APIStatusError):
            self.limits.note(error.response.headers, time.time())
            refusal = Refusal.read(error.status_code, error.body)
            if self._peculiarities.learn(body, refusal):
                return ParameterRefused(f"{self.where} answered {refusal.status}: {refusal.message}")
        elif why := _unsendable(body):
            return PermanentCallError(f"the request cannot be sent to {self.where}: {why}")
        return classify(error, self.where, time.time())

    def _count(self, text: str) -> int:
        return text_size(text, self._model)


def connect(
    model: Model,
    environ: Mapping[str, str],
    ask_key: Callable[[str], str | None] | None = None,
    force_yes_no: bool | None = None,
) -> tuple[EndpointClient | FatalCallError, ...]:
    """A client for each of a model's endpoints, in their order; the error for one that has no key or
    no address.

    Reads key files and may wait for `ask_key`: not for an event loop.
    """

    def one(endpoint: Endpoint) -> EndpointClient | FatalCallError:
        try:
            return EndpointClient(endpoint, model, find_key(endpoint, environ, ask_key), force_yes_no)
        except FatalCallError as e:
            return e

    return tuple(one(endpoint) for endpoint in model.endpoints)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FatalCallError(
            f"base_url {display_url(url)!r} is not an address: write http(s)://host[:port]/v1"
        )
    if parts.username is not None:
        raise FatalCallError(
            f"base_url of {display_url(url)} holds a user or password: put the key into an environment "
            "variable, and its name into api_key_env"
        )


def _check_headers(endpoint: Endpoint, key: SecretStr | None) -> None:
    given = {f"header {name}": value for name, value in endpoint.headers.items()}
    if key is not None:
        given["key"] = key.get_secret_value()
    for what, value in given.items():
        if not (value.isascii() and value.isprintable()):
            raise FatalCallError(
                f"the {what} for {display_url(endpoint.base_url)} cannot be sent: only printable ASCII can"
            )


def _unsendable(body: Mapping[str, Any]) -> str:
    """Why no endpoint will ever get this request; "" where one could."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        return str(e)
    return ""


def _openai_client(endpoint: Endpoint, model: Model, key: SecretStr | None) -> openai.AsyncOpenAI:
    timeout = httpx2.Timeout(
        model.timeout_s, connect=min(CONNECT_S, CONNECT_SHARE * model.timeout_s), pool=None
    )
    limits = httpx2.Limits(
        max_connections=_NO_BOUND, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S
    )
    return openai.AsyncOpenAI(
        api_key=key.get_secret_value() if key else "none",
        base_url=endpoint.base_url,
        max_retries=0,
        timeout=timeout,
        default_headers=endpoint.headers,
        http_client=openai.DefaultAioHttpClient(limits=limits, timeout=timeout, cookies=_no_cookies()),
    )


def _no_cookies() -> CookieJar:
    """A call is by itself; and one cookie that cannot be sent back would end all calls after it."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
