"""What an endpoint's failure means: worth another attempt, hopeless for this request, or for all of them.

The three kinds are those of `errors.CallError`. Messages never carry a key, and the library's exceptions
are not chained to ours: theirs hold the request with its headers.
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
    DoesNotFit,
    FatalCallError,
    PermanentCallError,
    TransientCallError,
)
from graphrag_ray.base.messages import Usage, whole
from graphrag_ray.base.urls import display_url
from graphrag_ray.base.wording import rough_time
from graphrag_ray.llm.limit_headers import retry_after_s

MAX_MESSAGE = 600
LONGEST_WAIT_S = 600.0
"""An endpoint that asks for a longer wait is as good as gone."""

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


class GaveUp(TransientCallError):
    """A transient failure after all attempts."""

    def __init__(self, message: str, *, status: int | None = None, attempts: int = 1) -> None:
        super().__init__(message, status=status)
        self.attempts = attempts


class Paid(CallError):
    """A failure that was answered. usage: what it is taken to be paid for."""

    def __init__(self, message: str, *, status: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(message, status=status)
        self.usage = usage or Usage()


class PromptTruncated(Paid, DoesNotFit):
    """The endpoint read only a part of the prompt."""


class OnlyThoughts(Paid, DoesNotFit):
    """The limit of the reply was reached before its first word."""


class UselessVector(Paid, PermanentCallError):
    """The embedding of a text is nothing but zeros."""


class BrokenOff(Paid, TransientCallError):
    """The endpoint failed in the middle of a reply: the prompt counts, and what it had written."""


class Unanswered(TransientCallError):
    """It was sent, and no answer came: the endpoint may have worked on it, and be paid for that."""


class ParameterRefused(TransientCallError):
    """The endpoint refused a parameter that we can do without: the same request, sent again, leaves it
    out. It needs no waiting and is no failed attempt."""


class RoomNeeded(Paid, ParameterRefused):
    """The model turned out to think: the same request, sent again, has room for that."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """An HTTP answer that is an error.

    code, param, message    from the error's body where it has them; the message else is the body
    """

    status: int
    message: str
    code: str = ""
    param: str = ""

    @staticmethod
    def read(status: int, body: object) -> HttpRefusal:
        """From a decoded body of any shape: {"error": {…}}, its inside, {"detail": …}, or text."""
        inner = body.get("error", body) if isinstance(body, Mapping) else body
        if not isinstance(inner, Mapping):
            return HttpRefusal(status, whole(str(inner or "")[:MAX_MESSAGE]))
        message = inner.get("message") or inner.get("detail") or inner
        code = inner.get("code") or inner.get("type") or ""
        param = inner.get("param") or ""
        return HttpRefusal(status, *(whole(str(said)[:MAX_MESSAGE]) for said in (message, code, param)))

    @staticmethod
    def within(body: Mapping[str, Any]) -> HttpRefusal | None:
        """An error in a body, or an event, that came with status 200; None where it holds something else."""
        error = body.get("error")
        if not error or body.get("choices") or body.get("data"):
            return None
        code = error.get("code") if isinstance(error, Mapping) else None
        return HttpRefusal.read(code if isinstance(code, int) and 400 <= code < 600 else 500, body)


def failure_of(refusal: HttpRefusal, where: str, retry_after_s: float | None = None) -> CallError:
    """The error that an HTTP answer means. where: the endpoint, as it may be shown."""
    status, code = refusal.status, refusal.code
    if 300 <= status < 400:
        return FatalCallError(
            f"{where} answered {status}: it sends us to {refusal.message or 'another address'}, where "
            "neither prompts nor keys follow. Set base_url to where the API is",
            status=status,
        )
    text = f"{where} answered {status}: {refusal.message or code or 'no reason given'}"
    if status == 404 and not urlsplit(where).path.strip("/"):
        text += " (base_url names no path: for most servers it ends in /v1)"
    if status < 500 and _CONTENT_TEXT.search(f"{code} {refusal.message}"):
        return PermanentCallError(text, status=status)
    fatal_text = status < 500 and _FATAL_TEXT.search(refusal.message)
    if code in _FATAL_CODES or status in _FATAL_STATUS or fatal_text:
        return FatalCallError(text, status=status)
    if status == 429 and _TOO_LARGE_TEXT.search(refusal.message):
        return PermanentCallError(text, status=status)
    if status in _TRANSIENT_STATUS or status >= 500:
        if (retry_after_s or 0.0) > LONGEST_WAIT_S:
            wait = rough_time(retry_after_s or 0.0)
            return FatalCallError(f"{text}; it asks to wait {wait}: run the same again then", status=status)
        return TransientCallError(text, status=status, retry_after_s=retry_after_s)
    return PermanentCallError(text, status=status)


def classify(error: Exception, where: str, wall_now: float) -> CallError:
    """The CallError that an exception of the `openai` client, or below it, means.

    where: the endpoint, as it may be shown. wall_now: Unix seconds, for a Retry-After that is a date.
    The caller scrubs the message.
    """
    import aiohttp
    import openai

    if isinstance(error, openai.APIStatusError):
        refusal = HttpRefusal.read(error.status_code, error.body)
        if 300 <= error.status_code < 400:
            refusal = replace(refusal, message=display_url(error.response.headers.get("location", ""))[:200])
        return failure_of(refusal, where, retry_after_s(error.response.headers, wall_now))
    causes: list[BaseException] = [error]  # the library's own message is only "Connection error."
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    reason = causes[-1]
    # The client library's own types tell a connection that failed from one that broke off only sometimes.
    unsent = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
    failure = TransientCallError if any(isinstance(e, unsent) for e in causes) else Unanswered
    if isinstance(reason, TimeoutError | asyncio.CancelledError | openai.APITimeoutError):
        return failure(f"{where} did not answer in time")
    return failure(f"no answer from {where}: {str(reason) or type(reason).__name__}")


def transport_errors() -> tuple[type[Exception], ...]:
    """What may be raised by a call and says something about the endpoint, rather than about our code."""
    import aiohttp
    import httpx2
    import openai

    return (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL,
            aiohttp.ClientError, OSError, TimeoutError, UnicodeError)  # fmt: skip
