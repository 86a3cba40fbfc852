"""The rating dialogue of dynamic selection."""

from __future__ import annotations

import json

import pytest
from driving import drive
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.dynamic_selection import parse_ratings, rate_reports, rate_spec

SPEC = rate_spec(parse_settings({}), load_prompts())
CONTEXT = Context("data\n", {("Reports", n): f"id{n}" for n in (1, 2, 3)}, 5)


def ratings(*pairs: tuple[object, object]) -> str:
    return json.dumps({"ratings": [{"id": n, "reason": "So.", "rating": r} for n, r in pairs]})


def test_each_report_gets_its_rating():
    result, requests = drive(rate_reports("Why?", CONTEXT, SPEC), ratings((3, 0), (1, 5), (2, "4/5")))
    assert result == {"id1": 5.0, "id2": 4.0, "id3": 0.0}
    assert requests[0].response == "json" and "Why?" in requests[0].messages[-1].content


def test_missing_rating_is_corrected_once():
    result, requests = drive(rate_reports("Why?", CONTEXT, SPEC), ratings((1, 2)), ratings((2, 0), (9, 5)))
    assert result == {"id1": 2.0, "id2": 0.0}
    assert "no rating from 0 to 5 for 2, 3" in requests[1].messages[-1].content


def test_no_ratings_fail_after_correction():
    with pytest.raises(DialogueFailed, match="no rating from 0 to 5 for 1, 2, 3"):
        drive(rate_reports("Why?", CONTEXT, SPEC), "They all look good.", "{}")


def test_highest_rating_wins():
    assert parse_ratings(ratings((1, 0), (1, 3), (1, 1)), {1}) == {1: 3.0}


@given(
    st.lists(
        st.tuples(
            st.integers(-5, 9) | st.text(max_size=3) | st.none() | st.floats(),
            st.integers(-9, 99) | st.text(max_size=3) | st.none() | st.booleans(),
        )
    )
)
def test_ratings_are_known_and_within_scale(pairs: list[tuple[object, object]]):
    found = parse_ratings(ratings(*pairs), {1, 2, 3})
    assert set(found) <= {1, 2, 3}
    assert all(0 <= r <= 5 for r in found.values())
