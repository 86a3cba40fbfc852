"""Document text cannot control the terminal."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from graphrag_ray.base.wording import collapse_whitespace, escape_control
from graphrag_ray.cli import console
from graphrag_ray.cli.safe_console import SafeConsole

CLEAR = "\x1b[2J\x1b]0;owned\x07"
HOSTILE = f"before {CLEAR}\x9b31m\u202eafter\r"


def printed(*what: object, width: int = 300) -> str:
    out = io.StringIO()
    shown = SafeConsole(file=out, width=width, markup=False, highlight=False, emoji=False)
    for one in what:
        shown.print(one, soft_wrap=True)
    return out.getvalue()


def steers(text: str) -> bool:
    return any((c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" or c in "\u202e\u2066" for c in text)


def table_of(text: str) -> Table:
    table = Table("a")
    table.add_row(text)
    return table


@pytest.mark.parametrize(
    "wrapped", [str, Text, Markdown, table_of], ids=["text", "Text", "Markdown", "table"]
)
def test_control_characters_are_escaped(wrapped):
    shown = printed(wrapped(HOSTILE))
    assert not steers(shown)
    assert "\\x1b[2J" in shown and "\\x9b31m" in shown and "\\u202eafter" in shown


def test_styles_are_sent_to_the_terminal():
    out = io.StringIO()
    SafeConsole(file=out, force_terminal=True, color_system="truecolor", width=80).print("x", style="bold")
    assert out.getvalue() == "\x1b[1mx\x1b[0m\n"


def test_tabs_line_feeds_and_other_scripts_are_unchanged():
    text = "tab\there\nline, Ωμέγα, עברית, 👩‍🔧"
    assert escape_control(text) == text and escape_control("a\r\nb") == "a\nb"


@given(st.text())
def test_no_control_characters_remain(text: str):
    assert not steers(escape_control(text)) and escape_control(escape_control(text)) == escape_control(text)


@given(st.text())
def test_json_escapes_the_same_characters(text: str):
    with redirect_stdout(io.StringIO()) as out:
        console.print_json({"text": text}, indent=False)
    shown = out.getvalue().removesuffix("\n")
    assert not steers(shown) and json.loads(shown) == orjson.loads(shown) == {"text": text}


def test_one_line_is_a_single_line_of_limited_length():
    assert (
        collapse_whitespace(" a\n\n b\tc ") == "a b c"
        and collapse_whitespace("abcdef", 4) == "abc…"
        and collapse_whitespace("abcd", 4) == "abcd"
    )
