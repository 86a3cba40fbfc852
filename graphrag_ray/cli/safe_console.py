"""Print document and model text safely: control and bidirectional characters are escaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from graphrag_ray.base.wording import escape_control


class SafeConsole(Console):
    """Escapes all control characters in text; only its own styles emit escape codes.

    On a terminal, lines are wrapped between words with a hanging indent. Elsewhere, they are not wrapped.
    """

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        if soft_wrap is None and all(isinstance(o, str | Text) for o in objects):
            soft_wrap = not self.is_terminal
        if not soft_wrap:
            objects = tuple(map(_indented, objects))
        super().print(*objects, soft_wrap=soft_wrap, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_control(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_control(segment.text), segment.style)


def _indented(line: Any) -> Any:
    """Give a line that begins with spaces a hanging indent."""
    if not isinstance(line, str) or not line.startswith(" ") or "\n" in line:
        return line
    text = escape_control(line).lstrip(" ")
    return Padding(Text(text), (0, 0, 0, len(line) - len(line.lstrip(" "))), expand=False)
