"""Stable string ids: hashes of natural keys, equal in every run.

Ids are 32 hex characters (128 bits of SHA-256) and uniformly distributed, so tables are partitioned by their
leading bits, and the order by id does not depend on the number of partitions.
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
"""Maximum number of combining marks in a row, as in Unicode's stream-safe text format (UAX 15)."""

QUOTES = "\"'“”‘’` "
"""Stripped from both ends of entity keys."""
WORD_PATTERN = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+"
)
"""A word, or one character of a script without spaces between words."""
UNSPACED_SCRIPT = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""A character of a script without spaces between words."""
_SHORT_NAME = 3
"""Single-word names of at most this length keep their punctuation: C, C++, C#."""
_LONG_NUMBER = re.compile(r"&#([0-9]{9,});?")


def stable_id(kind: str, *natural_key: str) -> str:
    """Hash a kind of record and its natural key. Parts are length-prefixed: ("a", "bc") and ("ab", "c")
    differ."""
    digest = hashlib.sha256(kind.encode())
    for part in natural_key:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(f"\x00{len(data)}\x00".encode() + data)
    return digest.hexdigest()[:ID_LENGTH]


def entity_key(name: str) -> str:
    """The key that merges mentions of an entity (paper 3.1.3: exact string matching).

    Applies Unicode NFC, unescapes HTML, removes control and format characters, collapses whitespace, strips
    quotes and converts to upper case. Aliases (`graph/aliases.py`) are applied to the result.
    """
    if name.isascii() and name.isprintable() and "&" not in name:
        return " ".join(name.upper().split()).strip(QUOTES)  # The steps below would change nothing.
    text = unicodedata.normalize("NFC", limit_combining_marks(name))
    if "&" in text:
        text = html.unescape(_LONG_NUMBER.sub(_short_number, text))
    text = "".join(" " if c in "\t\n\r\v\f\x85\u2028\u2029" else c for c in text)
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    text = " ".join(text.split())
    text = text.strip(QUOTES)
    return unicodedata.normalize("NFC", limit_combining_marks(" ".join(text.upper().split())))


def limit_combining_marks(text: str, instead: str = "") -> str:
    """Replace combining marks beyond MAX_MARKS in a row with `instead`, since normalising n of them takes n²
    steps."""
    if text.isascii() or len(text) <= MAX_MARKS:
        return text
    return _piles().sub(lambda pile: pile[0][:MAX_MARKS] + instead * (len(pile[0]) - MAX_MARKS), text)


@cache
def _piles() -> re.Pattern[str]:
    """Matches runs of more than MAX_MARKS combining marks. All combining marks are below U+1F000."""
    marks = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.combining(c))
    return re.compile(f"[{marks}]{{{MAX_MARKS + 1},}}")


def _short_number(reference: re.Match[str]) -> str:
    """A character reference without leading zeros, since Python refuses numbers of more than 4,300 digits."""
    digits = reference[1].lstrip("0")
    return f"&#{digits};" if len(digits) < 9 else "\ufffd"


def name_id(name: str) -> str:
    """The id of a name in the index of name links; "" for a name without significant characters.

    Case and punctuation between words do not matter, except for a single short ASCII word or a name that
    consists of punctuation only.
    """
    key = entity_key(name)
    words = name_words(key)
    if not words or (len(words) == 1 and len(words[0]) <= _SHORT_NAME and words[0].isascii()):
        return stable_id("name", key) if key else ""
    return stable_id("name", *words)


def name_words(text: str) -> list[str]:
    """Split into runs of letters and digits, including their combining marks (vowel signs, accents)."""
    if text.isascii():
        return WORD_PATTERN.findall(text)
    kept = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text)
    return "".join(kept).split()


def document_id(path: str, row: str = "") -> str:
    """The id of a document, by its path relative to INPUT (forward slashes) and its row id in a table
    file."""
    return stable_id("document", path, row)


def text_unit_id(document: str, text: str, occurrence: int) -> str:
    """The id of a chunk. `occurrence` counts the chunks of the document with the same text from 0."""
    return stable_id("text_unit", document, text, str(occurrence))


def entity_id(key: str) -> str:
    return stable_id("entity", key)


def relationship_id(source_key: str, target_key: str) -> str:
    """The id of an undirected relationship."""
    return stable_id("relationship", *sorted((source_key, target_key)))


def claim_id(subject: str, object_: str, type_: str, description: str, text_unit: str) -> str:
    return stable_id("claim", subject, object_, type_, description, text_unit)


def community_id(hierarchy: str, level: int, members: npt.NDArray[np.uint64]) -> str:
    """The id of a community, which depends on its members only.

    Args:
        hierarchy: Name of the hierarchy.
        level: Level of the community.
        members: The first 64 bits of each member's id (`id_prefixes`), in any order.
    """
    digest = hashlib.sha256(np.sort(members).astype(">u8").tobytes()).hexdigest()
    return stable_id("community", hierarchy, str(level), digest)


def report_id(community: str) -> str:
    return stable_id("report", community)


def id_prefixes(ids: list[str]) -> npt.NDArray[np.uint64]:
    """The first 64 bits of each id, for joins on the driver at 8 bytes per id."""
    return np.fromiter((int(i[:16], 16) for i in ids), dtype=np.uint64, count=len(ids))
