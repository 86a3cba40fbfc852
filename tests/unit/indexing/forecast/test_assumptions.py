"""What is assumed has a name, a value and a source."""

from __future__ import annotations

import pytest

from graphrag_ray.base.errors import UsageError
from graphrag_ray.indexing.forecast.forecast import ASSUMPTION_MEANINGS, Assumptions, parse_assumptions


def test_a_given_assumption_comes_before_all_else_and_says_so():
    assume = Assumptions(parse_assumptions(["glean_yes=0.8"]))
    assert assume.take("glean_yes", 0.5, "assumed") == 0.8
    assert assume.take("ttft_s", 0.5, "assumed") == 0.5
    assert [(a.name, a.value, a.source) for a in assume] == [
        ("glean_yes", 0.8, "given by --assume"),
        ("ttft_s", 0.5, "assumed"),
    ]
    assert all(a.meaning == ASSUMPTION_MEANINGS[a.name] for a in assume)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("glean_yess=1", "Did you mean 'glean_yes'"),
        ("xyzzy=1", "Choose from"),
        ("glean_yes", "name=number"),
        ("entities=many", "name=number"),
        ("entities=-1", "at least 0"),
        ("entities=inf", "name=number"),
        ("glean_yes=2", "between 0 and 1"),
        ("tokens_per_s=0", "above 0"),
        ("nodes_per_summary=0", "above 0"),
        ("prompt_tokens_factor=0", "above 0"),
    ],
)
def test_an_assumption_that_cannot_be_is_refused_by_name(given: str, told: str):
    with pytest.raises(UsageError, match=told):
        parse_assumptions([given])
