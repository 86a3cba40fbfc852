"""Mapping by points: a context's reply is a list of scored points as JSON, not one answer with one score.

The paper asks for one answer (3.1.6), which `map_reduce.map_answer` does. Points cost about as much and are
weighed one by one: a context with one good point among weak ones no longer has to give the whole one score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import entries, number, words
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    correction_of,
    map_answer,
    map_spec,
    request_of,
    resolved,
    spec_of,
    variables_of,
)
from graphrag_ray.query.methods.score import without_scores

PROMPT = "map_points"

POINTS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "points": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"description": {"type": "string"}, "score": {"type": "number"}},
                "required": ["description", "score"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["points"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Point:
    """text: with references by local number; score: 0–100."""

    text: str
    score: float


Mapper: TypeAlias = Callable[[str, Context, AnswerSpec], Dialogue[tuple[MapAnswer, ...]]]


def points_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of("map", settings, prompts, settings.query.max_map_tokens, PROMPT)


def map_one(question: str, context: Context, spec: AnswerSpec) -> Dialogue[tuple[MapAnswer, ...]]:
    """`map_answer`, in the form of `map_points`."""
    return ((yield from map_answer(question, context, spec)),)


def mapper(settings: Settings, prompts: Mapping[str, Prompt]) -> tuple[AnswerSpec, Mapper]:
    """What is asked of each context, as query.map_protocol says."""
    if settings.query.map_protocol == "points":
        return points_spec(settings, prompts), map_points
    return map_spec(settings, prompts), map_one


def map_points(question: str, context: Context, spec: AnswerSpec) -> Dialogue[tuple[MapAnswer, ...]]:
    """Ask which points of a context answer the question, and once more where the reply cannot be used.

    One MapAnswer a point, in the order of the reply; () where nothing there helps. Raises DialogueFailed
    where the second reply cannot be used either.
    """
    variables = {**variables_of(question, spec), "context": context.text}
    request = request_of(PROMPT, variables, spec, POINTS_SCHEMA)
    reply: ChatReply = yield request
    found = parse_points(reply.text, reply.finish_reason)
    if isinstance(found, ReplyProblem):
        reply = yield correction_of(request, reply, found, spec)
        found = parse_points(reply.text, reply.finish_reason)
    if isinstance(found, ReplyProblem):
        raise DialogueFailed(f"map: still not usable after a correction: {found.text}")
    answers = []
    for point in found:
        text, references, dropped, truncated = resolved(point.text, reply, context.numbering)
        answers.append(MapAnswer(text, point.score, references, truncated, dropped))
    return tuple(answers)


def parse_points(reply: str, finish_reason: str = "stop") -> tuple[Point, ...] | ReplyProblem:
    """The points of a reply; those without a text do not count.

    A score that cannot be read is a problem, never a zero: a zero drops the point.
    """
    found = entries(reply, "points", finish_reason)
    if isinstance(found, ReplyProblem):
        return found
    points = []
    for entry in found:
        text = without_scores(words(entry, "description", "point", "text", "answer"))
        score = number(entry.get("score"), 100.0)
        if text and score is None:
            return ReplyProblem("a point has no `score`, which is a number from 0 to 100")
        if text and score is not None:
            points.append(Point(text, score))
    if found and not points:
        return ReplyProblem("no point has a `description`")
    return tuple(points)
