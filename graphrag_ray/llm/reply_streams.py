"""A reply that comes piece by piece, put together to what would have come at once. Pure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from graphrag_ray.base.errors import TransientCallError
from graphrag_ray.base.messages import whole
from graphrag_ray.llm.call_failures import HttpRefusal, Unanswered, failure_of


class Events:
    """Server-sent events out of bytes as they come. Linear, however the bytes are cut."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []

    def add(self, received: bytes) -> Iterator[bytes]:
        """The data of each event that is complete now."""
        lines = received.splitlines(keepends=True)
        for i, line in enumerate(lines):
            self._line.append(line)
            if i < len(lines) - 1 or line.endswith((b"\n", b"\r")):
                yield from self._ended(b"".join(self._line).rstrip(b"\r\n"))
                self._line = []

    def end(self) -> Iterator[bytes]:
        """The data of an event that nothing closes."""
        yield from self._ended(b"".join(self._line))
        yield from self._ended(b"")

    def _ended(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            yield data


async def events_of(received: AsyncIterator[bytes], where: str) -> AsyncIterator[object]:
    """The events of a chat reply, up to its end. Raises the CallError of one that says what went wrong, and
    TransientCallError for one that is not JSON."""
    events = Events()

    async def data() -> AsyncIterator[bytes]:
        async for some in received:
            for one in events.add(some):
                yield one
        for one in events.end():
            yield one

    async for one in data():
        if one.startswith(b"[DONE]"):
            return
        try:
            event = json.loads(one)
        except (ValueError, RecursionError):
            raise TransientCallError(f"{where} sent an event that is not JSON") from None
        if isinstance(event, dict) and (error := event.get("error")) and not event.get("choices"):
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            raise failure_of(HttpRefusal.read(status, event), where)
        yield event


class Pieces:
    """What the events of a streamed chat reply said so far."""

    def __init__(self, where: str) -> None:
        """where: the endpoint, as it may be shown."""
        self._where = where
        self._texts: list[str] = []
        self._half = ""
        self._finish_reason: str | None = None
        self._refusals: list[str] = []
        self._thought = False
        self._usage: Any = None

    @property
    def text(self) -> str:
        """Of the reply."""
        return "".join(self._texts)

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
            self._refusals.append("" + (delta.get("refusal") or ""))
            self._thought = self._thought or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            piece = self._whole(delta.get("content") or "")
            self._texts.append(piece)
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
        message = {
            "content": self.text,
            "refusal": "".join(self._refusals) or None,
            "reasoning": self._thought or None,
        }
        return {
            "choices": [{"message": message, "finish_reason": self._finish_reason}],
            "usage": self._usage,
        }
