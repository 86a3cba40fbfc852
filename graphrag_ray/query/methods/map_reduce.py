"""Dialogues that ask contexts for scored answers, and combine the answers (paper 3.1.6, E.3, E.4).

    records ── pack ──► contexts ── map_answer ──► scored answers
            ── reduce_context ──► one context ── reduce_answer ──► text

The paper asks each context for one answer with one score (`map_answer`), a line `<ANSWER_HELPFULNESS> 85
</ANSWER_HELPFULNESS>` (E.3). `map_points` asks for a JSON list of scored points instead, which costs about as
much and lets one good point among weak ones have a high score. Between map and reduce, answers contain string
ids, so that the reduce context can renumber their references.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import Field

from graphrag_ray.base import context_records
from graphrag_ray.base.errors import DialogueFailed, SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.context_plan import MIN_CONTEXT_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.corpus_overview import overview_line
from graphrag_ray.graph.report_context import (
    Context,
    Count,
    Record,
    count_record_tokens,
    fold_control_characters,
    longest_prefix_that_fits,
    shorten_record,
    write_sections,
)

T = TypeVar("T")
Mapper: TypeAlias = Callable[[str, Context, "AnswerSpec"], Dialogue[tuple["MapAnswer", ...]]]

NOTHING_FOUND = "Nothing in the index answers this question."

_GENERAL_KNOWLEDGE = (
    "General knowledge that bears on the question may be added to what the data say. End each such "
    "statement with [general knowledge], so that nobody takes it for the data's."
)

DOCUMENTS = "`document` is the document of a passage. Say which document states what, as `document` names it."
"""Line of the map prompts for contexts with passages."""

_NAME = r"ANSWER[\s_]*HELPFULNESS"
_SCORE = re.compile(
    rf"[*`]{{0,4}}<\s*{_NAME}\s*[>:=][\s:=*`]*(-?\d+(?:\.\d+)?)(?:\s*/\s*100\b|\s*%)?>?"
    rf"(?:[\s*`.]*<\s*/\s*{_NAME}\s*>[*`]*)?",
    re.IGNORECASE,
)
_TAG = re.compile(rf"<\s*+(?:/\s*+)?{_NAME}\s*>", re.IGNORECASE)
"""Corpus text cannot be mistaken for a score: `report_context.sanitize` removes the bracket of its tags."""


class PointReply(JsonReply):
    description: str = ""
    score: float | None = Field(default=None, le=100)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"description": ("point", "text", "answer")}


class PointsReply(JsonReply):
    points: list[PointReply]


POINTS = "map_points"
POINTS_SCHEMA: Mapping[str, Any] = schema_of(PointsReply)


@dataclass(frozen=True)
class AnswerSpec:
    """The parameters shared by all calls with one prompt.

    Attributes:
        response_type: Form and length of the final answer, in words.
        knowledge: A sentence that allows general knowledge, or "" to forbid it.
        max_tokens: Length that the prompt asks for. The hard limit is in `call`.
        about: A line about the corpus, or "" if nothing is known.
    """

    prompt: Prompt
    correct: Prompt
    call: CallParameters
    response_type: str
    knowledge: str
    language: str
    max_tokens: int
    about: str = ""


def build_spec(
    stage: str, settings: Settings, prompts: Mapping[str, Prompt], max_tokens: int, prompt: str = ""
) -> AnswerSpec:
    """Build the spec of a stage. `prompt` is the name of its prompt if it differs from the stage."""
    template = prompts[prompt or stage]
    return AnswerSpec(
        prompt=template,
        correct=prompts["correct"],
        call=settings.call_parameters(stage, max_tokens),
        response_type=settings.query.response_type,
        knowledge=_GENERAL_KNOWLEDGE if settings.query.general_knowledge else "",
        language=settings.answer_language,
        max_tokens=max_tokens,
        about=overview_line(settings, template),
    )


def reduce_spec(settings: Settings, prompts: Mapping[str, Prompt], prompt: str = "reduce") -> AnswerSpec:
    return build_spec("reduce", settings, prompts, settings.query.max_reduce_tokens, prompt)


def answer_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec("answer", settings, prompts, settings.query.max_reduce_tokens)


def map_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec("map", settings, prompts, settings.query.max_map_tokens)


def mapper(
    settings: Settings, prompts: Mapping[str, Prompt], points: bool = False
) -> tuple[AnswerSpec, Mapper]:
    """Choose the map dialogue: points if requested, otherwise according to `query.map_protocol`."""
    if not points and settings.query.map_protocol == "answer":
        return map_spec(settings, prompts), map_answer
    return build_spec("map", settings, prompts, settings.query.max_map_tokens, POINTS), map_points


@dataclass(frozen=True)
class MapAnswer:
    """The answer of one context.

    Attributes:
        text: Markdown whose references use string ids.
        score: Helpfulness according to the model, 0–100.
        truncated: Whether the reply ended at the output limit.
        dropped_references: Number of removed citations of records that the context did not contain.
        position: Order of answers with the same score, ascending.
    """

    text: str
    score: float
    references: tuple[context_records.Reference, ...] = ()
    truncated: bool = False
    dropped_references: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class ReduceContext(Context):
    """The context of the reduce call: records `id,score,answer`, or `id,answer` if all scores are equal."""

    answers: tuple[MapAnswer, ...] = ()


@dataclass(frozen=True)
class Reduced:
    """The final text, with string ids. `found` is False if no answer was found."""

    text: str
    references: tuple[context_records.Reference, ...] = ()
    found: bool = True
    truncated: bool = False
    dropped_references: int = 0


def shuffled(ids: Iterable[str], seed: int) -> list[str]:
    """Shuffle ids by a hash of seed and id, independently of table order, libraries and other ids."""
    return sorted(ids, key=lambda id_: (hashlib.sha256(f"{seed}:{id_}".encode()).digest(), id_))


def pack(
    records: Iterable[Record], context_tokens: int, seed: int, count: Count, max_records: int | None = None
) -> list[Context]:
    """Shuffle records of one section, and pack them (see `pack_in_order`)."""
    by_id = {r.id: r for r in records}
    order = [by_id[id_] for id_ in shuffled(by_id, seed)]
    return pack_in_order(order, context_tokens, count, max_records)


def pack_in_order(
    records: Iterable[Record], context_tokens: int, count: Count, max_records: int | None = None
) -> list[Context]:
    """Pack records of one section into contexts of at most `context_tokens`.

    A record longer than a context is truncated and gets a context for itself.

    Args:
        max_records: Maximum number of records per context, or None for no limit.

    Raises:
        SettingsError: The context size is too small.
    """
    if context_tokens < MIN_CONTEXT_TOKENS:
        raise SettingsError(
            f"query.context_tokens is {context_tokens}, but a context needs at least {MIN_CONTEXT_TOKENS} "
            "tokens"
        )
    remaining = deque(records)
    contexts = []
    while remaining:
        page = [remaining.popleft()]
        used = count(page[0].heading) + count_record_tokens(page[0], count) + NUMBER_TOKENS
        while remaining and len(page) != max_records:
            used += count_record_tokens(remaining[0], count) + NUMBER_TOKENS
            if used > context_tokens:
                break
            page.append(remaining.popleft())
        # The exact count nearly always fits. If not, move the last records on, or truncate a single record.
        first, limit = page[0], context_tokens
        text, numbering = write_sections(page)
        while (n_tokens := count(text)) > context_tokens and limit > 0:
            if len(page) > 1:
                remaining.appendleft(page.pop())
            else:
                limit -= n_tokens - context_tokens
                page = [shorten_record(first, limit, count)]
            text, numbering = write_sections(page)
        contexts.append(Context(text, numbering, n_tokens, cut=int(page[0] is not first)))
    return contexts


def map_answer(question: str, context: Context, spec: AnswerSpec) -> Dialogue[tuple[MapAnswer, ...]]:
    """Ask a context for one scored answer. Raises DialogueFailed if no reply is usable."""
    scored, reply = yield from ask_for_reply(
        "map",
        question,
        spec,
        lambda reply: parse_scored(reply.text),
        context=context.text,
        documents=_documents(context),
    )
    return (resolve_answer(scored.text, scored.score, reply, context.numbering),)


def map_points(question: str, context: Context, spec: AnswerSpec) -> Dialogue[tuple[MapAnswer, ...]]:
    """Ask a context for the points that answer the question, one MapAnswer each. Raises DialogueFailed."""

    def parse(reply: ChatReply) -> tuple[Scored, ...] | ReplyProblem:
        return parse_points(reply.text, reply.finish_reason)

    points, reply = yield from ask_for_reply(
        POINTS, question, spec, parse, POINTS_SCHEMA, context=context.text, documents=_documents(context)
    )
    return tuple(resolve_answer(point.text, point.score, reply, context.numbering) for point in points)


def _documents(context: Context) -> str:
    return DOCUMENTS if any(section == "Sources" for section, _ in context.numbering) else ""


def reduce_context(answers: Iterable[MapAnswer], context_tokens: int, count: Count) -> ReduceContext:
    """Pack answers with a positive score, by descending score, into one context of at most `context_tokens`.

    Equal scores are ordered by position, then by text, so that the order of replies does not matter. The
    first answer that does not fit ends the context: a shorter but less helpful answer must not replace it.
    Only the most helpful answer is truncated if it is too long, because an empty context would be useless.
    """
    helpful = sorted(
        (a for a in answers if a.score > 0 and a.text), key=lambda a: (-a.score, a.position, a.text)
    )
    scored = len({a.score for a in helpful}) > 1  # equal scores say nothing
    columns = ("id", "score", "answer") if scored else ("id", "answer")
    text, numbers, n_included = (
        context_records.section_heading("Answers", columns),
        dict[context_records.Reference, int](),
        0,
    )

    def append(answer: MapAnswer) -> tuple[str, dict[context_records.Reference, int]]:
        new_numbers = dict(numbers)

        def number(reference: context_records.Reference) -> int | None:
            if reference not in answer.references:  # text that only looks like one of our ids
                return None
            n = 1 + sum(r.section == reference.section for r in new_numbers)
            return new_numbers.setdefault(reference, n)

        rendered = context_records.render_references(fold_control_characters(answer.text), number)
        score = [f"{answer.score:g}"] if scored else []
        return text + context_records.csv_line([n_included + 1, *score, rendered]), new_numbers

    first, cut = helpful[:1], 0
    if first and count(append(first[0])[0]) > context_tokens:

        def truncate(start: str) -> MapAnswer:
            return replace(helpful[0], text=context_records.drop_unclosed_reference(start) + "…")

        start = longest_prefix_that_fits(
            first[0].text, lambda s: count(append(truncate(s))[0]) <= context_tokens
        )
        first, cut = [truncate(start)], 1
    order = first if cut else helpful
    for answer in order:
        longer, new_numbers = append(answer)
        if count(longer) > context_tokens:
            break
        text, numbers, n_included = longer, new_numbers, n_included + 1
    return ReduceContext(
        text=text if order else "",
        numbering={(reference.section, n): reference.id for reference, n in numbers.items()},
        n_tokens=count(text) if order else 0,
        answers=tuple(order if cut else order[:n_included]),
        left_out=len(helpful) - (1 if cut else n_included),
        cut=cut,
    )


def reduce_answer(question: str, context: ReduceContext, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Combine the answers of a context. Makes no call if there are none. Raises DialogueFailed."""
    if not context.answers:
        return Reduced(NOTHING_FOUND, found=False)
    variables = {"answers": context.text}
    return (yield from ask_for_text(spec.prompt.name, question, variables, context.numbering, spec))


def ask_for_text(
    prompt: str,
    question: str,
    variables: Mapping[str, str],
    numbering: Mapping[tuple[str, int], str],
    spec: AnswerSpec,
) -> Dialogue[Reduced]:
    """Ask for a text with references, and once more if it is empty. Raises DialogueFailed.

    Args:
        variables: Values of placeholders that only this prompt has.
        numbering: (section, number) -> id of the records in the prompt.
    """
    text, reply = yield from ask_for_reply(prompt, question, spec, parse_text, None, **variables)
    answer = resolve_answer(text, 0.0, reply, numbering)
    return Reduced(answer.text, answer.references, True, answer.truncated, answer.dropped_references)


def ask_for_reply(
    name: str,
    question: str,
    spec: AnswerSpec,
    parse: Callable[[ChatReply], T | ReplyProblem],
    schema: Mapping[str, Any] | None = None,
    **variables: str,
) -> Dialogue[tuple[T, ChatReply]]:
    """Fill the prompt `name` with `variables` and the common variables, send it, and parse the reply."""
    request = build_request(name, {**prompt_variables(question, spec), **variables}, spec, schema)
    return (yield from reply_or_correction(request, parse, spec, name))


def parsed_or_none(
    name: str,
    question: str,
    spec: AnswerSpec,
    parse: Callable[[str], T | ReplyProblem],
    schema: Mapping[str, Any],
    **variables: str,
) -> Dialogue[T | None]:
    """Like `ask_for_reply`, but return None if neither the reply nor its correction is usable."""
    try:
        parsed, _ = yield from ask_for_reply(
            name, question, spec, lambda reply: parse(reply.text), schema, **variables
        )
    except DialogueFailed:
        return None
    return parsed


def reply_or_correction(
    request: ChatRequest, parse: Callable[[ChatReply], T | ReplyProblem], spec: AnswerSpec, name: str
) -> Dialogue[tuple[T, ChatReply]]:
    """Send a request, and ask for a correction if `parse` rejects the reply. Returns result and reply.

    Raises:
        DialogueFailed: The corrected reply is not usable either. The message starts with `name`.
    """
    reply: ChatReply = yield request
    result = parse(reply)
    if isinstance(result, ReplyProblem):
        reply = yield build_correction(request, reply, result, spec)
        result = parse(reply)
    if isinstance(result, ReplyProblem):
        raise DialogueFailed(f"{name}: still not usable after a correction: {result.text}")
    return result, reply


def parse_text(reply: ChatReply) -> str | ReplyProblem:
    return strip_scores(reply.text) or ReplyProblem("it is empty")


def resolve_answer(
    text: str, score: float, reply: ChatReply, numbering: Mapping[tuple[str, int], str]
) -> MapAnswer:
    """Replace the record numbers in the references of a text by string ids."""
    truncated = reply.finish_reason == "length"
    if truncated:
        text = context_records.drop_unclosed_reference(text)
    resolved, references, dropped = context_records.resolve_references(text, numbering)
    return MapAnswer(resolved.strip(), score, tuple(references), truncated, dropped)


def prompt_variables(question: str, spec: AnswerSpec) -> dict[str, str]:
    """Build the variables that every prompt may use in addition to its data."""
    return {
        "question": question,
        "response_type": spec.response_type,
        "knowledge": spec.knowledge,
        "language": spec.language,
        "about": spec.about,
        **reply_lengths(spec.max_tokens),
    }


def build_request(
    name: str, variables: Mapping[str, str], spec: AnswerSpec, schema: Mapping[str, Any] | None = None
) -> ChatRequest:
    """Build a request. `schema` is the JSON schema of the reply, or None for plain text."""
    return ChatRequest(
        prompt=name,
        messages=spec.prompt.fill(variables),
        call=spec.call,
        variables=variables,
        response="text" if schema is None else "json",
        schema=schema,
    )


def build_correction(
    request: ChatRequest, reply: ChatReply, problem: ReplyProblem, spec: AnswerSpec
) -> ChatRequest:
    """Build the follow-up request that asks to correct an unusable reply."""
    cut_off = "it was cut off before its end, write less; " if reply.finish_reason == "length" else ""
    variables = {"problem": cut_off + problem.text}
    return request.next_turn(
        reply, "correct", spec.correct.fill_user(variables), variables={**request.variables, **variables}
    )


@dataclass(frozen=True, slots=True)
class Scored:
    """A text without its score, and the score, 0–100."""

    text: str
    score: float


def parse_scored(reply: str) -> Scored | ReplyProblem:
    """Split a map reply into text and score. A missing score is a problem: 0 would drop the answer."""
    scores = {min(max(float(number), 0.0), 100.0) for number in _SCORE.findall(reply)}
    if not scores:
        return ReplyProblem(
            "it has no score, which is a line <ANSWER_HELPFULNESS> N </ANSWER_HELPFULNESS> with a number "
            "from 0 to 100 for N"
        )
    if len(scores) > 1:
        return ReplyProblem("it has several scores that differ, and needs one for the whole answer")
    score = scores.pop()
    text = strip_scores(reply)
    if not text and score > 0:
        return ReplyProblem("it has a score above zero but no answer")
    return Scored(text, score)


def strip_scores(reply: str) -> str:
    return _TAG.sub("", _SCORE.sub("", reply)).strip()


def parse_points(reply: str, finish_reason: str = "stop") -> tuple[Scored, ...] | ReplyProblem:
    """Parse the points of a reply that have a text. A missing score is a problem and not 0."""
    parsed = parse_reply(reply, PointsReply, finish_reason)
    if isinstance(parsed, ReplyProblem):
        return parsed
    points = [(strip_scores(point.description), point.score) for point in parsed.points]
    if any(text and score is None for text, score in points):
        return ReplyProblem("a point has no `score`, which is a number from 0 to 100")
    if points and not any(text for text, _ in points):
        return ReplyProblem("no point has a `description`")
    return tuple(Scored(text, score) for text, score in points if text and score is not None)
