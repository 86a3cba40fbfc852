"""The dialogues of an answer that hops: an answer with its chain, what is to be looked up next, and which
facts lead to the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from graphrag_ray.base.ids import name_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, clean
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import field
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    Reduced,
    asked_for_text,
    correction_of,
    request_of,
    spec_of,
    variables_of,
)

T = TypeVar("T")

STAGE = "steps"
ANSWER, NEXT, FACTS = "walk_answer", "next_questions", "pick_facts"
"""Prompts. Stage `answer` asks the first one, STAGE the others."""
MAX_TOKENS: Mapping[str, int] = {NEXT: 400, FACTS: 100}
NEXT_QUESTIONS = 2
MOST_FACTS = 5
"""That are picked, as in HippoRAG 2."""
MOST_CHARACTERS = 400
"""Of a question, and of a sentence on what is known."""
MOST_KNOWN = 10

INSUFFICIENT = (
    "Where the passages do not hold the answer, or a link on the way to it is missing, the whole reply is "
    "the English word Insufficient, in every form and language: what is missing is looked up then."
)
LAST = (
    "Nothing can be looked up any more. Where a link is missing and all that the passages say leaves one "
    "answer alone, give it. Where they leave none, or several: in a short form the whole reply is the "
    "English word Insufficient; in any other form say what is known on the way to the answer, with "
    "references, and what is not."
)

_TEXTS = {"type": "array", "items": {"type": "string"}}
NEXT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"known": _TEXTS, "next": _TEXTS},
    "required": ["known", "next"],
    "additionalProperties": False,
}
FACTS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"facts": {"type": "array", "items": {"type": "integer"}}},
    "required": ["facts"],
    "additionalProperties": False,
}
NO_NEXT = "it holds no JSON object with the lists `known` and `next`"
NO_FACTS = "it holds no JSON object with the list `facts`, whose members are numbers of facts"


@dataclass(frozen=True, slots=True)
class NextStep:
    """What is known on the way to an answer, and what is to be looked up next."""

    known: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()


def step_spec(prompt: str, settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    """prompt: ANSWER, NEXT or FACTS."""
    if prompt == ANSWER:
        return spec_of("answer", settings, prompts, settings.query.max_reduce_tokens, ANSWER)
    return spec_of(STAGE, settings, prompts, MAX_TOKENS[prompt], prompt)


def walk_answer(question: str, context: Context, last: bool, spec: AnswerSpec) -> Dialogue[Reduced]:
    """Ask what passages say on the question, with the chain that leads to it. last: nothing is looked up
    after it. Raises DialogueFailed where the reply is empty twice."""
    shown = {"context": context.text, "if_missing": LAST if last else INSUFFICIENT}
    return (yield from asked_for_text(ANSWER, question, shown, context.numbering, spec))


def next_questions(
    question: str, asked: Sequence[str], context: Context, spec: AnswerSpec
) -> Dialogue[NextStep | None]:
    """Ask what is to be looked up next, and once more where the reply cannot be read; None where the second
    cannot either. asked: what was looked up already."""
    variables = {
        **variables_of(question, spec),
        "context": context.text,
        "asked": "\n".join(f"- {one}" for one in asked),
        "n_questions": str(NEXT_QUESTIONS),
    }
    request = request_of(NEXT, variables, spec, NEXT_SCHEMA)
    return (yield from _read(request, lambda text: parse_next(text, asked), spec))


def pick_facts(question: str, facts: str, n: int, spec: AnswerSpec) -> Dialogue[tuple[int, ...] | None]:
    """Ask which facts lead to the answer: their numbers, from 1 to n. None where two replies cannot be
    read."""
    variables = {**variables_of(question, spec), "context": facts, "n_facts": str(MOST_FACTS)}
    request = request_of(FACTS, variables, spec, FACTS_SCHEMA)
    return (yield from _read(request, lambda text: parse_facts(text, n), spec))


def parse_next(reply: str, asked: Sequence[str]) -> NextStep | ReplyProblem:
    """What a reply says. A question that was asked already, or that says nothing, does not count: a model may
    break a question into itself."""
    known, questions = (_texts(field(reply, key)) for key in ("known", "next"))
    if known is None and questions is None:
        return ReplyProblem(NO_NEXT)
    before = {name_id(one) for one in asked}
    new: dict[str, str] = {}
    for one in questions or ():
        if (id_ := name_id(one)) and id_ not in before:
            new.setdefault(id_, one)
    return NextStep(tuple(known or ())[:MOST_KNOWN], tuple(new.values())[:NEXT_QUESTIONS])


def parse_facts(reply: str, n: int) -> tuple[int, ...] | ReplyProblem:
    """The numbers of a reply that are of facts, each once."""
    said = field(reply, "facts")
    if not isinstance(said, list):
        return ReplyProblem(NO_FACTS)
    numbers = dict.fromkeys(number for one in said if (number := _number(one)) is not None)
    return tuple(number for number in numbers if 1 <= number <= n)[:MOST_FACTS]


def _read(
    request: ChatRequest, parse: Callable[[str], T | ReplyProblem], spec: AnswerSpec
) -> Dialogue[T | None]:
    """What the reply says; where it cannot be read, the one after a correction."""
    reply: ChatReply = yield request
    found = parse(reply.text)
    if isinstance(found, ReplyProblem):
        reply = yield correction_of(request, reply, found, spec)
        found = parse(reply.text)
    return None if isinstance(found, ReplyProblem) else found


def _texts(value: Any) -> list[str] | None:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return None
    found = (clean(one[:MOST_CHARACTERS]).strip() for one in value if isinstance(one, str))
    return [one for one in dict.fromkeys(found) if one]


def _number(value: Any) -> int | None:
    """Of a number, or of a text that is one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if text.isdecimal() and len(text) < 10 else None
