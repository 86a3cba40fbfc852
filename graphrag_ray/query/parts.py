"""Reading a part of the index for each of many contexts, and drawing what they say together (paper 3.1.6).

What global search, its dynamic selection and the paper's TS have in common: records come in, an answer comes
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphrag_ray.errors import GraphRagError
from graphrag_ray.query.answer import Answer, ContextUsed
from graphrag_ray.query.map_reduce import (
    MapAnswer,
    ReduceContext,
    Reduced,
    map_answer,
    map_spec,
    pack,
    reduce_answer,
    reduce_context,
    reduce_spec,
)
from graphrag_ray.query.method import Dialogues, Given, Ran
from graphrag_ray.query.numbers import numbered, shown_in, shown_to_people
from graphrag_ray.records import Reference
from graphrag_ray.reports.context import Context, Record

UNREADABLE = "No part of the index could be read for this question: every call failed."


@dataclass(frozen=True)
class Read:
    """What the contexts said.

    contexts   what was read
    mapped     one for each context, None where its dialogue failed
    errors     why dialogues failed
    """

    contexts: Sequence[Context]
    mapped: Sequence[MapAnswer | None]
    reduce_context: ReduceContext
    reduced: Reduced
    errors: Sequence[str] = ()


def read(question: str, given: Given, shown: Iterable[Record]) -> Generator[Any, Any, Read]:
    """Pack records of one section into contexts, ask each, draw the answers together."""
    query = given.settings.query
    contexts = pack(shown, query.context_tokens, query.seed, given.count)
    spec = map_spec(given.settings, given.prompts)
    outcomes: list[Ran[MapAnswer]] = yield Dialogues(
        "map", [partial(map_answer, question, context, spec) for context in contexts]
    )
    mapped = [o.result for o in outcomes]
    to_reduce = reduce_context([m for m in mapped if m], query.context_tokens, given.count)
    last = partial(reduce_answer, question, to_reduce, reduce_spec(given.settings, given.prompts))
    (reduced,) = yield Dialogues("reduce", [last], last=True, numbering=to_reduce.numbering)
    if reduced.result is None:
        raise GraphRagError(f"the answer could not be put together: {reduced.error}")
    errors = [o.error for o in outcomes if o.result is None]
    return Read(contexts, mapped, to_reduce, reduced.result, errors)


def answered(
    question: str, method: str, what: str, read: Read, *, level: int | None = None, notes: Sequence[str] = ()
) -> Generator[Any, Any, Answer]:
    """The answer, without costs and seconds, which the caller knows.

    what    the records that were read, in the plural: "reports"
    notes   of the method itself, shown before those on how the contexts were read
    """
    number = yield from numbered(read.reduced.references)
    return compose(question, method, what, read, number, level=level, notes=notes)


def compose(
    question: str,
    method: str,
    what: str,
    read: Read,
    number: Mapping[Reference, int],
    *,
    level: int | None = None,
    notes: Sequence[str] = (),
) -> Answer:
    """`answered`, with the human_readable_id of each cited record; one that the snapshot lacks has none."""
    mapped, reduced = read.mapped, read.reduced
    failed = sum(m is None for m in mapped)
    lost = bool(mapped) and failed == len(mapped)
    why = f"Most often because of: {Counter(read.errors).most_common(1)[0][0]}" if read.errors else ""
    dropped = reduced.dropped_references + sum(m.dropped_references for m in mapped if m)
    return Answer(
        question=question,
        text=f"{UNREADABLE} {why}".strip() if lost else shown_to_people(reduced.text, number),
        method=method,
        references=reduced.references,
        level=level,
        found=reduced.found,
        contexts=_contexts(read),
        failed_parts=failed,
        dropped_references=dropped,
        notes=(*notes, *_notes(what, read, failed, "" if lost else why)),
    )


def _contexts(read: Read) -> tuple[ContextUsed, ...]:
    used = [
        ContextUsed("map", shown_in(c.numbering), c.n_tokens, c.left_out, c.cut, m.score if m else None)
        for c, m in zip(read.contexts, read.mapped, strict=True)
    ]
    if read.reduce_context.shown:
        r = read.reduce_context
        used.append(ContextUsed("reduce", shown_in(r.numbering), r.n_tokens, r.left_out, r.cut))
    return tuple(used)


def _notes(what: str, read: Read, failed: int, why: str) -> tuple[str, ...]:
    left_out, cut = read.reduce_context.left_out, sum(c.cut for c in read.contexts)
    missing = f"{failed} of {len(read.contexts)} parts of the {what}"
    said = (
        (failed, f"{missing} got no usable reply and are missing. {why}".strip()),
        (cut, f"{cut} {what} were longer than a context and were read without their end."),
        (left_out, f"{left_out} of the less helpful partial answers did not fit into the last context."),
        (read.reduce_context.cut, "The most helpful partial answer alone was too long and was cut."),
        (read.reduced.truncated, "The answer ended at the model's output limit."),
    )
    return tuple(text for applies, text in said if applies)
