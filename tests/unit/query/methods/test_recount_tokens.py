"""Recounting sizes in tokens of the answering model."""

from __future__ import annotations

import pytest
from driving import COUNT, Snapshot

from graphrag_ray.base.errors import BudgetSpent
from graphrag_ray.query.methods.budget import SAMPLE_SIZE, recount_tokens
from graphrag_ray.query.methods.global_search import search as search_reports
from graphrag_ray.query.methods.method import Dialogues, Question, Rows
from graphrag_ray.query.methods.text_search import search as search_text

N = 300
TEXT = "The mill stood idle. " * 40


def snapshot(vocabulary: float = 1) -> Snapshot:
    """Create tables whose model counted `ratio` tokens per token of the answering model."""
    n_tokens = round(COUNT(TEXT) * vocabulary)
    chunks = [{"id": f"t{i}", "human_readable_id": i, "text": TEXT, "n_tokens": n_tokens} for i in range(N)]
    reports = [
        {
            "id": f"r{i}",
            "human_readable_id": i,
            "community": i,
            "title": "Mill",
            "full_content": f"# Mill\n\n{TEXT}",
            "n_tokens": n_tokens,
            "hierarchy": "leiden",
        }
        for i in range(N)
    ]
    communities = [{"community": i, "level": 0, "parent": -1, "hierarchy": "leiden"} for i in range(N)]
    return Snapshot({"text_units": chunks, "community_reports": reports, "communities": communities})


@pytest.mark.parametrize("search", [search_text, search_reports])
def test_budget_uses_tokens_of_answering_model(search):
    snap = snapshot(vocabulary=0.5)
    with pytest.raises(BudgetSpent):
        snap.run(search(Question("Why?", "C0"), snap.given(budget_tokens=90_000)))
    assert not any(isinstance(n, Dialogues) for n in snap.needs)


def sizes(snap: Snapshot, **query: int) -> set[int]:
    given = snap.given(**query)
    chunks = snap.rows(Rows("text_units", ["id", "n_tokens"]))
    return set(snap.run(recount_tokens("text_unit", chunks, given))["n_tokens"].to_pylist())


def test_sizes_are_scaled_up_by_worst_ratio():
    n = COUNT(TEXT)
    assert sizes(snapshot(), budget_tokens=1) == {n} == sizes(snapshot(0.5), budget_tokens=1)
    assert sizes(snapshot(2), budget_tokens=1) == {2 * n}
    odd = snapshot()
    odd.tables["text_units"][-1]["text"] = TEXT * 3
    (raised,) = sizes(odd, budget_tokens=1)
    assert 2.9 * n < raised <= 3.1 * n


def test_only_a_sample_is_read():
    snap = snapshot(0.5)
    assert sizes(snap) == {round(COUNT(TEXT) * 0.5)} and not snap.needs
    sizes(snap, budget_tokens=1)
    (need,) = snap.needs
    assert isinstance(need, Rows) and need.ids is not None and len(need.ids) == SAMPLE_SIZE


def test_dollar_budget_triggers_recount():
    snap = snapshot(0.5)
    assert sizes(snap, budget_usd=1) == {COUNT(TEXT)}
