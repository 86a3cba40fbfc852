"""What is asked of contexts, and how their answers are drawn together (paper 3.1.6, E.3, E.4).

    records ── pack ──► contexts ── map_answer ──► scored answers
            ── reduce_context ──► one context ── reduce_answer ──► text

The paper asks each context for one answer with one score (`map_answer`), a line `<ANSWER_HELPFULNESS> 85
</ANSWER_HELPFULNESS>` (E.3). `map_points` asks for a list of scored points as JSON: they cost about as
much, and one good point among weak ones keeps its own score. Between map and reduce, answers hold string
ids, so that the reduce context can number their references anew.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import Field

from graphrag_ray.base import records
from graphrag_ray.base.errors import DialogueFailed, SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt, reply_lengths
from graphrag_ray.graph.about_corpus import about_line
from graphrag_ray.graph.plan import MIN_CONTEXT_TOKENS, NUMBER_TOKENS
from graphrag_ray.graph.report_context import (
    Context,
    Count,
    Record,
    fit,
    fold,
    longest_start,
    record_tokens,
    write,
)

T = TypeVar("T")
Mapper: TypeAlias = Callable[[str, Context, "AnswerSpec"], Dialogue[tuple["MapAnswer", ...]]]

NOTHING_FOUND = "Nothing in the index answers this question."
ANSWER_COLUMNS = ("id", "score", "answer")

_GENERAL_KNOWLEDGE = (
    "General knowledge that bears on the question may be added to what the data say. End each such "
    "statement with [general knowledge], so that nobody takes it for the data's."
)


_NAME = r"ANSWER[\s_]*HELPFULNESS"
_SCORE = re.compile(
    rf"[*`]{{0,4}}<\s*{_NAME}\s*[>:=][\s:=*`]*(-?\d+(?:\.\d+)?)(?:\s*/\s*100\b|\s*%)?>?"
    rf"(?:[\s*`.]*<\s*/\s*{_NAME}\s*>[*`]*)?",
    re.IGNORECASE,
)
_TAG = re.compile(rf"<\s*+(?:/\s*+)?{_NAME}\s*>", re.IGNORECASE)
"""What the corpus says cannot pass for a score: `report_context.clean` takes the tag's bracket out of it."""


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
    """What is the same for all map calls, or for all reduce calls, of a run.

    response_type   form and length of the final answer, in words
    knowledge       a sentence that allows general knowledge beside the data; "" where that is not wanted
    max_tokens      length that the prompt asks for; `call` holds the hard limit
    about           a line on the corpus; "" where nothing is known
    """

    prompt: Prompt
    correct: Prompt
    call: CallParameters
    response_type: str
    knowledge: str
    language: str
    max_tokens: int
    about: str = ""


def reduce_spec(settings: Settings, prompts: Mapping[str, Prompt], prompt: str = "reduce") -> AnswerSpec:
    return spec_of("reduce", settings, prompts, settings.query.max_reduce_tokens, prompt)


def answer_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of("answer", settings, prompts, settings.query.max_reduce_tokens)


def map_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of("map", settings, prompts, settings.query.max_map_tokens)


def mapper(
    settings: Settings, prompts: Mapping[str, Prompt], points: bool = False
) -> tuple[AnswerSpec, Mapper]:
    """What is asked of each context: points, or as query.map_protocol says."""
    if not points and settings.query.map_protocol == "answer":
        return map_spec(settings, prompts), map_answer
    return spec_of("map", settings, prompts, settings.query.max_map_tokens, POINTS), map_points


@dataclass(frozen=True)
class MapAnswer:
    """What one context says on the question.

    text                 markdown; references hold string ids
    score                how helpful it says to be, 0–100
    truncated            the reply ended at the output limit
    dropped_references   cited numbers that the context did not hold
    place                among answers of the same score, lower ones come first
    """

    text: str
    score: float
    references: tuple[records.Reference, ...] = ()
    truncated: bool = False
    dropped_references: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class ReduceContext(Context):
    """The answers that the reduce call is shown: a context whose text has one record per answer,
    `id,score,answer`, and whose numbering is of the records that they cite. shown: these answers, in order"""

    shown: tuple[MapAnswer, ...] = ()


@dataclass(frozen=True)
class Reduced:
    """The final text; references hold string ids. found: False where nothing answers the question."""

    text: str
    references: tuple[records.Reference, ...] = ()
    found: bool = True
    truncated: bool = False
    dropped_references: int = 0


def shuffled(ids: Iterable[str], seed: int) -> list[str]:
    """Ids in the order of a hash of seed and id: a shuffle that depends neither on the order of a table nor
    on a library's generator, and in which a new record moves no other."""
    return sorted(ids, key=lambda id_: (hashlib.sha256(f"{seed}:{id_}".encode()).digest(), id_))


def pack(
    shown: Iterable[Record], context_tokens: int, seed: int, count: Count, most: int | None = None
) -> list[Context]:
    """Shuffle records of one section and pack them into contexts of at most `context_tokens`.

    most: records in one context; None: any number. A record that is longer than a context has one of its
    own and is cut at its end. Raises SettingsError for a budget too small.
    """
    if context_tokens < MIN_CONTEXT_TOKENS:
        raise SettingsError(
            f"query.context_tokens is {context_tokens}; a context needs at least {MIN_CONTEXT_TOKENS} tokens"
        )
    by_id = {r.id: r for r in shown}
    rest = deque(by_id[id_] for id_ in shuffled(by_id, seed))
    contexts = []
    while rest:
        page = [rest.popleft()]
        used = count(page[0].heading) + record_tokens(page[0], count) + NUMBER_TOKENS
        while rest and len(page) != most:
            used += record_tokens(rest[0], count) + NUMBER_TOKENS
            if used > context_tokens:
                break
            page.append(rest.popleft())
        # Counted exactly, it nearly always fits; else the last ones go on, and one that is alone is cut.
        first, limit = page[0], context_tokens
        text, numbering = write(page)
        while (n_tokens := count(text)) > context_tokens and limit > 0:
            if len(page) > 1:
                rest.appendleft(page.pop())
            else:
                limit -= n_tokens - context_tokens
                page = [fit(first, limit, count)]
            text, numbering = write(page)
        contexts.append(Context(text, numbering, n_tokens, cut=int(page[0] is not first)))
    return contexts


def map_answer(question: str, context: Context, spec: AnswerSpec) -> Dialogue[tuple[MapAnswer, ...]]:
    """Ask what one context says on the question, and once more where the reply has no usable score. Raises
    DialogueFailed where the second has none either: an unread part, not an unhelpful one."""
    scored, reply = yield from asked_for(
        "map", question, spec, lambda reply: parse_scored(reply.text), context=context.text
    )
    return (resolved_answer(scored.text, scored.score, reply, context.numbering),)


def map_points(question: str, context: Context, spec: AnswerSpec) -> Dialogue[tuple[MapAnswer, ...]]:
    """Ask which points of a context answer the question, one MapAnswer each, and once more where the reply
    cannot be used. Raises DialogueFailed where the second reply cannot be used either."""

    def points_in(reply: ChatReply) -> tuple[Scored, ...] | ReplyProblem:
        return parse_points(reply.text, reply.finish_reason)

    shown = context.text
    found, reply = yield from asked_for(POINTS, question, spec, points_in, POINTS_SCHEMA, context=shown)
    return tuple(resolved_answer(point.text, point.score, reply, context.numbering) for point in found)


def reduce_context(answers: Iterable[MapAnswer], context_tokens: int, count: Count) -> ReduceContext:
    """Pack the answers above zero, by falling score, into one context of at most `context_tokens`.

    Equal scores stand by their place, then in the order of their texts, so the order in which calls returned
    does not matter. No answer is cut: the first that does not fit ends the context, since a shorter but less
    helpful one must not take its place. Only if the most helpful answer alone is too long is it shown
    without its end, for an empty context would answer nothing.
    """
    helpful = sorted(
        (a for a in answers if a.score > 0 and a.text), key=lambda a: (-a.score, a.place, a.text)
    )
    text, numbers, shown = records.heading("Answers", ANSWER_COLUMNS), dict[records.Reference, int](), 0

    def with_(answer: MapAnswer) -> tuple[str, dict[records.Reference, int]]:
        known = dict(numbers)

        def number(reference: records.Reference) -> int | None:
            if reference not in answer.references:  # digits that only look like an id of ours
                return None
            return known.setdefault(reference, 1 + sum(r.section == reference.section for r in known))

        written = records.render_references(fold(answer.text), number)
        return text + records.line([shown + 1, f"{answer.score:g}", written]), known

    first, cut = helpful[:1], 0
    if first and count(with_(first[0])[0]) > context_tokens:

        def start_of(start: str) -> MapAnswer:
            return replace(helpful[0], text=records.without_unfinished(start) + "…")

        start = longest_start(first[0].text, lambda s: count(with_(start_of(s))[0]) <= context_tokens)
        first, cut = [start_of(start)], 1
    order = first if cut else helpful
    for answer in order:
        longer, known = with_(answer)
        if count(longer) > context_tokens:
            break
        text, numbers, shown = longer, known, shown + 1
    return ReduceContext(
        text=text if order else "",
        numbering={(reference.section, n): reference.id for reference, n in numbers.items()},
        n_tokens=count(text) if order else 0,
        shown=tuple(order if cut else order[:shown]),
        left_out=len(helpful) - (1 if cut else shown),
        cut=cut,
    )


def reduce_answer(question: str, context: ReduceContext, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Draw the answers together; nothing is asked where none is above zero. Raises DialogueFailed where the
    reply is empty twice."""
    if not context.shown:
        return Reduced(NOTHING_FOUND, found=False)
    shown = {"answers": context.text}
    return (yield from asked_for_text(spec.prompt.name, question, shown, context.numbering, spec))


def asked_for_text(
    prompt: str,
    question: str,
    shown: Mapping[str, str],
    numbering: Mapping[tuple[str, int], str],
    spec: AnswerSpec,
) -> Dialogue[Reduced]:
    """Ask for a text with references, and once more where it is empty. shown: what the prompt's own
    placeholders hold; numbering: of the records in it. Raises DialogueFailed."""
    written, reply = yield from asked_for(prompt, question, spec, written_in, None, **shown)
    said = resolved_answer(written, 0.0, reply, numbering)
    return Reduced(said.text, said.references, True, said.truncated, said.dropped_references)


def asked_for(
    name: str,
    question: str,
    spec: AnswerSpec,
    read: Callable[[ChatReply], T | ReplyProblem],
    schema: Mapping[str, Any] | None = None,
    **shown: str,
) -> Dialogue[tuple[T, ChatReply]]:
    """Fill and ask a prompt, and read the reply: see `usable_reply`. name: of the prompt; shown: what its own
    placeholders hold; schema: of the JSON that the reply should be; None: a text."""
    request = request_of(name, {**variables_of(question, spec), **shown}, spec, schema)
    return (yield from usable_reply(request, read, spec, name))


def read_or_none(
    name: str,
    question: str,
    spec: AnswerSpec,
    parse: Callable[[str], T | ReplyProblem],
    schema: Mapping[str, Any],
    **shown: str,
) -> Dialogue[T | None]:
    """What a reply says; None where it cannot be read, and the one after a correction neither."""
    try:
        found, _ = yield from asked_for(
            name, question, spec, lambda reply: parse(reply.text), schema, **shown
        )
    except DialogueFailed:
        return None
    return found


def usable_reply(
    request: ChatRequest, read: Callable[[ChatReply], T | ReplyProblem], spec: AnswerSpec, name: str
) -> Dialogue[tuple[T, ChatReply]]:
    """Ask, and once more with what is wrong where `read` makes nothing of the reply: what it made, and of
    which reply. Raises DialogueFailed, which names the dialogue, where the second cannot be used either."""
    reply: ChatReply = yield request
    found = read(reply)
    if isinstance(found, ReplyProblem):
        reply = yield correction_of(request, reply, found, spec)
        found = read(reply)
    if isinstance(found, ReplyProblem):
        raise DialogueFailed(f"{name}: still not usable after a correction: {found.text}")
    return found, reply


def written_in(reply: ChatReply) -> str | ReplyProblem:
    """The text of a reply, without a score."""
    return without_scores(reply.text) or ReplyProblem("it is empty")


def resolved_answer(
    text: str, score: float, reply: ChatReply, numbering: Mapping[tuple[str, int], str]
) -> MapAnswer:
    """A reply's text with string ids, and what it cites."""
    truncated = reply.finish_reason == "length"
    if truncated:
        text = records.without_unfinished(text)
    out, references, dropped = records.resolve_references(text, numbering)
    return MapAnswer(out.strip(), score, tuple(references), truncated, dropped)


def variables_of(question: str, spec: AnswerSpec) -> dict[str, str]:
    """What every prompt of an answer may hold beside its data."""
    return {
        "question": question,
        "response_type": spec.response_type,
        "knowledge": spec.knowledge,
        "language": spec.language,
        "about": spec.about,
        **reply_lengths(spec.max_tokens),
    }


def request_of(
    name: str, variables: Mapping[str, str], spec: AnswerSpec, schema: Mapping[str, Any] | None = None
) -> ChatRequest:
    """schema: of the JSON that the reply should be; None: a text."""
    return ChatRequest(
        prompt=name,
        messages=spec.prompt.fill(variables),
        call=spec.call,
        variables=variables,
        response="text" if schema is None else "json",
        schema=schema,
    )


def correction_of(
    request: ChatRequest, reply: ChatReply, problem: ReplyProblem, spec: AnswerSpec
) -> ChatRequest:
    """The turn after a reply that cannot be used: there is one."""
    cut_off = "it was cut off before its end, write less; " if reply.finish_reason == "length" else ""
    variables = {"problem": cut_off + problem.text}
    return request.followed_by(
        reply, "correct", spec.correct.text(variables), variables={**request.variables, **variables}
    )


def spec_of(
    stage: str, settings: Settings, prompts: Mapping[str, Prompt], max_tokens: int, prompt: str = ""
) -> AnswerSpec:
    """prompt: its name, where it is not that of the stage."""
    chosen = prompts[prompt or stage]
    return AnswerSpec(
        prompt=chosen,
        correct=prompts["correct"],
        call=settings.call(stage, max_tokens),
        response_type=settings.query.response_type,
        knowledge=_GENERAL_KNOWLEDGE if settings.query.general_knowledge else "",
        language=settings.answer_language,
        max_tokens=max_tokens,
        about=about_line(settings, chosen),
    )


@dataclass(frozen=True, slots=True)
class Scored:
    """text: the reply without its score; score: 0–100."""

    text: str
    score: float


def parse_scored(reply: str) -> Scored | ReplyProblem:
    """Split a map reply into its answer, which may be empty where the score is zero, and its score. One that
    is missing or contradicts itself is a problem, never a zero: a zero drops the answer."""
    scores = {min(max(float(number), 0.0), 100.0) for number in _SCORE.findall(reply)}
    if not scores:
        return ReplyProblem(
            "it has no score, which is a line <ANSWER_HELPFULNESS> N </ANSWER_HELPFULNESS> with a number "
            "from 0 to 100 for N"
        )
    if len(scores) > 1:
        return ReplyProblem("it has several scores that differ, and needs one for the whole answer")
    score = scores.pop()
    text = without_scores(reply)
    if not text and score > 0:
        return ReplyProblem("it has a score above zero but no answer")
    return Scored(text, score)


def without_scores(reply: str) -> str:
    return _TAG.sub("", _SCORE.sub("", reply)).strip()


def parse_points(reply: str, finish_reason: str = "stop") -> tuple[Scored, ...] | ReplyProblem:
    """The points of a reply; those without a text do not count. A score that cannot be read is a problem,
    never a zero: a zero drops the point."""
    found = read_reply(reply, PointsReply, finish_reason)
    if isinstance(found, ReplyProblem):
        return found
    points = [(without_scores(one.description), one.score) for one in found.points]
    if any(text and score is None for text, score in points):
        return ReplyProblem("a point has no `score`, which is a number from 0 to 100")
    if points and not any(text for text, _ in points):
        return ReplyProblem("no point has a `description`")
    return tuple(Scored(text, score) for text, score in points if text and score is not None)
