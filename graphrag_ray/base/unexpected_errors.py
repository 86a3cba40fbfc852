"""Recognise unexpected errors and describe them in one line.

An unexpected error in one item (a document, a chunk, a report, a question) fails that item only.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.wording import collapse_whitespace, strip_ansi

MAX_MESSAGE_CHARS = 300
"""Maximum length in characters of an error message. Some libraries quote a whole document."""
DESCRIPTION_PREFIX = "unexpected error"

_PACKAGE = Path(__file__).parents[1]
_LOCATION = "_graphrag_ray_location"
_FRAME = re.compile(rf'File "[^"\n]*/{_PACKAGE.name}/([^"\n]+)", line (\d+)')
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


def is_unexpected(error: BaseException) -> bool:
    """Whether an error is unexpected: a bug (ours or a library's), or a lack of memory.

    Not included are GraphRagError, errors from Ray, such as a lost actor, and interruptions, such as Ctrl-C.
    """
    kind = type(error)
    # The panic of a Rust library is not an Exception.
    is_error = isinstance(error, Exception) or kind.__name__ == "PanicException"
    return is_error and not isinstance(error, GraphRagError) and not kind.__module__.startswith("ray.")


def error_location(error: BaseException) -> str:
    """Return the innermost line of this package in the traceback (`graph/merge.py:120`), or ""."""
    location: str = getattr(error, _LOCATION, "")
    for frame, line in () if location else walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            location = f"{path.relative_to(_PACKAGE).as_posix()}:{line}"
    return location


def attach_location(error: BaseException, trace: str) -> None:
    """Attach the location of an error in another process, taken from its printed traceback."""
    locations = [f"{path}:{line}" for path, line in _FRAME.findall(trace) if (_PACKAGE / path).is_file()]
    if locations:
        setattr(error, _LOCATION, locations[-1])


def describe_unexpected_error(error: BaseException, include_message: bool = True) -> str:
    """Describe an error in one short line, identical for the same error in every process.

    For example: `unexpected error, please report it: KeyError: 'x' (graph/merge.py:158)`. `include_message`
    includes
    the error's message, which may quote a document.
    """
    hint = "" if isinstance(error, MemoryError | OSError) else ", please report it"
    message, location = "", error_location(error)
    if include_message:
        with suppress(Exception):  # An error may be unable to format its message.
            text = strip_ansi(str(error)[: 10 * MAX_MESSAGE_CHARS]).encode("utf-8", "replace").decode()
            message = collapse_whitespace(_ADDRESS.sub("0x…", text), MAX_MESSAGE_CHARS)
    kind = type(error).__name__
    return f"{DESCRIPTION_PREFIX}{hint}: {kind}{message and ': '}{message}{location and f' ({location})'}"
