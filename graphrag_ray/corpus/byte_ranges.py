"""Large table files in stretches: consecutive rows with their numbers, read beside one another.

Where a .jsonl file is cut depends on its lines, so that a line more changes the stretches beside it only; a
.parquet file is cut between its row groups. A .csv file is not cut: whether a line end is inside quotes is
known only from its beginning.
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

EXTENSIONS = (".jsonl", ".parquet")
_SEGMENTS = 8
"""Places in so many bytes as a stretch may have at most where it could end, on average."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """start, end: bytes of a .jsonl file, row groups of a .parquet file; row, line: numbers of the first
    ones, from 1."""

    start: int
    end: int
    row: int = 1
    line: int = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """What is not parted. rank: a hash of where it begins; "" where no stretch may begin.

    start, end as in Stretch; rows, lines: how many there are; size: bytes
    """

    start: int
    end: int
    rows: int
    lines: int
    size: int
    rank: str


def jsonl_is_split(head: bytes, text_column: str) -> bool:
    """Whether the rows of a .jsonl file can be told by themselves. head: its first bytes.

    Not where a byte order mark says how all of it is written, where it is no .jsonl, or where the first rows
    have no text: then whether some later one has it decides what is told of these.
    """
    if codec_of_bom(head) is not None or 0 in head or is_json_array(head):
        return False
    for line in head.split(b"\n")[:-1]:
        value, _, fault = json_line(line, "utf-8")
        if not fault and isinstance(value, dict) and text_column in value:
            return True
    return False


def jsonl_segments(lines: Iterable[bytes], start: int, limit: int) -> list[Segment]:
    """Segments of consecutive lines, which have their line ends, and a place to begin at least.

    start: the first one's place in the file; limit: bytes of a stretch
    """
    found: list[Segment] = []
    begin, at, rows, n, rank = start, start, 0, 0, ""
    for line in lines:
        crc = zlib.crc32(line)
        # The longer a line, the likelier: as many a byte in every file.
        if crc * limit < len(line) * _SEGMENTS << 32:
            if n:
                found.append(Segment(begin, at, rows, n, at - begin, rank))
            begin, rows, n, rank = at, 0, 0, f"{crc:08x}"
        at, rows, n = at + len(line), rows + (not line.isspace()), n + 1
    if n:
        found.append(Segment(begin, at, rows, n, at - begin, rank))
    if found and not any(s.rank for s in found):
        found[0] = replace(found[0], rank=str(start))
    return found


def parquet_segments(stream: BinaryIO) -> list[Segment]:
    """The row groups of a file that can be read."""
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(stream).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return [
        Segment(i, i + 1, g.num_rows, 0, g.total_byte_size, stable_id("row group", str(i)))
        for i, g in enumerate(groups)
    ]


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Those where a stretch may begin, each with what follows it up to the next. Segments are in order and
    without a gap; the first is where the file begins."""
    found: list[Segment] = []
    for s in segments:
        if s.rank or not found:
            found.append(s)
            continue
        b = found[-1]
        found[-1] = replace(b, end=s.end, rows=b.rows + s.rows, lines=b.lines + s.lines, size=b.size + s.size)
    return found


def without_gap(segments: Sequence[Segment]) -> bool:
    return bool(segments) and segments[0].start == 0 and all(a.end == b.start for a, b in pairwise(segments))


def lines_of(data: bytes) -> Iterable[bytes]:
    """With their line ends. Only \\n ends a line."""
    return io.BytesIO(data)
