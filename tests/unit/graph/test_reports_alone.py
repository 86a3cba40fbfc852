from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.context_plan import HEADING_TOKENS, NUMBER_TOKENS, REPORT, max_report_tokens
from graphrag_ray.graph.report_schedule import LevelSchedule


def schedule(children, tokens, budget=1000):
    return LevelSchedule([np.array(c, dtype=np.int64) for c in children], tokens, budget)


def test_longest_reports_are_included_first():
    (plan,) = schedule([[0, 1, 2, 3]], [300, 400, 200, 400]).take_ready(9)
    assert plan.indices_of(REPORT).tolist() == [1, 3] and plan.left_out == 2


def test_failed_reports_are_omitted_and_communities_without_inputs_are_skipped():
    one = schedule([[0, 1], [2]], [None, 50, None])
    (plan,) = one.take_ready(9)
    assert plan.indices_of(REPORT).tolist() == [1] and plan.left_out == 1
    assert one.without_inputs == [1]
    one.mark_done(0, 10)
    assert one.finished


def test_each_community_is_handed_out_once():
    one = schedule([[0], [0], [0]], [10])
    assert [plan.community for plan in one.take_ready(2)] == [0, 1]
    assert [plan.community for plan in one.take_ready(2)] == [2] and not one.take_ready(2)
    for community in range(3):
        assert not one.finished
        one.mark_done(community, 5)
    assert one.finished


@given(st.lists(st.integers(1, 5_000) | st.none(), min_size=1, max_size=40), st.integers(256, 4_000))
def test_contexts_do_not_exceed_the_budget(tokens, budget):
    one = schedule([range(len(tokens))], tokens, budget)
    if one.without_inputs:
        assert not any(tokens) and one.finished
        return
    (plan,) = one.take_ready(1)
    taken = [
        min(tokens[c], max_report_tokens(budget)) + NUMBER_TOKENS for c in plan.indices_of(REPORT).tolist()
    ]
    assert sum(taken) + HEADING_TOKENS <= budget
    assert plan.tokens <= budget and len(plan.indices_of(REPORT)) + plan.left_out == len(tokens)
