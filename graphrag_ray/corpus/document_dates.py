"""Find the date of a document in its first lines or its file name.

A date counts only where documents state their own date: in a short line of its own, such as a masthead, or in
a dateline at the start of a paragraph. Dates in running text, ranges and lines with several dates say nothing
about the document. Numeric dates count only if day and month cannot be confused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

import regex

from graphrag_ray.base.dates import date_with_year_last, valid_date

_MAX_LINES = 15
_MAX_CHARACTERS = 2_000
_SHORT_LINE = 120  # maximum length of a masthead
_DATELINE = 80  # a dateline has its date within as many characters
_MAX_DASH = 6  # maximum length of the dash and the spaces between the dates of a range
_MAX_WORDS = 12  # maximum number of words next to the date in a masthead
_SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
_MAX_FINAL_WORDS = 2  # a masthead with a full stop has at most this many words next to the date

_YEAR = r"(?P<year>(?:1[5-9]|20)\d\d)"
_MONTH = r"(?P<name>[\p{L}\p{M}]{3,14}+)\.?"
_LINK = r"(?:de|del|of|d['’])"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th|er|[ºª.])?"
_NUMBERS = (
    rf"{_YEAR}(?P<mark>[-/.])(?P<month>\d{{1,2}})(?P=mark)(?P<day>\d{{1,2}})(?:T[\d:.+Z-]{{1,30}})?",
    rf"(?P<first>\d{{1,2}})(?P<mark>[-/.])(?P<second>\d{{1,2}})(?P=mark){_YEAR}",
)
_WORDS = (
    rf"{_DAY}\s{{1,3}}(?:{_LINK}\s{{0,3}})?{_MONTH},?\s{{1,3}}(?:{_LINK}\s{{1,3}})?{_YEAR}",
    rf"{_MONTH}\s{{1,3}}{_DAY},?\s{{1,3}}{_YEAR}",
    rf"{_MONTH},?\s{{1,3}}(?:{_LINK}\s{{1,3}})?{_YEAR}",
)
_CHINESE = rf"(?<!\d){_YEAR}\s?[年년]\s?(?P<month>\d{{1,2}})\s?[月월](?:\s?(?P<day>\d{{1,2}})\s?[日일])?"
_PATTERNS = (
    *(
        regex.compile(rf"(?<![\w.,/-])(?:{pattern})(?![\w/-]|[.,]\d)", regex.IGNORECASE)
        for pattern in (*_NUMBERS, *_WORDS)
    ),
    regex.compile(_CHINESE),
)
_DASH = regex.compile(r"\s*(?:[-–—―]|--)\s")
_IN_NAME = regex.compile(
    rf"(?<!\d){_YEAR}(?:[-_./ ]?(?P<month>0[1-9]|1[0-2])(?:[-_./ ]?(?P<day>0[1-9]|[12]\d|3[01]))?)?(?!\d)"
)
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*+")


def date_in_first_lines(text: str) -> str | None:
    """Return the date at the start of a text, as YYYY-MM-DD or YYYY-MM, or None."""
    lines = (line.strip() for line in text[:_MAX_CHARACTERS].splitlines())
    for line in [line for line in lines if line][:_MAX_LINES]:
        if date := _date_of_line(line):
            return date
    return None


def date_in_name(path: str) -> str | None:
    """Return the date in a path, as YYYY-MM-DD, YYYY-MM or YYYY, or None if it has none or several."""
    name = str(PurePosixPath(path).with_suffix("")) if PurePosixPath(path).name else path
    spaced = regex.sub("[_-]+", " ", name)
    written = {date for date, _ in _dates(spaced)}
    numeric = {date for m in _IN_NAME.finditer(name) if (date := valid_date(m["year"], m["month"], m["day"]))}
    dates = written or numeric
    longest = max(dates, key=len, default=None)
    # A folder named after the year or month of its files agrees with their names.
    return longest if longest and all(longest.startswith(date) for date in dates) else None


def _date_of_line(line: str) -> str | None:
    if not regex.search(r"\d{4}", line[:_SHORT_LINE]):
        return None
    dates = sorted(_dates(line[: 2 * _SHORT_LINE]), key=lambda date: date[1])
    if not dates:
        return None
    date, (start, end) = dates[0]
    is_range = len(dates) > 1 and dates[1][1][0] - end <= _MAX_DASH
    is_bracketed = line.count("(", 0, start) > line.count(")", 0, start)  # as the dates of a life
    if end <= _DATELINE and _DASH.match(line, end) and not is_range and not is_bracketed:
        return date
    if len({date for date, _ in dates}) != 1:
        return None
    n_words = len(_WORD.findall(line[:start])) + len(_WORD.findall(line[end:]))
    limit = _MAX_FINAL_WORDS if line.endswith(_SENTENCE_ENDS) else _MAX_WORDS
    return date if len(line) <= _SHORT_LINE and n_words <= limit else None


def _dates(line: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the dates of a line with their spans. Of overlapping ones, the first pattern's counts."""
    taken: list[tuple[int, int]] = []
    for pattern in _PATTERNS:
        for match in pattern.finditer(line):
            start, end = match.span()
            if any(start < e and s < end for s, e in taken):
                continue
            date = _date_of(match.groupdict())
            if date is not None:
                taken.append((start, end))
            if date:
                yield date, (start, end)


def _date_of(parts: dict[str, str]) -> str | None:
    """Return a date in ISO 8601, "" if it is ambiguous or does not exist, or None if it is no date."""
    if first := parts.get("first"):
        return date_with_year_last(first, parts["mark"], parts["second"], parts["year"])
    name = parts.get("name")
    month = _months().get(name.casefold()) if name else parts.get("month")
    return valid_date(parts["year"], month, parts.get("day")) if month else None


def is_month(word: str) -> bool:
    """Whether a case-folded word names a month."""
    return word in _months()


@cache
def _months() -> dict[str, str]:
    """The names of the months in some 35 languages (Unicode CLDR 47), one line per month."""
    lines = resources.files("graphrag_ray.corpus").joinpath("months.txt").read_text("utf-8").splitlines()
    return {name: str(n) for n, line in enumerate(lines, 1) for name in line.split()}
