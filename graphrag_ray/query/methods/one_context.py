"""One context, one answer: what vector, hybrid, local and LightRAG search end with."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from graphrag_ray.base.declarations import OF_SECTION
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.records import SECTIONS, Reference, render_references, strip_references
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.answer import Answer, ContextUsed
from graphrag_ray.query.methods.budget import asking, check_room, refuse_beyond
from graphrag_ray.query.methods.map_reduce import (
    NOTHING_FOUND,
    AnswerSpec,
    Reduced,
    answer_spec,
    asked_for_text,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Ran, Rows


def numbered(references: Iterable[Reference]) -> Generator[Any, Any, dict[Reference, int]]:
    """Ask for the human_readable_id of each record; one that the snapshot does not hold is left out."""
    wanted = list(references)
    ids = {s: [r.id for r in wanted if r.section == s] for s in SECTIONS}
    cited = [s for s in SECTIONS if ids[s]]
    tables: list[pa.Table] = yield tuple(
        Rows(OF_SECTION[s].table, ["id", "human_readable_id"], ids[s]) for s in cited
    )
    return {
        Reference(section, row["id"]): row["human_readable_id"]
        for section, table in zip(cited, tables, strict=True)
        for row in table.to_pylist()
    }


def shown_in(numbering: Mapping[tuple[str, int], str]) -> tuple[Reference, ...]:
    """The records of a context."""
    return tuple(Reference(section, id_) for (section, _), id_ in numbering.items())


def context_used(phase: str, context: Context) -> ContextUsed:
    """A context, as an answer tells of it."""
    return ContextUsed(phase, shown_in(context.numbering), context.n_tokens, context.left_out, context.cut)


PHASE = "answer"

ENDED_AT_LIMIT = "The answer ended at the model's output limit."
ADVICE = "Raise the budget, or lower query.{}."


def answer_from(
    question: str,
    given: Given,
    method: str,
    context: Context,
    notes: Sequence[str] = (),
    setting: str = "context_tokens",
) -> Generator[Any, Any, Answer]:
    """Answer from one context, in one call; nothing is asked of an empty one. Raises UsageError for a
    question that leaves no room for data, BudgetSpent.

    notes: of the method itself
    setting: of `query`, which says how many tokens the context may have
    """
    if not context.numbering:
        nothing = Reduced(NOTHING_FOUND, found=False)
        return (yield from answered(question, method, context, nothing, notes))
    spec = answer_spec(given.settings, given.prompts)
    check_room(question, given, [spec], setting=setting)
    most = asking(question, given, PHASE, spec, 1, context.n_tokens)
    refuse_beyond(most, given.settings.query, ADVICE.format(setting))
    last = partial(answer_context, question, context, spec)
    (ran,) = yield Dialogues(PHASE, [last], last=True, numbering=context.numbering)
    return (yield from answered(question, method, context, result_of(ran), notes))


def result_of(ran: Ran[Reduced]) -> Reduced:
    """Raises GraphRagError where the call that writes the answer has none."""
    if ran.result is None:
        raise GraphRagError(f"the question could not be answered: {ran.error}")
    return ran.result


def answered(
    question: str, method: str, context: Context, said: Reduced, notes: Sequence[str] = ()
) -> Generator[Any, Any, Answer]:
    """The answer, without costs and seconds, which the caller knows; what cites nothing found nothing."""
    number = yield from numbered(said.references)
    cut = f"{context.cut} records were longer than their part of the context and were read without their end."
    if context.cut == 1:
        cut = "1 record was longer than its part of the context and was read without its end."
    told = ((context.cut, cut), (said.truncated, ENDED_AT_LIMIT))
    return Answer(
        question=question,
        text=render_references(said.text, number.get),
        method=method,
        references=said.references,
        found=said.found and bool(said.references or said.dropped_references),
        contexts=(context_used(PHASE, context),) if context.numbering else (),
        dropped_references=said.dropped_references,
        notes=(*notes, *(text for applies, text in told if applies)),
    )


def answer_context(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Ask what a context says on the question. Raises DialogueFailed where the reply is empty twice."""
    return (yield from asked_for_text("answer", question, {"context": context.text}, context.numbering, spec))


_INSUFFICIENT = re.compile(
    r"[\W_]*(?:answer\W+)?insufficient(?:\s+(?:data|information|evidence))?\s*(?:[^\w\s]|$)", re.IGNORECASE
)


def is_insufficient(answer: str) -> bool:
    """Whether an answer says no more than that what was found does not suffice, in the prompt's word."""
    return _INSUFFICIENT.match(first_line(answer)) is not None


def first_line(text: str) -> str:
    return strip_references(text).strip().partition("\n")[0]
