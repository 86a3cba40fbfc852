"""The title, date and opening of a document."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Input
from graphrag_ray.corpus.document import Document
from graphrag_ray.corpus.document_context import identify, opening
from graphrag_ray.corpus.document_dates import date_in_first_lines, date_in_name
from graphrag_ray.corpus.tokens import count_tokens

ISO = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
LINES = st.lists(st.text(max_size=60), max_size=8).map("\n".join)


@pytest.mark.parametrize(
    ("line", "date"),
    [
        ("Bergen, 18 May 2017", "2017-05-18"),
        ("Bergen, 4 May 1930.", "1930-05-04"),
        ("No. 41 - Autumn 2019, 3 October 2019", "2019-10-03"),
        ("Published: 2021-03-09", "2021-03-09"),
        ("Date: Thu, 4 Nov 2021 10:00:00 +0000", "2021-11-04"),
        ("*April 6, 2021*", "2021-04-06"),
        ("May 2021", "2021-05"),
        ("13.05.2023", "2023-05-13"),
        ("05/13/2023", "2023-05-13"),
        ("Oslo, den 3. mai 2021", "2021-05-03"),
        ("am 3. März 2020", "2020-03-03"),
        ("Paris, le 1er août 1914", "1914-08-01"),
        ("Madrid, 4 de julio de 2020", "2020-07-04"),
        ("Москва, 5 мая 1999 г.", "1999-05-05"),
        ("2024年6月14日", "2024-06-14"),
        ("BERGEN, November 12, 2024 - In the year to June 30, 2024, sales rose again.", "2024-11-12"),
        ("12/05/2023", None),  # May or December?
        ("31 February 2020", None),
        ("He died on 4 May 1930.", None),
        ("Ivo Lund (9 October 1892 – 13 March 1975) was a writer", None),
        ("Ivo Lund (Bergen, 9 October 1892 – Oslo, 13 March 1975) was a writer", None),
        ("On 3 March 2019 the mill burned, and the town had no bread for weeks and weeks after it", None),
        ("the 2019-20 season", None),
        ("Autumn 2019", None),
    ],
)
def test_the_date_of_a_first_line(line, date):
    assert date_in_first_lines(f"A title\n\n{line}\n\nText.") == date


@pytest.mark.parametrize(
    ("path", "date"),
    [
        ("2023-06-14-remarks.txt", "2023-06-14"),
        ("remarks_3_May_2021.md", "2021-05-03"),
        ("20230614.txt", "2023-06-14"),
        ("2023/06/14/remarks.txt", "2023-06-14"),
        ("2019/2019-03-report.txt", "2019-03"),
        ("reports/annual-2019.txt", "2019"),
        ("budget 2019-2020.txt", None),
        ("release-1.10.txt", None),
        ("FY24Q1.txt", None),
    ],
)
def test_the_date_of_a_file_name(path, date):
    assert date_in_name(path) == date


@given(LINES)
def test_found_dates_exist(text):
    for date in (date_in_first_lines(text), date_in_name(text)):
        if date is not None:
            assert ISO.fullmatch(date)
            datetime.date.fromisoformat(f"{date}-01-01"[:10])


@given(st.dates(min_value=datetime.date(1500, 1, 1), max_value=datetime.date(2099, 12, 31)), st.data())
def test_a_date_is_found_as_it_is_usually_written(date, data):
    style = data.draw(st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%d %B %Y", "%B %d, %Y", "%Y/%m/%d"]))
    assert date_in_first_lines(f"Minutes\nBergen, {date.strftime(style)}\n") == date.isoformat()


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("TOWN HALL\nIn the canteen.", "TOWN HALL"),
        ("=====\nNotes\n=====\nText.", "Notes"),
        ("標題\n本文", "標題"),
        ("All of it in one line.", "a"),
        ("He went home.\nThen he slept.", "a"),
        ("NORA LIND: Good morning.\nIVAR LIND: Morning.", "a"),
        ("a.txt\nText.", "a"),
    ],
)
def test_a_file_without_title_is_named_after_its_first_line(text, title):
    assert identify(Document("a.txt", "", "a", text), Input()).title == title


def test_metadata_take_precedence():
    document = Document("2020-01-01.txt", "", "Given", "Other\n2 May 2021\nText.", "in May")
    found = identify(document, Input())
    assert (found.title, found.date, found.date_source) == ("Given", "in May", "metadata")


def test_where_a_date_was_found_is_recorded():
    def found(path, text, row=""):
        document = identify(Document(path, row, "a", text), Input())
        return document.date, document.date_source

    assert found("2020-01-01.txt", "Title\n2 May 2021\nText.") == ("2021-05-02", "text")
    assert found("2020-01-01.txt", "Text.") == ("2020-01-01", "file name")
    assert found("2020-01-01.csv", "Text.", row="1") == (None, None)


@given(LINES.filter(str.strip), st.sampled_from(["", "7"]))
def test_without_document_context_a_document_stays_as_it_is(text, row):
    document = Document("2020-01-01.txt", row, "a", text)
    assert identify(document, Input(document_context="metadata")) == document
    assert opening(document, Input(document_context="metadata"), "o200k_base") == ""


@given(LINES.filter(str.strip), st.integers(1, 30))
def test_the_opening_is_one_short_line_from_the_start_of_the_text(text, max_tokens):
    document = identify(Document("a.txt", "", "a", text), Input())
    words = opening(document, Input(document_context_tokens=max_tokens), "o200k_base")
    quoted = words.removesuffix(" …")
    assert "\n" not in words
    assert quoted in " ".join(text.split())
    assert count_tokens(quoted, "o200k_base") <= max_tokens + 1


def test_the_opening_does_not_repeat_the_title():
    document = Document("a.md", "", "Minutes", "# Minutes\n\nThe board met.")
    assert opening(document, Input(), "o200k_base") == "The board met."
