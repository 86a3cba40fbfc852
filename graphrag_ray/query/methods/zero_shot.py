"""A baseline without any data, which shows the benefit of an index. Only `evaluate` offers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.budget import calls_bound, check_budget
from graphrag_ray.query.methods.map_reduce import AnswerSpec, ask_for_text, build_spec
from graphrag_ray.query.methods.method import Dialogues, Method, Question, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.single_context import PHASE, build_answer, result_of

NAME = "none"
PROMPT = "zero_shot"
NOTE = "Answered from the model's own knowledge, without any data."


def zero_shot_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec(PHASE, settings, prompts, settings.query.max_reduce_tokens, PROMPT)


def search(question: Question, env: SearchEnv) -> Method:
    settings = env.settings
    spec = zero_shot_spec(settings, env.prompts)
    check_budget(calls_bound(question.text, env, PHASE, spec, 1, 0), settings.query, "Raise the budget.")
    ask = partial(ask_for_text, PROMPT, question.text, {}, {}, spec)
    (outcome,) = yield Dialogues(PHASE, [ask], is_answer=True, numbering={})
    nothing = Context("", {}, 0)
    answer = yield from build_answer(question.text, NAME, nothing, result_of(outcome), [NOTE])
    return replace(answer, found=True)


METHOD = MethodKind(search, stages=("answer",), description="nothing")
