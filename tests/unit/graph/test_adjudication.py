from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.graph.adjudication import MAX_REASON_CHARS, VERDICTS, adjudicate, resolve_spec, split

SPEC = resolve_spec(load_prompts(), parse_settings({}), 5)


def replying(*replies):
    """A model that gives these replies in turn, and the requests that it received."""
    left, requests = list(replies), []

    def answer(request):
        requests.append(request)
        reply = left.pop(0)
        return reply if isinstance(reply, ChatReply) else ChatReply(reply)

    return answer, requests


def verdicts(*replies, n=2):
    answer, _ = replying(*replies)
    return [v.verdict for v in run_dialogue(adjudicate("A", [f"C{i}" for i in range(n)], SPEC), answer)]


def entries(*given):
    return json.dumps({"verdicts": [{"candidate": n, "verdict": v, "reason": "r"} for n, v in given]})


# Verdicts


def test_the_request_shows_the_name_and_numbered_candidates():
    answer, requests = replying(entries((1, "same"), (2, "different")))
    found = run_dialogue(adjudicate("JOHN ORME (PERSON)", ["ORME", "J. ORME"], SPEC), answer)
    assert [tuple(v) for v in found] == [("same", "r"), ("different", "r")]
    assert len(requests) == 1 and requests[0].response == "json" and requests[0].prompt == "resolve"
    text = requests[0].messages[-1].content
    assert "Name A: JOHN ORME (PERSON)" in text and "1. ORME\n\n2. J. ORME" in text


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (entries((2, "same"), (1, "different")), ["different", "same"]),
        ("```json\n" + entries((1, "same"), (2, "same")) + "\n```", ["same", "same"]),
        ("I think so.\n\n" + entries((1, "same"), (2, "unsure")) + "\nHope this helps!", ["same", "unsure"]),
        (entries((1, " Same "), (2, "DIFFERENT")), ["same", "different"]),
        ('[{"candidate": "1", "verdict": "same"}, {"candidate": 2, "verdict": "same"}]', ["same", "same"]),
        (entries((2, "same")), ["unsure", "same"]),
        (entries((1, "same"), (1, "same")), ["same", "unsure"]),
        (entries((1, "same"), (1, "different"), (1, "same")), ["unsure", "unsure"]),
        (entries((1, "unsure"), (1, "same"), (2, "same")), ["unsure", "same"]),
        (
            entries((0, "same"), (3, "same"), (-1, "same"), (10**30, "same"), (2, "different")),
            ["unsure", "different"],
        ),
        (entries((1, "maybe"), (2, "same")), ["unsure", "same"]),
        (
            '{"verdicts": [{"verdict": "same"}, {"candidate": 1, "verdict": "different"}]}',
            ["different", "unsure"],
        ),
        (
            '{"verdicts": [{"candidate": 1, "verdict": null}, {"candidate": 2, "verdict": "same"}]}',
            ["unsure", "same"],
        ),
    ],
)
def test_sloppy_replies_are_read(reply, expected):
    assert verdicts(reply) == expected


def test_a_truncated_reply_counts_as_far_as_it_is_complete():
    cut = '{"verdicts": [{"candidate": 1, "reason": "r", "verdict": "same"}, {"candidate": 2, "reason": "bec'
    assert verdicts(ChatReply(cut, "length")) == ["same", "unsure"]


USELESS = [
    "",
    "Both are the same.",
    "{}",
    '{"verdicts": []}',
    entries((7, "same")),
    entries((1, "perhaps")),
    "[" * 9_000,
]


@pytest.mark.parametrize("reply", USELESS)
def test_a_useless_reply_is_corrected_once(reply):
    answer, requests = replying(reply, entries((1, "same"), (2, "same")))
    found = run_dialogue(adjudicate("A", ["B", "C"], SPEC), answer)
    assert [v.verdict for v in found] == ["same", "same"] and requests[1].prompt == "correct"
    with pytest.raises(DialogueFailed, match="resolve"):
        verdicts(reply, reply)


def test_a_withheld_reply_fails_at_once():
    with pytest.raises(DialogueFailed, match="content filter"):
        verdicts(ChatReply("", "content_filter"))
    with pytest.raises(DialogueFailed, match="content filter"):
        groups(ChatReply("", "content_filter"))


def test_reasons_are_one_short_line():
    reply = json.dumps({"verdicts": [{"candidate": 1, "verdict": "same", "reason": "long\n reason\t" * 99}]})
    answer, _ = replying(reply)
    (found,) = run_dialogue(adjudicate("A", ["B"], SPEC), answer)
    assert len(found.reason) <= MAX_REASON_CHARS and "\n" not in found.reason


@given(
    st.lists(st.tuples(st.integers(-1, 4), st.sampled_from([*VERDICTS, "yes", ""])), max_size=8),
    st.integers(1, 3),
)
def test_there_is_one_verdict_per_candidate_and_sameness_is_never_invented(stated, n):
    try:
        found = verdicts(entries(*stated), entries(*stated), n=n)
    except DialogueFailed:
        assert not any(1 <= c <= n and v in VERDICTS for c, v in stated)
        return
    assert len(found) == n
    for number, verdict in enumerate(found, start=1):
        said = {v for c, v in stated if c == number and v in VERDICTS}
        assert verdict == (said.pop() if len(said) == 1 else "unsure")


# Splits


def groups(*replies, n=3, name="JOHN ORME"):
    answer, _ = replying(*replies)
    return run_dialogue(split(name, [f"text {i}" for i in range(n)], SPEC), answer)


def grouped(*labels):
    return json.dumps({"groups": [{"label": label, "documents": found} for label, found in labels]})


def test_the_largest_group_keeps_the_name_and_the_others_get_their_labels():
    reply = grouped(("architect", [2]), ("sailor", [1, 3]))
    assert groups(reply) == ["JOHN ORME", "JOHN ORME (ARCHITECT)", "JOHN ORME"]


@pytest.mark.parametrize(
    ("reply", "labels"),
    [
        (grouped(("a", [1, 2, 3])), ["", "", ""]),
        (grouped(("a", [1]), ("b", [2]), ("c", [3])), ["", "B", "C"]),
        (grouped(("a", [3]), ("b", [1])), ["", "", "A"]),  # of equal groups, the one with the first document
        (grouped(("a", [1, 1, 1]), ("b", [2, 3])), ["A", "", ""]),
        (grouped(("a", [1, 2]), ("b", [3, 9, 0, -1])), ["", "", "B"]),
        (grouped(("a", [1, 2]), ("b", [])), ["", "", ""]),
        (grouped(("a", [2])), ["", "", ""]),
        (grouped(("a", [1, 2]), ("born\n 1902 ", [3])), ["", "", "BORN 1902"]),
        (grouped(("a", [1, 2]), ("(river)", [3])), ["", "", "RIVER"]),
        (grouped(("a", [1]), ("", [2]), ("", [3])), ["", "2", "3"]),
        (grouped(("a", [1]), ("b", [2]), ("B", [3])), ["", "B", "B 3"]),
        ("```\n" + grouped(("a", [1, 2]), ("b", [3])) + "\n```", ["", "", "B"]),
        ('{"groups": [{"documents": [1, 2]}, {"label": "b", "documents": ["3"]}]}', ["", "", "B"]),
    ],
)
def test_groups_are_read(reply, labels):
    assert groups(reply) == [f"JOHN ORME ({label})" if label else "JOHN ORME" for label in labels]


def test_equal_labels_never_unite_two_groups():
    reply = grouped(("x", [1, 2]), ("a 4", [3]), ("a", [4]), ("a", [5]), ("a", [6]))
    assert len(set(groups(reply, n=6))) == 5


@pytest.mark.parametrize(
    "reply",
    ["", "One person.", "{}", '{"groups": []}', grouped(("a", [9])), grouped(("a", [1, 2]), ("b", [2, 3]))],
)
def test_useless_groups_are_corrected_once(reply):
    assert len(set(groups(reply, grouped(("a", [1, 2, 3]))))) == 1
    with pytest.raises(DialogueFailed, match="resolve_split"):
        groups(reply, reply)


@given(
    st.lists(st.text(max_size=80), min_size=2, max_size=5),
    st.sampled_from(["JOHN ORME", "東京", "A&B", "(X)"]),
)
def test_split_names_are_entity_keys_and_differ_by_group(labels, name):
    reply = grouped(("the largest", [1, 2]), *((label, [n]) for n, label in enumerate(labels, start=3)))
    found = groups(reply, n=len(labels) + 2, name=name)
    assert found[:2] == [name, name] and len(set(found)) == len(labels) + 1
    for title in found:
        assert title == entity_key(title) and title.startswith(name) and len(title) < len(name) + 90
