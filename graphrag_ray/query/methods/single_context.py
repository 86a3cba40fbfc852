"""Answer from one context with one call: the last step of most search methods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from graphrag_ray.base.context_records import SECTIONS, Reference, render_references, strip_references
from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.answer import Answer, ContextUsed
from graphrag_ray.query.methods.budget import calls_bound, check_budget, check_context_fits
from graphrag_ray.query.methods.map_reduce import (
    NOTHING_FOUND,
    AnswerSpec,
    Reduced,
    answer_spec,
    ask_for_text,
)
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues, Rows, SearchEnv, Steps

PHASE = "answer"
ENDED_AT_LIMIT = "The answer ended at the model's output limit."
ADVICE = "Raise the budget, or lower query.{}."

_INSUFFICIENT = re.compile(
    r"[\W_]*(?:answer\W+)?insufficient(?:\s+(?:data|information|evidence))?\s*(?:[^\w\s]|$)", re.IGNORECASE
)


def short_numbers(references: Iterable[Reference]) -> Steps[dict[Reference, int]]:
    """Look up the human_readable_id of each record. Records missing from the snapshot are left out."""
    wanted = list(references)
    ids = {s: [r.id for r in wanted if r.section == s] for s in SECTIONS}
    cited = [s for s in SECTIONS if ids[s]]
    tables: list[pa.Table] = yield tuple(
        Rows(RECORD_KIND_BY_SECTION[s].table, ["id", "human_readable_id"], ids[s]) for s in cited
    )
    return {
        Reference(section, row["id"]): row["human_readable_id"]
        for section, table in zip(cited, tables, strict=True)
        for row in table.to_pylist()
    }


def records_in(numbering: Mapping[tuple[str, int], str]) -> tuple[Reference, ...]:
    return tuple(Reference(section, id_) for (section, _), id_ in numbering.items())


def context_used(phase: str, context: Context) -> ContextUsed:
    return ContextUsed(phase, records_in(context.numbering), context.n_tokens, context.left_out, context.cut)


def answer_from(
    question: str,
    env: SearchEnv,
    method: str,
    context: Context,
    notes: Sequence[str] = (),
    setting: str = "context_tokens",
) -> Steps[Answer]:
    """Answer from a context limited by `query.<setting>`, in one call. Makes no call if the context is empty.

    Raises:
        UsageError: The prompt does not fit into the context window.
        BudgetSpent: The call could exceed the budget.
    """
    if not context.numbering:
        nothing = Reduced(NOTHING_FOUND, found=False)
        return (yield from build_answer(question, method, context, nothing, notes))
    spec = answer_spec(env.settings, env.prompts)
    check_context_fits(question, env, [spec], setting=setting)
    bound = calls_bound(question, env, PHASE, spec, 1, context.n_tokens)
    check_budget(bound, env.settings.query, ADVICE.format(setting))
    dialogue = partial(answer_context, question, context, spec)
    (outcome,) = yield Dialogues(PHASE, [dialogue], is_answer=True, numbering=context.numbering)
    return (yield from build_answer(question, method, context, result_of(outcome), notes))


def result_of(outcome: DialogueOutcome[Reduced]) -> Reduced:
    """Return the result of the call that writes the answer. Raises GraphRagError if it failed."""
    if outcome.result is None:
        raise GraphRagError(f"The question could not be answered: {outcome.error}")
    return outcome.result


def build_answer(
    question: str, method: str, context: Context, reduced: Reduced, notes: Sequence[str] = ()
) -> Steps[Answer]:
    """Build the answer, without costs and time. A text without references counts as not found."""
    number = yield from short_numbers(reduced.references)
    cut = f"{context.cut} records were longer than their part of the context and were truncated."
    if context.cut == 1:
        cut = "1 record was longer than its part of the context and was truncated."
    possible = ((context.cut, cut), (reduced.truncated, ENDED_AT_LIMIT))
    return Answer(
        question=question,
        text=render_references(reduced.text, number.get),
        method=method,
        references=reduced.references,
        found=reduced.found and bool(reduced.references or reduced.dropped_references),
        contexts=(context_used(PHASE, context),) if context.numbering else (),
        dropped_references=reduced.dropped_references,
        notes=(*notes, *(text for applies, text in possible if applies)),
    )


def answer_context(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Ask for an answer from a context. Raises DialogueFailed if the reply is empty twice."""
    return (yield from ask_for_text("answer", question, {"context": context.text}, context.numbering, spec))


def is_insufficient(answer: str) -> bool:
    """Whether an answer only consists of the word with which prompts let a model report insufficient data."""
    return _INSUFFICIENT.match(first_line(answer)) is not None


def first_line(text: str) -> str:
    return strip_references(text).strip().partition("\n")[0]
