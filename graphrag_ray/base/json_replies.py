"""Parse JSON replies into pydantic models.

The parser accepts code fences, text around the JSON, broken JSON (`json_repair`), other spellings and names
of keys, extra nesting, and numbers as strings. If something is missing, it describes the problem in words
that a correction turn can send to the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from graphrag_ray.base.messages import join_surrogates

M = TypeVar("M", bound="JsonReply")

TRUNCATED_JSON = "its JSON is not closed"

_NUMBER = re.compile(r"(-?\d+(?:[.,]\d+)?)\s*(?:%|(?:/|out of|of)\s*\d+(?:\.0)?)?\Z", re.IGNORECASE)
_ENTRY_END = re.compile(r"[\s,\]`]*+\}")
"""The end of a complete list entry. It is matched on the reversed text."""
_MARK = re.compile("[\"'“”{}\\[\\]()]")
_MAX_REPAIR_STEPS = 10_000_000
"""Limit on the number of marks times the number of characters of a text to repair. json_repair may scan the
whole text from each mark, so this is about a second of work. A typical report needs a tenth of it."""
_MAX_NESTING = 3
_MAX_BROKEN = 1_000
"""Number of broken values after which a text is not searched further. Describing each takes linear time."""
_OBJECT, _OBJECT_OR_LIST = re.compile(r"\{"), re.compile(r"[{\[]")


@dataclass(frozen=True, slots=True)
class ReplyProblem:
    """Why a reply cannot be used, as a clause ("it is empty") for the model and the list of failures."""

    text: str


class JsonReply(BaseModel):
    """Base class of reply models. `schema_of` derives the schema to send from it.

    Fields are strings, numbers (clipped to 0–100 with `Field(le=100)`), integers, or lists of these or of
    nested models. A value of another type counts as missing: the field gets its default, or the reply has a
    problem. Unreadable list entries are dropped. A list of models without a readable entry is missing.

    Attributes:
        aliases: Other names of a field, as patterns for keys reduced to lower-case letters and digits.
    """

    model_config = ConfigDict(extra="ignore")
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        plain = {_normalize_key(key): value for key, value in data.items()}
        fields: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            for pattern in (_normalize_key(name), *cls.aliases.get(name, ())):
                matches = (v for key, v in plain.items() if re.fullmatch(pattern, key))
                values = (_convert(v, field.annotation, field) for v in matches)
                if (value := next((v for v in values if v is not None), None)) is not None:
                    fields[name] = value
                    break
        return fields


def parse_reply(text: str, model: type[M], finish_reason: str = "stop") -> M | ReplyProblem:
    """Parse the last JSON object in a reply that fits the model, or a list if that is its only field.

    Text before it may quote the form or parts of it. The incomplete field or list entry at the end of a
    truncated reply is dropped.
    """
    first = next(iter(model.model_fields))
    is_list = len(model.model_fields) == 1 and get_origin(model.model_fields[first].annotation) is list
    is_cut = finish_reason == "length"
    problem: ReplyProblem | None = None
    for value, repaired in json_values(text, _OBJECT_OR_LIST if is_list else _OBJECT, is_cut):
        data = _unwrap(value, model, is_list)
        if not data:
            continue
        if truncated := repaired and is_cut:
            last = next(reversed(data))
            if not isinstance(data[last], list):
                del data[last]
            elif not _ENTRY_END.match(text[::-1]):
                data[last] = data[last][:-1]
        try:
            reply = model.model_validate(data)
        except ValidationError as e:
            if not is_list and (repaired or problem is None):
                problem = ReplyProblem("; ".join(_describe_problems(e, model)))
            continue
        if is_list and repaired and not getattr(reply, first):
            if truncated:
                return ReplyProblem(TRUNCATED_JSON)
            continue
        return reply
    missing = f"it holds no JSON object{f' with a list `{first}`' if is_list else ''}"
    return problem or ReplyProblem(TRUNCATED_JSON if is_cut else missing)


def json_values(
    text: str, opening: re.Pattern[str] = _OBJECT, is_cut: bool = False
) -> Iterator[tuple[Any, bool]]:
    """Yield the JSON values in a text, the most likely answer first, and whether they were repaired.

    Complete values come first, the last one first and objects before lists, because prose may contain [1].
    Then follow the first broken object and list. In a truncated text, the one that is cut off leads.
    """
    decoder = json.JSONDecoder(strict=False)
    complete, broken, position, last = list[Any](), list[int](), 0, -1
    while (found := opening.search(text, position)) and len(broken) < _MAX_BROKEN:
        start = found.start()
        try:
            value, position = decoder.raw_decode(text, start)
            complete.append(value)
            last = start
        except (ValueError, RecursionError) as e:
            # What was read of a broken value is part of it, so each character is read about once.
            broken.append(start)
            position = max(start + 1, getattr(e, "pos", len(text)))
    if is_cut:
        yield from ((_repair(text[start:]), True) for start in [s for s in broken if s > last][:1])
    complete.reverse()
    for value in sorted(complete, key=lambda v: isinstance(v, list)):
        yield join_all_surrogates(value), False
    for start in sorted({text[start]: start for start in reversed(broken)}.values()):
        yield _repair(text[start:]), True


def _repair(text: str) -> Any:
    """Return the value of broken JSON, or None if it is beyond repair."""
    if len(_MARK.findall(text)) * len(text) <= _MAX_REPAIR_STEPS:
        import json_repair  # imported lazily: few replies need it

        with suppress(ValueError, RecursionError):
            return join_all_surrogates(json_repair.loads(text))
    return None


def number(value: Any, maximum: float) -> float | None:
    """Convert a value to a number, clipped to 0…`maximum`. Returns None if it is not a number."""
    if isinstance(value, str) and (match := _NUMBER.match(value.strip())):
        value = match.group(1).replace(",", ".")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return min(max(result, 0.0), maximum) if math.isfinite(result) else None


@lru_cache
def schema_of(model: type[JsonReply]) -> Mapping[str, Any]:
    """Return the JSON schema of a model in the strict form that structured output needs."""
    properties = {name: _schema(field.annotation) for name, field in model.model_fields.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema(kind: Any) -> Mapping[str, Any]:
    if get_origin(kind) is list:
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    kind = _without_none(kind)
    if isinstance(kind, type) and issubclass(kind, JsonReply):
        return schema_of(kind)
    return {"type": {str: "string", float: "number", int: "integer"}[kind]}


def _without_none(kind: Any) -> Any:
    """Return `float` for `float | None`."""
    return get_args(kind)[0] if get_origin(kind) is UnionType else kind


def _convert(value: Any, kind: Any, field: FieldInfo) -> Any:
    """Convert a value to the type of its field. Returns None if that is not possible."""
    if get_origin(kind) is list:
        return _convert_list(value, get_args(kind)[0], field)
    kind = _without_none(kind)
    if kind is Any:
        return value
    if kind is str:
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            value = "\n\n".join(value)  # a list of paragraphs
        return (value.strip() or None) if isinstance(value, str) else None
    if kind is float:
        return number(value, _maximum(field))
    integer = number(value, 1e9)
    return int(integer) if integer is not None and integer == int(integer) else None


def _convert_list(value: Any, kind: Any, field: FieldInfo) -> list[Any] | None:
    """Drop unreadable list entries. Returns None for anything but a list, and if no model is readable."""
    is_model = isinstance(kind, type) and issubclass(kind, JsonReply)
    if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
        value = list(value.values())  # {"1": {…}, "2": {…}}
    if isinstance(value, str) and kind is str:
        value = [value]
    if not isinstance(value, list):
        return None
    entries = []
    for item in value:
        entry = item
        if is_model:
            first, field_of_first = next(iter(kind.model_fields.items()))
            is_first = isinstance(entry, str) or (isinstance(entry, int) and field_of_first.annotation is int)
            with suppress(ValidationError):
                entries.append(kind.model_validate({first: entry} if is_first else entry))
            continue
        if kind is str and isinstance(entry, dict):  # {"keyword": "harbour"}
            entry = next((v for v in entry.values() if isinstance(v, str)), None)
        elif kind is str and isinstance(entry, int) and not isinstance(entry, bool):
            entry = str(entry)
        if (converted := _convert(entry, kind, field)) is not None:
            entries.append(converted)
    return entries if entries or not value or not is_model else None


def _maximum(field: FieldInfo) -> float:
    return next((float(bound.le) for bound in field.metadata if hasattr(bound, "le")), math.inf)


def _describe_problems(error: ValidationError, model: type[JsonReply]) -> Iterator[str]:
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        field = model.model_fields.get(name)
        if field is None:
            yield problem["msg"]
            continue
        what = "a text that is not empty"
        if get_origin(field.annotation) is list:
            kind = get_args(field.annotation)[0]
            keys = [f"a `{key}`" for key in kind.model_fields] if hasattr(kind, "model_fields") else []
            what = f"a list of objects with {' and '.join(keys)}" if keys else "a list"
        elif _without_none(field.annotation) is float:
            what = f"a number from 0 to {_maximum(field):g}"
        yield f"`{name}` must be {what}"


def _unwrap(value: Any, model: type[JsonReply], is_list: bool) -> dict[Any, Any] | None:
    """Find the object in {"report": {…}} or [{…}], or wrap a list as {field: list}."""
    first = next(iter(model.model_fields))
    known = [_normalize_key(name) for name in model.model_fields]
    for _ in range(_MAX_NESTING):
        if isinstance(value, list):
            entry = next((v for v in value if isinstance(v, dict)), None)
            if is_list and (entry is not None or not value):
                return {first: value}
            value = entry
        if not isinstance(value, dict):
            return None
        inner = next(iter(value.values()), None)
        if (
            len(value) > 1
            or _normalize_key(next(iter(value), "")) in known
            or not isinstance(inner, dict | list)
        ):
            break
        value = inner
    if isinstance(value, list):
        return {first: value} if is_list else None
    return value if isinstance(value, dict) else None


def join_all_surrogates(value: Any) -> Any:
    """Apply `join_surrogates` to every string, because an escape can be half of a surrogate pair."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, list):
        return [join_all_surrogates(v) for v in value]
    if isinstance(value, dict):
        return {join_surrogates(k): join_all_surrogates(v) for k, v in value.items()}
    return value


def _normalize_key(key: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(key).lower())
