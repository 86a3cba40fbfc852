"""Stable string ids: hashes of natural keys, the same in every run.

Ids are 32 hex characters (128 bits of SHA-256) and uniformly distributed. Tables are partitioned by their
leading bits, so rows sorted by id have the same order with any number of partitions.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

ID_LENGTH = 32
MAX_MARKS = 30
"""Maximum number of consecutive combining marks, as in Unicode's stream-safe text format (UAX 15)."""

QUOTES = "\"'“”‘’` "
"""Characters stripped from both ends of entity keys."""
WORD_PATTERN = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+"
)
"""A word, or a single character of Thai, Lao, Burmese, Khmer, Chinese, Japanese or Korean text."""
UNSPACED_SCRIPT = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""A character of a script that puts no spaces between words. Korean does, so it is not included."""
_MAX_SHORT_NAME_CHARS = 3
"""A single-word name of at most this length keeps its punctuation: C, C++, C#."""
_LONG_NUMBER = re.compile(r"&#([0-9]{9,});?")
_MAY_BE_MARK = re.compile("[\u0300-\u1fff\u20d0-\U0001efff]")
"""Covers all combining marks, but neither accented Latin letters nor typographic quotation marks."""


def stable_id(kind: str, *natural_key: str) -> str:
    """Hash a kind of record and its natural key.

    Each part is prefixed with its length, so ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.sha256(kind.encode())
    for part in natural_key:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(f"\x00{len(data)}\x00".encode() + data)
    return digest.hexdigest()[:ID_LENGTH]


def entity_key(name: str) -> str:
    """Normalise a name to the key by which mentions are merged (GraphRAG paper, 3.1.3: exact matching).

    Applies Unicode NFC, unescapes HTML, removes control and format characters, collapses whitespace, strips
    quotes and converts to upper case. Aliases (`graph/aliases.py`) are applied to the result.
    """
    if name.isascii() and name.isprintable() and "&" not in name:
        return " ".join(name.upper().split()).strip(QUOTES)  # fast path with the same result
    text = unicodedata.normalize("NFC", limit_combining_marks(name))
    if "&" in text:
        text = html.unescape(_LONG_NUMBER.sub(_short_number, text))
    text = "".join(" " if c in "\t\n\r\v\f\x85\u2028\u2029" else c for c in text)
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    text = " ".join(text.split())
    text = text.strip(QUOTES)
    return unicodedata.normalize("NFC", limit_combining_marks(" ".join(text.upper().split())))


def limit_combining_marks(text: str, replacement: str = "") -> str:
    """Replace combining marks after the first MAX_MARKS of a run: normalising takes quadratic time."""
    if len(text) <= MAX_MARKS or not _MAY_BE_MARK.search(text):
        return text
    return _long_mark_runs().sub(lambda m: m[0][:MAX_MARKS] + replacement * (len(m[0]) - MAX_MARKS), text)


@cache
def _long_mark_runs() -> re.Pattern[str]:
    """A pattern for runs of more than MAX_MARKS combining marks, which are all below U+1F000."""
    marks = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.combining(c))
    return re.compile(f"[{marks}]{{{MAX_MARKS + 1},}}")


def _short_number(reference: re.Match[str]) -> str:
    """Drop leading zeros from a character reference: int() rejects strings of more than 4,300 digits."""
    digits = reference[1].lstrip("0")
    return f"&#{digits};" if len(digits) < 9 else "\ufffd"


def name_id(name: str) -> str:
    """Return the id of a name in the name-link index, or "" if `entity_key` of the name is empty.

    Case is ignored. Punctuation is ignored too, except in a single short ASCII word (C++) or in a name made
    of punctuation only.
    """
    key = entity_key(name)
    words = name_words(key)
    if not words or (len(words) == 1 and len(words[0]) <= _MAX_SHORT_NAME_CHARS and words[0].isascii()):
        return stable_id("name", key) if key else ""
    return stable_id("name", *words)


def name_words(text: str) -> list[str]:
    """Split a text into runs of letters, digits and their combining marks (vowel signs, accents)."""
    if text.isascii():
        return WORD_PATTERN.findall(text)
    return "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text).split()


def document_id(path: str, row: str = "") -> str:
    """Hash a document's path relative to INPUT (with forward slashes) and its row id in a table file."""
    return stable_id("document", path, row)


def text_unit_id(document: str, text: str, occurrence: int) -> str:
    """Hash a chunk. `occurrence` is its zero-based index among identical chunks of the document."""
    return stable_id("text_unit", document, text, str(occurrence))


def entity_id(key: str) -> str:
    return stable_id("entity", key)


def relationship_id(source_key: str, target_key: str) -> str:
    """Hash an undirected relationship: the order of its ends does not matter."""
    return stable_id("relationship", *sorted((source_key, target_key)))


def claim_id(subject: str, object_: str, type_: str, description: str, text_unit: str) -> str:
    return stable_id("claim", subject, object_, type_, description, text_unit)


def community_id(hierarchy: str, level: int, members: npt.NDArray[np.uint64]) -> str:
    """Hash a community by its members, so that it keeps its id while they stay the same.

    `members` are the first 64 bits of each member's id (`id_prefixes`), in any order.
    """
    digest = hashlib.sha256(np.sort(members).astype(">u8").tobytes()).hexdigest()
    return stable_id("community", hierarchy, str(level), digest)


def report_id(community: str) -> str:
    return stable_id("report", community)


def id_prefixes(ids: list[str]) -> npt.NDArray[np.uint64]:
    """Return the first 64 bits of each id. Joins on the driver use them to save memory."""
    return np.fromiter((int(i[:16], 16) for i in ids), dtype=np.uint64, count=len(ids))
