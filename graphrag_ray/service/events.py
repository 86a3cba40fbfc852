"""Server-sent events, and requests whose client goes away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.service.answering import Event, Replied
from graphrag_ray.service.faults import Fault, fault_of

log = logging.getLogger(__name__)
T = TypeVar("T")

MEDIA = "text/event-stream"
KEEP_ALIVE = b": still here\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return as_json(content)


def as_json(content: Any) -> bytes:
    """An answer is paid for: what orjson takes for no JSON (half a surrogate pair, a number of more than 64
    bits) is written all the same."""
    try:
        return orjson.dumps(content, default=str)
    except TypeError:
        return json.dumps(content, default=str).encode()


def refused(fault: Fault) -> Response:
    return Json(fault.body(), fault.status, fault.headers())


def event(data: Any, name: str | None = None) -> bytes:
    """One event. data: bytes as they are, anything else as JSON."""
    told = data if isinstance(data, bytes) else as_json(data)
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + told + b"\n\n"


async def last(request: Request, coming: AsyncIterator[Event | None]) -> Replied:
    """The answer, when it is there. Where the client goes away before, the question ends. Raises
    ClientDisconnect, what the question raises."""

    async def answer() -> Replied:
        async with aclosing(coming):  # type: ignore[type-var]
            async for one in coming:
                if isinstance(one, Replied):
                    return one
        raise AssertionError("a question ends with an answer or an error")

    working, gone = asyncio.ensure_future(answer()), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def streamed(
    coming: AsyncIterator[Event | None],
    told: Callable[[Event], Iterable[bytes]],
    failed: Callable[[Fault], Iterable[bytes]],
) -> Response:
    """The events as they come. What fails before the first of them is an answer with its status; after it,
    an event. told, failed: as bytes of the stream."""
    first = await anext(coming)  # raises what the question raises

    async def pieces() -> AsyncIterator[bytes]:
        async with aclosing(coming):  # type: ignore[type-var]
            try:
                for piece in told(first) if first is not None else (KEEP_ALIVE,):
                    yield piece
                async for one in coming:
                    for piece in told(one) if one is not None else (KEEP_ALIVE,):
                        yield piece
            except Exception as e:  # the status is sent already: the stream tells it
                if is_unforeseen(e):  # the question's own are logged, and come as a fault
                    log.exception("a stream ended with an error that is a bug")
                for piece in failed(fault_of(e)):
                    yield piece

    return StreamingResponse(pieces(), media_type=MEDIA, headers=_HEADERS)
