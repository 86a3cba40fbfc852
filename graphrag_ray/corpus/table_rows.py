"""Read table files (.jsonl, .csv, .parquet) of any size as streams of rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import orjson

from graphrag_ray.base.index_settings import Input
from graphrag_ray.corpus.decode import NotText, codec_of_bom, codec_of_head, decode, zero_byte_fault

if TYPE_CHECKING:
    import pyarrow as pa

HEAD_BYTES = 1 << 20  # size of the beginning of a file that determines its format
WHOLE_FILE = -1  # number of a row that reports a fault of the whole file or all of its remaining rows
_BATCH_ROWS = 256
_DELIMITERS = (",", ";", "\t", "|")
_MAX_FIELD = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table, numbered from 1 in file order."""

    number: int
    values: Mapping[str, Any] | None  # by column; None if the row cannot be read
    encoding: str = "utf-8"
    error: str = ""  # why the row cannot be read
    name: str = ""  # identifies a row whose number does not


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is being read. `columns` is None if rows can have different columns (.jsonl)."""

    columns: list[str] | None
    rows: Iterator[TableRow]


def open_jsonl(stream: BinaryIO, options: Input) -> Table | NotText:
    """Read one JSON object per line. Empty lines are skipped. Other values yield rows with an error."""
    head, reader = _buffered(stream)
    if is_json_array(head):
        return NotText("a JSON array: write one object per line (.jsonl)")
    codec = codec_of_bom(head)
    if codec is None and (fault := zero_byte_fault(head)):
        return fault
    lines: Iterator[bytes] = iter(reader)
    if codec is not None:
        wrapped = "utf-8-sig" if codec == "utf-8" else codec.rsplit("-", 1)[0]
        wrapper = io.TextIOWrapper(reader, wrapped, errors="replace", newline="\n")
        lines = (line.encode("utf-8", "replace") for line in wrapper)
    return Table(None, jsonl_rows(lines, codec or "utf-8"))


def is_json_array(head: bytes) -> bool:
    """Return whether a file is a multi-line JSON array, to report it once rather than once per line."""
    lines = [line.strip() for line in head.split(b"\n", 100) if line.strip()]
    if not lines or not lines[0].startswith(b"[") or lines[0].endswith(b"]"):
        return False
    # If only the first line is malformed, the second is a complete value.
    return len(lines) < 2 or bool(json_line(lines[1], "utf-8")[2])


def jsonl_rows(lines: Iterable[bytes], codec: str, row: int = 1, line: int = 1) -> Iterator[TableRow]:
    """Parse lines into rows. `row` and `line` are the numbers of the first row and line."""
    number = row
    for line_number, text in enumerate(lines, start=line):
        if not text.strip():
            continue
        value, encoding, fault = json_line(text, codec)
        if not fault and not isinstance(value, dict):
            kinds: dict[type, str] = {list: "array", str: "string", bool: "boolean", type(None): "null"}
            fault = f"a JSON {kinds.get(type(value), 'number')}, not an object"
        if fault:
            yield TableRow(number, None, error=f"line {line_number}: {fault}")
        else:
            yield TableRow(number, value, encoding)
        number += 1


def json_line(line: bytes, codec: str) -> tuple[Any, str, str]:
    """Return the value and the encoding of a line, and a fault or ""."""
    try:
        return orjson.loads(line), codec, ""
    except orjson.JSONDecodeError:
        pass
    # Detect the encoding and use the slower json module, which accepts NaN and lone surrogates.
    decoded = decode(line)
    if isinstance(decoded, NotText):
        return None, codec, decoded.reason
    encoding = codec if decoded.encoding == "utf-8" else decoded.encoding
    try:
        return json.loads(decoded.text), encoding, ""
    except json.JSONDecodeError as e:
        return None, encoding, f"not JSON ({e.msg.removesuffix(' at')} at column {e.colno})"
    except RecursionError:
        return None, encoding, "JSON nested too deeply"
    except ValueError as e:
        return None, encoding, f"not JSON ({e})"


def open_csv(stream: BinaryIO, options: Input) -> Table | NotText:
    """Read a header row, then one record per row. Empty lines are skipped.

    The delimiter is the comma, semicolon, tab or bar with which the header contains `input.text_column`. A
    record with a wrong number of fields yields a row with an error, because its text may be split at an
    unquoted delimiter.
    """
    head, reader = _buffered(stream)
    codec = codec_of_head(head)
    if isinstance(codec, NotText):
        return codec
    errors = "replace" if codec in ("utf-16", "utf-32") else "surrogateescape"
    # The csv module handles line breaks itself, including those inside quotes.
    text = io.TextIOWrapper(reader, codec, errors=errors, newline="")
    csv.field_size_limit(_MAX_FIELD)
    first = next((line for line in text if line.strip()), "")

    def names(delimiter: str) -> list[str]:
        return [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]

    delimiter = next((d for d in _DELIMITERS if options.text_column in names(d)), ",")
    records = csv.reader(chain([first], text), delimiter=delimiter, strict=True)
    try:
        columns = [name.strip() for name in next(records, [])]
    except csv.Error as e:
        return NotText(f"the header cannot be read: {e}")
    return Table(columns, _csv_rows(records, columns, codec))


def _csv_rows(records: Any, columns: list[str], codec: str) -> Iterator[TableRow]:
    number = 0
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except csv.Error as e:
            number += 1
            if "unexpected end" in str(e):
                lost = "a quoted field that is never closed: all lines after its opening quote are lost"
                yield TableRow(WHOLE_FILE, None, error=f"row {number} has {lost}")
            else:
                what = f"not a CSV record ({e}); double a quote inside a quoted field"
                yield TableRow(number, None, error=f"line {records.line_num}: {what}")
            continue
        if not record:
            continue
        number, encoding = number + 1, codec
        if not all(map(str.isascii, record)) and _SURROGATE.search("".join(record)):
            # Detect the encoding of this row by itself, because the file's codec cannot decode some bytes.
            fields = [value.encode(codec.removesuffix("-sig"), "surrogateescape") for value in record]
            decoded = decode(b"\n".join(fields))
            if isinstance(decoded, NotText):
                yield TableRow(number, None, error=decoded.reason)
                continue
            record = [value.decode(decoded.codec, "replace") for value in fields]
            encoding = decoded.encoding
        while len(record) > len(columns) and not record[-1]:
            record.pop()
        if len(record) != len(columns):
            fault = f"{len(record)} fields where the header has {len(columns)}"
            yield TableRow(number, None, error=f"{fault}: quote fields that contain a delimiter")
            continue
        # Of several columns with the same name, use the first.
        values = dict(zip(reversed(columns), reversed(record), strict=True))
        yield TableRow(number, {name: values[name] for name in columns}, encoding)


def open_parquet(
    stream: BinaryIO, options: Input, groups: tuple[int, int] | None = None, row: int = 1
) -> Table | NotText:
    """Read a parquet file. A stream that is not seekable is read into memory.

    A few hundred bytes can encode gigabytes of text: one long dictionary value and many rows that refer to
    it. So such columns are decoded as dictionaries, and `input.max_bytes` limits the decoded size of a row
    group.

    Args:
        groups: First row group and the one after the last, or None for all.
        row: Number of the first row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = _ErrorRecordingStream(stream if stream.seekable() else io.BytesIO(stream.read()))
    try:
        metadata = pq.read_metadata(source)
        source.seek(0)
        file_groups = map(metadata.row_group, range(metadata.num_row_groups))
        columns = (group.column(i) for group in file_groups for i in range(group.num_columns))
        encoded = (c for c in columns if c.physical_type == "BYTE_ARRAY" and c.has_dictionary_page)
        dictionaries = list(dict.fromkeys(column.path_in_schema for column in encoded))
        file = pq.ParquetFile(source, metadata=metadata, read_dictionary=dictionaries)
    except (pa.ArrowException, OSError, ValueError) as e:
        source.raise_stream_error()
        return NotText(f"damaged, or not a parquet file: {e}")
    start, end = groups or (0, file.metadata.num_row_groups)
    rows = _parquet_rows(file, source, range(start, end), row, options.max_bytes)
    return Table(list(file.schema_arrow.names), rows)


def _parquet_rows(
    file: Any, source: _ErrorRecordingStream, groups: range, number: int, max_bytes: int
) -> Iterator[TableRow]:
    """Yield rows. After damage, or when a row group exceeds `max_bytes`, its remaining rows are skipped."""
    import pyarrow as pa

    for group in groups:
        metadata = file.metadata.row_group(group)
        end, size = number + metadata.num_rows, metadata.total_byte_size
        batches: Any = iter(())
        if size <= max_bytes:
            size = 0
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], use_threads=False)
        while size <= max_bytes:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError, ValueError) as e:
                source.raise_stream_error()
                lost = f"rows {number} to {end - 1} of {file.metadata.num_rows}"
                yield TableRow(WHOLE_FILE, None, error=f"damaged: {lost} could not be read: {e}")
                break
            if batch is None:
                break
            size += sum(map(_decoded_bytes, batch.columns))
            if size <= max_bytes:
                yield from arrow_rows(batch, number)
                number += batch.num_rows
        if size > max_bytes:
            fault = (
                f"rows {number} to {end - 1} were skipped: their row group is larger than "
                f"input.max_bytes ({max_bytes:,}) when decoded. Write smaller row groups, or raise the limit"
            )
            yield TableRow(WHOLE_FILE, None, error=fault)
        number = end


def _decoded_bytes(array: pa.Array) -> int:
    """Return the size of an array's values in bytes, counting dictionary values once per reference."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    text_types = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if pa.types.is_dictionary(kind) and kind.value_type in text_types:
        lengths = pc.binary_length(array.dictionary).take(array.indices)
        return pc.sum(lengths).as_py() or 0
    if pa.types.is_map(kind):
        lists = (pa.ListArray.from_arrays(array.offsets, child) for child in (array.keys, array.items))
        return sum(_decoded_bytes(children.flatten()) for children in lists)
    if pa.types.is_nested(kind):
        children = array.flatten()
        return sum(map(_decoded_bytes, children if pa.types.is_struct(kind) else [children]))
    return int(array.nbytes)


def arrow_rows(batch: pa.RecordBatch | pa.Table, number: int = 1) -> Iterator[TableRow]:
    """Yield the rows of a batch. `number` is the number of the first row."""
    columns = [(n, _in_microseconds(c)) for n, c in zip(batch.schema.names, batch.columns, strict=True)]
    for i in range(batch.num_rows):
        try:
            yield TableRow(number + i, {name: column[i].as_py() for name, column in columns})
        except (ValueError, OverflowError) as e:
            yield TableRow(number + i, None, error=f"a value cannot be read: {e}")


def _in_microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert times to microseconds. Converting nanoseconds to Python objects would need pandas."""
    import pyarrow as pa

    kind = column.type
    if getattr(kind, "unit", "") != "ns":
        return column
    target = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
    target = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else target
    return column.cast(target, safe=False)


Opener: TypeAlias = Callable[[BinaryIO, Input], Table | NotText]
OPENERS: dict[str, Opener] = {".jsonl": open_jsonl, ".csv": open_csv, ".parquet": open_parquet}
"""The functions that open a table of documents or questions, by extension."""


def _buffered(stream: BinaryIO) -> tuple[bytes, io.BufferedReader]:
    """Return the first HEAD_BYTES and a reader that starts with them. The stream need not be seekable."""
    raw: Any = _RawReader(stream)
    reader = io.BufferedReader(raw, HEAD_BYTES)
    return reader.peek(HEAD_BYTES), reader


class _RawReader(io.RawIOBase):
    """Fills every buffer from a stream. Does not close the stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = 0
        while size < len(buffer) and (block := self._stream.read(len(buffer) - size)):
            buffer[size : size + len(block)] = block
            size += len(block)
        return size


class _ErrorRecordingStream(io.RawIOBase):
    """Records errors of the stream itself, to distinguish them from damage.

    Arrow raises OSError for both, but a network error does not concern the document.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except BaseException as e:
            self._error = e
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def raise_stream_error(self) -> None:
        if self._error is not None:
            raise self._error
