"""What a comparison will cost, before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from math import comb

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.messages import Usage
from graphrag_ray.evaluate.comparison import planned
from graphrag_ray.evaluate.conditions import EvaluationCondition
from graphrag_ray.evaluate.judging.judge_dialogue import CLAIMS_STAGE, STAGE, answer_claims_spec, judge_spec
from graphrag_ray.evaluate.rehearsal import Asked, rehearsed
from graphrag_ray.llm.pricing import cost_usd, dearest_price
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.question_files import Posed

SAMPLE = 3
"""Questions whose contexts are put together for each condition, to see what models would be shown."""
REPLY_TOKENS: Mapping[str, int] = {
    "map": 350,
    "reduce": 700,
    "answer": 500,
    "rate": 350,
    "drift": 450,
    "keywords": 60,
    "fgrag": 250,
}
"""Of a reply to each prompt of a stage, as language models wrote them for this program, rounded up."""
EMBED = "embed"
VERDICT_TOKENS, CLAIM_LIST_TOKENS = 90, 800
USUAL_REPLY_TOKENS = 300


@dataclass(frozen=True)
class PlannedCost:
    """Of a condition or of a judge. cost_usd: None where a price is unknown."""

    name: str
    calls: float
    prompt_tokens: float
    completion_tokens: float
    cost_usd: float | None


def planned_costs(
    index: Index,
    posed: Sequence[Posed],
    conditions: Sequence[str | EvaluationCondition],
    criteria: Sequence[str],
    replicates: int,
    claims: bool = False,
) -> list[PlannedCost]:
    """What each condition will ask for, by a sample of the questions, and what the judge will; and embeddings
    of the questions, once for all conditions. Nothing is asked but embeddings of the sample. What is in the
    folder already is not taken off. Raises UsageError."""
    known, texts = planned(index, conditions, criteria, replicates)
    if not posed:
        raise UsageError("there is no question")
    step = max(1, len(posed) // SAMPLE)
    sample = [p.text for p in posed[::step][:SAMPLE]]
    found = [_answers(index, condition, sample, len(posed)) for condition in known if condition.method]
    if any(condition.method and EMBED in methods.stages(condition.method) for condition in known):
        tokens = sum(index.given.count(p.text) for p in posed)
        found.append(_cost(index, EMBED, len(posed), tokens, 0))
    longest = max(REPLY_TOKENS["reduce"], REPLY_TOKENS["answer"])
    settings, prompts = index.settings, index.given.prompts
    judge = judge_spec(settings, prompts).prompt
    judged = [index.given.count(judge.system + judge.user + 2 * said) for said in texts.values()]
    calls = len(posed) * comb(len(known), 2) * replicates
    shown = calls * (sum(judged) + 2 * longest * len(texts))
    found.append(_cost(index, STAGE, calls * len(texts), shown, calls * len(texts) * VERDICT_TOKENS))
    if claims:
        prompt = answer_claims_spec(settings, prompts).prompt
        n = len(posed) * len(known)
        shown = index.given.count(prompt.system + prompt.user) + longest
        found.append(_cost(index, CLAIMS_STAGE, n, n * shown, n * CLAIM_LIST_TOKENS))
    return found


def _answers(index: Index, condition: EvaluationCondition, sample: Sequence[str], n: int) -> PlannedCost:
    opened = condition.opened(index)

    def shown(_: Answer, asked: Asked) -> list[tuple[str, int]]:
        return [
            (stage, sum(opened.given.count(message.content) for message in request.messages))
            for stage, request in asked
        ]

    each = rehearsed(opened, sample, condition.method, condition.level, shown)
    answered = [one for one in each if not isinstance(one, str)]
    share = n / len(answered)
    sizes: dict[str, list[int]] = {}
    for stage, size in (call for one in answered for call in one):
        sizes.setdefault(stage, []).append(size)
    costs = []
    for stage, of in sizes.items():
        calls, reply = len(of) * share, REPLY_TOKENS.get(stage, USUAL_REPLY_TOKENS)
        costs.append(_cost(opened, stage, calls, sum(of) * share, calls * reply))
    columns = zip(*(astuple(cost)[1:] for cost in costs), strict=True)
    *counts, usd = [*columns] or [()] * 4
    calls, prompt, completion = map(sum, counts)
    return PlannedCost(condition.name, calls, prompt, completion, None if None in usd else sum(usd))


def _cost(index: Index, stage: str, calls: float, prompt: float, completion: float) -> PlannedCost:
    price = dearest_price(index.settings.model(index.settings.model_name(stage)))
    usd = cost_usd(Usage(round(prompt), round(completion)), price)
    return PlannedCost(stage, calls, prompt, completion, usd)
