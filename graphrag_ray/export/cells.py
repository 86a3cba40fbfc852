"""Columns of text as other programs may read them: for XML, and for spreadsheets."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_LINE_END = r"\r\n?"
_NOT_XML = r"[\x{0}-\x{8}\x{b}\x{c}\x{e}-\x{1f}\x{7f}-\x{9f}\x{fffe}\x{ffff}]"
"""Control characters but tab and line feed, and the two other code points that XML 1.0 does not have. (It
has U+007F to U+009F, but discourages them; they steer terminals.)"""
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
_FORMULA = f"^[{_SIGNS}\t\r\n]"
"""What OWASP ("CSV Injection") names as the beginning of a cell that a spreadsheet may take for a formula,
the full-width forms included."""
_NEW_CELL = f"([;\t]\\s*[\"']?)([{_SIGNS}])"
"""The same where a new cell begins for a spreadsheet that separates at semicolons or tabs."""
_XML = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"))


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text with \\n line ends and without control characters."""
    lines = pc.replace_substring_regex(column, _LINE_END, "\n")
    return pc.replace_substring_regex(lines, _NOT_XML, "")


def for_xml(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same, escaped for elements and attributes of an XML document."""
    escaped = plain(column)
    for character, entity in _XML:
        escaped = pc.replace_substring(escaped, character, entity)
    return escaped


def for_spreadsheet(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same as `plain`, and with a single quote before what a spreadsheet would calculate, also where it
    takes semicolons or tabs in the text for separators."""
    cleaned = pc.replace_substring_regex(plain(column), _NEW_CELL, r"\1'\2")
    guarded = pc.binary_join_element_wise("'", cleaned, "")
    return pc.if_else(pc.match_substring_regex(cleaned, _FORMULA), guarded, cleaned)
