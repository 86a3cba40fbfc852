"""Markdown on a terminal, block by block: an answer is rendered while it is written, and each block once.

What stands before a blank line will not change any more. It is printed for good; only the block that is being
written is drawn again and again, and only its end.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
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
    pieces.

    tail      what has come of the block that is being written
    written   characters that have come
    """

    def __init__(self) -> None:
        self.written = 0
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self._fence = ""
        self._blank = False

    @property
    def tail(self) -> str:
        return "".join((*self._lines, *self._pieces))

    def add(self, piece: str) -> list[str]:
        """The blocks that end with it."""
        ended = []
        self.written += len(piece)
        *lines, rest = piece.split("\n")
        for line in lines:
            ended += self._line("".join((*self._pieces, line, "\n")))
            self._pieces = []
        self._pieces.append(rest)
        return ended

    def end(self) -> list[str]:
        """What is left, if anything."""
        left = self.tail
        self._lines, self._pieces, self._fence, self._blank = [], [], "", False
        return [left] if left.strip() else []

    def _line(self, line: str) -> list[str]:
        ended = []
        if not line.strip():
            self._blank = not self._fence and bool(self._lines)
        elif self._blank:
            self._blank = False
            if not line.startswith(("  ", "\t")):
                ended, self._lines = ["".join(self._lines)], []
        fence = _FENCE.match(line)
        if fence and not self._fence:
            self._fence = fence.group(1)
        elif fence and line.strip().startswith(self._fence) and not line.strip(f" \n{self._fence[0]}"):
            self._fence = ""
        self._lines.append(line)
        return ended


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


class _Block:
    """A block without the blank lines around it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines(console, options):
            yield from line
            yield Segment.line()

    def lines(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        lines = [*map(_trimmed, console.render_lines(_rendered(self._text), options, pad=False))]
        full = [i for i, line in enumerate(lines) if "".join(s.text for s in line).strip()]
        return lines[full[0] : full[-1] + 1] if full else []


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Without the blanks at its end that nobody sees."""
    while line and not line[-1].text.strip() and not (line[-1].style and line[-1].style.bgcolor):
        line = line[:-1]
    return line


class _Tail:
    """The last lines of the block that is being written, as many as the terminal has room for.

    follows   there is a block above it
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.follows = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = _Block(self._blocks.tail[-SEEN:]).lines(console, options)
        if lines and self.follows:
            yield Segment.line()
        for line in lines[-max(1, options.size.height - 3) :]:
            yield from line
            yield Segment.line()


class _Pending(Live):
    """Draws the tail anew where something came; a terminal is not kept busy while a model thinks."""

    def __init__(self, blocks: Blocks, console: Console) -> None:
        self.tail = _Tail(blocks)
        super().__init__(self.tail, console=console, refresh_per_second=DRAWN_PER_S, transient=True)
        self._blocks, self._drawn = blocks, -1

    def refresh(self) -> None:
        if self._drawn != self._blocks.written:
            self._drawn = self._blocks.written
            super().refresh()


class RenderedText:
    """Markdown that is written on a terminal piece by piece.

    pending   False where the block that is being written is not shown before it ends
    """

    def __init__(self, console: Console, pending: bool = True) -> None:
        self._console, self._blocks = console, Blocks()
        self._live = _Pending(self._blocks, console) if pending else None
        self._printed = False

    def add(self, piece: str) -> None:
        for block in self._blocks.add(safe(piece)):
            self._print(_Block(block))

    def say(self, note: str) -> None:
        """What belongs to no text: it ends the block that is being written."""
        self.end()
        self._print(Text(note.strip(), style="dim"))

    def end(self) -> None:
        """The text has ended."""
        for block in self._blocks.end():
            self._print(_Block(block))

    def _print(self, block: _Block | Text) -> None:
        if self._printed:
            self._console.print()
        self._printed = True
        if self._live:
            self._live.tail.follows = True
        self._console.print(block)

    def __enter__(self) -> RenderedText:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._live:
            self._live.stop()
