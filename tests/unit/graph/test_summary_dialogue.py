from __future__ import annotations

import pytest

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Chunking, Tree
from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.graph import report_context
from graphrag_ray.graph.report_dialogue import full_content
from graphrag_ray.graph.summary_dialogue import context_tokens, read_summary, summary, summary_spec

SPEC = summary_spec(parse_settings({}), load_prompts())
CONTEXT = report_context.render(
    [report_context.source_record(f"s{n}", f"Text {n}.", "minutes.txt") for n in range(2)], 1_000, len
)


def asked(*replies: ChatReply | str):
    rest = iter(replies)
    requests = []

    def answer(request):
        requests.append(request)
        reply = next(rest)
        return ChatReply(reply) if isinstance(reply, str) else reply

    return run_dialogue(summary(CONTEXT, SPEC), answer), requests


def test_summary_has_a_title_and_cites_all_its_inputs():
    found, (request,) = asked("The harbour\n\nIt was closed.\nThen it was opened.\n\nAll rejoiced.")
    assert (found.title, found.summary) == (
        "The harbour",
        "It was closed. Then it was opened.\n\nAll rejoiced.",
    )
    assert found.references == (Reference("Sources", "s0"), Reference("Sources", "s1"))
    assert found.rating is None and full_content(found).startswith("# The harbour\n\nIt was closed.")
    assert "minutes.txt" in request.messages[-1].content and request.prompt == "summary"


def test_the_length_of_a_summary_grows_with_its_texts():
    paid = {"models": {"default": {"provider": "openai", "model": "m"}}}
    spec = summary_spec(parse_settings(paid), load_prompts())
    lengths = [spec.output_tokens(n) for n in (10, 1_600, 2_400, 3_500, 10_000)]
    assert lengths == [400, 400, 600, 800, 800] and spec.call.max_output_tokens == 1_600
    first = summary_spec(parse_settings({**paid, "request_rules": 1}), load_prompts())
    assert first.output_tokens(10_000) == 400 and first.call.max_output_tokens == 800


@pytest.mark.parametrize(
    ("reply", "title", "text"),
    [
        ("# **The harbour**\n\nClosed.", "The harbour", "Closed."),
        ("Title: The harbour.\nSummary: Closed.", "The harbour", "Closed."),
        ("“The harbour”\n\n## Summary\nClosed.", "The harbour", "Summary Closed."),
        ("It was closed in May and opened in June.", "It was closed in May and opened in June.", None),
        ("T\n\n### Not a heading\n\nClosed [Data: Sources (1)].", "T", "Not a heading\n\nClosed."),
        ("\n\n  \n", "", ""),
        ("word " * 60 + "\n\nClosed.", " ".join(["word"] * 12), None),
    ],
)
def test_titles_are_read_as_models_write_them(reply, title, text):
    found = read_summary(ChatReply(reply))
    assert found[0] == title
    assert found[1] == (
        text if text is not None else " ".join(reply.split()).replace(" Closed.", "\n\nClosed.")
    )


def test_a_reply_that_was_cut_off_loses_its_unfinished_sentence():
    assert read_summary(ChatReply("T\n\nOne is whole. Two is n", "length"))[1] == "One is whole."


def test_empty_reply_is_retried_once():
    found, requests = asked(" ", "T\n\nWritten.")
    assert found.summary == "Written." and [r.prompt for r in requests] == ["summary", "correct"]
    with pytest.raises(DialogueFailed, match="still not usable after a correction: it is empty"):
        asked("", "\n")


def test_withheld_summary_fails():
    with pytest.raises(DialogueFailed, match="content filter withheld"):
        asked(ChatReply("T\n\nHalf", "content_filter"))


def test_two_whole_chunks_fit_into_a_context():
    assert context_tokens(Tree(), Chunking()) == 3_500
    assert context_tokens(Tree(), Chunking(size=4_000)) > 8_000
    assert context_tokens(Tree(), Chunking(size="document")) == 3_500
