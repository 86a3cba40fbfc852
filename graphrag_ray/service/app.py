"""The ASGI application: routes, and what becomes of errors. It runs under any ASGI server, in one process:

uvicorn.run(create_app(ServiceOptions(root="./my-index"), token=SecretStr("…")))
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.instruments import Recorder
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.gateways import Models
from graphrag_ray.llm.limiter import LentLimiter, LocalLimiter
from graphrag_ray.query import traces
from graphrag_ray.query.session import Connections
from graphrag_ray.service import chat_api, query_api
from graphrag_ray.service.access import HEALTH, METRICS, Guard, path_of
from graphrag_ray.service.answering import Asked, Event, Replied, Service, events
from graphrag_ray.service.chat_api import ChatBody
from graphrag_ray.service.faults import CLIENT_GONE, INVALID, SERVER, Fault, fault_of, too_large
from graphrag_ray.service.live import LiveIndex
from graphrag_ray.service.query_api import QueryBody
from graphrag_ray.service.service_metrics import Counting
from graphrag_ray.service.service_options import ServiceOptions
from graphrag_ray.version import __version__

log = logging.getLogger(__name__)

ASKED_AT = {
    "/query": '{"question": "What are the main themes?"}',
    "/v1/chat/completions": (
        '{"model": "graphrag-ray", "messages": [{"role": "user", "content": "What are the main themes?"}]}'
    ),
}
"""Where questions are posted, and what such a request holds at least."""
OTHERS = ("/index", "/v1/models", HEALTH, METRICS, "/openapi.json")
_MOST_TOLD = 3
"""Faults of a body that are named."""


MEDIA = "text/event-stream"
KEEP_ALIVE = b": still here\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return query_api.as_json(content)


def refused(fault: Fault) -> Response:
    return Json(fault.body(), fault.status, fault.headers())


def create_app(
    options: ServiceOptions,
    token: SecretStr | None,
    *,
    replica: str = "",
    limiter: Callable[[Models], LentLimiter] | None = None,
    ask_key: Callable[[str], str | None] | None = None,
    prompts: Mapping[str, Prompt] | None = None,
    recorder: Recorder | None = None,
) -> FastAPI:
    """token     that clients must send; None: anybody may ask (see `access.find_token`)
    replica   a name for this process among others, in /metrics
    limiter   of models, shared with other processes, and watched elsewhere; None: of this process alone
    ask_key   where a key may be had that neither the environment nor a file holds
    prompts   the bundled ones; None: read from their files
    recorder  is told all that /metrics tells

    Raises SettingsError for settings that cannot be read. Snapshots are opened when it starts.
    """
    aside = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="offline")

    def connect(models: Models) -> Connections:
        shared = limiter(models) if limiter else None
        own = LocalLimiter(models.online, models.default_in_flight, lend_first=True)
        connections = Connections(models, shared or own, ask_key, aside)
        connections.open.callback(shared.close if shared else service.measures.watch(models, own))
        return connections

    service = Service(options, LiveIndex(options, connect, ask_key, prompts), replica, recorder)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        with traces.exported():
            await service.live.look()
            following = [asyncio.ensure_future(one.follow()) for one in (service.live, service.measures)]
            try:
                yield
            finally:
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)
                await service.live.close()
                aside.shutdown(wait=False)

    # What requests come through, the first one first.
    around = [Middleware(Counting, service.measures), Middleware(Guard, token, options)]
    if options.origins:  # before the guard: browsers ask without the token first whether they may ask
        cors = Middleware(
            CORSMiddleware,
            allow_origins=options.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        around.insert(1, cors)
    app = FastAPI(
        title="graphrag-ray",
        version=__version__,
        lifespan=life,
        middleware=around,
        docs_url=None,  # pages that would load scripts of others into this origin
        redoc_url=None,
    )
    app.state.service = service
    _routes(app, service)
    _errors(app, options)
    return app


def _routes(app: FastAPI, service: Service) -> None:
    options = service.options

    @app.post("/query", response_model=None)
    async def query(body: QueryBody, request: Request) -> Response:
        """Answer a question; with `stream`, or `Accept: text/event-stream`, as server-sent events."""
        asked = query_api.asked_of(body, options)
        if body.stream or MEDIA in request.headers.get("accept", ""):
            told = partial(query_api.told, body.contexts)
            return await streamed(events(service, asked), told, query_api.failed)
        replied = await last(request, events(service, asked))
        return Json(await asyncio.to_thread(query_api.answer_json, replied, body.contexts))

    @app.get("/", response_model=None)
    async def root() -> Response:
        """What there is."""
        posted = {path: orjson.loads(body) for path, body in ASKED_AT.items()}
        return Json({"service": "graphrag-ray", "version": __version__, "POST": posted, "GET": [*OTHERS]})

    @app.get("/index", response_model=None)
    async def index() -> Response:
        """The snapshot that is asked now: counts, levels, ways of answering."""
        return Json(query_api.index_json(service))

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        """OpenAI's chat completions; the model's name says how the answer is found."""
        asked: Asked = chat_api.asked_of(body, options)
        if body.stream:
            chunks = chat_api.chunks(body, asked.id)
            return await streamed(events(service, asked), chunks, chat_api.failed)
        return Json(chat_api.completion(body, await last(request, events(service, asked))))

    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        return Json({"object": "list", "data": chat_api.models_json(service.live.now())})

    @app.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        return Json(chat_api.models_json(service.live.now(), name)[0])

    @app.head(HEALTH, include_in_schema=False, response_model=None)
    @app.get(HEALTH, response_model=None)
    async def healthz() -> Response:
        """200 while questions can be answered. Anybody may ask: what stands in the way is told by /index."""
        current = service.live.current
        if current is None or current.lacking:
            return Json({"status": "no key of a model" if current else "no snapshot"}, 503)
        return Json({"status": "ok", "snapshot": current.number})

    @app.get(METRICS, response_model=None)
    async def metrics() -> Response:
        return Response(service.measures.text(), media_type=CONTENT_TYPE_LATEST)


def _errors(app: FastAPI, options: ServiceOptions) -> None:
    async def of_any(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        if isinstance(error, RequestValidationError):
            return refused(_of_body(error.errors(), path_of(request.scope)))
        if not isinstance(error, HTTPException):
            return refused(fault_of(error))
        if error.status_code == 413:
            return refused(too_large(options.max_body_bytes))
        kind = SERVER if error.status_code >= 500 else INVALID
        hint = ": GET / tells what there is" if error.status_code in (404, 405) else ""
        response = refused(Fault(error.status_code, kind, "http_error", f"{error.detail}{hint}"))
        response.headers.update(error.headers or {})
        return response

    for kind in (GraphRagError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, of_any)


def _of_body(problems: Sequence[Any], path: str) -> Fault:
    """What is wrong with a request's body, by key; never what stands there. Of one that is no JSON object,
    what it should be."""
    places = [".".join(str(step) for step in p["loc"] if step != "body") for p in problems[:_MOST_TOLD]]
    told = [f"{place}: {p['msg']}" if place else p["msg"] for place, p in zip(places, problems, strict=False)]
    more = f"; and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
    first = problems[0]
    ours = first["type"] == "value_error"  # of a JSON object, and says itself what is wrong
    whole = first["type"] == "json_invalid" or (first["loc"] == ("body",) and not ours)
    if whole and path in ASKED_AT:
        example = f"-H 'Content-Type: application/json' -d '{ASKED_AT[path]}'"
        return Fault(400, INVALID, "invalid_request", f"{path} takes a JSON object, as of curl {example}")
    return Fault(400, INVALID, "invalid_request", "; ".join(told) + more, places[0] or None)


async def last(request: Request, coming: AsyncIterator[Event | None]) -> Replied:
    """The answer, when it is there. Where the client goes away before, the question ends. Raises
    ClientDisconnect, what the question raises."""

    async def answer() -> Replied:
        async with aclosing(coming):  # type: ignore[type-var]
            (replied,) = [one async for one in coming if isinstance(one, Replied)]
            return replied

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(answer()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


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
            one: Event | None = first
            try:
                while True:
                    for piece in told(one) if one is not None else (KEEP_ALIVE,):
                        yield piece
                    one = await anext(coming)
            except StopAsyncIteration:
                return
            except Exception as e:  # the status is sent already: the stream tells it
                if is_unforeseen(e):  # the question's own are logged, and come as a fault
                    log.exception("a stream ended with an error that is a bug")
                for piece in failed(fault_of(e)):
                    yield piece

    return StreamingResponse(pieces(), media_type=MEDIA, headers=_HEADERS)
