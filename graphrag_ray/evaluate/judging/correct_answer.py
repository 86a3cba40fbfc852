"""Whether an answer says what the correct one says: a judge that may only say Y or N (TREX)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.evaluate.judging.judge_dialogue import STAGE
from graphrag_ray.graph.extraction_dialogue import yes_or_no
from graphrag_ray.query.methods.map_reduce import AnswerSpec, request_of, spec_of

PROMPT = "correct_answer"
MAX_WORD_TOKENS = 16


def correct_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """At temperature 0, where the model takes one: it is asked once."""
    spec = spec_of(STAGE, settings, prompts, MAX_WORD_TOKENS, PROMPT)
    return replace(spec, call=replace(spec.call, temperature=spec.call.temperature and 0.0))


def is_correct(question: str, gold: Sequence[str], answer: str, spec: AnswerSpec) -> Dialogue[bool]:
    """gold: wordings of the correct answer. Raises DialogueFailed where the reply is neither Y nor N."""
    variables = {"question": question, "gold": "\n".join(f"- {text}" for text in gold), "answer": answer}
    reply: ChatReply = yield replace(request_of(PROMPT, variables, spec), response="yes_no")
    said = yes_or_no(reply)
    words = set(re.findall(r"[a-z]+", reply.text.lower()))
    if said is None or (words & {"y", "yes"} and words & {"n", "no"}):
        raise DialogueFailed(f"{PROMPT}: the reply is neither Y nor N")
    return said
