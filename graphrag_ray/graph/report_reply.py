"""Reading a report out of a model's reply.

Tolerant where nothing is lost (fences, chatter, a trailing comma, a rating as text, known other
spellings of keys), strict where something would be: what is missing is said in words that the
correction turn can send back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from graphrag_ray.base.messages import whole

MAX_FINDINGS = 10
"""The paper asks for 5–10 (E.2), our prompt for some 3 to 7; 1–10 are taken: another call would cost more
than the missing ones."""

REPORT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "summary": {"type": "string"},
        "rating": {"type": "number"},
        "rating_explanation": {"type": "string"},
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"summary": {"type": "string"}, "explanation": {"type": "string"}},
                "required": ["summary", "explanation"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["title", "summary", "rating", "rating_explanation", "findings"],
    "additionalProperties": False,
}

_NUMBER = re.compile(r"(-?\d+(?:[.,]\d+)?)\s*(?:(?:/|out of|of)\s*10(?:\.0)?)?\Z", re.IGNORECASE)
_OBJECT_END = re.compile(r"\}[\s,\]]*\Z")
_MARK = re.compile("[\"'“”{}\\[\\]()]")
_MOST_LOOKS = 10_000_000
"""Marks times characters of a text: from each mark json_repair may look as far as the text goes, which takes
about a second for so many. A usual report comes to a tenth."""


@dataclass(frozen=True, slots=True)
class ReportDraft:
    """A report as the model wrote it, with references by local number."""

    title: str
    summary: str
    rating: float
    rating_explanation: str
    findings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ReplyProblem:
    """Why a reply cannot be used: a clause ("it is empty") for the model and for the list of failures."""

    text: str


def parse_report(text: str, finish_reason: str = "stop") -> ReportDraft | ReplyProblem:
    """The report in a reply.

    finish_reason "length": the reply was cut off. What is complete counts; the field or finding in which
    the cut fell does not.
    """
    found, repaired = _json_object(text)
    cut = repaired and finish_reason == "length"
    if found is None:
        return ReplyProblem(_too_long() if finish_reason == "length" else "it holds no JSON object")
    if cut:
        found = _without_last(found, complete=bool(_OBJECT_END.search(text)))
    fields = {_plain(key): value for key, value in found.items()}
    title, summary = _text(fields.get("title")), _text(fields.get("summary"))
    rating, findings = _rating(fields.get("rating")), _findings(fields.get("findings"))
    explanation = _rating_explanation(fields)
    problems = [
        problem
        for problem, there in (
            ("`title` must be a text that is not empty", title),
            ("`summary` must be a text that is not empty", summary),
            ("`rating` must be a number from 0 to 10", rating is not None),
            ("`rating_explanation` must be a text that is not empty", explanation),
            ("`findings` must be a list of objects with a `summary` and an `explanation`", findings),
        )
        if not there
    ]
    if problems or rating is None:
        return ReplyProblem("; ".join([_too_long(), *problems] if cut else problems))
    return ReportDraft(title, summary, rating, explanation, findings[:MAX_FINDINGS])


def json_at(text: str, start: int) -> tuple[Any, bool]:
    """The JSON value that begins there, and whether it had to be repaired; None where nothing helps."""
    with suppress(ValueError, RecursionError):
        return _whole(json.JSONDecoder(strict=False).raw_decode(text, start)[0]), False
    rest = text[start:]
    if len(_MARK.findall(rest)) * len(rest) <= _MOST_LOOKS:
        import json_repair  # most replies need none

        with suppress(ValueError, RecursionError):
            return _whole(json_repair.loads(rest)), True
    return None, True


def _whole(value: Any) -> Any:
    """The value with every string in it whole: an escape can be half a character."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return [_whole(v) for v in value]
    if isinstance(value, dict):
        return {whole(k): _whole(v) for k, v in value.items()}
    return value


def _json_object(text: str) -> tuple[dict[str, Any] | None, bool]:
    """The first JSON object of a reply, and whether it had to be repaired."""
    start = text.find("{")
    if start < 0:
        return None, False
    value, repaired = json_at(text, start)
    if isinstance(value, list):
        value = next((v for v in value if isinstance(v, dict)), None)
    if isinstance(value, dict) and len(value) == 1 and isinstance(inner := next(iter(value.values())), dict):
        value = inner  # {"report": {…}}
    return (value if isinstance(value, dict) and value else None), repaired


def _without_last(found: dict[str, Any], complete: bool) -> dict[str, Any]:
    """Take out what the cut fell into: the last finding, or the last field."""
    last = next(reversed(found))
    if not isinstance(found[last], list):
        return {key: value for key, value in found.items() if key != last}
    return {**found, last: found[last] if complete else found[last][:-1]}


def _findings(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return ()
    found = []
    for item in value:
        fields = {_plain(k): v for k, v in item.items()} if isinstance(item, dict) else {}
        summary, explanation = _text(fields.get("summary")), _text(fields.get("explanation"))
        if summary and explanation:
            found.append((summary, explanation))
    return tuple(found)


def _rating(value: Any) -> float | None:
    if isinstance(value, str) and (match := _NUMBER.match(value.strip())):
        value = match.group(1).replace(",", ".")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return finite(value, 10.0)


def finite(value: str | int | float, most: float) -> float | None:
    """A number from 0 to `most`, what lies outside brought to its ends; None where a float cannot hold it."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return min(max(number, 0.0), most) if math.isfinite(number) else None


def _rating_explanation(fields: Mapping[str, Any]) -> str:
    """Models, and published prompts, write rating_explanation, rating_explaination, explanation, …"""
    names = [
        "ratingexplanation",
        *(k for k in fields if k.startswith("rating") and "expl" in k),
        "explanation",
    ]
    return next((text for name in names if (text := _text(fields.get(name)))), "")


def _text(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        value = "\n\n".join(value)  # paragraphs as a list
    return value.strip() if isinstance(value, str) else ""


def _plain(key: Any) -> str:
    return re.sub(r"[^a-z]", "", str(key).lower())


def _too_long() -> str:
    return "it was cut off before its end, write less and close the JSON object"
