"""Settings as text: parse YAML and `a.b=c` overrides, and explain validation errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from graphrag_ray.base import index_settings
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.text_files import read_text
from graphrag_ray.base.urls import display_path

M = TypeVar("M", bound=BaseModel)

_BRANCH = re.compile(r"constrained-|literal\[")
"""Location segments that pydantic adds for unions. They are not keys."""
_EXPECTED = {"chunking.size": "a whole number above 0, or `document`"}
_MAX_KEYS = 3
_MAX_QUOTED = 200
"""Characters of a key or override that an error quotes."""
MAX_POSITIONS = 1_000
"""Longest list that an override can extend."""


def read_mapping(place: str) -> dict[str, Any]:
    """Read a YAML file, given as a path or URL. Raises SettingsError."""
    import yaml  # Most questions do not need it.

    path = display_path(place)
    try:
        loaded = yaml.safe_load(read_text(place))
    except FileNotFoundError as e:
        raise SettingsError(f"Settings file {path} does not exist") from e
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"Cannot read settings {path}: {e}") from e
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise SettingsError(f"Settings {path} are not valid YAML{where}: {e.problem or e.context}") from e
    except RecursionError as e:
        raise SettingsError(f"Settings {path} are nested too deeply") from e
    # An invalid date or number (2023-13-45, !!int x) raises whatever Python raises for it.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as e:
        raise SettingsError(f"Settings {path} are not valid YAML: {getattr(e, 'reason', e)}") from e
    if loaded is not None and not isinstance(loaded, dict):
        raise SettingsError(f"Settings {path} must be a mapping of keys, not {type(loaded).__name__}")
    return loaded or {}


def apply_override(data: dict[str, Any], override: str) -> None:
    """Apply an override `a.b=value` to settings data; a number is a list position. Raises SettingsError."""
    import yaml

    key, sep, text = override.partition("=")
    quoted = f"--set {override[:_MAX_QUOTED]!r}"
    if not sep or not key.strip():
        raise SettingsError(f"{quoted}: use the form a.b=value")
    try:
        value = yaml.safe_load(text)
    except RecursionError as e:
        raise SettingsError(f"{quoted}: the value is nested too deeply") from e
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        value = text  # Such as a regular expression. Validation reports a text where none is allowed.
    steps = key.strip().split(".")
    parent: Any = data
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(parent, list):
            if not _is_position(step) or int(step) > min(len(parent), MAX_POSITIONS):
                raise SettingsError(f"{quoted}: {step!r} is not a position in a list of {len(parent)}")
            if int(step) == len(parent):
                parent.append({} if following is not None else None)
            slot: Any = int(step)
        elif isinstance(parent, dict):
            slot = step
        else:
            raise SettingsError(f"{quoted}: nothing can be set below {step!r}")
        if following is None:
            parent[slot] = value
        else:
            existing = parent.get(slot) if isinstance(parent, dict) else parent[slot]
            if not isinstance(existing, dict | list):
                parent[slot] = [] if _is_position(following) else {}
            parent = parent[slot]


def _is_position(step: str) -> bool:
    """Unlike int(), accepts no other digits than 0-9, and only few of them."""
    return bool(re.fullmatch(r"[0-9]{1,9}", step))


def validated(section: type[M], data: Mapping[str, Any], what: str = "settings") -> M:
    """Validate settings data.

    Args:
        section: The model to validate against.
        data: The settings data.
        what: What error messages call the data.

    Raises:
        SettingsError: The data is invalid. The message names every problem.
    """
    try:
        return section.model_validate(data)
    except ValidationError as e:
        raise SettingsError(f"Invalid {what}: {_explain(e, section)}") from None
    except RecursionError as e:
        raise SettingsError(f"Invalid {what}: nested too deeply") from e


def _explain(error: ValidationError, section: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(p) for p in problem["loc"] if not _BRANCH.match(str(p)))[:_MAX_QUOTED]
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting {key!r}{_suggestion(key, section)}")
        elif key in _EXPECTED:
            lines.append(f"{key}: {_EXPECTED[key]}")
        elif problem["type"] == "model_type":
            kind = getattr(index_settings, problem["ctx"]["class_name"], index_settings.ModelConnection)
            keys = [f"{key}.{name}" for name in kind.model_fields]
            more = ", …" if len(keys) > _MAX_KEYS else ""
            lines.append(f"{key} is a section: set {', '.join(keys[:_MAX_KEYS])}{more}")
        elif problem["type"] == "dict_type":
            lines.append(f"{key} is a section: set keys below it")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{key}: {message}" if key else message)
    return "; ".join(dict.fromkeys(lines))


def _suggestion(key: str, section: type[BaseModel]) -> str:
    """The nearest known key, with the model name and list position of the mistyped one."""
    names = [p for p in key.split(".") if not _is_position(p)]
    known = [".".join(k) for k in setting_keys(section)]
    wanted = ".".join("*" if names[:1] == ["models"] and i == 1 else p for i, p in enumerate(names))
    match = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    if not match and names:
        by_leaf = {k.rsplit(".", 1)[-1]: k for k in known}
        match = [by_leaf[leaf] for leaf in difflib.get_close_matches(names[-1], by_leaf, n=1, cutoff=0.6)]
    if not match:
        return ""
    parts, written = match[0].split("."), key.split(".")
    if parts[1:2] == ["*"] and written[0] == parts[0] and len(written) > 1:
        parts[1] = written[1]
    if parts[2:3] == ["endpoints"] and len(parts) > 3:
        parts.insert(3, written[3] if written[2:3] == ["endpoints"] and len(written) > 3 else "0")
    return f"; did you mean {'.'.join(parts)!r}?"


def setting_keys(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The path of every key of a section, with "*" for the names of models and stages."""
    for name, info in section.model_fields.items():
        yield (name,)
        kinds = get_args(info.annotation) or (info.annotation,)
        below = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        named = ["*"] if get_origin(info.annotation) is dict else []
        for rest in setting_keys(below) if below else ():
            yield (name, *named, *rest)
