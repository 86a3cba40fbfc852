"""INPUT in pieces that readers take: files, and stretches of large ones, none much larger than a limit."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from graphrag_ray.base import index_settings
from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.errors import ProcessDied
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.urls import protocol_of
from graphrag_ray.corpus import byte_ranges
from graphrag_ray.corpus.byte_ranges import Segment, Stretch
from graphrag_ray.corpus.parse import segments_of
from graphrag_ray.corpus.table_rows import HEAD_BYTES
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.list_input import InputFile
from graphrag_ray.indexing.step_result import Result, fingerprint_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table, write_parts
from graphrag_ray.store.remote_files import open_elsewhere

SCAN_BYTES = 16 << 20
"""Bytes of a .jsonl file whose lines a task counts."""
_LINE_BYTES = 1 << 20
"""What is fetched at once of a line that began in these."""

_SEGMENT = [
    *((name, pa.int64()) for name in ("start", "end", "rows", "lines", "size")),
    ("rank", pa.string()),
]
_FOUND = pa.schema([("file", pa.int64()), *_SEGMENT])
SEGMENTS = pa.schema([("path", pa.string()), *_SEGMENT])


@dataclass(frozen=True)
class Piece:
    """stretch: None for a whole file; size: bytes; rank: a hash of where it begins; names: ids of earlier
    rows by `input.id_column`, which its own may not have again."""

    file: InputFile
    size: int
    rank: str
    stretch: Stretch | None = None
    names: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        return self.file.path


Segments: TypeAlias = Mapping[str, Sequence[Segment]]
"""Of files, by what was seen of them (`_seen`)."""


def pieces_of(
    run: Run, files: Sequence[InputFile], options: Mapping[str, Any], limit: int
) -> tuple[list[Piece], Result]:
    """In the order of the files and their rows; and table segments of large files, by which the next run need
    not look at them.

    options: of INPUT's storage; limit: bytes of a piece
    """
    known = _known(run)
    large = {
        n: _seen(run, file, limit)
        for n, file in enumerate(files)
        if _extension(file) in byte_ranges.EXTENSIONS and file.size > 2 * limit
    }
    inputs = [
        (n, file, start, min(start + step, file.size))
        for n, file in ((n, files[n]) for n, seen in large.items() if seen not in known)
        if _has_parts(file, options)
        for step in [SCAN_BYTES if _extension(file) == ".jsonl" else file.size]
        for start in range(0, file.size, step)
    ]
    found: dict[int, list[Segment]] = {}
    scan = partial(_scan, run.settings.input, options, limit)
    try:
        for table in run.executor.stream("read", scan, inputs):
            for row in table.to_pylist():
                found.setdefault(row.pop("file"), []).append(Segment(**row))
    except ProcessDied:
        found.clear()  # which reading is to blame is found out where that can be told
    of = {n: known[seen] if seen in known else found.get(n, []) for n, seen in large.items()}
    pieces = [piece for n, file in enumerate(files) for piece in _pieces(file, of.get(n, []), limit)]
    noted = {n: seen for n, seen in large.items() if seen and of[n]}
    rows = [{"path": files[n].path, **asdict(s)} for n in noted for s in of[n]]
    parts = write_parts(run.store, "segments", [pa.Table.from_pylist(rows, schema=SEGMENTS)])
    return pieces, Result({"segments": [parts]}, made_from={"segments": list(noted.values())})


def _seen(run: Run, file: InputFile, limit: int) -> str:
    """A hash of all that a file's segments depend on; "": that is not known."""
    how = [STAGES["read"].version, run.settings.kept()["input"], limit]
    return stable_id("segments", file.path, file.seen_as, fingerprint_of(how)) if file.seen_as else ""


def _known(run: Run) -> Segments:
    """Those of the parent snapshot."""
    before = run.before("read") or Result()
    parts = before.parts("segments")
    if run.lost(parts):
        return {}
    found: dict[str, list[Segment]] = {}
    for row in read_table(run.store, parts, None, SEGMENTS).to_pylist():
        found.setdefault(row.pop("path"), []).append(Segment(**row))
    return dict(zip(before.made_from.get("segments", ()), found.values(), strict=False))


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


def wants_ranges(error: BaseException) -> bool:
    """Whether fsspec found that an HTTP server sends only whole files. It has no type of its own for that."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = at.tb_frame.f_globals.get("__name__") if at is not None else ""
    return isinstance(error, ValueError) and where == "fsspec.implementations.http"


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
        yield Piece(
            file, max(1, sum(s.size for s in own)), stable_id("file", file.path, own[0].rank), stretch
        )
        row, line = row + sum(s.rows for s in own), line + sum(s.lines for s in own)


def _scan(
    read_as: index_settings.Input,
    options: Mapping[str, Any],
    limit: int,
    store: Store,
    x: tuple[int, InputFile, int, int],
) -> Iterator[pa.Table]:
    """The segments of a .parquet file, or of the lines of a .jsonl file that begin between two places."""
    n, file, start, end = x
    try:
        fs, path = open_elsewhere(file.url, options)
        if _extension(file) == ".jsonl":
            segments = _jsonl_segments(fs, path, file.size, start, end, limit, read_as.text_column)
        else:
            with fs.open(path, "rb") as stream:
                segments = segments_of(stream, read_as)
    except Exception:  # noqa: BLE001 - read whole, it is told why it cannot be
        return
    yield pa.Table.from_pylist([{"file": n, **asdict(s)} for s in segments], schema=_FOUND)


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
