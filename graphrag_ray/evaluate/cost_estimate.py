"""Predict the cost of a comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

from graphrag_ray.base.messages import RERANK, Usage
from graphrag_ray.evaluate import JUDGE_PROTOCOLS
from graphrag_ray.evaluate.comparison import parse_plan
from graphrag_ray.evaluate.conditions import EvaluationCondition, Requests, rehearse
from graphrag_ray.evaluate.judging.judge_dialogue import CLAIMS_STAGE, STAGE, answer_claims_spec, judge_spec
from graphrag_ray.llm.pricing import cost_usd, highest_price
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.nearest import TYPICAL_CHUNK_TOKENS
from graphrag_ray.query.question_files import BatchQuestion

SAMPLE_SIZE = 3  # Number of questions per condition whose prompts are built and measured.
REPLY_TOKENS: Mapping[str, int] = {
    "map": 350,
    "reduce": 700,
    "answer": 500,
    "rate": 350,
    "drift": 450,
    "keywords": 60,
    "fgrag": 250,
}
"""Typical reply length per stage, measured and rounded up."""
VERDICT_TOKENS, CLAIM_LIST_TOKENS, OTHER_REPLY_TOKENS = 90, 800, 300


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of a condition or judging stage. cost_usd is None if a price is unknown."""

    name: str
    calls: float
    prompt_tokens: float
    completion_tokens: float
    cost_usd: float | None


def estimate_costs(
    index: Index,
    questions: Sequence[BatchQuestion],
    conditions: Sequence[str | EvaluationCondition],
    criteria: Sequence[str],
    replicates: int,
    claims: bool = False,
    protocol: str = JUDGE_PROTOCOLS[0],
) -> list[CostEstimate]:
    """Predict the cost of each condition, extrapolated from a sample of the questions, and of the judge.

    Question embeddings are counted once for all conditions; only the sample is actually embedded. Replies
    that are already in the evaluation's folder are not subtracted. Raises UsageError.
    """
    parsed, texts = parse_plan(index, conditions, criteria, replicates, protocol)
    sample = [p.text for p in questions[:: max(1, len(questions) // SAMPLE_SIZE)][:SAMPLE_SIZE]]
    count, prompts = index.env.count, index.env.prompts
    costs = [_condition_cost(condition, sample, len(questions)) for condition in parsed if condition.method]
    if any(c.method and "embed" in methods.get_method(c.method).stages for c in parsed):
        costs.append(_cost(index, "embed", len(questions), sum(count(p.text) for p in questions), 0))
    answer_tokens = max(REPLY_TOKENS["reduce"], REPLY_TOKENS["answer"])
    joint = protocol == "joint"
    judge = judge_spec(index.settings, prompts, len(texts) if joint else 0).prompt
    asked = ["\n".join(texts.values())] if joint else [2 * criterion for criterion in texts.values()]
    prompt_tokens = sum(count(judge.system + judge.user + criteria) + 2 * answer_tokens for criteria in asked)
    pairs = len(questions) * comb(len(parsed), 2) * replicates
    reply_tokens = pairs * len(texts) * VERDICT_TOKENS
    costs.append(_cost(index, STAGE, pairs * len(asked), pairs * prompt_tokens, reply_tokens))
    if claims:
        prompt = answer_claims_spec(index.settings, prompts).prompt
        calls = len(questions) * len(parsed)
        prompt_tokens = calls * (count(prompt.system + prompt.user) + answer_tokens)
        costs.append(_cost(index, CLAIMS_STAGE, calls, prompt_tokens, calls * CLAIM_LIST_TOKENS))
    return costs


def _condition_cost(condition: EvaluationCondition, sample: Sequence[str], n: int) -> CostEstimate:
    changed = condition.opened

    def prompt_sizes(_: Answer, requests: Requests) -> list[tuple[str, int]]:
        count = changed.env.count
        return [(stage, sum(count(m.content) for m in request.messages)) for stage, request in requests]

    outcomes = rehearse(changed, sample, condition.method, condition.level, prompt_sizes)
    succeeded = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    factor = n / len(succeeded)
    sizes: dict[str, list[int]] = defaultdict(list)
    for stage, size in (call for calls in succeeded for call in calls):
        sizes[stage].append(size)
    costs = [
        _cost(
            changed,
            stage,
            len(prompts) * factor,
            sum(prompts) * factor,
            len(prompts) * factor * REPLY_TOKENS.get(stage, OTHER_REPLY_TOKENS),
        )
        for stage, prompts in sizes.items()
    ]
    query = changed.settings.query
    if RERANK in methods.stages(condition.method, query):
        tokens = n * query.rerank_candidates * TYPICAL_CHUNK_TOKENS
        costs.append(_cost(changed, RERANK, n, tokens, 0, n))
    known = [cost.cost_usd for cost in costs if cost.cost_usd is not None]
    return CostEstimate(
        condition.name,
        sum(cost.calls for cost in costs),
        sum(cost.prompt_tokens for cost in costs),
        sum(cost.completion_tokens for cost in costs),
        sum(known) if len(known) == len(costs) else None,
    )


def _cost(
    index: Index, stage: str, calls: float, prompt: float, completion: float, searches: int = 0
) -> CostEstimate:
    price = highest_price(index.settings.model(index.settings.model_name(stage)))
    usd = cost_usd(Usage(round(prompt), round(completion), searches=searches), price)
    return CostEstimate(stage, calls, prompt, completion, usd)
