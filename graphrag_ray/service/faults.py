"""Error responses: an HTTP status and an error object in OpenAI's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphrag_ray.base.errors import (
    BudgetSpent,
    GraphRagError,
    IndexNotFound,
    LevelNotFound,
    ModelUnavailable,
    SnapshotRemoved,
    StoreError,
    UsageError,
)
from graphrag_ray.base.wording import shorten

MAX_MESSAGE_CHARS = 1_000
"""Maximum length in characters of a message, because messages may quote a long request."""
CLIENT_GONE = 499
"""Status in logs and metrics for a client that disconnected before the answer."""
INVALID, LIMITED, SERVER = "invalid_request_error", "rate_limit_error", "server_error"


@dataclass(frozen=True)
class Fault:
    """An error response. `kind` becomes the `type` of the error object."""

    status: int
    kind: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        error = {
            "message": shorten(self.message, MAX_MESSAGE_CHARS),
            "type": self.kind,
            "param": self.param and shorten(self.param, MAX_MESSAGE_CHARS),
            "code": self.code,
        }
        return {"error": error}

    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class QuestionRejected(GraphRagError):
    """The service does not answer this question, or not at the moment."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def invalid(message: str, param: str | None = None) -> QuestionRejected:
    return QuestionRejected(Fault(400, INVALID, "invalid_request", message, param))


def internal_error(question: str = "") -> QuestionRejected:
    """Report an unexpected error. `question` is the id under which it was logged."""
    reference = f" under question={question}" if question else ""
    message = f"Internal error while answering this question. Details are in the service's log{reference}"
    return QuestionRejected(Fault(500, SERVER, "internal_error", message))


def too_large(limit: int) -> Fault:
    return Fault(413, INVALID, "request_too_large", f"The request body exceeds the limit of {limit:,} bytes")


_FAULTS: tuple[tuple[type[GraphRagError], int, str, str], ...] = (
    (LevelNotFound, 404, INVALID, "level_not_found"),
    (IndexNotFound, 503, SERVER, "no_snapshot"),
    (UsageError, 400, INVALID, "invalid_request"),
    (BudgetSpent, 400, INVALID, "budget_exceeded"),
    (ModelUnavailable, 503, SERVER, "model_unavailable"),
    (SnapshotRemoved, 503, SERVER, "snapshot_removed"),
    (StoreError, 503, SERVER, "index_unreadable"),
    (GraphRagError, 503, SERVER, "not_answered"),
)


def fault_of(error: BaseException) -> Fault:
    """Convert an error. The message of an unexpected error is left out, because it may contain anything."""
    if isinstance(error, QuestionRejected):
        return error.fault
    for error_type, status, kind, code in _FAULTS:
        if isinstance(error, error_type):
            retry_after_s = 1 if error_type is SnapshotRemoved else None
            return Fault(status, kind, code, str(error), retry_after_s=retry_after_s)
    return internal_error().fault
