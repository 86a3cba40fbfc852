"""Find the sentences of the chunks under a cited record that support what the answer says about it.

A passage of the answer is the text before a reference, back to the previous reference or the start of the
paragraph. Quotations in it are searched verbatim. For its own words, the sentence is chosen that shares most
of them, weighted by their rarity (idf). Words are compared by their first letters, the simplest stemmer and
the only one that suits most languages (McNamee and Mayfield 2004, "Character n-gram tokenization for European
language text retrieval").
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.context_records import Reference, find_references, references_in
from graphrag_ray.corpus.boundaries import sentences
from graphrag_ray.corpus.quotes import (
    MIN_WORDS,
    folded_words,
    is_searchable,
    quotable_sentences,
    quotation_end,
    quotation_parts,
    quotations_in,
)

MIN_SHARE = 0.25
"""Weighted share of a passage's words that a sentence must contain to be evidence."""
DIGITS = 12
MAX_FOUND = 5
"""Maximum number of sentences per record. Verbatim quotations are always kept."""

_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)]|#+)\s)")
_HEADING = re.compile(r"^[^\S\n]*(?:[-*•]\s+)?\*\*[^*\n]+\*\*:?|^[^\S\n]*#+ [^\n]*", re.MULTILINE)
_STRAIGHT = re.compile(r'"([^"\n]+)"')
_STEM = 6
_ALIKE = {"'": "['’‘]", "’": "['’‘]", "‘": "['’‘]", '"': '["“”]', "“": '["“”]', "”": '["“”]'}


@dataclass(frozen=True, slots=True)
class Evidence:
    """A span of the chunk at position `text` that supports a passage of the answer, or quotes it verbatim.

    Its share is the weighted share of the passage's words that it contains; 1 for a quotation.
    """

    text: int
    start: int
    end: int
    passage: str
    verbatim: bool
    share: float


def passages(answer: str) -> dict[Reference, list[str]]:
    """Map each cited record, by the number that the answer shows, to the passages that cite it."""
    cited: dict[Reference, list[str]] = {}
    position, before = 0, ""
    for start, marker in find_references(answer):
        parts = [p for p in _PARAGRAPH.split(answer[position:start]) if _words(_HEADING.sub("", p))]
        passage = _HEADING.sub("", parts[-1]).strip() if parts else ""
        before = passage if _words(passage) else before  # adjacent references share a passage
        position = marker.end()
        for reference in references_in(marker.group()):
            known = cited.setdefault(reference, [])
            if before and before not in known:
                known.append(before)
    return cited


def find_evidence(
    said: Sequence[str], texts: Sequence[str], starts: Sequence[bool] = ()
) -> tuple[list[Evidence], list[float]]:
    """Find evidence for passages in the texts of chunks.

    Args:
        said: The passages.
        starts: Whether each text starts a document; empty if all do.

    Returns:
        Quotations first, then sentences by falling share, at most MAX_FOUND besides quotations; and the
        greatest share of each chunk, by which chunks can be ranked. Of equal sentences the first is chosen.
    """
    normal = [_normal(t) for t in texts]
    verbatim: list[Evidence] = []
    paraphrased: list[str] = []
    for passage in said:
        curly = quotations_in(passage)
        straight = [m.group(1) for m in _STRAIGHT.finditer(_without(passage, curly))]
        quotes = [q for q in dict.fromkeys([*curly, *straight]) if is_searchable(q)]
        for quote in quotes:
            if place := _find(quote, texts, normal):
                verbatim.append(Evidence(*place, quote, verbatim=True, share=1.0))
            else:
                paraphrased.append(quote)
        rest = _without(passage, quotes)
        paraphrased += [rest[a:b] for a, b in sentences(rest)]
    best, shares = _overlap(paraphrased, texts, starts or [True] * len(texts))
    for found in verbatim:
        shares[found.text] = 1.0
    kept: list[Evidence] = []
    for found in [*verbatim, *sorted(best, key=lambda f: -f.share)]:
        if not found.verbatim and len(kept) >= MAX_FOUND:
            break
        if not any(f.text == found.text and f.start < found.end and found.start < f.end for f in kept):
            kept.append(found)
    return kept, shares


def _without(passage: str, quotes: Sequence[str]) -> str:
    for quote in quotes:
        passage = passage.replace(quote, " ")
    return passage.strip()


def _find(quote: str, texts: Sequence[str], normal: Sequence[str]) -> tuple[int, int, int] | None:
    """Find chunk, start and end of a quotation or its longest part, ignoring case and spacing."""
    longest = max(quotation_parts(quote), key=len, default="")
    parts = dict.fromkeys((longest, longest.strip(" ,;.:")))
    for wanted in [quote, *filter(is_searchable, parts)]:
        key = _normal(wanted)
        pattern = r"\s+".join("".join(_ALIKE.get(c, re.escape(c)) for c in w) for w in wanted.split())
        for number, text in enumerate(normal):
            if key in text and (match := re.search(pattern, texts[number], re.IGNORECASE)):
                return number, match.start(), match.end()
    return None


def _normal(text: str) -> str:
    folded = " ".join(text.casefold().split())
    return folded.translate({ord(c): "'" if "'" in alike else '"' for c, alike in _ALIKE.items()})


def _overlap(
    said: Sequence[str], texts: Sequence[str], starts: Sequence[bool]
) -> tuple[list[Evidence], list[float]]:
    """Find the best sentence for each passage, and the greatest share of each chunk."""
    spans, words = [], []
    for number, text in enumerate(texts if said else ()):
        for start, end in quotable_sentences(text, starts[number]):
            if own := frozenset(_words(text[start:end])):
                spans.append((number, start, end))
                words.append(own)
    shares = np.zeros(len(texts))
    if not words:
        return [], shares.tolist()
    holding: defaultdict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(words):
        for word in own:
            holding[word].append(place)
    places = {word: np.array(own) for word, own in holding.items()}
    idf = {w: math.log((1 + len(words)) / len(own)) for w, own in places.items()}
    unknown = math.log(1 + len(words))
    numbers, lengths = np.array([number for number, _, _ in spans]), np.array([len(own) for own in words])
    by_chance = 0.75 + 0.25 * lengths / lengths.mean()  # a long sentence shares words by chance
    found = []
    for passage in said:
        wanted = sorted(set(_words(passage)))
        total = sum(idf.get(w, unknown) for w in wanted)
        if len(wanted) < MIN_WORDS or not total:
            continue
        share = np.zeros(len(words))
        for word in wanted:
            if word in places:
                share[places[word]] += idf[word]
        share /= total
        np.maximum.at(shares, numbers, share)
        # Round, so that sentences whose sums differ only in their order are equal.
        best = int(np.argmax(np.where(share >= MIN_SHARE, (share / by_chance).round(DIGITS), -1.0)))
        if share[best] >= MIN_SHARE:
            number, start, end = spans[best]
            end = quotation_end(texts[number], start, end)
            found.append(Evidence(number, start, end, passage, verbatim=False, share=float(share[best])))
    return found, shares.tolist()


def _words(text: str) -> list[str]:
    return [w[:_STEM] for w in folded_words(text)]
