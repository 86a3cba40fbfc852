"""Text on a terminal while it is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from graphrag_ray.query.answer import Answer
    from graphrag_ray.streams import AnswerStream

_CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


def write_stream(stream: AnswerStream) -> Answer:
    """Print the pieces of an answer as they come, without control characters: these can do anything to a
    terminal. Raises what the stream does, and begins a new line."""
    try:
        with stream:
            for piece in stream:
                click.echo(_CONTROL.sub("", piece), nl=False)
            return stream.answer
    finally:
        click.echo()
