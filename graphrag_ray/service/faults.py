"""What a client is told when there is no answer: a status, and an error as OpenAI's protocol writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphrag_ray.base.errors import (
    BudgetSpent,
    GraphRagError,
    IndexNotFound,
    LevelNotFound,
    ModelRefused,
    SnapshotRemoved,
    StoreError,
    UsageError,
)

MOST_CHARACTERS = 1_000
"""Of a message: what it quotes, a client may have made as long as a body may be."""
CLIENT_GONE = 499
"""A status that nobody is sent: the client went away before there was an answer."""
INVALID, LIMITED, SERVER = "invalid_request_error", "rate_limit_error", "server_error"


@dataclass(frozen=True)
class Fault:
    """kind, code: the error's `type` and `code`; retry_after_s: when to ask again, where that helps."""

    status: int
    kind: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        told = {
            "message": _short(self.message),
            "type": self.kind,
            "param": self.param and _short(self.param),
        }
        return {"error": told | {"code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class RefusedQuestion(GraphRagError):
    """A question that the service does not answer, or not now."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def invalid(message: str, param: str | None = None) -> RefusedQuestion:
    return RefusedQuestion(Fault(400, INVALID, "invalid_request", message, param))


def failed_by_bug(question: str = "") -> RefusedQuestion:
    """question: the id by which the log names it."""
    named = f", under question={question}" if question else ""
    message = f"the service failed at this question: its log says how{named}"
    return RefusedQuestion(Fault(500, SERVER, "internal_error", message))


def too_large(most: int) -> Fault:
    message = f"the request's body is too large: {most:,} bytes are allowed"
    return Fault(413, INVALID, "request_too_large", message)


_KNOWN: tuple[tuple[type[GraphRagError], int, str, str], ...] = (
    (LevelNotFound, 404, INVALID, "level_not_found"),
    (IndexNotFound, 503, SERVER, "no_snapshot"),
    (UsageError, 400, INVALID, "invalid_request"),
    (BudgetSpent, 400, INVALID, "budget_exceeded"),
    (ModelRefused, 503, SERVER, "model_refused"),
    (SnapshotRemoved, 503, SERVER, "snapshot_removed"),
    (StoreError, 503, SERVER, "index_unreadable"),
    (GraphRagError, 503, SERVER, "not_answered"),
)


def fault_of(error: BaseException) -> Fault:
    """What to tell of an error. Of one that is a bug, nothing: its text may hold anything."""
    if isinstance(error, RefusedQuestion):
        return error.fault
    for known, status, kind, code in _KNOWN:
        if isinstance(error, known):
            again = 1 if known is SnapshotRemoved else None
            return Fault(status, kind, code, str(error), retry_after_s=again)
    return failed_by_bug().fault
