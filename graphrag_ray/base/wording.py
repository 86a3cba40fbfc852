"""Wording of counts and durations, and safe display of text."""

from __future__ import annotations

import re

_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and line feed (C1 too, which some terminals obey in UTF-8), line and
paragraph separators, and text direction overrides."""


def plural(count: int, one: str, many: str = "") -> str:
    """`1 file`, `2,000 files`. `many` defaults to `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def strip_ansi(text: str) -> str:
    """Remove terminal escape sequences."""
    return _COLOR.sub("", text)


def shortened(text: str, most: int) -> str:
    """Cut a text to at most `most` characters, including an ellipsis."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def price_hint(model: str = "default") -> str:
    """How to set the price of a model, given its name under `models`."""
    return f"--set models.{model}.price.input_usd_per_mtok=… (and output_usd_per_mtok)"


def rough_time(seconds: float) -> str:
    """A rounded duration: `40 s`, `12 min`, `24 h`, `3 days`."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit != "days" and seconds >= size):
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def escape_control(text: str) -> str:
    """Escape characters that control a terminal, as `\\x1b` or `\\u202e`."""
    return _STEERING.sub(lambda m: ascii(m.group())[1:-1], text.replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """JSON with characters that control a terminal escaped."""
    return _STEERING.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def one_line(text: str, longest: int | None = None) -> str:
    """Collapse whitespace, and cut a text longer than `longest` with an ellipsis."""
    collapsed = " ".join(text.split())
    return collapsed if longest is None else shortened(collapsed, longest)
