"""The output folder of an export. Files appear atomically and are listed in export.json beforehand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from graphrag_ray.base.errors import UsageError
from graphrag_ray.store.files import Store

EXPORT_JSON = "export.json"
_SPOOL_PREFIX = ".tmp-export-"


class UndeclaredFile(UsageError):
    """An exporter wrote a path that its `files` do not declare."""


@dataclass(frozen=True)
class Output:
    """The folder that an exporter writes to.

    Attributes:
        spool: Local folder for files in progress.
        metadata: Additional content of export.json.
        allowed_paths: Paths that may be written. Folders have a trailing slash.
        files: Paths written so far.
        rows: Row counts by path of a file or folder.
    """

    store: Store
    spool: Path
    metadata: Mapping[str, Any]
    allowed_paths: tuple[str, ...]
    files: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def write(self, path: str, content: str) -> None:
        """Write a small file."""
        self._declare(path)
        self.store.write(path, content.encode())

    @contextmanager
    def file(self, path: str) -> Iterator[Path]:
        """Provide a local file. It is uploaded to `path` when the block succeeds."""
        local = self.spool / "file"
        yield local
        self._declare(path)
        self.store.upload(path, str(local))
        local.unlink()

    @contextmanager
    def folder(self, path: str, last: str) -> Iterator[Path]:
        """Provide a local folder. It is uploaded to `path` when the block succeeds.

        Files in the subfolder `last` are uploaded after all others.
        """
        local = self.spool / "folder"
        local.mkdir()
        yield local
        files = [file for file in local.rglob("*") if file.is_file()]
        files.sort(key=lambda file: (file.parent.name == last, file))
        targets = [f"{path}/{file.relative_to(local).as_posix()}" for file in files]
        self._declare(*targets)
        for target, file in zip(targets, files, strict=True):
            self.store.upload(target, str(file))
        shutil.rmtree(local)

    def _declare(self, *paths: str) -> None:
        """List paths in export.json before they appear, so that a later export may replace them."""
        allowed = self.allowed_paths
        folders = tuple(path for path in allowed if path.endswith("/"))
        if undeclared := [path for path in paths if path not in allowed and not path.startswith(folders)]:
            raise UndeclaredFile(f"wrote {undeclared[0]!r}, which its `files` do not declare")
        self.files.extend(paths)
        _write_export_json(self.store, {**self.metadata, "complete": False, "files": self.files})


@contextmanager
def open_output(
    store: Store, metadata: Mapping[str, Any], allowed_paths: Iterable[str], *, overwrite: bool
) -> Iterator[Output]:
    """Open an output folder. export.json says `complete: false` until the block succeeds.

    Args:
        store: The output folder.
        metadata: Additional content of export.json.
        allowed_paths: Paths that exports may write. Folders have a trailing slash.
        overwrite: Remove the files that export.json lists from an earlier export, and leave others alone.

    Raises:
        UsageError: The folder is not empty and `overwrite` is false, or it contains a file at an allowed path
            that no export wrote.
        StoreError: Storage failed.
    """
    existing = [info.path for info in store.list()]
    earlier: dict[str, Any] = {}  # export.json of an earlier export
    with suppress(ValueError):
        content = orjson.loads(store.read(EXPORT_JSON)) if EXPORT_JSON in existing else {}
        earlier = content if isinstance(content, dict) and "complete" in content else {}
    if existing and not overwrite:
        contents = existing[0] + (f" and {len(existing) - 1:,} more" if len(existing) > 1 else "")
        if earlier:
            contents = "an export" if earlier["complete"] else "an incomplete export"
            contents += f" of snapshot {earlier.get('snapshot')} as {earlier.get('format')}"
        raise UsageError(
            f"--out {store.url} is not empty: it contains {contents}. Choose another folder, or replace it "
            "with --overwrite."
        )
    listed = earlier.get("files")
    exported = {path for path in (listed if isinstance(listed, list) else ()) if isinstance(path, str)}
    exported = ({*exported, EXPORT_JSON} if earlier else exported).intersection(existing)
    allowed = (*allowed_paths,)
    folders = tuple(path for path in allowed if path.endswith("/"))
    foreign = [path for path in existing if path not in exported]
    conflicts = [path for path in foreign if path in {EXPORT_JSON, *allowed} or path.startswith(folders)]
    if conflicts:
        conflicts.sort(key=lambda path: (path != EXPORT_JSON, path))
        others = f" and {len(conflicts) - 1:,} more" if len(conflicts) > 1 else ""
        raise UsageError(
            f"--out {store.url} contains {conflicts[0]}{others}, which no export wrote according to "
            f"{EXPORT_JSON}. Choose another folder, or move these files away."
        )
    _write_export_json(store, {**metadata, "complete": False, "files": sorted(exported - {EXPORT_JSON})})
    for path in existing:
        if path in exported - {EXPORT_JSON} or path.startswith(_SPOOL_PREFIX):
            store.delete(path)
    spool_parent = store.url if "://" not in store.url else None
    for leftover in Path(spool_parent).glob(f"{_SPOOL_PREFIX}*") if spool_parent else []:
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SPOOL_PREFIX, dir=spool_parent) as spool:
        output = Output(store, Path(spool), metadata, allowed)
        yield output
    _write_export_json(store, {**metadata, "complete": True, "rows": output.rows, "files": output.files})


def _write_export_json(store: Store, content: Mapping[str, Any]) -> None:
    store.write(EXPORT_JSON, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
