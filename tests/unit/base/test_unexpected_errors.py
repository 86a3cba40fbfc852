"""Unexpected errors are described in one line with their location in this package."""

import asyncio
from pathlib import Path

import pytest

from graphrag_ray.base import unexpected_errors
from graphrag_ray.base.errors import CorruptPart, DialogueFailed
from graphrag_ray.base.unexpected_errors import (
    DESCRIPTION_PREFIX,
    MAX_MESSAGE_CHARS,
    attach_location,
    describe_unexpected_error,
    error_location,
    is_unexpected,
)
from graphrag_ray.graph.delimited_records import parse_records


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as e:
        return e


class PanicException(BaseException):
    """Like the exception of a Rust library."""


def test_the_location_is_the_innermost_line_in_this_package_without_local_paths():
    with pytest.raises((TypeError, AttributeError)) as caught:
        parse_records(7)  # type: ignore[arg-type]
    place = error_location(caught.value)
    assert place.startswith("graph/delimited_records.py:") and place.rpartition(":")[2].isdigit()
    line = describe_unexpected_error(caught.value)
    assert line.startswith(
        f"{DESCRIPTION_PREFIX}, please report it: {type(caught.value).__name__}: "
    ) and line.endswith(f" ({place})")


def test_an_error_outside_this_package_has_no_location():
    assert (
        describe_unexpected_error(raised(ValueError("x")))
        == f"{DESCRIPTION_PREFIX}, please report it: ValueError: x"
    )
    assert describe_unexpected_error(ValueError()) == f"{DESCRIPTION_PREFIX}, please report it: ValueError"


def test_the_location_of_an_error_in_another_process_is_in_its_traceback():
    package = Path(unexpected_errors.__file__).parents[1]
    error = raised(KeyError("x"))
    trace = "".join(
        f'  File "{path}", line {line}, in f\n    f()\n'
        for path, line in (
            (package / "indexing/stages/merge_stage.py", 7),
            (package / "graph/merge.py", 12),
            (Path("/envs") / package.name / "lib/python3.11/json/decoder.py", 3),
        )
    )
    attach_location(error, f"Traceback:\n{trace}KeyError: 'x'")
    assert (
        describe_unexpected_error(error)
        == f"{DESCRIPTION_PREFIX}, please report it: KeyError: 'x' (graph/merge.py:12)"
    )


def test_a_message_is_one_short_line_of_valid_text():
    line = describe_unexpected_error(raised(ValueError("a\nb \ud800 " + "long " * 1_000)))
    assert "\n" not in line and len(line) < MAX_MESSAGE_CHARS + 100
    line.encode()


def test_the_same_error_has_the_same_description_in_every_process():
    assert "0x" not in describe_unexpected_error(raised(ValueError(f"no {object()}"))).replace("0x…", "")


def test_an_error_that_cannot_format_its_message_is_described_by_its_type():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert describe_unexpected_error(raised(Mute())).endswith(": Mute")


@pytest.mark.parametrize(
    ("error", "unexpected"),
    [
        (ValueError(), True),
        (MemoryError(), True),
        (RecursionError(), True),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), True),
        (PanicException(), True),
        (CorruptPart("part x is torn"), False),
        (DialogueFailed("no JSON"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_interruptions_and_our_own_errors_are_not_unexpected(error, unexpected):
    assert is_unexpected(error) == unexpected
