"""The dialogues of FG-RAG: what a question is about, questions around each of these things, and a summary of
what was found for one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue
from graphrag_ray.query.map_reduce import (
    AnswerSpec,
    MapAnswer,
    correction_of,
    request_of,
    resolved,
    spec_of,
    variables_of,
)
from graphrag_ray.query.score import without_scores
from graphrag_ray.reports.report_context import Context, clean
from graphrag_ray.reports.report_reply import ReplyProblem
from graphrag_ray.settings.index_settings import Settings
from graphrag_ray.settings.prompts import Prompt

ENTITIES, QUESTIONS, SUMMARY = "query_entities", "entity_questions", "entity_summary"
ANSWER = "fgrag_answer"
"""Of the last call, whose stage is reduce."""
STAGE = "fgrag"
MAX_TOKENS: Mapping[str, int] = {ENTITIES: 300, QUESTIONS: 500}
"""Of a reply, in which all names, or all questions about one, stand."""

MAX_NAME_CHARACTERS = 80
MAX_NAME_WORDS = 8
"""A line that is longer is prose."""
MAX_SENTENCE_WORDS = 3
"""A line that ends as a sentence does and has more words is prose."""
MAX_QUESTION_CHARACTERS = 400
SCORE = 50.0
"""Of every summary: they stand side by side, and none is asked how much it helps."""

NO_NAMES = "it names nothing that the question is about; write the list alone, one subject a line"

_BULLET = re.compile(r"^(?:[-*•–—+>]|\(?\d{1,3}[.):])\s+")
_MARKS = "\"'`*_“”„‘’«»「」[]"
_LEFT_OUT = frozenset({"none", "n/a", "nothing", "null"})
_ENDS = (".", "?", "!", "…", "。", "？", "！", "؟")
_ASKED = ("?", "？", "؟", ";")
_COMMAS = re.compile(r"[,;，、؛،]")


@dataclass(frozen=True)
class QueryEntities:
    """names: what the question is about, the most important first. request, reply: of the turn that brought
    them; the next ones follow it."""

    names: tuple[str, ...]
    request: ChatRequest
    reply: ChatReply


def fgrag_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """prompt: ENTITIES, QUESTIONS or SUMMARY."""
    most = MAX_TOKENS.get(prompt, settings.query.max_map_tokens)
    return spec_of(STAGE, settings, prompts, most, prompt)


def query_entities(question: str, spec: AnswerSpec, most: int) -> Dialogue[QueryEntities | None]:
    """Ask what the question is about, and once more where the reply names nothing; None where the second does
    not either."""
    variables = {**variables_of(question, spec), "n_entities": str(most)}
    request = request_of(ENTITIES, variables, spec)
    reply: ChatReply = yield request
    names = parse_names(reply.text, most)
    if not names:
        request = correction_of(request, reply, ReplyProblem(NO_NAMES), spec)
        reply = yield request
        names = parse_names(reply.text, most)
    return QueryEntities(tuple(names), request, reply) if names else None


def entity_questions(
    question: str, entity: str, before: QueryEntities, spec: AnswerSpec, most: int
) -> Dialogue[tuple[str, ...]]:
    """Ask what a user would want to know about an entity, as the next turn of the conversation that named it;
    () where the reply has no question."""
    variables = {**variables_of(question, spec), "entity": entity, "n_questions": str(most)}
    reply: ChatReply = yield before.request.followed_by(
        before.reply, QUESTIONS, spec.prompt.text(variables), variables=variables, call=spec.call
    )
    return tuple(parse_questions(reply.text, most))


def entity_summary(
    question: str, entity: str, questions: Sequence[str], context: Context, spec: AnswerSpec
) -> Dialogue[MapAnswer]:
    """Ask for what a context says to the questions about an entity, under its name; with score 0 where it
    says nothing. Raises DialogueFailed where the reply is empty twice."""
    variables = {**variables_of(question, spec), "entity": entity, "questions": "\n".join(questions)}
    request = request_of(SUMMARY, {**variables, "context": context.text}, spec)
    reply: ChatReply = yield request
    if not without_scores(reply.text):
        reply = yield correction_of(request, reply, ReplyProblem("it is empty"), spec)
    if not (written := without_scores(reply.text)):
        raise DialogueFailed(f"{SUMMARY}: the reply is empty, also after a correction")
    if _bare(written).casefold() in _LEFT_OUT:
        return MapAnswer("", 0.0)
    text, references, dropped, truncated = resolved(written, reply, context.numbering)
    return MapAnswer(f"**{entity}** {text}" if text else "", SCORE, references, truncated, dropped)


def is_insufficient(answer: str) -> bool:
    """Whether an answer says no more than that what was found does not suffice, in the prompt's word."""
    return _bare(answer).casefold() == "insufficient"


def parse_names(reply: str, most: int) -> list[str]:
    """The first names of a reply, one a line, or with commas on its only line; none twice.

    Bullets, numbers and quotation marks are taken off, and explanations behind a colon. Headings and prose
    are left out.
    """
    lines = _lines(reply)
    if len(lines) == 1:
        before, colon, after = lines[0].partition(": ")
        named = _COMMAS.split(after if colon else before)
        if len(named) > 1:
            is_prose = _ends_sentence(lines[0]) and any(len(n.split()) > MAX_SENTENCE_WORDS for n in named)
            lines = [] if is_prose else named
    return _first(map(_name, lines), most)


def parse_questions(reply: str, most: int) -> list[str]:
    """The first questions of a reply, one a line, none twice; where no line ends with a question mark, its
    lines."""
    lines = [line.strip(_MARKS + " ") for line in _lines(reply)]
    lines = [line for line in lines if len(line) <= MAX_QUESTION_CHARACTERS and _has_letter(line)]
    asked = [line for line in lines if line.endswith(_ASKED)]
    return _first(asked or [line for line in lines if not line.endswith(":")], most)


def _name(line: str) -> str:
    """What a line names; "" where it is no name."""
    if line.rstrip(_MARKS + " ").endswith((":", "：")):
        return ""
    name = _bare(line.partition(": ")[0])
    words = name.split()
    is_sentence = _ends_sentence(line) and len(words) > MAX_SENTENCE_WORDS
    is_long = len(words) > MAX_NAME_WORDS or len(name) > MAX_NAME_CHARACTERS
    return "" if is_sentence or is_long or name.casefold() in _LEFT_OUT or not _has_letter(name) else name


def _ends_sentence(line: str) -> bool:
    return line.rstrip(_MARKS + " ").endswith(_ENDS)


def _bare(text: str) -> str:
    """Without bullet, and without quotation marks and commas around it."""
    return text.strip().strip(_MARKS + " ,;").removesuffix(".").strip(_MARKS + " ,;")


def _has_letter(text: str) -> bool:
    return any(c.isalnum() for c in text)


def _lines(reply: str) -> list[str]:
    """Those with something on them, made harmless, without bullets and numbers."""
    found = (clean(line).strip() for line in reply.splitlines() if not line.startswith("```"))
    return [line for line in (_BULLET.sub("", line) for line in found) if line.strip(_MARKS + " ")]


def _first(found: Iterable[str], most: int) -> list[str]:
    """The first that are not empty, none twice in another case."""
    known: dict[str, str] = {}
    for one in found:
        if one and len(known) < most:
            known.setdefault(one.casefold(), one)
    return list(known.values())
