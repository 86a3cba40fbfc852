"""Syntax of evaluation conditions."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import UsageError
from graphrag_ray.evaluate.conditions import EvaluationCondition, parse_condition, parse_conditions


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("C0=global:C0", EvaluationCondition("C0", "global", "C0")),
        ("a = vector ", EvaluationCondition("a", "vector")),
        (
            "short=hybrid,query.context_tokens=4000,query.hybrid_record_kinds=text_unit,entity",
            EvaluationCondition(
                "short",
                "hybrid",
                None,
                ("query.context_tokens=4000", "query.hybrid_record_kinds=text_unit,entity"),
            ),
        ),
        (
            "other=s3://bucket/answers.Parquet",
            EvaluationCondition("other", answers="s3://bucket/answers.Parquet"),
        ),
        (
            "x=local:C2,query.response_type=a = b",
            EvaluationCondition("x", "local", "C2", ("query.response_type=a = b",)),
        ),
        (
            "y=vector,index=s3://b/index,of=a , prompts=p,query.context_tokens=300",
            EvaluationCondition(
                "y", "vector", None, ("query.context_tokens=300",), "", "s3://b/index,of=a", "p"
            ),
        ),
        ("o=answers.json", EvaluationCondition("o", answers="answers.json")),
    ],
)
def test_condition_has_a_name_method_level_and_settings(text: str, condition: EvaluationCondition):
    assert parse_condition(text) == condition


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("global", "Write NAME=METHOD"),
        ("=global", "Write NAME=METHOD"),
        ("a=", "Write NAME=METHOD"),
        ("a=globul", "Unknown method 'globul'"),
        ("a" * 61 + "=global", "at most 60"),
        ("a=answers.txt", "Unknown method"),
        ("a=vector,index=", "index= needs one value"),
        ("a=vector,index=x,index=y", "index= needs one value"),
        ("a=vector,indexes.x=y", "does not affect how questions"),
        ("a=answers.csv,index=x", "Unknown method 'answers.csv'"),
    ],
)
def test_invalid_condition_is_reported_with_the_syntax(text: str, told: str):
    with pytest.raises(UsageError, match=told):
        parse_condition(text)


def test_condition_names_are_unique_and_comparisons_need_two():
    with pytest.raises(UsageError, match="same name: a"):
        parse_conditions(["a=global", "a=vector"])
    with pytest.raises(UsageError, match="Got 1 of at least 2 conditions"):
        parse_conditions(["a=global"], min_count=2)


@given(st.text(max_size=80))
def test_any_text_is_a_condition_or_a_usage_error(text: str):
    with suppress(UsageError):
        found = parse_condition(text)
        assert found.name and (found.method or found.answers)
