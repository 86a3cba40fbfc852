"""Documents and chunks: INPUT is listed on the driver and read by the executor. Rows that are given as such:
`read_rows.py`.

INPUT is the whole wanted set: a document that is not in it goes (`add` keeps it). A document that
cannot be read today keeps its last version and is a failure; a listing that fails is fatal.
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
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.base.urls import protocol_of, without_secrets
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus import byte_ranges
from graphrag_ray.corpus.byte_ranges import Segment, Stretch
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.parse import documents_of_stretch, segments_of
from graphrag_ray.corpus.readers import READERS, documents_in
from graphrag_ray.corpus.table_rows import HEAD_BYTES
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.executor import Parted, Tables
from graphrag_ray.engine.given_rows import GivenRows
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import document_parts
from graphrag_ray.indexing.stages.document_parts import (
    inputs_of,
    keep_and_count,
    leave_out,
    pairs_of,
    read_failures,
    refuse_nothing,
    regrouped,
    tell_read,
)
from graphrag_ray.indexing.stages.list_input import InputFile, look_at, skipped_indexes
from graphrag_ray.indexing.stages.read_rows import read_rows
from graphrag_ray.indexing.stages.short_ids import GROUP, IDS, columns_of, prefixes_of
from graphrag_ray.indexing.step_result import Result, joined, rows_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.remote_files import is_storage_error, open_elsewhere

SPLIT = ("split_documents", "split_text_units", "split_failures")
"""Tables of the step by which the next run knows what it need not read."""

KINDS_TOLD = 5
"""Extensions of skipped files that are named."""

WHOLE_BYTES = 8_000_000
"""Files up to this size are fetched in one piece, where it is known."""

_NO_RANGES = (
    "it is large, and its server sends no parts of files (HTTP range requests). Download it and index the "
    "folder, or put it into an object store"
)

SCAN_BYTES = 64 << 20
"""Bytes of a .jsonl file whose lines a task counts."""
_LINE_BYTES = 1 << 20
"""Bytes fetched at once of the rest of a line that began in these."""

_SEGMENT = pa.schema(
    [*((name, pa.int64()) for name in ("start", "end", "rows", "lines", "size")), ("rank", pa.string())]
)


@dataclass(frozen=True)
class Piece:
    """stretch: None for a whole file; size: bytes; rank: a hash of where it begins."""

    file: InputFile
    size: int
    rank: str
    stretch: Stretch | None = None

    @property
    def path(self) -> str:
        return self.file.path


def pieces_of(
    run: Run, files: Sequence[InputFile], options: Mapping[str, Any], limit: int
) -> tuple[list[Piece], Result]:
    """Pieces in the order of the files and their rows; and table segments, which tells the next run how files
    that have not changed are cut.

    options: of INPUT's storage; limit: bytes of a piece
    """
    scanned = [
        (n, file, start, min(start + step, file.size))
        for n, file in enumerate(files)
        if _extension(file) in byte_ranges.EXTENSIONS and file.size > 2 * limit
        for step in [SCAN_BYTES if _extension(file) == ".jsonl" else file.size]
        for start in range(0, file.size, step)
    ]
    told = [[file.path, file.seen_as, *span] if file.seen_as else None for _, file, *span in scanned]
    how = [run.settings.kept()["input"], limit]
    known = run.taken_over("read", scanned, how, ("segments",), told=told)
    in_parts = {n: _has_parts(files[n], options) for n in {n for n, *_ in known.new}}
    scan = partial(_scan, run.settings.input, options, limit)
    inputs = [x if in_parts[x[0]] else None for x in known.new]
    try:
        written = run.map("read", scan, inputs)
    except ProcessDied:
        written = [{} for _ in inputs]  # the tasks that read these files find out which one is to blame
    result = known.with_new(run.store, written)
    groups = result.tables["segments"]
    hashes = [hash_ if of else "" for hash_, of in zip(result.made_from["segments"], groups, strict=True)]
    segments: dict[int, list[Segment]] = {}
    for (n, *_), parts in zip(scanned, groups, strict=True):
        rows = read_table(run.store, parts, None, _SEGMENT).to_pylist()
        segments.setdefault(n, []).extend(Segment(**row) for row in rows)
    pieces = [piece for n, file in enumerate(files) for piece in _pieces(file, segments.get(n, []), limit)]
    return pieces, replace(result, made_from={"segments": hashes})


def _has_parts(file: InputFile, options: Mapping[str, Any]) -> bool:
    """Whether a part of a file can be had by itself. An HTTP server may send all of it whatever it is asked
    for, and whoever asked would hold all of it in memory: so its last byte is asked for first, and what comes
    is not read if it is more than that."""
    if protocol_of(file.url) not in ("http", "https"):
        return True
    try:
        fs, path = open_elsewhere(file.url, options)
        with fs.open(path, "rb", size=file.size, cache_type="none") as stream:
            stream.seek(file.size - 1)
            return len(stream.read(1)) == 1
    except Exception:  # noqa: BLE001 - read whole, it is told why it cannot be
        return False


def _pieces(file: InputFile, segments: Sequence[Segment], limit: int) -> Iterator[Piece]:
    """The whole file where it cannot be said of all of it where rows begin."""
    segments = sorted(segments, key=lambda s: s.start)
    whole = _extension(file) != ".jsonl" or (segments and segments[-1].end == file.size)
    if not whole or not byte_ranges.without_gap(segments):
        yield Piece(file, max(1, file.size), stable_id("file", file.path))
        return
    segments, row, line = byte_ranges.joined(segments), 1, 1
    for batch in stable_batches([s.rank for s in segments], [s.size for s in segments], limit):
        own = [segments[i] for i in batch]
        stretch = Stretch(own[0].start, own[-1].end, row, line)
        size = max(1, sum(s.size for s in own))
        yield Piece(file, size, stable_id("file", file.path, own[0].rank), stretch)
        row, line = row + sum(s.rows for s in own), line + sum(s.lines for s in own)


def _scan(
    read_as: index_settings.Input,
    options: Mapping[str, Any],
    limit: int,
    store: Store,
    x: tuple[int, InputFile, int, int] | None,
) -> Iterator[Tables]:
    """The segments of a .parquet file, or of the lines of a .jsonl file that begin between two places; none
    of a file that can only be read whole."""
    if x is None:
        return
    _, file, start, end = x
    try:
        fs, path = open_elsewhere(file.url, options)
        if _extension(file) == ".jsonl":
            segments = _jsonl_segments(fs, path, file.size, start, end, limit, read_as.text_column)
        else:
            with fs.open(path, "rb") as stream:
                segments = segments_of(stream, read_as)
    except Exception:  # noqa: BLE001 - read whole, it is told why it cannot be
        return
    yield {"segments": pa.Table.from_pylist([asdict(s) for s in segments], schema=_SEGMENT)}


def _jsonl_segments(
    fs: Any, path: str, size: int, start: int, end: int, limit: int, text_column: str
) -> list[Segment]:
    data = bytearray(fs.cat_file(path, max(start - 1, 0), end))
    if len(data) != end - max(start - 1, 0):
        return []  # a server that sends more than it is asked for
    if start == 0:
        head = (
            data[:HEAD_BYTES] if end >= min(HEAD_BYTES, size) else fs.cat_file(path, 0, min(HEAD_BYTES, size))
        )
        if not byte_ranges.jsonl_is_split(bytes(head), text_column):
            return []
    begin = data.find(b"\n") + 1 if start else 0
    if (start and not begin) or begin == len(data):
        return []  # no line begins here
    while not data.endswith(b"\n") and end < size:
        more = fs.cat_file(path, end, min(end + _LINE_BYTES, size))
        stop = more.find(b"\n") + 1 or len(more)
        if not more:
            return []
        data += more[:stop]
        end += stop
    lines = byte_ranges.lines_of(bytes(data[begin:]))
    return byte_ranges.jsonl_segments(lines, max(start - 1, 0) + begin, limit)


def read_stretch(fs: Any, path: str, stretch: Stretch) -> bytes:
    """The bytes of a stretch of a .jsonl file. Raises OSError where they are not there any more."""
    data: bytes = fs.cat_file(path, stretch.start, stretch.end)
    if len(data) != stretch.end - stretch.start:
        raise OSError("it has changed while it was read")
    return data


def _extension(file: InputFile) -> str:
    return posixpath.splitext(file.path)[1].lower()


def read(run: Run, given: str | GivenRows, *, add: bool, allow_deletes: bool) -> Result:
    """Tables documents and text_units, and failures, in one group.

    Documents lie in pairs of parts: some consecutive documents, and all chunks of these. A group is a few
    consecutive pairs, so it never parts a document from its chunks; it is the input of a task in each later
    step, whatever the files were.
    """
    how = partial(read_rows, run, given) if isinstance(given, GivenRows) else partial(_read_files, run, given)
    return run.step("read", None, partial(how, add, allow_deletes))


def _read_files(run: Run, input_url: str, add: bool, allow_deletes: bool) -> Result:
    options = run.settings.input_options(input_url, run.store.url)
    before = run.before("read") or Result()
    readers_before = dict(of.split(" ", 1) for of in before.made_from.get("readers", ()))
    listing = look_at(input_url, run.store.url, options, readers_before)
    files = listing.files
    for extension, package in sorted(readers_before.items()):
        n = sum(_extension(file) == extension for file in files)
        if n and extension[1:] not in READERS:
            run.observer.note(
                f"No reader for {extension}: install the package {package}. Until then, "
                f"{plural(n, f'{extension} file')} of INPUT cannot be read; the index keeps their documents."
            )
    if listing.others:
        kinds = sorted(listing.others.items(), key=lambda kind: (-kind[1], kind[0]))
        named = ", ".join(f"{extension or 'no extension'} {n:,}" for extension, n in kinds[:KINDS_TOLD])
        more = ", …" if len(kinds) > KINDS_TOLD else ""
        n = sum(listing.others.values())
        run.observer.note(f"{plural(n, 'file')} of other kinds skipped ({named}{more})")
    if listing.indexes:
        run.observer.note(f"{skipped_indexes(listing.indexes)}: what they keep is no document of INPUT")
    if listing.own:
        run.observer.note(f"The index lies in INPUT ({listing.own}): its own files are not read.")
    limit = document_parts.split_bytes(sum(f.size for f in files))
    pieces, segments = pieces_of(run, files, options, limit)
    splits = stable_batches([p.rank for p in pieces], [p.size for p in pieces], limit)
    read, n_new = _splits_read(run, options, limit, [[pieces[i] for i in batch] for batch in splits])
    tables = {name: list(read.tables[f"split_{name}"]) for name in ("documents", "text_units", "failures")}
    # Splits of before have been looked through.
    is_new = n_new or run.before("read") is None or before.counts.get("repeated")
    is_named = run.settings.input.id_column is not None and any(piece.stretch for piece in pieces)
    repeated = _leave_out_repeated(run, tables) if is_new and is_named else 0
    if run.parent is None and not any(tables["documents"]):
        refuse_nothing(run, tables["failures"], "file")
    counts = keep_and_count(run, tables, listing.base, add, allow_deletes)
    run.inputs = inputs_of(run, listing.base, add)
    counts |= {"files": len(files), "chunks": rows_of(tables["text_units"])}
    counts |= {"repeated": repeated} if repeated else {}
    return joined([read, segments, Result(regrouped(tables), counts)])


def _leave_out_repeated(run: Run, tables: dict[str, list[list[Part]]]) -> int:
    """Of rows of a large file that have the same id, and were read by different tasks, leave the first. The
    tables have a group for each pair of parts then: no task writes two rows with one id."""
    pairs = [
        pair
        for group in zip(tables["documents"], tables["text_units"], strict=True)
        for pair in pairs_of(*group)
    ]
    tables["documents"], tables["text_units"] = ([pair[at] for pair in pairs] for at in (0, 1))
    ids = columns_of(run.store, tables["documents"], IDS)
    keys, group = ids["id"].to_numpy(), ids[GROUP].to_numpy()
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order[1:]] == keys[order[:-1]]]
    rest: dict[int, set[str]] = {}
    failed: list[Unreadable] = []
    for n in np.unique(group[again]).tolist():
        rows = read_table(run.store, tables["documents"][n], ["id", "path", "row"], schema.DOCUMENTS)
        rows = rows.filter(
            pc.is_in(pa.array(prefixes_of(rows["id"])), pa.array(keys[again[group[again] == n]]))
        )
        rest[n] = set(rows["id"].to_pylist())
        for row in rows.to_pylist():
            failed.append(
                Unreadable(row["path"], row["row"], f"a row has the id {row['row']!r} of an earlier row")
            )
    if rest:
        leave_out(run, tables, rest)
        tables["failures"].append(run.write("read", "failures", [read_failures(failed)]))
    return len(failed)


def _splits_read(
    run: Run, options: Mapping[str, Any], limit: int, inputs: Sequence[Sequence[Piece]]
) -> tuple[Result, int]:
    """Tables split_documents, split_text_units and split_failures, by split; and how many splits were read. A
    split with failures is read by every run."""
    settings, kept = run.settings, run.settings.kept()
    model = settings.model(settings.model_name("extract"))
    how = [kept["input"], kept["chunking"], vocabulary_for(model.model, model.tokenizer).name, limit]
    # What the documents of a split depend on; None: the storage does not say whether it changed.
    seen = [
        [
            [p.file.path, p.file.seen_as, p.stretch and asdict(p.stretch), *filter(None, [p.file.reader])]
            for p in split
        ]
        if all(p.file.seen_as for p in split)
        else None
        for split in inputs
    ]
    known = run.taken_over("read", inputs, how, SPLIT, told=seen)
    told = tell_read(run, sum(map(len, known.new)), lambda number: len(known.new[number]))
    read = partial(_read_split, settings, options, limit)
    one_by_one = Parted[Sequence[Piece]](lambda split: [[piece] for piece in split], _unread)
    written = run.map("read", read, known.new, one_by_one, told)
    named = [{f"split_{name}": parts for name, parts in done.items()} for done in written]
    result = known.with_new(run.store, named)
    failures = result.tables["split_failures"]
    hashes = ["" if failed else of for of, failed in zip(result.made_from[SPLIT[0]], failures, strict=True)]
    used = {f"{_extension(p.file)} {p.file.reader}" for split in inputs for p in split if p.file.reader}
    return replace(result, made_from={SPLIT[0]: hashes, "readers": sorted(used)}), len(known.new)


def _read_split(
    settings: Settings, options: Mapping[str, Any], limit: int, store: Store, pieces: Sequence[Piece]
) -> Iterator[Tables]:
    names: dict[str, set[str]] = {piece.path: set() for piece in pieces}
    found = (
        one
        for piece in pieces
        for one in read_file(piece.file, settings, options, piece.stretch, names[piece.path])
    )
    return document_parts.document_parts(found, settings, limit)


def read_file(
    file: InputFile,
    settings: Settings,
    options: Mapping[str, Any] | None = None,
    stretch: Stretch | None = None,
    names: set[str] | None = None,
) -> Iterator[Document | Unreadable]:
    """The documents of a file, or of a stretch of it, and what in it is none; an error that nobody foresaw
    costs what is left of the file. options: of INPUT's storage; names: see `documents_of_stretch`."""
    try:
        with _opened(file, options or {}, stretch) as stream:
            if stretch is None:
                yield from documents_in(file.path, stream, settings.input, file.reader)
            else:
                known = set() if names is None else names
                yield from documents_of_stretch(file.path, stream, settings.input, stretch, known)
    except BaseException as e:
        if isinstance(e, ValueError) and "range requests" in str(e):  # fsspec has no type of its own for it
            why = _NO_RANGES
        elif is_storage_error(e):
            why = without_secrets(str(e), file.url)
        elif is_unforeseen(e):
            why = note_bug(e)
        else:
            raise
        yield Unreadable(file.path, "", f"cannot be read: {why}")


def _opened(file: InputFile, options: Mapping[str, Any], stretch: Stretch | None) -> BinaryIO:
    fs, path = open_elsewhere(file.url, options)
    if isinstance(fs, LocalFileSystem) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is a named pipe, a socket or a device, not a regular file")
    if stretch is not None and file.path.lower().endswith(".jsonl"):
        return io.BytesIO(read_stretch(fs, path, stretch))
    if 0 < file.size <= WHOLE_BYTES:
        # One request of an object store; opening a file asks for its size first.
        return io.BytesIO(fs.cat_file(path))
    return fs.open(path, "rb")  # type: ignore[no-any-return]


def _unread(split: Sequence[Piece], why: str) -> Mapping[str, pa.Table]:
    """What stands for a file, or a stretch of one, of which processes die."""
    unread = []
    for piece in split:
        what = (
            "cannot be read" if piece.stretch is None else f"rows from {piece.stretch.row:,} on are not read"
        )
        unread.append(Unreadable(piece.path, "", f"{what}: {why}"))
    return {"failures": read_failures(unread)}
