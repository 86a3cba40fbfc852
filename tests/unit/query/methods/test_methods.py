"""Capabilities of search methods, and errors for unsupported options."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods import methods

QUESTIONS = Path(__file__).parents[4] / "docs" / "guides" / "questions.md"


def test_baseline_is_rejected_outside_evaluate():
    assert "none" in methods.BASELINES and "none" not in methods.METHODS
    with pytest.raises(UsageError, match=r"baseline for `graphrag-ray evaluate` .*choose from: global, text"):
        methods.check_method("none", None, ())
    methods.check_method("none", None, (), baselines=True)


def test_messages_list_only_available_methods():
    with pytest.raises(
        UsageError, match=r"Unknown search method 'globul'.* Choose from: global, text"
    ) as unknown:
        methods.check_method("globul", None, ())
    with pytest.raises(UsageError, match="global search does not support conditions") as restricted:
        methods.check_method("global", None, ("path=a.txt",))
    assert all("none" not in str(e.value).split() for e in (unknown, restricted))
    assert "lightrag" in str(restricted.value)


def test_option_of_another_method_is_rejected():
    methods.check_options("lightrag", {"mode": "local"})
    methods.check_options("local", {"mode": None})
    with pytest.raises(
        UsageError,
        match=r"mode is an option of lightrag search \(local, global, hybrid, mix\), not of local search",
    ):
        methods.check_options("local", {"mode": "mix"})


def test_every_method_is_described_and_documented():
    page = QUESTIONS.read_text("utf-8")
    for name, kind in methods.load_all().items():
        assert kind.description and kind.stages
        assert f"| `{name}` |" in page
