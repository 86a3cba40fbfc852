"""Markdown on a terminal, block by block: an answer is rendered while it is written, and each block once.

What stands before a blank line will not change any more. It is printed for good; only the block that is being
written is drawn again and again, and only its end.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import ClassVar, Self

from markdown_it import MarkdownIt
from rich.console import Console, JustifyMethod, RenderableType
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment, SegmentLines
from rich.text import Text

from graphrag_ray.base.wording import safe

LONGEST = 20_000
"""Characters of a block; a longer one is no prose, and is shown as it is."""
SEEN = 4_000
"""Characters of the block that is being written which are drawn."""
DRAWN_PER_S = 8

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# Without HTML: what stands in angle brackets is text, and is shown.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class Blocks:
    """Cuts a text that comes in pieces where a block of Markdown ends: at blank lines, but not within a
    fence, nor before an indented line, which goes on with a list. The blocks are the text, whatever its
    pieces."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self._fence = ""
        self._blank = False

    @property
    def tail(self) -> str:
        """What has come of the block that is being written."""
        return "".join((*self._lines, *self._pieces))

    def add(self, piece: str) -> list[str]:
        """The blocks that end with it."""
        ended = []
        *lines, rest = piece.split("\n")
        for end_of_line in lines:
            line = "".join((*self._pieces, end_of_line, "\n"))
            self._pieces = []
            if not line.strip():
                self._blank = not self._fence and bool(self._lines)
            elif self._blank:
                self._blank = False
                if not line.startswith(("  ", "\t")):
                    ended.append("".join(self._lines))
                    self._lines = []
            fence = _FENCE.match(line)
            if fence and not self._fence:
                self._fence = fence.group(1)
            elif fence and line.strip().startswith(self._fence) and not line.strip(f" \n{self._fence[0]}"):
                self._fence = ""
            self._lines.append(line)
        self._pieces.append(rest)
        return ended

    def end(self) -> list[str]:
        """What is left, if anything."""
        left = self.tail
        self._lines, self._pieces, self._fence, self._blank = [], [], "", False
        return [left] if left.strip() else []


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}  # all at the left


class _Markdown(Markdown):
    """Addresses of links are shown."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


def _rendered(text: str) -> Markdown | Text:
    return _Markdown(text) if len(text) <= LONGEST else Text(text)


class RenderedText:
    """Markdown that is written on a terminal piece by piece.

    pending   False where the block that is being written is not shown before it ends
    """

    def __init__(self, console: Console, pending: bool = True) -> None:
        self._console, self._blocks, self._printed = console, Blocks(), False
        self._live = (
            Live(console=console, get_renderable=self._tail, refresh_per_second=DRAWN_PER_S, transient=True)
            if pending
            else None
        )

    def add(self, piece: str) -> None:
        for block in self._blocks.add(safe(piece)):
            self._print(SegmentLines(self._lines(block), new_lines=True))

    def say(self, note: str) -> None:
        """What belongs to no text: it ends the block that is being written."""
        self.end()
        self._print(Text(note.strip(), style="dim"))

    def end(self) -> None:
        """The text has ended."""
        for block in self._blocks.end():
            self._print(SegmentLines(self._lines(block), new_lines=True))

    def _print(self, block: RenderableType) -> None:
        if self._printed:
            self._console.print()
        self._printed = True
        self._console.print(block)

    def _lines(self, text: str) -> list[list[Segment]]:
        """The lines of a block without the blank ones around it, and without blanks at their ends."""
        lines = self._console.render_lines(_rendered(text), pad=False)
        for line in lines:
            while line and not line[-1].text.strip() and not (line[-1].style and line[-1].style.bgcolor):
                line.pop()
        full = [i for i, line in enumerate(lines) if "".join(s.text for s in line).strip()]
        return lines[full[0] : full[-1] + 1] if full else []

    def _tail(self) -> RenderableType:
        """The last lines of the block that is being written, as many as the terminal has room for."""
        lines = self._lines(self._blocks.tail[-SEEN:])
        above: list[list[Segment]] = [[]] if lines and self._printed else []
        return SegmentLines([*above, *lines[-max(1, self._console.height - 3) :]], new_lines=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._live:
            self._live.stop()
