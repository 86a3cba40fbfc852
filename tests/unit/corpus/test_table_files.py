"""Table files. Each row yields a document or a fault, and bad rows do not affect others."""

import csv
import datetime
import decimal
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Input
from graphrag_ray.corpus.readers import Document, Unreadable, documents_in


def read(path: str, data: bytes, **options: Any) -> list[Document | Unreadable]:
    return list(documents_in(path, io.BytesIO(data), Input(**options)))


def lines(*rows: Any) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows)


def parquet(table: pa.Table | dict[str, list[Any]], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), out, **options)
    return out.getvalue()


FRENCH = "L’été à la mairie, où tout a été décidé"
ROWS = [
    {"text": "First\ntext", "title": " One\n", "date": "2014-02-03", "author": "Ulla", "n": 1},
    {"text": "Zweiter „Text“, mit Komma", "title": "", "date": None, "author": None, "n": 2},
]


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_all_formats_give_the_same_documents(extension: str) -> None:
    data = {
        "jsonl": lines(*ROWS),
        "csv": as_csv(ROWS),
        "parquet": parquet(pa.Table.from_pylist(ROWS)),
    }[extension]
    first, second = read(f"talks.{extension}", data)
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert (first.row, first.title, first.text, first.date) == ("1", "One", "First\ntext", "2014-02-03")
    assert first.metadata["author"] == "Ulla"
    assert str(first.metadata["n"]) == "1"
    assert set(first.metadata) == {"author", "n"}
    # the title of a row without one consists of file name and row
    assert (second.row, second.title, second.date) == ("2", "talks 2", None)
    assert second.text == "Zweiter „Text“, mit Komma"
    assert first.id != second.id


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_a_missing_text_column_is_one_fault_that_names_the_columns(extension: str) -> None:
    data = {
        "jsonl": lines(*ROWS, b"{broken"),
        "csv": as_csv(ROWS),
        "parquet": parquet(pa.Table.from_pylist(ROWS)),
    }[extension]
    (found,) = read(f"talks.{extension}", data, text_column="body")
    assert isinstance(found, Unreadable)
    assert found.row == ""
    assert "'body'" in found.reason
    assert "text, title, date, author, n" in found.reason
    assert "input.text_column" in found.reason


@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_a_missing_id_column_is_one_fault(extension: str) -> None:
    data = as_csv(ROWS) if extension == "csv" else parquet(pa.Table.from_pylist(ROWS))
    (found,) = read(f"talks.{extension}", data, id_column="key")
    assert isinstance(found, Unreadable)
    assert "'key'" in found.reason
    assert "input.id_column" in found.reason


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_repeated_or_missing_id_is_a_fault(extension: str) -> None:
    rows = [{"id": i, "text": f"text {k}"} for k, i in enumerate(["a", "b", "a", None, " c "])]
    data = {
        "jsonl": lines(*rows),
        "csv": as_csv(rows),
        "parquet": parquet(pa.Table.from_pylist(rows)),
    }[extension]
    a, b, again, none, c = read(f"t.{extension}", data, id_column="id")
    assert [type(x) for x in (a, b, again, none, c)] == [Document, Document, Unreadable, Unreadable, Document]
    assert [x.row for x in (a, b, again, none, c)] == ["a", "b", "a", "row 4", "c"]
    assert isinstance(again, Unreadable)
    assert "'a'" in again.reason
    assert again.id == a.id


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_row_without_text_is_a_fault_of_that_row(extension: str) -> None:
    rows = [{"text": t, "k": "v"} for t in ("one", None, " \n", "four")]
    data = {
        "jsonl": lines(*rows, {"k": "no text at all"}, {"text": 5}),
        "csv": as_csv(rows),
        "parquet": parquet(pa.Table.from_pylist(rows)),
    }[extension]
    found = read(f"t.{extension}", data)
    assert [x.row for x in found if isinstance(x, Document)] == ["1", "4"]
    faults = [x for x in found if isinstance(x, Unreadable)]
    assert [x.row for x in faults][:2] == ["2", "3"]
    assert all(f"row {x.row} has no text" in x.reason for x in faults)
    assert len(found) == (6 if extension == "jsonl" else 4)


def test_rows_before_the_first_text_are_reported() -> None:
    found = read("t.jsonl", lines({"k": 1, "id": "a"}, b"{", {"text": "x", "id": "c"}), id_column="id")
    assert [(type(x), x.row) for x in found] == [(Unreadable, "a"), (Unreadable, "row 2"), (Document, "c")]


def test_malformed_line_is_a_fault_that_names_the_line() -> None:
    found = read("t.jsonl", lines({"text": "a"}, b"", b'{"text": "b"', b"[1]", b"nonsense", {"text": "c"}))
    assert [(type(x), x.row) for x in found] == [
        (Document, "1"),
        (Unreadable, "2"),
        (Unreadable, "3"),
        (Unreadable, "4"),
        (Document, "5"),
    ]
    reasons = [x.reason for x in found if isinstance(x, Unreadable)]
    assert "line 3" in reasons[0]
    assert "array" in reasons[1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"text": "Zoë", "n": NaN}'.encode(), "Zoë"),
        (b'{"text": "cut \\ud83d", "n": 1}', "cut \ufffd"),
        (b'{"text": "whole \\ud83d\\ude00", "n": 1}', "whole 😀"),
        (f'{{"text": "{FRENCH}", "n": 1}}'.encode("cp1252"), FRENCH),
        (b'{"text": "big", "n": 123456789012345678901234567890}', "big"),
    ],
    ids=["NaN", "half a pair", "a pair", "cp1252", "big"],
)
def test_nonstandard_json_is_read(line: bytes, text: str) -> None:
    (found,) = read("t.jsonl", line)
    assert isinstance(found, Document)
    assert found.text == text
    found.text.encode()
    json.loads(found.raw_data or "")


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-32"])
def test_tables_can_begin_with_a_byte_order_mark(codec: str) -> None:
    for path, text in (
        ("t.jsonl", '{"text": "Zoë"}\n{"text": "b"}\n'),
        ("t.csv", "text,k\r\nZoë,1\r\nb,2\r\n"),
    ):
        first, second = read(path, text.encode(codec))
        assert isinstance(first, Document), first
        assert isinstance(second, Document)
        assert (first.text, second.text) == ("Zoë", "b")


def test_json_array_is_one_fault() -> None:
    (found,) = read("t.jsonl", json.dumps(ROWS, indent=1).encode())
    assert isinstance(found, Unreadable)
    assert "one object per line" in found.reason
    # a malformed first line does not affect the others
    found_rows = read("t.jsonl", lines(b"[oops", {"text": "a"}))
    assert [type(x) for x in found_rows] == [Unreadable, Document]


def test_json_fault_names_the_column() -> None:
    (found,) = read("t.jsonl", b'{"text": "a tab\t in a string"}\n')
    assert isinstance(found, Unreadable)
    assert "not JSON (Invalid control character at column 16)" in found.reason


def test_json_nested_too_deeply_is_a_fault() -> None:
    deep = b'{"text": "x", "v": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    medium = b'{"text": "x", "v": ' + b"[" * 200 + b"]" * 200 + b"}"
    found = read("t.jsonl", lines(deep, medium, {"text": "fine"}))
    assert [x.row for x in found] == ["1", "2", "3"]
    assert [type(x) for x in found] == [Unreadable, Unreadable, Document]
    assert isinstance(found[1], Unreadable)
    assert "nested deeper than 100 levels" in found[1].reason


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_detected_from_the_text_column(delimiter: str) -> None:
    first, second = read("t.csv", as_csv(ROWS, delimiter))
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert second.text == ROWS[1]["text"]


def test_a_csv_in_an_older_encoding_is_read() -> None:
    rows = [{"text": f"L’été à la mairie, où tout a été décidé {i}"} for i in range(3)]
    found = read("t.csv", as_csv(rows).decode().encode("cp1252"))
    assert [x.text for x in found if isinstance(x, Document)] == [r["text"] for r in rows]
    assert {x.encoding for x in found if isinstance(x, Document)} == {"cp1252"}


def test_csv_row_in_another_encoding_is_decoded_separately() -> None:
    ascii_rows = b"text,k\n" + b"plain text,1\n" * 100_000
    odd = "L’été à la mairie où tout a été décidé,“Zoë”\n".encode("cp1252")
    found = read("t.csv", ascii_rows + odd + b"last,2\n")
    assert len(found) == 100_002
    late = found[100_000]
    assert isinstance(late, Document)
    assert (late.text, late.encoding) == ("L’été à la mairie où tout a été décidé", "cp1252")
    assert late.metadata == {"k": "“Zoë”"}
    assert isinstance(found[-1], Document)


def test_field_can_exceed_the_default_limit_of_python() -> None:
    text = "word " * 100_000
    (found,) = read("t.csv", as_csv([{"text": text, "k": 1}]))
    assert isinstance(found, Document)
    assert found.text == text


def test_record_with_wrong_number_of_fields_is_a_fault() -> None:
    data = b'text,k\nan unquoted, comma,1\n"fine, quoted",2,,\nshort\nlast,3\n\n'
    found = read("t.csv", data)
    assert [type(x) for x in found] == [Unreadable, Document, Unreadable, Document]
    assert isinstance(found[0], Unreadable)
    assert "3 fields" in found[0].reason


def test_unclosed_quote_is_reported() -> None:
    found = read("t.csv", b'text,k\none,1\n"two,2\nthree,3\n')
    assert [type(x) for x in found] == [Document, Unreadable]
    assert isinstance(found[1], Unreadable)
    assert found[1].row == ""
    assert "row 2 has a quoted field that is never closed" in found[1].reason
    found = read("t.csv", b'text,k\n"one" more,1\ntwo,2\n')
    assert [type(x) for x in found] == [Unreadable, Document]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("t.jsonl", b""),
        ("t.jsonl", b"\n \n"),
        ("t.csv", b""),
        ("t.csv", b"\r\n\r\n"),
        ("t.csv", b"text,k\n"),
        ("t.parquet", parquet(pa.table({"text": pa.array([], pa.string())}))),
    ],
)
def test_table_without_rows_is_reported_as_empty(path: str, data: bytes) -> None:
    (found,) = read(path, data)
    assert isinstance(found, Unreadable)
    assert found.row == ""
    assert "empty" in found.reason


@pytest.mark.parametrize("path", ["t.jsonl", "t.csv", "t.parquet"])
@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"PAR1nonsensePAR1"])
def test_file_that_is_not_a_table_gives_only_faults(path: str, data: bytes) -> None:
    found = read(path, data)
    assert found
    assert all(isinstance(x, Unreadable) and x.reason for x in found)


def test_damaged_parquet_file_yields_the_rows_before_the_damage() -> None:
    rows = {"text": [f"text {i} " * 20 for i in range(3000)]}
    data = bytearray(parquet(rows, row_group_size=1000, compression="NONE", use_dictionary=False))
    place = data.index(b"text 2100 ")
    # the header of the page with row 2100
    data[data.rindex(b"text 1999 ", 0, place) + 200 : place - 100] = b"\xff" * (
        place - 100 - data.rindex(b"text 1999 ", 0, place) - 200
    )
    found = read("t.parquet", bytes(data))
    assert sum(isinstance(x, Document) for x in found) >= 1000
    last = found[-1]
    assert isinstance(last, Unreadable)
    assert last.row == ""
    assert f"rows {len(found)} to 3000 of 3000" in last.reason


def test_columns_of_every_type_become_json_metadata() -> None:
    moment = datetime.datetime(2014, 2, 3, 4, 5, 6, 789, tzinfo=datetime.UTC)
    columns = {
        "text": pa.array(["x"]),
        "date": pa.array([datetime.date(2014, 2, 3)]),
        "title": pa.array([7]),
        "ns": pa.array([moment], pa.timestamp("ns", "UTC")),
        "odd ns": pa.array([1_391_400_306_000_000_789], pa.int64()).cast(pa.timestamp("ns")),
        "took": pa.array([1_500_000_001], pa.int64()).cast(pa.duration("ns")),
        "at": pa.array([3_600_000_000_001], pa.int64()).cast(pa.time64("ns")),
        "price": pa.array([decimal.Decimal("12.30")]),
        "text bytes": pa.array(["Zoë".encode()]),
        "raw": pa.array([b"\xff\xfe\0"]),
        "tags": pa.array([["a", None]]),
        "nested": pa.array([{"when": moment, "x": float("nan")}]),
        "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "yes": pa.array([True]),
        "kind": pa.array(["a"]).dictionary_encode(),
        "none": pa.array([None], pa.null()),
    }
    (found,) = read("t.parquet", parquet(pa.table(columns)))
    assert isinstance(found, Document)
    assert (found.title, found.date) == ("7", "2014-02-03")
    assert json.loads(found.raw_data or "") == {
        "ns": "2014-02-03T04:05:06.000789+00:00",
        "odd ns": "2014-02-03T04:05:06",
        "took": 1.5,
        "at": "01:00:00",
        "price": "12.30",
        "text bytes": "Zoë",
        "raw": "//4A",
        "tags": ["a", None],
        "nested": {"when": "2014-02-03T04:05:06.000789+00:00", "x": None},
        "pairs": [["k", 1]],
        "yes": True,
        "kind": "a",
        "none": None,
    }


def test_invalid_utf_8_in_parquet_is_a_fault_of_its_row() -> None:
    texts = pa.array([b"fine", b"\xff\xfe", b"fine too"]).view(pa.string())
    found = read("t.parquet", parquet(pa.table({"text": texts})))
    assert [type(x) for x in found] == [Document, Unreadable, Document]
    (as_bytes,) = read("t.parquet", parquet({"text": ["Zoë".encode()]}))
    assert isinstance(as_bytes, Document)
    assert as_bytes.text == "Zoë"


def test_title_and_date_columns_are_optional() -> None:
    row = {"body": "x", "headline": "H", "on": 2014, "title": "t", "date": "d"}
    options = {"text_column": "body", "title_column": "headline", "date_column": "on"}
    (found,) = read("t.jsonl", lines(row), **options)
    assert isinstance(found, Document)
    assert (found.title, found.date, found.metadata) == ("H", "2014", {"title": "t", "date": "d"})
    (found,) = read("t.jsonl", lines(row), text_column="body", title_column=None, date_column=None)
    assert isinstance(found, Document)
    assert (found.title, found.date) == ("t 1", None)


class Endless(io.RawIOBase):
    """An infinite table that counts the bytes read."""

    def __init__(self, head: bytes, row: bytes) -> None:
        self.taken = 0
        self._buffer, self._row = head, row

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        while len(self._buffer) < size:
            self._buffer += self._row * 10_000
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        self.taken += size
        return taken


@pytest.mark.parametrize(
    ("path", "head", "row"),
    [("t.csv", b"text,k\n", b'"a text, quoted",1\n'), ("t.jsonl", b"", b'{"text": "a text"}\n')],
)
def test_tables_are_streamed(path: str, head: bytes, row: bytes) -> None:
    stream = Endless(head, row)
    documents: Iterator[Document | Unreadable] = documents_in(path, stream, Input())  # type: ignore[arg-type]
    rows = [next(documents) for _ in range(1000)]
    assert all(isinstance(x, Document) for x in rows)
    assert stream.taken < 8_000_000


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n,;\"'\t{}"), max_size=20)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8))
def test_csv_and_jsonl_round_trip(rows: list[tuple[str, str]]) -> None:
    records = [{"text": text, "note": note} for text, note in rows]
    for path, data in (("t.csv", as_csv(records)), ("t.jsonl", lines(*records))):
        found = read(path, data)
        if not any(text.strip() for text, _ in rows):
            assert not any(isinstance(x, Document) for x in found)
            continue
        assert len(found) == len(rows)
        for value, (text, note) in zip(found, rows, strict=True):
            if isinstance(value, Document):
                assert (value.text, value.metadata["note"]) == (text, note)
            else:
                assert not text.strip()


def test_reading_and_chunking_need_neither_pandas_nor_a_network_library() -> None:
    code = """
import io, sys
for name in ("ray", "openai", "fsspec", "s3fs", "pandas"):
    sys.modules[name] = None
from graphrag_ray.corpus import chunks, readers
from graphrag_ray.base.index_settings import Chunking, Input
from graphrag_ray.corpus.tokens import vocabulary_for
(document,) = readers.documents_in("a.csv", io.BytesIO(b"text\\nhello"), Input())
units = chunks.text_units_table(document, Chunking(), vocabulary_for("gpt-4o").name)
assert chunks.documents_table([document]).num_rows == units.num_rows == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def repeated(value: str, rows: int, column: str = "text") -> pa.Table:
    """Rows with the same value, which a Parquet file stores once."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))
    if column == "text":
        return pa.table({"text": values})
    once = pa.array(["The text."])
    return pa.table({"text": once, column: pa.ListArray.from_arrays([0, rows], values)})


@pytest.mark.parametrize("column", ["text", "tags"])
def test_decoded_size_of_a_row_group_is_limited(column: str) -> None:
    data = parquet(repeated("a" * 1_000_000, 1_000, column), compression="zstd", store_schema=False)
    assert len(data) < 2_000
    *_, last = documents_in("t.parquet", io.BytesIO(data), Input(max_bytes=100_000_000))
    assert isinstance(last, Unreadable)
    assert "input.max_bytes (100,000,000)" in last.reason and "row groups" in last.reason


def test_memory_for_repeated_text_is_limited() -> None:
    data = parquet(repeated("a" * 1_000_000, 1_000), compression="zstd", store_schema=False)
    before = pa.total_allocated_bytes()
    found = documents_in("t.parquet", io.BytesIO(data), Input())
    held = [pa.total_allocated_bytes() - before for _ in found]
    assert len(held) == 1_000 and max(held) < 20_000_000


def test_row_group_beyond_the_limit_does_not_affect_others() -> None:
    rows = {"text": ["a", "b", "c" * 2_000, "d" * 2_000, "e", "f"]}
    data = parquet(pa.table(rows), row_group_size=2, use_dictionary=False)
    first, second, lost, *rest = read("t.parquet", data, max_bytes=1_000)
    assert isinstance(lost, Unreadable) and lost.reason.startswith("rows 3 to 4 were skipped")
    assert [d.text for d in (first, second, *rest) if isinstance(d, Document)] == ["a", "b", "e", "f"]


def test_dictionary_columns_are_read() -> None:
    rows = [
        {"text": "One", "tags": ["x", None], "by": {"name": "Ulla", "n": 1}, "of": [("k", "x")], "raw": b"x"},
        {"text": "Two", "tags": None, "by": None, "of": None, "raw": None},
        {"text": "Six", "tags": [], "by": {"name": None, "n": None}, "of": [("k", None), ("l", "x")]},
    ] * 300
    by = pa.struct([("name", pa.string()), ("n", pa.int64())])
    of, raw = pa.map_(pa.string(), pa.string()), pa.binary()
    kinds = {"text": pa.large_string(), "tags": pa.list_(pa.string()), "by": by, "of": of, "raw": raw}
    table = pa.Table.from_pylist(rows, schema=pa.schema(kinds))
    table = table.append_column("year", pa.array([2014, 2015, None] * 300).dictionary_encode())
    table = table.append_column("kind", pa.array(["a", "b", None] * 300).dictionary_encode())
    found = [read("t.parquet", parquet(table, use_dictionary=encoded)) for encoded in (True, False)]
    assert found[0] == found[1] and all(isinstance(d, Document) for d in found[0])
