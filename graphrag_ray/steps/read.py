"""Documents and chunks: INPUT is listed here and read by the executor.

INPUT is the whole wanted set: a document that is not in it goes (`add` keeps it). A document that
cannot be read today keeps its last version and is a failure; a listing that fails is fatal.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from graphrag_ray import schema
from graphrag_ray.corpus.parse import EXTENSIONS, Document, Unreadable, documents_in
from graphrag_ray.corpus.tables import documents_table, text_units_table
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.errors import DeletionRefused, InputError
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.ids import document_id, stable_id
from graphrag_ray.settings import Settings
from graphrag_ray.steps.run import Result, Run, by_input
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

YIELD_CHARACTERS = 32_000_000
"""Documents are written when so much text has gathered: what bounds a reader's memory."""

MAX_DELETED_FRACTION = 0.10

INDEX_FOLDERS = ("work", "tables", "snapshots", "locks")
"""What a store keeps under the index root."""


@dataclass(frozen=True)
class InputFile:
    """url: where it is; path: its name relative to INPUT, the natural key of its documents."""

    url: str
    path: str
    size: int


def list_input(input_url: str, index_url: str = "") -> list[InputFile]:
    """The readable files of a file, folder, glob or URL, by path. Raises InputError when there are none.

    index_url: an index, whose own files are no documents even where it lies inside INPUT.
    """
    try:
        fs, root = fsspec.core.url_to_fs(input_url)
        there = fs.exists(root)
        if any(c in root for c in "*?[") and not there:
            found = {p: i for p, i in fs.glob(root, detail=True).items() if i["type"] == "file"}
            base = posixpath.dirname(root[: min(root.index(c) for c in "*?[" if c in root)])
        elif fs.isfile(root):
            found, base = {root: fs.info(root)}, posixpath.dirname(root)
        else:
            found, base = _below(fs, root) if there else {}, root
    except (OSError, ValueError, ImportError) as e:
        raise InputError(f"cannot list INPUT {input_url!r}: {e}") from e
    same = index_url and fsspec.utils.get_protocol(index_url) == fsspec.utils.get_protocol(input_url)
    ours = tuple(f"{fs._strip_protocol(index_url)}/{f}/" for f in INDEX_FOLDERS) if same else ()
    files = [
        InputFile(
            fs.unstrip_protocol(p), posixpath.relpath(p, base) if base else p, int(info.get("size") or 0)
        )
        for p, info in found.items()
        if posixpath.splitext(p)[1].lower() in EXTENSIONS and not _hidden(p, base) and not p.startswith(ours)
    ]
    if not files:
        others = f" ({len(found)} files of other kinds)" if found else ""
        raise InputError(
            f"nothing to read at INPUT {input_url!r}{others}: it must be a file, folder, glob or URL with "
            f"{', '.join(sorted(EXTENSIONS))} files"
        )
    return sorted(files, key=lambda f: f.path)


def _below(fs: Any, folder: str) -> dict[str, Any]:
    """All files below a folder. fsspec's own `find` takes a local folder that may not be listed for an
    empty one, whose documents would then be deleted, and follows links in circles."""
    if not isinstance(fs, LocalFileSystem):
        return dict(fs.find(folder, detail=True))
    found: dict[str, Any] = {}
    folders: list[tuple[str, tuple[str, ...]]] = [(folder, (os.path.realpath(folder),))]
    for at, above in folders:  # grows while we go through it
        for info in fs.ls(at, detail=True):
            if not os.path.isdir(info["name"]):
                found[info["name"]] = info
            elif (real := os.path.realpath(info["name"])) not in above:
                folders.append((info["name"], (*above, real)))
    return found


def read(run: Run, input_url: str, *, add: bool, allow_deletes: bool) -> Result:
    """Tables documents, text_units and failures; parts aligned with one another."""
    return run.step("read", None, partial(_read, run, input_url, add, allow_deletes))


def _read(run: Run, input_url: str, add: bool, allow_deletes: bool) -> Result:
    files = list_input(input_url, run.store.url)
    sizes = [max(1, f.size) for f in files]
    splits = stable_batches([stable_id("file", f.path) for f in files], sizes, _split_bytes(sum(sizes)))
    inputs = [[files[i] for i in batch] for batch in splits]
    written = run.executor.map("read", partial(_read_split, run.settings), inputs)
    tables = by_input(written, "documents", "text_units", "failures")
    counts = _keep_and_count(run, tables, add, allow_deletes)
    return Result(
        tables, counts | {"files": len(files), "chunks": sum(p.rows for g in tables["text_units"] for p in g)}
    )


def _read_split(
    settings: Settings, store: Store, files: Sequence[InputFile]
) -> Iterator[Mapping[str, pa.Table]]:
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    documents: list[Document] = []
    unreadable: list[Unreadable] = []
    gathered = 0

    def tables() -> Mapping[str, pa.Table]:
        units = [text_units_table(d, settings.chunking, vocabulary) for d in documents]
        return {
            "documents": documents_table(documents),
            "text_units": pa.concat_tables(units) if units else schema.TEXT_UNITS.empty_table(),
            "failures": _failures(unreadable),
        }

    for file in files:
        for found in read_file(file, settings):
            if isinstance(found, Unreadable):
                unreadable.append(found)
                continue
            documents.append(found)
            gathered += len(found.text)
            if gathered > YIELD_CHARACTERS:
                yield tables()
                documents, unreadable, gathered = [], [], 0
    yield tables()


def read_file(file: InputFile, settings: Settings) -> Iterator[Document | Unreadable]:
    try:
        with fsspec.open(file.url, "rb") as stream:
            yield from documents_in(file.path, stream, settings.input)
    except OSError as e:
        yield Unreadable(file.path, "", f"cannot be read: {e}")


def _failures(unreadable: Sequence[Unreadable]) -> pa.Table:
    rows = [
        {
            "stage": "read",
            "item": u.row or u.path,
            "document": u.path,
            "kind": "permanent",
            "error": u.reason,
            "attempts": 1,
            "first_at": "",
            "last_at": "",
            "key": "",
        }
        for u in unreadable
    ]
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


def _keep_and_count(
    run: Run, tables: dict[str, list[list[Part]]], add: bool, allow_deletes: bool
) -> dict[str, Any]:
    """Add what stays of the parent snapshot; refuse a run that would delete much of it."""
    parts = [p for group in tables["documents"] for p in group]
    now = read_table(run.store, parts, ["id", "content_hash"], schema.DOCUMENTS)
    failed = _all(run, tables["failures"], schema.FAILURES)
    if run.parent is None:
        if not now.num_rows:
            _refuse_nothing(failed)
        return {"documents": now.num_rows, "added": now.num_rows, "changed": 0, "removed": 0}
    old = Result.from_json(run.parent.steps["read"])
    before = read_table(run.store, old.parts("documents"), ["id", "content_hash", "path"], schema.DOCUMENTS)
    gone = pc.invert(pc.is_in(before["id"], now["id"].combine_chunks()))
    keep = gone if add else pc.and_(gone, _unreadable_today(before, failed))
    removed = int(pc.sum(gone).as_py() or 0) - int(pc.sum(keep).as_py() or 0)
    if removed > MAX_DELETED_FRACTION * before.num_rows and not allow_deletes:
        raise DeletionRefused(
            f"this run would delete {removed} of {before.num_rows} documents, because INPUT does not hold "
            "them any more. Use --add to keep them, or --allow-deletes if they should go."
        )
    kept = before["id"].filter(keep)
    _add_kept(run, tables, old, kept.combine_chunks())
    same = before.append_column("keep", keep).join(now, "id", right_suffix="_now", join_type="inner")
    changed = int(pc.sum(pc.not_equal(same["content_hash"], same["content_hash_now"])).as_py() or 0)
    added = now.num_rows - same.num_rows
    total = now.num_rows + len(kept)
    return {"documents": total, "added": added, "changed": changed, "removed": removed}


def _unreadable_today(before: pa.Table, failed: pa.Table) -> pa.ChunkedArray:
    """Which documents of the parent are in files, or rows of files, that could not be read now."""
    files, rows = [], []
    for path, item in zip(failed["document"].to_pylist(), failed["item"].to_pylist(), strict=True):
        if item == path:
            files.append(path)
        else:
            rows.append(document_id(path, item))
    in_files = pc.is_in(before["path"], pa.array(files, pa.string()))
    return pc.or_(in_files, pc.is_in(before["id"], pa.array(rows, pa.string())))


def _add_kept(run: Run, tables: dict[str, list[list[Part]]], old: Result, kept: pa.Array) -> None:
    """Copy the kept documents and their chunks out of the parent's parts; whole parts are shared."""
    if not len(kept):
        return
    pairs = zip(old.tables["documents"], old.tables["text_units"], strict=True)
    inputs = [(documents, units, kept) for documents, units in pairs]
    # Without empty groups: they would add up, run after run, and make each look like a change.
    written = [w for w in run.executor.map("keep", _keep_rows, inputs) if w.get("documents")]
    for name, groups in by_input(written, "documents", "text_units", "failures").items():
        tables[name] += groups


def _keep_rows(store: Store, x: tuple[list[Part], list[Part], pa.Array]) -> Iterator[Mapping[str, pa.Table]]:
    documents, units, kept = x
    for name, parts, column in (("documents", documents, "id"), ("text_units", units, "document_id")):
        for part in parts:
            table = read_part(store, part)
            yield {name: table.filter(pc.is_in(table[column], kept))}


def _all(run: Run, groups: list[list[Part]], of: pa.Schema) -> pa.Table:
    return read_table(run.store, [p for group in groups for p in group], None, of)


def _refuse_nothing(failed: pa.Table) -> None:
    if not failed.num_rows:
        return
    shown = "; ".join(f"{r['document']}: {r['error']}" for r in failed.slice(0, 5).to_pylist())
    raise InputError(f"none of the {failed.num_rows} files of INPUT could be read: {shown}")


def _split_bytes(total: int) -> int:
    """Bytes a reader takes at once: a power of two, so that a corpus that grows keeps its splits."""
    size = 1 << 19
    while size < total / 1024:
        size *= 2
    return size


def _hidden(path: str, base: str) -> bool:
    relative = posixpath.relpath(path, base) if base else path
    return any(step.startswith(".") for step in relative.split("/"))
