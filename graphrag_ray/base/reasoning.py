"""Reasoning models: known model families, and removal of reasoning ("thoughts") from replies.

`spoken` removes reasoning from a complete reply, `ReasoningFilter` from a streamed one. Both take linear
time.
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
"""The closing tag of each opening tag, in lower case. Models write them in any case."""


def _one_of(tags: Iterable[str]) -> str:
    return "|".join(map(re.escape, tags))


_OPEN, _CLOSE = _one_of(_CLOSING), _one_of(_CLOSING.values())
_OPENED = re.compile(rf"\s*({_OPEN})", re.IGNORECASE)
_CLOSED = {tag: re.compile(re.escape(closing), re.IGNORECASE) for tag, closing in _CLOSING.items()}
_ANY_CLOSED = re.compile(_CLOSE, re.IGNORECASE)
# A text may mention tags: inside it, they count only at the start of a line, closing ones also at its end.
_OPENED_WITHIN = re.compile(rf"^[ \t]*({_OPEN})", re.IGNORECASE | re.MULTILINE)
_CLOSED_WITHIN = re.compile(rf"^[ \t]*(?:{_CLOSE})|(?:{_CLOSE})[ \t]*$", re.IGNORECASE | re.MULTILINE)
# Between a sentence and the next word without a space, where a text hardly ever mentions a tag.
_CLOSED_AMID = re.compile(rf"(?<=[\w.,:;!?…])(?:{_CLOSE})(?=[\w*#\[-])", re.IGNORECASE)
_ANY_OPENED = re.compile(_OPEN, re.IGNORECASE)
_LONGEST = max(map(len, [*_CLOSING, *_CLOSING.values()]))


def strip_reasoning(text: str) -> str:
    """Remove reasoning from a reply.

    Reasoning is enclosed in tags at the start of the reply or of a line. At the start of the reply, the
    opening tag may be missing, since some chat templates contain it. Reasoning without a closing tag was
    truncated and extends to the end. Tags in code are text.
    """
    if not _ANY_OPENED.search(text) and not _ANY_CLOSED.search(text):  # the usual case
        return text
    start = _after_thoughts(text)
    if start < 0:
        return ""
    start = start or _after_unopened(text)
    kept: list[str] = []
    position, ticks = start, 0
    while opened := _OPENED_WITHIN.search(text, position):
        ticks += text.count("`", position, opened.start())
        position = opened.end()
        if ticks % 2 == 0:
            closed = _CLOSED[opened[1].lower()].search(text, position)
            kept.append(text[start : opened.start()])
            start = position = closed.end() if closed else len(text)
    return "".join([*kept, text[start:]]).lstrip() if start else text


def starts_inside_reasoning(reply: str) -> bool:
    """Whether a reply certainly begins with reasoning whose opening tag is missing."""
    return not _OPENED.match(reply) and bool(_closed_at_an_edge(reply))


def _after_unopened(text: str) -> int:
    """The end of reasoning at the start of the text whose opening tag is missing; 0 if there is none."""
    edge = _closed_at_an_edge(text)
    amid = _CLOSED_AMID.search(text, 0, edge or len(text))
    if amid and not _ANY_OPENED.search(text, 0, amid.start()) and not _is_code(text, amid.start()):
        return amid.end()
    return edge


def _closed_at_an_edge(text: str) -> int:
    """The end of the first closing tag, if it begins or ends a line and was not opened; else 0."""
    closed = _CLOSED_WITHIN.search(text)
    if closed is None or _OPENED_WITHIN.search(text, 0, closed.start()) or _is_code(text, closed.start()):
        return 0
    return closed.end()


def _is_code(text: str, place: int) -> bool:
    return text.count("`", 0, place) % 2 == 1


def _after_thoughts(text: str) -> int:
    """The end of the reasoning that the reply begins with; -1 if it is never closed."""
    end = 0
    while opened := _OPENED.match(text, end):
        closed = _CLOSED[opened[1].lower()].search(text, opened.end())
        if closed is None:
            return -1
        end = closed.end()
    return end


class ReasoningFilter:
    """Removes the reasoning that a streamed reply begins with.

    Reasoning further inside is only removed from the complete reply. With `opened`, the reply is taken to
    begin inside reasoning; if it does not, nothing is returned.
    """

    def __init__(self, opened: bool = False) -> None:
        self._ends: re.Pattern[str] | None = _ANY_CLOSED if opened else None
        self._held = ""
        self._speaks = False

    def add(self, piece: str) -> str:
        """Add a piece of the reply and return the text that can be shown."""
        if self._speaks:
            return piece
        self._held += piece
        while True:
            if self._ends is not None:
                closed = self._ends.search(self._held)
                if closed is None:
                    self._held = self._held[-_LONGEST:]
                    return ""
                self._ends, self._held = None, self._held[closed.end() :]
            self._held = self._held.lstrip()
            opened = _OPENED.match(self._held)
            if opened is None:
                break
            self._ends, self._held = _CLOSED[opened[1].lower()], self._held[opened.end() :]
        if any(tag.startswith(self._held.lower()) for tag in _CLOSING):
            return ""
        self._speaks = True
        return self._held


DEFAULT_REASONING_TOKENS = 8_192
"""Default number of tokens reserved for reasoning, which counts as output."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Models whose names match a pattern.

    Attributes:
        is_reasoning: They write reasoning before a reply, which counts against its limit.
        starts_inside_reasoning: Their chat templates contain the opening tag, so a reply begins inside
            reasoning.
        unsupported_parameters: Parameters that are not sent to them.
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
"""The first match counts."""


@lru_cache(maxsize=256)
def family_of(*names: str) -> ModelFamily:
    """The family of a model with these names, with or without an organisation prefix."""
    for name in names:
        plain = name.lower().rsplit("/", 1)[-1]
        for family in FAMILIES:
            if re.match(family.pattern, plain):
                return family
    return ModelFamily()
