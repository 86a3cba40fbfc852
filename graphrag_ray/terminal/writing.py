"""Text on a terminal while it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphrag_ray.terminal.safe import safe

if TYPE_CHECKING:
    from graphrag_ray.query.answer import Answer
    from graphrag_ray.streams import AnswerStream


def write_stream(stream: AnswerStream) -> Answer:
    """Print the pieces of an answer as they come, safe for the terminal. Raises what the stream does, and
    begins a new line."""
    try:
        with stream:
            for piece in stream:
                click.echo(safe(piece), nl=False)
            return stream.answer
    finally:
        click.echo()
