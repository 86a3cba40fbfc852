"""Classification of failed calls: transient, permanent for this request, or fatal for all requests.

The three kinds are subclasses of `errors.CallError`. Messages never contain a key. Exceptions of the client
library are not chained to ours, because they contain the request with its headers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from graphrag_ray.base.errors import (
    CallError,
    FatalCallError,
    PermanentCallError,
    RequestTooLarge,
    TransientCallError,
)
from graphrag_ray.base.messages import Usage, join_surrogates
from graphrag_ray.base.urls import display_url
from graphrag_ray.base.wording import format_duration
from graphrag_ray.llm.limit_headers import retry_after_s

MAX_MESSAGE_CHARS = 600
MAX_WAIT_S = 600.0  # An endpoint that asks for a longer wait counts as unavailable.

_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"}
_KEY_CODES = {"invalid_api_key", "account_deactivated", "invalid_authentication"}
_MODEL_CODES = {"model_not_found", "DeploymentNotFound", "model_not_available"}
_FATAL_CODES = _QUOTA_CODES | _KEY_CODES | _MODEL_CODES
_FATAL_TEXT = re.compile(
    r"insufficient[ _](quota|balance)|exceeded your current quota|(incorrect|invalid) api key"
    r"|api key not valid|model [^ ]+ (does not exist|not found)",
    re.IGNORECASE,
)
_CONTENT_TEXT = re.compile(r"content[ _](filter|management|policy)|flagged by moderation", re.IGNORECASE)
_TOO_LARGE_TEXT = re.compile(r"request too large", re.IGNORECASE)
_TRANSIENT_STATUS = {408, 409, 425, 429}
_FATAL_STATUS = {401, 402, 403, 404}


class RetriesExhausted(TransientCallError):
    """A transient failure after all attempts."""

    def __init__(self, message: str, *, status: int | None = None, attempts: int = 1) -> None:
        super().__init__(message, status=status)
        self.attempts = attempts


class BilledFailure(CallError):
    """A failed call that may be billed, with its assumed usage."""

    def __init__(self, message: str, *, status: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(message, status=status)
        self.usage = usage or Usage()


class PromptTruncated(BilledFailure, RequestTooLarge):
    """The endpoint truncated the prompt."""


class OnlyReasoning(BilledFailure, RequestTooLarge):
    """Reasoning used up the token limit before the first word of the reply."""


class ZeroVector(BilledFailure, PermanentCallError):
    """The embedding of a text is all zeros."""


class ReplyInterrupted(BilledFailure, TransientCallError):
    """The endpoint failed in the middle of a reply. The prompt and the partial reply count as usage."""


class NoAnswer(TransientCallError):
    """The request was sent, but there was no usable answer. The endpoint may have processed and billed it."""


class ParameterRefused(TransientCallError):
    """The endpoint refused an optional parameter. The next attempt omits it and does not count as a retry."""


class ReasoningDetected(BilledFailure, ParameterRefused):
    """The model turned out to reason. The next attempt allows tokens for it."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """An HTTP error response. `message` is the whole body if it has no message."""

    status: int
    message: str
    code: str = ""
    param: str = ""

    @staticmethod
    def read(status: int, body: object) -> HttpRefusal:
        """Parse a decoded body: {"error": {…}}, the inner object alone, {"detail": …}, or text."""
        inner = body.get("error", body) if isinstance(body, Mapping) else body
        if not isinstance(inner, Mapping):
            return HttpRefusal(status, join_surrogates(str(inner or "")[:MAX_MESSAGE_CHARS]))
        message = inner.get("message") or inner.get("detail") or inner
        code = inner.get("code") or inner.get("type") or ""
        param = inner.get("param") or ""
        return HttpRefusal(
            status, *(join_surrogates(str(text)[:MAX_MESSAGE_CHARS]) for text in (message, code, param))
        )

    @staticmethod
    def in_body(body: Mapping[str, Any]) -> HttpRefusal | None:
        """Return the error in a body or event that came with status 200, if any."""
        error = body.get("error")
        if not error or body.get("choices") or body.get("data"):
            return None
        code = error.get("code") if isinstance(error, Mapping) else None
        return HttpRefusal.read(code if isinstance(code, int) and 400 <= code < 600 else 500, body)


def error_for_refusal(refusal: HttpRefusal, where: str, retry_after_s: float | None = None) -> CallError:
    """Create the error for an HTTP error response. `where` is the endpoint's display address."""
    status, code = refusal.status, refusal.code
    if 300 <= status < 400:
        return FatalCallError(
            f"{where} answered {status}, a redirect to {refusal.message or 'another address'}. Redirects are "
            "not followed, because prompts and keys would be sent there. Set base_url to the API's address.",
            status=status,
        )
    text = f"{where} answered {status}: {refusal.message or code or 'no reason given'}"
    if status == 404 and not urlsplit(where).path.strip("/"):
        text += " (base_url has no path; for most servers it ends in /v1)"
    if status < 500 and _CONTENT_TEXT.search(f"{code} {refusal.message}"):
        return PermanentCallError(text, status=status)
    fatal_text = status < 500 and _FATAL_TEXT.search(refusal.message)
    if code in _FATAL_CODES or status in _FATAL_STATUS or fatal_text:
        return FatalCallError(text, status=status)
    if status == 429 and _TOO_LARGE_TEXT.search(refusal.message):
        return PermanentCallError(text, status=status)
    if status in _TRANSIENT_STATUS or status >= 500:
        if (retry_after_s or 0.0) > MAX_WAIT_S:
            wait = format_duration(retry_after_s or 0.0)
            return FatalCallError(
                f"{text}. It asks to wait {wait}. Run the same command again after that.", status=status
            )
        return TransientCallError(text, status=status, retry_after_s=retry_after_s)
    return PermanentCallError(text, status=status)


def classify(error: Exception, where: str, unix_now: float) -> CallError:
    """Convert an exception of the `openai` client or its transport. The caller scrubs its message.

    `where` is the endpoint's display address. `unix_now` is needed for a Retry-After header with a date.
    """
    import aiohttp
    import openai

    if isinstance(error, openai.APIStatusError):
        refusal = HttpRefusal.read(error.status_code, error.body)
        if 300 <= error.status_code < 400:
            refusal = replace(refusal, message=display_url(error.response.headers.get("location", ""))[:200])
        return error_for_refusal(refusal, where, retry_after_s(error.response.headers, unix_now))
    causes: list[BaseException] = [error]  # The library's message is only "Connection error.".
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    reason = causes[-1]
    # The library's exception types do not reliably distinguish failed from interrupted connections.
    unsent = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
    failure = TransientCallError if any(isinstance(e, unsent) for e in causes) else NoAnswer
    if isinstance(reason, TimeoutError | asyncio.CancelledError | openai.APITimeoutError):
        return failure(f"{where} did not answer in time")
    return failure(f"No answer from {where}: {str(reason) or type(reason).__name__}")


def transport_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that are caused by the endpoint rather than by our code."""
    import aiohttp
    import httpx2
    import openai

    return (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL,
            aiohttp.ClientError, OSError, TimeoutError, UnicodeError)  # fmt: skip
