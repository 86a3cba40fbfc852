"""Split large table files into ranges of consecutive rows that are read in parallel.

A .jsonl file is split by content-defined chunking, so inserting a line changes only the neighbouring splits.
A .parquet file is split between row groups. A .csv file is not split, because only a reader that starts at
the beginning knows whether a line break is inside quotes.
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
_SEGMENTS_PER_SPLIT = 8  # average number of segments in a split of maximum size


@dataclass(frozen=True, slots=True)
class Split:
    """A range of bytes of a .jsonl file, or of row groups of a .parquet file."""

    start: int
    end: int
    row: int = 1  # number of the first row
    line: int = 1  # number of the first line


@dataclass(frozen=True, slots=True)
class Segment:
    """The smallest range that splits are made of, with its row and line counts."""

    start: int
    end: int
    rows: int
    lines: int
    size: int  # in bytes
    rank: str  # hash that decides where splits are cut; "" if no split may begin with this segment


def can_split_jsonl(head: bytes, text_column: str) -> bool:
    """Return whether the rows of a .jsonl file can be read independently, from its first bytes.

    They cannot if the file has a byte order mark or is not JSON Lines. They cannot if the first rows lack the
    text column either, because only later rows show whether the whole file lacks it.
    """
    if codec_of_bom(head) is not None or 0 in head or is_json_array(head):
        return False
    values = (json_line(line, "utf-8") for line in head.split(b"\n")[:-1])
    return any(not fault and isinstance(value, dict) and text_column in value for value, _, fault in values)


def jsonl_segments(lines: Iterable[bytes], start: int, limit: int) -> list[Segment]:
    """Return segments of consecutive lines. A split may begin with at least one of them.

    `start` is the offset of the first line in the file, `limit` the maximum size of a split in bytes.
    """
    segments: list[Segment] = []
    offset, rows, n_lines, rank = start, 0, 0, ""
    for line in lines:
        crc = zlib.crc32(line)
        # The probability of a cut is proportional to the length of the line, so the expected number of cuts
        # per byte does not depend on how long lines are.
        if crc * limit < len(line) * _SEGMENTS_PER_SPLIT << 32:
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
    """Return one segment per row group of a readable file."""
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(stream).metadata
    groups = enumerate(map(metadata.row_group, range(metadata.num_row_groups)))
    return [
        Segment(i, i + 1, g.num_rows, 0, g.total_byte_size, stable_id("row group", str(i))) for i, g in groups
    ]


def join_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Merge each segment with which no split may begin into the previous one. Segments must be contiguous."""
    merged: list[Segment] = []
    for s in segments:
        if s.rank or not merged:
            merged.append(s)
            continue
        a = merged.pop()
        rows, lines, size = a.rows + s.rows, a.lines + s.lines, a.size + s.size
        merged.append(replace(a, end=s.end, rows=rows, lines=lines, size=size))
    return merged


def are_contiguous(segments: Sequence[Segment]) -> bool:
    """Return whether segments are consecutive from the start of a file."""
    return bool(segments) and segments[0].start == 0 and all(a.end == b.start for a, b in pairwise(segments))


def iter_lines(data: bytes) -> Iterable[bytes]:
    """Iterate over lines, including their line endings. Only \\n ends a line."""
    return io.BytesIO(data)
