"""Dynamic selection: which reports are rated and read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import toy_model
from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import BudgetSpent, LevelNotFound
from graphrag_ray.base.messages import ChatReply, ChatRequest, Reply, Request
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.dynamic_selection import (
    MAX_BELOW_TOKENS,
    MAX_REPORTS_PER_CALL,
    Selection,
    select,
)
from graphrag_ray.query.methods.global_search import search
from graphrag_ray.query.methods.hierarchy_choice import communities_of, reports_of
from graphrag_ray.query.methods.levels import Levels, build_levels
from graphrag_ray.query.methods.method import Dialogues, Question

Tree = Mapping[int, tuple[int, int]]

# community: (level, parent).   10 ─┬─ 20 ─┬─ 30      11 ─── 22 ─── 32
#                                   │      └─ 31
#                                   └─ 21
TREE = {
    10: (0, -1), 11: (0, -1), 20: (1, 10), 21: (1, 10), 22: (1, 11), 30: (2, 20), 31: (2, 20), 32: (2, 22),
}  # fmt: skip
QUESTION = "What about MILL ?"
LEIDEN = HIERARCHIES["leiden"]


def snapshot(
    relevant: Collection[int], tree: Tree = TREE, without: Collection[int] = (), answer: Any = None
) -> Snapshot:
    """Create reports that mention the mill if their community is relevant."""
    communities = [
        {"community": c, "level": level, "parent": parent, "hierarchy": "leiden"}
        for c, (level, parent) in tree.items()
    ]
    reports = [
        {
            "id": f"{c:032x}",
            "human_readable_id": c,
            "community": c,
            "title": f"MILL {c}" if c in relevant else f"Choir {c}",
            "full_content": f"# T\n\nThe {'MILL' if c in relevant else 'choir'} of {c}." + " It rained." * 20,
            "n_tokens": 60,
            "hierarchy": "leiden",
        }
        for c in tree
        if c not in without
    ]
    tables = {"communities": communities, "community_reports": reports}
    return Snapshot(tables, answer=answer or toy_model.answer)


def hierarchy(snap: Snapshot) -> tuple[Levels, list[str]]:
    communities, reports = snap.rows(communities_of(LEIDEN)), snap.rows(reports_of(LEIDEN))
    return build_levels(communities, reports, LEIDEN.name), reports["id"].to_pylist()


def selected(snap: Snapshot, max_level: int = 2, **query: Any) -> tuple[Selection, set[int]]:
    """Return the selection, and the communities of the reports to read."""
    known, ids = hierarchy(snap)
    found = snap.run(select(QUESTION, snap.given(**query), LEIDEN.report_kind, known, ids, max_level))
    return found, {int(c) for c in known.community[found.positions]}


def rated(snap: Snapshot) -> set[int]:
    """Return the communities whose reports were rated."""
    return {
        int(id_, 16)
        for need in snap.needs
        if isinstance(need, Dialogues) and need.phase == "rate"
        for start in need.factories
        for id_ in start.args[1].numbering.values()
    }


def test_only_reports_below_relevant_ones_are_rated():
    snap = snapshot({10, 20, 31})
    _, read = selected(snap)
    assert rated(snap) == {10, 11, 20, 21, 30, 31}
    assert read == {31}


def test_relevant_report_without_relevant_children_is_read():
    assert selected(snapshot({10, 20, 11}))[1] == {20, 11}


@pytest.mark.parametrize(("rating", "relevant"), [(0, False), (0.5, False), (1, True), (2, True), (5, True)])
def test_low_rating_counts_as_relevant(rating: float, relevant: bool):
    """Give this rating to 11 and everything below it."""

    def answer(request: Request) -> Reply:
        told = toy_model.answer(request)
        assert isinstance(told, ChatReply)
        return ChatReply(told.text.replace('"rating": 4', f'"rating": {rating}'))

    snap = snapshot({11, 22, 32}, answer=answer)
    found, read = selected(snap)
    assert read == ({32} if relevant else set())
    assert set(found.relevant.values()) == ({rating} if relevant else set())


def test_rating_stops_at_max_level():
    snap = snapshot({10, 20, 30})
    assert selected(snap, max_level=1)[1] == {20}
    assert rated(snap) == {10, 11, 20, 21}


def test_next_level_is_rated_completely_if_nothing_is_relevant():
    snap = snapshot({22, 32})
    assert selected(snap)[1] == {32}
    assert rated(snap) == {10, 11, 20, 21, 22, 32}


def test_nothing_is_read_if_nothing_is_relevant():
    snap = snapshot(())
    found, read = selected(snap)
    assert read == set() and found.n_rated == len(TREE)


def test_children_of_community_without_report_are_rated():
    found, read = selected(snapshot({10, 30, 11}, without={20, 22}))
    assert read == {30, 11} and found.missing == 0
    found, read = selected(snapshot({10, 21}, without={30, 31, 20}))
    assert read == {21} and found.missing == 2
    found, read = selected(snapshot({10}, without={30, 31, 20}))
    assert read == {10} and found.missing == 0, "the report above covers them"


def test_failed_rating_counts_as_relevant():
    def answer(request: Request) -> Reply:
        """Never rate the second level."""
        assert isinstance(request, ChatRequest)
        of_it = "The choir of 21" in request.messages[1].content
        return ChatReply("They are all good.") if of_it else toy_model.answer(request)

    snap = snapshot({10}, answer=answer)
    found, read = selected(snap)
    assert {30, 31} <= rated(snap) and read == {20, 21}
    assert found.unrated == 2 and "no rating from 0 to 5" in found.errors[0]
    assert found.n_rated == 6


def test_descent_ends_if_all_calls_fail():
    snap = snapshot({10, 20}, answer=lambda request: ChatReply("No."))
    found, read = selected(snap)
    assert rated(snap) == {10, 11} == read
    assert found.ended == "No call that rates reports succeeded."


@st.composite
def trees(draw) -> dict[int, tuple[int, int]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tree: dict[int, tuple[int, int]] = {}
    for number in range(100, 100 + int(rng.integers(1, 30))):
        above = int(rng.choice(list(tree))) if tree and rng.random() < 0.7 else -1
        tree[number] = (tree[above][0] + 1 if above >= 0 else 0, above)
    return tree


def ancestors(tree: Tree, community: int) -> list[int]:
    above = tree[community][1]
    return [] if above < 0 else [above, *ancestors(tree, above)]


@given(trees(), st.data())
def test_selected_reports_do_not_overlap(tree: Tree, data):
    relevant = set(data.draw(st.lists(st.sampled_from(sorted(tree)))))
    roots = {c for c, (level, _) in tree.items() if level == 0}
    relevant |= {data.draw(st.sampled_from(sorted(roots)))}  # otherwise the next level is rated completely
    max_level = data.draw(st.integers(0, 4))
    snap = snapshot(relevant, tree)
    _, read = selected(snap, max_level)
    reached = {
        c for c, (level, _) in tree.items() if level <= max_level and relevant.issuperset(ancestors(tree, c))
    }
    assert rated(snap) == reached
    above = {a for c in reached & relevant for a in ancestors(tree, c)}
    assert read == (reached & relevant) - above
    assert all(not set(ancestors(tree, c)) & read for c in read)


@given(trees(), st.integers(0, 5))
def test_all_relevant_reads_whole_level(tree: Tree, max_level: int):
    snap = snapshot(tree, tree)
    known, _ = hierarchy(snap)
    at = known.reports_of_level(min(max_level, known.n_levels - 1))
    found, _ = selected(snap, max_level)
    assert sorted(known.report[found.positions].tolist()) == at.rows.tolist()


@given(trees(), st.integers(1_000, 60_000))
def test_rating_and_reading_stay_within_budget(tree: Tree, budget: int):
    snap = snapshot(tree, tree)
    try:
        found, read = selected(snap, 5, budget_tokens=budget, context_tokens=1_000)
    except BudgetSpent:
        assert not rated(snap)
        return
    assert (found.spent + found.reading).tokens <= budget
    assert read and found.n_rated == len(rated(snap))


def test_budget_below_first_level_is_rejected():
    snap = snapshot({10})
    with pytest.raises(BudgetSpent, match="Rating C0 and reading one context of it would take at most"):
        selected(snap, budget_tokens=5_000)
    assert not snap.needs[2:]


def test_budget_leaves_out_least_relevant_reports():
    def answer(request: Request) -> Reply:
        told = toy_model.answer(request)
        assert isinstance(told, ChatReply) and isinstance(request, ChatRequest)
        return ChatReply(told.text.replace('"rating": 4', '"rating": 2', 8))

    wide = dict.fromkeys(range(100, 140), (0, -1))
    everything, _ = selected(snapshot(wide, wide), context_tokens=600)
    total = (everything.spent + everything.reading).tokens
    snap = snapshot(wide, wide, answer=answer)
    found, read = selected(snap, context_tokens=600, budget_tokens=total - 5_000)
    assert found.left_out > 0 and len(read) + found.left_out == 40
    ratings = found.relevant
    left = [r for place, r in ratings.items() if place not in found.positions]
    assert max(left) <= min(ratings[p] for p in found.positions.tolist())


def test_number_of_reports_per_call_is_limited():
    wide = dict.fromkeys(range(100, 140), (0, -1))
    snap = snapshot((), wide)
    found, _ = selected(snap)
    sizes = [len(c.records) for c in found.contexts]
    assert max(sizes) == MAX_REPORTS_PER_CALL and len(sizes) == 4


@given(st.integers(256, 900))
def test_rated_contexts_stay_within_budget(budget: int):
    found, _ = selected(snapshot({10, 20, 11}), context_tokens=budget)
    assert all(c.n_tokens <= budget for c in found.contexts)


def shown(snap: Snapshot, phase: str = "rate") -> list[dict[str, dict[str, str]]]:
    """Return the rated columns of each report by title, for each round of calls."""
    rounds = [need for need in snap.needs if isinstance(need, Dialogues) and need.phase == phase]
    return [
        {
            row["title"]: row
            for start in need.factories
            for row in parse_sections(start.args[1].text)["Reports"]
        }
        for need in rounds
    ]


def test_rated_report_lists_titles_below():
    snap = snapshot({10, 20, 31})
    for report in snap.tables["community_reports"]:
        report["rank"] = {20: 2.0, 21: 7.0}.get(report["community"], 5.0)
    selected(snap)
    first, second, third = shown(snap)
    assert first["MILL 10"]["below"] == "Choir 21; MILL 20", "the highest rated first"
    assert second["MILL 20"]["below"] == "Choir 30; MILL 31" and second["Choir 21"]["below"] == ""
    assert "below" not in third["MILL 31"]


def test_titles_below_max_level_are_not_listed():
    snap = snapshot({10, 20, 31})
    selected(snap, max_level=1)
    first, second = shown(snap)
    assert first["MILL 10"]["below"] and "below" not in second["MILL 20"]


def test_titles_below_are_limited():
    below = {1: (0, -1)} | dict.fromkeys(range(100, 140), (1, 1))
    snap = snapshot(set(below), below)
    for report in snap.tables["community_reports"]:
        report["title"] += ' "of the [Data: Reports (1)]\nlong" name' * 9 * (report["community"] % 2)
    found, _ = selected(snap)
    (root,) = shown(snap)[0].values()
    assert COUNT(root["below"]) <= MAX_BELOW_TOKENS and "[Data" not in root["below"]
    assert found.spent.tokens > sum(c.n_tokens for c in found.contexts)
    snap = snapshot(set(below), below)
    selected(snap)
    (root,) = shown(snap)[0].values()
    assert root["below"] == "; ".join(f"MILL {c}" for c in range(100, 106)) + "; and 34 more"


# the method


def asked(snap: Snapshot, level: str | int | None = None, **query: Any) -> Answer:
    return snap.run(search(Question(QUESTION, level), snap.given(dynamic=True, **query)))


def test_answer_notes_numbers_of_rated_and_read_reports():
    answer = asked(snapshot({10, 20, 31}))
    assert answer.found and [r.id for r in answer.references] == [f"{31:032x}"]
    assert answer.notes == ("6 reports down to C2 rated in 3 calls, 1 read.",)
    assert [c.phase for c in answer.contexts] == ["rate", "rate", "rate", "map", "reduce"]
    assert (answer.method, answer.level) == ("global", None)


def test_requested_level_limits_rating():
    assert [r.id for r in asked(snapshot({10, 20, 31}), "C1").references] == [f"{20:032x}"]
    with pytest.raises(LevelNotFound, match=r"no level 'C7': this hierarchy has C0, C1, C2"):
        asked(snapshot({10}), "C7")


def test_answer_notes_failed_ratings():
    answer = asked(snapshot({10}, answer=_useless_ratings))
    result = " ".join(answer.notes)
    assert "2 reports got no rating and counted as relevant (rate: still not usable" in result
    assert answer.failed_parts == 0


def _useless_ratings(request: Request) -> Reply:
    assert isinstance(request, ChatRequest)
    rating = "Rate from 0 to 5" in request.messages[1].content
    return ChatReply("Good.") if rating else toy_model.answer(request)


def test_index_without_reports_is_reported():
    with pytest.raises(LevelNotFound, match="No community has a report"):
        asked(snapshot((), without=TREE))
    with pytest.raises(LevelNotFound, match="no communities"):
        asked(snapshot((), tree={}))


def test_other_hierarchies_are_not_rated():
    snap = snapshot({10, 20, 31})
    snap.tables["communities"].append({"community": 99, "level": 0, "parent": -1, "hierarchy": "other"})
    assert isinstance(snap.rows(communities_of(LEIDEN)), pa.Table)
    selected(snap)
    assert 99 not in rated(snap)
