"""What the files hold that settings name, prompts and lists of names: an index keeps that, and no path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphrag_ray.errors import SettingsError
from graphrag_ray.graph.names import Names, parse_names
from graphrag_ray.prompts import kept_prompts, load_prompts
from graphrag_ray.settings import BUNDLED, Settings, of_index
from graphrag_ray.settings import Names as NamesSettings
from graphrag_ray.settings_file import parse_settings
from graphrag_ray.steps.run import Observer
from graphrag_ray.store.snapshots import Manifest
from graphrag_ray.text_files import read_text
from graphrag_ray.urls import shown

INSTEAD = {
    "prompts_dir": f"prompts_dir={BUNDLED} for those of the package, at the price of asking everything anew",
    "names.aliases_file": "names.aliases='' for none",
    "names.block_file": "names.block='' for none",
}
"""Settings that are paths, and what else may be set."""


def load_names(settings: Settings) -> Names:
    """The aliases and blocked names of the settings. Raises SettingsError."""
    texts = _texts_of(settings.names)
    return parse_names(texts["aliases"], texts["block"])


def _texts_of(names: NamesSettings) -> dict[str, str]:
    return {
        "aliases": _text(names.aliases_file, names.aliases),
        "block": _text(names.block_file, names.block),
    }


def _text(path: str | None, text: str | None) -> str:
    try:
        return read_text(path) if path is not None else text or ""
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"cannot read {shown(str(path))}: {e}") from e


def with_contents(settings: Settings, parent: Manifest | None, observer: Observer) -> Settings:
    """Settings that hold what their files hold. An index goes on with the prompts that it was made with,
    whatever becomes of their files and of those of the package.

    Raises PromptError, SettingsError.
    """
    before = parent.settings if parent else {}
    require_paths(before, settings, ["prompts_dir"])
    kept = {**parse_settings({"prompts": of_index(before).get("prompts", {})}).prompts, **settings.prompts}
    prompts = kept_prompts(load_prompts(settings.prompts_dir, kept))
    without = kept_prompts(load_prompts(settings.prompts_dir))
    if others := [name for name, text in prompts.items() if text != without[name]]:
        observer.note(
            f"The index goes on with its own prompts; {', '.join(others)} differ from those of the package "
            f"(--set prompts_dir={BUNDLED} takes these: what they change is paid for anew)."
        )
    names = settings.names.model_copy(update=_texts_of(settings.names))
    return settings.model_copy(update={"prompts": prompts, "names": names})


def require_paths(said: Mapping[str, Any], settings: Settings, keys: list[str] | None = None) -> None:
    """Raises SettingsError where an index of an earlier version names a file, which is not opened, and the
    settings name nothing in its place: without it, what was paid for would be paid for again.

    said: settings as that index keeps them
    """
    given = {
        "prompts_dir": settings.prompts_dir or settings.prompts,
        "names.aliases_file": (settings.names.aliases_file, settings.names.aliases) != (None, None),
        "names.block_file": (settings.names.block_file, settings.names.block) != (None, None),
    }
    for key in keys or given:
        section, _, name = key.rpartition(".")
        holder = said.get(section) if section else said
        place = holder.get(name) if isinstance(holder, Mapping) else None
        if place and not given[key]:
            raise SettingsError(
                f"the index was made with {key} {str(place)[:200]!r}, and no path is taken from an index: "
                f"name it again, --set {key}=…, or --set {INSTEAD[key]}"
            )
