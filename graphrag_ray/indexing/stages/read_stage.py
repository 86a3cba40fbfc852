"""Documents and chunks: INPUT is listed on the driver and read by the executor. Rows that are given as such:
`read_rows.py`.

INPUT is the whole wanted set: a document that is not in it goes (`add` keeps it). A document that
cannot be read today keeps its last version and is a failure; a listing that fails is fatal.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from posixpath import splitext
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from graphrag_ray.base import schema
from graphrag_ray.base.ids import document_id, stable_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.base.urls import without_secrets
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.byte_ranges import Stretch
from graphrag_ray.corpus.document import Document, Unreadable
from graphrag_ray.corpus.parse import documents_of_stretch
from graphrag_ray.corpus.readers import READERS, documents_in
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.executor import Parted
from graphrag_ray.engine.given_rows import GivenRows
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import document_parts
from graphrag_ray.indexing.stages.document_parts import read_failures, refuse_nothing, regrouped, tell_read
from graphrag_ray.indexing.stages.input_splits import Piece, pieces_of, read_stretch, wants_ranges
from graphrag_ray.indexing.stages.kept_documents import inputs_of, keep_and_count
from graphrag_ray.indexing.stages.list_input import InputFile, look_at, skipped_indexes
from graphrag_ray.indexing.stages.read_rows import read_rows
from graphrag_ray.indexing.step_result import Result, fingerprint_of, joined, rows_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.remote_files import is_storage_error, open_elsewhere

SPLIT = ("split_documents", "split_text_units", "split_failures", "split_row_names")
"""Tables of the step by which the next run knows what it need not read."""

KINDS_TOLD = 5
"""Extensions of skipped files that are named."""

WHOLE_BYTES = 8_000_000
"""Files up to this size are fetched in one piece, where it is known."""

_NO_RANGES = (
    "it is large, and its server sends no parts of files (HTTP range requests). Download it and index the "
    "folder, or put it into an object store"
)

_ROW_NAMES = pa.schema(
    [("hash", pa.uint64()), ("file", pa.string()), ("name", pa.string()), ("start", pa.int64())]
)
"""What rows of stretches are called by `input.id_column`. hash: of file and name; file: a hash of its path;
start: of the stretch. It is needed until all is read."""


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
    readers_before = dict(
        of.split(" ", 1) for of in (run.before("read") or Result()).made_from.get("readers", ())
    )
    listing = look_at(input_url, run.store.url, options, readers_before)
    files = listing.files
    for extension, package in sorted(readers_before.items()):
        n = sum(file.path.lower().endswith(extension) for file in files)
        if n and extension[1:] not in READERS:
            run.observer.note(
                f"No reader for {extension}: install the package {package}. Until then, "
                f"{plural(n, f'{extension} file')} of INPUT cannot be read; the index keeps their documents."
            )
    if listing.others:
        run.observer.note(_skipped(listing.others))
    if listing.indexes:
        run.observer.note(f"{skipped_indexes(listing.indexes)}: what they keep is no document of INPUT")
    if listing.own:
        run.observer.note(f"The index lies in INPUT ({listing.own}): its own files are not read.")
    limit = document_parts.split_bytes(sum(f.size for f in files))
    pieces, segments = pieces_of(run, files, options, limit)
    splits = stable_batches([p.rank for p in pieces], [p.size for p in pieces], limit)
    inputs = [[pieces[i] for i in batch] for batch in splits]
    read = _splits_read(run, options, limit, inputs)
    if again := _with_earlier_names(run, inputs, read.tables["split_row_names"]):
        inputs = [again.get(n, split) for n, split in enumerate(inputs)]
        read = _splits_read(run, options, limit, inputs, read)
    tables = {name: list(read.tables[f"split_{name}"]) for name in ("documents", "text_units", "failures")}
    if run.parent is None and not any(tables["documents"]):
        refuse_nothing(run, tables["failures"], "file")
    counts = keep_and_count(run, tables, listing.base, add, allow_deletes)
    run.inputs = inputs_of(run, listing.base, add)
    counts |= {"files": len(files), "chunks": rows_of(tables["text_units"])}
    return joined([read, segments, Result(regrouped(tables), counts)])


def _splits_read(
    run: Run,
    options: Mapping[str, Any],
    limit: int,
    inputs: Sequence[Sequence[Piece]],
    now: Result | None = None,
) -> Result:
    """Tables split_documents, split_text_units, split_failures and split_row_names, by split. now: what this
    run has read; None: what its parent had. A split with failures is read by every run."""
    settings, kept = run.settings, run.settings.kept()
    model = settings.model(settings.model_name("extract"))
    how = [kept["input"], kept["chunking"], vocabulary_for(model.model, model.tokenizer).name, limit]
    known = run.taken_over("read", inputs, how, SPLIT, told=[_seen(split) for split in inputs], before=now)
    told = tell_read(run, sum(map(len, known.new)), lambda number: len(known.new[number]))
    read = partial(_read_split, settings, options, limit)
    one_by_one = Parted[_Split](lambda x: [replace(x, pieces=[piece]) for piece in x.pieces], _unread)
    written = run.executor.map("read", read, _with_chunks(run, known.new, how), one_by_one, told)
    named = [{f"split_{name}": parts for name, parts in done.items()} for done in written]
    result = known.with_new(run.store, named)
    failures = result.tables["split_failures"]
    hashes = ["" if failed else of for of, failed in zip(result.made_from[SPLIT[0]], failures, strict=True)]
    made_from = {
        SPLIT[0]: hashes,
        "places": [_place(split) for split in inputs],
        "how": [fingerprint_of(how)],
        "readers": sorted(
            {
                f"{splitext(p.path)[1].lower()} {p.file.reader}"
                for split in inputs
                for p in split
                if p.file.reader
            }
        ),
    }
    return replace(result, made_from=made_from)


@dataclass(frozen=True)
class _Split:
    """Files, or stretches of them; documents, units: parts of what the parent snapshot read of the same
    ones."""

    pieces: Sequence[Piece]
    documents: Sequence[Part] = ()
    units: Sequence[Part] = ()


def _with_chunks(run: Run, splits: Sequence[Sequence[Piece]], how: Any) -> list[_Split]:
    """With what the parent snapshot read of the same files, where it would cut a document as this run does:
    documents of theirs that did not change are not cut again."""
    before = run.before("read")
    if before is None or before.made_from.get("how") != [fingerprint_of(how)]:
        return [_Split(split) for split in splits]
    places = before.made_from.get("places", ())
    place = {
        of: n for n, of in enumerate(places[: min(len(before.tables.get(name, ())) for name in SPLIT[:2])])
    }
    found = []
    for split in splits:
        at = place.get(_place(split))
        parts = [before.tables[name][at] for name in SPLIT[:2]] if at is not None else [[], []]
        found.append(_Split(split) if run.lost([*parts[0], *parts[1]]) else _Split(split, *parts))
    return found


def _place(split: Sequence[Piece]) -> str:
    """A hash of where its documents are."""
    return stable_id("place", *(f"{p.file.path} {p.stretch.start if p.stretch else ''}" for p in split))


def _seen(split: Sequence[Piece]) -> Any:
    """What the documents of a split depend on; None: the storage does not say whether it changed."""
    if not all(piece.file.seen_as for piece in split):
        return None
    return [
        [p.file.path, p.file.seen_as, p.stretch and asdict(p.stretch), sorted(p.names)]
        + ([p.file.reader] if p.file.reader else [])
        for p in split
    ]


def _read_split(
    settings: Settings, options: Mapping[str, Any], limit: int, store: Store, split: _Split
) -> Iterator[Mapping[str, pa.Table]]:
    pieces = split.pieces
    names = [set(piece.names) for piece in pieces]
    found = (
        one
        for piece, known in zip(pieces, names, strict=True)
        for one in read_file(piece.file, settings, options, piece.stretch, known)
    )
    known = document_parts.chunks_by_document(
        read_table(store, split.documents, ["id", "content_hash"], schema.DOCUMENTS),
        read_table(store, split.units, None, schema.TEXT_UNITS),
    )
    yield from document_parts.document_parts(found, settings, limit, known)
    yield {"row_names": _row_names(pieces, names)}


def _row_names(pieces: Sequence[Piece], names: Sequence[set[str]]) -> pa.Table:
    """What the rows of stretches are called."""
    rows = [
        {
            "hash": int(document_id(piece.path, name)[:16], 16),
            "file": stable_id("file", piece.path),
            "name": name,
            "start": piece.stretch.start,
        }
        for piece, known in zip(pieces, names, strict=True)
        if piece.stretch is not None
        for name in sorted(known)
    ]
    return pa.Table.from_pylist(rows, schema=_ROW_NAMES)


def _with_earlier_names(
    run: Run, inputs: Sequence[Sequence[Piece]], row_names: Sequence[Sequence[Part]]
) -> dict[int, list[Piece]]:
    """By number, the inputs that have to be read again: a row of theirs has the name of one in an earlier
    stretch of its file, which its reader could not know."""
    parts = {n: of for n, of in enumerate(row_names) if of}
    names = _repeated_names(run.store, parts)
    first = names.group_by(["file", "name"]).aggregate([("start", "min"), ("start", "count")])
    repeated = first.filter(pc.greater(first["start_count"], 1))
    if not repeated.num_rows:
        return {}
    earlier: dict[tuple[int, str, int], set[str]] = {}
    for row in names.join(repeated, ["file", "name"], join_type="inner").to_pylist():
        if row["start"] > row["start_min"]:
            earlier.setdefault((row["input"], row["file"], row["start"]), set()).add(row["name"])
    return {n: [_after(piece, n, earlier) for piece in inputs[n]] for n in sorted({n for n, _, _ in earlier})}


def _repeated_names(store: Store, parts: Mapping[int, Sequence[Part]]) -> pa.Table:
    """The row names that stand in several stretches, and maybe a few others, with the number of their input.
    Of all rows only the hashes are brought here, 8 bytes each.

    parts: of the row names, by input
    """
    hashes = {n: read_table(store, of, ["hash"], _ROW_NAMES)["hash"].to_numpy() for n, of in parts.items()}
    in_order = np.concatenate([np.empty(0, np.uint64), *hashes.values()])
    in_order.sort()
    repeated = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    found = [_ROW_NAMES.append(pa.field("input", pa.int64())).empty_table()]
    for n, own in hashes.items():
        if (here := np.isin(own, repeated)).any():
            table = read_table(store, parts[n], None, _ROW_NAMES).filter(pa.array(here))
            found.append(table.append_column("input", pa.array([n] * table.num_rows, pa.int64())))
    return pa.concat_tables(found)


def _after(piece: Piece, n: int, earlier: Mapping[tuple[int, str, int], set[str]]) -> Piece:
    """A piece of an input that knows the names of earlier rows."""
    if piece.stretch is None:
        return piece
    names = earlier.get((n, stable_id("file", piece.path), piece.stretch.start), ())
    return replace(piece, names=frozenset(names))


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
        if wants_ranges(e):
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


def _unread(split: _Split, why: str) -> Mapping[str, pa.Table]:
    """What stands for a file, or a stretch of one, of which processes die."""
    unread = []
    for piece in split.pieces:
        what = (
            "cannot be read" if piece.stretch is None else f"rows from {piece.stretch.row:,} on are not read"
        )
        unread.append(Unreadable(piece.path, "", f"{what}: {why}"))
    return {"failures": read_failures(unread)}


def _skipped(others: Mapping[str, int]) -> str:
    """`4 files of other kinds skipped (.png 3, .pdf 1)`, the most frequent first."""
    kinds = sorted(others.items(), key=lambda kind: (-kind[1], kind[0]))
    shown = [f"{extension or 'no extension'} {n:,}" for extension, n in kinds[:KINDS_TOLD]]
    more = ", …" if len(kinds) > KINDS_TOLD else ""
    return f"{plural(sum(others.values()), 'file')} of other kinds skipped ({', '.join(shown)}{more})"
