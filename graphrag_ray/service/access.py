"""Access control: bearer token, Host header, and limits on the size and duration of requests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphrag_ray.base.errors import UsageError
from graphrag_ray.service.faults import INVALID, Fault, too_large
from graphrag_ray.service.service_options import ServiceOptions

HEALTH, METRICS = "/healthz", "/metrics"
MAX_BODY_S = 60.0
"""Maximum time for the body of a request to arrive."""
MAX_HEADER_BYTES = 65_536
"""Maximum size of path and headers. ASGI servers may not limit it."""

_NO_TOKEN = Fault(
    401, INVALID, "invalid_api_key", "Missing or wrong token. Send the header Authorization: Bearer …"
)
_HEADER_TOO_LARGE = Fault(
    431, INVALID, "header_too_large", f"Path and headers exceed the limit of {MAX_HEADER_BYTES:,} bytes"
)
_UNKNOWN_HOST = Fault(421, INVALID, "unknown_host", "The Host header is not a name of this service")


def find_token(
    options: ServiceOptions, environ: Mapping[str, str], ask: Callable[[str], str | None] | None = None
) -> SecretStr | None:
    """Find the token that clients must send in the environment, or get it from `ask`, which may block.

    Raises UsageError if it does not fit into a header, or if it is missing without `allow_anonymous`.
    """
    token = environ.get(options.token_env, "").strip() or ((ask and ask(options.token_env)) or "").strip()
    check_token(options.token_env, token)
    if not token and not options.allow_anonymous:
        raise UsageError(
            f"{options.token_env} is not set, so clients would not need a token. Set it, or allow anonymous "
            "access (--allow-anonymous, allow_anonymous: true)."
        )
    return SecretStr(token) if token else None


def check_token(variable: str, token: str) -> None:
    """Raise UsageError if a token does not fit into an HTTP header, which is ASCII."""
    if not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"{variable} contains characters that HTTP headers do not allow. Use ASCII letters, digits and "
            "punctuation."
        )


class Guard:
    """ASGI middleware that checks the token and Host header of requests and limits their bodies."""

    def __init__(self, app: ASGIApp, token: SecretStr | None, options: ServiceOptions) -> None:
        self._app = app
        self._digest = _digest(token.get_secret_value()) if token else None
        self._hosts = {host.lower() for host in options.hosts}
        self._open_paths = {HEALTH, METRICS} if options.open_metrics else {HEALTH}
        self._max_body_bytes = options.max_body_bytes
        self._max_body_s = min(MAX_BODY_S, options.max_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._fault(scope) if scope["type"] in ("http", "websocket") else None
        if fault is None:
            await self._app(scope, self._limit_body(receive) if scope["type"] == "http" else receive, send)
        else:
            await JSONResponse(fault.body(), fault.status, fault.headers())(scope, receive, send)

    def _limit_body(self, receive: Receive) -> Receive:
        """Limit the size of a body of unknown length, and the time that a body takes to arrive."""
        received, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._max_body_s

        async def limited() -> Message:
            nonlocal received, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"The request body did not arrive within {self._max_body_s:g} s"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._max_body_bytes:
                raise HTTPException(413)
            return message

        return limited

    def _fault(self, scope: Scope) -> Fault | None:
        headers, path = Headers(scope=scope), path_of(scope)
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if len(scope["path"]) + len(scope.get("query_string", b"")) + size > MAX_HEADER_BYTES:
            return _HEADER_TOO_LARGE
        host = headers.get("host", "")
        host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if self._hosts and host.lower() not in self._hosts:
            return _UNKNOWN_HOST
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            return too_large(self._max_body_bytes)
        if self._digest is None or path in self._open_paths:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(_digest(token.strip()), self._digest)
        return None if matches and scheme.lower() == "bearer" else _NO_TOKEN


def path_of(scope: Scope) -> str:
    """Return the path of a request without the service's prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


def _digest(token: str) -> bytes:
    """Hash a token, so that comparing it takes constant time whatever its length."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
