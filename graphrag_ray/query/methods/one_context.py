"""One context, one answer: what vector, hybrid, local and LightRAG search end with."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.answer import Answer, ContextUsed
from graphrag_ray.query.methods.budget import asking, check_room, refuse_beyond
from graphrag_ray.query.methods.cited_numbers import numbered, shown_in, shown_to_people
from graphrag_ray.query.methods.map_reduce import (
    NOTHING_FOUND,
    AnswerSpec,
    Reduced,
    answer_spec,
    asked_for_text,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Ran

PHASE = "answer"
ADVICE = "Raise the budget, or lower query.{}."


@dataclass(frozen=True)
class ContextReading:
    """What was read, and what it says."""

    context: Context
    said: Reduced


def read(
    question: str, given: Given, context: Context, setting: str = "context_tokens"
) -> Generator[Any, Any, ContextReading]:
    """Ask one context; nothing is asked of an empty one. Raises UsageError for a question that leaves no room
    for data, BudgetSpent.

    setting: of `query`, which says how many tokens the context may have
    """
    if not context.numbering:
        return ContextReading(context, Reduced(NOTHING_FOUND, found=False))
    spec = answer_spec(given.settings, given.prompts)
    check_room(question, given, [spec], setting=setting)
    most = asking(question, given, PHASE, spec, 1, context.n_tokens)
    refuse_beyond(most, given.settings.query, ADVICE.format(setting))
    last = partial(answer_context, question, context, spec)
    (ran,) = yield Dialogues(PHASE, [last], last=True, numbering=context.numbering)
    return ContextReading(context, result_of(ran))


def result_of(ran: Ran[Reduced]) -> Reduced:
    """Raises GraphRagError where the call that writes the answer has none."""
    if ran.result is None:
        raise GraphRagError(f"the question could not be answered: {ran.error}")
    return ran.result


def answered(
    question: str, method: str, read: ContextReading, notes: Sequence[str] = ()
) -> Generator[Any, Any, Answer]:
    """The answer, without costs and seconds, which the caller knows; what cites nothing found nothing.

    notes: of the method itself
    """
    context, said = read.context, read.said
    number = yield from numbered(said.references)
    shown = shown_in(context.numbering)
    used = ContextUsed(PHASE, shown, context.n_tokens, context.left_out, context.cut)
    told = (
        (context.cut, _cut(context.cut)),
        (said.truncated, "The answer ended at the model's output limit."),
    )
    return Answer(
        question=question,
        text=shown_to_people(said.text, number),
        method=method,
        references=said.references,
        found=said.found and bool(said.references or said.dropped_references),
        contexts=(used,) if shown else (),
        dropped_references=said.dropped_references,
        notes=(*notes, *(text for applies, text in told if applies)),
    )


def _cut(n: int) -> str:
    if n == 1:
        return "1 record was longer than its part of the context and was read without its end."
    return f"{n} records were longer than their part of the context and were read without their end."


def answer_context(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Ask what a context says on the question. Raises DialogueFailed where the reply is empty twice."""
    return (yield from asked_for_text("answer", question, {"context": context.text}, context.numbering, spec))
