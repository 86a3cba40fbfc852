"""Answers on a terminal: Markdown, rendered block by block while it is written."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.cli import rendered
from graphrag_ray.cli.rendered import Blocks, RenderedText
from graphrag_ray.cli.safe import SafeConsole
from graphrag_ray.cli.writing import print_text

LISTED = "1. one\n\n   and more of it\n\n2. two\n"
CODE = "```\na = 1\n\nb = 2\n```\n"
PIECES = [
    "Some *text*.",
    "\n",
    "\n\n",
    LISTED,
    CODE,
    "~~~~\n",
    "    indented\n",
    "| a | b |\n|---|---|\n",
    "# T",
]


def blocks_of(pieces: list[str]) -> list[str]:
    blocks = Blocks()
    return [*(block for piece in pieces for block in blocks.add(piece)), *blocks.end()]


def shown(text: str, width: int = 40, pieces: int | None = None) -> str:
    out = io.StringIO()
    console = SafeConsole(file=out, width=width, force_terminal=True, color_system=None)
    with RenderedText(console, pending=False) as writing:
        for at in range(0, len(text), pieces or len(text)):
            writing.add(text[at : at + (pieces or len(text))])
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.integers(1, 9))
def test_blocks_are_the_text_and_do_not_depend_on_its_pieces(parts: list[str], size: int):
    text = "".join(parts)
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    assert blocks_of(cut) == blocks_of([text])
    assert "".join(blocks_of(cut)).strip() == text.strip()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("a\nb\n\nc\n", 2),
        (CODE + "\nafter\n", 2),
        ("```text\n\n```python\n\n````\n\nafter\n", 2),
        ("1. one\n\n   and more of it\n", 1),
        (LISTED, 2),
    ],
)
def test_a_block_ends_where_nothing_can_change_it_any_more(text: str, blocks: int):
    assert len(blocks_of([text])) == blocks


def test_words_are_whole_and_marks_are_gone():
    text = (
        "The **harbour** was filled with considerable circumspection. [Data: Reports (3, 7)]\n\n- a point\n"
    )
    lines = shown(text, width=30).splitlines()
    assert all(len(line) <= 30 for line in lines)
    assert "circumspection." in " ".join(lines).split() and "**" not in "".join(lines)
    assert "[Data: Reports (3, 7)]" in " ".join(" ".join(lines).split())
    assert " • a point" in lines


def test_a_streamed_text_looks_as_it_does_when_it_is_whole():
    text = (
        f"# Title\n\nOne *two*.\nThree\n\n{LISTED}\n{CODE}\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend"
    )
    assert shown(text, pieces=3) == shown(text)
    assert "One two. Three\n" in shown(text)


def test_no_text_is_hidden_and_none_steers():
    hostile = "a <b>bold</b> <!-- hidden --> [click](http://evil.example/?q) \x1b[2J\u202eend"
    line = shown(hostile, width=300)
    for part in ("<b>bold</b>", "<!-- hidden -->", "http://evil.example/?q", "\\x1b[2J", "\\u202e"):
        assert part in line
    assert "\x1b" not in line


def test_a_long_answer_is_rendered_once(monkeypatch: pytest.MonkeyPatch):
    given_to_render: list[int] = []
    render = rendered._rendered
    monkeypatch.setattr(rendered, "_rendered", lambda b: given_to_render.append(len(b)) or render(b))
    text = "A sentence of an answer.\n\n" * 300
    shown(text, pieces=7)
    assert sum(given_to_render) <= len(text)


def test_what_is_no_prose_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendered, "LONGEST", 10)
    assert "[[[[**[[[[[[" in shown("[[[[**[[[[[[")


def test_a_pipe_and_whoever_wants_it_raw_get_the_text_itself():
    text = "**bold** " * 40
    for console, raw in (
        (SafeConsole(file=io.StringIO(), width=40), False),
        (SafeConsole(file=io.StringIO(), width=400, force_terminal=True, color_system=None), True),
    ):
        print_text(console, text, raw)
        assert text in console.file.getvalue()  # type: ignore[attr-defined]
