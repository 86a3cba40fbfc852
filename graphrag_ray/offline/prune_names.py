"""Find names that the corpus as a whole does not support.

A word is a name if the corpus capitalises it in mid-sentence more often than it writes it in lower case
(truecasing: Lita et al. 2003, "tRuEcasIng"). Descriptions are quotations, so they have the case of the
corpus.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby

import pyarrow as pa

_LOWER = re.compile(r"(?<![^\W_])[^\W\d_A-Z]+(?![^\W_])")
_BREAK = re.compile(r"[“\"(\[:.?!]")
_WORD = re.compile(r"[^\W_]")


def lower_case_counts(descriptions: Iterable[str | None]) -> Counter[str]:
    """Count each lower-case word in distinct descriptions. Counts of parts can be added."""
    return Counter(w for text in set(descriptions) if text for w in _LOWER.findall(text))


def weak_names(instances: pa.Table, in_lower: Mapping[str, int]) -> pa.Array:
    """Return ids of one-word entities that the corpus writes in lower case more often than as a name.

    Args:
        instances: Rows of schema.ENTITY_INSTANCES, sorted by entity_id.
        in_lower: `lower_case_counts` of the whole corpus.
    """
    known = zip(*capitalised_counts(instances), strict=True)
    return pa.array([id_ for id_, word, n in known if word and in_lower.get(word, 0) > n], pa.string())


def capitalised_counts(instances: pa.Table) -> tuple[list[str], list[str], list[int]]:
    """Return ids, lower-case names, and counts of descriptions that write the entity as a name.

    Names of several words and acronyms are never weak: they have "" and 0. instances: as for `weak_names`.
    """
    ids, titles, texts = (instances[c].to_pylist() for c in ("entity_id", "title", "description"))
    keys, words, counts = [], [], []
    for id_, group in groupby(range(len(ids)), key=ids.__getitem__):
        rows = list(group)
        title = titles[rows[0]]
        is_word = " " not in title
        keys.append(id_)
        words.append(title.lower() if is_word else "")
        counts.append(sum(_contains_name(title, texts[r] or "") for r in rows) if is_word else 0)
    return keys, words, counts


def word_hash(word: str) -> int:
    """Return a 64-bit hash other than 0."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1


def _contains_name(title: str, description: str) -> bool:
    """Whether a word occurs in capitals, or capitalised within a sentence, quotation or parenthesis."""
    wanted, lowered = _lower(title), _lower(description)
    openings: list[int] | None = None
    end = 0
    while wanted and (start := lowered.find(wanted, end)) >= 0:
        end = start + len(wanted)
        word = description[start:end]
        if lowered[start - 1 : start].isalnum() or lowered[end : end + 1].isalnum() or word == word.lower():
            continue
        if len(word) > 1 and word.isupper():
            return True
        openings = [m.end() for m in _BREAK.finditer(description)] if openings is None else openings
        before = bisect_right(openings, start)
        if _WORD.search(description, openings[before - 1] if before else 0, start):
            return True
    return False


def _lower(text: str) -> str:
    """Lower-case text of the same length."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
