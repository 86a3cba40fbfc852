"""Upper bounds on the cost of a question, and checks of the context window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.connection_settings import Price
from graphrag_ray.base.errors import BudgetSpent, SettingsError, UsageError
from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.prompts import PLACEHOLDERS
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.context_plan import HEADING_TOKENS, MIN_CONTEXT_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.report_context import Context, count_record_tokens, report_record, source_record
from graphrag_ray.query.methods import single_context
from graphrag_ray.query.methods.budget import (
    MESSAGE_TOKENS,
    CostBound,
    check_budget,
    check_context_fits,
    instructions,
    line_tokens,
    map_reduce_bound,
    max_contexts,
    packed_bound,
)
from graphrag_ray.query.methods.dynamic_selection import MAX_REPORTS_PER_CALL, rate_spec
from graphrag_ray.query.methods.map_reduce import map_spec, pack, reduce_spec
from graphrag_ray.query.methods.method import SearchEnv

GIVEN = Snapshot({}).given()
PRICES = {"map": Price(input_usd_per_mtok=1.0, output_usd_per_mtok=10.0)}
PRICES["reduce"] = Price(input_usd_per_mtok=2.0, output_usd_per_mtok=20.0)


def next_fit(lines: list[int], room: int, most: int | None) -> int:
    """Pack lines into pages by next-fit."""
    pages, used, held = 0, 0, 0
    for line in lines:
        if not pages or used + line > room or held == most:
            pages, used, held = pages + 1, 0, 0
        used, held = used + line, held + 1
    return pages


@given(
    st.lists(st.integers(1, 100), max_size=60),
    st.integers(100, 300),
    st.none() | st.integers(1, 12),
)
def test_packing_never_exceeds_bound(lines: list[int], room: int, most: int | None):
    bound = max_contexts(np.array(lines, dtype=np.int64), room, most)
    assert next_fit(lines, room, most) <= bound <= len(lines)


def test_bound_is_tight_for_small_records():
    assert max_contexts(np.full(1000, 60), 6000) <= 12


TEXTS = st.lists(
    st.integers(1, 400).map(lambda n: "The mill stood idle. " * n)
    | st.text(max_size=300)
    | st.integers(1, 90).map(lambda n: '"Idle," he said. ' * n),
    min_size=1,
    max_size=12,
)


@given(TEXTS, st.integers(MIN_CONTEXT_TOKENS + HEADING_TOKENS, 2_000), st.booleans())
def test_question_stays_within_its_bound(texts: list[str], context_tokens: int, of_reports: bool):
    """Count the prompts that are sent and the longest possible replies."""
    given_ = Snapshot({}).given(context_tokens=context_tokens)
    if of_reports:
        records = [report_record(f"id{i}", f"The mill {i}", t) for i, t in enumerate(texts)]
    else:
        records = [source_record(f"id{i}", t) for i, t in enumerate(texts)]
    contexts = pack(records, context_tokens, 7, COUNT)
    spec = map_spec(given_.settings, given_.prompts)
    most = packed_bound("Why?", given_, "map", spec, [COUNT(t) for t in texts])
    sent = sum(instructions("Why?", spec, COUNT) + c.n_tokens + 1_000 for c in contexts)
    assert len(contexts) <= most.calls and sent <= most.tokens


def test_bound_includes_overhead_of_records():
    text = 'He said: "idle", "shut", "sold". ' * 20
    record = report_record("id", "Mill, Brewery, Bank and Harbour of Elverside", text)
    assert count_record_tokens(record, COUNT) + NUMBER_TOKENS <= line_tokens([COUNT(text)])[0]


def test_bound_of_no_records_is_zero():
    assert map_reduce_bound("Why?", GIVEN, []) == CostBound()


def test_bound_uses_prices_of_map_and_reduce():
    priced = replace(GIVEN, prices=PRICES)
    mapped = packed_bound("Why?", priced, "map", map_spec(GIVEN.settings, GIVEN.prompts), [500])
    most = map_reduce_bound("Why?", priced, [500])
    query = GIVEN.settings.query
    prompt = instructions("Why?", reduce_spec(GIVEN.settings, GIVEN.prompts), COUNT) + query.context_tokens
    assert most.calls == 2
    assert most.tokens == mapped.tokens + prompt + query.max_reduce_tokens
    assert mapped.cost_usd is not None and most.cost_usd is not None
    assert most.cost_usd - mapped.cost_usd == pytest.approx((2 * prompt + 20 * query.max_reduce_tokens) / 1e6)


def test_rating_bound_respects_reports_per_call():
    spec = rate_spec(GIVEN.settings, GIVEN.prompts)
    sizes = [20] * 95
    records = [report_record(f"id{i}", "T", "word " * 20) for i in range(95)]
    packed = pack(records, 8_000, 7, COUNT, MAX_REPORTS_PER_CALL)
    assert max(len(c.numbering) for c in packed) == MAX_REPORTS_PER_CALL
    assert len(packed) == 10 <= packed_bound("Why?", GIVEN, "rate", spec, sizes, MAX_REPORTS_PER_CALL).calls


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ({}, True),
        ({"budget_tokens": 1_000}, True),
        ({"budget_tokens": 999}, False),
        ({"budget_usd": 0.5}, True),
        ({"budget_usd": 0.49}, False),
        ({"budget_tokens": 1_000, "budget_usd": 0.1}, False),
    ],
)
def test_all_budgets_must_be_met(query: dict[str, float], fits: bool):
    assert CostBound(3, 1_000, 0.5).within(Query(**query)) is fits


def test_dollar_budget_without_price_is_rejected():
    unknown = CostBound(1, 10) + CostBound(1, 10, None, "m")
    assert unknown.cost_usd is None and unknown.within(Query(budget_tokens=20))
    with pytest.raises(
        SettingsError, match=r"price of model 'm' is unknown.*models\.m\.price\.input_usd_per_mtok"
    ):
        unknown.within(Query(budget_usd=1))


def test_question_over_budget_is_rejected_with_advice():
    check_budget(CostBound(2, 10), Query(budget_tokens=10), "Raise it.")
    with pytest.raises(
        BudgetSpent,
        match=r"at most 1,100 tokens, \$0\.2500, in 2 calls, but query\.budget_tokens is 1,000 and "
        r"query\.budget_usd is 9\. No call was made for the answer\. Raise it\.",
    ):
        check_budget(CostBound(2, 1_100, 0.25), Query(budget_tokens=1_000, budget_usd=9), "Raise it.")


def with_window(tokens: int) -> SearchEnv:
    model = {"provider": "openai", "model": "small", "context_window": tokens}
    return replace(GIVEN, settings=parse_settings({"models": {"default": model}}))


def test_question_without_room_for_data_is_rejected():
    question = "Why did the mill stand idle? " * 500
    given_ = with_window(8_600)
    with pytest.raises(UsageError, match=r"the question has 3,50\d and appears twice.*8,600\. Shorten"):
        check_context_fits(question, given_, [map_spec(given_.settings, given_.prompts)])


def test_rejected_setting_names_the_maximum():
    given_ = with_window(8_192)
    spec = map_spec(given_.settings, given_.prompts)
    left = 8_192 - instructions("Why?", spec, COUNT) - given_.settings.query.max_map_tokens
    with pytest.raises(UsageError, match=f"Set query.context_tokens to {left:,} or less"):
        check_context_fits("Why?", given_, [spec])
    fitting = with_window(8_000 + spec.max_tokens + instructions("Why?", spec, COUNT))
    check_context_fits("Why?", fitting, [spec])
    with pytest.raises(UsageError):
        check_context_fits("Why?", fitting, [spec], extra_tokens=1)


def test_instructions_exclude_data():
    spec = map_spec(GIVEN.settings, GIVEN.prompts)
    variables = dict.fromkeys(PLACEHOLDERS["map"], "")
    empty = spec.prompt.fill({**variables, "max_words": "843"})
    bare = sum(COUNT(m.content) + MESSAGE_TOKENS for m in empty)
    assert bare < instructions("Why did the mill stand idle?", spec, COUNT) < bare + 80


def test_single_context_over_budget_is_rejected():
    given_ = Snapshot({}).given(budget_tokens=1_000)
    context = Context("data\n" * 20, {("Sources", 1): "t1"}, 40)
    with pytest.raises(BudgetSpent, match=r"in 1 call, but query\.budget_tokens is 1,000.*context_tokens"):
        Snapshot({}).run(single_context.answer_from("Why?", given_, "vector", context))
