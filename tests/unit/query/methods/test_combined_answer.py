"""Combining partial answers into one answer."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query.methods.answer import UNREADABLE, Answer, ContextUsed, Phase
from graphrag_ray.query.methods.global_search import gap_notes
from graphrag_ray.query.methods.levels import LevelReports
from graphrag_ray.query.methods.map_reduce import MapAnswer, Reduced, reduce_answer, reduce_context
from graphrag_ray.query.methods.partial_answers import PartialAnswers, combined_answer

A, B = Reference("Reports", "aa"), Reference("Reports", "bb")
CHOSEN = LevelReports(1, np.array([0, 1]), replaced=(), missing=(), n_tokens=20)
SHOWN = [((A,), 10), ((B,), 12)]


def composed(
    mapped: list[MapAnswer | None], chosen: LevelReports = CHOSEN, reduced: Reduced | None = None
) -> Answer:
    context = reduce_context([m for m in mapped if m], 1000, len)
    if reduced is None:
        reduced = Reduced("So [Data: Reports (aa, bb)].", (A, B), dropped_references=1)
    contexts = [
        ContextUsed("map", records, n_tokens, score=m.score if m else None)
        for (records, n_tokens), m in zip(SHOWN, mapped, strict=True)
    ]
    errors = ["no reply" for m in mapped if m is None]
    what = PartialAnswers(contexts, [m for m in mapped if m], errors, context, reduced)
    return finished(
        combined_answer("Why?", "global", "reports", what, level=chosen.level, notes=gap_notes(chosen))
    )


def finished(answering: Generator[Any, Any, Answer]) -> Answer:
    """Number the cited records."""
    ids = [id_ for rows in next(answering) for id_ in rows.ids]
    numbers = {"aa": 7, "bb": 31}
    table = pa.table({"id": ids, "human_readable_id": [numbers[id_] for id_ in ids]})
    try:
        answering.send([table] if ids else [])
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it asks once")


def test_answer_text_uses_short_ids_and_references_use_string_ids() -> None:
    answer = composed([MapAnswer("p [Data: Reports (aa)]", 80, (A,), dropped_references=2), MapAnswer("", 0)])
    assert answer.text == "So [Data: Reports (7, 31)]."
    assert answer.references == (A, B)
    assert (answer.method, answer.level, answer.found) == ("global", 1, True)
    assert answer.dropped_references == 3
    assert [(c.phase, c.records, c.score) for c in answer.contexts] == [
        ("map", (A,), 80),
        ("map", (B,), 0),
        ("reduce", (A,), None),
    ]
    assert answer.notes == ()


def test_answer_notes_missing_parts() -> None:
    gap_notes = LevelReports(1, np.array([0]), replaced=(4,), missing=(5, 6), n_tokens=20)
    answer = composed([MapAnswer("p", 80), None], gap_notes)
    assert answer.failed_parts == 1
    result = " ".join(answer.notes)
    assert "1 of 2 parts" in result
    assert "2 communities have no report and are missing" in result
    assert "sub-communities" in result


def test_failure_of_all_parts_differs_from_not_found() -> None:
    nothing = Reduced("Nothing.", found=False)
    failed = composed([None, None], reduced=nothing)
    assert failed.text == f"{UNREADABLE} Most common reason: no reply"
    assert failed.failed_parts == 2
    zero = composed([MapAnswer("", 0), MapAnswer("", 0)], reduced=nothing)
    assert (zero.text, zero.found, zero.failed_parts) == ("Nothing.", False, 0)


def test_answer_converts_to_json() -> None:
    answer = composed([MapAnswer("p", 80), None])
    back = json.loads(json.dumps(answer.as_dict()))
    assert back["references"] == [{"section": "Reports", "id": "aa"}, {"section": "Reports", "id": "bb"}]
    assert back["contexts"][0]["n_tokens"] == 10


def test_cost_is_unknown_if_any_phase_is() -> None:
    known = Answer(
        "q", "t", "global", phases={"map": Phase(2, cost_usd=0.5), "reduce": Phase(1, cost_usd=0.25)}
    )
    assert known.cost_usd == 0.75
    assert Answer("q", "t", "global", phases={"map": Phase(cost_usd=None)}).cost_usd is None


def test_empty_level_finds_nothing() -> None:
    context = reduce_context([], 1000, len)
    dialogue = reduce_answer("Why?", context, None)  # type: ignore[arg-type]
    try:
        next(dialogue)
        raise AssertionError("a model was asked")
    except StopIteration as stop:
        answer = finished(
            combined_answer(
                "Why?", "global", "reports", PartialAnswers(reduce_context=context, reduced=stop.value)
            )
        )
    assert not answer.found
    assert answer.text
    assert answer.text != UNREADABLE
