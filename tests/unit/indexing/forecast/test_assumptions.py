"""Assumptions of a forecast."""

from __future__ import annotations

import pytest

from graphrag_ray.base.errors import UsageError
from graphrag_ray.indexing.forecast.forecast import ASSUMPTION_MEANINGS, Assumptions, parse_assumptions


def test_assumption_of_the_user_takes_precedence_and_names_its_source():
    assume = Assumptions(parse_assumptions(["glean_yes=0.8"]))
    assert assume.take("glean_yes", 0.5, "assumed") == 0.8
    assert assume.take("ttft_s", 0.5, "assumed") == 0.5
    assert [(a.name, a.value, a.source) for a in assume] == [
        ("glean_yes", 0.8, "given by --assume"),
        ("ttft_s", 0.5, "assumed"),
    ]
    assert all(a.meaning == ASSUMPTION_MEANINGS[a.name] for a in assume)


@pytest.mark.parametrize(
    ("argument", "message"),
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
def test_invalid_assumption_is_rejected(argument: str, message: str):
    with pytest.raises(UsageError, match=message):
        parse_assumptions([argument])
