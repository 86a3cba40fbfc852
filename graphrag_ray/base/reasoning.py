"""Reasoning models: known model families, and removal of reasoning from replies.

`strip_reasoning` handles complete replies, `ReasoningFilter` streamed ones. Both take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_CLOSING = {
    **{f"<{word}>": f"</{word}>" for word in ("think", "thinking", "thought", "reasoning", "seed:think")},
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    "<|start_thinking|>": "<|end_thinking|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
}
"""The closing tag of each opening tag, in lower case. Matching is case-insensitive."""


def _one_of(tags: Iterable[str]) -> str:
    return "|".join(map(re.escape, tags))


_OPEN, _CLOSE = _one_of(_CLOSING), _one_of(_CLOSING.values())
_OPENED = re.compile(rf"\s*({_OPEN})", re.IGNORECASE)
_CLOSED = {tag: re.compile(re.escape(closing), re.IGNORECASE) for tag, closing in _CLOSING.items()}
_ANY_CLOSED = re.compile(_CLOSE, re.IGNORECASE)
# Text may mention tags. Later opening tags only count at the start of a line, closing tags also at its end.
_OPENED_AT_LINE_START = re.compile(rf"^[ \t]*({_OPEN})", re.IGNORECASE | re.MULTILINE)
_CLOSED_AT_LINE_EDGE = re.compile(rf"^[ \t]*(?:{_CLOSE})|(?:{_CLOSE})[ \t]*$", re.IGNORECASE | re.MULTILINE)
# A closing tag between two words without spaces (`done.</think>The`) counts too. Prose rarely does this.
_CLOSED_MID_LINE = re.compile(rf"(?<=[\w.,:;!?…])(?:{_CLOSE})(?=[\w*#\[-])", re.IGNORECASE)
_ANY_OPENED = re.compile(_OPEN, re.IGNORECASE)
_MAX_TAG_CHARS = max(map(len, [*_CLOSING, *_CLOSING.values()]))


def strip_reasoning(text: str) -> str:
    """Remove reasoning from a reply.

    Reasoning is enclosed in tags at the start of the reply or of a line. At the start of the reply, the
    opening tag may be missing, because some chat templates contain it. Reasoning without a closing tag was
    truncated and extends to the end. Tags inside backticks are left alone.
    """
    if not _ANY_OPENED.search(text) and not _ANY_CLOSED.search(text):
        return text
    start = _end_of_leading_reasoning(text)
    if start < 0:
        return ""
    start = start or _end_of_unopened_reasoning(text)
    pieces: list[str] = []
    position, ticks = start, 0
    while opened := _OPENED_AT_LINE_START.search(text, position):
        ticks += text.count("`", position, opened.start())
        position = opened.end()
        if ticks % 2 == 0:
            closed = _CLOSED[opened[1].lower()].search(text, position)
            pieces.append(text[start : opened.start()])
            start = position = closed.end() if closed else len(text)
    return "".join([*pieces, text[start:]]).lstrip() if start else text


def starts_inside_reasoning(reply: str) -> bool:
    """Whether a reply begins with reasoning whose opening tag is missing."""
    return not _OPENED.match(reply) and bool(_end_at_line_edge(reply))


def _end_of_unopened_reasoning(text: str) -> int:
    """Return the end of reasoning without an opening tag at the start of the text, or 0 if there is none."""
    end = _end_at_line_edge(text)
    closed = _CLOSED_MID_LINE.search(text, 0, end or len(text))
    if closed and not _ANY_OPENED.search(text, 0, closed.start()) and not _is_code(text, closed.start()):
        return closed.end()
    return end


def _end_at_line_edge(text: str) -> int:
    """Return the end of the first closing tag, or 0 if it is inside a line or belongs to an opening tag."""
    closed = _CLOSED_AT_LINE_EDGE.search(text)
    if (
        closed is None
        or _OPENED_AT_LINE_START.search(text, 0, closed.start())
        or _is_code(text, closed.start())
    ):
        return 0
    return closed.end()


def _is_code(text: str, position: int) -> bool:
    return text.count("`", 0, position) % 2 == 1


def _end_of_leading_reasoning(text: str) -> int:
    """Return the end of the reasoning that the reply begins with, or -1 if it is never closed."""
    end = 0
    while opened := _OPENED.match(text, end):
        closed = _CLOSED[opened[1].lower()].search(text, opened.end())
        if closed is None:
            return -1
        end = closed.end()
    return end


class ReasoningFilter:
    """Removes the reasoning that a streamed reply begins with.

    Later reasoning is removed only once the reply is complete. With `opened`, the reply is assumed to begin
    inside reasoning, so nothing is returned until a closing tag arrives.
    """

    def __init__(self, opened: bool = False) -> None:
        self._closing_tag: re.Pattern[str] | None = _ANY_CLOSED if opened else None
        self._buffer = ""
        self._emitting = False

    def add(self, piece: str) -> str:
        """Add a piece of the reply and return the text that is ready to print."""
        if self._emitting:
            return piece
        self._buffer += piece
        while True:
            if self._closing_tag is not None:
                closed = self._closing_tag.search(self._buffer)
                if closed is None:
                    self._buffer = self._buffer[-_MAX_TAG_CHARS:]
                    return ""
                self._closing_tag, self._buffer = None, self._buffer[closed.end() :]
            self._buffer = self._buffer.lstrip()
            opened = _OPENED.match(self._buffer)
            if opened is None:
                break
            self._closing_tag, self._buffer = _CLOSED[opened[1].lower()], self._buffer[opened.end() :]
        if any(tag.startswith(self._buffer.lower()) for tag in _CLOSING):
            return ""
        self._emitting = True
        return self._buffer


DEFAULT_REASONING_TOKENS = 8_192
"""Default number of tokens reserved for reasoning. Endpoints count them as output."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Models whose names match a pattern.

    Attributes:
        is_reasoning: Whether they write reasoning before a reply. It counts towards the output limit.
        starts_inside_reasoning: Whether a reply begins inside reasoning, because the chat template contains
            the opening tag.
        unsupported_parameters: Parameters that they reject, so that we do not send them.
    """

    pattern: str = ""
    is_reasoning: bool = False
    starts_inside_reasoning: bool = False
    unsupported_parameters: frozenset[str] = frozenset()


_OPENAI = frozenset(("max_tokens", "temperature", "logit_bias"))

FAMILIES = (
    ModelFamily(r"gpt-5(?!.*chat)|o\d(-|$)|codex-", is_reasoning=True, unsupported_parameters=_OPENAI),
    ModelFamily(r"deepseek-r1|qwq|qwen3.*thinking", is_reasoning=True, starts_inside_reasoning=True),
    ModelFamily(r"qwen3(?!.*(instruct|coder|embed|rerank))", is_reasoning=True),
    ModelFamily(
        r"gpt-oss|deepseek-reasoner|magistral|grok-(4|3-mini)|minimax-m\d|glm-(4\.[5-9]|[5-9])",
        is_reasoning=True,
    ),
    ModelFamily(r"gemini-(2\.5|[3-9])", is_reasoning=True),
    ModelFamily(r".*[-_](thinking|reasoning|reasoner)\b", is_reasoning=True),
)
"""The first match wins."""


@lru_cache(maxsize=256)
def find_model_family(*names: str) -> ModelFamily:
    """Return the family of a model. Its names may have an organisation prefix."""
    for name in names:
        plain = name.lower().rsplit("/", 1)[-1]
        for family in FAMILIES:
            if re.match(family.pattern, plain):
                return family
    return ModelFamily()
