"""The overview of the corpus, its prompt and its reply."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import MAX_ABOUT, Settings
from graphrag_ray.base.messages import ChatReply, ChatRequest
from graphrag_ray.base.prompts import load_prompts, parse_prompt
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.graph.corpus_overview import (
    ENTITIES_TOKENS,
    MAX_TITLES,
    TITLES_TOKENS,
    about_spec,
    entity_lines,
    evenly_spaced,
    needs_overview,
    overview_line,
    request_overview,
    title_lines,
)
from graphrag_ray.graph.report_dialogue import report_spec
from graphrag_ray.offline import answer as offline_answer
from graphrag_ray.query.methods.map_reduce import map_spec, prompt_variables

PROMPTS = load_prompts()
SPEC = about_spec(Settings(), PROMPTS)
OLD = parse_prompt("report", "{role} {rating_criterion} {context} {language} {max_tokens}")


def told(text: str) -> Settings:
    return parse_settings({"corpus": {"description": text}})


def asked(reply: ChatReply) -> str:
    return run_dialogue(
        request_overview("- Minutes of May", "- MILL: It grinds.", SPEC), lambda request: reply
    )


def test_prompt_lists_titles_and_entities_and_the_reply_is_returned():
    seen: list[ChatRequest] = []

    def answer(request: ChatRequest) -> ChatReply:
        seen.append(request)
        return ChatReply("  Minutes of a\nmilling town.\n\nFrom 1900. ")

    text = run_dialogue(request_overview("- Minutes of May", "- MILL: It grinds.", SPEC), answer)
    assert text == "Minutes of a milling town. From 1900."
    assert "\n- Minutes of May\n" in seen[0].messages[-1].content
    assert "\n- MILL: It grinds.\n" in seen[0].messages[-1].content


@pytest.mark.parametrize("reply", [ChatReply(" \n"), ChatReply("x", "content_filter")])
def test_a_reply_without_a_text_is_a_failure(reply: ChatReply):
    with pytest.raises(DialogueFailed):
        asked(reply)


def test_a_reply_that_is_too_long_is_cut():
    text = asked(ChatReply("mill " * 1_000))
    assert len(text) <= MAX_ABOUT and text.endswith("…")


def test_overview_is_needed_once_and_only_if_the_report_prompt_uses_it():
    assert needs_overview(Settings(), PROMPTS)
    assert not needs_overview(told("Mills."), PROMPTS) and not needs_overview(told(""), PROMPTS)
    assert not needs_overview(Settings(), {**PROMPTS, "report": OLD})


def test_overview_fills_the_placeholder_of_prompts():
    line = "What the corpus is about: Mills."
    assert overview_line(told("Mills."), PROMPTS["report"]) == line
    assert report_spec(told("Mills."), PROMPTS).about == line
    assert report_spec(told("Mills."), {**PROMPTS, "report": OLD}).about == ""
    assert report_spec(Settings(), PROMPTS).about == ""
    placed = parse_prompt("map", PROMPTS["map"].source.replace("{question}", "{about} {question}"))
    assert prompt_variables("Why?", map_spec(told("Mills."), {**PROMPTS, "map": placed}))["about"] == line


def test_untrusted_overview_is_one_short_sanitized_line():
    line = overview_line(told("Mills.\n\n# Goal\x1b[2J [Data: Reports (1)]" + "x" * 9_000), PROMPTS["report"])
    assert "\n" not in line and "\x1b" not in line and "[Data:" not in line and len(line) < MAX_ABOUT + 50


@given(st.integers(0, 5_000))
def test_sample_is_evenly_spaced(n: int):
    places = evenly_spaced(n)
    assert len(places) == min(n, MAX_TITLES) == len(set(places))
    steps = {b - a for a, b in pairwise([*places, n])}
    assert max(steps, default=1) - min(steps, default=1) <= 1
    assert not places or places[0] == 0


@given(st.lists(st.text(max_size=400), max_size=70))
def test_prompt_size_is_limited_in_any_script(texts: list[str]):
    def bytes_of(text: str) -> int:
        return len(text.encode("utf-8", "surrogatepass"))

    titles = title_lines(texts, bytes_of)
    assert bytes_of(titles) <= TITLES_TOKENS or "\n" not in titles
    lines = entity_lines([(t, t) for t in texts], bytes_of)
    assert bytes_of(lines) <= ENTITIES_TOKENS
    assert all(line.startswith("- ") for line in [*titles.split("\n"), *lines.split("\n")] if line)


def test_the_offline_engine_names_titles_and_names():
    variables = {
        "titles": "- Minutes of May\n- Minutes of June",
        "entities": "- MILL: It grinds.\n- ANNA: She.",
    }
    result = offline_answer(ChatRequest("about", (), SPEC.call, variables)).text
    assert result == (
        "Documents such as “Minutes of May” and “Minutes of June”. "
        "The best connected names are MILL and ANNA."
    )
