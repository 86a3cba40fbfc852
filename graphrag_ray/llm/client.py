"""One endpoint of one model: a request goes out, a reply or a CallError comes back. Nothing is retried here.

HTTP is the `openai` client's with its aiohttp transport, through its low-level `post`: half the CPU of
`chat.completions.create`, since no reply becomes an object that we take apart again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import httpx2
import openai
from openai import RequestOptions
from pydantic import SecretStr

from graphrag_ray.base.errors import CallError, FatalCallError, NoWay, PermanentCallError, TransientCallError
from graphrag_ray.base.index_settings import Endpoint, Model
from graphrag_ray.base.keys import scrub
from graphrag_ray.base.messages import (
    CallParameters,
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Listener,
    Message,
    Usage,
)
from graphrag_ray.base.providers import Client
from graphrag_ray.base.thoughts import THOUGHT_TOKENS, Speech, family_of, is_open_from_the_start, spoken
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.call_failures import (
    BrokenOff,
    HttpRefusal,
    OnlyThoughts,
    ParameterRefused,
    RoomNeeded,
    Unanswered,
    classify,
    transport_errors,
)
from graphrag_ray.llm.endpoint_replies import (
    Pieces,
    decoded,
    events_of,
    has_thoughts,
    loaded,
    read_chat,
    read_embeddings,
)
from graphrag_ray.llm.limit_headers import LimitHeaders
from graphrag_ray.llm.pricing import price_of
from graphrag_ray.llm.quirks import OPENED, THINKS, USAGE, Peculiarities, yes_no_bias
from graphrag_ray.llm.request_sizes import output_limit, prompt_size, text_size, thought_room, vocabulary_of

T = TypeVar("T")
logger = logging.getLogger(__name__)

CONNECT_S = 15.0
CONNECT_SHARE = 0.9
"""Of a time-out: one that ends a call has found somebody who listened, and may be billed."""
KEEP_ALIVE_S = 4.0
"""Shorter than the five seconds of common servers: a request never meets a connection just closed."""
_NO_BOUND = 1_000_000
"""The limiter bounds calls in flight, not the connection pool."""
ALONE_S = 0.5
"""The first request with its parameters goes alone for so long, at most: what is refused is refused once."""
BYTES_BESIDE = 1 << 18
"""For what stands around a reply, and for an error."""
BYTES_PER_TOKEN, BYTES_PER_EVENT = 64, 1_024
"""More than a token of a reply ever takes, in one body, and as an event of its own."""
MOST_DIMENSIONS, BYTES_PER_NUMBER = 16_384, 32
"""Of embeddings that may have as many as the endpoint likes."""
PROBE_S = 5.0
MOST_LISTED_BYTES = 16 << 20
_CHAT, _EMBEDDINGS = "/chat/completions", "/embeddings"

most_bytes: ContextVar[int] = ContextVar("most_bytes", default=BYTES_BESIDE)
"""Of the answer to the request that a task sends."""


def openai_client(endpoint: Endpoint, model: Model, key: SecretStr | None) -> openai.AsyncOpenAI:
    connect_s = min(CONNECT_S, CONNECT_SHARE * model.timeout_s)
    timeout = httpx2.Timeout(model.timeout_s, connect=connect_s, pool=None)
    limits = httpx2.Limits(
        max_connections=_NO_BOUND, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S
    )
    return openai.AsyncOpenAI(
        api_key=key.get_secret_value() if key else "none",
        base_url=endpoint.base_url,
        max_retries=0,
        timeout=timeout,
        # What is not asked for is not unpacked: a few bytes can hold gigabytes.
        default_headers={**endpoint.headers, "Accept-Encoding": "identity"},
        http_client=openai.DefaultAioHttpClient(
            verify=_trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            limits=limits,
            timeout=timeout,
            # A call is by itself; and one cookie that cannot be sent back would end all calls after it.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            follow_redirects=False,
            event_hooks={"response": [_bound]},
        ),
    )


@lru_cache(maxsize=4)
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The certificates that are trusted, by the variables that say where they are: reading them takes longer
    than all else about a client, of which each step makes its own."""
    return httpx2.create_ssl_context()


class _Bounded(httpx2.AsyncByteStream):
    """A body, up to a size. Raises Unanswered where it has more."""

    def __init__(self, body: httpx2.AsyncByteStream, most: int, where: str) -> None:
        self._body, self._most, self._where = body, most, where

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for received in self._body:
            left -= len(received)
            if left < 0:
                told = f"more than the {self._most:,} bytes that it could need"
                raise Unanswered(f"{self._where} answered with {told}")
            yield received

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound(response: httpx2.Response) -> None:
    """Before the body of a response is read. Raises Unanswered for one that we would have to unpack."""
    where = display_url(str(response.url))
    if (packed := response.headers.get("content-encoding", "identity").lower()) not in ("identity", ""):
        raise Unanswered(f"{where} answered in {packed[:20]!r}, which was not asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream, most_bytes.get(), where)


class EndpointClient(Client):
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
        quirks: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """force_yes_no: force the reply of yes_no requests by logit bias; None: only where the
        vocabulary is known to be the model's. quirks: what was learned before, by endpoint.
        Raises NoWay for a key or header that cannot be sent."""
        self.where = display_url(endpoint.base_url)
        sent = {f"header {name}": value for name, value in endpoint.headers.items()}
        for what, value in {**sent, "key": key.get_secret_value() if key else ""}.items():
            if not (value.isascii() and value.isprintable()):
                raise NoWay(f"the {what} for {self.where} cannot be sent: only printable ASCII can")
        self.price = price_of(model, endpoint)
        self.limits = LimitHeaders()
        self.key = key
        self._model = model
        self._name = endpoint.model or model.model
        vocabulary = vocabulary_of(model.model, model.tokenizer)
        forced = vocabulary.known if force_yes_no is None else force_yes_no
        self._bias = yes_no_bias(vocabulary.name) if forced else None
        self._key_from = endpoint.api_key_env or endpoint.api_key_file
        self._peculiarities = Peculiarities(family_of(self._name, model.model))
        self._peculiarities.add((quirks or {}).get(self.where, ()))
        self._sent_first: dict[frozenset[str], asyncio.Event] = {}
        self._dimensions: int | None = None
        self._failures = transport_errors()
        self._openai = openai_client(endpoint, model, key)
        self._options: RequestOptions = {"headers": {"Authorization": openai.Omit()}} if key is None else {}

    def __repr__(self) -> str:
        return f"EndpointClient({self.where!r}, {self._name!r})"

    @property
    def quirks(self) -> frozenset[str]:
        """What the endpoint's answers have taught (`quirks.NAMES`)."""
        return self._peculiarities.learned

    def learn(self, quirks: Iterable[str]) -> None:
        """What somebody else was taught."""
        self._peculiarities.add(quirks)

    async def chat(
        self, request: ChatRequest, prompt_tokens: int | None = None, listener: Listener | None = None
    ) -> ChatReply:
        """One chat call. prompt_tokens: `prompt_size` of the request where it is known already. listener:
        hears the reply while it is written; all at once, where the endpoint cannot say it piece by piece.

        Raises DoesNotFit for a request larger than the context window, before sending it; BrokenOff where
        the endpoint fails after something was heard.
        """
        counted = prompt_size(request, self._model) if prompt_tokens is None else prompt_tokens
        body = self._chat_body(request, counted, listener is not None)
        # It goes after the first that says as much has come back, since that may teach us to say less.
        while (first := self._sent_first.get(kind := frozenset(body))) and not first.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(first.wait(), ALONE_S)
            first.set()
            body = self._chat_body(request, counted, listener is not None)
        self._sent_first.setdefault(kind, asyncio.Event())

        def read(reply: Mapping[str, Any]) -> ChatReply:
            return self._read_chat(reply, request, counted, body)

        try:
            if listener is None:
                return await self._post(_CHAT, body, read, self._most_bytes(body))
            return await self._say_aloud(body, counted, read, listener)
        finally:
            self._sent_first[kind].set()

    def _chat_body(self, request: ChatRequest, counted: int, stream: bool) -> dict[str, Any]:
        limit, room = output_limit(request, self._model), request.call.reasoning_tokens
        if self._model.reasoning_tokens is None and self._peculiarities.thinks:
            room = room or THOUGHT_TOKENS
        room = thought_room(request, self._model, counted, room)
        return self._peculiarities.chat_body(request, self._name, limit, self._bias, stream, room)

    def _most_bytes(self, body: Mapping[str, Any]) -> int:
        return BYTES_BESIDE + self._limit_of(body) * (
            BYTES_PER_EVENT if "stream" in body else BYTES_PER_TOKEN
        )

    def _limit_of(self, body: Mapping[str, Any]) -> int:
        """Tokens that a reply may have, as they are sent; where none are, the model's window is one."""
        sent = body.get("max_tokens") or body.get("max_completion_tokens")
        return int(sent or self._model.context_window)

    def _read_chat(
        self, reply: Mapping[str, Any], request: ChatRequest, counted: int, body: Mapping[str, Any]
    ) -> ChatReply:
        limit, window = self._limit_of(body), self._model.context_window
        count = partial(text_size, model=self._model)
        read = read_chat(reply, request, counted, count, self.where, limit, window)
        learned = set()
        if reply.get("usage") and not read.usage.reported:
            learned.add(USAGE)
        if has_thoughts(reply, read.text):
            learned.add(THINKS)
        if is_open_from_the_start(read.text):
            learned.add(OPENED)
        cut = read.finish_reason == "length" and not spoken(read.text).strip()
        if cut and "logit_bias" in body:
            learned |= {"logit_bias", THINKS}
        elif cut and request.response == "yes_no":
            learned.add(THINKS)
        self._peculiarities.add(learned)
        if not cut:
            return read
        if self._chat_body(request, counted, "stream" in body) != body:
            raise RoomNeeded(f"{self.where} spent the reply's {limit:,} tokens on thoughts", usage=read.usage)
        name = request.call.model
        raise OnlyThoughts(
            f"{self.where} reached the limit of {limit:,} tokens before the first word of its reply"
            f"{', in thoughts' if self._peculiarities.thinks else ''}. If the model thinks, give it room "
            f"(models.{name}.reasoning_tokens) or let it think less (models.{name}.reasoning_effort: low)",
            usage=read.usage,
        )

    async def embed(self, requests: Sequence[EmbeddingRequest]) -> list[EmbeddingReply]:
        """One call that embeds all texts. All requests ask for the same number of dimensions."""
        texts = [r.text for r in requests]
        body = self._peculiarities.embedding_body(texts, self._name, requests[0].dimensions)

        def read(reply: Mapping[str, Any]) -> list[EmbeddingReply]:
            counts = [text_size(text, self._model) for text in texts]
            read = read_embeddings(reply, requests, counts, self.where)
            size = len(read[0].vector) // 4
            if self._dimensions not in (None, size):
                raise FatalCallError(
                    f"{self.where} answered embeddings of {size} dimensions, and of {self._dimensions} before"
                )
            self._dimensions = size
            return read

        numbers = len(texts) * (requests[0].dimensions or MOST_DIMENSIONS)
        return await self._post(_EMBEDDINGS, body, read, BYTES_BESIDE + numbers * BYTES_PER_NUMBER)

    async def probe(self, embeds: bool) -> CallError | None:
        """Why nothing that is asked there will be answered; None where it may be, which a slow answer leaves
        open. Asks for the list of models, which is free, and where that does not name ours for one token."""
        most_bytes.set(MOST_LISTED_BYTES)
        listing: RequestOptions = {**self._options, "timeout": PROBE_S}
        try:
            async with asyncio.timeout(PROBE_S):
                with suppress(openai.APIStatusError):  # it does not tell
                    told = await self._openai.get("/models", cast_to=httpx2.Response, options=listing)
                    listed = loaded(told.content)
                    data = listed.get("data") if isinstance(listed, dict) else None
                    models = data if isinstance(data, list) else []
                    if any(isinstance(m, dict) and str(m.get("id")) == self._name for m in models):
                        return None
                if embeds:
                    body = self._peculiarities.embedding_body(["Hello."], self._name, None)
                else:
                    hello = ChatRequest("probe", (Message("user", "Hello."),), CallParameters("", self._name))
                    body = self._peculiarities.chat_body(hello, self._name, 1, None)
                path = _EMBEDDINGS if embeds else _CHAT
                await self._post(
                    path, body, lambda reply: None, MOST_LISTED_BYTES if embeds else BYTES_BESIDE
                )
                return None
        except Exception as e:  # noqa: BLE001 - whatever it is, a CallError tells it
            failure = self._failure(e, {})
        gone = type(failure) is TransientCallError and failure.status is None
        return failure if gone or isinstance(failure, FatalCallError) else None

    async def close(self) -> None:
        await self._openai.close()

    async def _post(
        self, path: str, body: dict[str, Any], read: Callable[[Mapping[str, Any]], T], most: int
    ) -> T:
        """One HTTP request; what `read` makes of a good answer. Raises the CallError of any other.

        It is raised outside the handler: no exception of the library, whose request holds the key, hangs on
        ours.
        """
        most_bytes.set(most)
        try:
            async with asyncio.timeout(self._model.timeout_s):
                response = await self._openai.post(
                    path, body=body, cast_to=httpx2.Response, options=self._options
                )
                self.limits.note(response.headers, time.time())
                return read(decoded(response.content, self.where))
        except Exception as e:  # noqa: BLE001 - whatever it is, a CallError tells it
            failure = self._failure(e, body)
        raise failure

    async def _say_aloud(
        self,
        body: dict[str, Any],
        counted: int,
        read: Callable[[Mapping[str, Any]], ChatReply],
        listener: Listener,
    ) -> ChatReply:
        """One chat call whose reply is heard while it is written, where the endpoint streams."""
        listener.begins()
        pieces = Pieces(self.where)
        most_bytes.set(self._most_bytes(body))
        try:
            if "stream" not in body:
                reply = await self._post(_CHAT, body, read, self._most_bytes(body))
                listener.piece(spoken(reply.text))
                return reply
            async with asyncio.timeout(self._model.timeout_s):
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
                        listener.piece(spoken(reply.text))
                        return reply
                    speech = Speech(self._peculiarities.opened)
                    async for event in events_of(events.response.aiter_bytes(), self.where):
                        if piece := speech.add(pieces.add(event)):
                            listener.piece(piece)
                return read(pieces.body())
        except Exception as e:  # noqa: BLE001 - whatever it is, a CallError tells it
            failure = self._failure(e, body)
        if pieces.text and isinstance(failure, TransientCallError):
            told = f"it broke off in the middle of its reply: {failure}"
            usage = Usage(counted, text_size(pieces.text, self._model), reported=False)
            failure = BrokenOff(told, status=failure.status, usage=usage)
        raise failure

    def _failure(self, error: Exception, body: Mapping[str, Any]) -> CallError:
        """The CallError of a request that failed, without the key in its text."""
        if isinstance(error, CallError):
            failure = error
        elif not isinstance(error, self._failures):  # one call fails by it, and not the run
            logger.error("a call ended in a way that nobody foresaw, please report it", exc_info=error)
            failure = Unanswered(f"no answer from {self.where}: {type(error).__name__}: {error}")
        else:
            failure = classify(error, self.where, time.time())
            if isinstance(error, openai.APIStatusError):
                self.limits.note(error.response.headers, time.time())
                refusal = HttpRefusal.read(error.status_code, error.body)
                if self._peculiarities.learn(body, refusal):
                    failure = ParameterRefused(f"{self.where} answered {refusal.status}: {refusal.message}")
            else:
                try:
                    json.dumps(body, ensure_ascii=False).encode()
                except UnicodeEncodeError as e:  # no endpoint will ever get it
                    failure = PermanentCallError(f"the request cannot be sent to {self.where}: {e}")
            if failure.status in (401, 403):
                sent = f"its key is that of {self._key_from}" if self.key else "it is asked without a key"
                failure.args = (f"{failure} ({sent})",)
        failure.args = (scrub(str(failure), [self.key]),)
        failure.__context__ = None
        return failure
