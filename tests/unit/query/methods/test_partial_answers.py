"""Partial answers: batches of records, and failed contexts."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import toy_model
from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.messages import ChatReply, ChatRequest, Reply, Request
from graphrag_ray.graph.context_plan import MIN_CONTEXT_TOKENS
from graphrag_ray.query.methods import partial_answers
from graphrag_ray.query.methods.map_reduce import shuffled
from graphrag_ray.query.methods.method import Dialogues, Rows
from graphrag_ray.query.methods.partial_answers import RecordsToRead, batches, combined_answer, map_reduce


def chunks(n: int, words: int = 100) -> list[dict[str, str]]:
    return [{"id": f"t{i}", "text": f"ALICE met BOB {i}. " + "It rained. " * words} for i in range(n)]


def to_read(rows: list[dict[str, str]]) -> RecordsToRead:
    return RecordsToRead("text_unit", [r["id"] for r in rows], [COUNT(r["text"]) for r in rows])


@given(st.lists(st.integers(1, 900), max_size=30), st.integers(500, 3_000))
def test_batches_cover_records_in_shuffled_order(sizes: list[int], tokens: int):
    ids = [f"id{i}" for i in range(len(sizes))]
    size = dict(zip(ids, sizes, strict=True))
    found = list(batches(RecordsToRead("text_unit", ids, sizes), 3, tokens))
    assert [id_ for batch in found for id_ in batch] == shuffled(ids, 3)
    assert all(sum(size[i] for i in batch) <= tokens or len(batch) == 1 for batch in found)
    assert all(sum(size[i] for i in first) + size[then[0]] > tokens for first, then in pairwise(found))


def test_texts_are_processed_in_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(partial_answers, "BATCH_TOKENS", 1_000)
    rows = chunks(12)
    snap = Snapshot({"text_units": rows})
    result = snap.run(map_reduce("What about ALICE ?", snap.given(context_tokens=600), to_read(rows)))
    reads = [n for n in snap.needs if isinstance(n, Rows)]
    asked = [n for n in snap.needs if isinstance(n, Dialogues)]
    assert len(reads) > 3 and all(len(n.ids) <= 3 for n in reads)
    assert [type(n) for n in snap.needs[:4]] == [Rows, Dialogues, Rows, Dialogues]
    assert sorted(i for n in reads for i in n.ids) == sorted(r["id"] for r in rows)
    assert asked[-1].is_answer and {r.id for c in result.contexts for r in c.records} == {
        r["id"] for r in rows
    }


@given(
    st.lists(st.text(max_size=200) | st.integers(1, 300).map(lambda n: "MILL, " * n), max_size=9),
    st.integers(MIN_CONTEXT_TOKENS, 900),
    st.sampled_from(["answer", "points"]),
)
def test_contexts_stay_within_budget(texts: list[str], budget: int, protocol: str):
    rows = [{"id": f"{i:032x}", "text": t} for i, t in enumerate(texts)]
    snap = Snapshot({"text_units": rows})
    given_ = snap.given(context_tokens=budget, map_protocol=protocol)
    result = snap.run(map_reduce("What about MILL ?", given_, to_read(rows)))
    assert all(c.n_tokens <= budget for c in result.contexts)
    assert result.reduce_context.n_tokens <= budget
    assert sorted(r.id for c in result.contexts for r in c.records) == [r["id"] for r in rows]


def test_context_score_is_that_of_best_point():
    rows = chunks(3)
    snap = Snapshot({"text_units": rows})
    result = snap.run(map_reduce("What about ALICE ?", snap.given(map_protocol="points"), to_read(rows)))
    assert [c.score for c in result.contexts] == [90.0]
    assert [a.score for a in result.reduce_context.answers] == [90.0, 85.0, 80.0]


def test_context_without_points_scores_zero():
    rows = chunks(3)
    snap = Snapshot({"text_units": rows})
    result = snap.run(map_reduce("What about ZOE ?", snap.given(map_protocol="points"), to_read(rows)))
    assert [c.score for c in result.contexts] == [0.0] and not result.errors and not result.reduced.found


@pytest.mark.parametrize("protocol", ["answer", "points"])
def test_unusable_part_is_reported_as_missing(protocol: str):
    spoiled: list[Request] = []

    def answer(request: Request) -> Reply:
        """Never give a score for the first context."""
        assert isinstance(request, ChatRequest)
        if request.prompt.startswith("map") and not spoiled:
            spoiled.append(request)
        first = bool(spoiled) and request.messages[:2] == spoiled[0].messages[:2]  # type: ignore[union-attr]
        return ChatReply("It depends.") if first else toy_model.answer(request)

    rows = chunks(6)
    snap = Snapshot({"text_units": rows}, answer=answer)
    given_ = snap.given(context_tokens=600, map_protocol=protocol)

    def asked():
        what = yield from map_reduce("What about ALICE ?", given_, to_read(rows))
        return (yield from combined_answer("What about ALICE ?", "text", "chunks", what))

    found = snap.run(asked())
    assert found.found and found.failed_parts == 1
    assert found.contexts[0].score is None
    (note,) = (n for n in found.notes if "missing" in n)
    assert note.startswith(f"1 of {len(found.contexts) - 1} parts of the chunks got no usable reply")
    assert json.dumps(found.as_dict())
