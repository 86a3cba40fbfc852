"""Documents and text units as Arrow tables."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import ids, schema
from graphrag_ray.base.index_settings import Chunking
from graphrag_ray.corpus.chunks import chunk_header, documents_table, text_units_table
from graphrag_ray.corpus.document import Document
from graphrag_ray.corpus.document_titles import MAX_TITLE
from graphrag_ray.corpus.tokens import count_tokens

V = "cl100k_base"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
DOCUMENT = st.builds(
    Document,
    path=TEXT,
    row=TEXT,
    title=TEXT,
    text=TEXT,
    date=st.none() | TEXT,
    metadata=st.dictionaries(TEXT, st.none() | TEXT | st.integers(-5, 5) | st.lists(TEXT), max_size=3),
    encoding=st.sampled_from(["utf-8", "cp1252"]),
)


@given(st.lists(DOCUMENT, max_size=5))
def test_documents_are_rows_of_the_schema(documents: list[Document]) -> None:
    table = documents_table(iter(documents))
    table.validate(full=True)
    assert table.schema == schema.DOCUMENTS
    for row, document in zip(table.to_pylist(), documents, strict=True):
        assert row == {
            "id": ids.document_id(document.path, document.row),
            "human_readable_id": 0,
            "title": document.title,
            "text": document.text,
            "text_unit_ids": [],
            "creation_date": document.date,
            "raw_data": document.raw_data,
            "path": document.path,
            "row": document.row,
            "content_hash": document.content_hash,
            "encoding": document.encoding,
            "date_source": document.date_source,
        }


@given(st.text(st.sampled_from("ab \n漢😀e\u0301"), max_size=300), st.integers(1, 30))
def test_text_units_are_exact_slices_of_the_document(text: str, size: int) -> None:
    document = Document("a.txt", "", "A", text)
    table = text_units_table(document, Chunking(size=size, overlap=size // 3), V)
    table.validate(full=True)
    assert table.schema == schema.TEXT_UNITS
    rows = table.to_pylist()
    assert len({r["id"] for r in rows}) == len(rows)
    for position, row in enumerate(rows):
        assert row["text"] == document.text[row["start"] : row["end"]]
        assert row["n_tokens"] == count_tokens(row["text"], V)
        assert (row["position"], row["document_id"], row["human_readable_id"]) == (position, document.id, 0)
        assert row["entity_ids"] == row["relationship_ids"] == row["covariate_ids"] == []


def test_chunks_with_the_same_text_have_different_ids() -> None:
    document = Document("a.txt", "", "A", "Item one was agreed. " * 60)
    rows = text_units_table(document, Chunking(size=20, overlap=0, min_last_chunk_tokens=0), V).to_pylist()
    assert len(rows) > 3
    assert len({r["text"] for r in rows}) == 1
    assert [r["id"] for r in rows] == [
        ids.text_unit_id(document.id, rows[0]["text"], n) for n in range(len(rows))
    ]


def test_appended_paragraph_does_not_change_earlier_ids() -> None:
    text = " ".join(f"Item {i} was agreed." for i in range(500))
    options = Chunking(size=200, overlap=50)
    before = text_units_table(Document("a", "", "A", text), options, V)["id"].to_pylist()
    after = text_units_table(Document("a", "", "A", text + "\n\nNew."), options, V)["id"].to_pylist()
    assert before[:-1] == after[: len(before) - 1]


@pytest.mark.parametrize(
    ("prepend", "date", "expected"),
    [
        ((), "2014", ""),
        (("title",), "2014", "Title: The Accord\n\n"),
        (("title", "date"), "2014", "Title: The Accord\nDate: 2014\n\n"),
        (("date", "title"), "2014", "Date: 2014\nTitle: The Accord\n\n"),
        (("title", "date"), None, "Title: The Accord\n\n"),
        (("date",), None, ""),
        (("title", "author"), None, "Title: The Accord\nauthor: Mara Venn, Bo Lind\n\n"),
        (("metadata.title", "place.town", "publisher"), None, "title: A pact\nplace.town: Bree\n\n"),
    ],
)
def test_header_has_a_line_for_each_available_field(
    prepend: tuple[str, ...], date: str | None, expected: str
) -> None:
    options = Chunking(prepend_metadata=prepend)
    columns = {"author": ["Mara Venn", "Bo\nLind"], "title": "A pact", "place": {"town": "Bree"}}
    document = Document("a", "", " The\nAccord ", "Some text.", date, columns)
    assert chunk_header(document, options)("") == expected
    assert text_units_table(document, options, V)["header"].to_pylist() == [expected]


def test_automatic_header_omits_redundant_titles() -> None:
    auto = Chunking(size=40, overlap=0, min_last_chunk_tokens=0, prepend_metadata="auto")
    accord = Document("a.csv", "3", "The Accord", "The Accord\n" + "They agreed on it. " * 12, "2014")
    first, *rest = text_units_table(accord, auto, V)["header"].to_pylist()
    assert first == "Date: 2014\n\n" and set(rest) == {"Title: The Accord\nDate: 2014\n\n"}
    for path, row, title in (("x/Q1.txt", "", "Q1"), ("rows.csv", "7", "rows 7")):
        assert chunk_header(Document(path, row, title, "Some text."), auto)("") == ""


def test_very_long_title_is_shortened_in_the_header() -> None:
    header = chunk_header(Document("a", "", "word " * 1000, "x"), Chunking(prepend_metadata=("title",)))("")
    assert len(header) <= MAX_TITLE + len("Title: \n\n")
    assert header.endswith("…\n\n")


def test_a_document_without_text_has_no_text_units() -> None:
    table = text_units_table(Document("a", "", "A", " \n"), Chunking(), V)
    assert table.schema == schema.TEXT_UNITS
    assert table.num_rows == 0
    assert pa.concat_tables([table, table]).num_rows == 0
