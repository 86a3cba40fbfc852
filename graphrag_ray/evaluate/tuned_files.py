"""The files that tuning writes: edited settings, changed prompts, a schema and a report."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.prompts import PLACEHOLDERS
from graphrag_ray.base.settings_edit import edit_settings
from graphrag_ray.base.settings_file import read_settings
from graphrag_ray.base.settings_parsing import read_mapping
from graphrag_ray.base.text_files import list_names, read_text
from graphrag_ray.base.urls import display_path, is_url
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.evaluate.tuning import TuningResult
from graphrag_ray.store.files import Store

DEFAULT_FOLDER = "tuned"
REPORT = "tuning_report.json"
_PATHS = (("root",), ("input", "url"), ("names", "aliases_file"), ("names", "blocklist_file"))
"""Settings that are relative to their file."""


def output_folder(config: str | None, output: str | None) -> Path:
    """Return the folder to write to: `output`, or the folder of the settings file if it is local.

    Raises UsageError if `output` is a URL.
    """
    if output is not None:
        if is_url(output):
            raise UsageError(f"--output {display_path(output)} is a URL. Pass a local folder.")
        return Path(output)
    return Path(DEFAULT_FOLDER) if config is None or is_url(config) else Path(config).parent


def tuned_files(result: TuningResult, config: str | None, output: str | None) -> dict[Path, str]:
    """Return the contents of all files to write, by path. The first is the settings file.

    An existing settings file keeps its comments and order. A copy of it in another folder keeps the user's
    prompts, too. If a file is too unusual to edit, the new settings go into `settings.tuned.yaml`.

    Raises:
        UsageError: A file cannot be read, or `prompts_dir` is a URL and cannot be written to.
    """
    folder = output_folder(config, output)
    target = folder / (posixpath.basename(config) if config is not None else "settings.yaml")
    changes: dict[tuple[str, ...], Any] = dict(result.changes)
    prompts = {f"{name}.txt": text for name, text in result.prompts.items()}
    text, prompts_dir = "", None
    if target.exists():
        text, prompts_dir = _read(str(target)), read_mapping(str(target)).get("prompts_dir")
    elif config is not None:
        text, resolved = _read(config), read_settings(config)
        changes |= {path: value for path in _PATHS if (value := _get(resolved, path))}
        if own := resolved.get("prompts_dir"):
            names = {f"{name}.txt" for name in PLACEHOLDERS} & (list_names(own) or set())
            prompts = {name: _read(posixpath.join(own, name)) for name in sorted(names)} | prompts
    files: dict[Path, str] = {}
    if prompts:
        if not prompts_dir:
            # Prompts that `init` wrote would take effect together with the new one.
            prompts_dir = "tuned_prompts" if (folder / "prompts").exists() else "prompts"
            changes["prompts_dir",] = prompts_dir
        if is_url(str(prompts_dir)):
            raise UsageError("`prompts_dir` is a URL. Pass --output to write to a local folder.")
        files = {folder / str(prompts_dir) / name: content for name, content in prompts.items()}
    if result.schema is not None:
        files[folder / "schema.yaml"] = edit_settings("", {(k,): v for k, v in result.schema.items()}) or ""
    edited = edit_settings(text, changes)
    if edited is None:
        target, edited = folder / "settings.tuned.yaml", edit_settings("", changes) or ""
    return {target: edited, **files}


def _get(data: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = data
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def diff(files: Mapping[Path, str]) -> str:
    """Return a unified diff of these files against what they would replace."""
    lines: list[str] = []
    for path, text in files.items():
        old = _read(str(path)) if path.exists() else ""
        name = str(path)
        label = name if path.exists() else "/dev/null"
        lines += difflib.unified_diff(old.splitlines(), text.splitlines(), label, name, lineterm="")
    return "\n".join(lines)


def write_files(files: Mapping[Path, str], result: TuningResult, folder: Path) -> None:
    """Write files, and the report next to the settings. Raises StoreError."""
    report = orjson.dumps(result.report(), option=orjson.OPT_INDENT_2).decode()
    for path, text in {**files, folder / REPORT: report + "\n"}.items():
        store, name = Store.for_file(str(path), {})
        store.write(name, text.encode())


def _read(path: str) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"Cannot read {display_path(path)}: {e}") from e


def reply_cache(folder: str) -> ReplyCache:
    """Return the cache of replies in an output folder."""
    return ReplyCache(Store(str(Path(folder) / "tuning.work")))
