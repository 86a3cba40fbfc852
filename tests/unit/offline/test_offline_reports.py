"""Descriptions and reports."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import csv_line, resolve_references, section_heading
from graphrag_ray.base.ids import entity_key
from graphrag_ray.base.messages import CallParameters, ChatRequest
from graphrag_ray.graph.report_context import SEPARATE_GROUPS_NOTE
from graphrag_ray.graph.report_dialogue import ReportDraft, parse_report
from graphrag_ray.offline import answer
from graphrag_ray.offline.quotations import JOIN, MARK, is_balanced, pieces, quotations_in, report_parts

SENTENCES = {
    "ORLA QUIST": "Orla Quist is the harbour engineer of Denholm, and has been for nine years.",
    "KESTREL MARINE": "Kestrel Marine builds turbines in a net loft on Cordage Street.",
    "DENHOLM": "Nobody in Denholm had ever seen the tide do any work before this spring.",
}
LINKS = {
    ("ORLA QUIST", "KESTREL MARINE"): "When the yard closed, Orla Quist put her savings into Kestrel Marine.",
    ("KESTREL MARINE", "DENHOLM"): "The council of Denholm lent Kestrel Marine six million crowns.",
}


def ask(prompt, **variables):
    return answer(ChatRequest(prompt, (), CallParameters("default", "offline-1"), variables)).text


def context(entities=SENTENCES, links=LINKS, reports=()):
    text = ""
    if reports:
        text += section_heading("Reports", ("id", "title", "content"))
        text += "".join(csv_line([i, *r]) for i, r in enumerate(reports, 1))
    text += section_heading("Entities", ("id", "entity", "description"))
    text += "".join(csv_line([i, k, v]) for i, (k, v) in enumerate(entities.items(), 1))
    if links:
        text += section_heading("Relationships", ("id", "source", "target", "description"))
        text += "".join(csv_line([i, *k, v]) for i, (k, v) in enumerate(links.items(), 1))
    return text


def draft(text, max_tokens="2000"):
    found = parse_report(ask("report", context=text, max_tokens=max_tokens))
    assert isinstance(found, ReportDraft)
    return found


def test_report_on_unconnected_groups_does_not_call_them_a_community():
    text = SEPARATE_GROUPS_NOTE.format(3) + "\n" + context(links={})
    summary = draft(text).summary
    assert summary.startswith("3 small groups without a link between them, among them those of ")
    assert "community" not in summary and "A community around" in draft(context()).summary


def whole(report):
    return "\n".join([report.summary, *(f"{one.summary}\n{one.explanation}" for one in report.findings)])


def test_report_consists_of_quotations_with_references():
    report = draft(context())
    result = quotations_in(whole(report))
    assert sorted(result) == sorted([*SENTENCES.values(), *LINKS.values()])
    numbering = {("Entities", i): f"e{i}" for i in (1, 2, 3)} | {
        ("Relationships", i): f"r{i}" for i in (1, 2)
    }
    text, references, dropped = resolve_references(whole(report), numbering)
    assert dropped == 0
    assert len(references) == 5
    assert f"“{SENTENCES['ORLA QUIST']}” [Data: Entities (e1)]" in text


def test_sentence_of_two_records_is_quoted_once_with_both_references():
    shared = LINKS["ORLA QUIST", "KESTREL MARINE"]
    report = draft(context({**SENTENCES, "ORLA QUIST": shared}))
    assert whole(report).count(shared) == 1
    assert f"“{shared}” [Data: Entities (1); Relationships (1)]" in whole(report)


def test_findings_are_about_members_best_connected_first():
    report = draft(context())
    heads = [one.summary.split(" — ")[0] for one in report.findings]
    assert heads[0] == "Kestrel Marine"
    assert set(heads) <= {"Kestrel Marine", "Orla Quist", "Denholm"}


def test_title_uses_the_spelling_of_the_corpus():
    assert draft(context()).title == "Kestrel Marine, Denholm, Orla Quist"
    acronyms = draft(context({"NASA": "They flew with NASA twice.", "X": "There was an X on it all."}, {}))
    assert set(acronyms.title.split(", ")) == {"NASA", "X"}


@pytest.mark.parametrize("name", ["Yasemin Dalkılıç", "İrşadi Aksun", "Weiß am Strauß", "Ole’s Yard"])
def test_name_keeps_the_letters_of_the_corpus(name):
    title = entity_key(name.replace("’", "'"))
    text = f"Once upon a time {name} went from Straße to Straße, and came back."
    assert draft(context({title: text}, {})).title == name.replace("’", "'")


def test_rating_grows_with_the_community_and_stays_in_range():
    small = draft(context(dict([next(iter(SENTENCES.items()))]), {})).rating
    many = {f"N{i}": f"Number N{i} was seen by the keeper at {i} in the morning." for i in range(300)}
    assert 0 < small < draft(context()).rating < draft(context(many, {})).rating <= 10


def test_report_states_that_it_is_generated_offline():
    assert draft(context()).summary.endswith(MARK)


def test_report_on_sub_communities_cites_their_reports():
    content = (
        f"A community. “{SENTENCES['DENHOLM']}” {MARK} ## Denholm — with Ostrey “They met in Ostrey at noon.”"
    )
    report = draft(context({}, {}, [("Denholm, Ostrey", content)]))
    assert sorted(quotations_in(whole(report))) == sorted(
        [SENTENCES["DENHOLM"], "They met in Ostrey at noon."]
    )
    assert report.title == "Denholm, Ostrey"
    assert whole(report).count("[Data: Reports (1)]") == 2


@pytest.mark.parametrize("text", ["", context({}, {}), context({"ORLA QUIST": ""}, {})])
def test_context_without_quotations_yields_a_usable_report(text):
    found = draft(text)
    assert found.findings and found.summary.startswith("A community")


def test_report_respects_its_length_limit():
    many = {
        f"N{i}": f"Keeper {i} of lamp {i * 7} wrote {i * 11} letters to his {i}th cousin." for i in range(200)
    }
    assert len(json.dumps(ask("report", context=context(many, {}), max_tokens="300"))) < 300 * 6


@given(
    st.dictionaries(
        st.sampled_from(["ORLA QUIST", "DENHOLM", "NASA", "A, B"]),
        st.lists(st.text(alphabet="ab “”.#[]…\n", max_size=20), max_size=3).map(JOIN.join),
        max_size=4,
    )
)
def test_any_description_yields_a_valid_report_without_repeats(entities):
    report = draft(context(entities, {}))
    result = quotations_in(whole(report))
    assert len(result) == len({s.casefold() for s in result})
    known = {p for d in entities.values() for p in pieces(" ".join(d.split()))}
    assert set(result) <= known


def test_description_joins_distinct_quotations_in_order():
    first, second = "Orla Quist is an engineer.", "Orla Quist left Denholm in May."
    text = ask(
        "describe",
        kind="entity",
        name="ORLA QUIST",
        descriptions=f"{first}\n{second}\n{first}",
        max_tokens="500",
    )
    assert text == f"{first}{JOIN}{second}"
    assert pieces(text) == [first, second]


def test_description_prefers_definitions_that_fit():
    lines = [f"Then on day {i} a boat of sort {i} came in with Orla Quist aboard it." for i in range(30)]
    lines.insert(15, "Orla Quist is the harbour engineer of Denholm and its only diver.")
    text = ask("describe", kind="entity", name="ORLA QUIST", descriptions="\n".join(lines), max_tokens="60")
    assert "is the harbour engineer" in text
    assert len(text) <= 60 * 4
    assert all(p in lines for p in pieces(text))


def test_nested_descriptions_keep_their_quotations_separate():
    one, two = f"A is b.{JOIN}C is d.", f"E is f.{JOIN}A is b."
    text = ask("describe", kind="relationship", name="A — C", descriptions=f"{one}\n{two}", max_tokens="500")
    assert pieces(text) == ["A is b.", "C is d.", "E is f."]


def test_truncated_description_loses_its_last_quotation():
    assert pieces(f"A is b.{JOIN}C is…") == ["A is b."]


def test_quotations_with_inner_marks_are_parsed():
    assert quotations_in("a “b “c” d” e “f” g “h") == ["b “c” d", "f"]
    assert is_balanced("b “c” d") and not is_balanced("”b“")
    assert report_parts("x “a” y ## Mara Venn — with B “b”") == [("", ["a"]), ("Mara Venn", ["b"])]
