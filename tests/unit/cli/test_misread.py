"""What a command line that cannot be run still says, and what is in doubt."""

from __future__ import annotations

import contextlib

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.misread import Misread

MISSPELT = click.NoSuchOption("--confg")
CROWDED = click.UsageError("Got unexpected extra argument (docs)")


@pytest.mark.parametrize(
    "line", ["--root a", "--root=a", "x docs --root a", "--root a --root=a", "--confg --root a -- --root b"]
)
def test_an_option_says_the_same_wherever_and_however_it_is_given(line: str):
    assert Misread(line.split(), MISSPELT).value("--root") == "a"


def test_an_address_has_no_blank_so_what_follows_is_another_word():
    assert Misread(["--root", "s3://b/a", "docs", "--confg"], MISSPELT).value("--root") == "s3://b/a"


def test_an_option_that_is_not_there_says_nothing():
    assert Misread(["--roots", "a", "--", "--root", "b"], MISSPELT).value("--root") is None


def test_an_option_may_be_given_several_times():
    assert Misread(["--set", "a.b=1", "--set=c.d=2"], MISSPELT).values("--set") == ("a.b=1", "c.d=2")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--root", MISSPELT),
        ("--root=", MISSPELT),
        ("--root --rpm 3", MISSPELT),
        ("--root a --root b", MISSPELT),
        ("x --root my index", CROWDED),
        ("x --root my index --bogus", MISSPELT),
        ("x --root s3://b/my index", CROWDED),
        ("x --root=my index", CROWDED),
    ],
)
def test_what_may_be_no_value_or_half_of_one_is_not_taken_for_it(line: str, error: click.UsageError):
    with pytest.raises(UsageError) as told:
        Misread(line.split(), error).value("--root")
    assert str(told.value) == error.format_message()


@given(st.lists(st.sampled_from(["--root", "--root=", "--", "-", "a", "", "--set", "=", "--root=a", " "])))
def test_no_line_is_too_odd_to_be_read(words: list[str]):
    with contextlib.suppress(UsageError):
        assert Misread(words, MISSPELT).value("--root") in (None, "a", "=")
