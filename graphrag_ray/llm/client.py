"""The client for one endpoint of one model. It sends a request once; retries are up to the caller.

HTTP goes through the low-level `post` of the `openai` client with its aiohttp transport. This takes half the
CPU time of `chat.completions.create`, because it does not convert replies to objects.
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

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.base.errors import (
    CallError,
    FatalCallError,
    NoEndpoint,
    PermanentCallError,
    TransientCallError,
)
from graphrag_ray.base.keys import scrub
from graphrag_ray.base.messages import (
    CallParameters,
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Message,
    RerankReply,
    RerankRequest,
    StreamListener,
    Usage,
)
from graphrag_ray.base.providers import Client
from graphrag_ray.base.reasoning import (
    DEFAULT_REASONING_TOKENS,
    ReasoningFilter,
    find_model_family,
    starts_inside_reasoning,
    strip_reasoning,
)
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.call_failures import (
    HttpRefusal,
    NoAnswer,
    OnlyReasoning,
    ParameterRefused,
    ReasoningDetected,
    ReplyInterrupted,
    classify,
    transport_errors,
)
from graphrag_ray.llm.endpoint_replies import (
    StreamedReply,
    decode_object,
    has_reasoning,
    load_json,
    read_chat,
    read_embeddings,
    read_events,
    read_rerank,
)
from graphrag_ray.llm.limit_headers import LimitHeaders
from graphrag_ray.llm.pricing import price_of
from graphrag_ray.llm.quirks import IMPLICIT_REASONING, REASONS, USAGE, EndpointQuirks, yes_no_bias
from graphrag_ray.llm.request_sizes import (
    count_prompt_tokens,
    count_rerank_tokens,
    count_text_tokens,
    output_limit,
    reasoning_room,
    vocabulary_of,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

CONNECT_S = 15.0
CONNECT_SHARE = 0.9  # share of the timeout; a later timeout means that a server may have billed the call
KEEP_ALIVE_S = 4.0  # less than the usual 5 s of servers, to avoid connections that the server just closed
_UNBOUNDED = 1_000_000  # The limiter bounds calls in flight, not the connection pool.
ALONE_S = 0.5  # how long other requests wait for the first one with the same parameters
BASE_BYTES = 1 << 18  # allowance for the envelope of a reply, and for errors
BYTES_PER_TOKEN, BYTES_PER_EVENT = 64, 1_024  # upper bounds for a token in a body, and as a streamed event
MAX_DIMENSIONS, BYTES_PER_NUMBER = 16_384, 32  # upper bounds for an embedding
BYTES_PER_RESULT, ESCAPED = 1_024, 6  # upper bounds for a reranked document, and for a byte of its text
PROBE_S = 5.0
MAX_LISTING_BYTES = 16 << 20
_CHAT, _EMBEDDINGS, _RERANK = "/chat/completions", "/embeddings", "/rerank"

max_bytes: ContextVar[int] = ContextVar("max_bytes", default=BASE_BYTES)
"""Maximum size of the response to the current task's request."""


@lru_cache(maxsize=4)
def _ssl_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Create the context with trusted certificates. Cached, because loading them is slow."""
    return httpx2.create_ssl_context()


class _BoundedBody(httpx2.AsyncByteStream):
    """A response body with a size limit. Raises NoAnswer if it is longer."""

    def __init__(self, body: httpx2.AsyncByteStream, limit: int, where: str) -> None:
        self._body, self._limit, self._where = body, limit, where

    async def __aiter__(self) -> AsyncIterator[bytes]:
        remaining = self._limit
        async for received in self._body:
            remaining -= len(received)
            if remaining < 0:
                raise NoAnswer(
                    f"{self._where} sent more than {self._limit:,} bytes, the maximum size of this reply"
                )
            yield received

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound_body(response: httpx2.Response) -> None:
    """Limit the size of a response body. Raises NoAnswer if it is compressed."""
    where = display_url(str(response.url))
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", ""):
        raise NoAnswer(f"{where} sent a reply in encoding {encoding[:20]!r}, which was not requested")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedBody(response.stream, max_bytes.get(), where)


class EndpointClient(Client):
    """Calls one endpoint. Connects on the first call, and belongs to one event loop.

    Args:
        key: None if the endpoint does not require a key.
        force_yes_no: Whether to force the reply to yes_no requests with a logit bias. None does so only if
            the model's vocabulary is known.
        quirks: Quirks learned earlier, by endpoint address.

    Raises:
        NoEndpoint: A key or header contains characters that cannot be sent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: Model,
        key: SecretStr | None,
        force_yes_no: bool | None = None,
        quirks: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.display_address = display_url(endpoint.base_url)
        headers = {f"header {name}": value for name, value in endpoint.headers.items()}
        for name, value in {**headers, "key": key.get_secret_value() if key else ""}.items():
            if not (value.isascii() and value.isprintable()):
                raise NoEndpoint(
                    f"The {name} for {self.display_address} cannot be sent: it is not printable ASCII"
                )
        self.price = price_of(model, endpoint)
        self.limits = LimitHeaders()
        self.key = key
        self._model = model
        self._name = endpoint.model or model.model
        vocabulary = vocabulary_of(model.model, model.tokenizer)
        forced = vocabulary.known if force_yes_no is None else force_yes_no
        self._bias = yes_no_bias(vocabulary.name) if forced else None
        self._key_from = endpoint.api_key_env or endpoint.api_key_file
        self._quirks = EndpointQuirks(find_model_family(self._name, model.model))
        self._quirks.add((quirks or {}).get(self.display_address, ()))
        self._sent_first: dict[frozenset[str], asyncio.Event] = {}
        self._dimensions: int | None = None
        # Some providers document the whole address, which users copy. An absolute one replaces the base URL.
        url = endpoint.base_url.rstrip("/")
        self._rerank_path = url if url.endswith(_RERANK) else _RERANK
        self._transport_errors = transport_errors()
        connect_s = min(CONNECT_S, CONNECT_SHARE * model.timeout_s)
        timeout = httpx2.Timeout(model.timeout_s, connect=connect_s, pool=None)
        self._openai = openai.AsyncOpenAI(
            api_key=key.get_secret_value() if key else "none",
            base_url=endpoint.base_url,
            max_retries=0,
            timeout=timeout,
            # Refuse compressed replies, because a few bytes can expand to gigabytes.
            default_headers={**endpoint.headers, "Accept-Encoding": "identity"},
            http_client=openai.DefaultAioHttpClient(
                verify=_ssl_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
                limits=httpx2.Limits(
                    max_connections=_UNBOUNDED, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S
                ),
                timeout=timeout,
                # Ignore cookies: one that cannot be sent back would break all later calls.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=False,
                event_hooks={"response": [_bound_body]},
            ),
        )
        self._options: RequestOptions = {"headers": {"Authorization": openai.Omit()}} if key is None else {}

    def __repr__(self) -> str:
        return f"EndpointClient({self.display_address!r}, {self._name!r})"

    @property
    def quirks(self) -> frozenset[str]:
        return self._quirks.learned

    def add_quirks(self, quirks: Iterable[str]) -> None:
        self._quirks.add(quirks)

    async def chat(
        self, request: ChatRequest, prompt_tokens: int | None = None, listener: StreamListener | None = None
    ) -> ChatReply:
        """Make one chat call.

        Args:
            prompt_tokens: `count_prompt_tokens` of the request, if it is already known.
            listener: Receives the reply while it is generated, or in one piece if the endpoint cannot stream.

        Raises:
            RequestTooLarge: The request exceeds the context window and was not sent.
            ReplyInterrupted: The endpoint failed after part of the reply was received.
        """
        counted = count_prompt_tokens(request, self._model) if prompt_tokens is None else prompt_tokens
        body = self._chat_body(request, counted, listener is not None)
        # Wait for the first request with the same parameters: its answer may show which ones to omit.
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
                return await self._post(_CHAT, body, read, self._max_bytes(body))
            return await self._stream(body, counted, read, listener)
        finally:
            self._sent_first[kind].set()

    def _chat_body(self, request: ChatRequest, counted: int, stream: bool) -> dict[str, Any]:
        limit, room = output_limit(request, self._model), request.call.reasoning_tokens
        if self._model.reasoning_tokens is None and self._quirks.reasons:
            room = room or DEFAULT_REASONING_TOKENS
        room = reasoning_room(request, self._model, counted, room)
        return self._quirks.chat_body(request, self._name, limit, self._bias, stream, room)

    def _max_bytes(self, body: Mapping[str, Any]) -> int:
        return BASE_BYTES + self._limit_of(body) * (BYTES_PER_EVENT if "stream" in body else BYTES_PER_TOKEN)

    def _limit_of(self, body: Mapping[str, Any]) -> int:
        """Return the token limit of the reply as sent, or the context window if none was sent."""
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        return int(limit or self._model.context_window)

    def _read_chat(
        self, reply: Mapping[str, Any], request: ChatRequest, counted: int, body: Mapping[str, Any]
    ) -> ChatReply:
        limit, window = self._limit_of(body), self._model.context_window
        count = partial(count_text_tokens, model=self._model)
        read = read_chat(reply, request, counted, count, self.display_address, limit, window)
        learned = set()
        if reply.get("usage") and not read.usage.reported:
            learned.add(USAGE)
        if has_reasoning(reply, read.text):
            learned.add(REASONS)
        if starts_inside_reasoning(read.text):
            learned.add(IMPLICIT_REASONING)
        no_reply = read.finish_reason == "length" and not strip_reasoning(read.text).strip()
        if no_reply and "logit_bias" in body:
            learned |= {"logit_bias", REASONS}
        elif no_reply and request.response == "yes_no":
            learned.add(REASONS)
        self._quirks.add(learned)
        if not no_reply:
            return read
        if self._chat_body(request, counted, "stream" in body) != body:
            raise ReasoningDetected(
                f"{self.display_address} used all {limit:,} tokens of the reply for reasoning",
                usage=read.usage,
            )
        name = request.call.model
        raise OnlyReasoning(
            f"{self.display_address} reached the limit of {limit:,} tokens before the first word of its reply"
            f"{', while reasoning' if self._quirks.reasons else ''}. If the model reasons, allow more tokens "
            f"(models.{name}.reasoning_tokens) or less reasoning (models.{name}.reasoning_effort: low).",
            usage=read.usage,
        )

    async def embed(self, requests: Sequence[EmbeddingRequest]) -> list[EmbeddingReply]:
        """Embed all texts in one call. All requests must have the same number of dimensions."""
        texts = [r.text for r in requests]
        body = self._quirks.embedding_body(texts, self._name, requests[0].dimensions)

        def read(reply: Mapping[str, Any]) -> list[EmbeddingReply]:
            counts = [count_text_tokens(text, self._model) for text in texts]
            read = read_embeddings(reply, requests, counts, self.display_address)
            size = len(read[0].vector) // 4
            if self._dimensions not in (None, size):
                raise FatalCallError(
                    f"{self.display_address} sent embeddings of {size} dimensions "
                    f"after others of {self._dimensions}"
                )
            self._dimensions = size
            return read

        numbers = len(texts) * (requests[0].dimensions or MAX_DIMENSIONS)
        return await self._post(_EMBEDDINGS, body, read, BASE_BYTES + numbers * BYTES_PER_NUMBER)

    async def rerank(self, request: RerankRequest) -> RerankReply:
        """Score documents with the API that Cohere, Jina, Voyage, vLLM and others share.

        The number of results is not limited (`top_n`): by default, endpoints return all, and Voyage refuses
        the parameter.
        """
        body = {"model": self._name, "query": request.query, "documents": list(request.documents)}

        def read(reply: Mapping[str, Any]) -> RerankReply:
            n_tokens = count_rerank_tokens(request, self._model)
            return read_rerank(reply, len(request.documents), n_tokens, self.display_address)

        # Some endpoints return the documents too.
        n_bytes = ESCAPED * sum(len(text.encode()) for text in request.documents)
        limit = BASE_BYTES + n_bytes + BYTES_PER_RESULT * len(request.documents)
        return await self._post(self._rerank_path, body, read, limit)

    async def probe(self, embeds: bool) -> CallError | None:
        """Return why requests cannot succeed, or None if they may. Sends a tiny request if necessary."""
        max_bytes.set(MAX_LISTING_BYTES)
        options: RequestOptions = {**self._options, "timeout": PROBE_S}
        try:
            async with asyncio.timeout(PROBE_S):
                with suppress(openai.APIStatusError):  # Not every endpoint lists its models.
                    response = await self._openai.get("/models", cast_to=httpx2.Response, options=options)
                    listing = load_json(response.content)
                    data = listing.get("data") if isinstance(listing, dict) else None
                    models = data if isinstance(data, list) else []
                    if any(isinstance(m, dict) and str(m.get("id")) == self._name for m in models):
                        return None
                if embeds:
                    body = self._quirks.embedding_body(["Hello."], self._name, None)
                    await self._post(_EMBEDDINGS, body, lambda reply: None, MAX_LISTING_BYTES)
                else:
                    hello = ChatRequest("probe", (Message("user", "Hello."),), CallParameters("", self._name))
                    body = self._quirks.chat_body(hello, self._name, 1, None)
                    await self._post(_CHAT, body, lambda reply: None, BASE_BYTES)
                return None
        except Exception as e:  # noqa: BLE001 - every error becomes a CallError
            failure = self._failure(e, {})
        unreachable = type(failure) is TransientCallError and failure.status is None
        return failure if unreachable or isinstance(failure, FatalCallError) else None

    async def close(self) -> None:
        await self._openai.close()

    async def _post(
        self, path: str, body: dict[str, Any], read: Callable[[Mapping[str, Any]], T], limit: int
    ) -> T:
        """Send one HTTP request, and parse the reply with `read`. Raises a CallError.

        The error is raised outside the handler, so that no library exception is chained to it: these contain
        the request with the key.
        """
        max_bytes.set(limit)
        try:
            async with asyncio.timeout(self._model.timeout_s):
                response = await self._openai.post(
                    path, body=body, cast_to=httpx2.Response, options=self._options
                )
                self.limits.note(response.headers, time.time())
                return read(decode_object(response.content, self.display_address))
        except Exception as e:  # noqa: BLE001 - every error becomes a CallError
            failure = self._failure(e, body)
        raise failure

    async def _stream(
        self,
        body: dict[str, Any],
        counted: int,
        read: Callable[[Mapping[str, Any]], ChatReply],
        listener: StreamListener,
    ) -> ChatReply:
        """Make a chat call, and pass on the reply while it is generated if the endpoint can stream."""
        listener.on_start()
        streamed = StreamedReply(self.display_address)
        max_bytes.set(self._max_bytes(body))
        try:
            if "stream" not in body:
                reply = await self._post(_CHAT, body, read, self._max_bytes(body))
                listener.on_text(strip_reasoning(reply.text))
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
                        reply = read(decode_object(await events.response.aread(), self.display_address))
                        listener.on_text(strip_reasoning(reply.text))
                        return reply
                    reply_filter = ReasoningFilter(self._quirks.starts_with_reasoning)
                    async for event in read_events(events.response.aiter_bytes(), self.display_address):
                        if piece := reply_filter.add(streamed.add(event)):
                            listener.on_text(piece)
                return read(streamed.body())
        except Exception as e:  # noqa: BLE001 - every error becomes a CallError
            failure = self._failure(e, body)
        if streamed.text and isinstance(failure, TransientCallError):
            usage = Usage(counted, count_text_tokens(streamed.text, self._model), reported=False)
            failure = ReplyInterrupted(f"The reply broke off: {failure}", status=failure.status, usage=usage)
        raise failure

    def _failure(self, error: Exception, body: Mapping[str, Any]) -> CallError:
        """Convert an error to a CallError without the key in its text."""
        if isinstance(error, CallError):
            failure = error
        elif not isinstance(error, self._transport_errors):  # Fail this call, but not the run.
            logger.error("Unexpected error in a call, please report it", exc_info=error)
            failure = NoAnswer(f"No answer from {self.display_address}: {type(error).__name__}: {error}")
        else:
            failure = classify(error, self.display_address, time.time())
            if isinstance(error, openai.APIStatusError):
                self.limits.note(error.response.headers, time.time())
                refusal = HttpRefusal.read(error.status_code, error.body)
                if self._quirks.learn(body, refusal):
                    failure = ParameterRefused(
                        f"{self.display_address} answered {refusal.status}: {refusal.message}"
                    )
            else:
                try:
                    json.dumps(body, ensure_ascii=False).encode()
                except UnicodeEncodeError as e:  # The request can never be sent.
                    failure = PermanentCallError(f"The request cannot be sent to {self.display_address}: {e}")
            if failure.status in (401, 403):
                auth = f"with the key from {self._key_from}" if self.key else "without a key"
                failure.args = (f"{failure} (sent {auth})",)
        failure.args = (scrub(str(failure), [self.key]),)
        failure.__context__ = None
        return failure
