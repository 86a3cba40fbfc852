"""Questions: the map and the reduce prompt."""

import json
import re

import pytest

from graphrag_ray.base.context_records import csv_line, section_heading
from graphrag_ray.base.errors import PermanentCallError
from graphrag_ray.base.messages import CallParameters, ChatRequest
from graphrag_ray.offline import answer
from graphrag_ray.offline.question_terms import explain_no_match, read_question
from graphrag_ray.offline.quotations import MARK, quotations_in, stands_alone
from graphrag_ray.query.methods.map_reduce import Scored, parse_scored

REPORTS = [
    ("Hask Marsh, Thackwell Brewery", [
        "The eels of the marsh died after mud from the dredging was dumped at the sluice.",
        "The brewery was shut for six weeks because inspectors blamed its pipe for the eels.",
    ]),
    ("Orla Quist, Kestrel Marine", [
        "Orla Quist founded Kestrel Marine in a net loft.",
        "Kestrel Marine learned more from the failure of its first turbine than from any success.",
        "Privacy laws never troubled a turbine, Orla Quist told the paper.",
    ]),
    ("Denholm Mutual, Ada Brigg", [
        "The bank lent six million crowns to the tidal barrage after a vote of its members.",
        "Ada Brigg described the loan as the bravest decision of the bank.",
    ]),
    ("Rowing Club, Nils Aber", ["The club lost the race of the year by the length of one oar."]),
]  # fmt: skip


def context(reports=REPORTS):
    text = section_heading("Reports", ("id", "title", "content"))
    for number, (title, sentences) in enumerate(reports, 1):
        content = f"A community; rated {10 - number}.0 of 10. " + " ".join(f"“{s}”" for s in sentences)
        text += csv_line([number, title, content])
    return text


def ask(prompt, **variables):
    return answer(ChatRequest(prompt, (), CallParameters("default", "offline-1"), variables)).text


def mapped(question, **variables):
    found = parse_scored(ask("map", question=question, context=context(), max_tokens="1000", **variables))
    assert isinstance(found, Scored)
    return found


def reduced(question, answers, **variables):
    text = section_heading("Answers", ("id", "score", "answer"))
    text += "".join(csv_line([i, score, a]) for i, (score, a) in enumerate(answers, 1))
    return ask("reduce", question=question, answers=text, max_tokens="2000", **variables)


def test_question_is_answered_with_matching_sentences_that_cite_their_report():
    found = mapped("Why did the eels in the marsh die?")
    assert quotations_in(found.text)[0].startswith("The eels of the marsh died")
    assert "[Data: Reports (1)]" in found.text
    assert found.score > 50


@pytest.mark.parametrize(
    "question",
    [
        "What is a good recipe for sourdough bread?",
        "How many goals were scored in the 1998 football World Cup?",
        "Who painted the Sistine Chapel?",
        "How long do I boil an egg?",
        "Which year was the bank of England nationalised?",
        "What do vaccines cost?",
    ],
)
def test_question_outside_the_reports_scores_zero(question):
    found = mapped(question)
    assert (found.score, found.text) == (0, "")


def test_a_single_shared_common_word_is_not_a_match():
    assert mapped("How do I paint a club room in one year?").score == 0


def test_question_about_the_whole_corpus_uses_the_highest_rated_reports():
    found = mapped("What are the main themes?")
    assert found.score > 0
    assert "[Data: Reports (1)]" in found.text
    assert len(set(re.findall(r"Reports \((\d)\)", found.text))) >= 3


def test_question_about_the_whole_corpus_prefers_matching_reports():
    found = mapped("Which stories about failure do the speakers tell?")
    assert "failure of its first turbine" in quotations_in(found.text)[0]


def test_question_about_the_whole_corpus_with_an_unknown_name_finds_nothing():
    assert mapped("Which themes does Beethoven discuss?").score == 0


def test_name_of_ordinary_words_counts_as_a_phrase():
    question = read_question("Who lost the World Cup?")
    assert "world cup" in question.terms
    assert "world cup" in question.found_in(["world", "cup"])
    assert question.found_in(["world"]) == question.found_in(["cup"]) == set()


@pytest.mark.parametrize(
    ("question", "verbs", "things"),
    [
        ("How did Azure's growth develop?", ("develop",), {"azure", "growth"}),
        ("Who opposed the harbour loan?", ("oppos",), {"harbour", "loan"}),
        ("How did the harbour plan change?", ("change",), {"harbour", "plan"}),
        ("What does the bank plan for Denholm?", ("plan",), {"bank", "denholm"}),
        ("What is said of the plan?", (), {"plan"}),
    ],
)
def test_verbs_of_a_question_weigh_less_than_its_subjects(question, verbs, things):
    read = read_question(question)
    assert {v[:4] for v in read.verbs} == {v[:4] for v in verbs}
    assert {t[:4] for t in read.things} == {t[:4] for t in things}


SOURCES = (
    "OPERATOR: Thank you for the question about Azure growth. MARA VENN: Azure growth was 31 percent, "
    "since developers moved their work. During this call we make forward-looking statements, and growth is "
    "among the risks. The greatest risks of the business are late deliveries. Our developers develop tools "
    "for developers."
)


def answered(question):
    context = section_heading("Sources", ("id", "text")) + csv_line([1, SOURCES])
    result = ask("answer", question=question, context=context, max_tokens="1000", response_type="a paragraph")
    return quotations_in(result.partition(MARK)[0])


def test_answer_is_about_the_subjects_of_a_question_not_its_verb():
    first, *_ = answered("How did Azure's growth develop?")
    assert first == "Azure growth was 31 percent, since developers moved their work."


def test_speaker_labels_are_not_quoted():
    assert not any("VENN" in quote or "OPERATOR" in quote for quote in answered("What of Azure growth?"))


def test_legal_notices_and_courtesies_come_last():
    first, *_ = answered("What are the risks of growth?")
    assert first == "The greatest risks of the business are late deliveries."
    assert stands_alone("Thank you, and good evening, everybody.") < 0.2


def test_answer_repeats_no_sentence_and_quotes_at_most_two_per_report():
    found = mapped("What topics are discussed?")
    result = quotations_in(found.text)
    assert len(result) == len(set(result))
    assert all(found.text.count(f"Reports ({n})") <= 2 for n in range(1, 5))


def test_answer_respects_its_length_limit():
    short = parse_scored(
        ask("map", question="What topics are discussed?", context=context(), max_tokens="40")
    )
    assert isinstance(short, Scored)
    assert len(quotations_in(short.text)) == 1


def test_source_chunks_can_answer_questions():
    sources = section_heading("Sources", ("id", "text")) + csv_line(
        [7, "The eels died in the marsh. It rained."]
    )
    found = parse_scored(ask("map", question="Why did the eels die?", context=sources, max_tokens="500"))
    assert isinstance(found, Scored)
    assert "“The eels died in the marsh.” [Data: Sources (7)]" in found.text


def test_reduce_merges_answers_without_copies_and_keeps_references():
    one = "**Hask Marsh**: “The eels died.” [Data: Reports (4)] “It was mud.” [Data: Reports (4, 9)]"
    two = "**Kestrel**: “It turned.” [Data: Reports (2)] “The eels died.” [Data: Reports (2)]"
    text = reduced("Why did the eels die?", [(90, one), (40, two)])
    assert sorted(quotations_in(text)) == ["It turned.", "It was mud.", "The eels died."]
    assert "“It was mud.” [Data: Reports (4, 9)]" in text
    assert text.index("The eels died.") < text.index("It turned.")
    assert text.endswith(MARK)


def test_reduce_lists_the_words_of_the_question_that_it_found():
    text = reduced("Why did the eels and cockles die?", [(90, "“The eels died.” [Data: Reports (4)]")])
    assert "Looked for: eels, die. Not found: cockles." in text


def test_different_questions_have_different_answers():
    answers = [(50, "**A**: “The eels died.” [Data: Reports (1)] “The bank paid.” [Data: Reports (2)]")]
    assert reduced("Why did the eels die?", answers) != reduced("What did the bank pay?", answers)


def test_a_list_is_written_as_a_list():
    answers = [
        (50, "**A**: “The eels died.” [Data: Reports (1)] **B**: “The bank paid.” [Data: Reports (2)]")
    ]
    text = reduced("What happened?", answers, response_type="list of 3-7 points")
    assert text.count("\n- ") + text.startswith("- ") == 2


def test_reduce_reports_missing_quotations():
    assert "The records found do not answer" in reduced("Why?", [(50, "hearsay without marks")])


LOOKED_UP = (
    section_heading("Reports", ("id", "title", "content"))
    + csv_line([1, "Hask Marsh", "A community; rated 5.0 of 10. “Eels of the marsh are eaten in spring.”"])
    + section_heading("Entities", ("id", "entity", "description"))
    + csv_line([1, "HASK MARSH", "The eels of Hask Marsh died in May."])
    + section_heading("Relationships", ("id", "source", "target", "description"))
    + csv_line([4, "BREWERY", "HASK MARSH", "A pipe of the brewery leads into the marsh."])
    + section_heading("Claims", ("id", "subject", "object", "type", "status", "description"))
    + csv_line([2, "BREWERY", "NONE", "POLLUTION", "TRUE", "The brewery killed the eels, says the court."])
    + section_heading("Sources", ("id", "text"))
    + csv_line([3, "It rained. The eels of Hask Marsh died in May. Nobody was at the mill."])
)


def looked_up(question, **variables):
    return ask("answer", question=question, context=LOOKED_UP, max_tokens="1000", **variables)


def test_records_answer_with_their_matching_sentences():
    text = looked_up("Who killed the eels?")
    assert "**BREWERY**: “The brewery killed the eels, says the court.” [Data: Claims (2)]" in text
    assert "Nobody was at the mill" not in text and "ANSWER_HELPFULNESS" not in text
    assert text.endswith(f"Looked for: killed, eels. {MARK}")


def test_sentence_of_several_records_is_quoted_once_with_all_references():
    text = looked_up("When did the eels of Hask Marsh die?")
    assert text.count("The eels of Hask Marsh died in May.") == 1
    assert "“The eels of Hask Marsh died in May.” [Data: Entities (1); Sources (3)]" in text


def test_chunk_is_quoted_without_title_as_a_list_of_sentences():
    sources = section_heading("Sources", ("id", "text")) + csv_line(
        [7, "The eels died in May. The eels were eaten."]
    )
    variables = {"question": "What of the eels?", "context": sources, "response_type": "list of 3 points"}
    text = ask("answer", max_tokens="500", **variables)
    assert text.startswith("- “The eels died in May.” [Data: Sources (7)]\n- “The eels were eaten.” [Data")


@pytest.mark.parametrize("question", ["How do I prune roses in winter?", "Who painted the Sistine Chapel?"])
def test_irrelevant_records_are_not_quoted(question):
    assert looked_up(question) == f"The records found do not answer this question. {MARK}"


def test_answer_from_one_context_respects_its_length_limit():
    text = ask("answer", question="What of the eels in the marsh?", context=LOOKED_UP, max_tokens="30")
    assert len(quotations_in(text)) == 1


def test_correction_gets_the_reply_of_the_first_turn():
    variables = {"question": "What topics are discussed?", "context": context(), "max_tokens": "1000"}
    call = CallParameters("default", "offline-1")
    first = ChatRequest("map", (), call, variables)
    reply = answer(first)
    corrected = first.next_turn(reply, "correct", "", variables={**variables, "problem": "x"})
    assert answer(corrected).text == reply.text and "“" in reply.text
    assert answer(corrected.next_turn(reply, "correct", "")).text == reply.text


def test_unknown_prompt_is_reported_by_name():
    with pytest.raises(PermanentCallError, match="'translate'"):
        ask("translate")


def test_words_for_kinds_of_actors_have_no_content():
    asked = read_question("Which organisations, groups and individuals opposed each other?")
    assert asked.words == ("opposed",)


@pytest.mark.parametrize("asked", ["strikes", "striking", "strike"])
def test_word_matches_in_any_form(asked):
    assert set(read_question(asked).terms) == set(read_question("strike").terms)


def test_unanswered_question_lists_the_missing_words():
    assert "too few of these: roses, winter." in explain_no_match("Which organisations need roses in winter?")
    assert "none to look for" in explain_no_match("Who said what?")


@pytest.mark.parametrize(
    "text",
    [
        "MARA VENN: Why is there a bath? IFEOMA TREGELLIS: It is the cheapest estuary in Ostrey.",
        "Why was the harbour plan refused?",
        "But we dug last month under the old jetty.",
        "Varnmouth Courier, books page, 28 October 2017",
        "that the plan was refused on every ground.",
        "Dame Ottoline Revell | refused the plan | 2018.",
    ],
)
def test_context_dependent_sentences_count_less(text):
    assert stands_alone(text) < stands_alone("Dame Ottoline Revell refused the plan in 2018.") == 1.0


def test_self_contained_sentence_is_quoted_first_among_equal_matches():
    content = (
        "“Was the harbour plan of Denholm refused?” ## Denholm “The harbour plan of Denholm was refused.”"
    )
    context = section_heading("Reports", ("id", "title", "content")) + csv_line([1, "Denholm", content])
    result = quotations_in(ask("map", question="What became of the harbour plan?", context=context))
    assert result[0] == "The harbour plan of Denholm was refused."


def points(question, **variables):
    return json.loads(
        ask("map_points", question=question, context=context(), max_tokens="1000", **variables)
    )["points"]


def test_points_are_quotations_per_title_by_descending_score():
    found = points("What topics are discussed?")
    assert [p["score"] for p in found] == sorted((p["score"] for p in found), reverse=True)
    one = mapped("What topics are discussed?")
    assert [p["description"] for p in found] == one.text.split("\n") and found[0]["score"] == one.score
    assert points("How do I prune roses?") == []


def rated(question):
    reply = json.loads(ask("rate", question=question, context=context(), max_tokens="1000"))
    return {r["id"]: r["rating"] for r in reply["ratings"]}


def test_report_is_rated_by_its_share_of_the_terms():
    found = rated("Why did the eels in the marsh die?")
    assert set(found) == {1, 2, 3, 4} and found[1] >= 4 and found[4] == 0
    assert set(rated("How do I prune roses?").values()) == {0}


def test_question_about_the_whole_corpus_matches_every_report():
    assert set(rated("What are the main themes?").values()) == {3}


@pytest.mark.parametrize(
    ("question", "subjects"),
    [
        ("How can beekeepers be paid for honey and wax?", ["beekeepers", "honey", "wax"]),
        ("Why does the marsh matter to Orla Quist?", ["Orla Quist", "marsh"]),
        (
            "What do tech leaders say about artificial intelligence?",
            ["tech leaders", "artificial intelligence"],
        ),
        ("What are the main themes?", ["main themes"]),
        ("Who is it?", ["NONE"]),
        ("", ["NONE"]),
    ],
)
def test_subjects_of_a_question_are_runs_of_terms_names_first(question, subjects):
    assert ask("query_entities", question=question, n_entities="8").split("\n") == subjects


def test_number_of_subjects_and_questions_is_limited():
    question = "Do eels, mills, marshes, boats, bridges and turbines matter?"
    assert len(ask("query_entities", question=question, n_entities="3").split("\n")) == 3
    around = ask("entity_questions", question=question, entity="eels", n_questions="4").split("\n")
    assert len(around) == 4 and all("eels" in asked and asked.endswith("?") for asked in around)


def test_summary_of_a_subject_quotes_only_matches_of_the_question():
    shown = section_heading("Entities", ("id", "entity", "description")) + csv_line(
        [1, "EELS", "The eels of the marsh died in May. Nobody knows what they ate."]
    )
    given = {"context": shown, "questions": "", "max_tokens": "1000"}
    found = ask("entity_summary", question="Why did the eels in the marsh die?", entity="eels", **given)
    assert "[Data: Entities (1)]" in found and "died in May" in found
    assert ask("entity_summary", question="Who founded Kestrel Marine?", entity="eels", **given) == "NONE"


def drifted(prompt, question, **variables):
    own = {"question": question, "context": context(), "max_tokens": "1000", "n_follow_ups": "2"}
    return json.loads(ask(prompt, **own, **variables))


def test_first_answer_follows_up_on_report_titles():
    found = drifted("drift_primer", "Why did the eels in the marsh die?")
    assert "“The eels of the marsh died" in found["answer"] and found["score"] > 0
    assert found["follow_ups"][0]["question"] == "What is said about Hask Marsh?"
    assert len(found["follow_ups"]) <= 2
    assert drifted("drift_primer", "How do I prune roses?") == {"answer": "", "score": 0, "follow_ups": []}


def test_follow_up_answer_is_scored_by_the_users_question():
    found = drifted("drift_local", "Why did the eels die?", follow_up="Who founded Kestrel Marine?")
    assert "Orla Quist founded Kestrel Marine" in found["answer"]
    near = drifted("drift_local", "Who founded Kestrel Marine?", follow_up="Who founded Kestrel Marine?")
    assert found["score"] <= near["score"]


def test_title_gives_context_and_is_not_quoted():
    chunks = section_heading("Sources", ("id", "document", "text"))
    chunks += csv_line([1, "Minutes of March (2023-03-14)", "The board heard the sailors on eels."])
    chunks += csv_line([2, "Minutes of September (2023-09-14)", "The board heard the fishermen on eels."])
    result = ask("answer", question="Whom did the board hear in September?", context=chunks, max_tokens="500")
    assert result.startswith(
        "**Minutes of September (2023-09-14)**: “The board heard the fishermen on eels.”"
    )
    assert "“Minutes" not in result


def test_names_and_rare_words_are_low_level_keywords_and_others_high_level():
    found = json.loads(ask("keywords", question="Why did the bank of Denholm Mutual finance the barrage?"))
    assert {"Denholm", "Mutual"} <= {word for low in found["low_level"] for word in low.split()}
    assert found["high_level"] and not set(found["high_level"]) & set(found["low_level"])


def test_question_without_content_words_is_its_own_keyword():
    assert json.loads(ask("keywords", question="And why?")) == {"high_level": ["And why?"], "low_level": []}


def test_answer_without_data_says_so():
    assert "cannot answer a question without data" in ask("zero_shot", question="Who opposed the harbour?")
