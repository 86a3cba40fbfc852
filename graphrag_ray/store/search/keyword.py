"""Keyword search: BM25 as Lucene has it (Robertson and Zaragoza 2009, "The Probabilistic Relevance
Framework").

A shard of an index is one file, of which only the postings of the question's words are read:

    high, low  the halves of the records' ids, sorted; top.high: some of the former
    lengths    how many words each has; n_words: all of them together
    words      64-bit hashes of the words, rising; top.words: some of these
    ends       where the postings of each word end
    records    postings: the places of the records that hold the word, rising
    counts     postings: how often each does
    language   in which the words were stemmed, UTF-8

How many records hold a word, and how long records are, counts over all shards of a kind: shards follow the
paths of files, and what is rare in the corpus may be common in one of them.

Words are gone through from the rarest on. Once a record that holds none of the words so far cannot come among
the best any more, only those are looked at that are left (MaxScore: Turtle and Flood 1995, "Query Evaluation:
Strategies and Optimizations"). What is found is the same.

Where few of a shard's records have changed, the next one is derived from it (`changed`): to split texts into
words is what takes most of the time.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.store.search.mapped_arrays import (
    ByteSource,
    Ints,
    Keys,
    Shard,
    halves,
    interleaved,
    packed,
    places_in,
    sorted_halves,
    staying,
    tops,
    unpacked,
)
from graphrag_ray.store.search.vectors import Found, kth
from graphrag_ray.store.search.words import WORDS, words

K1, B = 1.2, 0.75
"""Lucene's: how soon a word's repetitions stop to count, how much a record's length does."""
MOST_COUNTED = 65_535
"""Repetitions of a word in a record."""

_TYPES = {"high": "<u8", "low": "<u8", "top.high": "<u8", "lengths": "<i4", "n_words": "<i8"}
_TYPES |= {"words": "<u8", "top.words": "<u8", "ends": "<i8", "records": "<i4", "counts": "<u2"}
_TYPES |= {"language": "<u1"}

Failed = Callable[[str, BaseException], object]
Postings = Mapping[int, tuple[int, int]]
"""Of each word's hash: where its postings begin and end."""
_Arrays = dict[str, npt.NDArray[Any]]


class KeywordShard(Shard):
    """Arrays as above."""

    @cached_property
    def language(self) -> str:
        return bytes(self.arrays["language"].whole()).decode(errors="replace")

    @cached_property
    def n_words(self) -> int:
        return int(self.arrays["n_words"].whole()[0])

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        return np.asarray(np.maximum(self.arrays["lengths"].whole(), 0))

    def postings(self, wanted: Keys) -> Postings:
        """Of those of the words that it holds."""
        places = places_in(self.arrays["words"], self.arrays["top.words"], wanted)
        known = np.flatnonzero(places >= 0)
        first, last = self.arrays["ends"].spans(places[known])
        spans = zip(first.tolist(), last.tolist(), strict=True)
        return dict(zip(wanted[known].tolist(), spans, strict=True))

    def of(self, span: tuple[int, int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """The records of postings, rising, and how often each holds the word."""
        records = self.arrays["records"].run(*span)
        if len(records) and (
            records[0] < 0 or records[-1] >= len(self) or (records[1:] <= records[:-1]).any()
        ):
            raise self.source.refused("a posting is of no record")
        return records, self.arrays["counts"].run(*span).astype(np.float64)


def build(
    ids: Sequence[str], texts: Sequence[str], language: str = "", failed: Failed | None = None
) -> bytes:
    """The bytes of a shard: the same for the same records, whatever their order.

    language: of `words.WORDS`; "": not known
    failed: told the id of a text that cannot be read, and why, which is a bug; it is then found by no word.
    None: the error is raised
    """
    return _packed(_counted(ids, texts, language, failed), language)


def changed(
    shard: KeywordShard,
    gone: Sequence[str],
    ids: Sequence[str],
    texts: Sequence[str],
    failed: Failed | None = None,
) -> bytes:
    """The bytes of the shard that holds other records: those that `build` makes of them.

    gone: ids of records that it holds no more; ids, texts: of those that come to it, in its language, which
    may be gone ones with other texts; failed: see `build`. Raises what `source.refused` makes where the shard
    is not what `build` makes, or lacks a record that goes, or has one that comes; ValueError for what is no
    id.
    """
    stays = staying(shard, gone)
    left = {name: array.whole() for name, array in shard.arrays.items()}
    held = stays[left["records"]]
    each = np.diff(np.cumsum(held)[left["ends"] - 1], prepend=0)
    left = {
        "high": left["high"][stays],
        "low": left["low"][stays],
        "words": left["words"][each > 0],
        "ends": np.cumsum(each[each > 0]),
        "records": (np.cumsum(stays) - 1)[left["records"][held]],
        "counts": left["counts"][held],
        "lengths": shard.lengths[stays],
    }
    come = _counted(ids, texts, shard.language, failed)
    # Both have no record in common. Quick where few come.
    both = [(some["high"], some["low"]) for some in (left, come)]
    (high, low), of_left, of_come = interleaved(shard.source, *both)
    after, before = (np.searchsorted(left["words"], come["words"], side) for side in ("left", "right"))
    new = after == before
    words = np.insert(left["words"], after[new], come["words"][new])
    postings = np.zeros(len(words), np.int64)
    keys, records = [], []
    lengths = np.empty(len(high), np.int32)
    for of, places in ((left, of_left), (come, of_come)):
        rank, each = np.searchsorted(words, of["words"]), np.diff(of["ends"], prepend=0)
        postings[rank] += each
        records.append(places[of["records"]])
        keys.append(np.repeat(rank * len(high), each) + records[-1])
        lengths[places] = of["lengths"]
    at = np.searchsorted(keys[0], keys[1])
    together = {"high": high, "low": low, "words": words, "ends": np.cumsum(postings), "lengths": lengths}
    together["records"] = np.insert(records[0], at, records[1])
    together["counts"] = np.insert(left["counts"], at, come["counts"])
    return _packed(together, shard.language)


def _counted(ids: Sequence[str], texts: Sequence[str], language: str, failed: Failed | None) -> _Arrays:
    """The words of some records: the arrays of a shard, but for those that follow from others."""

    def words_at(place: int) -> list[str]:
        try:
            return words(texts[place], language)
        except Exception as e:
            if failed is None or not is_unforeseen(e):
                raise
            failed(ids[place], e)
            return []

    (high, low), order = sorted_halves(ids)
    numbers: dict[str, int] = {}
    rows = [array("i", [numbers.setdefault(w, len(numbers)) for w in words_at(i)]) for i in order.tolist()]
    # Words that have the same hash are one word: no question tells them apart.
    hashes, rank = np.unique(_hashes(list(numbers)), return_inverse=True)
    lengths = np.array([len(row) for row in rows], np.int32)
    occurring = rank[np.frombuffer(b"".join(rows), np.int32)]
    found, counts = np.unique(
        occurring * max(1, len(rows)) + np.repeat(np.arange(len(rows)), lengths), return_counts=True
    )
    word, records = np.divmod(found, max(1, len(rows)))
    ends = np.cumsum(np.bincount(word, minlength=len(hashes)))
    arrays: _Arrays = {
        "high": high,
        "low": low,
        "lengths": lengths,
        "words": hashes,
        "ends": ends,
        "records": records,
    }
    return arrays | {"counts": np.minimum(counts, MOST_COUNTED)}


def _packed(of: _Arrays, language: str) -> bytes:
    told = np.frombuffer(language.encode(), np.uint8)
    more = {"top.high": tops(of["high"]), "top.words": tops(of["words"]), "language": told}
    return packed(of | more | {"n_words": np.array([of["lengths"].sum(dtype=np.int64)])}, _TYPES)


def read(source: ByteSource) -> KeywordShard:
    """A shard. Raises what `source.refused` makes for what is none."""
    equal = (("high", "low", "lengths"), ("words", "ends"), ("records", "counts"))
    arrays = unpacked(source, _TYPES, _TYPES, equal, {"top.high": "high", "top.words": "words"})
    if len(arrays["n_words"]) != 1:
        raise source.refused("its arrays are of different lengths")
    shard = KeywordShard(source, arrays)
    if shard.language and shard.language not in WORDS:
        raise source.refused("its words are of no known language")
    return shard


def search(
    shards: Sequence[KeywordShard], question: str, k: int, among: Sequence[str] | None = None
) -> list[Found]:
    """The k records with the highest scores, of those that hold a word of the question.

    shards: all of a kind; among: ids of the only records that count
    """
    asked = {language: _asked(question, language) for language in {s.language for s in shards}}
    postings = [shard.postings(asked[shard.language]) for shard in shards]
    n, n_words = sum(map(len, shards)), sum(s.n_words for s in shards)
    frequency = Counter[int]()
    for of_shard in postings:
        frequency.update({word: end - start for word, (start, end) in of_shard.items()})
    idf = {word: math.log(1 + max(0.5, n - f + 0.5) / (f + 0.5)) for word, f in frequency.items()}
    mean = n_words / n if n and n_words > 0 else 1.0
    only = None if among is None else halves(among)
    found: list[Found] = []
    for shard, of_shard in zip(shards, postings, strict=True):
        least = found[k - 1][1] if len(found) >= k > 0 else 0.0
        places, scores = _scored(shard, of_shard, idf, mean, k, only, least)
        chosen = np.flatnonzero(scores >= kth(scores, k, 0.0))
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")][: max(k, 0)]
        found += zip(shard.ids.at(places[chosen]), scores[chosen].tolist(), strict=True)
        found = sorted(found, key=lambda hit: (-hit[1], hit[0]))[: max(k, 0)]
    return found


def count_records(shards: Sequence[KeywordShard], text: str) -> int:
    """How many records hold the word that a text is; 0 for a text of several words."""
    asked = [(shard, _asked(text, shard.language)) for shard in shards]
    spans = [span for shard, words in asked if len(words) == 1 for span in shard.postings(words).values()]
    return sum(end - start for start, end in spans)


def _scored(
    shard: KeywordShard,
    postings: Postings,
    idf: Mapping[int, float],
    mean: float,
    k: int,
    among: tuple[Keys, Keys] | None,
    least: float,
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Places, rising, and scores of all records of a shard that can be among the k best.

    idf: of each word; mean: length of a record; least: score that k records of other shards have
    """
    by_worth = sorted(postings, key=lambda word: (-idf[word], word))
    # A word adds less to a score than its idf.
    to_come = [*accumulate((idf[word] for word in reversed(by_worth)), initial=0.0)][::-1]
    scores = np.zeros(len(shard))
    places = None if among is None else shard.ids.held(among)
    for n, word in enumerate(by_worth):
        if places is None and n:
            there = np.flatnonzero(scores)
            if to_come[n] < max(least, kth(scores[there], k, 0.0)):
                places = there
        if places is not None:
            enough = scores[places] + to_come[n] >= max(least, kth(scores[places], k, 0.0))
            places = places[enough]
        records, counts = shard.of(postings[word])
        if places is not None:
            at = np.minimum(np.searchsorted(records, places), max(0, len(records) - 1))
            same = records[at] == places if len(records) else np.zeros(len(places), np.bool_)
            records, counts = places[same], counts[at[same]]
        lengths = shard.lengths[records]
        scores[records] += idf[word] * counts / (counts + K1 * (1 - B + B * lengths / mean))
    found = np.flatnonzero(scores) if places is None else places[scores[places] > 0]
    return found, scores[found]


def _asked(question: str, language: str) -> Keys:
    """The distinct words of a question, as shards know them."""
    return np.unique(_hashes(words(question, language)))


def _hashes(of: Sequence[str]) -> Keys:
    digests = b"".join(hashlib.blake2b(w.encode(), digest_size=8).digest() for w in of)
    return np.frombuffer(digests, dtype="<u8")
