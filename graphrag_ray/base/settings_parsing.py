"""Parse settings from YAML and `a.b=c` overrides, and explain validation errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from graphrag_ray.base import connection_settings, index_settings
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.text_files import read_text
from graphrag_ray.base.urls import display_path
from graphrag_ray.base.wording import plural
from graphrag_ray.base.yaml_errors import yaml_errors

M = TypeVar("M", bound=BaseModel)

_BRANCH = re.compile(r"constrained-|literal\[")
"""Segments that pydantic adds to the location of an error in a union. They are not keys."""
_EXPECTED = {"chunking.size": "a whole number above 0, or `document`"}
_MAX_KEYS = 3
_MAX_QUOTED = 200
"""Maximum length in characters of a key or override quoted in an error."""
MAX_LIST_INDEX = 1_000
"""Highest list index that an override can set."""


def read_mapping(path_or_url: str) -> dict[str, Any]:
    """Read a YAML file that contains a mapping. Raises SettingsError."""
    import yaml  # imported lazily: most queries read no YAML

    path = display_path(path_or_url)
    try:
        text = read_text(path_or_url)
    except FileNotFoundError as e:
        raise SettingsError(f"Settings file {path} does not exist") from e
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"Cannot read settings file {path}: {e}") from e
    with yaml_errors(f"Settings file {path}"):
        loaded = yaml.safe_load(text)
    if loaded is not None and not isinstance(loaded, dict):
        raise SettingsError(f"Settings file {path} must be a mapping of keys, not {type(loaded).__name__}")
    return loaded or {}


def apply_override(data: dict[str, Any], override: str) -> None:
    """Apply an override `a.b=value`. Numbers in the key are list indexes. Raises SettingsError."""
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
        value = text  # A regular expression, say. Validation rejects it if no string is allowed.
    steps = key.strip().split(".")
    parent: Any = data
    for step, next_step in zip(steps, [*steps[1:], None], strict=True):
        child: Any = step
        if isinstance(parent, list):
            highest = min(len(parent), MAX_LIST_INDEX)
            if not _is_list_index(step) or int(step) > highest:
                raise SettingsError(
                    f"{quoted}: {step!r} is not a valid index of a list with {plural(len(parent), 'item')}. "
                    f"Use 0 to {highest}"
                )
            child = int(step)
            if child == len(parent):
                parent.append(None)
        if next_step is None:
            parent[child] = value
        else:
            existing = parent.get(child) if isinstance(parent, dict) else parent[child]
            if not isinstance(existing, dict | list):
                parent[child] = [] if _is_list_index(next_step) else {}
            parent = parent[child]


def _is_list_index(step: str) -> bool:
    """Whether a step consists of at most nine ASCII digits. int() also accepts other digits."""
    return bool(re.fullmatch(r"[0-9]{1,9}", step))


def validate_settings(model: type[M], data: Mapping[str, Any], label: str = "settings") -> M:
    """Validate settings data, which messages call `label`. Raises SettingsError with all problems."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise SettingsError(f"Invalid {label}: {_explain(e, model)}") from None
    except RecursionError as e:
        raise SettingsError(f"Invalid {label}: nested too deeply") from e


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(p) for p in problem["loc"] if not _BRANCH.match(str(p)))[:_MAX_QUOTED]
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting {key!r}{_suggestion(key, model)}")
        elif key in _EXPECTED:
            lines.append(f"{key}: {_EXPECTED[key]}")
        elif problem["type"] == "model_type":
            # KnownModel is in another module, but has the keys of ModelConnection.
            sections = {**vars(connection_settings), **vars(index_settings)}
            section = sections.get(problem["ctx"]["class_name"], connection_settings.ModelConnection)
            keys = [f"{key}.{name}" for name in section.model_fields]
            ellipsis = ", …" if len(keys) > _MAX_KEYS else ""
            lines.append(f"{key} is a section, not a value; set {', '.join(keys[:_MAX_KEYS])}{ellipsis}")
        elif problem["type"] == "dict_type":
            lines.append(f"{key} is a section, not a value; set keys in it")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{key}: {message}" if key else message)
    return "; ".join(dict.fromkeys(lines))


def _suggestion(key: str, model: type[BaseModel]) -> str:
    """Suggest the closest known key, with the model name and the endpoint index that the user typed."""
    names = [p for p in key.split(".") if not _is_list_index(p)]
    known = [".".join(k) for k in setting_keys(model)]
    wanted = ".".join("*" if names[:1] == ["models"] and i == 1 else p for i, p in enumerate(names))
    match = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    if not match and names:
        by_leaf = {k.rsplit(".", 1)[-1]: k for k in known}
        match = [by_leaf[leaf] for leaf in difflib.get_close_matches(names[-1], by_leaf, n=1, cutoff=0.6)]
    if not match:
        return ""
    parts, typed = match[0].split("."), key.split(".")
    if parts[1:2] == ["*"] and typed[0] == parts[0] and len(typed) > 1:
        parts[1] = typed[1]
    if parts[2:3] == ["endpoints"] and len(parts) > 3:
        parts.insert(3, typed[3] if typed[2:3] == ["endpoints"] and len(typed) > 3 else "0")
    return f"; did you mean {'.'.join(parts)!r}?"


def setting_keys(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key, with "*" for the names of models and stages."""
    for name, info in model.model_fields.items():
        yield (name,)
        types = get_args(info.annotation) or (info.annotation,)
        nested = next((t for t in types if isinstance(t, type) and issubclass(t, BaseModel)), None)
        wildcard = ["*"] if get_origin(info.annotation) is dict else []
        for path in setting_keys(nested) if nested else ():
            yield (name, *wildcard, *path)
