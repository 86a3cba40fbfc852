"""Global search: the reports of one level of the hierarchy, all of them (paper 3.1.6; C0–C3 of 4.1.2).

What happens, with the I/O left out (`ask.py` has it):

    level    = levels.parse(wanted, context_tokens)
    chosen   = levels.at(level)                          rows of the reports table
    contexts = map_reduce.pack(report_record(…), …)
    mapped   = map_reduce.map_answer for every context   None where it failed
    context  = map_reduce.reduce_context(…)
    reduced  = map_reduce.reduce_answer(…)
    answer   = compose(…)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from graphrag_ray.query.answer import Answer, ContextUsed
from graphrag_ray.query.levels import LevelReports
from graphrag_ray.query.map_reduce import MapAnswer, ReduceContext, Reduced
from graphrag_ray.records import Reference, render_references
from graphrag_ray.reports.context import Context

METHOD = "global"
UNREADABLE = "No part of the index could be read for this question: every call failed."


def compose(
    question: str,
    chosen: LevelReports,
    contexts: Sequence[Context],
    mapped: Sequence[MapAnswer | None],
    reduce_context: ReduceContext,
    reduced: Reduced,
    number: Callable[[Reference], int | None],
    errors: Sequence[str] = (),
) -> Answer:
    """The answer, without costs and seconds, which the caller knows.

    mapped    one per context, None where its dialogue failed
    number    the human_readable_id of a record; None for one that the snapshot does not hold
    errors    why dialogues failed
    """
    failed = sum(m is None for m in mapped)
    lost = bool(mapped) and failed == len(mapped)
    why = f"Most often because of: {Counter(errors).most_common(1)[0][0]}" if errors else ""
    return Answer(
        question=question,
        text=f"{UNREADABLE} {why}".strip() if lost else render_references(reduced.text, number),
        method=METHOD,
        references=reduced.references,
        level=chosen.level,
        found=reduced.found,
        contexts=_contexts(contexts, mapped, reduce_context),
        failed_parts=failed,
        dropped_references=reduced.dropped_references + sum(m.dropped_references for m in mapped if m),
        notes=_notes(chosen, contexts, failed, "" if lost else why, reduce_context, reduced),
    )


def _contexts(
    contexts: Sequence[Context], mapped: Sequence[MapAnswer | None], reduce_context: ReduceContext
) -> tuple[ContextUsed, ...]:
    used = [
        ContextUsed("map", _shown(c.numbering), c.n_tokens, c.left_out, c.cut, m.score if m else None)
        for c, m in zip(contexts, mapped, strict=True)
    ]
    if reduce_context.shown:
        r = reduce_context
        used.append(ContextUsed("reduce", _shown(r.numbering), r.n_tokens, r.left_out, r.cut))
    return tuple(used)


def _shown(numbering: Mapping[tuple[str, int], str]) -> tuple[Reference, ...]:
    return tuple(Reference(section, id_) for (section, _), id_ in numbering.items())


def _notes(
    chosen: LevelReports,
    contexts: Sequence[Context],
    failed: int,
    why: str,
    reduce_context: ReduceContext,
    reduced: Reduced,
) -> tuple[str, ...]:
    n_missing, n_replaced, left_out = len(chosen.missing), len(chosen.replaced), reduce_context.left_out
    cut = sum(c.cut for c in contexts)
    missing = f"{failed} of {len(contexts)} parts of the reports"
    said = (
        (failed, f"{missing} got no usable reply and are missing. {why}".strip()),
        (n_missing, f"{n_missing} communities have no report and are missing."),
        (n_replaced, f"{n_replaced} communities have no report; reports of their sub-communities stand in."),
        (cut, f"{cut} reports were longer than a context and were read without their end."),
        (left_out, f"{left_out} of the less helpful partial answers did not fit into the last context."),
        (reduce_context.cut, "The most helpful partial answer alone was too long and was cut."),
        (reduced.truncated, "The answer ended at the model's output limit."),
    )
    return tuple(text for applies, text in said if applies)
