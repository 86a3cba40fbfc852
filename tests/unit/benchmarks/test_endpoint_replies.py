"""The simulated endpoint recognises our bundled prompts, and its replies are parsed without loss."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import Snapshot

from graphrag_ray.base.context_records import csv_line, section_heading
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, ChatRequest
from graphrag_ray.base.prompts import PLACEHOLDERS, load_prompts, reply_lengths
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.evaluate.judging.corpus_questions import (
    corpus_description,
    corpus_questions,
    description_spec,
    question_specs,
)
from graphrag_ray.evaluate.judging.judge_dialogue import (
    answer_claims,
    answer_claims_spec,
    correct_spec,
    is_correct,
    judge,
    judge_spec,
)
from graphrag_ray.graph.adjudication import adjudicate, resolve_spec, split
from graphrag_ray.graph.delimited_records import DELIMITERS, parse_claims, parse_records
from graphrag_ray.graph.report_dialogue import ReportDraft, parse_report
from graphrag_ray.llm.quirks import yes_no_bias
from graphrag_ray.query.methods.drift_search import parse_step
from graphrag_ray.query.methods.dynamic_selection import parse_ratings
from graphrag_ray.query.methods.fgrag_search import parse_names, parse_questions
from graphrag_ray.query.methods.map_reduce import Scored, parse_points, parse_scored

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.endpoint import draws, replies
from benchmarks.endpoint.options import Options
from benchmarks.endpoint.prompts import kind_of
from benchmarks.endpoint.tokens import PrefixCache, count, first

PROMPTS = load_prompts()
SETTINGS = parse_settings({})
PASSAGE = """The harbour plan of Mara Venn was shown on Monday. It was Teodor Branik who asked why Hask Marsh
should pay for it. Later the Varnmouth Courier wrote that Mara Venn "had no answer". Then Everard Molyn of
Maelin Tidal Energy spoke, and Leontyne Abara left with Teodor Branik."""
CONTEXT = (
    section_heading("Entities", ("id", "entity", "description"))
    + "".join(csv_line([i, f"NAME {i}", f"Name {i} is known for, and by, this."]) for i in range(1, 7))
    + section_heading("Relationships", ("id", "source", "target", "description"))
    + "".join(csv_line([i, f"NAME {i}", "NAME 6", f"They met, {i} times."]) for i in range(1, 6))
)
REPORTS = section_heading("Reports", ("id", "title", "content")) + "".join(
    csv_line([i, f"Title {i}", f"Report {i} says that there is more [to it], and why."]) for i in range(1, 4)
)
VARIABLES = {
    **DELIMITERS,
    **dict.fromkeys(("examples", "language", "role", "rating_criterion", "knowledge", "header"), "x"),
    "claim_description": "any",
    "response_type": "list",
    "entity_types": "PERSON, ORGANIZATION, LOCATION",
    "type_definitions": "- PERSON",
    "relation_definitions": "- KNOWS",
    "if_outside": "Nothing else.",
    "problems": "- entity A: B is no entity type of the schema",
    "period": "From 2020 to 2021.",
    "text": PASSAGE,
    "entities": "MARA VENN\nHASK MARSH",
    "kind": "entity",
    "name": "MARA VENN",
    "candidates": "1. VENN (PERSON)\n- She is mayor.\n\n2. HASK MARSH",
    "descriptions": "Mara Venn is mayor.\nMara Venn has a plan for the harbour.",
    "context": CONTEXT,
    **reply_lengths(500),
    "about": "The harbour of Varnmouth.",
    "documents": "Name the documents.",
    "titles": "- Minutes of March\n- Minutes of May",
    "asked": "Who opposed it?",
    "question": "What now?",
    "answers": section_heading("Answers", ("id", "score", "answer"))
    + csv_line([1, 80, "So it is [Data: Reports (1, 2)]."]),
    "problem": "it is empty",
    "follow_up": "Who opposed it?",
    "n_follow_ups": "3",
    "entity": "Mara Venn",
    "questions": "What did Mara Venn plan?\nWho is against Mara Venn?",
    "n_entities": "8",
    "n_questions": "10",
    "n_facts": "5",
    "concepts": "Mara Venn\nHask Marsh",
    "if_missing": "Say so.",
    "history": section_heading("Conversation", ("question", "answer")) + csv_line(["Who?", "Mara Venn."]),
    "reports": "- Mara Venn: She is mayor.\n- Hask Marsh: It is to be filled.",
    "description": "Minutes and letters on the harbour plan of Mara Venn, and on Hask Marsh.",
    "n": "7",
    "persona": "A town planner.",
    "task": "Find out who is for the plan.",
    "criterion": "Wit: which is wittier?",
    "criteria": "- wit: Wit: which is wittier?\n- overall: Which is better?",
    "names": "wit, overall",
    "statements": "1. Mara Venn is mayor.\n2. Hask Marsh burned.",
    "answer_1": f"{PASSAGE} [Data: Reports (1)]",
    "answer_2": "Nobody knows. <ANSWER_HELPFULNESS>",
    "answer": f"{PASSAGE} [Data: Reports (1)]\n\n" * 8,
    "samples": f"----- text 1 -----\n{PASSAGE}",
    "known": "",
    "gold": "- Mara Venn\n- the mayor",
}


def _messages(name: str, **changes: str) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in PROMPTS[name].fill(VARIABLES | changes)]


def _reply(*turns: list[tuple[str, str]] | str, seed: int = 1, yes: float = 0.5, **body: Any) -> str:
    messages: list[tuple[str, str]] = []
    for turn in turns:
        messages += [("assistant", turn)] if isinstance(turn, str) else turn
    return replies.write(messages, body, seed, yes, "o200k_base")


@pytest.mark.parametrize("name", sorted(set(PLACEHOLDERS) - {"extract_examples"}))
def test_every_bundled_prompt_is_recognised(name: str) -> None:
    assert kind_of(_messages(name)[-1][1]) == name


def test_verdicts_and_groups_are_usable() -> None:
    spec = resolve_spec(PROMPTS, SETTINGS, 2)
    answer = _answering(1, [])
    profiles = ["VENN (PERSON)\n- She is mayor.", "HASK MARSH"]
    verdicts = run_dialogue(adjudicate("MARA VENN", profiles, spec), answer)
    assert [verdict.verdict for verdict in verdicts] == ["same", "different"]
    assert run_dialogue(split("MARA VENN", profiles, spec), answer) == ["MARA VENN", "MARA VENN"]


def test_question_to_rewrite_is_repeated() -> None:
    assert _reply(_messages("condense", question="And before?")) == "And before?"


def test_unknown_prompts_are_not_recognised() -> None:
    assert kind_of("Tell me about <ANSWER_HELPFULNESS> and # Question.") == "other"


def test_extraction_lists_the_names_in_the_passage() -> None:
    records = parse_records(_reply(_messages("extract", text=PASSAGE * 8)))
    names = {e.title for e in records.entities}
    assert records.complete
    assert records.unusable == 0
    assert names >= {"MARA VENN", "TEODOR BRANIK"}
    assert names.isdisjoint({"LATER", "THEN", "IT", "MONDAY"})
    assert {e.type for e in records.entities} <= {"PERSON", "ORGANIZATION", "LOCATION"}
    assert {n for r in records.relationships for n in (r.source, r.target)} <= names


def test_entity_has_the_same_type_in_all_passages() -> None:
    seen = {
        e.type
        for seed in range(20)
        for e in parse_records(_reply(_messages("extract"), seed=seed)).entities
        if e.title == "MARA VENN"
    }
    assert len(seen) == 1


def test_gleaning_adds_missing_names() -> None:
    result = _reply(_messages("extract", text=PASSAGE))
    gleaned = parse_records(
        _reply(_messages("extract"), result, _messages("glean_check"), "Y", _messages("glean"))
    )
    before = {e.title for e in parse_records(result).entities}
    assert gleaned.complete
    assert gleaned.unusable == 0
    assert gleaned.entities
    assert before.isdisjoint(e.title for e in gleaned.entities)


def test_glean_check_is_drawn_or_forced() -> None:
    turn = [*_messages("extract"), ("assistant", "x"), *_messages("glean_check")]
    assert [_reply(turn, yes=y) for y in (0.0, 1.0)] == ["N", "Y"]
    forced = [_reply(turn, yes=y, logit_bias=yes_no_bias("o200k_base")) for y in (0.0, 1.0)]
    assert [f.strip() for f in forced] == ["N", "Y"]
    assert [count(f, "o200k_base") for f in forced] == [1, 1]
    share = sum(_reply(turn, seed=s) == "Y" for s in range(400)) / 400
    assert 0.4 < share < 0.6


def test_claims_are_about_the_requested_entities() -> None:
    claims = parse_claims(_reply(_messages("claims")))
    assert claims.unusable == claims.unreadable == 0
    assert {c.subject for c in claims.claims} <= {"MARA VENN", "HASK MARSH"}
    assert claims.claims


def test_report_cites_ids_of_its_context() -> None:
    for context in (CONTEXT, REPORTS):
        draft = parse_report(_reply(_messages("report", context=context)))
        assert isinstance(draft, ReportDraft)
        assert 3 <= len(draft.findings) <= 8
        assert "[Data: " in draft.findings[0].explanation
        assert "7" not in draft.findings[0].explanation


def test_map_answer_has_a_score_and_reduced_answer_keeps_references() -> None:
    scored = [parse_scored(_reply(_messages("map", context=REPORTS), seed=s)) for s in range(30)]
    assert all(isinstance(s, Scored) for s in scored)
    texts = [s.text for s in scored if isinstance(s, Scored) and s.score > 0]
    assert texts
    assert all("[Data: Reports (" in t for t in texts)
    assert "[Data: Reports (1, 2)]" in _reply(_messages("reduce"))


def test_json_replies_are_parsed_without_loss() -> None:
    for context in (CONTEXT, REPORTS):
        points = parse_points(_reply(_messages("map_points", context=context)))
        assert not isinstance(points, ReplyProblem)
        assert all("[Data: " in p.text for p in points) and points
        for name in ("drift_primer", "drift_local"):
            step = parse_step(_reply(_messages(name, context=context)))
            assert not isinstance(step, ReplyProblem)
            assert step.follow_ups and "[Data: " in step.answer
    drawn = [parse_ratings(_reply(_messages("rate", context=REPORTS), seed=s), {1, 2, 3}) for s in range(60)]
    assert all(len(ratings) == 3 for ratings in drawn)
    relevant = sum(r > 0 for ratings in drawn for r in ratings.values()) / 180
    assert 0.3 < relevant < 0.7


def test_subjects_come_from_the_question_and_are_queried() -> None:
    asked = _messages("query_entities", question="Why does Mara Venn mistrust Hask Marsh?")
    assert parse_names(_reply(asked), 8)[:2] == ["Mara Venn", "Hask Marsh"]
    around = [*asked, ("assistant", "Mara Venn"), *_messages("entity_questions")]
    questions = parse_questions(_reply(around), 10)
    assert 2 <= len(questions) <= 4 and all("Mara Venn" in q for q in questions)
    assert "[Data: Entities (" in _reply(_messages("entity_summary"))


def test_answer_from_a_single_context_cites_it() -> None:
    assert "[Data: Reports (" in _reply(_messages("answer", context=REPORTS))


def _answering(seed: int, asked: list[ChatRequest]) -> Callable[[Any], ChatReply]:
    def answer(request: ChatRequest) -> ChatReply:
        asked.append(request)
        return ChatReply(_reply([(m.role, m.content) for m in request.messages], seed=seed + len(asked)))

    return answer


def test_verdicts_parse_at_the_first_turn_and_favour_the_first_answer() -> None:
    asked: list[ChatRequest] = []
    answer, spec = _answering(1, asked), judge_spec(SETTINGS, PROMPTS)
    found = [
        run_dialogue(judge("Who?", "Wit: which?", ("Mara Venn.", "Hask Marsh."), spec, sample), answer).winner
        for sample in range(1_000)
    ]
    assert len(asked) == 1_000
    first, second, ties = (found.count(winner) / 1_000 for winner in (1, 2, 0))
    assert 0.05 < first - second < 0.15
    assert 0.1 < ties < 0.18


def test_number_of_claims_follows_the_length_of_the_answer() -> None:
    asked: list[ChatRequest] = []
    spec = answer_claims_spec(SETTINGS, PROMPTS)
    long, short, none = (
        [len(run_dialogue(answer_claims("Who?", text, spec), _answering(s, asked))) for s in range(20)]
        for text in (VARIABLES["answer"], PASSAGE, "")
    )
    assert len(asked) == 60
    assert all(10 <= n <= 40 for n in long) and len(set(long)) > 1
    assert all(1 <= n < 10 for n in short)
    assert set(none) == {0}


def test_corpus_questions_have_the_requested_number() -> None:
    asked: list[ChatRequest] = []
    snapshot = Snapshot({}, answer=_answering(1, asked))
    written = corpus_questions(VARIABLES["description"], (3, 2, 40), question_specs(SETTINGS, PROMPTS))
    questions, failures = snapshot.run(written)
    assert (len(questions), failures, len(asked)) == (240, [], 1 + 3 + 6)
    described = corpus_description(VARIABLES["reports"], description_spec(SETTINGS, PROMPTS))
    assert "Mara Venn; Hask Marsh" in run_dialogue(described, _answering(1, asked))


def test_answer_check_is_a_drawn_or_forced_letter() -> None:
    turn = _messages("correct_answer")
    assert [_reply(turn, yes=y) for y in (0.0, 1.0)] == ["N", "Y"]
    forced = [_reply(turn, yes=y, logit_bias=yes_no_bias("o200k_base")) for y in (0.0, 1.0)]
    assert [f.strip() for f in forced] == ["N", "Y"]
    dialogue = is_correct("Who?", ["Mara Venn"], "She.", correct_spec(SETTINGS, PROMPTS))
    assert run_dialogue(dialogue, _answering(1, [])) in (True, False)


def test_correction_answers_the_original_request() -> None:
    corrected = _reply(_messages("report"), "nonsense", _messages("correct"))
    assert isinstance(parse_report(corrected), ReportDraft)


def test_same_request_has_the_same_reply() -> None:
    for name in ("extract", "describe", "report", "map", "reduce", "claims"):
        assert _reply(_messages(name), seed=7) == _reply(_messages(name), seed=7)


def test_text_is_cut_between_tokens() -> None:
    text = "Größe, größer, am größten 🙂"
    for vocabulary in ("o200k_base", "chars"):
        n = count(text, vocabulary)
        assert first(text, n, vocabulary) == text
        assert text.startswith(first(text, n // 2, vocabulary))
        assert count(first(text, n // 2, vocabulary), vocabulary) <= n // 2


def test_continued_conversation_is_cached_up_to_its_last_turn() -> None:
    cache = PrefixCache()
    one, two = ("system", "a"), ("user", "b")
    assert cache.tokens([one, two], [1500, 600]) == 0
    assert cache.tokens([one, ("user", "c")], [1500, 600]) == 1408
    assert cache.tokens([one, two, ("assistant", "d")], [1500, 600, 9]) == 2048
    assert PrefixCache().tokens([one], [1500]) == 0


def test_faults_and_latencies_occur_in_the_configured_shares() -> None:
    options = Options(errors=0.1, drops=0.1, hangs=0.1, garbage=0.1, truncate=0.1, tail=0.05, jitter=0.2)
    drawn = [draws.draw(i.to_bytes(16, "big"), 1, options) for i in range(4000)]
    shares = {f: sum(d.fault == f for d in drawn) / 4000 for f in draws.FAULTS}
    assert all(0.07 < shares[f] < 0.13 for f in ("error", "drop", "hang"))
    assert all(0.03 < shares[f] < 0.07 for f in draws.EATS_ANSWER)
    assert 0.03 < sum(d.slowness > 4 for d in drawn) / 4000 < 0.07
    assert 0.9 < sorted(d.slowness for d in drawn)[1900] < 1.1


def test_repeated_call_draws_anew_and_repeated_run_draws_the_same() -> None:
    options = Options(errors=0.5)
    key = bytes(16)
    faults = [draws.draw(key, n, options).fault for n in range(1, 30)]
    assert len(set(faults)) == 2
    assert faults == [draws.draw(key, n, options).fault for n in range(1, 30)]
    assert faults != [draws.draw(key, n, Options(errors=0.5, seed=2)).fault for n in range(1, 30)]
