"""Lazy search: subqueries, relevance tests within a budget, claims, and the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import toy_model
from driving import COUNT, Snapshot, drive
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import BudgetSpent, UsageError
from graphrag_ray.base.ids import entity_id
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, ChatRequest, Reply, Request
from graphrag_ray.query.methods import lazy_search
from graphrag_ray.query.methods.answer import UNREADABLE, Answer
from graphrag_ray.query.methods.lazy_search import (
    MAX_SUBQUERIES,
    MAX_SUBQUERY_TOKENS,
    NO_COMMUNITIES,
    NO_GRAPH,
    PASSAGES_PER_CALL,
    SUBQUERIES,
    TEST,
    break_down,
    parse_subqueries,
    parse_tests,
    subquery_spec,
)
from graphrag_ray.query.methods.map_reduce import NOTHING_FOUND
from graphrag_ray.query.methods.method import Dialogues, Question, Rows, Search

N_CHUNKS = 120
TOPICS = ("MILL", "BOAT", "CHOIR", "LOAN")
"""Every fourth chunk is about a topic, whose community is the number of the topic."""
HOST = "NOBODY"
"""A name in every chunk."""


def corpus(relevant: Collection[str] = TOPICS) -> dict[str, list[dict[str, Any]]]:
    chunks, of_topic = [], dict[str, list[str]]()
    for n in range(N_CHUNKS):
        topic = TOPICS[n % len(TOPICS)]
        text = f"The {topic if topic in relevant else 'weather'} of {n}. " + "So it went on. " * 10
        id_ = f"{n:032x}"
        of_topic.setdefault(topic, []).append(id_)
        entities = [entity_id(f"{topic} {n // 40}"), entity_id(HOST)]
        chunks.append(
            {
                "id": id_,
                "human_readable_id": n,
                "text": text,
                "n_tokens": COUNT(text),
                "document_id": f"d{n % 2}",
                "entity_ids": entities,
            }
        )
    communities = [
        {"community": c, "level": 0, "parent": -1, "entity_ids": [entity_id(f"{t} {k}") for k in range(3)]}
        for c, t in enumerate(TOPICS)
    ]
    communities[0]["entity_ids"].append(entity_id(HOST))
    documents = [
        {
            "id": d,
            "title": d,
            "path": f"{d}.txt",
            "text_unit_ids": [c["id"] for c in chunks if c["document_id"] == d],
        }
        for d in ("d0", "d1")
    ]
    entities = [
        {"id": entity_id(f"{t} {k}"), "title": f"{t} {k}", "frequency": 10} for t in TOPICS for k in range(3)
    ]
    return {"text_units": chunks, "communities": communities, "documents": documents, "entities": entities}


def nearest(search: Search) -> list[str]:
    if search.kind == "entity":
        return [entity_id("MILL 0"), entity_id("LOAN 1")]
    return [f"{n:032x}" for n in range(N_CHUNKS)]


def snapshot(
    answer: Callable[[Request], Reply] = toy_model.answer, relevant: Collection[str] = TOPICS, **without: Any
) -> Snapshot:
    tables = {name: rows for name, rows in corpus(relevant).items() if name not in without}
    return Snapshot(tables, nearest, answer)


def ask(snap: Snapshot, question: str = "What about MILL ?", *where: str, **query: Any) -> Answer:
    return snap.run(lazy_search.search(Question(question, where=where), snap.given(**query)))


def calls(snap: Snapshot, phase: str = "rate") -> list[list[Any]]:
    """The arguments of the dialogues of each round."""
    return [
        [start.args for start in need.factories]
        for need in snap.needs
        if isinstance(need, Dialogues) and need.phase == phase
    ]


def pairs_of(snap: Snapshot) -> list[tuple[str, str]]:
    """The tested pairs of subquery and chunk."""
    return [
        (subquery, id_)
        for dialogues in calls(snap)
        for subquery, context, _ in dialogues
        for id_ in context.numbering.values()
    ]


def replying(**texts: str) -> Callable[[Request], Reply]:
    """Answer some prompts, and their corrections, with these texts, and the others by the toy rules."""

    def answer(request: Request) -> Reply:
        assert isinstance(request, ChatRequest)
        name = request.first_prompt if request.prompt == "correct" else request.prompt
        return ChatReply(texts[name]) if name in texts else toy_model.answer(request)

    return answer


def test_relevant_passages_are_found_and_cited():
    answer = ask(snapshot(relevant=("MILL",)))
    assert answer.found and "The MILL of" in answer.text and "[Data: Sources (" in answer.text
    assert {r.section for r in answer.references} == {"Sources"}
    cited = {int(r.id, 16) % len(TOPICS) for r in answer.references}
    assert cited == {TOPICS.index("MILL")}
    assert {used.phase for used in answer.contexts} == {"rate", "map", "reduce"}
    assert "Subqueries: What about MILL ?" in answer.notes


def test_a_call_tests_several_passages_of_one_subquery():
    snap = snapshot()
    ask(snap, "MILL and BOAT ?")
    contexts = [context for dialogues in calls(snap) for _, context, _ in dialogues]
    assert max(len(c.numbering) for c in contexts) == PASSAGES_PER_CALL
    assert {subquery for subquery, _ in pairs_of(snap)} == {"What about MILL ?", "What about BOAT ?"}


@given(st.integers(1, 300), st.integers(0, 3))
def test_the_number_of_tests_is_within_the_budget(budget: int, n_topics: int):
    snap = snapshot()
    answer = ask(snap, " ".join(TOPICS[:n_topics]) or "Who?", lazy_tests=budget)
    tested = pairs_of(snap)
    assert len(tested) == len(set(tested)) <= budget
    assert any(note.startswith(f"Tested {len(tested)} passage") for note in answer.notes)


def test_subqueries_share_the_budget_and_what_one_does_not_need_goes_to_the_others():
    """The communities of the boat have nothing relevant."""
    snap = snapshot(relevant=("MILL",))
    ask(snap, "MILL and BOAT ?", lazy_tests=60)
    tested = [subquery for subquery, _ in pairs_of(snap)]
    assert tested[:16].count("What about MILL ?") == 8
    assert tested.count("What about MILL ?") > tested.count("What about BOAT ?") >= 20


def test_a_name_in_every_chunk_does_not_put_all_chunks_into_one_community():
    snap = snapshot(relevant=("LOAN",))
    ask(snap, "What about LOAN ?", lazy_tests=40)
    (second,) = calls(snap)[1:2]
    topics = [int(id_, 16) % 4 for _, context, _ in second for id_ in context.numbering.values()]
    assert sorted(topics) == [c for c in range(4) for _ in range(4)]


def test_an_index_without_communities_is_searched_by_similarity():
    answer = ask(snap := snapshot(communities=0), lazy_tests=20)
    assert answer.found and NO_COMMUNITIES in answer.notes
    assert [int(id_, 16) for _, id_ in pairs_of(snap)] == list(range(20))
    answer = ask(snapshot(communities=0, entities=0), lazy_tests=20)
    assert answer.found and NO_GRAPH in answer.notes


def test_without_embeddings_the_search_uses_keywords():
    snap = snapshot()
    env = snap.given()
    n_rows = {name: n for name, n in env.n_rows.items() if not name.startswith("embeddings_")}
    answer = snap.run(lazy_search.search(Question("What about MILL ?"), replace(env, n_rows=n_rows)))
    assert answer.found
    assert {need.by for need in snap.needs if isinstance(need, Search)} == {"keyword"}


def test_conditions_restrict_what_is_tested_and_the_concepts():
    snap = snapshot()
    answer = ask(snap, "What about MILL ?", "path=d0.txt")
    assert answer.found and all(int(id_, 16) % 2 == 0 for _, id_ in pairs_of(snap))
    assert all(need.only_ids is not None for need in snap.needs if isinstance(need, Search))


def test_nothing_is_found_if_nothing_is_relevant():
    answer = ask(snap := snapshot(relevant=()))
    assert not answer.found and answer.text == NOTHING_FOUND and not answer.failed_parts
    assert not calls(snap, "map") and any("0 relevant" in note for note in answer.notes)
    assert not ask(Snapshot(corpus())).found, "nothing is near"
    assert "To test more passages" not in " ".join(answer.notes), "it ended before the budget"
    assert "To test more passages" in " ".join(ask(snapshot(relevant=()), lazy_tests=5).notes)


def test_unreadable_tests_are_failures_and_not_irrelevant():
    answer = ask(snap := snapshot(replying(**{TEST: "I would say the third one."})))
    assert len(calls(snap)) == 2, "no more rounds if several calls and none succeeded"
    assert answer.unread and answer.text.startswith(UNREADABLE) and answer.failed_parts
    assert any("could not be tested" in note for note in answer.notes)


def test_tests_that_fail_in_part_are_reported_next_to_the_answer():
    def answer(request: Request) -> Reply:
        fails = "MILL of 0." in str(request.variables.get("context"))
        return ChatReply("?") if fails else toy_model.answer(request)

    found = ask(snapshot(answer))
    assert found.found and found.failed_parts == 1
    assert "8 passages could not be tested, because 1 of these calls failed." in " ".join(found.notes)


def test_claims_that_cannot_be_extracted_make_the_question_unanswered():
    answer = ask(snapshot(replying(map_points="no")))
    assert answer.unread and answer.failed_parts


def test_without_readable_subqueries_the_question_is_the_only_one():
    answer = ask(snap := snapshot(replying(**{SUBQUERIES: "Look around."})))
    assert answer.found and {subquery for subquery, _ in pairs_of(snap)} == {"What about MILL ?"}
    assert any("could not be broken into subqueries" in note for note in answer.notes)


def test_hostile_subqueries_are_cut_and_few():
    many = json.dumps({"subqueries": ["word " * 5_000, *(f"MILL {n}?" for n in range(50))], "expanded": 3})
    snap = snapshot(replying(**{SUBQUERIES: many}))
    assert ask(snap, lazy_tests=50).found
    subqueries = {subquery for subquery, _ in pairs_of(snap)}
    assert len(subqueries) == MAX_SUBQUERIES and max(map(COUNT, subqueries)) <= MAX_SUBQUERY_TOKENS


def test_the_prompt_shows_concepts_of_the_corpus():
    snap = snapshot()
    ask(snap)
    ((arguments,),) = calls(snap, "steps")
    assert set(arguments[1]) == {"MILL 0", "LOAN 1"}
    spec = subquery_spec(snap.given().settings, snap.given().prompts)
    result, (request,) = drive(break_down("Who?", arguments[1], spec), '{"subqueries": ["Who is it?"]}')
    assert result is not None and result.texts == ("Who is it?",)
    assert "MILL 0\nLOAN 1" in request.messages[-1].content


def test_a_budget_of_tokens_limits_the_tests_or_refuses_the_question():
    snap = snapshot()
    ask(snap, budget_tokens=60_000)
    assert 0 < len(pairs_of(snap)) < 100
    ask(more := snapshot(), budget_tokens=10_000_000)
    assert len(pairs_of(more)) > len(pairs_of(snap))
    with pytest.raises(BudgetSpent, match=r"query\.budget_tokens is 5,000"):
        ask(snapshot(), budget_tokens=5_000)


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="does not fit"):
        ask(snapshot(), context_tokens=200_000)


def test_requests_for_the_same_passages_and_subquery_do_not_depend_on_the_question():
    requests: list[list[str]] = []
    for question in ("What about MILL ?", "Well, what about MILL then?"):
        seen: list[str] = []

        def answer(request: Request, seen: list[str] = seen) -> Reply:
            assert isinstance(request, ChatRequest)
            if request.prompt == TEST:
                seen.append(request.messages[-1].content)
            return toy_model.answer(request)

        ask(snapshot(answer), question)
        requests.append(seen)
    assert requests[0] == requests[1] and requests[0]


def test_only_needed_columns_of_the_communities_are_read():
    snap = snapshot()
    ask(snap)
    (read,) = [need for need in snap.needs if isinstance(need, Rows) and need.table == "communities"]
    assert read.by == "entity_ids" and read.trim_lists and entity_id(HOST) not in (read.ids or ())


@pytest.mark.parametrize(
    ("reply", "scores"),
    [
        ('{"relevant": []}', {}),
        ('{"relevant": [{"id": 2, "score": 80}]}', {2: 80}),
        ('Here it is:\n```json\n{"relevant": [{"id": "2", "score": "80/100"}]}\n```', {2: 80}),
        ('{"relevant": [1, 3]}', {1: 50, 3: 50}),
        ('{"relevant": ["1", {"id": 3}]}', {1: 50, 3: 50}),
        ('{"relevant": [{"id": 1, "score": 20}, {"id": 1, "score": 70}]}', {1: 70}),
        ('{"relevant": [{"id": 1, "score": 20}, {"id": 99, "score": 70}]}', {1: 20}),
        ('{"relevant": [{"id": 1, "score": 0}, {"id": 2, "score": 300}]}', {2: 100}),
        ('[{"id": 3, "score": 5}]', {3: 5}),
        ('{"relevant_passages": [{"passage": 3, "relevance": 5}]}', {3: 5}),
    ],
)
def test_replies_to_tests_are_read_tolerantly(reply: str, scores: dict[int, float]):
    assert parse_tests(reply, {1, 2, 3}) == scores


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "None of the passages is relevant.",
        "{}",
        '{"relevant": "none"}',
        '{"relevant": [{"id": 99, "score": 70}]}',
        '{"relevant": [{"id": "the first", "score": 70}]}',
        '{"relevant": [{"score": 70}, {"id": 1, "score": 70}]}',
    ],
)
def test_replies_that_do_not_say_which_passages_are_relevant_are_problems(reply: str):
    assert isinstance(parse_tests(reply, {1, 2, 3}), ReplyProblem)


def test_subqueries_are_distinct_and_not_empty():
    parsed = parse_subqueries('{"sub-queries": ["Who?", " who? ", "", "Where [Data: Sources (1)]"]}')
    assert not isinstance(parsed, ReplyProblem) and parsed.expanded == ""
    assert len(parsed.texts) == 2 and "[Data: Sources (1)]" not in parsed.texts[1]
    assert isinstance(parse_subqueries('{"subqueries": [""]}'), ReplyProblem)
    assert isinstance(parse_subqueries("What else?"), ReplyProblem)
