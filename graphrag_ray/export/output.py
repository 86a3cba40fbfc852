"""The folder that an export is written to, on any store: every file appears whole, and a note beside them
says which are the export's, before they are there, and whether all are."""

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
    """An exporter writes what its `files` do not name."""


@dataclass(frozen=True)
class Output:
    """Where an exporter writes.

    store   the folder
    spool   a local folder for files that are being written
    about   what the note says besides
    names   paths that may be written, with a slash at the end for a folder
    files   what was written so far
    rows    of tables, by the path of their file or folder
    """

    store: Store
    spool: Path
    about: Mapping[str, Any]
    names: tuple[str, ...]
    files: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def write(self, path: str, content: str) -> None:
        """A small file."""
        self._announce(path)
        self.store.write(path, content.encode())

    @contextmanager
    def file(self, path: str) -> Iterator[Path]:
        """A local file to write, which appears at `path` when the block has ended well."""
        local = self.spool / "file"
        yield local
        self._announce(path)
        self.store.upload(path, str(local))
        local.unlink()

    @contextmanager
    def folder(self, path: str, last: str) -> Iterator[Path]:
        """The same for a folder.

        last    the name of the folder below it whose files appear after all others
        """
        local = self.spool / "folder"
        local.mkdir()
        yield local
        found = [file for file in local.rglob("*") if file.is_file()]
        found.sort(key=lambda file: (file.parent.name == last, file))
        inside = [f"{path}/{file.relative_to(local).as_posix()}" for file in found]
        self._announce(*inside)
        for to, file in zip(inside, found, strict=True):
            self.store.upload(to, str(file))
        shutil.rmtree(local)

    def _announce(self, *paths: str) -> None:
        """Nothing of ours is ever there that the note does not name: it tells what may be replaced. Raises
        UndeclaredFile."""
        folders = tuple(name for name in self.names if name.endswith("/"))
        if odd := [path for path in paths if path not in self.names and not path.startswith(folders)]:
            raise UndeclaredFile(f"writes {odd[0]!r}, which its `files` do not name")
        self.files.extend(paths)
        _note(self.store, {**self.about, "complete": False, "files": self.files})


@contextmanager
def open_output(
    store: Store, about: Mapping[str, Any], names: Iterable[str], *, overwrite: bool
) -> Iterator[Output]:
    """An output to write in. The note says `complete: false` until the block has ended well.

    about       what the note says besides
    names       paths of files, and of folders with a slash at the end, that exports write
    overwrite   whether there may be files. Those that the note of an earlier export names go before anything
                is written, all others stay

    Raises UsageError where there are and may not be, or where one that no export wrote has such a path;
    StoreError.
    """
    there = [info.path for info in store.list()]
    note: dict[str, Any] = {}  # of an earlier export; empty where there is none, or another program's
    with suppress(ValueError):
        found = orjson.loads(store.read(NOTE)) if NOTE in there else {}
        note = found if isinstance(found, dict) and "complete" in found else {}
    if there and not overwrite:
        held = there[0] + (f" and {len(there) - 1:,} more" if len(there) > 1 else "")
        if note:
            held = "an export" if note["complete"] else "an export that did not end"
            held += f" of snapshot {note.get('snapshot')}, as {note.get('format')}"
        raise UsageError(f"--out {store.url} is not empty: it holds {held}. Name another folder, or "
                         "replace it with --overwrite")  # fmt: skip
    listed = note.get("files")
    ours = {path for path in (listed if isinstance(listed, list) else ()) if isinstance(path, str)}
    ours = ({*ours, NOTE} if note else ours).intersection(there)
    # What no export wrote would be replaced, or be taken for an export's.
    names = (*names,)
    folders = tuple(name for name in names if name.endswith("/"))
    others = [path for path in there if path not in ours]
    taken = [path for path in others if path in {NOTE, *names} or path.startswith(folders)]
    if taken:
        taken.sort(key=lambda path: (path != NOTE, path))
        more = f" and {len(taken) - 1:,} more" if len(taken) > 1 else ""
        raise UsageError(f"--out {store.url} holds {taken[0]}{more}, and no {NOTE} there says that an export "
                         "wrote that: name another folder, or move it away first")  # fmt: skip
    _note(store, {**about, "complete": False, "files": sorted(ours - {NOTE})})
    for path in there:
        if path in ours - {NOTE} or path.startswith(_SPOOL):
            store.delete(path)
    beside = store.url if "://" not in store.url else None
    for left in Path(beside).glob(f"{_SPOOL}*") if beside else []:
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SPOOL, dir=beside) as spool:
        output = Output(store, Path(spool), about, names)
        yield output
    _note(store, {**about, "complete": True, "rows": output.rows, "files": output.files})


def _note(store: Store, content: Mapping[str, Any]) -> None:
    store.write(NOTE, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
