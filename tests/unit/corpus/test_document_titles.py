"""Headers and labels of documents, without redundant titles."""

from __future__ import annotations

import pytest

from graphrag_ray.corpus.document_titles import (
    document_header,
    document_label,
    explicit_title,
    name_from_title,
)

MINUTES = ("Minutes of September", "2023-09-14", "minutes.jsonl", "9")


def test_header_has_title_and_date_with_the_month_in_words():
    result = "Minutes of September\n2023-09-14 (14 September 2023)\n\n"
    assert document_header(*MINUTES, "The mill was sold.") == result
    assert document_header("Minutes", "2023-09", "m.txt", "", "") == "Minutes\n2023-09 (September 2023)\n\n"
    assert document_header("Minutes", "last spring", "a.txt", "", "") == "Minutes\nlast spring\n\n"
    assert document_header("Minutes", "2023-13-40", "a.txt", "", "") == "Minutes\n2023-13-40\n\n"


def test_label_has_title_and_date_in_one_line():
    assert document_label(*MINUTES) == "Minutes of September (2023-09-14)"
    assert document_label("Two\n lines", None, "a.html", "") == "Two lines"
    assert (
        document_label(None, "2023", "a.txt", "") == "2023" and document_label(None, None, "a.txt", "") == ""
    )


def test_selected_metadata_follow_title_and_date():
    more = "author: Mara Venn\nheard: 2023-10\n"
    result = "Minutes of September\n2023-09-14 (14 September 2023)\n"
    result += "author: Mara Venn\nheard: 2023-10 (October 2023)\n\n"
    assert document_header(*MINUTES, "It rained.", more) == result
    told = "Minutes of September (2023-09-14); author: Mara Venn; heard: 2023-10"
    assert document_label(*MINUTES, more) == told
    assert document_label(None, None, "a.txt", "", more) == "author: Mara Venn; heard: 2023-10"


@pytest.mark.parametrize("text", ["Teutberga\nTeutberga was", "# teutberga\n\nShe was", "**Teutberga** was"])
def test_title_at_the_start_of_the_text_is_not_repeated(text: str):
    of = ("Teutberga", None, "passages.jsonl", "p0")
    assert document_header(*of, text) == ""
    assert document_label(*of) == "Teutberga", "equal for all chunks of the document"


@pytest.mark.parametrize("text", ["She was a queen. Teutberga died.", "Teutbergas Haus"])
def test_title_elsewhere_in_the_text_is_included(text: str):
    assert document_header("Teutberga", None, "passages.jsonl", "p0", text) == "Teutberga\n\n"


def test_file_name_is_included_with_its_parts():
    of = ("TranscriptFY24Q1", None, "calls/TranscriptFY24Q1.txt", "")
    assert document_header(*of, "Azure grew.") == "TranscriptFY24Q1 Transcript FY24Q1 FY24 Q1\n\n"
    assert document_label(*of) == "TranscriptFY24Q1"
    of = ("minutes_2023_09", None, "minutes_2023_09.txt", "")
    assert document_header(*of, "It rained.") == "minutes_2023_09 (September 2023)\n\n"


def test_explicit_title_is_not_split_into_parts():
    assert document_header("LaTeX and McDonald", None, "a.html", "", "") == "LaTeX and McDonald\n\n"


def test_title_that_counts_rows_is_omitted():
    assert document_header("letters 3", None, "letters.csv", "3", "Dear Ann") == ""
    assert document_label("letters 3", "1903", "letters.csv", "3") == "1903"
    assert document_label("letters FY24Q1", None, "letters.csv", "FY24Q1") == "letters FY24Q1"


def test_title_derived_from_the_file_name_is_not_an_own_title():
    assert (
        explicit_title("a", "x/a.txt", "")
        == explicit_title("b 3", "b.csv", "3")
        == explicit_title(None, "a", "")
        == ""
    )
    assert explicit_title("A tale", "x/a.txt", "") == "A tale"


def test_very_long_title_is_shortened():
    told = document_header("word " * 1_000, None, "a.csv", "1", "text")
    assert len(told) < 310 and told.endswith("…\n\n")


@pytest.mark.parametrize(
    ("title", "path", "row", "name"),
    [
        ("Mercury (planet)", "a.jsonl", "7", "Mercury"),
        ("東京【都市】", "a.jsonl", "7", "東京"),
        ("(Untitled)", "a.jsonl", "7", "(Untitled)"),
        ("  Saw\n Thanda ", "a.jsonl", "7", "Saw Thanda"),
        ("a 7", "a.jsonl", "7", ""),
        ("", "a.jsonl", "7", ""),
        ("07-harbour_minutes", "x/07-harbour_minutes.txt", "", "07 harbour minutes"),
        (None, "x/Ada Lind.md", "", "Ada Lind"),
        ("f (a (b) c)", "a.jsonl", "7", "f (a (b) c)"),
    ],
)
def test_document_is_named_after_its_title_without_brackets(
    title: str | None, path: str, row: str, name: str
):
    assert name_from_title(title, path, row) == name
