"""Reading text files and HTML pages as documents."""

import io
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import ids
from graphrag_ray.base.index_settings import Input
from graphrag_ray.corpus import parse
from graphrag_ray.corpus.readers import Document, Unreadable, documents_in, extensions


def read(path: str, data: bytes, **options: object) -> Document | Unreadable:
    (found,) = documents_in(path, io.BytesIO(data), Input(**options))  # type: ignore[arg-type]
    return found


def document(path: str, data: bytes, **options: object) -> Document:
    found = read(path, data, **options)
    assert isinstance(found, Document), found
    return found


def reason(path: str, data: bytes, **options: object) -> str:
    found = read(path, data, **options)
    assert isinstance(found, Unreadable), found
    assert (found.path, found.row) == (path, "")
    return found.reason


def test_text_file_is_one_document_named_after_the_file() -> None:
    found = document("town/03 minutes.v2.TXT", "# Not a heading\r\nZoë spoke.\rEnd".encode())
    assert found == Document(
        path="town/03 minutes.v2.TXT",
        row="",
        title="03 minutes.v2",
        text="# Not a heading\nZoë spoke.\nEnd",
        date=None,
        metadata={},
        encoding="utf-8",
    )
    assert found.id == ids.document_id("town/03 minutes.v2.TXT")
    assert found.raw_data is None


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Intro\n\n## The *Accord* of 2014 ##\n# Later", "The *Accord* of 2014"),
        ("```sh\n# a comment\n```\n# Real", "Real"),
        ("~~~\n```\n# no\n~~~\n# Real", "Real"),
        ("#hashtag\n#\n    # code", "notes"),
        ("no heading", "notes"),
    ],
)
def test_a_markdown_title_is_its_first_heading(text: str, title: str) -> None:
    assert document("notes.md", text.encode()).title == title


@pytest.mark.parametrize("path", ["a.txt", "a.md", "a.html", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b" \r\n\t\n"])
def test_empty_file_is_marked_as_empty(path: str, data: bytes) -> None:
    found = read(path, data)
    assert isinstance(found, Unreadable) and found.empty and "empty" in found.reason


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("a.html", b"<script>x()</script>"),
        ("a.csv", b"text,k\n"),
        ("a.parquet", b""),
        ("a.txt", b"\0\1\2" * 9),
    ],
)
def test_file_with_content_but_no_document_is_a_fault(path: str, data: bytes) -> None:
    found = read(path, data)
    assert isinstance(found, Unreadable) and not found.empty


def test_strip_pattern_removes_the_start_of_the_text() -> None:
    name = r"[^\n]*\.txt\s"
    assert (
        document("a.txt", b"file-12.txt The text.\r\nMore.txt ", strip_pattern=name).text
        == "The text.\nMore.txt "
    )
    assert document("a.txt", b"No name. See b.\n", strip_pattern=name).text == "No name. See b.\n"
    assert document("a.md", b"x.txt\n# Title\nx", strip_pattern=name).title == "Title"
    assert document("a.html", b"<p>a.txt one</p>", strip_pattern=name).text == "a.txt one"
    assert "strip_pattern" in reason("a.txt", b"file.txt \n", strip_pattern=name)


def test_strip_pattern_with_catastrophic_backtracking_fails_the_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parse, "_STRIP_S", 0.1)
    why = reason("a.txt", b"a" * 40 + b"!", strip_pattern=r"(a|aa)+$")
    assert "input.strip_pattern takes longer than 0.1 s" in why and "null" in why
    assert document("b.txt", b"Some text", strip_pattern=r"(a|aa)+$").text == "Some text"


def test_page_has_title_date_and_text() -> None:
    html = (
        '<html><head><title>Harbour plan</title><meta name="date" content="2014-02-03"></head>'
        "<body><p>One&#13;&#10;two.</p></body></html>"
    )
    found = document("plan.htm", html.encode())
    assert (found.title, found.date, found.text) == ("Harbour plan", "2014-02-03", "One two.")
    assert document("plan.html", b"<p>x</p>").title == "plan"


def test_page_is_decoded_with_its_declared_encoding() -> None:
    html = '<meta charset="koi8-r"><p>Жаров</p>'
    found = document("a.html", html.encode("koi8-r"))
    assert (found.text, found.encoding) == ("Жаров", "koi8-r")


@pytest.mark.parametrize("data", [b"", b" \r\n\t \n", b"\xef\xbb\xbf", "\u2003\u00a0".encode()])
@pytest.mark.parametrize("path", ["a.txt", "a.md", "a.html"])
def test_blank_file_is_reported_as_empty(path: str, data: bytes) -> None:
    assert reason(path, data).startswith("empty")


def test_page_without_text_is_reported_as_empty() -> None:
    assert reason("a.html", b"<title>T</title><script>x()</script><p> </p>").startswith("empty")


def test_binary_file_is_reported() -> None:
    assert "binary" in reason("a.txt", b"\x89PNG\r\n\x1a\n\0\0")


def test_file_over_the_limit_is_rejected_without_reading_all_of_it() -> None:
    stream = io.BytesIO(b"x" * 5_000_000)
    (found,) = documents_in("big.txt", stream, Input(max_bytes=1_000_000))
    assert isinstance(found, Unreadable)
    assert "input.max_bytes (1,000,000)" in found.reason
    assert stream.tell() < 5_000_000
    assert document("a.txt", b"x" * 1000, max_bytes=1000).text == "x" * 1000


def test_file_name_that_is_not_utf_8_is_escaped() -> None:
    name = b"minutes-\xff.txt".decode("utf-8", "surrogateescape")
    for data in (b"The text.", b""):
        (found,) = documents_in(name, io.BytesIO(data), Input())
        assert found.path == "minutes-\\udcff.txt"
        found.path.encode("utf-8")


def test_unknown_format_lists_the_known_formats() -> None:
    assert ".pdf" in reason("a.pdf", b"%PDF")
    assert all(extension in reason("README", b"x") for extension in extensions())


def test_stream_error_is_raised() -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise ConnectionError("gone")

    stream: BinaryIO = Broken()  # type: ignore[assignment]
    for path in ("a.txt", "a.csv", "a.jsonl", "a.html"):
        with pytest.raises(ConnectionError):
            list(documents_in(path, stream, Input()))


def test_stream_error_in_parquet_is_raised() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        list(documents_in("a.parquet", Broken(b"PAR1" * 100), Input()))


def test_content_hash_changes_with_the_content() -> None:
    base = Document("a", "", "Title", "Text", "2014", {"k": 1}, "utf-8")
    others = [
        Document("a", "", "Title2", "Text", "2014", {"k": 1}),
        Document("a", "", "Title", "Text2", "2014", {"k": 1}),
        Document("a", "", "Title", "Text", None, {"k": 1}),
        Document("a", "", "Title", "Text", "", {"k": 1}),
        Document("a", "", "Title", "Text", "2014", {"k": 2}),
        Document("a", "", "TextTitle", "", "2014", {"k": 1}),
    ]
    assert len({base.content_hash, *(o.content_hash for o in others)}) == 7
    # path, encoding and the order of columns are not content
    assert Document("b", "3", "Title", "Text", "2014", {"k": 1}, "cp1252").content_hash == base.content_hash
    two, owt = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert (
        Document("a", "", "", "", None, two).content_hash == Document("a", "", "", "", None, owt).content_hash
    )


@given(st.text(alphabet=st.sampled_from("ab é😀\r\n\t"), min_size=1))
def test_reader_changes_only_line_ends(text: str) -> None:
    found = read("a.txt", text.encode())
    if isinstance(found, Unreadable):
        assert not text.strip()
    else:
        assert found.text == text.replace("\r\n", "\n").replace("\r", "\n")
