"""Read dates of documents, and combine them into periods.

A period is a pair of ISO dates, each a year, a month or a day: the earliest and the latest date of some
documents. A year or month counts from its first day in the start of a period, and to its last day in the end.
Integers of the form YYYYMMDD represent dates: `start_number` fills missing parts with 00, `end_number` with
99, so that the period of many documents is a minimum and a maximum.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, date, datetime

MAX_DATE_CHARACTERS = 100
UNKNOWN_START, UNKNOWN_END = 99_999_999, 0
"""The numbers of a document without a readable date."""

_ISO = re.compile(r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2})(?:[T ](\d{2}:\d{2}(?::\d{2})?))?)?)?(?!\d)")
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})(?!\d)")
_CJK = re.compile(r"(\d{4}) ?[年년](?: ?(\d{1,2}) ?[月월](?: ?(\d{1,2}) ?[日일号號])?)?")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?!\d)")
_EPOCH = re.compile(r"(\d{9,10})(?:\d{3})?(?:\.\d*)?")
_LETTERS = re.compile(r"[^\W\d_]{3}")


def iso_date(text: str) -> str:
    """Convert a date to ISO 8601: a year, a month, a day or a time, as precise as the text.

    Reads dates that begin with the year, dates that end with it (13.05.2023, 13/05/2023, 05/13/2023), times
    in seconds or milliseconds since 1970, and English dates in words. With slashes or hyphens, 12/05/2023 is
    ambiguous; with dots, the day comes first. Returns "" for ambiguous dates and other text.
    """
    if len(text) > MAX_DATE_CHARACTERS:
        return ""
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text.strip())
    if match := _EPOCH.fullmatch(text):
        return datetime.fromtimestamp(int(match[1]), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    if match := _COMPACT.match(text) or _CJK.match(text):
        return valid_date(*match.groups())
    if match := _ISO.match(text):
        year, month, day, time = match.groups()
        day_text = valid_date(year, month, day)
        return f"{day_text}T{time}" if day_text and time else day_text
    if match := _YEAR_LAST.match(text):
        return date_with_year_last(*match.groups())
    return _date_in_words(text) if _LETTERS.search(text) else ""


def valid_date(year: str, month: str | None, day: str | None) -> str:
    """Return the parts of a date in ISO 8601, or "" if there is no such day."""
    try:
        checked = date(int(year), int(month or 1), int(day or 1)).isoformat()
    except ValueError:
        return ""
    return checked[: 10 if day else 7 if month else 4]


def date_with_year_last(first: str, mark: str, second: str, year: str) -> str:
    """Return a date such as 13.05.2023 or 05/13/2023 in ISO 8601, or "" if it is ambiguous or does not exist.

    With dots, the day comes first. Otherwise, some countries write the day first and others the month.
    """
    if mark != "." and int(first) != int(second) and max(int(first), int(second)) <= 12:
        return ""
    day, month = (first, second) if int(second) <= 12 else (second, first)
    return valid_date(year, month, day)


def _date_in_words(text: str) -> str:
    from dateutil import parser  # imported lazily: it takes 20 ms, and most questions do not need it

    try:
        # Parts that the text does not state are those of the default.
        low, high = (parser.parse(text, default=datetime(n, n, n, n)) for n in (1, 2))
    except (ValueError, ArithmeticError):
        return ""
    stated = [low.year == high.year, low.month == high.month, low.day == high.day, low.hour == high.hour]
    n_stated = next((n for n, is_stated in enumerate(stated) if not is_stated), len(stated))
    iso = str(low.isoformat())
    return iso if n_stated == len(stated) else iso[: (0, 4, 7, 10)[n_stated]]


def start_number(text: str | None) -> int:
    """Return the first day of a date as YYYYMMDD, or UNKNOWN_START if it is not readable."""
    day = iso_date(text)[:10] if text else ""
    return int(day.replace("-", "").ljust(8, "0")) if day else UNKNOWN_START


def end_number(start: int) -> int:
    """Return the end of the same date, given its `start_number`."""
    if start == UNKNOWN_START:
        return UNKNOWN_END
    return start + (9_999 if start % 10_000 == 0 else 99 if start % 100 == 0 else 0)


def date_of_number(number: int) -> str | None:
    """Return the ISO date of a `start_number` or `end_number`, or None if it is unknown."""
    if number in (UNKNOWN_START, UNKNOWN_END):
        return None
    year, month, day = f"{number:08}"[:4], f"{number:08}"[4:6], f"{number:08}"[6:]
    return "-".join([year, *(part for part in (month, day) if part not in ("00", "99"))])


def describe_period(start: str | None, end: str | None) -> str:
    """Describe a period for models and people: `2017-05-18 to 2024-11-12`, `2023`, or "" if unknown."""
    if not start or not end:
        return ""
    return start if start == end else f"{start} to {end}"


def period_sentence(period: str) -> str:
    """Return the sentence about a period for a prompt, or "" if none is known."""
    return period and f"The documents behind them are dated {period}."
