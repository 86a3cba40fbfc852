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

MAX_RENDERED = 40_000
"""Maximum length of rendered text in characters. Longer text would take seconds, so it is printed as is."""
MAX_DRAWN = 4_000
"""Maximum number of characters of streamed text to draw, counted from its end."""
REDRAWS_PER_S = 8

# HTML is disabled so that text in angle brackets is displayed.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}  # Left-align all headings.


class _Markdown(Markdown):
    """Markdown with visible link addresses."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


class _Pending(Live):
    """Redraws only after a change, so that the terminal is idle while a model reasons."""

    changed = True

    def refresh(self) -> None:
        if self.changed:
            self.changed = False
            super().refresh()


class MarkdownStream:
    """Renders Markdown on a terminal: draws the last lines while text arrives, and prints it all at the end.

    With `pending=False`, nothing is drawn before the end.
    """

    def __init__(self, console: Console, pending: bool = True) -> None:
        self._console, self._pieces = console, list[str]()
        self._live = _Pending(
            console=console, get_renderable=self._tail, refresh_per_second=REDRAWS_PER_S, transient=True
        )
        self._pending = pending

    def add(self, piece: str) -> None:
        self._pieces.append(escape_control(piece))
        self._live.changed = True

    def add_note(self, note: str) -> None:
        """End the text and print a note."""
        self.end()
        self._console.print(Text(f"\n{note.strip()}\n", style="dim"))

    def end(self) -> None:
        """Print the complete text."""
        text, self._pieces = "".join(self._pieces), []
        if self._live.is_started:  # Clear the drawn lines.
            self._live.changed = True
            self._live.refresh()
        if text.strip():
            self._console.print(self._lines(text))

    def _lines(self, text: str, last: int = 0) -> SegmentLines:
        """Render the last lines (0: all) without surrounding blank lines and trailing spaces."""
        rendered = _Markdown(text) if len(text) <= MAX_RENDERED else Text(text)
        lines = self._console.render_lines(rendered, pad=False)
        for line in lines:
            while line and not line[-1].text.strip() and not (line[-1].style and line[-1].style.bgcolor):
                line.pop()
        full = [i for i, line in enumerate(lines) if "".join(s.text for s in line).strip()]
        return SegmentLines(lines[full[0] : full[-1] + 1][-last:] if full else [], new_lines=True)

    def _tail(self) -> SegmentLines:
        """Render as many of the last lines as fit on the terminal."""
        return self._lines("".join(self._pieces)[-MAX_DRAWN:], max(1, self._console.height - 3))

    def __enter__(self) -> Self:
        if self._pending:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()
        self.end()
