"""Keyword search: BM25 as Lucene has it (Robertson and Zaragoza 2009, "The Probabilistic Relevance
Framework").

A shard of an index is one file, which is memory-mapped: only the postings of the question's words are read
from the disk.

    ids       the records, sorted
    lengths   how many words each has
    words     64-bit hashes of the words, rising
    ends      where the postings of each word end
    records   postings: the places of the records that hold the word
    counts    postings: how often each does
    language  in which the words were stemmed, UTF-8

How many records hold a word, and how long records are, counts over all shards of a kind: shards follow the
paths of files, and what is rare in the corpus may be common in one of them. Shards of earlier versions hold
`scores` by such counts of their own instead of lengths, counts and language, and are searched with these.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.search.languages import WORDS
from graphrag_ray.search.mapped_arrays import check_ids, packed, unpacked
from graphrag_ray.search.ranking import Found, best, merged, named, places_of
from graphrag_ray.search.words import words

K1, B = 1.2, 0.75
"""Lucene's: how soon a word's repetitions stop to count, how much a record's length does."""
MOST_COUNTED = 65_535
"""Repetitions of a word in a record."""

_ALWAYS = {"words": pa.uint64(), "ends": pa.int64(), "records": pa.int32()}
_NOW = {"counts": pa.uint16(), "lengths": pa.int32(), "language": pa.uint8()}
_BEFORE = {"scores": pa.float32()}


@dataclass(frozen=True)
class KeywordShard:
    """Arrays as above, in mapped memory. scores: of a shard of an earlier version, which has no counts and no
    lengths; None: of today's."""

    ids: pa.Array
    words: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    records: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint16]
    lengths: npt.NDArray[np.int32]
    language: str = ""
    scores: npt.NDArray[np.float32] | None = None

    @cached_property
    def n_words(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def postings(self, wanted: npt.NDArray[np.uint64]) -> dict[int, slice]:
        """Where the postings of those of the words are that it holds, by their hashes."""
        places = np.searchsorted(self.words, wanted)
        inside = np.flatnonzero(places < len(self.words))
        known = places[inside[self.words[places[inside]] == wanted[inside]]].tolist()
        return {
            int(self.words[at]): slice(int(self.ends[at - 1]) if at else 0, int(self.ends[at]))
            for at in known
        }


def build(
    ids: Sequence[str],
    texts: Sequence[str],
    language: str = "",
    failed: Callable[[str, BaseException], object] | None = None,
) -> pa.Buffer:
    """The bytes of a shard: the same for the same records, whatever their order.

    language: of `languages.WORDS`; "": not known
    failed: told the id of a text that cannot be read, and why, which is a bug; it is then found by no word.
    None: the error is raised
    """

    def words_at(place: int) -> list[str]:
        try:
            return words(texts[place], language)
        except Exception as e:
            if failed is None or not is_unforeseen(e):
                raise
            failed(ids[place], e)
            return []

    order = sorted(range(len(ids)), key=ids.__getitem__)
    numbers: dict[str, int] = {}
    rows = [array("i", [numbers.setdefault(w, len(numbers)) for w in words_at(i)]) for i in order]
    hashes = _hashes(list(numbers))
    by_hash = np.argsort(hashes)
    rank = np.empty(len(hashes), np.int64)
    rank[by_hash] = np.arange(len(hashes))
    lengths = np.array([len(row) for row in rows], np.int32)
    occurring = rank[np.frombuffer(b"".join(rows), np.int32)]
    found, counts = np.unique(
        occurring * max(1, len(rows)) + np.repeat(np.arange(len(rows)), lengths), return_counts=True
    )
    word, record = np.divmod(found, max(1, len(rows)))
    return packed(
        {
            "ids": pa.array([ids[i] for i in order], pa.string()),
            "words": pa.array(hashes[by_hash]),
            "ends": pa.array(np.cumsum(np.bincount(word, minlength=len(hashes))), pa.int64()),
            "records": pa.array(record.astype(np.int32)),
            "counts": pa.array(np.minimum(counts, MOST_COUNTED).astype(np.uint16)),
            "lengths": pa.array(lengths),
            "language": pa.array(np.frombuffer(language.encode(), np.uint8)),
        }
    )


def read(data: pa.Buffer) -> KeywordShard:
    """A shard from its bytes, without copying them. Raises ValueError for what is none."""
    ids, arrays = unpacked(data, _ALWAYS | _NOW | _BEFORE)
    before = "scores" in arrays
    expected = _ALWAYS | (_BEFORE if before else _NOW)
    if arrays.keys() != expected.keys():
        raise ValueError(f"it holds {', '.join(sorted(arrays))} and not {', '.join(sorted(expected))}")
    shard = KeywordShard(
        ids,
        arrays["words"],
        arrays["ends"],
        arrays["records"],
        np.zeros(0, np.uint16) if before else arrays["counts"],
        np.zeros(0, np.int32) if before else arrays["lengths"],
        "" if before else bytes(arrays["language"]).decode(),
        arrays.get("scores"),
    )
    postings = len(arrays["scores" if before else "counts"])
    if len(shard.words) != len(shard.ends) or len(shard.records) != postings:
        raise ValueError("its arrays are of different lengths")
    if not before and len(shard.lengths) != len(ids):
        raise ValueError("its arrays are of different lengths")
    if shard.language and shard.language not in WORDS:
        raise ValueError("its words are of no known language")
    return shard


def check(shard: KeywordShard) -> None:
    """Whether all is in order and none leads out of the shard: reads all of it. Raises ValueError."""
    check_ids(shard.ids)
    starts = np.concatenate([[0], shard.ends])
    if (starts[1:] < starts[:-1]).any() or starts[-1] != len(shard.records):
        raise ValueError("its postings are not one behind the other")
    if (shard.words[1:] <= shard.words[:-1]).any():
        raise ValueError("its words are not in order")
    if len(shard.records) and not 0 <= shard.records.min() <= shard.records.max() < len(shard.ids):
        raise ValueError("a posting is of no record")
    if shard.scores is not None and not np.isfinite(shard.scores).all():
        raise ValueError("a score is no number")
    if shard.counts.min(initial=1) < 1 or shard.lengths.min(initial=0) < 0:
        raise ValueError("a record holds a word less than once, or less than no word")


def search(
    shards: Sequence[KeywordShard], question: str, k: int, among: pa.Array | None = None
) -> list[Found]:
    """The k records with the highest scores, of those that hold a word of the question. shards: all of a
    kind."""
    asked = {language: _asked(question, language) for language in {s.language for s in shards}}
    postings = [shard.postings(asked[shard.language]) for shard in shards]
    n, n_words = sum(len(s.ids) for s in shards), sum(s.n_words for s in shards)
    frequency = Counter[int]()
    for of_shard in postings:
        frequency.update({word: at.stop - at.start for word, at in of_shard.items()})
    idf = {word: math.log(1 + (n - f + 0.5) / (f + 0.5)) for word, f in frequency.items()}
    mean = n_words / n if n_words else 1.0
    lists = [_found(s, p, idf, mean, k, among) for s, p in zip(shards, postings, strict=True)]
    return merged(lists, k)


def _found(
    shard: KeywordShard,
    postings: Mapping[int, slice],
    idf: Mapping[int, float],
    mean: float,
    k: int,
    among: pa.Array | None,
) -> list[Found]:
    """The k best of a shard. idf: of each word; mean: length of a record."""
    scores = np.zeros(len(shard.ids))
    for word, at in postings.items():
        records = shard.records[at]
        if shard.scores is not None:
            scores[records] += shard.scores[at]
            continue
        counts = shard.counts[at].astype(np.float64)
        scores[records] += idf[word] * counts / (counts + K1 * (1 - B + B * shard.lengths[records] / mean))
    rows = places_of(shard.ids, among)
    rows = np.flatnonzero(scores) if rows is None else rows[scores[rows] > 0]
    found = rows[best(scores[rows], k)]
    return named(shard.ids, found, scores[found])


def _asked(question: str, language: str) -> npt.NDArray[np.uint64]:
    """The distinct words of a question, as shards know them."""
    return np.unique(_hashes(words(question, language)))


def _hashes(of: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(w.encode(), digest_size=8).digest() for w in of)
    return np.frombuffer(digests, dtype="<u8")
