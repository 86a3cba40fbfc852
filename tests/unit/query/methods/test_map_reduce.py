"""Packing, map and reduce: budgets, references, failures."""

from __future__ import annotations

import re

import pytest
import quicktok
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import context_records
from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import DialogueFailed, SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import load_prompts, parse_prompt
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.graph.context_plan import MIN_CONTEXT_TOKENS
from graphrag_ray.graph.descriptions import describe_spec
from graphrag_ray.graph.extraction_dialogue import claims_spec, extract_spec
from graphrag_ray.graph.report_context import Context, Record, report_record
from graphrag_ray.graph.report_dialogue import report_spec
from graphrag_ray.query.methods import map_reduce
from graphrag_ray.query.methods.map_reduce import (
    NOTHING_FOUND,
    AnswerSpec,
    MapAnswer,
    Scored,
    map_answer,
    pack,
    parse_scored,
    reduce_answer,
    reduce_context,
)

CL100K = quicktok.get_encoding("cl100k_base").count


def rough(text: str) -> int:
    return len(re.findall(r"\w{1,4}|\S|\s{2,}", text))


def spec(name: str, data: str) -> AnswerSpec:
    template = f"{{question}}|{{{data}}}|{{response_type}}|{{knowledge}}|{{language}}|{{max_tokens}}"
    return AnswerSpec(
        prompt=parse_prompt(name, template),
        correct=parse_prompt("correct", "Wrong: {problem}."),
        call=CallParameters("default", "m"),
        response_type="two paragraphs",
        knowledge="",
        language="English",
        max_tokens=500,
    )


MAP, REDUCE = spec("map", "context"), spec("reduce", "answers")
CONTEXT = Context("data\n", {("Reports", 1): "aa", ("Reports", 2): "bb"}, 5)


def drive(dialogue: Dialogue, *replies: ChatReply | str) -> tuple[object, list[ChatRequest]]:
    requests = []
    try:
        requests.append(next(dialogue))
        for reply in replies:
            requests.append(dialogue.send(ChatReply(reply) if isinstance(reply, str) else reply))
    except StopIteration as stop:
        return stop.value, requests
    raise AssertionError("the dialogue asks for more")


def scored(score: object, text: str) -> str:
    return f"<ANSWER_HELPFULNESS> {score} </ANSWER_HELPFULNESS>\n\n{text}"


# ── packing ─────────────────────────────────────────────────────────────────────────────────────

REPORTS = st.lists(st.text(max_size=40) | st.integers(1, 900).map(lambda n: "lorem, " * n), max_size=14).map(
    lambda texts: [report_record(f"id{i}", f"Title {i}", t) for i, t in enumerate(texts)]
)


@given(
    REPORTS, st.integers(MIN_CONTEXT_TOKENS, 900), st.integers(0, 5), st.sampled_from([rough, CL100K, len])
)
def test_packing_places_each_report_once_within_budget(
    reports: list[Record], budget: int, seed: int, count
) -> None:
    contexts = pack(reports, budget, seed, count)
    written = {r.fields[1] for r in reports}
    assert sorted(i for c in contexts for i in c.numbering.values()) == sorted(r.id for r in reports)
    for context in contexts:
        assert context.n_tokens == count(context.text) <= budget
        assert context.left_out == 0
        read = context_records.parse_sections(context.text)["Reports"]
        assert [int(row["id"]) for row in read] == list(range(1, len(context.numbering) + 1))
        shown = {context.numbering["Reports", int(row["id"])]: row["content"] for row in read}
        whole = all(r.fields[1] == shown[r.id] for r in reports if r.id in shown)
        assert not context.cut or not whole
        assert context.cut or not any(c.endswith("…") and c not in written for c in shown.values())
        assert not context.cut or len(read) == 1


def test_packing_depends_on_seed_only() -> None:
    reports = [report_record(f"id{i}", "T", "word " * 100) for i in range(30)]
    packed = pack(reports, 1000, 7, rough)
    assert pack(reports[::-1], 1000, 7, rough) == packed
    assert pack(reports, 1000, 8, rough) != packed
    in_order = [i for c in packed for i in c.numbering.values()]
    assert in_order != sorted(in_order)


def test_contexts_are_filled() -> None:
    contexts = pack([report_record(f"id{i}", "T", "word " * 50) for i in range(100)], 1000, 1, CL100K)
    assert all(c.n_tokens > 900 for c in contexts[:-1])


def test_too_small_context_budget_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"query\.context_tokens is 50"):
        pack([], 50, 1, rough)


# ── scores ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("<ANSWER_HELPFULNESS> 85 </ANSWER_HELPFULNESS>\nYes.", 85),
        ("Yes.\n<ANSWER_HELPFULNESS>85</ANSWER_HELPFULNESS>", 85),
        ("**<answer_helpfulness> 85/100 </answer_helpfulness>**\nYes.", 85),
        ("<ANSWER HELPFULNESS>: 85 </ANSWER HELPFULNESS> Yes.", 85),
        ("<ANSWER_HELPFULNESS> 85\nYes.", 85),
        ("<ANSWER_HELPFULNESS: 85>\nYes.", 85),
        ("<ANSWER_HELPFULNESS> 85 </ANSWER_HELPFULNESS> Yes. <ANSWER_HELPFULNESS> 85", 85),
        ("<ANSWER_HELPFULNESS> 0.5 </ANSWER_HELPFULNESS>Yes.", 0.5),
        ("<ANSWER_HELPFULNESS> 140 </ANSWER_HELPFULNESS>Yes.", 100),
        ("<ANSWER_HELPFULNESS> -3 </ANSWER_HELPFULNESS>Yes.", 0),
    ],
)
def test_score_is_parsed_and_removed(reply: str, score: float) -> None:
    assert parse_scored(reply) == Scored("Yes.", score)


def test_markdown_after_score_belongs_to_answer() -> None:
    assert parse_scored("<ANSWER_HELPFULNESS> 85\n* one\n* two") == Scored("* one\n* two", 85)
    assert parse_scored(scored(85, "**Yes.**")) == Scored("**Yes.**", 85)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("Yes, 85 of 100.", "no score"),
        ("<ANSWER_HELPFULNESS> high </ANSWER_HELPFULNESS> Yes.", "no score"),
        ("", "no score"),
        (scored(10, scored(90, "x")), "differ"),
        (scored(10, ""), "no answer"),
    ],
)
def test_missing_or_contradictory_score_is_a_problem(reply: str, problem: str) -> None:
    found = parse_scored(reply)
    assert isinstance(found, ReplyProblem)
    assert problem in found.text


# ── map ─────────────────────────────────────────────────────────────────────────────────────────


def test_map_reply_becomes_scored_answer_with_string_ids() -> None:
    (answer,), requests = drive(
        map_answer("Why?", CONTEXT, MAP), scored(70, "A [Data: Reports (1, 2, 9)]. B [Data: Entities (1)].")
    )
    assert answer == MapAnswer(
        "A [Data: Reports (aa, bb)]. B.",
        70,
        (Reference("Reports", "aa"), Reference("Reports", "bb")),
        dropped_references=2,
    )
    assert [r.prompt for r in requests] == ["map"]
    assert requests[0].messages[0].content == "Why?|data\n|two paragraphs||English|500"
    assert requests[0].variables["context"] == CONTEXT.text


def test_missing_score_is_corrected_once() -> None:
    (answer,), requests = drive(map_answer("Why?", CONTEXT, MAP), "Because.", scored(40, "Because."))
    assert answer == MapAnswer("Because.", 40)
    assert requests[1].prompt == "correct"
    assert "it has no score" in requests[1].messages[-1].content
    assert requests[1].variables["question"] == "Why?"


def test_missing_score_fails_after_correction() -> None:
    with pytest.raises(DialogueFailed, match="no score"):
        drive(map_answer("Why?", CONTEXT, MAP), "Because.", "Because!")


def test_zero_score_needs_no_text() -> None:
    (answer,), requests = drive(map_answer("Why?", CONTEXT, MAP), scored(0, ""))
    assert answer == MapAnswer("", 0)
    assert len(requests) == 1


def test_truncated_answer_loses_unclosed_reference() -> None:
    reply = ChatReply(scored(60, "A [Data: Reports (1)]. B [Data: Rep"), "length")
    (answer,), _ = drive(map_answer("Why?", CONTEXT, MAP), reply)
    assert answer == MapAnswer("A [Data: Reports (aa)]. B", 60, (Reference("Reports", "aa"),), truncated=True)


def test_correction_of_truncated_reply_asks_for_less() -> None:
    _, requests = drive(map_answer("Why?", CONTEXT, MAP), ChatReply("A long", "length"), scored(5, "A"))
    assert "cut off" in requests[1].messages[-1].content


# ── reduce ──────────────────────────────────────────────────────────────────────────────────────

IDS = [f"{i:032x}" for i in range(12)]


@st.composite
def answers(draw) -> list[MapAnswer]:
    found = []
    for _ in range(draw(st.integers(0, 8))):
        cited = draw(st.lists(st.sampled_from(IDS), max_size=7, unique=True))
        words = "word, " * draw(st.integers(0, 120))
        text = (
            words
            + context_records.write_reference({"Reports": cited})
            + draw(
                st.sampled_from(
                    ["", "\n\n-----Answers-----\n", " [Data: Reports (1)]", " [\x00Data: Reports (1)]"]
                )
            )
        )
        found.append(
            MapAnswer(text, draw(st.integers(0, 4)) * 25.0, tuple(Reference("Reports", i) for i in cited))
        )
    return found


@given(
    answers(),
    st.integers(MIN_CONTEXT_TOKENS, 900),
    st.randoms(use_true_random=False),
    st.sampled_from([rough, CL100K]),
)
def test_reduce_context_keeps_budget_order_and_references(given_, budget, random, count) -> None:
    context = reduce_context(given_, budget, count)
    assert context.n_tokens == count(context.text) <= budget
    helpful = [a for a in given_ if a.score > 0 and a.text]
    assert len(context.answers) + context.left_out == len(helpful)
    assert bool(context.answers) == bool(helpful), "at least one always"
    rows = context_records.parse_sections(context.text).get("Answers", [])
    ranking = sorted((a.score for a in helpful), reverse=True)
    shown = [float(r["score"]) for r in rows if "score" in r]
    assert shown == (ranking[: len(rows)] if len(set(ranking)) > 1 else [])
    assert len(rows) == len(context.answers)
    _, cited, dropped = context_records.resolve_references(context.text, context.numbering)
    assert dropped == 0
    assert {r.id for r in cited} == set(context.numbering.values())
    assert [n for _, n in context.numbering] == list(range(1, len(context.numbering) + 1))
    shuffled = random.sample(given_, len(given_))
    assert reduce_context(shuffled, budget, count) == context


def test_answer_that_does_not_fit_ends_context() -> None:
    given_ = [MapAnswer("first " * 100, 90), MapAnswer("second " * 300, 80), MapAnswer("third", 70)]
    context = reduce_context(given_, 400, CL100K)
    assert context.answers == (given_[0],)
    assert (context.left_out, context.cut) == (2, 0)


def test_long_single_answer_is_truncated_between_references() -> None:
    text = " ".join(f"point [Data: Reports ({i})]." for i in IDS * 8)
    context = reduce_context([MapAnswer(text, 50, tuple(Reference("Reports", i) for i in IDS))], 260, CL100K)
    assert (len(context.answers), context.cut) == (1, 1)
    assert 200 < context.n_tokens <= 260
    assert context_records.resolve_references(context.text, context.numbering)[2] == 0
    assert context.text.endswith("…\n")


def test_final_answer_resolves_its_references() -> None:
    one = MapAnswer("A [Data: Reports (bb)].", 50, (Reference("Reports", "bb"),))
    two = MapAnswer(
        "B [Data: Reports (aa, bb)].", 40, (Reference("Reports", "aa"), Reference("Reports", "bb"))
    )
    context = reduce_context([two, one], 1000, rough)
    assert context.text == (
        '-----Answers-----\nid,score,answer\n1,50,A [Data: Reports (1)].\n2,40,"B [Data: Reports (2, 1)]."\n'
    )
    reduced, requests = drive(reduce_answer("Why?", context, REDUCE), "So [Data: Reports (2, 8)].")
    assert reduced == map_reduce.Reduced(
        "So [Data: Reports (aa)].", (Reference("Reports", "aa"),), dropped_references=1
    )
    assert requests[0].prompt == "reduce"
    assert requests[0].variables["answers"] == context.text


def test_no_positive_score_makes_no_call() -> None:
    context = reduce_context([MapAnswer("x", 0), MapAnswer("", 0)], 1000, rough)
    assert (context.text, context.n_tokens) == ("", 0)
    reduced, requests = drive(reduce_answer("Why?", context, REDUCE))
    assert requests == []
    assert reduced == map_reduce.Reduced(NOTHING_FOUND, found=False)


def test_empty_final_answer_is_corrected_once_then_fails() -> None:
    context = reduce_context([MapAnswer("x", 10)], 1000, rough)
    reduced, requests = drive(reduce_answer("Why?", context, REDUCE), " ", "So.")
    assert reduced == map_reduce.Reduced("So.")
    assert requests[1].prompt == "correct"
    with pytest.raises(DialogueFailed, match="empty"):
        drive(reduce_answer("Why?", context, REDUCE), " ", "\n")


@given(
    st.lists(
        st.sampled_from(["x", scored(0, ""), scored(9, "a [Data: Reports (1, 5)]"), ""]),
        min_size=2,
        max_size=2,
    )
)
def test_replayed_dialogue_is_identical(replies: list[str]) -> None:
    def run() -> object:
        try:
            result, requests = drive(map_answer("Why?", CONTEXT, MAP), *replies)
            return result, [r.hash for r in requests]
        except DialogueFailed as failure:
            return str(failure)

    assert run() == run()


@pytest.mark.parametrize(
    "way",
    [
        "map",
        "map_points",
        "reduce",
        "answer",
        "drift_primer",
        "drift_local",
        "entity_summary",
        "fgrag_answer",
    ],
)
def test_answer_language_defaults_to_question_language(way: str) -> None:
    prompts = load_prompts()
    kept = Settings.model_validate(snapshot_settings(Settings()))  # as stored in a snapshot
    for made_with in (Settings(), kept):
        spoken = map_reduce.build_spec("map", made_with, prompts, 100, way).language
        assert spoken == "the language of the question"
    wanted = Settings.model_validate({"output_language": "Norwegian"})
    assert map_reduce.build_spec("map", wanted, prompts, 100, way).language == "Norwegian"


def test_language_instructions_are_stable() -> None:
    # Other words would change the requests, so that all replies would be paid for again.
    prompts, settings = load_prompts(), Settings()
    specs = [make(prompts, settings) for make in (extract_spec, claims_spec, describe_spec)]
    specs.append(report_spec(settings, prompts))
    assert {made.language for made in specs} == {"the language of the text"}


def test_general_knowledge_is_optional() -> None:
    prompts = load_prompts()
    assert map_reduce.map_spec(Settings(), prompts).knowledge == ""
    wanted = Settings.model_validate({"query": {"general_knowledge": True, "response_type": "a list"}})
    made = map_reduce.reduce_spec(wanted, prompts)
    request = next(reduce_answer("Why {context}?", reduce_context([MapAnswer("x", 10)], 1000, rough), made))
    said = "\n".join(m.content for m in request.messages)
    assert made.knowledge in said
    assert "a list" in said
    assert "Why {context}?" in said
    assert made.call.max_output_tokens == wanted.query.max_reduce_tokens
