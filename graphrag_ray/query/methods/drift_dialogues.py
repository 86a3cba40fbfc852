"""The dialogues of DRIFT search: a paragraph that might answer the question, a first answer from reports, and
answers to follow-up questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, clean
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import field, number
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    correction_of,
    request_of,
    resolved,
    spec_of,
    variables_of,
)
from graphrag_ray.query.methods.score import without_scores

HYPOTHESIS, PRIMER, LOCAL = "drift_hypothesis", "drift_primer", "drift_local"
HYPOTHESIS_TOKENS = 250
NO_ANSWER = "`answer` must be a text that is not empty, or `score` must be 0"

STEP_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "score": {"type": "number"},
        "follow_ups": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"question": {"type": "string"}, "score": {"type": "number"}},
                "required": ["question", "score"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["answer", "score", "follow_ups"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class FollowUp:
    """score: how much its answer would add, 0–100."""

    question: str
    score: float


@dataclass(frozen=True)
class Step:
    """What one context says, and what to ask next."""

    answer: MapAnswer
    follow_ups: tuple[FollowUp, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDraft:
    """A step as the model wrote it, with references by local number."""

    text: str
    score: float
    follow_ups: tuple[FollowUp, ...] = ()


def drift_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """prompt: HYPOTHESIS, PRIMER or LOCAL."""
    most = HYPOTHESIS_TOKENS if prompt == HYPOTHESIS else settings.query.max_map_tokens
    return spec_of("drift", settings, prompts, most, prompt)


def hypothesis(question: str, spec: AnswerSpec) -> Dialogue[str]:
    """Ask for a paragraph that might answer the question; "" where the reply is empty."""
    reply: ChatReply = yield request_of(HYPOTHESIS, variables_of(question, spec), spec)
    return clean(reply.text).strip()


def primer(question: str, context: Context, spec: AnswerSpec, n_follow_ups: int) -> Dialogue[Step]:
    """Ask for a first answer and what to look up. Raises DialogueFailed as `_step`."""
    return (yield from _step(PRIMER, question, context, spec, {"n_follow_ups": str(n_follow_ups)}))


def looked_up(
    question: str,
    follow_up: str,
    context: Context,
    spec: AnswerSpec,
    n_follow_ups: int,
    asked: Sequence[str] = (),
) -> Dialogue[Step]:
    """Ask for the answer to a follow-up question. asked: those that were looked up, this one among them.
    Raises DialogueFailed as `_step`."""
    own = {"n_follow_ups": str(n_follow_ups), "follow_up": follow_up, "asked": "\n".join(asked)}
    return (yield from _step(LOCAL, question, context, spec, own))


def _step(
    prompt: str, question: str, context: Context, spec: AnswerSpec, own: Mapping[str, str]
) -> Dialogue[Step]:
    """Ask, and once more where the reply cannot be used. Raises DialogueFailed where the second cannot
    either."""
    variables = {**variables_of(question, spec), "context": context.text, **own}
    request = request_of(prompt, variables, spec, STEP_SCHEMA)
    reply: ChatReply = yield request
    draft = parse_step(reply.text)
    if isinstance(draft, ReplyProblem):
        reply = yield correction_of(request, reply, draft, spec)
        draft = parse_step(reply.text)
    if isinstance(draft, ReplyProblem):
        raise DialogueFailed(f"{prompt}: still not usable after a correction: {draft.text}")
    text, references, dropped, truncated = resolved(draft.text, reply, context.numbering)
    return Step(MapAnswer(text, draft.score, references, truncated, dropped), draft.follow_ups)


def parse_step(reply: str) -> StepDraft | ReplyProblem:
    """The answer, its score and the follow-up questions of a reply. A score that is missing is a problem,
    never a zero; follow-up questions that are missing are none."""
    answer, score = field(reply, "answer"), number(field(reply, "score"), 100.0)
    if score is None:
        return ReplyProblem("`score` must be a number from 0 to 100")
    text = without_scores(answer) if isinstance(answer, str) else ""
    if score > 0 and not text:
        return ReplyProblem(NO_ANSWER)
    found = field(reply, "followups")
    return StepDraft(text, score, _follow_ups(found if isinstance(found, list) else []))


def _follow_ups(found: Sequence[Any]) -> tuple[FollowUp, ...]:
    """Without a score of its own, a question counts as half as promising as can be."""
    out = []
    for item in found:
        asked, score = (item.get("question"), item.get("score")) if isinstance(item, dict) else (item, None)
        if isinstance(asked, str) and (question := clean(asked).strip()):
            rating = number(score, 100.0)
            out.append(FollowUp(question, 50.0 if rating is None else rating))
    return tuple(out)
