"""Reading settings: one strict YAML file, and `a.b=c` overrides. A key that does not exist is an error
that names the nearest one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from graphrag_ray import settings
from graphrag_ray.errors import SettingsError
from graphrag_ray.settings import Endpoint, Model, Price, Settings, Stage, Storage
from graphrag_ray.text_files import beside, read_text
from graphrag_ray.urls import shown

_BRANCH = re.compile(r"constrained-|literal\[")
"""What pydantic puts into the place of a value that may be of several kinds; it is no key."""
_WANTED = {"chunking.size": "a whole number above 0, or `document`"}
_KEYS_TOLD = 3


def load_settings(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> Settings:
    """Read settings: defaults, then the file (or `base`), then `a.b=c` overrides in order.

    path: of a file, or a URL, which is reached as the environment says.

    Raises SettingsError naming the key, and the nearest known one for a key that does not exist.
    """
    data: dict[str, Any] = deepcopy(dict(base or {}))
    if path is not None:
        data = read_settings(path)
    for override in overrides:
        _apply(data, override)
    return parse_settings(data)


def read_settings(path: str | Path) -> dict[str, Any]:
    """What a settings file says, unchecked. Raises SettingsError where it cannot be read."""
    data = _read(str(path))
    _relative_to(str(path), data)
    return data


def load_storage(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Storage:
    """How storage is reached, for the first look at an index whose snapshot may hold all other settings.

    Raises SettingsError as `load_settings`; of keys outside `storage` only the first name is checked.
    """
    data = _read(str(path)) if path is not None else {}
    given: dict[str, Any] = {"storage": data["storage"]} if "storage" in data else {}
    for override in overrides:
        key, sep, _ = override.partition("=")
        section = key.strip().partition(".")[0]
        # What is no setting at all is told now, not after the storage could not be reached.
        if section == "storage" or section not in Settings.model_fields or not sep:
            _apply(given, override)
    return parse_settings(given).storage


def root_in(path: str | Path) -> str | None:
    """Where a settings file says that the index is, whatever else stands in it. Raises SettingsError where it
    cannot be read."""
    root = read_settings(path).get("root")
    return root if isinstance(root, str) else None


def _read(place: str) -> dict[str, Any]:
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
    except (yaml.YAMLError, RecursionError) as e:
        raise SettingsError(f"settings {path} are not YAML: {getattr(e, 'reason', e)}") from e
    if loaded is not None and not isinstance(loaded, dict):
        raise SettingsError(f"settings {path} must be a mapping of keys, not {type(loaded).__name__}")
    return loaded or {}


def _relative_to(file: str, data: dict[str, Any]) -> None:
    """Paths in a settings file are relative to that file, wherever it is read from."""
    names, source = data.get("names"), data.get("input")
    paths = [(data, "root"), (source, "url"), (data, "prompts_dir")]
    for section, key in (*paths, (names, "aliases_file"), (names, "block_file")):
        if isinstance(section, dict) and section.get(key) and isinstance(section[key], str):
            section[key] = beside(file, section[key])


def parse_settings(data: Mapping[str, Any]) -> Settings:
    try:
        return Settings.model_validate(data)
    except ValidationError as e:
        raise SettingsError(_explain(e)) from None


def storage_of(settings: Settings | None, storage: Storage | Mapping[str, Any] | None) -> Storage:
    """How storage is reached: as given, else as the settings say. Raises SettingsError."""
    if isinstance(storage, Storage):
        return storage
    if storage is not None:
        return parse_settings({"storage": dict(storage)}).storage
    return settings.storage if settings is not None else Storage()


def _apply(data: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    if not sep or not key.strip():
        raise SettingsError(f"--set {override!r}: write it as a.b=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text  # a regular expression, say; where text is not what is wanted, validation says so
    steps = key.strip().split(".")
    at: Any = data
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(at, list):
            if not step.isdigit() or int(step) > len(at):
                raise SettingsError(f"--set {override!r}: {step!r} is not a place in a list of {len(at)}")
            if int(step) == len(at):
                at.append({} if following is not None else None)
            slot: Any = int(step)
        elif isinstance(at, dict):
            slot = step
        else:
            raise SettingsError(f"--set {override!r}: nothing can be set below {step!r}")
        if following is None:
            at[slot] = value
        else:
            existing = at.get(slot) if isinstance(at, dict) else at[slot]
            if not isinstance(existing, dict | list):
                at[slot] = [] if following.isdigit() else {}
            at = at[slot]


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(p) for p in problem["loc"] if not _BRANCH.match(str(p)))
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting {where!r}{_nearest(where)}")
        elif where in _WANTED:
            lines.append(f"{where}: {_WANTED[where]}")
        elif problem["type"] == "model_type":
            keys = [f"{where}.{key}" for key in getattr(settings, problem["ctx"]["class_name"]).model_fields]
            more = ", …" if len(keys) > _KEYS_TOLD else ""
            lines.append(f"{where} is a section: set {', '.join(keys[:_KEYS_TOLD])}{more}")
        elif problem["type"] == "dict_type":
            lines.append(f"{where} is a section: set keys below it")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if where else message)
    return "settings: " + "; ".join(dict.fromkeys(lines))


def _nearest(where: str) -> str:
    pattern = [p for p in where.split(".") if not p.isdigit()]
    known = [".".join(k) for k in setting_keys(Settings)]
    wanted = ".".join("*" if pattern[:1] == ["models"] and i == 1 else p for i, p in enumerate(pattern))
    match = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    if not match:
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


def setting_keys(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The path of every key of a section; "*" stands for a model's or a stage's name."""
    nested: dict[str, tuple[str, type[BaseModel]]] = {
        "models": ("*", Model),
        "stages": ("*", Stage),
        "endpoints": ("", Endpoint),
        "price": ("", Price),
        "storage": ("", Storage),
    }
    for name, info in model.model_fields.items():
        yield (name,)
        if name in nested:
            middle, below = nested[name]
            for rest in setting_keys(below):
                yield (name, *([middle] if middle else []), *rest)
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            for rest in setting_keys(info.annotation):
                yield (name, *rest)
