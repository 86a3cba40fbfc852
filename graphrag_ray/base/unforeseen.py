"""Errors that nobody foresaw: what they are, and how one is told in a line.

Where such an error touches one item (a document, a chunk, a report, a question), it is that item's failure,
and everything else goes on.
"""

from __future__ import annotations

import re
from pathlib import Path
from traceback import walk_tb

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.wording import without_colors

SHOWN_CHARACTERS = 300
"""Of an error's message: it may quote the whole text on which it failed."""
REPORT_IT = "internal error, please report it"

_PACKAGE = Path(__file__).parents[1]
_PLACE = "_graphrag_ray_place"
_FRAME = re.compile(rf'File "[^"\n]*/{_PACKAGE.name}/([^"\n]+)", line (\d+)')
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


def is_unforeseen(error: BaseException) -> bool:
    """A bug of ours or of a library, or no memory left. Not an error that we raise on purpose, nor one of
    Ray's (an actor is gone, which no item can help), nor a wished end (Ctrl-C, a task that is cancelled)."""
    kind = type(error)
    # A panic of a library in Rust is a BaseException only.
    is_error = isinstance(error, Exception) or kind.__name__ == "PanicException"
    return is_error and not isinstance(error, GraphRagError) and not kind.__module__.startswith("ray.")


def place_of(error: BaseException) -> str:
    """The innermost line of this package that the error came through, `graph/merge.py:120`; or ""."""
    found = getattr(error, _PLACE, "")
    for frame, line in () if found else walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            found = f"{path.relative_to(_PACKAGE).as_posix()}:{line}"
    return found


def from_elsewhere(error: BaseException, trace: str) -> None:
    """Note the place of an error that was raised in another process. trace: as Python prints it there."""
    places = [f"{path}:{line}" for path, line in _FRAME.findall(trace) if (_PACKAGE / path).is_file()]
    if places:
        setattr(error, _PLACE, places[-1])


def told(error: BaseException, quoting: bool = True) -> str:
    """`internal error, please report it: ZeroDivisionError: division by zero (graph/merge.py:158)`.

    One line of bounded length, the same for the same error in every process. quoting: with the error's
    message, which may quote a document: for people who may see the corpus.
    """
    place, message = place_of(error), _message(error) if quoting else ""
    return f"{REPORT_IT}: {type(error).__name__}{message and ': '}{message}{place and f' ({place})'}"


def _message(error: BaseException) -> str:
    try:
        text = str(error)[: 10 * SHOWN_CHARACTERS]
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is
        return ""
    text = " ".join(without_colors(text).encode("utf-8", "replace").decode().split())
    text = _ADDRESS.sub("0x…", text)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
