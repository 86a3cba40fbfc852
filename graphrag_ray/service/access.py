"""Who may ask: a bearer token, and the names by which the service may be called."""

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
BODY_WITHIN_S = 60.0
"""A request's body."""

_NO_TOKEN = Fault(
    401,
    INVALID,
    "invalid_api_key",
    "a token is wanted, and none or a wrong one came: Authorization: Bearer …",
)
MAX_HEADER_BYTES = 65_536
"""Of a request's path and headers: servers may take any."""
_LONG_HEADER = Fault(
    431, INVALID, "header_too_large", f"path and headers take {MAX_HEADER_BYTES:,} bytes at most"
)
_OTHER_HOST = Fault(421, INVALID, "unknown_host", "the service is not called by this name (the Host header)")


def find_token(
    options: ServiceOptions, environ: Mapping[str, str], ask: Callable[[str], str | None] | None = None
) -> SecretStr | None:
    """The token that clients must send: from the environment, else from whom `ask` asks. May wait. Raises
    UsageError where there is none and nobody said that it may be missing, and for one that cannot be sent."""
    found = environ.get(options.token_env, "").strip() or ((ask and ask(options.token_env)) or "").strip()
    check_token(options.token_env, found)
    if not found and not options.allow_anonymous:
        raise UsageError(
            f"{options.token_env} is not set: clients would need no token. Set it, or say that anybody may "
            "ask (--allow-anonymous, allow_anonymous: true)"
        )
    return SecretStr(found) if found else None


def check_token(variable: str, token: str) -> None:
    """Raises UsageError for a token that clients would send in different ways, or not at all: headers are
    ASCII."""
    if not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"{variable} holds characters that no header can: take letters, digits and signs of ASCII"
        )


class Guard:
    """Lets requests with the token through to the application, and any to /healthz; bodies as far as they may
    be long, and take."""

    def __init__(self, app: ASGIApp, token: SecretStr | None, options: ServiceOptions) -> None:
        self._app = app
        self._digest = _digest(token.get_secret_value()) if token else None
        self._hosts = {host.lower() for host in options.hosts}
        self._open = {HEALTH, METRICS} if options.open_metrics else {HEALTH}
        self._most = options.max_body_bytes
        self._within_s = min(BODY_WITHIN_S, options.max_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._fault(scope) if scope["type"] in ("http", "websocket") else None
        if fault is None:
            await self._app(scope, self._bounded(receive) if scope["type"] == "http" else receive, send)
        else:
            await JSONResponse(fault.body(), fault.status, fault.headers())(scope, receive, send)

    def _bounded(self, receive: Receive) -> Receive:
        """For bodies that do not say how long they are, and for those that never come: they would keep one
        of the requests that a replica is given at once."""
        received, whole = 0, False
        until = asyncio.get_running_loop().time() + self._within_s

        async def within() -> Message:
            nonlocal received, whole
            try:
                async with asyncio.timeout_at(None if whole else until):
                    message = await receive()
            except TimeoutError:
                told = f"the request's body did not come within {self._within_s:g} s"
                raise HTTPException(408, told, {"Connection": "close"}) from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > self._most:
                raise HTTPException(413)
            return message

        return within

    def _fault(self, scope: Scope) -> Fault | None:
        headers, path = Headers(scope=scope), path_of(scope)
        named = sum(len(name) + len(value) for name, value in headers.raw)
        if len(scope["path"]) + len(scope.get("query_string", b"")) + named > MAX_HEADER_BYTES:
            return _LONG_HEADER
        host = headers.get("host", "")  # without its port
        host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if self._hosts and host.lower() not in self._hosts:
            return _OTHER_HOST
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            return too_large(self._most)
        if self._digest is None or path in self._open:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip()), self._digest)
        return None if right and scheme.lower() == "bearer" else _NO_TOKEN


def path_of(scope: Scope) -> str:
    """A request's path below the service's prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


def _digest(token: str) -> bytes:
    """So that what is compared has one length."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
