"""Split large table files into stretches of consecutive rows that are read in parallel.

Where a .jsonl file is cut depends on its lines, so that a new line changes only the stretches next to it; a
.parquet file is cut between row groups. A .csv file is not cut, because only from its beginning is it known
whether a line break is inside quotes.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

from graphrag_ray.base.ids import stable_id
from graphrag_ray.corpus.decode import codec_of_bom
from graphrag_ray.corpus.table_rows import is_json_array, json_line

SPLITTABLE_EXTENSIONS = (".jsonl", ".parquet")
_SEGMENTS_PER_STRETCH = 8  # possible ends per maximum size of a stretch, on average


@dataclass(frozen=True, slots=True)
class Split:
    """A range of bytes of a .jsonl file, or of row groups of a .parquet file."""

    start: int
    end: int
    row: int = 1  # number of the first row
    line: int = 1  # number of the first line


@dataclass(frozen=True, slots=True)
class Segment:
    """A range that is not split, as in `Split`, with its numbers of rows and lines."""

    start: int
    end: int
    rows: int
    lines: int
    size: int  # in bytes
    rank: str  # hash of where it begins; "" if no stretch may begin there


def can_split_jsonl(head: bytes, text_column: str) -> bool:
    """Return whether the rows of a .jsonl file can be read independently, from its first bytes.

    They cannot if a byte order mark determines the encoding of the whole file, if it is not JSON Lines, or if
    the first rows have no text: then a later row with text decides what is reported about these.
    """
    if codec_of_bom(head) is not None or 0 in head or is_json_array(head):
        return False
    values = (json_line(line, "utf-8") for line in head.split(b"\n")[:-1])
    return any(not fault and isinstance(value, dict) and text_column in value for value, _, fault in values)


def jsonl_segments(lines: Iterable[bytes], start: int, limit: int) -> list[Segment]:
    """Return segments of consecutive lines, at least one of which may begin a stretch.

    `start` is the offset of the first line in the file, `limit` the maximum size of a stretch in bytes.
    """
    segments: list[Segment] = []
    offset, rows, n_lines, rank = start, 0, 0, ""
    for line in lines:
        crc = zlib.crc32(line)
        # The longer a line, the likelier a cut, so that cuts per byte are as frequent in every file.
        if crc * limit < len(line) * _SEGMENTS_PER_STRETCH << 32:
            if n_lines:
                segments.append(Segment(start, offset, rows, n_lines, offset - start, rank))
            start, rows, n_lines, rank = offset, 0, 0, f"{crc:08x}"
        offset, rows, n_lines = offset + len(line), rows + (not line.isspace()), n_lines + 1
    if n_lines:
        segments.append(Segment(start, offset, rows, n_lines, offset - start, rank))
    if segments and not any(s.rank for s in segments):
        segments[0] = replace(segments[0], rank=str(segments[0].start))
    return segments


def parquet_segments(stream: BinaryIO) -> list[Segment]:
    """Return the row groups of a readable file."""
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(stream).metadata
    groups = enumerate(map(metadata.row_group, range(metadata.num_row_groups)))
    return [
        Segment(i, i + 1, g.num_rows, 0, g.total_byte_size, stable_id("row group", str(i))) for i, g in groups
    ]


def join_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Join every segment that may not begin a stretch to the one before it. Segments have no gaps."""
    whole: list[Segment] = []
    for s in segments:
        if s.rank or not whole:
            whole.append(s)
            continue
        b = whole[-1]
        whole[-1] = replace(b, end=s.end, rows=b.rows + s.rows, lines=b.lines + s.lines, size=b.size + s.size)
    return whole


def are_contiguous(segments: Sequence[Segment]) -> bool:
    """Return whether segments are consecutive from the start of a file."""
    return bool(segments) and segments[0].start == 0 and all(a.end == b.start for a, b in pairwise(segments))


def iter_lines(data: bytes) -> Iterable[bytes]:
    """Iterate over lines with their line ends. Only \\n ends a line."""
    return io.BytesIO(data)
