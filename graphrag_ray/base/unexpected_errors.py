"""Unexpected errors, and how to describe one in a line.

An unexpected error in one item (a document, a chunk, a report, a question) fails that item only.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.wording import one_line, strip_ansi

SHOWN_CHARACTERS = 300
"""Characters of an error's message, which may quote a whole text."""
REPORT_HINT = "internal error, please report it"

_PACKAGE = Path(__file__).parents[1]
_PLACE = "_graphrag_ray_place"
_FRAME = re.compile(rf'File "[^"\n]*/{_PACKAGE.name}/([^"\n]+)", line (\d+)')
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


def is_unexpected(error: BaseException) -> bool:
    """Whether an error is a bug of ours or of a library, or out of memory.

    Errors raised on purpose, errors of Ray (a lost actor is not the item's fault) and requested interruptions
    are not unexpected.
    """
    kind = type(error)
    # A panic in a Rust library is not an Exception.
    is_error = isinstance(error, Exception) or kind.__name__ == "PanicException"
    return is_error and not isinstance(error, GraphRagError) and not kind.__module__.startswith("ray.")


def error_place(error: BaseException) -> str:
    """The innermost line of this package in the error's traceback, `graph/merge.py:120`; or ""."""
    place = getattr(error, _PLACE, "")
    for frame, line in () if place else walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f"{path.relative_to(_PACKAGE).as_posix()}:{line}"
    return place


def attach_place(error: BaseException, trace: str) -> None:
    """Attach the place of an error raised in another process, taken from its printed traceback."""
    places = [f"{path}:{line}" for path, line in _FRAME.findall(trace) if (_PACKAGE / path).is_file()]
    if places:
        setattr(error, _PLACE, places[-1])


def describe_error(error: BaseException, quoting: bool = True) -> str:
    """Describe an error in one line of bounded length, equal for the same error in every process.

    For example: `internal error, please report it: ZeroDivisionError: division by zero (graph/merge.py:158)`.
    `quoting` includes the error's message, which may quote a document.
    """
    message, place = "", error_place(error)
    if quoting:
        with suppress(Exception):  # An error may be unable to format its message.
            text = strip_ansi(str(error)[: 10 * SHOWN_CHARACTERS]).encode("utf-8", "replace").decode()
            message = one_line(_ADDRESS.sub("0x…", text), SHOWN_CHARACTERS)
    return f"{REPORT_HINT}: {type(error).__name__}{message and ': '}{message}{place and f' ({place})'}"
