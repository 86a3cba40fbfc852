"""Find the sentences in a cited record's chunks that support the statements of the answer about it.

A passage of the answer is the text before a reference, back to the previous reference or the start of the
paragraph. Its quotations are searched verbatim. For its other words, the sentence is selected that shares
most of them, weighted by their rarity (idf). Words are compared by their first letters, the simplest stemmer
and the only one that suits most languages (McNamee and Mayfield 2004, "Character n-gram tokenization for
European language text retrieval").
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.context_records import Reference, find_references, parse_references
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
"""Minimum weighted share of a passage's words that a sentence must contain to be evidence."""
DIGITS = 12
MAX_SENTENCES = 5
"""Maximum number of sentences per record. Verbatim quotations are always included."""

_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)]|#+)\s)")
_HEADING = re.compile(r"^[^\S\n]*(?:[-*•]\s+)?\*\*[^*\n]+\*\*:?|^[^\S\n]*#+ [^\n]*", re.MULTILINE)
_STRAIGHT_QUOTED = re.compile(r'"([^"\n]+)"')
_STEM_LENGTH = 6
_VARIANTS = {"'": "['’‘]", "’": "['’‘]", "‘": "['’‘]", '"': '["“”]', "“": '["“”]', "”": '["“”]'}


@dataclass(frozen=True, slots=True)
class Evidence:
    """A span of the chunk at position `text` that supports a passage of the answer or is quoted in it.

    `share` is the weighted share of the passage's words that the span contains, or 1 for a quotation.
    """

    text: int
    start: int
    end: int
    passage: str
    verbatim: bool
    share: float


def passages(answer: str) -> dict[Reference, list[str]]:
    """Map each cited record, given by its number in the answer, to the passages that cite it."""
    cited: dict[Reference, list[str]] = {}
    position, before = 0, ""
    for start, marker in find_references(answer):
        parts = [p for p in _PARAGRAPH.split(answer[position:start]) if _words(_HEADING.sub("", p))]
        passage = _HEADING.sub("", parts[-1]).strip() if parts else ""
        before = passage if _words(passage) else before  # adjacent references share a passage
        position = marker.end()
        for reference in parse_references(marker.group()):
            of_reference = cited.setdefault(reference, [])
            if before and before not in of_reference:
                of_reference.append(before)
    return cited


def find_evidence(
    passages: Sequence[str], texts: Sequence[str], starts: Sequence[bool] = ()
) -> tuple[list[Evidence], list[float]]:
    """Find evidence for passages in the texts of chunks.

    Args:
        starts: Whether each text starts a document. Empty if all do.

    Returns:
        The evidence: quotations, then sentences by descending share until there are MAX_SENTENCES spans; and
        the greatest share of each chunk, for ranking chunks. Of equal sentences the first is selected.
    """
    normalised = [_normalise(t) for t in texts]
    verbatim: list[Evidence] = []
    paraphrased: list[str] = []
    for passage in passages:
        curly = quotations_in(passage)
        straight = [m.group(1) for m in _STRAIGHT_QUOTED.finditer(_without(passage, curly))]
        quotes = [q for q in dict.fromkeys([*curly, *straight]) if is_searchable(q)]
        for quote in quotes:
            if position := _find(quote, texts, normalised):
                verbatim.append(Evidence(*position, quote, verbatim=True, share=1.0))
            else:
                paraphrased.append(quote)
        unquoted = _without(passage, quotes)
        paraphrased += [unquoted[a:b] for a, b in sentences(unquoted)]
    best, shares = _best_sentences(paraphrased, texts, starts or [True] * len(texts))
    for span in verbatim:
        shares[span.text] = 1.0
    selected: list[Evidence] = []
    for span in [*verbatim, *sorted(best, key=lambda s: -s.share)]:
        if not span.verbatim and len(selected) >= MAX_SENTENCES:
            break
        if not any(s.text == span.text and s.start < span.end and span.start < s.end for s in selected):
            selected.append(span)
    return selected, shares


def _without(passage: str, quotes: Sequence[str]) -> str:
    for quote in quotes:
        passage = passage.replace(quote, " ")
    return passage.strip()


def _find(quote: str, texts: Sequence[str], normalised: Sequence[str]) -> tuple[int, int, int] | None:
    """Find a quotation or its longest part, ignoring case and spacing. Returns chunk, start and end."""
    longest = max(quotation_parts(quote), key=len, default="")
    parts = dict.fromkeys((longest, longest.strip(" ,;.:")))
    for wanted in [quote, *filter(is_searchable, parts)]:
        key = _normalise(wanted)
        pattern = r"\s+".join("".join(_VARIANTS.get(c, re.escape(c)) for c in w) for w in wanted.split())
        for number, text in enumerate(normalised):
            if key in text and (match := re.search(pattern, texts[number], re.IGNORECASE)):
                return number, match.start(), match.end()
    return None


def _normalise(text: str) -> str:
    folded = " ".join(text.casefold().split())
    return folded.translate({ord(c): "'" if "'" in chars else '"' for c, chars in _VARIANTS.items()})


def _best_sentences(
    passages: Sequence[str], texts: Sequence[str], starts: Sequence[bool]
) -> tuple[list[Evidence], list[float]]:
    """Find the best sentence for each passage, and the greatest share of each chunk."""
    spans, words = [], []
    for number, text in enumerate(texts if passages else ()):
        for start, end in quotable_sentences(text, starts[number]):
            if sentence_words := frozenset(_words(text[start:end])):
                spans.append((number, start, end))
                words.append(sentence_words)
    shares = np.zeros(len(texts))
    if not words:
        return [], shares.tolist()
    sentences_with: defaultdict[str, list[int]] = defaultdict(list)
    for position, sentence_words in enumerate(words):
        for word in sentence_words:
            sentences_with[word].append(position)
    postings = {word: np.array(positions) for word, positions in sentences_with.items()}
    idf = {w: math.log((1 + len(words)) / len(positions)) for w, positions in postings.items()}
    unknown = math.log(1 + len(words))
    numbers, lengths = np.array([number for number, _, _ in spans]), np.array([len(w) for w in words])
    by_chance = 0.75 + 0.25 * lengths / lengths.mean()  # a long sentence shares words by chance
    evidence = []
    for passage in passages:
        wanted = sorted(set(_words(passage)))
        total = sum(idf.get(w, unknown) for w in wanted)
        if len(wanted) < MIN_WORDS or not total:
            continue
        share = np.zeros(len(words))
        for word in wanted:
            if word in postings:
                share[postings[word]] += idf[word]
        share /= total
        np.maximum.at(shares, numbers, share)
        # Round, because sums of the same weights in another order differ in the last digits.
        best = int(np.argmax(np.where(share >= MIN_SHARE, (share / by_chance).round(DIGITS), -1.0)))
        if share[best] >= MIN_SHARE:
            number, start, end = spans[best]
            end = quotation_end(texts[number], start, end)
            evidence.append(Evidence(number, start, end, passage, verbatim=False, share=float(share[best])))
    return evidence, shares.tolist()


def _words(text: str) -> list[str]:
    return [w[:_STEM_LENGTH] for w in folded_words(text)]
