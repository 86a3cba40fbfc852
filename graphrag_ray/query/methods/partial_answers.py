"""Map-reduce over contexts: ask each context, then combine the partial answers (paper 3.1.6).

Used by global search, text search (the paper's TS), DRIFT, ArchRAG and FG-RAG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from graphrag_ray.base.context_records import render_references
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.graph.report_context import Context, longest_prefix_that_fits
from graphrag_ray.query.methods.answer import UNREADABLE, Answer, ContextUsed
from graphrag_ray.query.methods.budget import check_context_fits
from graphrag_ray.query.methods.distinct_points import distinct_points
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
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues, Kind, SearchEnv, Steps
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import (
    ENDED_AT_LIMIT,
    context_used,
    is_insufficient,
    short_numbers,
)

NOT_FOUND = "**Looked up, but nothing was found:** {}"
"""The record of the reduce prompt that says what is missing. The prompts quote its beginning."""
NOT_FOUND_TOKENS = 200
BATCH_TOKENS = 16_000_000
"""Size of the records that are read and sent together: about 70 MB of text, 2,000 default contexts."""


@dataclass(frozen=True)
class RecordsToRead:
    """Records of one kind whose texts are not loaded yet, with the size of each in tokens."""

    kind: Kind
    ids: Sequence[str]
    n_tokens: Sequence[int]


@dataclass
class PartialAnswers:
    """The contexts (with their highest scores), answers and errors, and finally the combined answer.

    `not_found` lists questions or subjects that were looked up without a result.
    """

    contexts: list[ContextUsed] = field(default_factory=list)
    answers: list[MapAnswer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reduce_context: ReduceContext = field(default_factory=lambda: ReduceContext("", {}, 0))
    reduced: Reduced = field(default_factory=lambda: Reduced(""))
    not_found: list[str] = field(default_factory=list)

    def add(self, phase: str, context: Context, answers: Sequence[MapAnswer] | None, error: str) -> None:
        """Add the answers of a context. None means that its dialogue failed."""
        score = None
        if answers is None:
            self.errors.append(error)
        else:
            score = max((a.score for a in answers), default=0.0)
            self.answers.extend(answers)
        self.contexts.append(replace(context_used(phase, context), score=score))


def map_reduce(question: str, env: SearchEnv, wanted: RecordsToRead) -> Steps[PartialAnswers]:
    """Shuffle records, pack them into contexts, ask each, and combine the answers. Raises UsageError.

    Reads batches of BATCH_TOKENS. Memory grows only with ids (about 500 bytes each) and helpful answers.
    """
    query = env.settings.query
    spec, dialogue = mapper(env.settings, env.prompts)
    check_context_fits(question, env, (spec, reduce_spec(env.settings, env.prompts)))
    partial_answers = PartialAnswers()
    for ids in batches(wanted, query.seed, BATCH_TOKENS):
        records = yield from load_records(((wanted.kind, id_) for id_ in ids), env)
        contexts = pack(records, query.context_tokens, query.seed, env.count)
        yield from map_contexts(question, contexts, spec, dialogue, partial_answers)
    return (yield from reduce_answers(question, env, partial_answers))


def map_contexts(
    question: str, contexts: Sequence[Context], spec: AnswerSpec, dialogue: Mapper, into: PartialAnswers
) -> Steps[None]:
    """Ask all contexts concurrently, and add their answers to `into`."""
    outcomes: list[DialogueOutcome[tuple[MapAnswer, ...]]] = yield Dialogues(
        "map", [partial(dialogue, question, context, spec) for context in contexts]
    )
    for context, outcome in zip(contexts, outcomes, strict=True):
        into.add("map", context, outcome.result, outcome.error)


def reduce_answers(
    question: str, env: SearchEnv, parts: PartialAnswers, prompt: str = "reduce"
) -> Steps[PartialAnswers]:
    """Combine the answers, by descending score, in one call. Raises GraphRagError if it fails."""
    answers = distinct_points(parts.answers)
    if answers and parts.not_found:
        # Before the less helpful answers, because the first that does not fit ends the context.
        listed = longest_prefix_that_fits(
            "; ".join(dict.fromkeys(parts.not_found)), lambda text: env.count(text) <= NOT_FOUND_TOKENS
        )
        position = 1 + max(a.position for a in answers)
        answers.insert(1, MapAnswer(NOT_FOUND.format(listed), answers[0].score, position=position))
    context = reduce_context(answers, env.settings.query.context_tokens, env.count)
    dialogue = partial(reduce_answer, question, context, reduce_spec(env.settings, env.prompts, prompt))
    (outcome,) = yield Dialogues("reduce", [dialogue], is_answer=True, numbering=context.numbering)
    if outcome.result is None:
        raise GraphRagError(f"The partial answers could not be combined: {outcome.error}")
    found = outcome.result.found and not is_insufficient(outcome.result.text)
    parts.reduce_context, parts.reduced = context, replace(outcome.result, found=found)
    return parts


def batches(wanted: RecordsToRead, seed: int, tokens: int) -> Iterator[list[str]]:
    """Yield batches of shuffled ids with at most `tokens` tokens, or a single larger record."""
    size = dict(zip(wanted.ids, wanted.n_tokens, strict=True))
    batch: list[str] = []
    n_tokens = 0
    for id_ in shuffled(size, seed):
        if batch and n_tokens + size[id_] > tokens:
            yield batch
            batch, n_tokens = [], 0
        batch.append(id_)
        n_tokens += size[id_]
    if batch:
        yield batch


def combined_answer(
    question: str,
    method: str,
    what: str,
    parts: PartialAnswers,
    *,
    level: int | None = None,
    notes: Sequence[str] = (),
) -> Steps[Answer]:
    """Build the answer, without costs and time. `what` is the noun for records in notes, like "reports"."""
    number = yield from short_numbers(parts.reduced.references)
    reduced, to_reduce, failed = parts.reduced, parts.reduce_context, len(parts.errors)
    all_failed = bool(parts.contexts) and failed == len(parts.contexts)
    reason = f"Most common reason: {Counter(parts.errors).most_common(1)[0][0]}" if parts.errors else ""
    left_out, cut = to_reduce.left_out, sum(c.cut for c in parts.contexts)
    missing = f"{failed} of {len(parts.contexts)} parts of the {what} got no usable reply and are missing."
    possible = (
        (failed, f"{missing} {'' if all_failed else reason}".strip()),
        (cut, f"{cut} {what} were longer than a context and were truncated."),
        (left_out, f"{left_out} of the less helpful partial answers did not fit into the last context."),
        (to_reduce.cut, "The most helpful partial answer was too long and was truncated."),
        (reduced.truncated, ENDED_AT_LIMIT),
    )
    return Answer(
        question=question,
        text=f"{UNREADABLE} {reason}".strip() if all_failed else render_references(reduced.text, number.get),
        method=method,
        references=reduced.references,
        level=level,
        found=reduced.found,
        contexts=(*parts.contexts, *([context_used("reduce", to_reduce)] if to_reduce.answers else [])),
        failed_parts=failed,
        dropped_references=reduced.dropped_references + sum(a.dropped_references for a in parts.answers),
        notes=(*notes, *(text for applies, text in possible if applies)),
    )
