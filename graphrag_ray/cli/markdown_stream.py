"""Render Markdown on a terminal while it is streamed."""

from __future__ import annotations

from typing import ClassVar, Self

from markdown_it import MarkdownIt
from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import SegmentLines
from rich.text import Text

from graphrag_ray.base.wording import escape_control

LONGEST = 40_000
"""Characters of a text that is rendered. Longer texts would take seconds, and are printed as they are."""
SEEN = 4_000
"""Characters at the end of a streamed text that are drawn."""
DRAWN_PER_S = 8

# Without HTML: text in angle brackets is shown.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}  # all left-aligned


class _Markdown(Markdown):
    """Markdown with visible link addresses."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


class _Pending(Live):
    """Redraws only after a change, to leave the terminal alone while a model reasons."""

    changed = True

    def refresh(self) -> None:
        if self.changed:
            self.changed = False
            super().refresh()


class MarkdownStream:
    """Streamed Markdown on a terminal: its end is drawn while it arrives, and all of it is printed at the
    end.

    With `pending` False, nothing is shown before the end.
    """

    def __init__(self, console: Console, pending: bool = True) -> None:
        self._console, self._pieces = console, list[str]()
        self._live = _Pending(
            console=console, get_renderable=self._tail, refresh_per_second=DRAWN_PER_S, transient=True
        )
        self._pending = pending

    def add(self, piece: str) -> None:
        self._pieces.append(escape_control(piece))
        self._live.changed = True

    def say(self, note: str) -> None:
        """End the text and print a note."""
        self.end()
        self._console.print(Text(f"\n{note.strip()}\n", style="dim"))

    def end(self) -> None:
        """Print the complete text."""
        text, self._pieces = "".join(self._pieces), []
        if self._live.is_started:  # Clear the drawn end of the text.
            self._live.changed = True
            self._live.refresh()
        if text.strip():
            self._console.print(self._lines(text))

    def _lines(self, text: str, last: int = 0) -> SegmentLines:
        """The last lines of a text (0: all), without surrounding blank lines and trailing blanks."""
        rendered = _Markdown(text) if len(text) <= LONGEST else Text(text)
        lines = self._console.render_lines(rendered, pad=False)
        for line in lines:
            while line and not line[-1].text.strip() and not (line[-1].style and line[-1].style.bgcolor):
                line.pop()
        full = [i for i, line in enumerate(lines) if "".join(s.text for s in line).strip()]
        return SegmentLines(lines[full[0] : full[-1] + 1][-last:] if full else [], new_lines=True)

    def _tail(self) -> SegmentLines:
        """As much as fits the terminal."""
        return self._lines("".join(self._pieces)[-SEEN:], max(1, self._console.height - 3))

    def __enter__(self) -> Self:
        if self._pending:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()
        self.end()
