"""Streamed text is a prefix of the final answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_time import too_slow

from graphrag_ray.base.context_records import (
    Reference,
    drop_unclosed_reference,
    find_references,
    render_references,
    resolve_references,
    strip_references,
)
from graphrag_ray.query.answer_streams import StreamedText
from graphrag_ray.query.methods.map_reduce import strip_scores

NUMBERING = {
    ("Reports", 1): "r-one",
    ("Reports", 2): "r-two",
    ("Entities", 7): "e-seven",
    ("Claims", 3): "c-lost",
}
NUMBER = {
    Reference("Reports", "r-one"): 101,
    Reference("Reports", "r-two"): 102,
    Reference("Entities", "e-seven"): 7,
}


def final(reply: str) -> str:
    """Compute the final text like `ask_for_text` and `build_answer`."""
    text, _, _ = resolve_references(strip_scores(reply), NUMBERING)
    return render_references(text.strip(), NUMBER.get)


def shown(pieces: list[str]) -> list[str]:
    written = StreamedText(NUMBERING, NUMBER)
    return [written.add(piece) for piece in pieces]


def test_text_is_streamed_with_short_ids():
    result = shown(["The ferry", " was sold [Da", "ta: Reports (1,", " 2)] in", " May."])
    assert result == ["The ferry", " was sold", "", " [Data: Reports (101, 102)] in", " May."]


def test_invalid_reference_is_never_streamed():
    assert (
        "".join(shown(["Sold", " [Data: Reports (9)]", ", in May [Data: Claims (3)]", "."]))
        == "Sold, in May."
    )


def test_surrounding_whitespace_is_not_streamed():
    assert shown(["\n ", "One.\n", "\nTwo. ", "\n"]) == ["", "One.", "\n\nTwo.", ""]


def test_other_brackets_are_streamed_once_certain():
    assert shown(["a [", "D", "r", ". X] [1", "]"]) == ["a", "", " [Dr", ". X] [1", "]"]


def test_score_is_withheld_and_other_tags_are_not():
    assert shown(["a <", "b", "> c"]) == ["a", " <b", "> c"]
    assert shown(["a **", "bold** <ANS", "WER_HELPFULNESS> 8", "0 </ANSWER_HELPFULNESS> b"]) == [
        "a",
        " **bold**",
        "",
        "",
    ]


def test_pieces_may_end_anywhere():
    reply = "One **two** [Data: Reports (1); Entities (7, 8)], three.\n\n- four [Data: Claims (3)] `five`"
    for at in range(len(reply)):
        assert final(reply).startswith("".join(shown([reply[:at], reply[at:]])))
    assert "".join(shown(list(reply))) == final(reply).rstrip("`")


parts = st.sampled_from(
    [
        "[Data: Reports (1)]", "[Data: Reports (1, 2, +more); Entities (7)]", "[data:Report (2, 44)]",
        "[ Data: Claims (3)]", "[Data: Nonsense (1)]", "[Data: Reports (1", "[1]", "[", "]", "(", "<", "<b>",
        "[Reports: 1]", "[Report 2; Entity 7]", "(Data: Reports (1), Entities (7))", "（Data：Claims 3）",
        "【Data: Reports 1】", "(Data: ", "[Data", "Reports ", "Reports", "entity", "(1", "1", ", ", ")",
        " and ", "(see Reports 1)", "[Reports: quarterly]", "[Sources", "】", "+more", "#",
        "**", "*", "`", " ", "  ", "\t", "\n", "\n\n", "word", "D", "Data", ":", "é🚢",
        "<ANSWER_HELPFULNESS> 80 </ANSWER_HELPFULNESS>", "<answer helpfulness>",
    ]
)  # fmt: skip


@given(st.lists(parts), st.data())
def test_streamed_text_is_a_prefix_of_the_answer(made, data):
    reply = "".join(made)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    whole = final(reply)
    nested = list(find_references(strip_references(strip_scores(reply))))
    if not nested:  # a nested reference is streamed as a correction (answer_streams.ReplyStreamer)
        assert whole.startswith("".join(shown(pieces)))


@given(
    st.lists(st.sampled_from(["a ", "b", "[Data: Reports (1)]", " [Data: Reports (9)] ", "\n"])),
    st.sampled_from(
        ["[Data: Reports (1", "[Data: ", "[Reports: 1, 2", "(Data: Reports (1)", "【Data：Reports 1; Ent"]
    ),
)
def test_truncated_reply_streams_no_partial_reference(made, half):
    reply = f"{''.join(made)} {half}"
    text, _, _ = resolve_references(drop_unclosed_reference(reply), NUMBERING)
    assert render_references(text.strip(), NUMBER.get).startswith("".join(shown(list(reply))))


@pytest.mark.parametrize(
    "piece",
    ["[", "<", " ", "\n", "*", " *\n", "[Data: ", "(Data: Reports 1", "1, ", "a", "<ANSWER HELPFULNESS>"],
)
@pytest.mark.parametrize("start", ["", "[Data: ", "[Reports: 1", "(Data: Reports ("])
def test_streaming_time_is_linear(start, piece):
    assert not too_slow(shown, lambda n: [start, *[piece] * n], 2_000)
