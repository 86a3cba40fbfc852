"""Models that think: which of them do, by their names, and the thoughts that they write before a reply, or
within it. Pure.

`spoken` takes thoughts off a whole reply, `Speech` off one that comes in pieces. Both are linear.
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
"""The closing tag of each opening one, in lower case; models write them in any."""


def _one_of(tags: Iterable[str]) -> str:
    return "|".join(map(re.escape, tags))


_OPEN, _CLOSE = _one_of(_CLOSING), _one_of(_CLOSING.values())
_OPENED = re.compile(rf"\s*({_OPEN})", re.IGNORECASE)
_CLOSED = {tag: re.compile(re.escape(closing), re.IGNORECASE) for tag, closing in _CLOSING.items()}
_ANY_CLOSED = re.compile(_CLOSE, re.IGNORECASE)
# A text may speak of tags: within it they count only at the start of a line, closing ones also at its end.
_OPENED_WITHIN = re.compile(rf"^[ \t]*({_OPEN})", re.IGNORECASE | re.MULTILINE)
_CLOSED_WITHIN = re.compile(rf"^[ \t]*(?:{_CLOSE})|(?:{_CLOSE})[ \t]*$", re.IGNORECASE | re.MULTILINE)
# Between a sentence and the next word, without a space: a text that speaks of a tag rarely puts it so.
_CLOSED_AMID = re.compile(rf"(?<=[\w.,:;!?…])(?:{_CLOSE})(?=[\w*#\[-])", re.IGNORECASE)
_ANY_OPENED = re.compile(_OPEN, re.IGNORECASE)
_LONGEST = max(map(len, [*_CLOSING, *_CLOSING.values()]))


def spoken(text: str) -> str:
    """A reply without its thoughts; the same text where it has none.

    Thoughts stand between tags at the start of the reply or of a line. Those at the start may lack the
    opening tag, which some chat templates hold. Thoughts without a closing tag were cut off: they reach to
    the end. What stands in code is text.
    """
    if not _ANY_OPENED.search(text) and not _ANY_CLOSED.search(text):  # as nearly always
        return text
    begun = _after_thoughts(text)
    if begun < 0:
        return ""
    begun = begun or _after_unopened(text)
    kept: list[str] = []
    at, ticks = begun, 0
    while opened := _OPENED_WITHIN.search(text, at):
        ticks += text.count("`", at, opened.start())
        at = opened.end()
        if ticks % 2 == 0:
            closed = _CLOSED[opened[1].lower()].search(text, at)
            kept.append(text[begun : opened.start()])
            begun = at = closed.end() if closed else len(text)
    return "".join([*kept, text[begun:]]).lstrip() if begun else text


def is_open_from_the_start(reply: str) -> bool:
    """Whether a reply surely begins with thoughts without their opening tag."""
    return not _OPENED.match(reply) and bool(_closed_at_an_edge(reply))


def _after_unopened(text: str) -> int:
    """Where thoughts end that the text begins with and no tag opened; 0 where there are none."""
    edge = _closed_at_an_edge(text)
    amid = _CLOSED_AMID.search(text, 0, edge or len(text))
    if amid and not _ANY_OPENED.search(text, 0, amid.start()) and not _is_code(text, amid.start()):
        return amid.end()
    return edge


def _closed_at_an_edge(text: str) -> int:
    """The end of the first closing tag, where it begins or ends a line and nothing opened it; else 0."""
    closed = _CLOSED_WITHIN.search(text)
    if closed is None or _OPENED_WITHIN.search(text, 0, closed.start()) or _is_code(text, closed.start()):
        return 0
    return closed.end()


def _is_code(text: str, place: int) -> bool:
    return text.count("`", 0, place) % 2 == 1


def _after_thoughts(text: str) -> int:
    """Where a reply goes on after the thoughts that it begins with; -1: they never end."""
    at = 0
    while opened := _OPENED.match(text, at):
        closed = _CLOSED[opened[1].lower()].search(text, opened.end())
        if closed is None:
            return -1
        at = closed.end()
    return at


class Speech:
    """Takes the pieces of a reply and gives those that are no thoughts, as far as one knows while it is
    written: thoughts that it begins with are held back. What else is none of the text is known at its end."""

    def __init__(self, opened: bool = False) -> None:
        """opened: the reply is taken to begin inside thoughts; where it does not, nothing is given."""
        self._ends: re.Pattern[str] | None = _ANY_CLOSED if opened else None
        self._held = ""
        self._speaks = False

    def add(self, piece: str) -> str:
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


THOUGHT_TOKENS = 8_192
"""Room for the thoughts before a reply, where the settings name none. Thoughts count as output."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose names match a pattern.

    thinks   they write thoughts before a reply, which count against its limit
    opened   their chat templates hold the opening tag of the thoughts: a reply begins inside them
    refuses  parameters that are not sent to them
    """

    pattern: str = ""
    thinks: bool = False
    opened: bool = False
    refuses: frozenset[str] = frozenset()


_OPENAI = frozenset(("max_tokens", "temperature", "logit_bias"))

FAMILIES = (
    Family(r"gpt-5(?!.*chat)|o\d(-|$)|codex-", thinks=True, refuses=_OPENAI),
    Family(r"deepseek-r1|qwq|qwen3.*thinking", thinks=True, opened=True),
    Family(r"qwen3(?!.*(instruct|coder|embed|rerank))", thinks=True),
    Family(
        r"gpt-oss|deepseek-reasoner|magistral|grok-(4|3-mini)|minimax-m\d|glm-(4\.[5-9]|[5-9])", thinks=True
    ),
    Family(r"gemini-(2\.5|[3-9])", thinks=True),
    Family(r".*[-_](thinking|reasoning|reasoner)\b", thinks=True),
)
"""The first that matches counts."""


@lru_cache(maxsize=256)
def family_of(*names: str) -> Family:
    """The family of a model that is known by these names, with or without an organisation in front."""
    for name in names:
        plain = name.lower().rsplit("/", 1)[-1]
        for family in FAMILIES:
            if re.match(family.pattern, plain):
                return family
    return Family()
