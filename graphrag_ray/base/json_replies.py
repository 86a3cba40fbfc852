"""Replies in JSON, read as pydantic models: tolerant where nothing is lost, strict where something would be.

Tolerated are fences, chatter, broken JSON (`json_repair`), other spellings and names of keys, an object or a
list that is wrapped once more, numbers as text. What is missing is said in words that a correction turn can
send back.
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

from graphrag_ray.base.messages import whole

M = TypeVar("M", bound="JsonReply")

NOT_CLOSED = "its JSON is not closed"

_NUMBER = re.compile(r"(-?\d+(?:[.,]\d+)?)\s*(?:%|(?:/|out of|of)\s*\d+(?:\.0)?)?\Z", re.IGNORECASE)
_ENTRY_END = re.compile(r"[\s,\]`]*+\}")
"""Read backwards."""
_MARK = re.compile("[\"'“”{}\\[\\]()]")
_MOST_LOOKS = 10_000_000
"""Marks times characters of a text: from each mark json_repair may look as far as the text goes, which takes
about a second for so many. A usual report comes to a tenth."""
_MOST_WRAPPINGS = 3


@dataclass(frozen=True, slots=True)
class ReplyProblem:
    """Why a reply cannot be used: a clause ("it is empty") for the model and for the list of failures."""

    text: str


class JsonReply(BaseModel):
    """What a reply should hold; the schema that the model is sent (`schema_of`) is derived from it.

    Fields are texts, numbers (`Field(le=100)`: brought into 0–100), whole numbers, and lists of these or of
    further models. A value of another kind is missing: the default stands for it, or the reply has a problem.
    Entries of a list that cannot be read are left out; it is missing where none can.

    aliases: other names of a field, as patterns of keys in small letters and digits
    """

    model_config = ConfigDict(extra="ignore")
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read(cls, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        plain = {_plain(key): value for key, value in said.items()}
        found: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            for pattern in (_plain(name), *cls.aliases.get(name, ())):
                said_so = [v for key, v in plain.items() if re.fullmatch(pattern, key)]
                values = (_value(v, field.annotation, field) for v in said_so)
                if (value := next((v for v in values if v is not None), None)) is not None:
                    found[name] = value
                    break
        return found


def read_reply(text: str, model: type[M], finish_reason: str = "stop") -> M | ReplyProblem:
    """The first JSON of a reply that holds what is wanted. A list alone stands for the only field of a model.

    finish_reason "length": the reply was cut off. What is complete counts; the field or the entry of a list
    in which the cut fell does not.
    """
    first = next(iter(model.model_fields))
    is_list = len(model.model_fields) == 1 and get_origin(model.model_fields[first].annotation) is list
    problem = ReplyProblem(f"it holds no JSON object{f' with a list `{first}`' if is_list else ''}")
    for start in sorted(at for at in (text.find("{"), text.find("[") if is_list else -1) if at >= 0):
        value, repaired = json_at(text, start)
        said = _unwrapped(value, model, is_list)
        if not said:
            continue
        if cut := repaired and finish_reason == "length":
            said = _without_last(said, complete=_ENTRY_END.match(text[::-1]) is not None)
        try:
            found = model.model_validate(said)
        except ValidationError as e:
            if not is_list:
                return ReplyProblem("; ".join(_problems(e, model)))
            continue
        if is_list and repaired and not getattr(found, first):
            if cut:
                return ReplyProblem(NOT_CLOSED)
            continue
        return found
    return ReplyProblem(NOT_CLOSED) if finish_reason == "length" else problem


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


def number(value: Any, most: float) -> float | None:
    """A number from 0 to `most`, what lies outside brought to its ends; None for what is no number."""
    if isinstance(value, str) and (match := _NUMBER.match(value.strip())):
        value = match.group(1).replace(",", ".")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return min(max(found, 0.0), most) if math.isfinite(found) else None


@lru_cache
def schema_of(model: type[JsonReply]) -> Mapping[str, Any]:
    """The JSON schema of a model, as endpoints with structured output want it: nothing optional, nothing
    more."""
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
    if isinstance(own := _some(kind), type) and issubclass(own, JsonReply):
        return schema_of(own)
    return {"type": {str: "string", float: "number", int: "integer"}[own]}


def _some(kind: Any) -> Any:
    """Of `float | None`, float."""
    return get_args(kind)[0] if get_origin(kind) is UnionType else kind


def _value(value: Any, kind: Any, field: FieldInfo) -> Any:
    """A value as its field wants it; None where it is of another kind."""
    if get_origin(kind) is list:
        return _entries(value, get_args(kind)[0], field)
    own = _some(kind)
    if own is Any:
        return value
    if own is str:
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            value = "\n\n".join(value)  # paragraphs as a list
        return (value.strip() or None) if isinstance(value, str) else None
    if own is float:
        return number(value, _most(field))
    found = number(value, 1e9)
    return int(found) if found is not None and found == int(found) else None


def _entries(value: Any, kind: Any, field: FieldInfo) -> list[Any] | None:
    """A list without the entries that cannot be read; None for what is none, or where none of many can."""
    is_model = isinstance(kind, type) and issubclass(kind, JsonReply)
    if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
        value = list(value.values())  # {"1": {…}, "2": {…}}
    if isinstance(value, str) and kind is str:
        value = [value]
    if not isinstance(value, list):
        return None
    found = []
    for one in value:
        if is_model:
            first = next(iter(kind.model_fields))
            with suppress(ValidationError):
                found.append(kind.model_validate({first: one} if isinstance(one, str) else one))
            continue
        said = one
        if kind is str and isinstance(one, dict):  # {"keyword": "harbour"}
            said = next((v for v in one.values() if isinstance(v, str)), None)
        elif kind is str and isinstance(one, int) and not isinstance(one, bool):
            said = str(one)
        found.append(_value(said, kind, field))
    kept = [one for one in found if one is not None]
    return kept if kept or not value or not is_model else None


def _most(field: FieldInfo) -> float:
    return next((float(bound.le) for bound in field.metadata if hasattr(bound, "le")), math.inf)


def _problems(error: ValidationError, model: type[JsonReply]) -> Iterator[str]:
    for one in error.errors():
        name = str(one["loc"][0]) if one["loc"] else ""
        field = model.model_fields.get(name)
        if field is None:
            yield one["msg"]
            continue
        what = "a text that is not empty"
        if get_origin(field.annotation) is list:
            own = get_args(field.annotation)[0]
            keys = [f"a `{key}`" for key in own.model_fields] if hasattr(own, "model_fields") else []
            what = f"a list of objects with {' and '.join(keys)}" if keys else "a list"
        elif _some(field.annotation) is float:
            what = f"a number from 0 to {_most(field):g}"
        yield f"`{name}` must be {what}"


def _unwrapped(value: Any, model: type[JsonReply], is_list: bool) -> dict[Any, Any] | None:
    """The object that has the model's keys: {"report": {…}}, [{…}], and of a model of one list that list."""
    first = next(iter(model.model_fields))
    known = [_plain(name) for name in model.model_fields]
    for _ in range(_MOST_WRAPPINGS):
        if isinstance(value, list):
            found = next((v for v in value if isinstance(v, dict)), None)
            if is_list and (found is not None or not value):
                return {first: value}
            value = found
        if not isinstance(value, dict):
            return None
        inner = next(iter(value.values()), None)
        if len(value) > 1 or _plain(next(iter(value), "")) in known or not isinstance(inner, dict | list):
            break
        value = inner
    if isinstance(value, list):
        return {first: value} if is_list else None
    return value if isinstance(value, dict) else None


def _without_last(said: dict[Any, Any], complete: bool) -> dict[Any, Any]:
    """Without what the cut fell into: the last entry, or the last field."""
    last = next(reversed(said))
    if not isinstance(said[last], list):
        return {key: value for key, value in said.items() if key != last}
    return said if complete else {**said, last: said[last][:-1]}


def _whole(value: Any) -> Any:
    """The value with every string in it whole: an escape can be half a character."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return [_whole(v) for v in value]
    if isinstance(value, dict):
        return {whole(k): _whole(v) for k, v in value.items()}
    return value


def _plain(key: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(key).lower())
