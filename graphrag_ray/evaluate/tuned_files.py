"""The files that tuning writes: edited settings, changed prompts, a schema and a report."""

from __future__ import annotations

import difflib
import hashlib
import os
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import orjson

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.prompts import bundled_prompts
from graphrag_ray.base.settings_edit import Changes, edit_settings
from graphrag_ray.base.settings_file import load_settings, read_settings
from graphrag_ray.base.text_files import list_names, read_text
from graphrag_ray.base.urls import display_path, is_url
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.evaluate.tuning import TuningResult
from graphrag_ray.store.files import Store

DEFAULT_FOLDER = "tuned"
REPORT = "tuning_report.json"
EXAMPLES = "extract_examples.txt"
_PATHS = (
    *(("root",), ("prompts_dir",), ("input", "url"), ("extraction", "schema_file")),
    *(("names", "aliases_file"), ("names", "blocklist_file")),
)
"""Settings that are relative to their file."""


@dataclass(frozen=True)
class TuningFiles:
    """Where tuning writes.

    Attributes:
        folder: Folder of the settings, the report and the cached replies.
        settings: The settings file. `text` is what it contains so far, or the settings to copy.
        prompts_dir: Folder of the prompts.
        changes: Settings that a copy needs, by section and key.
        copies: Texts of the prompts that a copy needs, by path.
        new_dir: Name of `prompts_dir`, if the settings lack it.
        written: Hashes of files that tuning has written, by name.
    """

    folder: Path
    settings: Path
    text: str
    prompts_dir: Path
    changes: Changes
    copies: Mapping[Path, str]
    new_dir: str | None
    written: Mapping[str, str]

    @staticmethod
    def plan(config: str | None, output: str | None, schema: bool) -> TuningFiles:
        """Decide what to write, and check that it can be written.

        Files go to the folder `output`, or to that of a local settings file. An existing file in it is
        edited. Otherwise `config` is copied together with its prompts.

        Raises:
            UsageError: A file cannot be read or written, or is invalid, or the user's own would be replaced.
        """
        if output is not None and is_url(output):
            raise UsageError(f"--output {display_path(output)} is a URL. Pass a local folder.")
        in_place = config is not None and not is_url(config)
        folder = Path(output or (Path(str(config)).parent if in_place else DEFAULT_FOLDER))
        target = folder / (posixpath.basename(config) if config is not None else "settings.yaml")
        source = str(target) if target.is_file() else config
        if target.is_file() and Path(config or "") != target:
            load_settings(target)
        resolved = {} if source is None else read_settings(source)
        text, own = "" if source is None else _read(source), resolved.get("prompts_dir")
        changes: dict[tuple[str, ...], Any] = {}
        if is_copy := source != str(target):
            of_copy = {path: reduce(_get, path, resolved) for path in _PATHS}
            changes = {path: value for path, value in of_copy.items() if value}
        copies: dict[Path, str] = {}
        if own and not is_copy:
            if is_url(str(own)):
                raise UsageError("`prompts_dir` is a URL. Pass --output to write to a local folder.")
            prompts_dir, new_dir = Path(str(own)).expanduser(), None
        else:
            # Prompts that `init` wrote would take effect together with the new one.
            new_dir = "tuned_prompts" if (folder / "prompts").exists() else "prompts"
            prompts_dir = folder / new_dir
            for part in ("", "criteria") if own else ():
                names = list_names(posixpath.join(str(own), part)) or ()
                copies |= {
                    prompts_dir / part / name: _read(posixpath.join(str(own), part, name))
                    for name in sorted(names)
                    if name.endswith(".txt")
                }
        replaced = [prompts_dir / EXAMPLES, *([folder / "schema.yaml"] if schema else [])]
        for path in (target, folder / REPORT, *replaced):
            _check_writable(path)
        written: dict[str, str] = {}
        with suppress(OSError, ValueError, TypeError, LookupError):
            written = dict(orjson.loads((folder / REPORT).read_bytes())["written"])
        for path in replaced:
            unchanged = _hash(_read(str(bundled_prompts() / EXAMPLES))), written.get(path.name)
            if path.exists() and _hash(_read(str(path))) not in unchanged:
                raise UsageError(
                    f"`tune` would replace {path}, which it has not written or which was edited since. Move "
                    "it, or pass --output to write to another folder. No model has been called."
                )
        return TuningFiles(folder, target, text, prompts_dir, changes, copies, new_dir, written)

    def contents(self, result: TuningResult) -> dict[Path, str]:
        """Return the contents of all files to write, by path. The first is the settings file.

        It keeps its comments and order. If it is too unusual to edit, the new settings go into
        `settings.tuned.yaml`.
        """
        changes = {**self.changes, **result.changes}
        files = {self.prompts_dir / f"{name}.txt": text for name, text in result.prompts.items()}
        files = {**self.copies, **files}
        if files and self.new_dir:
            changes["prompts_dir",] = self.new_dir
        if result.schema is not None:
            schema: Changes = {(key,): value for key, value in result.schema.items()}
            files[self.folder / "schema.yaml"] = edit_settings("", schema) or ""
        edited = edit_settings(self.text, changes)
        if edited is None:
            unusual = self.folder / "settings.tuned.yaml"
            return {unusual: edit_settings("", changes) or "", **files}
        return {self.settings: edited, **files}

    def write(self, files: Mapping[Path, str], result: TuningResult) -> None:
        """Write files with the line ends that they have, and the report. Raises StoreError."""
        written = {**self.written, **{path.name: _hash(text) for path, text in files.items()}}
        report = orjson.dumps({**result.report(), "written": written}, option=orjson.OPT_INDENT_2).decode()
        for path, text in {**files, self.folder / REPORT: report + "\n"}.items():
            line_end = "\r\n" if path.exists() and b"\r\n" in path.read_bytes() else "\n"
            store, name = Store.for_file(str(path), {})
            store.write(name, text.replace("\n", line_end).encode())

    def reply_cache(self) -> ReplyCache:
        return ReplyCache(Store(str(self.folder / "tuning.work")))


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, Mapping) else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_writable(path: Path) -> None:
    """Raise UsageError unless a file, and the folders that it needs, can be written."""
    path = path.absolute()
    folder = next(parent for parent in path.parents if parent.exists())
    if path.is_dir():
        problem = "it is a folder"
    elif not folder.is_dir():
        problem = f"{folder} is not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        problem = "access is denied"
    else:
        return
    raise UsageError(
        f"Cannot write {path}: {problem}. Pass --output to write to another folder. No model has been called."
    )


def diff(files: Mapping[Path, str]) -> str:
    """Return a unified diff of these files against what they would replace."""
    lines: list[str] = []
    for path, text in files.items():
        old = _read(str(path)) if path.exists() else ""
        label = str(path) if path.exists() else "/dev/null"
        lines += difflib.unified_diff(old.splitlines(), text.splitlines(), label, str(path), lineterm="")
    return "\n".join(lines)


def _read(path: str) -> str:
    try:
        return read_text(path).replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"Cannot read {display_path(path)}: {e}") from e
