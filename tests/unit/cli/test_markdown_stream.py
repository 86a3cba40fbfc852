"""Answers on a terminal: Markdown is rendered while it is streamed."""

from __future__ import annotations

import io
import re

import pytest

from graphrag_ray.cli import markdown_stream
from graphrag_ray.cli.answer_output import print_text
from graphrag_ray.cli.markdown_stream import MarkdownStream
from graphrag_ray.cli.safe_console import SafeConsole

LISTED = "1. one\n\n   and more of it\n\n2. two\n"
CODE = "```\na = 1\n\nb = 2\n```\n"


def shown(text: str, width: int = 40, pieces: int | None = None) -> str:
    out = io.StringIO()
    console = SafeConsole(file=out, width=width, force_terminal=True, color_system=None)
    with MarkdownStream(console, pending=False) as writing:
        for at in range(0, len(text), pieces or len(text)):
            writing.add(text[at : at + (pieces or len(text))])
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


def test_words_are_not_broken_and_markup_is_removed():
    text = (
        "The **harbour** was filled with considerable circumspection. [Data: Reports (3, 7)]\n\n- a point\n"
    )
    lines = shown(text, width=30).splitlines()
    assert all(len(line) <= 30 for line in lines)
    assert "circumspection." in " ".join(lines).split() and "**" not in "".join(lines)
    assert "[Data: Reports (3, 7)]" in " ".join(" ".join(lines).split())
    assert " • a point" in lines


def test_streamed_text_looks_like_complete_text():
    text = (
        f"# Title\n\nOne *two*.\nThree\n\n{LISTED}\n{CODE}\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend"
    )
    assert shown(text, pieces=3) == shown(text)
    assert "One two. Three\n" in shown(text)


def test_text_is_never_hidden_and_cannot_control_the_terminal():
    hostile = "a <b>bold</b> <!-- hidden --> [click](http://evil.example/?q) \x1b[2J\u202eend"
    line = shown(hostile, width=300)
    for part in ("<b>bold</b>", "<!-- hidden -->", "http://evil.example/?q", "\\x1b[2J", "\\u202e"):
        assert part in line
    assert "\x1b" not in line


def test_end_of_streamed_text_is_drawn():
    console = SafeConsole(file=io.StringIO(), width=40, height=10, force_terminal=True, color_system=None)
    writing = MarkdownStream(console)
    for n in range(200):
        writing.add(f"Sentence {n} of an *answer*.\n\n")
    drawn = "".join(segment.text for segment in console.render(writing._tail()))
    assert "Sentence 199 of an answer." in drawn and len(drawn.splitlines()) == 7


def test_text_is_redrawn_after_changes_and_printed_once_with_a_note(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(markdown_stream, "REDRAWS_PER_S", 0.001)  # Only the test redraws.
    out = io.StringIO()
    console = SafeConsole(file=out, width=40, height=10, force_terminal=True, color_system=None)
    with MarkdownStream(console) as writing:
        writing.add("Half an *answer*.")
        writing._live.refresh()
        drawn = out.getvalue()
        writing._live.refresh()
        assert "Half an answer." in drawn and out.getvalue() == drawn
        writing.add_note("[which begins again:]")
        assert "Half an answer." not in out.getvalue().rpartition("again")[2]


def test_very_long_text_is_printed_unchanged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(markdown_stream, "MAX_RENDERED", 10)
    assert "[[[[**[[[[[[" in shown("[[[[**[[[[[[")


def test_pipes_and_raw_output_get_markdown_source():
    text = "**bold** " * 40
    for console, raw in (
        (SafeConsole(file=io.StringIO(), width=40), False),
        (SafeConsole(file=io.StringIO(), width=400, force_terminal=True, color_system=None), True),
    ):
        print_text(console, text, raw)
        assert text in console.file.getvalue()  # type: ignore[attr-defined]
