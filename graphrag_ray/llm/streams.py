"""A reply that comes piece by piece, put together to what would have come at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphrag_ray.errors import TransientCallError
from graphrag_ray.llm.failures import Unanswered
from graphrag_ray.messages import whole


class Pieces:
    """What the events of a streamed chat reply said so far. text: of the reply."""

    def __init__(self, where: str) -> None:
        """where: the endpoint, as it may be shown."""
        self.text = ""
        self._where = where
        self._half = ""
        self._finish_reason: str | None = None
        self._refusal = ""
        self._usage: Any = None

    def add(self, event: object) -> str:
        """The piece of text that an event brings, "" for others. Raises TransientCallError for what is no
        event of a chat reply."""
        try:
            assert isinstance(event, Mapping)
            self._usage = event.get("usage") or self._usage
            choices = event.get("choices") or []
            if not choices:
                return ""
            self._finish_reason = choices[0].get("finish_reason") or self._finish_reason
            delta = choices[0].get("delta") or {}
            self._refusal += delta.get("refusal") or ""
            piece = self._whole(delta.get("content") or "")
            self.text += piece
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError):
            raise TransientCallError(
                f"{self._where} sent an event without a message: {str(event)[:200]}"
            ) from None
        return piece

    def _whole(self, piece: str) -> str:
        """The piece, with half a character of the one before; what it ends with in half is held back."""
        piece = self._half + piece
        self._half = piece[-1] if piece and "\ud800" <= piece[-1] <= "\udbff" else ""
        return whole(piece.removesuffix(self._half))

    def body(self) -> dict[str, Any]:
        """The body of the whole reply. Raises Unanswered where its end is missing: what there is may
        be half of it."""
        if self._finish_reason is None:
            raise Unanswered(f"{self._where} ended a reply before its end")
        message = {"content": self.text, "refusal": self._refusal or None}
        return {
            "choices": [{"message": message, "finish_reason": self._finish_reason}],
            "usage": self._usage,
        }
