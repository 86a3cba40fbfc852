"""An answer while it is written: rendered on a terminal, as it is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphrag_ray.cli.safe import console_of, safe

if TYPE_CHECKING:
    from rich.console import Console

    from graphrag_ray.query.answer_streams import AnswerStream
    from graphrag_ray.query.methods.answer import Answer


def print_text(out: Console, text: str, raw: bool = False) -> None:
    """A whole text, which may be Markdown. raw: is not rendered on a terminal either."""
    if _renders(out, raw):
        from graphrag_ray.cli.rendered import RenderedText  # a pipe waits for no parser

        with RenderedText(out, pending=False) as rendered:
            rendered.add(text)
    else:
        out.print(text)


def write_stream(stream: AnswerStream, raw: bool = False) -> Answer:
    """Print the pieces of an answer as they come, safe for the terminal. Raises what the stream does, and
    begins a new line."""
    out = console_of()
    with stream:
        if _renders(out, raw):
            _render(stream, out)
        else:
            try:
                for piece in stream:
                    click.echo(safe(piece), nl=False)
            finally:
                click.echo()
        return stream.answer


def _render(stream: AnswerStream, out: Console) -> None:
    from graphrag_ray.cli.rendered import RenderedText
    from graphrag_ray.query.answer_streams import StartsAgain

    with RenderedText(out) as rendered:
        for piece in stream:
            if isinstance(piece, StartsAgain):
                rendered.say(piece)
            else:
                rendered.add(piece)


def _renders(out: Console, raw: bool) -> bool:
    return out.is_terminal and not out.is_dumb_terminal and not raw
