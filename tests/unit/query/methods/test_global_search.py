"""The choice of a level in global search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driving import Snapshot

from graphrag_ray.base.connection_settings import Price
from graphrag_ray.base.errors import BudgetSpent, LevelNotFound, SettingsError, UsageError
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.global_search import search
from graphrag_ray.query.methods.method import Dialogues, Question, Rows

QUESTION = "What about MILL ?"
SIZES = {0: 2, 1: 6, 2: 20}
"""Reports of each level, of some 400 tokens."""


def snapshot(sizes: dict[int, int] = SIZES) -> Snapshot:
    """Every community of a level has its parent among those of the level above, in turn; all are split to the
    last level."""
    numbers = {level: range(100 * (level + 1), 100 * (level + 1) + n) for level, n in sizes.items()}
    tree = {
        c: (level, -1 if level == 0 else numbers[level - 1][i % sizes[level - 1]])
        for level, of_level in numbers.items()
        for i, c in enumerate(of_level)
    }
    communities = [
        {"community": c, "level": level, "parent": parent, "hierarchy": "leiden"}
        for c, (level, parent) in tree.items()
    ]
    reports = [
        {
            "id": f"{c:032x}",
            "human_readable_id": c,
            "community": c,
            "title": f"MILL {c}",
            "full_content": f"# T\n\nOf MILL {c}." + " It rained again." * 97,
            "n_tokens": 400,
            "hierarchy": "leiden",
        }
        for c in tree
    ]
    return Snapshot({"communities": communities, "community_reports": reports})


def test_reports_outside_the_dates_are_replaced_by_those_below():
    snap = snapshot()
    for report in snap.tables["community_reports"]:
        whole = report["community"] == 100
        report |= {"period_start": "2019" if whole else "2021-01", "period_end": "2021-06-30"}
    answer = snap.run(search(Question(QUESTION, "C0", ("date>=2020",)), snap.given()))
    assert n_read(answer) == 1 + SIZES[1] // 2
    assert answer.notes[0].startswith("The whole period of 27 reports satisfies the conditions. Left out: 1 ")
    assert answer.notes[1].startswith("1 communities have no report within the conditions; reports of")
    request = next(n for n in snap.needs if isinstance(n, Dialogues))
    context = next(request.factories[0]()).messages[-1].content
    assert "id,title,period,content" in context and "2021-01 to 2021-06-30" in context


def asked(level: Any, snap: Snapshot | None = None, **query: Any) -> Answer:
    snap = snap or snapshot()
    return snap.run(search(Question(QUESTION, level), snap.given(**query)))


def n_read(answer: Answer) -> int:
    return sum(len(c.records) for c in answer.contexts if c.phase == "map")


@pytest.mark.parametrize("level", ["auto", "AUTO", " Auto ", None])
@pytest.mark.parametrize(
    ("budget", "chosen"), [(6_000, None), (16_000, 0), (18_000, 1), (30_000, 2), (10**9, 2)]
)
def test_auto_chooses_finest_level_within_budget(level: str | None, budget: int, chosen: int | None):
    if chosen is None:
        with pytest.raises(BudgetSpent, match=r"Even C0 would take at most .*query\.budget_tokens is 6,000"):
            asked(level, budget_tokens=budget)
        return
    answer = asked(level, budget_tokens=budget)
    assert answer.level == chosen and n_read(answer) == SIZES[chosen]
    assert answer.notes[0].startswith(f"C{chosen} is the finest level within the budget: at most")
    assert (f"; C{chosen + 1} would take at most" in answer.notes[0]) == (chosen < 2)


def test_budget_in_dollars_chooses_level():
    snap = snapshot()
    price = Price(input_usd_per_mtok=1.0, output_usd_per_mtok=1.0)
    given = replace(snap.given(budget_usd=0.018), prices={"map": price, "reduce": price})
    answer = snap.run(search(Question(QUESTION, "auto"), given))
    assert answer.level == 1 and ", $0.01" in answer.notes[0]


def test_dollar_budget_requires_prices():
    with pytest.raises(SettingsError, match="price of model 'default' is unknown"):
        asked("auto", budget_usd=1.0)


def test_auto_without_budget_is_default_level():
    answer = asked("auto", context_tokens=2_000)
    assert answer.level == 1
    assert answer.notes == ("C1 is the coarsest level with enough reports to fill a context.",)
    silent = asked(None, context_tokens=2_000)
    assert (silent.level, silent.notes) == (1, ())


def test_level_over_budget_is_rejected_before_any_call():
    snap = snapshot()
    with pytest.raises(BudgetSpent, match=r"No call was made for the answer\. .*--level auto"):
        asked("C2", snap, budget_tokens=18_000)
    assert not any(isinstance(n, Dialogues) for n in snap.needs)


def test_unknown_level_lists_existing_levels():
    with pytest.raises(LevelNotFound, match=r"no level 'C3': this hierarchy has C0, C1, C2$"):
        asked("C3", budget_tokens=10**9)


def test_index_without_reports_is_reported_with_any_budget():
    empty = Snapshot({"communities": [], "community_reports": []})
    for query in ({}, {"budget_tokens": 10}):
        with pytest.raises(LevelNotFound, match="no communities"):
            asked("auto", empty, **query)


def test_only_texts_of_chosen_level_are_read():
    snap = snapshot()
    asked("C1", snap)
    (read,) = (n for n in snap.needs if isinstance(n, Rows) and "full_content" in n.columns)
    assert read.ids is not None and len(read.ids) == SIZES[1]


def test_question_too_long_for_window_is_rejected_before_any_call():
    snap = snapshot()
    with pytest.raises(UsageError, match="The question does not fit"):
        snap.run(search(Question("mill " * 60_000, None), snap.given()))
    assert not any(isinstance(n, Dialogues) for n in snap.needs)
