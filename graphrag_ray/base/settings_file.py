"""Read settings from a YAML file, `a.b=c` overrides and the user's settings (`user_settings.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from graphrag_ray.base.connection_settings import Storage
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_parsing import apply_override, read_mapping, validate_settings
from graphrag_ray.base.text_files import resolve_relative
from graphrag_ray.base.user_settings import KnownModels, read_user_settings
from graphrag_ray.version import __version__


def load_settings(
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    known: KnownModels | None = None,
) -> Settings:
    """Read settings from a file (or `base`) and apply overrides in order.

    Args:
        path: Path or URL of a settings file. A URL is opened with credentials from the environment.
        overrides: Overrides of the form `a.b=c`.
        base: Settings stored in an index (`stored_settings.without_machine_settings`).
        known: Endpoints and storage to use if the settings have none. Defaults to the user's settings and the
            environment.

    Raises:
        SettingsError: A key is unknown or a value is invalid. The message suggests the closest known key.
    """
    data = deepcopy(dict(base or {})) if path is None else read_settings(path)
    known = KnownModels.read() if known is None else known
    final = deepcopy(data)
    for override in overrides:
        with suppress(SettingsError):  # reported below, unless `known` resolves it
            apply_override(final, override)
    known.fill(data, final)
    for override in overrides:
        apply_override(data, override)
    known.set_default_address(data)
    try:
        return parse_settings(data)
    except SettingsError:
        if base is not None and path is None:
            try:
                parse_settings(base)
            except SettingsError as e:
                raise SettingsError(
                    f"This version ({__version__}) cannot read the settings in the index. If a newer version "
                    f"built it, upgrade: pip install -U graphrag-ray. {e}"
                ) from None
        raise


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read a settings file without validation, and resolve relative paths in it. Raises SettingsError."""
    data = read_mapping(str(path))
    names, source = data.get("names"), data.get("input")
    paths = [(data, "root"), (source, "url"), (data, "prompts_dir"), (data.get("extraction"), "schema_file")]
    for section, key in (*paths, (names, "aliases_file"), (names, "blocklist_file")):
        if isinstance(section, dict) and section.get(key) and isinstance(section[key], str):
            section[key] = resolve_relative(section[key], str(path))
    return data


def load_storage(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Storage:
    """Read only the storage settings, to open an index whose snapshot contains the other settings.

    Raises:
        SettingsError: As for `load_settings`. Only the names of other sections are checked.
    """
    data = read_mapping(str(path)) if path is not None else {}
    storage = data.get("storage", read_user_settings().storage.model_dump(exclude_unset=True))
    sections: dict[str, Any] = {"storage": storage} if storage else {}
    for override in overrides:
        key, sep, _ = override.partition("=")
        section = key.strip().partition(".")[0]
        # Report an unknown setting now, not after a failure to connect to storage.
        if section == "storage" or section not in Settings.model_fields or not sep:
            apply_override(sections, override)
    return parse_settings(sections).storage


def read_root(path: str | Path) -> str | None:
    """Return the `root` in a settings file. Raises SettingsError if the file cannot be read."""
    root = read_settings(path).get("root")
    return root if isinstance(root, str) else None


def parse_settings(data: Mapping[str, Any]) -> Settings:
    """Validate settings data. Raises SettingsError."""
    return validate_settings(Settings, data)


def resolve_storage(settings: Settings | None, storage: Storage | Mapping[str, Any] | None) -> Storage:
    """Return `storage`, or else the storage settings in `settings` or the user's settings.

    Raises SettingsError if they are invalid.
    """
    if isinstance(storage, Storage):
        return storage
    if storage is not None:
        return parse_settings({"storage": dict(storage)}).storage
    return settings.storage if settings is not None else read_user_settings().storage
