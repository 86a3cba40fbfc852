"""The folder that an export is written to, on any store: every file appears whole, and a note beside them
says whether all are there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from graphrag_ray.errors import UsageError
from graphrag_ray.store.files import Store

NOTE = "export.json"
_SPOOL = ".tmp-export-"


@dataclass(frozen=True)
class Output:
    """files: what was written so far; rows: of tables, by the path of their file or folder."""

    store: Store
    spool: Path
    files: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def write(self, path: str, content: str) -> None:
        """A small file."""
        self.store.write(path, content.encode())
        self.files.append(path)

    @contextmanager
    def file(self, path: str) -> Iterator[Path]:
        """A local file to write, which appears at `path` when the block has ended well."""
        local = self.spool / "file"
        yield local
        self.store.upload(path, str(local))
        local.unlink()
        self.files.append(path)

    @contextmanager
    def folder(self, path: str, last: str) -> Iterator[Path]:
        """The same for a folder.

        last    the name of the folder below it whose files appear after all others
        """
        local = self.spool / "folder"
        local.mkdir()
        yield local
        found = [file for file in local.rglob("*") if file.is_file()]
        for file in sorted(found, key=lambda f: (f.parent.name == last, f)):
            inside = f"{path}/{file.relative_to(local).as_posix()}"
            self.store.upload(inside, str(file))
            self.files.append(inside)
        shutil.rmtree(local)


@contextmanager
def open_output(
    store: Store, about: Mapping[str, Any], stale: Iterable[str], *, overwrite: bool
) -> Iterator[Output]:
    """An output to write in. The note says `complete: false` until the block has ended well.

    about       what the note says besides
    stale       paths of files, and of folders with a slash at the end, that earlier exports have written
                and that go before anything is written
    overwrite   whether there may be files

    Raises UsageError where there are and may not be, StoreError.
    """
    there = [info.path for info in store.list()]
    if there and not overwrite:
        raise UsageError(f"--out {store.url} is not empty: {_holds(store, there)}. Name another folder, or "
                         "replace it with --overwrite")  # fmt: skip
    _note(store, {**about, "complete": False})
    goes = tuple(stale)
    for path in there:
        if path in goes or path.startswith((_SPOOL, *(p for p in goes if p.endswith("/")))):
            store.delete(path)
    beside = store.url if "://" not in store.url else None
    for left in Path(beside).glob(f"{_SPOOL}*") if beside else []:
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SPOOL, dir=beside) as spool:
        output = Output(store, Path(spool))
        yield output
    _note(store, {**about, "complete": True, "rows": output.rows, "files": output.files})


def _holds(store: Store, there: list[str]) -> str:
    note: Any = {}
    if NOTE in there:
        try:
            note = orjson.loads(store.read(NOTE))
        except ValueError:
            note = {}
    if not isinstance(note, dict) or "complete" not in note:
        return f"it holds {there[0]}" + (f" and {len(there) - 1:,} more" if len(there) > 1 else "")
    whole = "an export" if note["complete"] else "an export that did not end"
    return f"it holds {whole} of snapshot {note.get('snapshot')}, as {note.get('format')}"


def _note(store: Store, content: Mapping[str, Any]) -> None:
    store.write(NOTE, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
