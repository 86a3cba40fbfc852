"""Fingerprints of steps change exactly when something that the result depends on changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from graphrag_ray.base.index_settings import Chunking
from graphrag_ray.base.messages import CallParameters
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.indexing.step_result import Result, fingerprint_of, spec_key
from graphrag_ray.store.parts import Part


@dataclass(frozen=True)
class Spec:
    prompt: Prompt
    call: CallParameters
    key: Callable[[str], str] = str.upper


PROMPT = Prompt("extract", "", "Find {text}.")
CALL = CallParameters("default", "m")
RESULT = Result({"entities": [[Part("tables/entities/part-1", 3, 100)], []]}, {"odd replies": 1})


def test_counts_of_a_result_do_not_matter():
    other = Result(RESULT.tables, {"odd replies": 2}, final=False)
    assert fingerprint_of([RESULT]) == fingerprint_of([other])


@pytest.mark.parametrize(
    "other",
    [
        Result({"entities": [[Part("tables/entities/part-2", 3, 100)], []]}),
        Result({"entities": [[], [Part("tables/entities/part-1", 3, 100)]]}),
        Result({"claims": [[Part("tables/entities/part-1", 3, 100)], []]}),
    ],
)
def test_other_tables_matter(other: Result):
    assert fingerprint_of([RESULT]) != fingerprint_of([other])


@pytest.mark.parametrize(
    "other",
    [
        Spec(Prompt("extract", "", "Find all in {text}."), CALL),
        Spec(Prompt("extract", "You are careful.", "Find {text}."), CALL),
        Spec(PROMPT, CallParameters("default", "another")),
        Spec(PROMPT, CallParameters("default", "m", temperature=None)),
        Spec(PROMPT, CallParameters("default", "m", max_output_tokens=5)),
    ],
)
def test_prompts_models_and_parameters_matter(other: Spec):
    assert fingerprint_of(spec_key(Spec(PROMPT, CALL))) != fingerprint_of(spec_key(other))


def test_functions_of_a_specification_are_ignored():
    assert spec_key(Spec(PROMPT, CALL)) == {"prompt": PROMPT, "call": CALL}


def test_settings_matter():
    assert fingerprint_of([Chunking()]) != fingerprint_of([Chunking(size=300)])
