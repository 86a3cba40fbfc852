"""Lists of small records in a model's JSON: points, ratings, follow-up questions.

Tolerant where nothing is lost (fences, chatter, a bare list, another name of the list, numbers as text);
what is missing is said in words that a correction turn can send back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from graphrag_ray.graph.report_reply import ReplyProblem, finite, json_at

Entry = Mapping[str, Any]
"""Keys are lower case without anything but letters and digits; values as the model wrote them."""

_OPEN = "its JSON is not closed"

_NUMBER = re.compile(r"(-?\d+(?:[.,]\d+)?)\s*(?:%|(?:/|out of|of)\s*\d+(?:\.0)?)?\Z", re.IGNORECASE)
_ENTRY_END = re.compile(r"[\s,\]`]*+\}")
"""Read backwards."""


def entries(text: str, key: str, finish_reason: str = "stop") -> list[Entry] | ReplyProblem:
    """The records of the list `key` in a reply; [] where it says that there are none.

    finish_reason "length": the record in which the reply was cut off does not count.
    """
    for start in sorted(at for at in (text.find("{"), text.find("[")) if at >= 0):
        value, repaired = json_at(text, start)
        found = _listed(value, key)
        if found is None or (repaired and not found):
            continue
        if repaired and finish_reason == "length" and not _ENTRY_END.match(text[::-1]):
            found = found[:-1]
            if not found:
                return ReplyProblem(_OPEN)
        return found
    return ReplyProblem(
        _OPEN if finish_reason == "length" else f"it holds no JSON object with a list `{key}`"
    )


def field(text: str, key: str) -> Any:
    """The value of one key of the first JSON object of a reply; None where there is none."""
    start = text.find("{")
    value = json_at(text, start)[0] if start >= 0 else None
    return _plain_keys(value).get(key) if isinstance(value, dict) else None


def number(value: Any, most: float) -> float | None:
    """A number from 0 to `most`, what lies outside brought to its ends; None for what is no number."""
    if isinstance(value, str) and (match := _NUMBER.match(value.strip())):
        value = match.group(1).replace(",", ".")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return finite(value, most)


def words(entry: Entry, *names: str) -> str:
    """The first of these fields that holds a text; "" where none does."""
    found = (entry.get(name) for name in names)
    return next((text.strip() for text in found if isinstance(text, str) and text.strip()), "")


def _listed(value: Any, key: str) -> list[Entry] | None:
    for _ in range(3):  # {"result": {"points": […]}}
        if not isinstance(value, dict):
            break
        fields = _plain_keys(value)
        if key in fields:
            value = fields[key]
        elif len(fields) == 1 and isinstance(only := next(iter(fields.values())), dict | list):
            value = only
        else:
            return None
        if isinstance(value, list) or (isinstance(value, dict) and _is_numbered(value)):
            break
    if isinstance(value, dict) and _is_numbered(value):
        value = list(value.values())
    return _of_list(value) if isinstance(value, list) else None


def _of_list(value: Sequence[Any]) -> list[Entry] | None:
    found: list[Entry] = [_plain_keys(item) for item in value if isinstance(item, dict)]
    return found if found or not value else None


def _is_numbered(value: dict[str, Any]) -> bool:
    """A list written as {"1": {…}, "2": {…}}."""
    return bool(value) and all(isinstance(item, dict) for item in value.values())


def _plain_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {re.sub(r"[^a-z0-9]", "", str(k).lower()): v for k, v in value.items()}
