"""Texts of documents and models on a terminal: what would steer it, or turn its lines around, is shown as
an escape instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed (C1 too, which some terminals obey in UTF-8), line and paragraph
separators, and what overrides the direction of text."""


def safe(text: str) -> str:
    """The text with what would steer a terminal as `\\x1b` or `\\u202e`."""
    return _STEERING.sub(lambda m: ascii(m.group())[1:-1], text.replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """JSON whose strings hold no such character as it is."""
    return _STEERING.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def one_line(text: str, longest: int | None = None) -> str:
    """All white space folded; cut with an ellipsis where it is longer."""
    folded = " ".join(text.split())
    return folded if longest is None or len(folded) <= longest else folded[: longest - 1] + "…"


class SafeConsole(Console):
    """Prints no control character but those of its own styles, whatever it is given to print. On a terminal a
    line is broken between words, and goes on below its own beginning; elsewhere it is never broken."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        if soft_wrap is None and all(isinstance(o, str | Text) for o in objects):
            soft_wrap = not self.is_terminal
        if not soft_wrap:
            objects = tuple(_indented(o) if isinstance(o, str) else o for o in objects)
        super().print(*objects, soft_wrap=soft_wrap, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        """What is given as a string is measured as it is shown."""
        return super().render_str(safe(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        return _safe_segments(super().render(renderable, options))


def _safe_segments(segments: Iterable[Segment]) -> Iterator[Segment]:
    for segment in segments:
        if segment.control or not _STEERING.search(segment.text):
            yield segment
        else:
            yield Segment(safe(segment.text), segment.style)


def _indented(line: str) -> RenderableType:
    """The lines that it is broken into begin where it does."""
    text = safe(line).lstrip(" ")
    indent = len(line) - len(line.lstrip(" "))
    return Padding(Text(text), (0, 0, 0, indent), expand=False) if indent and "\n" not in text else line
