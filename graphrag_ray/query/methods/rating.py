"""How relevant reports are for a question: the dialogue by which dynamic selection decides where to read on.

Several reports stand in one call, each is rated by itself. One call a report would send the instructions and
the question (some 600 tokens) with every report of some 600: twice the price, and ten times the calls that a
rate limit counts. More than RATED_TOGETHER dilute a model's attention, and lose more where a reply fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, Count, Record, clean, longest_start
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import entries, number
from graphrag_ray.query.methods.map_reduce import AnswerSpec, correction_of, request_of, spec_of, variables_of

HIGHEST = 5.0
RELEVANT_FROM = 1.0
"""A report rated so, or higher, is relevant: 0 alone is of no use."""

RATED_TOGETHER = 10
MAX_RATE_TOKENS = 1_000
"""Of a reply: some 40 tokens each, and room for a model that gives long reasons."""

RATING_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "ratings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "reason": {"type": "string"},
                    "rating": {"type": "number"},
                },
                "required": ["id", "reason", "rating"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["ratings"],
    "additionalProperties": False,
}


COLUMNS = ("id", "title", "below", "content")
"""Of reports that are rated, where one of them has others below it."""
BELOW_SHOWN = 6
BELOW_TOKENS = 80
"""Of the titles below a report, at most."""


def with_below(report: Record, titles: Sequence[str], count: Count) -> Record:
    """The record of a report with what stands below it. titles: the most important first."""
    more = len(titles) - BELOW_SHOWN
    told = "; ".join([*map(clean, titles[:BELOW_SHOWN]), *([f"and {more} more"] if more > 0 else [])])
    if count(told) > BELOW_TOKENS:
        told = longest_start(told, lambda start: count(f"{start}…") <= BELOW_TOKENS) + "…"
    title, content = report.fields
    return replace(report, fields=(title, told, content), columns=COLUMNS)


@dataclass(frozen=True)
class Ratings:
    """by_id: string id of each report that was rated -> 0–5. A report of the context that is not in it got
    no rating that could be read."""

    by_id: Mapping[str, float]


def rate_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of("rate", settings, prompts, MAX_RATE_TOKENS)


def rate_reports(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Ratings]:
    """Ask how relevant the reports of a context are, and once more where a rating is missing.

    Raises DialogueFailed where neither reply has a rating that could be read.
    """
    known = {n: id_ for (_, n), id_ in context.numbering.items()}
    request = request_of(
        "rate", {**variables_of(question, spec), "context": context.text}, spec, RATING_SCHEMA
    )
    reply: ChatReply = yield request
    found = parse_ratings(reply.text, known, reply.finish_reason)
    if problem := _missing(found, known):
        reply = yield correction_of(request, reply, problem, spec)
        found |= parse_ratings(reply.text, known, reply.finish_reason)
        problem = _missing(found, known)
    if problem and not found:
        raise DialogueFailed(f"rate: still not usable after a correction: {problem.text}")
    return Ratings({known[n]: rating for n, rating in found.items()})


def parse_ratings(reply: str, known: Collection[int], finish_reason: str = "stop") -> dict[int, float]:
    """Rating of each known number that has one; the highest, where a reply contradicts itself: a branch
    that is read in vain costs less than one that is missed."""
    listed = entries(reply, "ratings", finish_reason)
    found: dict[int, float] = {}
    for entry in [] if isinstance(listed, ReplyProblem) else listed:
        name = number(next((entry[k] for k in ("id", "report", "reportid") if k in entry), None), 1e9)
        rating = number(next((entry[k] for k in ("rating", "score") if k in entry), None), HIGHEST)
        if name is not None and rating is not None and name == int(name) and int(name) in known:
            found[int(name)] = max(rating, found.get(int(name), 0.0))
    return found


def _missing(found: Collection[int], known: Collection[int]) -> ReplyProblem | None:
    without = [n for n in known if n not in found]
    return (
        ReplyProblem(f"it has no rating from 0 to 5 for {', '.join(map(str, without))}") if without else None
    )
