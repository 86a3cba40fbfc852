"""From an answer back to the text: which sentences of the chunks under a cited record carry what the answer
says with reference to that record.

A passage of the answer is what stands before a reference, back to the reference before it or to the start
of the paragraph. What it quotes is looked for as it stands; for what it says in words of its own, the
sentence that shares most of its words, weighted by their rarity (idf), is taken. Words are compared by
their first letters, the plainest of all stemmers and the only one that fits most languages (McNamee and
Mayfield 2004, "Character n-gram tokenization for European language text retrieval").
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.records import Reference, find_references, references_in
from graphrag_ray.corpus.boundaries import sentences
from graphrag_ray.corpus.quotes import (
    MIN_WORDS,
    can_be_found,
    folded_words,
    quotable,
    quoted,
    quotes_in,
    shortened,
)

MIN_SHARE = 0.25
"""Of a passage's words, by weight: with less in common a sentence is no evidence."""
DIGITS = 12
MAX_FOUND = 5
"""For one record. Quotations that were found as they stand are never left out."""

_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)]|#+)\s)")
_HEADING = re.compile(r"^[^\S\n]*(?:[-*•]\s+)?\*\*[^*\n]+\*\*:?|^[^\S\n]*#+ [^\n]*", re.MULTILINE)
_STRAIGHT = re.compile(r'"([^"\n]+)"')
_STEM = 6
_ALIKE = {"'": "['’‘]", "’": "['’‘]", "‘": "['’‘]", '"': '["“”]', "“": '["“”]', "”": '["“”]'}


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of a chunk that carries something of the answer.

    text         number of the chunk; start, end: where in it
    passage      what of the answer it carries
    verbatim     the answer quotes it
    share        of the passage's words, by weight, that it holds; 1 where it is quoted
    """

    text: int
    start: int
    end: int
    passage: str
    verbatim: bool
    share: float


def passages(answer: str) -> dict[Reference, list[str]]:
    """Each record that an answer cites, by the number that it shows -> what it says with reference to it."""
    found: dict[Reference, list[str]] = {}
    at, before = 0, ""
    for start, marker in find_references(answer):
        parts = [p for p in _PARAGRAPH.split(answer[at:start]) if _words(_HEADING.sub("", p))]
        said = _HEADING.sub("", parts[-1]).strip() if parts else ""
        before = said if _words(said) else before  # a reference next to another is to the same passage
        at = marker.end()
        for reference in references_in(marker.group()):
            said_of = found.setdefault(reference, [])
            if before and before not in said_of:
                said_of.append(before)
    return found


def evidence(
    said: Sequence[str], texts: Sequence[str], starts: Sequence[bool] = ()
) -> tuple[list[Found], list[float]]:
    """What carries the passages, quotations first, then by falling share; and [len(texts)] the greatest
    share of each chunk, by which chunks can be ranked.

    At most MAX_FOUND, but every quotation that is found. Of equal sentences the first is taken.

    starts: of each text, whether a document begins with it; of none: all do
    """
    normal = [_normal(t) for t in texts]
    verbatim: list[Found] = []
    paraphrased: list[str] = []
    for passage in said:
        curly = quoted(passage)
        straight = [m.group(1) for m in _STRAIGHT.finditer(_without(passage, curly))]
        quotes = [q for q in dict.fromkeys([*curly, *straight]) if can_be_found(q)]
        for quote in quotes:
            if place := _find(quote, texts, normal):
                verbatim.append(Found(*place, quote, verbatim=True, share=1.0))
            else:
                paraphrased.append(quote)
        rest = _without(passage, quotes)
        paraphrased += [rest[a:b] for a, b in sentences(rest)]
    best, shares = _overlap(paraphrased, texts, starts or [True] * len(texts))
    for found in verbatim:
        shares[found.text] = 1.0
    kept: list[Found] = []
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
    """(chunk, start, end) of the first place where a quotation stands, but for white space, capitals and
    the form of quotation marks; where it stands nowhere, of its longest part between omissions."""
    longest = max(quotes_in(quote), key=len, default="")
    parts = dict.fromkeys((longest, longest.strip(" ,;.:")))
    for wanted in [quote, *filter(can_be_found, parts)]:
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
) -> tuple[list[Found], list[float]]:
    """The best sentence for each passage, where one is good enough; the greatest share of each chunk."""
    spans, words = [], []
    for number, text in enumerate(texts if said else ()):
        for start, end in quotable(text, starts[number]):
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
    places = {word: np.array(at) for word, at in holding.items()}
    idf = {w: math.log((1 + len(words)) / len(at)) for w, at in places.items()}
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
        # Rounded, so that sentences that are equal but for the order of a sum are equal.
        best = int(np.argmax(np.where(share >= MIN_SHARE, (share / by_chance).round(DIGITS), -1.0)))
        if share[best] >= MIN_SHARE:
            number, start, end = spans[best]
            end = shortened(texts[number], start, end)
            found.append(Found(number, start, end, passage, verbatim=False, share=float(share[best])))
    return found, shares.tolist()


def _words(text: str) -> list[str]:
    return [w[:_STEM] for w in folded_words(text)]
