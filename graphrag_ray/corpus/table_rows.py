"""Table files (.jsonl, .csv, .parquet) as streams of rows, whatever their size."""

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
from graphrag_ray.corpus.decode import NotText, codec_of_bom, codec_of_head, decode, zero_byte

if TYPE_CHECKING:
    import pyarrow as pa

HEAD_BYTES = 1 << 20  # bytes that are examined to determine the format of a file
WHOLE_FILE = -1  # the number of a Row that reports a fault of the file, or of the rest of it
_BATCH_ROWS = 256
_DELIMITERS = (",", ";", "\t", "|")
_MAX_FIELD = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table, numbered from 1 in file order."""

    number: int
    values: Mapping[str, Any] | None  # by column; None if the row is unusable
    encoding: str = "utf-8"
    error: str = ""  # why the row is unusable
    name: str = ""  # of a row whose number means nothing


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is being read. `columns` is None if every row has its own (.jsonl)."""

    columns: list[str] | None
    rows: Iterator[TableRow]


def open_jsonl(stream: BinaryIO, options: Input) -> Table | NotText:
    """Read one JSON object per line. Empty lines are skipped; other values are rows with a fault."""
    head, reader = _buffered(stream)
    if is_json_array(head):
        return NotText("a JSON array: write one object a line (.jsonl)")
    codec = codec_of_bom(head)
    if codec is None and (fault := zero_byte(head)):
        return fault
    lines: Iterator[bytes] = iter(reader)
    if codec is not None:
        wrapped = "utf-8-sig" if codec == "utf-8" else codec.rsplit("-", 1)[0]
        wrapper = io.TextIOWrapper(reader, wrapped, errors="replace", newline="\n")
        lines = (line.encode("utf-8", "replace") for line in wrapper)
    return Table(None, jsonl_rows(lines, codec or "utf-8"))


def is_json_array(head: bytes) -> bool:
    """Return whether this is one array over several lines, to report it once rather than once per line."""
    lines = [line.strip() for line in head.split(b"\n", 100) if line.strip()]
    if not lines or not lines[0].startswith(b"[") or lines[0].endswith(b"]"):
        return False
    # A first line that is merely broken is followed by whole objects.
    return len(lines) < 2 or bool(json_line(lines[1], "utf-8")[2])


def jsonl_rows(lines: Iterable[bytes], codec: str, row: int = 1, line: int = 1) -> Iterator[TableRow]:
    """Yield the rows of lines; `row` and `line` number the first ones."""
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
    """Return the value, the encoding of the line, and a fault or ""."""
    try:
        return orjson.loads(line), codec, ""
    except orjson.JSONDecodeError:
        pass
    # A second, slower attempt: other encodings, NaN, halves of surrogate pairs.
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
    """Read a header row, then one record per row; empty lines are skipped.

    The delimiter is a comma, or the semicolon, tab or bar with which the header contains `input.text_column`.
    A record with a wrong number of fields is a row with a fault, since its text may be cut at an unquoted
    delimiter.
    """
    head, reader = _buffered(stream)
    codec = codec_of_head(head)
    if isinstance(codec, NotText):
        return codec
    errors = "replace" if codec in ("utf-16", "utf-32") else "surrogateescape"
    # The csv module finds the ends of records itself, inside quotes too.
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
                lost = "a quoted field that is never closed: all lines after its quote are lost"
                yield TableRow(WHOLE_FILE, None, error=f"row {number} has {lost}")
            else:
                what = f"not a CSV record ({e}); double a quote inside a quoted field"
                yield TableRow(number, None, error=f"line {records.line_num}: {what}")
            continue
        if not record:
            continue
        number, encoding = number + 1, codec
        if not all(map(str.isascii, record)) and _SURROGATE.search("".join(record)):
            # A row with bytes that the file's codec cannot decode is decoded by itself, like a file.
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
            yield TableRow(number, None, error=f"{fault}: quote fields that hold a delimiter")
            continue
        # The first of two columns with the same name counts.
        values = dict(zip(reversed(columns), reversed(record), strict=True))
        yield TableRow(number, {name: values[name] for name in columns}, encoding)


def open_parquet(
    stream: BinaryIO, options: Input, groups: tuple[int, int] | None = None, row: int = 1
) -> Table | NotText:
    """Read a parquet file; a stream that is not seekable is read whole.

    A few hundred bytes can hold gigabytes of text: one long dictionary value and rows that refer to it. So
    such columns are decoded as dictionaries, and `input.max_bytes` limits what the rows of one row group may
    hold.

    `groups` are the first row group and the one after the last, None for all; `row` numbers the first row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = _Watched(stream if stream.seekable() else io.BytesIO(stream.read()))
    try:
        metadata = pq.read_metadata(source)
        source.seek(0)
        file_groups = map(metadata.row_group, range(metadata.num_row_groups))
        columns = (group.column(i) for group in file_groups for i in range(group.num_columns))
        encoded = (c for c in columns if c.physical_type == "BYTE_ARRAY" and c.has_dictionary_page)
        dictionaries = list(dict.fromkeys(column.path_in_schema for column in encoded))
        file = pq.ParquetFile(source, metadata=metadata, read_dictionary=dictionaries)
    except (pa.ArrowException, OSError, ValueError) as e:
        source.raise_own_fault()
        return NotText(f"damaged, or not a parquet file: {e}")
    start, end = groups or (0, file.metadata.num_row_groups)
    rows = _parquet_rows(file, source, range(start, end), row, options.max_bytes)
    return Table(list(file.schema_arrow.names), rows)


def _parquet_rows(
    file: Any, source: _Watched, groups: range, number: int, max_bytes: int
) -> Iterator[TableRow]:
    """Yield rows. Damage costs the rest of a row group, and so does a batch that exceeds max_bytes."""
    import pyarrow as pa

    for group in groups:
        metadata = file.metadata.row_group(group)
        after, size = number + metadata.num_rows, metadata.total_byte_size
        batches: Any = iter(())
        if size <= max_bytes:
            size = 0
            batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], use_threads=False)
        while size <= max_bytes:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError, ValueError) as e:
                source.raise_own_fault()
                lost = f"rows {number} to {after - 1} of {file.metadata.num_rows}"
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
                f"rows {number} to {after - 1} are not read: with them, a row group holds more than "
                f"input.max_bytes ({max_bytes:,}) when decoded. Write smaller row groups, or raise the limit"
            )
            yield TableRow(WHOLE_FILE, None, error=fault)
        number = after


def _decoded_bytes(array: pa.Array) -> int:
    """Return the bytes of an array's values, counting those of a dictionary once per reference."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if pa.types.is_dictionary(kind) and kind.value_type in texts:
        lengths = pc.binary_length(array.dictionary).take(array.indices)
        return pc.sum(lengths).as_py() or 0
    if pa.types.is_map(kind):
        both = (pa.ListArray.from_arrays(array.offsets, held) for held in (array.keys, array.items))
        return sum(_decoded_bytes(held.flatten()) for held in both)
    if pa.types.is_nested(kind):
        inside = array.flatten()
        return sum(map(_decoded_bytes, inside if pa.types.is_struct(kind) else [inside]))
    return int(array.nbytes)


def arrow_rows(batch: pa.RecordBatch | pa.Table, number: int = 1) -> Iterator[TableRow]:
    """Yield the rows of a batch; `number` is that of the first row."""
    columns = [(n, _in_microseconds(c)) for n, c in zip(batch.schema.names, batch.columns, strict=True)]
    for i in range(batch.num_rows):
        try:
            yield TableRow(number + i, {name: column[i].as_py() for name, column in columns})
        except (ValueError, OverflowError) as e:
            yield TableRow(number + i, None, error=f"a value cannot be read: {e}")


def _in_microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert times to microseconds, like Python's; converting nanoseconds to Python would need pandas."""
    import pyarrow as pa

    kind = column.type
    if getattr(kind, "unit", "") != "ns":
        return column
    to = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
    to = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else to
    return column.cast(to, safe=False)


Opener: TypeAlias = Callable[[BinaryIO, Input], Table | NotText]
OPENERS: dict[str, Opener] = {".jsonl": open_jsonl, ".csv": open_csv, ".parquet": open_parquet}
"""Opens a table of documents or questions, by extension."""


def _buffered(stream: BinaryIO) -> tuple[bytes, io.BufferedReader]:
    """Return the first HEAD_BYTES, and a reader that begins with them: the stream need not be seekable."""
    raw: Any = _Raw(stream)
    reader = io.BufferedReader(raw, HEAD_BYTES)
    return reader.peek(HEAD_BYTES), reader


class _Raw(io.RawIOBase):
    """Fills every buffer from a stream, and leaves closing it to the caller."""

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


class _Watched(io.RawIOBase):
    """Remembers an error of the stream itself.

    Arrow raises OSError for damaged files as well, but a failing network says nothing about the document.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._fault: BaseException | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except BaseException as e:
            self._fault = e
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def raise_own_fault(self) -> None:
        if self._fault is not None:
            raise self._fault
