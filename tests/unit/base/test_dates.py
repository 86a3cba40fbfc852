"""Dates of documents, and the periods that they make up."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

import pytest
from hostile_text import SURROGATES, texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import dates
from graphrag_ray.base.dates import date_of_number, describe_period, end_number, iso_date, start_number

_ISO = re.compile(r"\d{4}(-\d{2}(-\d{2}(T\S+)?)?)?", re.ASCII)
days = st.dates(date(1, 1, 1), date(9999, 12, 31))
modern_days = st.dates(date(1975, 1, 1), date(2200, 1, 1))


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2023", "2023"),
        ("2023-05", "2023-05"),
        ("2023/5/7", "2023-05-07"),
        ("20230517", "2023-05-17"),
        ("2023-05-17T10:00:00Z", "2023-05-17T10:00:00"),
        ("13.05.2023", "2023-05-13"),
        ("03.04.2023", "2023-04-03"),
        ("13/05/2023", "2023-05-13"),
        ("05/13/2023", "2023-05-13"),
        ("12/05/2023", ""),
        ("05/05/2023", "2023-05-05"),
        ("1700000000", "2023-11-14T22:13:20"),
        ("1700000000.5", "2023-11-14T22:13:20"),
        ("1700000000000", "2023-11-14T22:13:20"),
        ("2023年5月17日", "2023-05-17"),
        ("2023년 5월", "2023-05"),
        ("٢٠٢٣-٠٥-١٧", "2023-05-17"),
        ("२०२३-०५", "2023-05"),
        ("May 2023", "2023-05"),
        ("17 May 2023", "2023-05-17"),
        ("17 May", ""),
        ("in May", ""),
        ("2023-13", ""),
        ("2023-02-30", ""),
        ("0000", ""),
        ("99.99.2023", ""),
        ("soon", ""),
        ("", ""),
    ],
)
def test_dates_are_read_as_precisely_as_they_are_written(text: str, iso: str):
    assert iso_date(text) == iso


@given(modern_days)
def test_each_notation_of_a_day_is_read_alike(day: date):
    seconds = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    written = [day.isoformat(), f"{day:%Y%m%d}", f"{day:%d.%m.%Y}", f"{day:%d %B %Y}", f"{day:%B %d, %Y}"]
    written += [f"{day.year}年{day.month}月{day.day}日", str(seconds), str(seconds * 1000)]
    assert {iso_date(text)[:10] for text in written} == {day.isoformat()}


@given(days)
def test_slashes_are_unreadable_where_day_and_month_could_be_swapped(day: date):
    ambiguous = day.day <= 12 and day.day != day.month
    for text in (f"{day:%d/%m}/{day.year:04}", f"{day:%m/%d}/{day.year:04}"):
        assert iso_date(text) == ("" if ambiguous else day.isoformat())


@given(texts() | SURROGATES | st.text(st.sampled_from("0123456789-/. :TZ年月日٣२")))
def test_any_text_is_a_valid_date_or_none(text: str):
    iso = iso_date(text)
    assert not iso or _ISO.fullmatch(iso)
    start = start_number(text)
    assert (start == dates.UNKNOWN_START) == (not iso)
    if iso:
        assert date_of_number(start) == date_of_number(end_number(start)) == iso[:10]
        assert iso_date(iso[:10]) == iso[:10]


@given(days, st.sampled_from([4, 7, 10]))
def test_year_or_month_covers_all_of_its_days(day: date, length: int):
    start = start_number(day.isoformat()[:length])
    assert start <= start_number(day.isoformat()) <= end_number(start)


def test_period_is_described_if_known():
    assert describe_period("2017-05-18", "2024-11-12") == "2017-05-18 to 2024-11-12"
    assert describe_period("2023", "2023") == "2023"
    assert describe_period(None, None) == describe_period("2023", None) == ""
