"""The ASGI application: routes and error handling. It runs in one process, under any ASGI server:

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
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.engine.model_access import Models
from graphrag_ray.llm.limiter import ClosableLimiter, LocalLimiter
from graphrag_ray.query import traces
from graphrag_ray.query.model_calls import Connections
from graphrag_ray.service import chat_api, query_api
from graphrag_ray.service.access import HEALTH, METRICS, Guard, path_of
from graphrag_ray.service.answering import ClientQuestion, Event, ServedAnswer, Service, events
from graphrag_ray.service.chat_api import ChatBody
from graphrag_ray.service.faults import CLIENT_GONE, INVALID, SERVER, Fault, fault_of, too_large
from graphrag_ray.service.live import LiveIndex
from graphrag_ray.service.query_api import QueryBody
from graphrag_ray.service.service_metrics import RequestCounter
from graphrag_ray.service.service_options import ServiceOptions
from graphrag_ray.version import __version__

log = logging.getLogger(__name__)

QUESTION_PATHS = {
    "/query": '{"question": "What are the main themes?"}',
    "/v1/chat/completions": (
        '{"model": "graphrag-ray", "messages": [{"role": "user", "content": "What are the main themes?"}]}'
    ),
}
"""Paths that accept questions, each with a minimal request."""
GET_PATHS = ("/index", "/v1/models", HEALTH, METRICS, "/openapi.json")
_MAX_PROBLEMS = 3
"""Maximum number of problems in a request body to list in an error."""
MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return query_api.as_json(content)


def _error_response(fault: Fault) -> Response:
    return Json(fault.body(), fault.status, fault.headers())


def create_app(
    options: ServiceOptions,
    token: SecretStr | None,
    *,
    replica: str = "",
    limiter: Callable[[Models], ClosableLimiter] | None = None,
    ask_key: Callable[[str], str | None] | None = None,
    prompts: Mapping[str, Prompt] | None = None,
    recorder: Recorder | None = None,
) -> FastAPI:
    """Create the application. It opens the snapshot when it starts. Raises SettingsError.

    Args:
        options: Options of the service.
        token: Token that clients must send, or None for anonymous access (see `access.find_token`).
        replica: Name of this process in /metrics.
        limiter: Opens a limiter that is shared with other processes. Defaults to a limiter of this process.
        ask_key: Provides keys that are neither in the environment nor in a file.
        prompts: The bundled prompts. Defaults to reading their files.
        recorder: Also receives all metrics.
    """
    offline_pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="offline")

    def connect(models: Models) -> Connections:
        shared = limiter(models) if limiter else None
        own = LocalLimiter(models.online, models.initial_in_flight, lend_first=True)
        connections = Connections(models, shared or own, ask_key, offline_pool)
        connections.exit_stack.callback(shared.close if shared else service.metrics.watch(models, own))
        return connections

    service = Service(options, LiveIndex(options, connect, ask_key, prompts), replica, recorder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with traces.export_traces():
            await service.live.refresh()
            tasks = [asyncio.ensure_future(part.follow()) for part in (service.live, service.metrics)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await service.live.close()
                offline_pool.shutdown(wait=False)

    middleware = [Middleware(RequestCounter, service.metrics), Middleware(Guard, token, options)]
    if options.origins:  # before the guard, because preflight requests have no token
        cors = Middleware(
            CORSMiddleware,
            allow_origins=options.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        middleware.insert(1, cors)
    app = FastAPI(
        title="graphrag-ray",
        version=__version__,
        lifespan=lifespan,
        middleware=middleware,
        docs_url=None,  # these pages would load third-party scripts into this origin
        redoc_url=None,
    )
    app.state.service = service
    _add_routes(app, service)
    _add_error_handlers(app, options)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    options = service.options

    @app.post("/query", response_model=None)
    async def query(body: QueryBody, request: Request) -> Response:
        """Answer a question. With `stream` or `Accept: text/event-stream`, send server-sent events."""
        question = query_api.question_of(body, options)
        if body.stream or MEDIA_TYPE in request.headers.get("accept", ""):
            render = partial(query_api.stream_events, body.contexts)
            return await _stream(events(service, question), render, query_api.failure_events)
        answer = await _await_answer(request, events(service, question))
        return Json(await asyncio.to_thread(query_api.answer_json, answer, body.contexts))

    @app.get("/", response_model=None)
    async def root() -> Response:
        """List the endpoints."""
        examples = {path: orjson.loads(body) for path, body in QUESTION_PATHS.items()}
        return Json(
            {"service": "graphrag-ray", "version": __version__, "POST": examples, "GET": [*GET_PATHS]}
        )

    @app.get("/index", response_model=None)
    async def index() -> Response:
        """Describe the current snapshot: counts, levels, search methods."""
        return Json(query_api.index_json(service))

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        """OpenAI's chat completions. The model name selects the search method."""
        question: ClientQuestion = chat_api.question_of(body, options)
        if body.stream:
            render = chat_api.stream_chunks(body, question.id)
            return await _stream(events(service, question), render, chat_api.failure_events)
        return Json(chat_api.completion(body, await _await_answer(request, events(service, question))))

    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        return Json({"object": "list", "data": chat_api.models_json(service.live.require_current())})

    @app.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        return Json(chat_api.models_json(service.live.require_current(), name)[0])

    @app.head(HEALTH, include_in_schema=False, response_model=None)
    @app.get(HEALTH, response_model=None)
    async def healthz() -> Response:
        """Return 200 while the service can answer questions. Needs no token. GET /index explains problems."""
        current = service.live.current
        if current is None or current.missing_key:
            return Json({"status": "no model key" if current else "no snapshot"}, 503)
        return Json({"status": "ok", "snapshot": current.number})

    @app.get(METRICS, response_model=None)
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _add_error_handlers(app: FastAPI, options: ServiceOptions) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        if isinstance(error, RequestValidationError):
            return _error_response(_body_fault(error.errors(), path_of(request.scope)))
        if not isinstance(error, HTTPException):
            return _error_response(fault_of(error))
        if error.status_code == 413:
            return _error_response(too_large(options.max_body_bytes))
        kind = SERVER if error.status_code >= 500 else INVALID
        hint = ". GET / lists the endpoints." if error.status_code in (404, 405) else ""
        response = _error_response(Fault(error.status_code, kind, "http_error", f"{error.detail}{hint}"))
        response.headers.update(error.headers or {})
        return response

    for kind in (GraphRagError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, handle)


def _body_fault(problems: Sequence[Any], path: str) -> Fault:
    """Describe the problems of a request body without quoting its values, or show an example."""
    keys = [".".join(str(step) for step in p["loc"] if step != "body") for p in problems[:_MAX_PROBLEMS]]
    messages = [f"{key}: {p['msg']}" if key else p["msg"] for key, p in zip(keys, problems, strict=False)]
    others = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    first = problems[0]
    is_ours = first["type"] == "value_error"  # raised by our validator, which accepts only JSON objects
    not_an_object = first["type"] == "json_invalid" or (first["loc"] == ("body",) and not is_ours)
    if not_an_object and path in QUESTION_PATHS:
        example = f"-H 'Content-Type: application/json' -d '{QUESTION_PATHS[path]}'"
        message = f"{path} expects a JSON object. Example: curl {example}"
        return Fault(400, INVALID, "invalid_request", message)
    return Fault(400, INVALID, "invalid_request", "; ".join(messages) + others, keys[0] or None)


async def _await_answer(request: Request, question_events: AsyncIterator[Event | None]) -> ServedAnswer:
    """Wait for the answer. If the client disconnects, cancel the question and raise ClientDisconnect."""

    async def answer() -> ServedAnswer:
        async with aclosing(question_events):  # type: ignore[type-var]
            (served,) = [event async for event in question_events if isinstance(event, ServedAnswer)]
            return served

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering, disconnecting = asyncio.ensure_future(answer()), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({answering, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientDisconnect
    finally:
        for task in (answering, disconnecting):
            task.cancel()
        await asyncio.gather(answering, disconnecting, return_exceptions=True)


async def _stream(
    question_events: AsyncIterator[Event | None],
    render: Callable[[Event], Iterable[bytes]],
    render_failure: Callable[[Fault], Iterable[bytes]],
) -> Response:
    """Stream the events. A failure before the first event is raised; later, it becomes the last event."""
    first = await anext(question_events)

    async def pieces() -> AsyncIterator[bytes]:
        async with aclosing(question_events):  # type: ignore[type-var]
            event: Event | None = first
            try:
                while True:
                    for piece in render(event) if event is not None else (KEEP_ALIVE,):
                        yield piece
                    event = await anext(question_events)
            except StopAsyncIteration:
                return
            except Exception as e:  # the status was already sent, so the stream reports the error
                if is_unexpected(e):  # `Service.answer` logs its unexpected errors itself
                    log.exception("Unexpected error while streaming an answer")
                for piece in render_failure(fault_of(e)):
                    yield piece

    return StreamingResponse(pieces(), media_type=MEDIA_TYPE, headers=_STREAM_HEADERS)
