"""Read INPUT into documents and chunks. The driver lists and splits files, and the executor reads them.

A document that cannot be read in this run keeps its last version and becomes a failure. If INPUT cannot be
listed, the run ends. `read_rows.py` reads rows passed from Python.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from graphrag_ray.base import index_settings, schema
from graphrag_ray.base.errors import ProcessDied
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.base.urls import protocol_of, redact_urls
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus import input_splits
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.document_context import identify
from graphrag_ray.corpus.input_splits import Segment, Split
from graphrag_ray.corpus.parse import documents_from_split, parquet_segments_of
from graphrag_ray.corpus.readers import READERS, documents_in
from graphrag_ray.corpus.table_rows import HEAD_BYTES
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.executor import InputSplitter, Tables
from graphrag_ray.engine.input_rows import InputRows
from graphrag_ray.graph.stable_batches import stable_batches
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import document_parts
from graphrag_ray.indexing.stages.input_listing import InputFile, scan_input, skipped_indexes
from graphrag_ray.indexing.stages.read_rows import read_rows
from graphrag_ray.indexing.stages.short_ids import GROUP, IDS, id_keys, load_integer_columns
from graphrag_ray.indexing.step_result import Result, count_rows, join_results
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.remote_files import is_storage_error, open_external

SPLIT_TABLES = ("split_documents", "split_text_units", "split_failures")
"""Tables by which the next run recognises splits that it can reuse."""
MAX_LISTED_EXTENSIONS = 5
WHOLE_BYTES = 8_000_000
"""Files of known size up to this limit are fetched with one request."""
SCAN_BYTES = 64 << 20
"""Size of the byte range of a .jsonl file in which one task counts lines."""
_LINE_BYTES = 1 << 20
"""Number of bytes per request when the last line of a scan is completed."""
_NO_RANGES = (
    "the file is large, and its server does not support HTTP range requests. Download it and index the "
    "folder, or put it into an object store"
)
_SEGMENT = pa.schema(
    [*((name, pa.int64()) for name in ("start", "end", "rows", "lines", "size")), ("rank", pa.string())]
)


@dataclass(frozen=True)
class Piece:
    """A file, or a range of its rows if `split` is set. `rank` is a hash of its start."""

    file: InputFile
    size: int
    rank: str
    split: Split | None = None

    @property
    def version(self) -> list[Any]:
        split, reader = self.split and asdict(self.split), self.file.reader
        return [self.rank, self.file.version_hash, split, *([reader] if reader else [])]


def read_input(run: Run, source: str | InputRows, *, add: bool, allow_deletes: bool) -> Result:
    """Read INPUT into tables documents, text_units and failures.

    Parts come in pairs: some consecutive documents, and all of their chunks. A group consists of a few
    consecutive pairs, independently of the files, and is the input of one task in each later step.
    """
    if isinstance(source, InputRows):
        return run.step("read", None, partial(read_rows, run, source, add, allow_deletes))
    return run.step("read", None, partial(_read_files, run, source, add, allow_deletes))


def _read_files(run: Run, input_url: str, add: bool, allow_deletes: bool) -> Result:
    options = run.settings.input_options(input_url, run.store.url)
    before = run.parent_result("read") or Result()
    readers_before = dict(entry.split(" ", 1) for entry in before.made_from.get("readers", ()))
    listing = scan_input(input_url, run.store.url, options, readers_before)
    files, note = listing.files, run.observer.message
    for extension, package in sorted(readers_before.items()):
        n = sum(_extension(file) == extension for file in files)
        if n and extension[1:] not in READERS:
            note(
                f"No reader for {extension}: install the package {package}. Until then, "
                f"{plural(n, f'{extension} file')} of INPUT cannot be read. The index keeps their documents."
            )
    if unknown := listing.unknown_extensions:
        by_count = sorted(unknown.items(), key=lambda kind: (-kind[1], kind[0]))
        listed = [f"{extension or 'no extension'} {n:,}" for extension, n in by_count[:MAX_LISTED_EXTENSIONS]]
        ellipsis = ["…"] if len(by_count) > MAX_LISTED_EXTENSIONS else []
        types = ", ".join(listed + ellipsis)
        note(f"Skipped {plural(sum(unknown.values()), 'file')} of other types ({types})")
    if listing.nested_indexes:
        note(f"{skipped_indexes(listing.nested_indexes)}: the files of an index are not read as documents")
    if listing.own_index:
        note(f"The index is inside INPUT ({listing.own_index}). Its files are not read as documents.")
    limit = document_parts.split_bytes(sum(file.size for file in files))
    pieces, segments = _split_files(run, files, options, limit)
    splits = stable_batches([p.rank for p in pieces], [p.size for p in pieces], limit)
    read, n_new = _read_splits(run, options, limit, [[pieces[i] for i in batch] for batch in splits])
    tables = {name: list(read.tables[f"split_{name}"]) for name in ("documents", "text_units", "failures")}
    # Reused splits alone cannot contain repeated ids: the run that read them checked that.
    is_new = n_new or run.parent_result("read") is None or before.counts.get("repeated")
    has_ids = run.settings.input.id_column is not None and any(piece.split for piece in pieces)
    repeated = _drop_repeated_ids(run, tables) if is_new and has_ids else 0
    counts = document_parts.merge_with_parent(run, tables, "file", listing.folder_hash, add, allow_deletes)
    counts |= {"files": len(files), "chunks": count_rows(tables["text_units"])}
    if repeated:
        counts["repeated"] = repeated
    return join_results([read, segments, Result(document_parts.regroup(tables), counts)])


def _split_files(
    run: Run, files: Sequence[InputFile], options: Mapping[str, Any], limit: int
) -> tuple[list[Piece], Result]:
    """Split files into pieces of at most `limit` bytes, in the order of files and rows.

    Also returns table segments, which the next run reuses for unchanged files.
    """
    scans = [
        (n, file, start, min(start + step, file.size))
        for n, file in enumerate(files)
        if _extension(file) in input_splits.SPLITTABLE_EXTENSIONS and file.size > 2 * limit
        for step in [SCAN_BYTES if _extension(file) == ".jsonl" else file.size]
        for start in range(0, file.size, step)
    ]
    versions = [
        [stable_id("file", file.path), file.version_hash, *span] if file.version_hash else None
        for _, file, *span in scans
    ]
    depends_on = [snapshot_settings(run.settings)["input"], limit]
    plan = run.reuse_plan("read", scans, depends_on, ("segments",), identities=versions)
    has_ranges = {n: _supports_ranges(files[n], options) for n in {n for n, *_ in plan.new_inputs}}
    scan = partial(_scan, run.settings.input, options, limit)
    inputs = [scanned if has_ranges[scanned[0]] else None for scanned in plan.new_inputs]
    try:
        written = run.map("read", scan, inputs)
    except ProcessDied:
        written = [{} for _ in inputs]  # The tasks that read the files identify the one responsible.
    result = plan.merge_new(run.store, written)
    groups = result.tables["segments"]
    pairs = zip(result.made_from["segments"], groups, strict=True)
    hashes = [hash_ if parts else "" for hash_, parts in pairs]
    segments: dict[int, list[Segment]] = {}
    for (n, *_), parts in zip(scans, groups, strict=True):
        rows = read_table(run.store, parts, None, _SEGMENT).to_pylist()
        segments.setdefault(n, []).extend(Segment(**row) for row in rows)
    pieces = [piece for n, file in enumerate(files) for piece in _pieces(file, segments.get(n, []), limit)]
    return pieces, replace(result, made_from={"segments": hashes})


def _supports_ranges(file: InputFile, options: Mapping[str, Any]) -> bool:
    """Whether the storage can send a part of a file.

    An HTTP server without range requests sends the whole file, which would fill the memory. So this requests
    the last byte, and stops reading if more arrives.
    """
    if protocol_of(file.url) not in ("http", "https"):
        return True
    try:
        fs, path = open_external(file.url, options)
        with fs.open(path, "rb", size=file.size, cache_type="none") as stream:
            stream.seek(file.size - 1)
            return len(stream.read(1)) == 1
    except Exception:  # noqa: BLE001 - reading the whole file reports the reason
        return False


def _pieces(file: InputFile, segments: Sequence[Segment], limit: int) -> Iterator[Piece]:
    """Yield the pieces of a file, or the whole file as one piece if its segments do not cover it."""
    segments = sorted(segments, key=lambda s: s.start)
    is_covered = _extension(file) != ".jsonl" or (segments and segments[-1].end == file.size)
    if not is_covered or not input_splits.are_contiguous(segments):
        yield Piece(file, max(1, file.size), stable_id("file", file.path))
        return
    segments, row, line = input_splits.join_segments(segments), 1, 1
    for batch in stable_batches([s.rank for s in segments], [s.size for s in segments], limit):
        members = [segments[i] for i in batch]
        split = Split(members[0].start, members[-1].end, row, line)
        size = max(1, sum(s.size for s in members))
        yield Piece(file, size, stable_id("file", file.path, members[0].rank), split)
        row, line = row + sum(s.rows for s in members), line + sum(s.lines for s in members)


def _scan(
    input_settings: index_settings.Input,
    options: Mapping[str, Any],
    limit: int,
    store: Store,
    scanned: tuple[int, InputFile, int, int] | None,
) -> Iterator[Tables]:
    """Find the segments of a .parquet file, or of the lines of a .jsonl file that begin in a byte range.

    Finds none in a file that can only be read as a whole.
    """
    if scanned is None:
        return
    _, file, start, end = scanned
    try:
        fs, path = open_external(file.url, options)
        if _extension(file) == ".jsonl":
            segments = _jsonl_segments(fs, path, file.size, start, end, limit, input_settings.text_column)
        else:
            with fs.open(path, "rb") as stream:
                segments = parquet_segments_of(stream, input_settings)
    except Exception:  # noqa: BLE001 - reading the whole file reports the reason
        return
    yield {"segments": pa.Table.from_pylist([asdict(s) for s in segments], schema=_SEGMENT)}


def _jsonl_segments(
    fs: Any, path: str, size: int, start: int, end: int, limit: int, text_column: str
) -> list[Segment]:
    data = bytearray(fs.cat_file(path, max(start - 1, 0), end))
    if len(data) != end - max(start - 1, 0):
        return []  # The server sent more than was requested.
    if start == 0:
        head_bytes = min(HEAD_BYTES, size)
        head = data[:HEAD_BYTES] if end >= head_bytes else fs.cat_file(path, 0, head_bytes)
        if not input_splits.can_split_jsonl(bytes(head), text_column):
            return []
    begin = data.find(b"\n") + 1 if start else 0
    if (start and not begin) or begin == len(data):
        return []  # No line begins in this range.
    while not data.endswith(b"\n") and end < size:
        block = fs.cat_file(path, end, min(end + _LINE_BYTES, size))
        stop = block.find(b"\n") + 1 or len(block)
        if not block:
            return []
        data += block[:stop]
        end += stop
    lines = input_splits.iter_lines(bytes(data[begin:]))
    return input_splits.jsonl_segments(lines, max(start - 1, 0) + begin, limit)


def _extension(file: InputFile) -> str:
    return posixpath.splitext(file.path)[1].lower()


def _drop_repeated_ids(run: Run, tables: dict[str, list[list[Part]]]) -> int:
    """Keep only the first row of large files with an id, if different tasks read several.

    Afterwards the tables have a group for each pair of parts. No task writes two rows with the same id.
    """
    groups = zip(tables["documents"], tables["text_units"], strict=True)
    pairs = [pair for group in groups for pair in document_parts.pairs_of(*group)]
    tables["documents"], tables["text_units"] = ([pair[i] for pair in pairs] for i in (0, 1))
    ids = load_integer_columns(run.store, tables["documents"], IDS)
    keys, group_of = ids["id"].to_numpy(), ids[GROUP].to_numpy()
    order = np.argsort(keys, kind="stable")
    repeated = order[1:][keys[order[1:]] == keys[order[:-1]]]
    dropped: dict[int, set[str]] = {}
    failed: list[Unreadable] = []
    for n in np.unique(group_of[repeated]).tolist():
        rows = read_table(run.store, tables["documents"][n], ["id", "path", "row"], schema.DOCUMENTS)
        wanted = pa.array(keys[repeated[group_of[repeated] == n]])
        rows = rows.filter(pc.is_in(pa.array(id_keys(rows["id"])), wanted))
        dropped[n] = set(rows["id"].to_pylist())
        for row in rows.to_pylist():
            reason = f"a row has the id {row['row']!r} of an earlier row"
            failed.append(Unreadable(row["path"], row["row"], reason))
    if dropped:
        document_parts.drop_documents(run, tables, dropped)
        tables["failures"].append(run.write("read", "failures", [document_parts.read_failures(failed)]))
    return len(failed)


def _read_splits(
    run: Run, options: Mapping[str, Any], limit: int, splits: Sequence[Sequence[Piece]]
) -> tuple[Result, int]:
    """Return `SPLIT_TABLES` by split, and the number of splits that were read rather than reused.

    Splits with failures are read again in every run.
    """
    settings, stored = run.settings, snapshot_settings(run.settings)
    model = settings.model(settings.model_name("extract"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    versions = [
        [p.version for p in split] if all(p.file.version_hash for p in split) else None for split in splits
    ]
    depends_on = [stored["input"], stored["chunking"], vocabulary, limit]
    plan = run.reuse_plan("read", splits, depends_on, SPLIT_TABLES, identities=versions)
    n_pieces = [len(split) for split in plan.new_inputs]
    on_read = document_parts.progress_reporter(run, sum(n_pieces), n_pieces.__getitem__)
    one_by_one = InputSplitter[Sequence[Piece]](lambda split: [[piece] for piece in split], _crash_failures)
    written = run.map(
        "read", partial(_read_split, settings, options, limit), plan.new_inputs, one_by_one, on_read
    )
    written = [{f"split_{name}": parts for name, parts in tables.items()} for tables in written]
    result = plan.merge_new(run.store, written)
    hashes = zip(result.made_from[SPLIT_TABLES[0]], result.tables["split_failures"], strict=True)
    readers = {f"{_extension(p.file)} {p.file.reader}" for split in splits for p in split if p.file.reader}
    made_from = {SPLIT_TABLES[0]: ["" if failed else h for h, failed in hashes], "readers": sorted(readers)}
    return replace(result, made_from=made_from), len(plan.new_inputs)


def _read_split(
    settings: Settings, options: Mapping[str, Any], limit: int, store: Store, pieces: Sequence[Piece]
) -> Iterator[Tables]:
    names: dict[str, set[str]] = {piece.file.path: set() for piece in pieces}
    documents = (
        document
        for piece in pieces
        for document in read_file(piece.file, settings, options, piece.split, names[piece.file.path])
    )
    return document_parts.chunk_documents(documents, settings, limit)


def read_file(
    file: InputFile,
    settings: Settings,
    options: Mapping[str, Any] | None = None,
    split: Split | None = None,
    names: set[str] | None = None,
) -> Iterator[Document | Unreadable]:
    """Yield the documents of a file, or of a split of it, and everything that cannot be read.

    After an unexpected error, the remainder of the file is not read.

    Args:
        options: Storage options of INPUT.
        names: See `documents_from_split`.
    """
    try:
        with _open(file, options or {}, split) as stream:
            if split is None:
                documents = documents_in(file.path, stream, settings.input, file.reader)
            else:
                names = set() if names is None else names
                documents = documents_from_split(file.path, stream, settings.input, split, names)
            for found in documents:
                yield identify(found, settings.input) if isinstance(found, Document) else found
    except BaseException as e:
        if isinstance(e, ValueError) and "range requests" in str(e):  # fsspec has no special type for it.
            reason = _NO_RANGES
        elif is_storage_error(e):
            reason = redact_urls(str(e), file.url)
        elif is_unexpected(e):
            reason = record_bug(e)
        else:
            raise
        yield Unreadable(file.path, "", f"cannot be read: {reason}")


def _open(file: InputFile, options: Mapping[str, Any], split: Split | None) -> BinaryIO:
    fs, path = open_external(file.url, options)
    if isinstance(fs, LocalFileSystem) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is a named pipe, a socket or a device, not a regular file")
    if split is not None and _extension(file) == ".jsonl":
        return io.BytesIO(read_split_bytes(fs, path, split))
    if 0 < file.size <= WHOLE_BYTES:
        # This takes a single request to an object store. Opening a file would request its size first.
        return io.BytesIO(fs.cat_file(path))
    return fs.open(path, "rb")  # type: ignore[no-any-return]


def read_split_bytes(fs: Any, path: str, split: Split) -> bytes:
    """Read the bytes of a split of a .jsonl file. Raises OSError if they no longer exist."""
    data: bytes = fs.cat_file(path, split.start, split.end)
    if len(data) != split.end - split.start:
        raise OSError("it changed while it was being read")
    return data


def _crash_failures(pieces: Sequence[Piece], error: str) -> Mapping[str, pa.Table]:
    failed = []
    for piece in pieces:
        rows = f"rows from {piece.split.row:,} on " if piece.split else ""
        failed.append(Unreadable(piece.file.path, "", f"{rows}cannot be read: {error}"))
    return {"failures": document_parts.read_failures(failed)}
