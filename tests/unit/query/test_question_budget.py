"""The budget of a question in progress."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.connection_settings import Model, Price
from graphrag_ray.base.errors import BudgetSpent, PermanentCallError, SettingsError, TransientCallError
from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.messages import (
    CallParameters,
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Message,
    RerankRequest,
    Usage,
)
from graphrag_ray.llm.accounting import CallRecord
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.query.methods.budget import CostBound
from graphrag_ray.query.model_calls import QuestionBudget

PRICED = Model(provider="openai", model="m", price=Price(input_usd_per_mtok=1, output_usd_per_mtok=10))


def request(words: int, most: int) -> ChatRequest:
    return ChatRequest("map", (Message("user", "word " * words),), CallParameters("default", "m", 0.0, most))


def ask_all(
    allowance: QuestionBudget, sizes: list[tuple[int, int, int]], is_answer: bool = False
) -> tuple[int, list[object]]:
    """Tokens that were taken, and what became of each call.

    sizes: of the prompt, of the longest reply, of the reply as it comes
    """
    taken = 0

    async def ask(asked: ChatRequest, stage: str) -> CallResult:
        nonlocal taken
        await asyncio.sleep(0)
        n, reply = next((n, r) for n, m, r in sizes if request(n, m) == asked)
        taken += n + 5 + reply
        return CallResult(ChatReply("So.", usage=Usage(n + 5, reply)))

    async def run() -> list[object]:
        within = allowance.wrap(ask, is_answer)
        calls = [within(request(n, m), "map") for n, m, _ in sizes]
        return await asyncio.gather(*calls, return_exceptions=True)

    ended = asyncio.run(run())
    return taken, ended


def allowance(kept_back: CostBound | None = None, model: Model = PRICED, **query: float) -> QuestionBudget:
    return QuestionBudget(Query(**query), {"default": model}, kept_back or CostBound())


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300)).map(
            lambda t: (t[0], t[1], min(t[1], t[2]))
        ),
        max_size=12,
        unique_by=lambda t: t[:2],
    ),
    st.integers(1, 2_000),
    st.integers(0, 500),
)
def test_concurrent_calls_stay_within_budget(sizes, budget: int, kept_back: int):
    before = allowance(CostBound(1, kept_back), budget_tokens=budget)
    taken, ended = ask_all(before, sizes)
    assert taken == 0 or taken + kept_back <= budget
    assert all(isinstance(e, CallResult | PermanentCallError) for e in ended)


def test_call_over_budget_is_not_sent():
    taken, (ended,) = ask_all(allowance(budget_tokens=100), [(90, 20, 1)])
    assert taken == 0 and isinstance(ended, PermanentCallError)
    assert str(ended) == "Not sent: query.budget_tokens is 100, and 0 tokens are spent or in flight"


def test_short_replies_free_budget_for_other_calls():
    within = allowance(budget_tokens=400)
    for _ in range(3):
        taken, (ended,) = ask_all(within, [(50, 200, 10)])
        assert taken and isinstance(ended, CallResult)


def test_answer_call_uses_reserve_or_ends_question():
    within = allowance(CostBound(1, 150), budget_tokens=200)
    assert ask_all(within, [(90, 20, 1)])[0] == 0
    assert ask_all(within, [(90, 20, 1)], is_answer=True)[0] > 0
    _, (ended,) = ask_all(within, [(90, 20, 1)], is_answer=True)
    assert isinstance(ended, BudgetSpent)


def test_failed_call_uses_no_budget():
    within = allowance(budget_tokens=200)

    async def broken(asked: ChatRequest, stage: str) -> CallResult:
        raise TransientCallError("down")

    for _ in range(4):
        with pytest.raises(TransientCallError):
            asyncio.run(within.wrap(broken, False)(request(90, 20), "map"))  # type: ignore[arg-type]
    assert ask_all(within, [(90, 20, 1)])[0] > 0


def test_cost_uses_most_expensive_endpoint():
    dear = {"price": {"input_usd_per_mtok": 100, "output_usd_per_mtok": 100}}
    cheap = {"price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}}
    model = Model(provider="openai", model="m", endpoints=(cheap, dear))  # type: ignore[arg-type]
    assert ask_all(allowance(model=model, budget_usd=0.01), [(90, 10, 1)])[0] == 0
    assert ask_all(allowance(model=model, budget_usd=0.011), [(90, 10, 1)])[0] > 0


def test_dollar_budget_requires_price():
    unknown = Model(provider="openai", model="no-such-model")
    _, (ended,) = ask_all(allowance(model=unknown, budget_usd=1), [(9, 9, 9)])
    assert isinstance(ended, SettingsError)


def test_embeddings_count_towards_budget():
    async def embed(asked: EmbeddingRequest, stage: str) -> CallResult:
        return CallResult(EmbeddingReply(b"", Usage(len(asked.text.split()))))

    within = allowance(budget_tokens=100).wrap(embed, False)  # type: ignore[arg-type]
    text = EmbeddingRequest("word " * 60, CallParameters("default", "m"))
    asyncio.run(within(text, "embed"))
    with pytest.raises(BudgetSpent):  # nothing is found without an embedding
        asyncio.run(within(text, "embed"))


def test_reranking_is_left_out_rather_than_the_answer():
    request = RerankRequest("word", ("word " * 40,) * 3, CallParameters("default", "m"))
    priced = Model(provider="openai", model="m", price={"input_usd_per_mtok": 0, "usd_per_search": 0.01})  # type: ignore[arg-type]
    for held in (allowance(budget_tokens=100), allowance(model=priced, budget_usd=0.009)):
        with pytest.raises(PermanentCallError, match="Not sent"):
            held.admit(request, is_answer=False)
    assert allowance(budget_tokens=200).admit(request, is_answer=False).tokens > 100


def test_unanswered_request_counts_towards_budget():
    lost = Usage(800, 200, reported=False)
    call = CallRecord(
        "map", "map", PRICED.model_id, "http://a/v1", "transient", lost, 0, 1.0, 1, 0, unanswered=(lost,)
    )
    held = allowance(budget_tokens=1_000)
    assert held.admit(request(100, 100), is_answer=False)
    held.note(call)
    with pytest.raises(PermanentCallError, match="Not sent"):
        held.admit(request(100, 100), is_answer=False)
    dollars = allowance(budget_usd=0.003)
    dollars.note(call)
    with pytest.raises(PermanentCallError, match="Not sent"):
        dollars.admit(request(100, 100), is_answer=False)


def test_bound_includes_reasoning_tokens():
    call = CallParameters("default", "m", 0.0, 100, reasoning_tokens=1000)
    asked = ChatRequest("map", (Message("user", "word"),), call)
    assert allowance(budget_tokens=5000).admit(asked, is_answer=False).tokens > 1100
    narrow = PRICED.model_copy(update={"context_window": 500})
    assert allowance(model=narrow, budget_tokens=5000).admit(asked, is_answer=False).tokens == 500
