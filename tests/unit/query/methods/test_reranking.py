"""Reranking: which records a model scores, and how they are reordered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from driving import Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed, SettingsError
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.messages import Reply, Request, RerankReply, RerankRequest
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.query.methods.chunk_walk import walk_chunks
from graphrag_ray.query.methods.method import Dialogues, Search
from graphrag_ray.query.methods.nearest import nearest_context
from graphrag_ray.query.methods.reranking import RecordId, by_score, rerank, reranked


def chunks(n: int) -> list[RecordId]:
    return [("text_unit", f"{i:032x}") for i in range(n)]


def numbers(order: list[RecordId]) -> list[int]:
    return [int(id_, 16) for _, id_ in order]


class Reranker:
    """Scores documents by the number in them, and records the requests."""

    def __init__(self, *skipped: int, fails: bool = False) -> None:
        self.skipped, self.fails, self.requests = skipped, fails, list[RerankRequest]()

    def __call__(self, request: Request) -> Reply:
        assert isinstance(request, RerankRequest)
        self.requests.append(request)
        if self.fails:
            raise DialogueFailed("it is down")
        found = [int(text.split()[-1]) for text in request.documents]
        return RerankReply(np.array([math.nan if n in self.skipped else n for n in found], "<f4").tobytes())


def snapshot(answer: Any, n: int = 6) -> Snapshot:
    ids = [id_ for _, id_ in chunks(n)]
    rows = [
        {"id": id_, "human_readable_id": i, "text": f"passage {i}", "document_id": "d"}
        for i, id_ in enumerate(ids)
    ]
    documents = [{"id": "d", "title": "A book", "text_unit_ids": ids}]
    reports = [{"id": report_id("r"), "title": "On it", "full_content": "report 9"}]
    return Snapshot(
        {"text_units": rows, "documents": documents, "community_reports": reports},
        lambda search: ids,
        answer,
        {(id_, "ALICE"): 1 for id_ in ids},
    )


def order_of(model: Reranker, n: int = 6, **query: Any) -> list[int]:
    snap = snapshot(model, n)
    given_ = snap.given(**{"rerank_model": "default", **query})
    (order,) = snap.run(reranked([("Which?", chunks(n))], given_))
    return numbers(order)


def test_records_are_ordered_by_relevance():
    model = Reranker()
    assert order_of(model) == [5, 4, 3, 2, 1, 0]
    (request,) = model.requests
    assert request.query == "Which?" and request.documents[0] == "A book\npassage 0"


def test_only_candidates_are_scored_and_others_follow_in_their_order():
    model = Reranker()
    assert order_of(model, rerank_candidates=3) == [2, 1, 0, 3, 4, 5]
    assert len(model.requests[0].documents) == 3


def test_unscored_records_follow_in_their_order():
    assert order_of(Reranker(0, 4)) == [5, 3, 2, 1, 0, 4]


def test_a_failed_call_keeps_the_order():
    assert order_of(Reranker(fails=True)) == numbers(chunks(6))


def test_without_a_model_or_a_choice_there_is_no_call():
    model = Reranker()
    assert order_of(model, rerank_model=None) == numbers(chunks(6))
    assert order_of(model, n=1) == [0] and order_of(model, n=0) == [] and model.requests == []


def test_several_rankings_are_scored_concurrently():
    model = Reranker()
    snap = snapshot(model)
    orders = snap.run(
        reranked([("A?", chunks(3)), ("B?", chunks(4)[2:])], snap.given(rerank_model="default"))
    )
    assert [numbers(order) for order in orders] == [[2, 1, 0], [3, 2]]
    assert [len(need.factories) for need in snap.needs if isinstance(need, Dialogues)] == [2]


def test_missing_records_and_other_kinds_are_handled():
    snap = snapshot(Reranker())
    kept, gone = ("text_unit", f"{0:032x}"), ("text_unit", "gone")
    report = ("community_report", report_id("r"))
    (order,) = snap.run(reranked([("?", [kept, gone, report])], snap.given(rerank_model="default")))
    assert order == [report, kept, gone]


def test_a_context_is_filled_with_the_most_relevant_and_reranked_once():
    model = Reranker()
    snap = snapshot(model, 200)
    given_ = snap.given(rerank_model="default", context_tokens=1500, rerank_candidates=40)
    context = snap.run(nearest_context([Search("text_unit", "vector", "Which?")], given_))
    shown = [int(id_, 16) for id_ in context.numbering.values()]
    assert shown[:41] == [*reversed(range(40)), 40]
    depths = [n.k for n in snap.needs if isinstance(n, Search)]
    assert depths[:2] == [40, 160] and len(model.requests) == 1


def test_a_walk_goes_deeper_to_find_candidates():
    model = Reranker()
    snap = snapshot(model)
    (hits,) = snap.run(walk_chunks(["What did ALICE do?"], snap.given(rerank_model="default"), 2))
    assert [int(hit.id, 16) for hit in hits] == [5, 4] and len(model.requests[0].documents) == 6


@given(st.lists(st.floats(width=32), max_size=9))
def test_scored_records_are_sorted_stably(scores: list[float]):
    order = by_score(chunks(len(scores)), scores)
    assert order == sorted(
        (key for key, s in zip(chunks(len(scores)), scores, strict=True) if not math.isnan(s)),
        key=lambda key: -scores[int(key[1], 16)],
    )


def test_texts_are_cut_to_the_context_window():
    endpoint = {"provider": "openai", "model": "r", "context_window": 64}
    settings = parse_settings({"models": {"default": endpoint}, "query": {"rerank_model": "default"}})
    model = Reranker()
    run_dialogue(rerank("word " * 500, ["word 1", "word " * 500 + "2"], settings), lambda r: model(cut(r)))
    (request,) = model.requests
    assert len(request.query.split()) <= 33 and len(request.documents[1].split()) <= 20


def cut(request: Any) -> RerankRequest:
    return RerankRequest(request.query, tuple(f"{text} 1" for text in request.documents), request.call)


def test_a_wrong_number_of_scores_is_a_failure():
    settings = parse_settings({"query": {"rerank_model": "default"}})
    with pytest.raises(DialogueFailed, match="returned 1 scores for 2 documents"):
        run_dialogue(rerank("?", ["a", "b"], settings), lambda request: RerankReply(bytes(4)))


def test_an_unknown_model_is_rejected():
    with pytest.raises(SettingsError, match=r"query.rerank_model is 'x', which is not under `models`"):
        parse_settings({"query": {"rerank_model": "x"}})
