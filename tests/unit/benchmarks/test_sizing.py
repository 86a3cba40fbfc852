"""The table of recommended settings matches its page and is consistent."""

from __future__ import annotations

from pathlib import Path

import pytest
from sizing import CASES, short, size_cases, sizing_table

PAGE = Path(__file__).parents[3] / "cluster" / "README.md"


def test_page_matches_the_script():
    table = (
        PAGE.read_text("utf-8").partition("<!-- python benchmarks/sizing.py -->\n")[2].partition("<!--")[0]
    )
    assert table.strip() == sizing_table(size_cases()).strip(), (
        "paste the output of `python benchmarks/sizing.py`"
    )


def test_hours_respect_the_limits():
    for sized in size_cases(CASES[:2]):
        prompt, completion = sized.total("prompt_tokens"), sized.total("completion_tokens")
        assert sized.model_calls_s >= (prompt + completion) / sized.case.tokens_per_minute * 60
        usd = (prompt * 0.15 + completion * 0.60) / 1e6
        assert sized.forecast.totals["cost_usd"] == pytest.approx(usd, rel=1e-3)


def test_numbers_have_two_significant_digits():
    assert [short(n) for n in (0.0456, 8.0, 1234, 8_564_000, 2.6e11)] == [
        "0.046",
        "8",
        "1,200",
        "8.6M",
        "260B",
    ]
