"""Settings as text: YAML and `a.b=c` as data, and what is wrong with the data as sentences. A key that does
not exist is an error that names the nearest one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from graphrag_ray.base import index_settings
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.text_files import read_text
from graphrag_ray.base.urls import shown

M = TypeVar("M", bound=BaseModel)

_BRANCH = re.compile(r"constrained-|literal\[")
"""What pydantic puts into the place of a value that may be of several kinds; it is no key."""
_WANTED = {"chunking.size": "a whole number above 0, or `document`"}
_KEYS_TOLD = 3
_WHERE_TOLD = 200
"""Characters of a key, and of an override, that an error repeats."""
MOST_PLACES = 1_000
"""Of a list that overrides reach into."""


def read_mapping(place: str) -> dict[str, Any]:
    """What a YAML file says, a path or a URL. Raises SettingsError where it cannot be read."""
    import yaml  # most questions need none of it

    path = shown(place)
    try:
        loaded = yaml.safe_load(read_text(place))
    except FileNotFoundError as e:
        raise SettingsError(f"there is no settings file {path}") from e
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"cannot read settings {path}: {e}") from e
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise SettingsError(f"settings {path} are not YAML{where}: {e.problem or e.context}") from e
    except RecursionError as e:
        raise SettingsError(f"settings {path} are nested too deeply") from e
    # A date or number that is none (2023-13-45, !!int x) is whatever Python says of it.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as e:
        raise SettingsError(f"settings {path} are not YAML: {getattr(e, 'reason', e)}") from e
    if loaded is not None and not isinstance(loaded, dict):
        raise SettingsError(f"settings {path} must be a mapping of keys, not {type(loaded).__name__}")
    return loaded or {}


def apply(data: dict[str, Any], override: str) -> None:
    """Put `a.b=value` into the data; a number is a place in a list. Raises SettingsError."""
    key, sep, text = override.partition("=")
    told = f"--set {override[:_WHERE_TOLD]!r}"
    if not sep or not key.strip():
        raise SettingsError(f"{told}: write it as a.b=value")
    value = _value(text, told)
    steps = key.strip().split(".")
    at: Any = data
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(at, list):
            if not _is_place(step) or int(step) > min(len(at), MOST_PLACES):
                raise SettingsError(f"{told}: {step!r} is not a place in a list of {len(at)}")
            if int(step) == len(at):
                at.append({} if following is not None else None)
            slot: Any = int(step)
        elif isinstance(at, dict):
            slot = step
        else:
            raise SettingsError(f"{told}: nothing can be set below {step!r}")
        if following is None:
            at[slot] = value
        else:
            existing = at.get(slot) if isinstance(at, dict) else at[slot]
            if not isinstance(existing, dict | list):
                at[slot] = [] if _is_place(following) else {}
            at = at[slot]


def _value(text: str, told: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except RecursionError as e:
        raise SettingsError(f"{told}: it is nested too deeply") from e
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        return text  # a regular expression, say; where text is not what is wanted, validation says so


def _is_place(step: str) -> bool:
    """int() would also take ² or ٣ for digits, or refuse them, and thousands of digits."""
    return bool(re.fullmatch(r"[0-9]{1,9}", step))


def validated(section: type[M], data: Mapping[str, Any], where: str = "settings") -> M:
    """Raises SettingsError that names what is wrong; where: whose data they are."""
    try:
        return section.model_validate(data)
    except ValidationError as e:
        raise SettingsError(f"{where}: {_explain(e, section)}") from None
    except RecursionError as e:
        raise SettingsError(f"{where}: they are nested too deeply") from e


def _explain(error: ValidationError, section: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        where = ".".join(str(p) for p in problem["loc"] if not _BRANCH.match(str(p)))[:_WHERE_TOLD]
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting {where!r}{_nearest(where, section)}")
        elif where in _WANTED:
            lines.append(f"{where}: {_WANTED[where]}")
        elif problem["type"] == "model_type":
            kind = getattr(index_settings, problem["ctx"]["class_name"], index_settings.Reach)
            keys = [f"{where}.{key}" for key in kind.model_fields]
            more = ", …" if len(keys) > _KEYS_TOLD else ""
            lines.append(f"{where} is a section: set {', '.join(keys[:_KEYS_TOLD])}{more}")
        elif problem["type"] == "dict_type":
            lines.append(f"{where} is a section: set keys below it")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if where else message)
    return "; ".join(dict.fromkeys(lines))


def _nearest(where: str, section: type[BaseModel]) -> str:
    pattern = [p for p in where.split(".") if not _is_place(p)]
    known = [".".join(k) for k in setting_keys(section)]
    wanted = ".".join("*" if pattern[:1] == ["models"] and i == 1 else p for i, p in enumerate(pattern))
    match = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    if not match and pattern:
        leaf = {k.rsplit(".", 1)[-1]: k for k in known}
        near = difflib.get_close_matches(pattern[-1], leaf, n=1, cutoff=0.6)
        match = [leaf[near[0]]] if near else []
    return f"; did you mean {_as_written(match[0], where)!r}?" if match else ""


def _as_written(known: str, where: str) -> str:
    """A known key with the names and numbers that stand in what was written."""
    parts, written = known.split("."), where.split(".")
    if parts[1:2] == ["*"] and written[0] == parts[0] and len(written) > 1:
        parts[1] = written[1]
    if parts[2:3] == ["endpoints"] and len(parts) > 3:
        number = written[3] if written[2:3] == ["endpoints"] and len(written) > 3 else "0"
        parts.insert(3, number)
    return ".".join(parts)


def setting_keys(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The path of every key of a section; "*" stands for a model's or a stage's name."""
    for name, info in section.model_fields.items():
        yield (name,)
        kinds = get_args(info.annotation) or (info.annotation,)
        below = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        named = ["*"] if get_origin(info.annotation) is dict else []
        for rest in setting_keys(below) if below else ():
            yield (name, *named, *rest)
