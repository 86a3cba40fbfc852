"""Markdown on a terminal, rendered while it is written."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, Self

from markdown_it import MarkdownIt
from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import SegmentLines
from rich.text import Text

from graphrag_ray.base.wording import safe

LONGEST = 40_000
"""Characters; a longer text is no answer, might take seconds, and is shown as it is."""
SEEN = 4_000
"""Characters of the text that is being written which are drawn."""
DRAWN_PER_S = 8

# Without HTML: what stands in angle brackets is text, and is shown.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}  # all at the left


class _Markdown(Markdown):
    """Addresses of links are shown."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


class _Pending(Live):
    """Drawn anew only where something came: a terminal is not kept busy while a model thinks."""

    came = True

    def refresh(self) -> None:
        if self.came:
            self.came = False
            super().refresh()


class RenderedText:
    """Markdown that is written on a terminal piece by piece: its end is drawn while it is written, and all of
    it is printed when it has ended.

    pending   False where nothing is shown before that
    """

    def __init__(self, console: Console, pending: bool = True) -> None:
        self._console, self._pieces = console, list[str]()
        self._live = _Pending(
            console=console, get_renderable=self._tail, refresh_per_second=DRAWN_PER_S, transient=True
        )
        self._pending = pending

    def add(self, piece: str) -> None:
        self._pieces.append(safe(piece))
        self._live.came = True

    def say(self, note: str) -> None:
        """What belongs to no text: it ends the one that is being written."""
        self.end()
        self._console.print(Text(f"\n{note.strip()}\n", style="dim"))

    def end(self) -> None:
        """The text has ended."""
        text, self._pieces = "".join(self._pieces), []
        if self._live.is_started:  # else it would stand below what is printed, too
            self._live.came = True
            self._live.refresh()
        if text.strip():
            self._console.print(self._lines(text))

    def _lines(self, text: str, last: int = 0) -> SegmentLines:
        """The last lines of a text, all with 0, without blank ones around them and blanks at their ends."""
        rendered = _Markdown(text) if len(text) <= LONGEST else Text(text)
        lines = self._console.render_lines(rendered, pad=False)
        for line in lines:
            while line and not line[-1].text.strip() and not (line[-1].style and line[-1].style.bgcolor):
                line.pop()
        full = [i for i, line in enumerate(lines) if "".join(s.text for s in line).strip()]
        return SegmentLines(lines[full[0] : full[-1] + 1][-last:] if full else [], new_lines=True)

    def _tail(self) -> SegmentLines:
        """As much as the terminal has room for."""
        return self._lines("".join(self._pieces)[-SEEN:], max(1, self._console.height - 3))

    def __enter__(self) -> Self:
        if self._pending:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self.end()
