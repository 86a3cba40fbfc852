"""Shorten long records to the parts nearest to a question, so that a context shows more of them.

A text with more than `query.passage_tokens` tokens is split into segments of whole sentences. The relevance
of a segment is the mean of its cosine similarity to the question, by the offline embedding, and of the share
of the question's words that it contains, weighted by their rarity (idf); both are scaled to their maximum.
Every long text keeps its most relevant segment. The other segments of all long texts compete for the rest of
an average size per text. So all of them stay in the context, and the most relevant ones show the most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from graphrag_ray.corpus.boundaries import last_word_end, sentences
from graphrag_ray.corpus.quotes import folded_words
from graphrag_ray.graph.report_context import Count, Record
from graphrag_ray.query.methods.method import SearchEnv, Similarities, Steps

SEGMENT_TOKENS = 60
"""Consecutive sentences are joined up to this size, because a short sentence says little on its own."""
GAP = " […] "
"""Marks a part that is left out."""
DIGITS = 6
_STEM_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of the text with the number `text`."""

    text: int
    start: int
    end: int
    n_tokens: int


def excerpts(
    records: Sequence[Record], question: str, env: SearchEnv, size: float = 1.0
) -> Steps[list[Record]]:
    """Shorten the last field of long records to its most relevant segments.

    Args:
        size: Average size of the excerpts, as a share of `query.passage_tokens`.
    """
    limit = env.settings.query.passage_tokens
    # A token has at least one byte, so a short text need not be counted.
    long = [
        n
        for n, record in enumerate(records)
        if limit
        and len(record.fields[-1].encode("utf-8", "surrogatepass")) > limit
        and env.count(record.fields[-1]) > limit
    ]
    if not limit or not long:
        return list(records)
    parts = [s for n in long for s in segments(records[n].fields[-1], n, limit, env.count)]
    texts = [records[s.text].fields[-1][s.start : s.end] for s in parts]
    cosines: list[float] = yield Similarities(question, texts)
    chosen = choose(parts, relevance(cosines, word_shares(question, texts)), int(size * limit) * len(long))
    shown = list(records)
    for number, spans in groupby(sorted(chosen, key=lambda s: (s.text, s.start)), lambda s: s.text):
        *fields, text = records[number].fields
        shown[number] = replace(records[number], fields=(*fields, join(text, list(spans))))
    return shown


def segments(text: str, number: int, limit: int, count: Count) -> list[Segment]:
    """Split a text into segments of at most SEGMENT_TOKENS, or a sentence of at most `limit` tokens."""
    found: list[Segment] = []
    for start, end, n_tokens in (
        piece for span in sentences(text) for piece in _pieces(text, *span, limit, count)
    ):
        last = found[-1] if found else None
        if last and last.n_tokens + n_tokens <= min(SEGMENT_TOKENS, limit):
            found[-1] = Segment(number, last.start, end, last.n_tokens + n_tokens)
        else:
            found.append(Segment(number, start, end, n_tokens))
    return found


def _pieces(text: str, start: int, end: int, limit: int, count: Count) -> Iterator[tuple[int, int, int]]:
    """Halve a sentence until its parts have at most `limit` tokens, after whole words where possible."""
    n_tokens = count(text[start:end])
    if n_tokens <= limit or end - start < 2:
        yield start, end, n_tokens
        return
    middle = (start + end) // 2
    middle = last_word_end(text, start, middle) or middle
    yield from _pieces(text, start, middle, limit, count)
    yield from _pieces(text, middle, end, limit, count)


def word_shares(question: str, texts: Sequence[str]) -> list[float]:
    """Return the share of the question's words in each text, weighted by rarity among the texts."""
    words = [{word[:_STEM_LENGTH] for word in folded_words(text)} for text in texts]
    wanted = {word[:_STEM_LENGTH] for word in folded_words(question)}
    frequency = Counter(word for text in words for word in text & wanted)
    idf = {word: math.log((1 + len(texts)) / n) for word, n in sorted(frequency.items())}
    total = sum(idf.values())
    return [sum(idf[word] for word in sorted(text & wanted)) / total if total else 0.0 for text in words]


def relevance(*scores: Sequence[float]) -> list[float]:
    """Return the mean of several scores per text, each scaled so that the highest is 1."""
    scaled = [np.clip(s, 0.0, None) / (max(s, default=0.0) or 1.0) for s in map(np.array, scores)]
    means: list[float] = np.mean(scaled, axis=0).round(DIGITS).tolist()
    return means


def choose(parts: Sequence[Segment], relevant: Sequence[float], room: int) -> list[Segment]:
    """Choose the best segment of each text, then the best of the others until one does not fit."""
    order = [parts[n] for n in sorted(range(len(parts)), key=lambda n: (-relevant[n], n))]
    first = list({segment.text: segment for segment in reversed(order)}.values())
    chosen, left = set(first), room - sum(segment.n_tokens for segment in first)
    for segment in order:
        if segment not in chosen:
            left -= segment.n_tokens
            if left < 0:
                break
            chosen.add(segment)
    return [segment for segment in parts if segment in chosen]


def join(text: str, spans: Sequence[Segment]) -> str:
    """Join segments in reading order. A gap marks every part of the text that is left out."""
    pieces, end = [], 0
    for span in spans:
        between = text[end : span.start]
        pieces += [GAP if between.strip() else between, text[span.start : span.end]]
        end = span.end
    return "".join([*pieces, GAP if text[end:].strip() else ""]).strip()
