"""The dialogues of FG-RAG: what a question is about, questions around each of these things, and a summary of
what was found for one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.base import records
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, clean
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    MapAnswer,
    correction_of,
    request_of,
    resolved,
    spec_of,
    variables_of,
)
from graphrag_ray.query.methods.score import without_scores

ENTITIES, QUESTIONS, SUMMARY = "query_entities", "entity_questions", "entity_summary"
ANSWER = "fgrag_answer"
"""Of the last call, whose stage is reduce."""
STAGE = "fgrag"
MAX_TOKENS: Mapping[str, int] = {ENTITIES: 300, QUESTIONS: 500}
"""Of a reply, in which all names, or all questions about one, stand."""

MAX_NAME_CHARACTERS = 80
MAX_NAME_WORDS = 12
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
_IN_JSON = re.compile(r'"([^"\n]*)"(\s*:)?')
_HEADING = re.compile(r"#|-{3,}")
_RULE = re.compile(r"\s*\|[\s:|-]*\Z")
_CELLS = re.compile(r"^\s*\|([^|\n]*)\|.*$")
_TAG = re.compile(r"</?[a-zA-Z]{1,6}>")
_LABEL = re.compile(r"^subjects?\s*:\s*(?=\S)", re.IGNORECASE)
_NOTHING = re.compile(
    r"[\W_]*(?:none|n/a|nothing|null)(?:\s+of (?:the|these) (?:records|data)\b|\s*(?:[^\w\s]|$))",
    re.IGNORECASE,
)
_INSUFFICIENT = re.compile(
    r"[\W_]*(?:answer\W+)?insufficient(?:\s+(?:data|information|evidence))?\s*(?:[^\w\s]|$)", re.IGNORECASE
)
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
    names = parse_names(reply.text, most, question)
    if not names:
        request = correction_of(request, reply, ReplyProblem(NO_NAMES), spec)
        reply = yield request
        names = parse_names(reply.text, most, question)
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
    if _NOTHING.match(_first_line(written)):
        return MapAnswer("", 0.0)
    text, references, dropped, truncated = resolved(written, reply, context.numbering)
    return MapAnswer(f"**{entity}** {text}" if text else "", SCORE, references, truncated, dropped)


def is_insufficient(answer: str) -> bool:
    """Whether an answer says no more than that what was found does not suffice, in the prompt's word."""
    return _INSUFFICIENT.match(_first_line(answer)) is not None


def parse_names(reply: str, most: int, question: str = "") -> list[str]:
    """The first names of a reply, one a line, or with commas on its only line; none twice.

    Bullets, numbers and quotation marks are taken off, and explanations behind a colon. Headings and prose
    are left out. What stands in the question is a name as it stands there, with its commas and colons.
    """
    asked = " ".join(question.split()).casefold()
    if reply.strip()[:1] in ("{", "["):
        reply = "\n".join(said for said, colon in _IN_JSON.findall(reply) if not colon)
    lines = [_LABEL.sub("", line) for line in _lines(_without_tables(reply)) if not _HEADING.match(line)]
    if len(lines) == 1 and _bare(lines[0]).casefold() not in asked:
        before, colon, after = lines[0].partition(": ")
        named = _parted(lines[0] if not colon or _as_asked(lines[0], len(before), asked) else after, asked)
        if len(named) > 1:
            is_prose = _ends_sentence(lines[0]) and any(len(n.split()) > MAX_SENTENCE_WORDS for n in named)
            lines = [] if is_prose else named
    return _first((_name(line, asked) for line in lines), most)


def parse_questions(reply: str, most: int) -> list[str]:
    """The first questions of a reply, one a line, none twice; where no line ends with a question mark, its
    lines."""
    lines = [line.strip(_MARKS + " ") for line in _lines(reply)]
    lines = [line for line in lines if len(line) <= MAX_QUESTION_CHARACTERS and _has_letter(line)]
    lines = [line for line in lines if not _NOTHING.match(line)]
    asked = [line for line in lines if line.endswith(_ASKED)]
    return _first(asked or [line for line in lines if not line.endswith(":")], most)


def _without_tables(reply: str) -> str:
    """The first column of tables in place of their rows, without headings and tags."""
    lines = reply.splitlines()
    rules = {at for at, line in enumerate(lines) if _RULE.match(line)}
    kept = (line for at, line in enumerate(lines) if at not in rules and at + 1 not in rules)
    return "\n".join(_TAG.sub("", _CELLS.sub(r"\1", line)) for line in kept)


def _parted(line: str, asked: str) -> list[str]:
    """At its commas, but for those that the question has, too."""
    parts, start = [], 0
    for comma in _COMMAS.finditer(line):
        if not _as_asked(line, comma.start(), asked):
            parts.append(line[start : comma.start()])
            start = comma.end()
    return [*parts, line[start:]]


def _as_asked(line: str, at: int, asked: str) -> bool:
    """Whether a mark stands between the same two words in the question."""
    before, after = line[:at].split()[-1:], line[at + 1 :].split()[:1]
    if not before or not after:
        return False
    gap = " " if line[at + 1 : at + 2].isspace() else ""
    return f"{before[0]}{line[at]}{gap}{after[0]}".strip(_MARKS).casefold() in asked


def _name(line: str, asked: str) -> str:
    """What a line names; "" where it is no name."""
    whole = _bare(line)
    if _has_letter(whole) and " ".join(line.strip(_MARKS + " ").split()).casefold() in asked:
        return line.strip(_MARKS + " ")[:MAX_NAME_CHARACTERS]
    if line.rstrip(_MARKS + " ").endswith((":", "：")):
        return ""
    before, colon, _ = line.partition(": ")
    name = whole if colon and _as_asked(line, len(before), asked) else _bare(before)
    words = name.split()
    is_sentence = _ends_sentence(line) and len(words) > MAX_SENTENCE_WORDS
    is_long = len(words) > MAX_NAME_WORDS or len(name) > MAX_NAME_CHARACTERS
    return "" if is_sentence or is_long or name.casefold() in _LEFT_OUT or not _has_letter(name) else name


def _first_line(text: str) -> str:
    return records.strip_references(text).strip().partition("\n")[0]


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
