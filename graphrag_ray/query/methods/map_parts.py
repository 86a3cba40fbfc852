"""Reading a part of the index for each of many contexts, and drawing what they say together (paper 3.1.6).

What global search, its dynamic selection and the paper's TS have in common: records come in, an answer comes
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.records import render_references
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.answer import UNREADABLE, Answer, ContextUsed
from graphrag_ray.query.methods.budget import check_room
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    Mapper,
    ReduceContext,
    Reduced,
    mapper,
    pack,
    reduce_answer,
    reduce_context,
    reduce_spec,
    shuffled,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Kind, Ran
from graphrag_ray.query.methods.one_context import ENDED_AT_LIMIT, context_used, numbered
from graphrag_ray.query.methods.record_rows import loaded

BATCH_TOKENS = 16_000_000
"""Read and asked at once: some 70 MB of text, 2,000 contexts of the usual size."""


@dataclass(frozen=True)
class ToRead:
    """Records of one kind, known by id and size alone: their texts are read when it is their turn.

    n_tokens: [R] of each record's text
    """

    kind: Kind
    ids: Sequence[str]
    n_tokens: Sequence[int]


def read(question: str, given: Given, wanted: ToRead) -> Generator[Any, Any, Mapped]:
    """Shuffle records of one section, pack them into contexts, ask each, draw the answers together.

    A batch of BATCH_TOKENS after the other, so that the memory that this takes does not grow with the texts;
    what does are the ids (some 500 bytes a record) and the answers above zero. Raises UsageError for a
    question that leaves no room for data.
    """
    query = given.settings.query
    spec, asked = mapper(given.settings, given.prompts)
    check_room(question, given, (spec, reduce_spec(given.settings, given.prompts)))
    found = Mapped()
    for ids in batches(wanted, query.seed, BATCH_TOKENS):
        records = yield from loaded(((wanted.kind, id_) for id_ in ids), given)
        packed = pack(records, query.context_tokens, query.seed, given.count)
        yield from map_contexts(question, packed, spec, asked, found)
    return (yield from merged(question, given, found))


@dataclass
class Mapped:
    """What contexts said so far, and in the end all of them together.

    contexts   what was read, with the highest score in each; None where its dialogue failed
    errors     why dialogues failed
    """

    contexts: list[ContextUsed] = field(default_factory=list)
    answers: list[MapAnswer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reduce_context: ReduceContext = field(default_factory=lambda: ReduceContext("", {}, 0))
    reduced: Reduced = field(default_factory=lambda: Reduced(""))

    def add(self, phase: str, context: Context, said: Sequence[MapAnswer] | None, error: str) -> None:
        """Note what a context said; None: its dialogue failed."""
        score = None
        if said is None:
            self.errors.append(error)
        else:
            score = max((a.score for a in said), default=0.0)
            self.answers.extend(said)
        self.contexts.append(replace(context_used(phase, context), score=score))


def map_contexts(
    question: str, contexts: Sequence[Context], spec: AnswerSpec, asked: Mapper, found: Mapped
) -> Generator[Any, Any, None]:
    """Ask each context, all at once, and note what it says."""
    ran: list[Ran[tuple[MapAnswer, ...]]] = yield Dialogues(
        "map", [partial(asked, question, context, spec) for context in contexts]
    )
    for context, said in zip(contexts, ran, strict=True):
        found.add("map", context, said.result, said.error)


def merged(question: str, given: Given, said: Mapped, prompt: str = "reduce") -> Generator[Any, Any, Mapped]:
    """Draw the answers together, by falling score, in one call. prompt: its name. Raises GraphRagError where
    that fails."""
    shown = reduce_context(said.answers, given.settings.query.context_tokens, given.count)
    final = partial(reduce_answer, question, shown, reduce_spec(given.settings, given.prompts, prompt))
    (reduced,) = yield Dialogues("reduce", [final], last=True, numbering=shown.numbering)
    if reduced.result is None:
        raise GraphRagError(f"the answer could not be put together: {reduced.error}")
    said.reduce_context, said.reduced = shown, reduced.result
    return said


def batches(wanted: ToRead, seed: int, tokens: int) -> Iterator[list[str]]:
    """Ids in the order in which they are read, about so many tokens at a time; each once."""
    size = dict(zip(wanted.ids, wanted.n_tokens, strict=True))
    batch: list[str] = []
    held = 0
    for id_ in shuffled(size, seed):
        if batch and held + size[id_] > tokens:
            yield batch
            batch, held = [], 0
        batch.append(id_)
        held += size[id_]
    if batch:
        yield batch


def answered(
    question: str,
    method: str,
    what: str,
    read: Mapped,
    *,
    level: int | None = None,
    notes: Sequence[str] = (),
) -> Generator[Any, Any, Answer]:
    """The answer, without costs and seconds, which the caller knows.

    what    the records that were read, in the plural: "reports"
    notes   of the method itself, shown before those on how the contexts were read
    """
    number = yield from numbered(read.reduced.references)
    reduced, to_reduce, failed = read.reduced, read.reduce_context, len(read.errors)
    lost = bool(read.contexts) and failed == len(read.contexts)
    why = f"Most often because of: {Counter(read.errors).most_common(1)[0][0]}" if read.errors else ""
    left_out, cut = to_reduce.left_out, sum(c.cut for c in read.contexts)
    missing = f"{failed} of {len(read.contexts)} parts of the {what} got no usable reply and are missing."
    told = (
        (failed, f"{missing} {'' if lost else why}".strip()),
        (cut, f"{cut} {what} were longer than a context and were read without their end."),
        (left_out, f"{left_out} of the less helpful partial answers did not fit into the last context."),
        (to_reduce.cut, "The most helpful partial answer alone was too long and was cut."),
        (reduced.truncated, ENDED_AT_LIMIT),
    )
    return Answer(
        question=question,
        text=f"{UNREADABLE} {why}".strip() if lost else render_references(reduced.text, number.get),
        method=method,
        references=reduced.references,
        level=level,
        found=reduced.found,
        contexts=(*read.contexts, *([context_used("reduce", to_reduce)] if to_reduce.shown else [])),
        failed_parts=failed,
        dropped_references=reduced.dropped_references + sum(a.dropped_references for a in read.answers),
        notes=(*notes, *(text for applies, text in told if applies)),
    )
