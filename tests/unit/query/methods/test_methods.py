"""What the ways of answering can do, and what is said of what they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods import methods

QUESTIONS = Path(__file__).parents[4] / "docs" / "guides" / "questions.md"


def test_a_baseline_is_none_of_those_that_are_offered_and_says_where_it_can_be_asked():
    assert "none" in methods.BASELINES and "none" not in methods.METHODS
    with pytest.raises(UsageError, match=r"baseline for `graphrag-ray evaluate` .*choose from: global, text"):
        methods.check("none", None, ())
    methods.check("none", None, (), baselines=True)


def test_messages_name_only_what_is_offered():
    with pytest.raises(
        UsageError, match=r"Unknown search method 'globul'.* Choose from: global, text"
    ) as unknown:
        methods.check("globul", None, ())
    with pytest.raises(UsageError, match="global search does not support conditions") as restricted:
        methods.check("global", None, ("path=a.txt",))
    assert all("none" not in str(e.value).split() for e in (unknown, restricted))
    assert "lightrag" in str(restricted.value)


def test_a_mode_is_refused_where_a_method_has_none():
    methods.check_modes("lightrag", {"mode": "local"})
    methods.check_modes("local", {"mode": None})
    with pytest.raises(
        UsageError,
        match=r"mode is an option of lightrag search \(local, global, hybrid, mix\), not of local search",
    ):
        methods.check_modes("local", {"mode": "mix"})


def test_every_method_says_what_it_reads_and_stands_on_the_page_of_questions():
    page = QUESTIONS.read_text("utf-8")
    for name, kind in methods.usable().items():
        assert kind.reads and kind.asks
        assert f"| `{name}` |" in page
