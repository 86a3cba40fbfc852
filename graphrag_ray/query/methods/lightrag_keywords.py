"""The keywords of a question on two levels, as in LightRAG (Guo et al. 2024): what is particular in it, and
what it is about as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import clean
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import field, words
from graphrag_ray.query.methods.map_reduce import AnswerSpec, correction_of, request_of, spec_of, variables_of

STAGE = "keywords"
MAX_OUTPUT_TOKENS = 500
MOST_KEYWORDS, MOST_CHARACTERS = 20, 200
"""Of one list, and of one keyword: what is more would blur what is searched for."""

KEYWORDS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "high_level": {"type": "array", "items": {"type": "string"}},
        "low_level": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["high_level", "low_level"],
    "additionalProperties": False,
}
NO_LISTS = "it holds no JSON object with the lists `high_level` and `low_level`, of which one has a keyword"

_SEPARATORS = re.compile(r"[,;\n]")


@dataclass(frozen=True, slots=True)
class DualKeywords:
    """high: subjects and kinds of connection; low: names and particular things."""

    high: tuple[str, ...] = ()
    low: tuple[str, ...] = ()


def keywords_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of(STAGE, settings, prompts, MAX_OUTPUT_TOKENS)


def list_keywords(question: str, spec: AnswerSpec) -> Dialogue[DualKeywords | None]:
    """Ask for the keywords of a question, and once more where the reply has none; None where the second has
    none either."""
    request = request_of(STAGE, variables_of(question, spec), spec, KEYWORDS_SCHEMA)
    reply: ChatReply = yield request
    found = parse_keywords(reply.text)
    if isinstance(found, ReplyProblem):
        reply = yield correction_of(request, reply, found, spec)
        found = parse_keywords(reply.text)
    return None if isinstance(found, ReplyProblem) else found


def parse_keywords(reply: str) -> DualKeywords | ReplyProblem:
    """The keywords of a reply: a list that is missing is empty, a text in its place is divided at commas."""
    high, low = (_listed(reply, level) for level in ("highlevel", "lowlevel"))
    return DualKeywords(high, low) if high or low else ReplyProblem(NO_LISTS)


def _listed(reply: str, level: str) -> tuple[str, ...]:
    value = field(reply, level) or field(reply, f"{level}keywords")
    said = _SEPARATORS.split(value) if isinstance(value, str) else value if isinstance(value, list) else ()
    found = dict.fromkeys(clean(_said(item)[:MOST_CHARACTERS]).strip() for item in said)
    return tuple(keyword for keyword in found if keyword)[:MOST_KEYWORDS]


def _said(item: Any) -> str:
    """A keyword as a text, a number, or an object that holds it."""
    if isinstance(item, dict):
        return words(item, "keyword", "name", "text")
    return str(item) if isinstance(item, str | int) else ""
