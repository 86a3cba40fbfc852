"""The output folder of an export. Files appear atomically, and export.json lists them before they appear and
says whether the export is complete."""

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

NOTE = "export.json"
_SPOOL = ".tmp-export-"


class UndeclaredFile(UsageError):
    """An exporter writes a path that its `files` do not declare."""


@dataclass(frozen=True)
class Output:
    """The folder that an exporter writes to.

    Attributes:
        spool: Local folder for files in progress.
        about: Additional content of export.json.
        names: Paths that may be written, folders with a trailing slash.
        files: Paths written so far.
        rows: Row counts by path of a file or folder.
    """

    store: Store
    spool: Path
    about: Mapping[str, Any]
    names: tuple[str, ...]
    files: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def write(self, path: str, content: str) -> None:
        """Write a small file."""
        self._announce(path)
        self.store.write(path, content.encode())

    @contextmanager
    def file(self, path: str) -> Iterator[Path]:
        """A local file that is uploaded to `path` when the block succeeds."""
        local = self.spool / "file"
        yield local
        self._announce(path)
        self.store.upload(path, str(local))
        local.unlink()

    @contextmanager
    def folder(self, path: str, last: str) -> Iterator[Path]:
        """A local folder that is uploaded to `path` when the block succeeds.

        last: name of the subfolder whose files are uploaded after all others.
        """
        local = self.spool / "folder"
        local.mkdir()
        yield local
        files = [file for file in local.rglob("*") if file.is_file()]
        files.sort(key=lambda file: (file.parent.name == last, file))
        targets = [f"{path}/{file.relative_to(local).as_posix()}" for file in files]
        self._announce(*targets)
        for target, file in zip(targets, files, strict=True):
            self.store.upload(target, str(file))
        shutil.rmtree(local)

    def _announce(self, *paths: str) -> None:
        """List the paths in export.json before they appear, so that a later export may replace them."""
        folders = tuple(name for name in self.names if name.endswith("/"))
        if undeclared := [path for path in paths if path not in self.names and not path.startswith(folders)]:
            raise UndeclaredFile(f"writes {undeclared[0]!r}, which its `files` do not name")
        self.files.extend(paths)
        _write_note(self.store, {**self.about, "complete": False, "files": self.files})


@contextmanager
def open_output(
    store: Store, about: Mapping[str, Any], names: Iterable[str], *, overwrite: bool
) -> Iterator[Output]:
    """Open an output folder. export.json says `complete: false` until the block succeeds.

    Args:
        about: Additional content of export.json.
        names: Paths that exports write, folders with a trailing slash.
        overwrite: Allow existing files. Files listed by an earlier export's export.json are removed first;
            others stay.

    Raises:
        UsageError: The folder is not empty and `overwrite` is false, or a file of such a name is not an
            export's.
        StoreError: Storage failed.
    """
    existing = [info.path for info in store.list()]
    note: dict[str, Any] = {}  # empty without an earlier export
    with suppress(ValueError):
        content = orjson.loads(store.read(NOTE)) if NOTE in existing else {}
        note = content if isinstance(content, dict) and "complete" in content else {}
    if existing and not overwrite:
        held = existing[0] + (f" and {len(existing) - 1:,} more" if len(existing) > 1 else "")
        if note:
            held = "an export" if note["complete"] else "an incomplete export"
            held += f" of snapshot {note.get('snapshot')}, as {note.get('format')}"
        raise UsageError(
            f"--out {store.url} is not empty: it holds {held}. Choose another folder, or replace it with "
            "--overwrite."
        )
    listed = note.get("files")
    exported = {path for path in (listed if isinstance(listed, list) else ()) if isinstance(path, str)}
    exported = ({*exported, NOTE} if note else exported).intersection(existing)
    names = (*names,)
    folders = tuple(name for name in names if name.endswith("/"))
    foreign = [path for path in existing if path not in exported]
    taken = [path for path in foreign if path in {NOTE, *names} or path.startswith(folders)]
    if taken:
        taken.sort(key=lambda path: (path != NOTE, path))
        more = f" and {len(taken) - 1:,} more" if len(taken) > 1 else ""
        raise UsageError(
            f"--out {store.url} holds {taken[0]}{more}, not written by an export according to {NOTE}. Choose "
            "another folder, or move these files away."
        )
    _write_note(store, {**about, "complete": False, "files": sorted(exported - {NOTE})})
    for path in existing:
        if path in exported - {NOTE} or path.startswith(_SPOOL):
            store.delete(path)
    spool_parent = store.url if "://" not in store.url else None
    for leftover in Path(spool_parent).glob(f"{_SPOOL}*") if spool_parent else []:
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SPOOL, dir=spool_parent) as spool:
        output = Output(store, Path(spool), about, names)
        yield output
    _write_note(store, {**about, "complete": True, "rows": output.rows, "files": output.files})


def _write_note(store: Store, content: Mapping[str, Any]) -> None:
    store.write(NOTE, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
