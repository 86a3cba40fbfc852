"""Format counts, durations and untrusted text for messages."""

from __future__ import annotations

import re
from typing import Any

_ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and line feed, line and paragraph separators, and text direction overrides.
C1 control characters are included because some terminals obey them in UTF-8."""


def plural(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun: `1 file`, `2,000 files`. `many` defaults to `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def strip_ansi(text: str) -> str:
    """Remove terminal escape sequences."""
    return _ANSI_ESCAPE.sub("", text)


def shorten(text: str, max_chars: int) -> str:
    """Shorten a text to at most `max_chars` characters, including an ellipsis."""
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"


def price_hint(model: str) -> str:
    """Explain how to set the price of a model, given its name under `models`."""
    return f"--set models.{model}.price.input_usd_per_mtok=… (and output_usd_per_mtok)"


def format_duration(seconds: float) -> str:
    """Format a duration in one unit: `40 s`, `12 min`, `24 h`, `3 days`."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit != "days" and seconds >= size):
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def escape_control(text: str) -> str:
    """Escape characters that control a terminal, as `\\x1b` or `\\u202e`."""
    return _CONTROL_CHARACTERS.sub(lambda m: ascii(m.group())[1:-1], text.replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """Escape characters that control a terminal in JSON text."""
    return _CONTROL_CHARACTERS.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def collapse_whitespace(text: str, max_chars: int | None = None) -> str:
    """Collapse whitespace, and shorten a text of more than `max_chars` characters with an ellipsis."""
    collapsed = " ".join(text.split())
    return collapsed if max_chars is None else shorten(collapsed, max_chars)


_FORMULA = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
_MARKDOWN = re.compile(r"[\\`*\[\]<>]|:(?=//)")


def escape_markdown(text: str) -> str:
    """Escape Markdown, so that front ends show no images or links from the corpus."""
    return _MARKDOWN.sub(r"\\\g<0>", text)


def spreadsheet_cell(value: Any) -> Any:
    """Put a single quote before text that a spreadsheet may evaluate as a formula (OWASP, CSV Injection)."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def document_location(path: str, row: str) -> str:
    """Format the location of a document for people: "file" or "file, row 3"."""
    return f"{path}, row {row}" if row else path
