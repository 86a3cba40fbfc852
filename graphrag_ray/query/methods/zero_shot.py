"""A model's answer without any data: what an index adds is seen beside it. `evaluate` alone offers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.budget import asking, refuse_beyond
from graphrag_ray.query.methods.map_reduce import AnswerSpec, asked_for_text, spec_of
from graphrag_ray.query.methods.method import Dialogues, Given, Method, Question
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.one_context import PHASE, answered, result_of

NAME = "none"
PROMPT = "zero_shot"
ADVICE = "Raise the budget."
NOTE = "Answered without any data, from what the model knows."


def zero_shot_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of(PHASE, settings, prompts, settings.query.max_reduce_tokens, PROMPT)


def search(question: Question, given: Given) -> Method:
    """Answer from nothing but the question. Raises BudgetSpent."""
    settings = given.settings
    spec = zero_shot_spec(settings, given.prompts)
    refuse_beyond(asking(question.text, given, PHASE, spec, 1, 0), settings.query, ADVICE)
    ask = partial(asked_for_text, PROMPT, question.text, {}, {}, spec)
    (ran,) = yield Dialogues(PHASE, [ask], last=True, numbering={})
    answer = yield from answered(question.text, NAME, Context("", {}, 0), result_of(ran), [NOTE])
    return replace(answer, found=True)


METHOD = MethodKind(
    search,
    asks=("answer",),
    reads="nothing",
)
