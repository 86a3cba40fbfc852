"""Reading settings: one strict YAML file, and `a.b=c` overrides; and how this machine reaches the models that
they name (`user_settings.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Settings, Storage
from graphrag_ray.base.settings_text import apply, read_mapping, validated
from graphrag_ray.base.text_files import beside
from graphrag_ray.base.user_settings import Known, read_user_settings
from graphrag_ray.version import __version__


def load_settings(
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    known: Known | None = None,
) -> Settings:
    """Read settings: defaults, then the file (or `base`), then `a.b=c` overrides in order. Where neither the
    file nor an override says how a model is reached, what is known on this machine counts.

    path: of a file, or a URL, which is reached as the environment says
    base: what an index says of itself (`settings.of_index`)
    known: how models are reached; None: as the user's settings and the environment say

    Raises SettingsError naming the key, and the nearest known one for a key that does not exist.
    """
    data: dict[str, Any] = deepcopy(dict(base or {}))
    if path is not None:
        data = read_settings(path)
    known = Known.read() if known is None else known
    final = deepcopy(data)
    for override in overrides:
        with suppress(SettingsError):  # told below, unless it is about what is known
            apply(final, override)
    known.fill(data, final)
    for override in overrides:
        apply(data, override)
    known.address_all(data)
    try:
        return parse_settings(data)
    except SettingsError:
        if base is not None and path is None:
            _require_readable(base)
        raise


def _require_readable(base: Mapping[str, Any]) -> None:
    """Raises SettingsError where an index itself says what cannot be read, whatever is set beside it."""
    try:
        parse_settings(base)
    except SettingsError as e:
        raise SettingsError(
            f"this version ({__version__}) cannot read the settings that the index keeps. If a newer one "
            f"made the index, upgrade: pip install -U graphrag-ray. What is wrong: {e}"
        ) from None


def read_settings(path: str | Path) -> dict[str, Any]:
    """What a settings file says, unchecked. Raises SettingsError where it cannot be read."""
    data = read_mapping(str(path))
    _relative_to(str(path), data)
    return data


def load_storage(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Storage:
    """How storage is reached, for the first look at an index whose snapshot may hold all other settings: as
    the overrides, the file, or else the user's settings say.

    Raises SettingsError as `load_settings`; of keys outside `storage` only the first name is checked.
    """
    data = read_mapping(str(path)) if path is not None else {}
    own = data.get("storage", read_user_settings().storage.model_dump(exclude_unset=True))
    given: dict[str, Any] = {"storage": own} if own else {}
    for override in overrides:
        key, sep, _ = override.partition("=")
        section = key.strip().partition(".")[0]
        # What is no setting at all is told now, not after the storage could not be reached.
        if section == "storage" or section not in Settings.model_fields or not sep:
            apply(given, override)
    return parse_settings(given).storage


def root_in(path: str | Path) -> str | None:
    """Where a settings file says that the index is, whatever else stands in it. Raises SettingsError where it
    cannot be read."""
    root = read_settings(path).get("root")
    return root if isinstance(root, str) else None


def _relative_to(file: str, data: dict[str, Any]) -> None:
    """Paths in a settings file are relative to that file, wherever it is read from."""
    names, source = data.get("names"), data.get("input")
    paths = [(data, "root"), (source, "url"), (data, "prompts_dir")]
    for section, key in (*paths, (names, "aliases_file"), (names, "block_file")):
        if isinstance(section, dict) and section.get(key) and isinstance(section[key], str):
            section[key] = beside(file, section[key])


def parse_settings(data: Mapping[str, Any]) -> Settings:
    """Settings from data, as they stand there. Raises SettingsError."""
    return validated(Settings, data)


def storage_of(settings: Settings | None, storage: Storage | Mapping[str, Any] | None) -> Storage:
    """How storage is reached: as given, else as the settings, else as those of the user say. Raises
    SettingsError."""
    if isinstance(storage, Storage):
        return storage
    if storage is not None:
        return parse_settings({"storage": dict(storage)}).storage
    return settings.storage if settings is not None else read_user_settings().storage
