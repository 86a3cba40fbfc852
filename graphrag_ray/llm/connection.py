"""The HTTP below a client of an endpoint: what is sent there, and how much of an answer is read.

What answers is a stranger: nothing is read beyond what a reply could have, nothing is unpacked, no redirect
is followed and no cookie kept.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
import openai
from pydantic import SecretStr

from graphrag_ray.base.errors import NoWay
from graphrag_ray.base.index_settings import Endpoint, Model
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.call_failures import Unanswered

CONNECT_S = 15.0
CONNECT_SHARE = 0.9
"""Of a time-out: one that ends a call has found somebody who listened, and may be billed."""
KEEP_ALIVE_S = 4.0
"""Shorter than the five seconds of common servers: a request never meets a connection just closed."""
_NO_BOUND = 1_000_000
"""The limiter bounds calls in flight, not the connection pool."""
BYTES_BESIDE = 1 << 18
"""For what stands around a reply, and for an error."""


def check_headers(endpoint: Endpoint, key: SecretStr | None) -> None:
    given = {f"header {name}": value for name, value in endpoint.headers.items()}
    if key is not None:
        given["key"] = key.get_secret_value()
    for what, value in given.items():
        if not (value.isascii() and value.isprintable()):
            raise NoWay(
                f"the {what} for {display_url(endpoint.base_url)} cannot be sent: only printable ASCII can"
            )


def openai_client(endpoint: Endpoint, model: Model, key: SecretStr | None) -> openai.AsyncOpenAI:
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
        # What is not asked for is not unpacked: a few bytes can hold gigabytes.
        default_headers={**endpoint.headers, "Accept-Encoding": "identity"},
        http_client=openai.DefaultAioHttpClient(
            verify=_trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            limits=limits,
            timeout=timeout,
            cookies=_no_cookies(),
            follow_redirects=False,
            event_hooks={"response": [_bound]},
        ),
    )


@lru_cache(maxsize=4)
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The certificates that are trusted, by the variables that say where they are: reading them takes longer
    than all else about a client, of which each step makes its own."""
    return httpx2.create_ssl_context()


most_bytes: ContextVar[int] = ContextVar("most_bytes", default=BYTES_BESIDE)
"""Of the answer to the request that a task sends."""


async def _bound(response: httpx2.Response) -> None:
    """Before the body of a response is read. Raises Unanswered for one that we would have to unpack."""
    if (packed := response.headers.get("content-encoding", "identity").lower()) not in ("identity", ""):
        raise Unanswered(
            f"{display_url(str(response.url))} answered in {packed[:20]!r}, which was not asked for"
        )
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream, most_bytes.get(), display_url(str(response.url)))


def _no_cookies() -> CookieJar:
    """A call is by itself; and one cookie that cannot be sent back would end all calls after it."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class _Bounded(httpx2.AsyncByteStream):
    """A body, up to a size. Raises Unanswered where it has more."""

    def __init__(self, body: httpx2.AsyncByteStream, most: int, where: str) -> None:
        self._body, self._most, self._where = body, most, where

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for received in self._body:
            left -= len(received)
            if left < 0:
                raise Unanswered(
                    f"{self._where} answered with more than the {self._most:,} bytes that it could need"
                )
            yield received

    async def aclose(self) -> None:
        await self._body.aclose()
