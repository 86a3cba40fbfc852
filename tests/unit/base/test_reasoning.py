"""Removal of reasoning from replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.reasoning import ReasoningFilter, starts_inside_reasoning, strip_reasoning


@pytest.mark.parametrize(
    "reply",
    [
        "<think>a\nb</think>\n\nNO",
        "\n <THINKING> a </thinking>NO",
        "<think>one</think>\n<think>two</think> NO",
        "<think></think>\nNO",
        "so the answer is\n</think>\nNO",
        "so the answer is\n</think>NO",
        "so the answer is </think>\n\nNO",
        "[THINK]hm[/THINK]NO",
        "<thought>hm</thought>NO",
        "◁think▷hm◁/think▷NO",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>NO",
        "<reasoning>hm</reasoning>NO",
        "so the answer is clear.</think>NO",
        "hm\n</think>NO",
    ],
)
def test_reasoning_before_a_reply_is_removed(reply):
    assert strip_reasoning(reply) == "NO"


@pytest.mark.parametrize("reply", ["<think>cut off", "<think>one</think><think>cut", "<think>only</think>\n"])
def test_reasoning_without_a_reply_leaves_nothing(reply):
    assert strip_reasoning(reply) == ""


@pytest.mark.parametrize(
    "reply",
    [
        "a text that names </think> in passing",
        "  NO\n",
        "they <think> so",
        "a <think>b</think> c",
        "write <think>b</think>c",
        "it ends with `</think>` or “</think>”, they say",
        "Use `(.+)</think>(.+)` and group 2.",
        "`done</think>Answer` is what it writes",
        "So it looks:\n```\n<think>plan</think>Answer\n```\nThat is all.",
        "[thin",
        "",
    ],
)
def test_text_that_mentions_tags_is_unchanged(reply):
    assert strip_reasoning(reply) == reply


def test_reasoning_inside_a_reply_is_removed():
    assert (
        strip_reasoning("One.\n<think>hm</think>\nTwo.\n<think>hm</think>\nThree.")
        == "One.\n\nTwo.\n\nThree."
    )
    assert strip_reasoning("<think>hm</think>A line that ends in </think>\nis text.").endswith("\nis text.")


def test_truncated_reasoning_extends_to_the_end_of_the_reply():
    assert strip_reasoning("One.\n<think>hm") == "One.\n"
    assert strip_reasoning("One.\n<think>hm</think>\nTwo.\n<think>hm") == "One.\n\nTwo.\n"


def test_reasoning_inside_a_reply_may_end_within_a_line():
    assert strip_reasoning("One.\n<think>hm</think>Two.\nThree.") == "One.\nTwo.\nThree."
    channels = "<|channel|>analysis<|message|>hm<|channel|>final<|message|>"
    assert strip_reasoning(f"One.\n{channels}Two.") == "One.\nTwo."


@pytest.mark.parametrize("reply", ["hm\n</think>\nNO", "hm</think>\nNO", "hm</think>"])
def test_a_reply_may_begin_inside_reasoning(reply):
    assert starts_inside_reasoning(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "<think>hm</think>\nNO",
        "NO",
        "<think>hm",
        "One.\n<think>hm</think>\nTwo.",
        "a group.</think>b",
        "`x\n</think>`",
    ],
)
def test_a_reply_with_an_opening_tag_does_not_begin_inside_reasoning(reply):
    assert not starts_inside_reasoning(reply)


PARTS = ("<think>", "</think>", "[THINK]", "[/think]", "\n", " ", "ab", "<", "<thi", "◁think▷", "no.")


@given(st.lists(st.sampled_from(PARTS)).map("".join), st.data())
def test_the_filtered_text_does_not_depend_on_the_pieces_of_a_stream(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, speech = ReasoningFilter(), ReasoningFilter()
    assert "".join(speech.add(piece) for piece in pieces) == whole.add(text)


@given(st.text(alphabet="ab <>\n", max_size=30), st.text(alphabet="ab \n.", max_size=30))
def test_reasoning_at_the_start_of_a_stream_is_removed(thoughts, text):
    reply = f"<think>{thoughts}</think>{text}"
    speech = ReasoningFilter()
    assert "".join(speech.add(c) for c in reply) == strip_reasoning(reply) == text.lstrip()


def test_a_stream_that_begins_inside_reasoning_starts_after_it():
    speech = ReasoningFilter(opened=True)
    assert "".join(speech.add(c) for c in "hm, 1 < 2\n</think>\n\nNO.") == "NO."
    assert "".join(ReasoningFilter(opened=True).add(c) for c in "Nothing was thought.") == ""


def test_a_stream_of_reasoning_uses_bounded_memory():
    speech = ReasoningFilter()
    speech.add("<think>")
    for _ in range(1000):
        speech.add("hm " * 1000)
    assert len(speech._buffer) < 100
