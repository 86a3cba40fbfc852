"""Names that the corpus as a whole does not bear out.

One chunk may hold a name only where its capital means little. Whether it is a name the corpus decides:
how often it is written as names are, with a capital in mid-sentence, against how often it is an ordinary
lower-case word (truecasing: Lita, Ittycheriah, Roukos and Kambhatla, "tRuEcasIng", ACL 2003).
Descriptions are quotations, so the casing of the corpus can be read in them.
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


def lower_case_words(descriptions: Iterable[str | None]) -> Counter[str]:
    """How often each word stands in lower case in some distinct descriptions. Counts of parts of a
    corpus add up to those of the whole."""
    return Counter(w for text in set(descriptions) if text for w in _LOWER.findall(text))


def weak_names(instances: pa.Table, in_lower: Mapping[str, int]) -> pa.Array:
    """Ids of entities to leave out: names of one word that the corpus writes in lower case more often than
    as a name.

    instances: rows of schema.ENTITY_INSTANCES, all of a key together, sorted by entity_id.
    in_lower: `lower_case_words` of the whole corpus.
    """
    known = zip(*written_as_names(instances), strict=True)
    return pa.array([id_ for id_, word, n in known if word and in_lower.get(word, 0) > n], pa.string())


def written_as_names(instances: pa.Table) -> tuple[list[str], list[str], list[int]]:
    """For each entity its id, its name in lower case, where it is one word, and how many descriptions write
    it as a name; "" and 0 for others. Two capitalised words side by side are evidence by themselves, and so
    are capitals throughout, so names of several words and acronyms are never weak.

    instances: as for `weak_names`
    """
    ids, titles, texts = (instances[c].to_pylist() for c in ("entity_id", "title", "description"))
    keys, words, counts = [], [], []
    for id_, group in groupby(range(len(ids)), key=ids.__getitem__):
        rows = list(group)
        title = titles[rows[0]]
        is_word = " " not in title
        keys.append(id_)
        words.append(title.lower() if is_word else "")
        counts.append(sum(_holds_name(title, texts[r] or "") for r in rows) if is_word else 0)
    return keys, words, counts


def word_hash(word: str) -> int:
    """64 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1


def _holds_name(title: str, description: str) -> bool:
    """Whether a word stands somewhere in capitals, or with one where no sentence, quotation or parenthesis
    begins."""
    wanted, lowered = _lower(title), _lower(description)
    opened: list[int] | None = None
    end = 0
    while wanted and (start := lowered.find(wanted, end)) >= 0:
        end = start + len(wanted)
        word = description[start:end]
        if lowered[start - 1 : start].isalnum() or lowered[end : end + 1].isalnum() or word == word.lower():
            continue
        if len(word) > 1 and word.isupper():
            return True
        opened = [m.end() for m in _BREAK.finditer(description)] if opened is None else opened
        before = bisect_right(opened, start)
        if _WORD.search(description, opened[before - 1] if before else 0, start):
            return True
    return False


def _lower(text: str) -> str:
    """In lower case, character by character: places stay the same."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
