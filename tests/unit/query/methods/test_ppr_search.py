"""Multi-hop search with in-memory tables and scripted replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driving import Snapshot

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import BudgetSpent, DialogueFailed, UsageError
from graphrag_ray.base.ids import name_id
from graphrag_ray.base.messages import ChatReply, ChatRequest, Request, Usage
from graphrag_ray.query.methods import ppr_search
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.map_reduce import NOTHING_FOUND
from graphrag_ray.query.methods.method import Question, Search, Walk, WalkHit
from graphrag_ray.query.methods.ppr_search import INSUFFICIENT, LAST

QUESTION = "Where did the husband of Teutberga die?"
TEXTS = {
    "a": "Teutberga was a queen by marriage to Lothair II.",
    "b": "Lothair II died at Piacenza.",
    "c": "Piacenza is a town on the river Po.",
    "d": "Mills grind corn.",
}
IDS = {name: f"{n + 1:032x}" for n, name in enumerate(TEXTS)}
LINKS = {
    (IDS["a"], "Teutberga"): 10,
    (IDS["a"], "Lothair II"): 1,
    (IDS["b"], "Lothair II"): 10,
    (IDS["b"], "Piacenza"): 1,
    (IDS["c"], "Piacenza"): 10,
    (IDS["d"], "Mill"): 10,
}
EDGE = "e" * 32


def tables() -> dict[str, list[dict[str, Any]]]:
    units = [
        {
            "id": IDS[name],
            "human_readable_id": n + 10,
            "text": text,
            "n_tokens": 9,
            "document_id": f"doc {name}",
        }
        for n, (name, text) in enumerate(TEXTS.items())
    ]
    edge = {"id": EDGE, "source": "LOTHAIR II", "target": "PIACENZA", "description": "He died there."}
    return {
        "text_units": units,
        "documents": [{"id": f"doc {name}", "text_unit_ids": [IDS[name]], "path": name} for name in TEXTS],
        "entities": [{"id": "f" * 32, "title": "MILL", "description": "", "type": ""}],
        "relationships": [{**edge, "human_readable_id": 1, "weight": 1.0}],
    }


class Replies:
    """A model that gives the replies of each prompt in turn, and repeats the last one."""

    def __init__(self, **replies: Sequence[str]) -> None:
        self.replies = {name: list(of) for name, of in replies.items()}
        self.asked: list[ChatRequest] = []

    def __call__(self, request: Request) -> ChatReply:
        assert isinstance(request, ChatRequest)
        self.asked.append(request)
        own = self.replies[request.prompt]
        text = own.pop(0) if len(own) > 1 else own[0]
        if text == "fail":
            raise DialogueFailed("it is out of order")
        return ChatReply(text, "stop", Usage(reported=False))

    @property
    def prompts(self) -> list[str]:
        return [request.prompt for request in self.asked]


def snapshot(model: Replies, find: Callable[[Search], Sequence[str]] | None = None) -> Snapshot:
    return Snapshot(tables(), find, model, LINKS)


def ask(snap: Snapshot, text: str = QUESTION, where: tuple[str, ...] = (), **query: Any) -> Answer:
    return snap.run(ppr_search.search(Question(text, where=where), snap.given(**query)))


def walks(snap: Snapshot) -> list[Walk]:
    return [need for need in snap.needs if isinstance(need, Walk)]


def shown(request: ChatRequest) -> list[str]:
    """Return the names of the passages in a prompt."""
    text = request.variables["context"]
    return sorted(TEXTS, key=lambda name: text.find(TEXTS[name]) if TEXTS[name] in text else 10**9)[
        : sum(TEXTS[name] in text for name in TEXTS)
    ]


WHO, WHERE = "Who was the husband of Teutberga?", "Where did Lothair II die?"
CHAIN = f"- {WHO} -> Lothair II [Data: Sources (1)]\n- {WHERE} -> Piacenza [Data: Sources (2)]"
ANSWERED = f"Piacenza\n\nChain:\n{CHAIN}"


def test_walk_finds_chunks_without_shared_words() -> None:
    model = Replies(walk_answer=[ANSWERED])
    ask(snapshot(model))
    assert shown(model.asked[0]) == ["a", "b", "c"]


def test_chain_cites_passages_by_number() -> None:
    answer = ask(snapshot(Replies(walk_answer=[ANSWERED])))
    assert answer.text == "Piacenza"
    assert [link.asked for link in answer.chain] == [
        "Who was the husband of Teutberga?",
        "Where did Lothair II die?",
    ]
    assert [link.found for link in answer.chain] == [
        "Lothair II [Data: Sources (10)]",
        "Piacenza [Data: Sources (11)]",
    ]
    assert all(link.stands for link in answer.chain)
    assert answer.found, "the chain cites"
    assert answer.references == (Reference("Sources", IDS["a"]), Reference("Sources", IDS["b"]))


def test_unsupported_link_is_marked() -> None:
    reply = "Rome\n\nChain:\n- Where did Lothair II die? -> Rome [Data: Sources (2)]"
    assert [link.stands for link in ask(snapshot(Replies(walk_answer=[reply]))).chain] == [False]


def test_answer_has_paths_to_cited_passages() -> None:
    answer = ask(snapshot(Replies(walk_answer=[ANSWERED])))
    assert answer.paths == {"10": "Teutberga", "11": "Teutberga → Sources (10) → Lothair II"}


def test_missing_links_are_looked_up() -> None:
    model = Replies(
        walk_answer=["Insufficient", "Bread"],
        next_questions=[json.dumps({"known": [], "next": ["What does a Mill grind?"]})],
    )
    snap = snapshot(model)
    answer = ask(snap, ppr_k=2)
    assert model.prompts == ["walk_answer", "next_questions", "walk_answer"]
    assert shown(model.asked[0]) == ["a", "b"]
    assert shown(model.asked[2]) == ["d", "a", "b"], "what the step found, then what there was"
    assert answer.text == "Bread"
    assert answer.notes[0] == "Looked up next: What does a Mill grind?"
    assert len(answer.contexts) == 2


def test_later_walks_do_not_displace_first() -> None:
    looked = ppr_search._Walks()
    for question, n in (("", 5), ("q1", 6), ("q2", 6)):
        looked.add(question, [WalkHit(f"{question or 'first'} {at}", 1.0) for at in range(n)])
    merged = [f"{walk} {at}" for at in range(4) for walk in ("q2", "q1", "first")]
    assert looked.most_visited(10) == merged[:10]


def test_short_answer_needs_no_chain() -> None:
    assert ask(snapshot(Replies(walk_answer=["Piacenza"]))).found
    assert not ask(snapshot(Replies(walk_answer=["Insufficient"])), ppr_steps=0).found


def test_questions_of_one_step_are_walked_together() -> None:
    questions = ["What is Piacenza?", "What is a Mill?"]
    model = Replies(
        walk_answer=["Insufficient", "x"], next_questions=[json.dumps({"known": [], "next": questions})]
    )
    snap = snapshot(model)
    ask(snap, ppr_k=1)
    first, *then = walks(snap)
    assert first.k == 1
    assert [list(walk.names) for walk in then] == [[name_id("Piacenza")], [name_id("Mill")]]
    assert shown(model.asked[-1]) == ["d", "c"], "of each question the first, and no more than twice as many"


def test_prompt_says_whether_more_can_be_looked_up() -> None:
    model = Replies(
        walk_answer=["Insufficient"], next_questions=['{"known": [], "next": ["What is a Mill?"]}']
    )
    answer = ask(snapshot(model))
    told = [request.variables["if_missing"] for request in model.asked if request.prompt == "walk_answer"]
    assert told == [INSUFFICIENT, LAST]
    assert not answer.found
    assert answer.chain == ()


def test_number_of_steps_is_limited() -> None:
    more = [
        json.dumps({"known": [], "next": [f"What is {name}?"]}) for name in ("Mill", "Piacenza", "Po", "x")
    ]
    model = Replies(walk_answer=["Insufficient"], next_questions=more)
    ask(snapshot(model), ppr_steps=3, ppr_k=1)
    assert model.prompts.count("walk_answer") == 4
    assert model.prompts.count("next_questions") == 3
    alone = Replies(walk_answer=["Insufficient"])
    ask(snapshot(alone), ppr_steps=0)
    assert alone.prompts == ["walk_answer"]


@pytest.mark.parametrize(
    "reply", ['{"known": [], "next": []}', json.dumps({"known": [], "next": [QUESTION]})]
)
def test_no_new_questions_lead_to_final_answer(reply: str) -> None:
    model = Replies(walk_answer=["Insufficient"], next_questions=[reply])
    answer = ask(snapshot(model), ppr_steps=5)
    assert model.prompts == ["walk_answer", "next_questions", "walk_answer"]
    assert model.asked[-1].variables["if_missing"] == LAST
    assert not answer.found


def test_steps_end_without_new_chunks() -> None:
    more = [json.dumps({"known": [], "next": [f"What is Piacenza, in words {n}?"]}) for n in range(9)]
    model = Replies(walk_answer=["Insufficient"], next_questions=more)
    ask(snapshot(model), ppr_steps=9)
    assert model.prompts == ["walk_answer", "next_questions", "walk_answer"]


def test_last_link_answers_reply_with_only_a_chain() -> None:
    answer = ask(snapshot(Replies(walk_answer=[f"Chain:\n{CHAIN}"])))
    assert answer.text == "Piacenza" and len(answer.chain) == 2


def test_failed_step_is_reported() -> None:
    model = Replies(walk_answer=["Insufficient"], next_questions=["fail"])
    answer = ask(snapshot(model))
    assert any("could not be determined: it is out of order" in note for note in answer.notes)


def test_long_answer_needs_no_chain() -> None:
    answer = ask(snapshot(Replies(walk_answer=["He died at Piacenza [Data: Sources (2)]."])))
    assert answer.text == "He died at Piacenza [Data: Sources (11)]."
    assert answer.chain == ()
    assert answer.found


def test_walk_starts_at_names_of_selected_facts() -> None:
    model = Replies(walk_answer=["x"], pick_facts=['{"facts": [1]}'])
    snap = snapshot(model, lambda search: [EDGE] if search.kind == "relationship" else [])
    ask(snap, "Where is the grave?", ppr_candidate_facts=5)
    assert model.prompts[0] == "pick_facts"
    assert set(walks(snap)[0].names) == {name_id("Lothair II"), name_id("Piacenza")}


def test_reply_may_select_no_facts() -> None:
    model = Replies(walk_answer=["x"], pick_facts=['{"facts": []}'])
    snap = snapshot(model, lambda search: [EDGE] if search.kind == "relationship" else [])
    ask(snap, ppr_candidate_facts=5)
    assert list(walks(snap)[0].names) == [name_id("Teutberga")]


def test_question_without_names_starts_at_nearest_records() -> None:
    near = {"entity": ["f" * 32], "text_unit": [IDS["c"]]}
    model = Replies(walk_answer=["x"])
    snap = snapshot(model, lambda search: near[search.kind] if search.by == "vector" else [])
    ask(snap, "what grinds it?")
    (walk,) = walks(snap)
    assert list(walk.names) == [name_id("Mill")]
    assert list(walk.chunks) == [IDS["c"]]


def test_conditions_restrict_walk() -> None:
    model = Replies(walk_answer=["x"])
    snap = snapshot(model)
    ask(snap, where=("path!=b",))
    assert shown(model.asked[0]) == ["a"]


def test_no_hits_make_no_calls() -> None:
    model = Replies()
    answer = ask(snapshot(model), "what is it?")
    assert answer.text == NOTHING_FOUND
    assert not answer.found
    assert model.asked == []


def test_index_without_names_is_reported_with_advice() -> None:
    of_tree = Snapshot({name: rows for name, rows in tables().items() if name != "entities"})
    with pytest.raises(UsageError, match="--build names"):
        ask(of_tree)


def test_budget_is_checked_before_any_call() -> None:
    model = Replies()
    with pytest.raises(BudgetSpent, match=r"at most .* tokens in 3 calls"):
        ask(snapshot(model), budget_tokens=9_000)
    with pytest.raises(BudgetSpent, match="in 6 calls"):
        ask(snapshot(model), budget_tokens=9_000, ppr_steps=2, ppr_candidate_facts=10)
    assert model.asked == []
