"""Keyword search: BM25 as Lucene has it (Robertson and Zaragoza 2009, "The Probabilistic Relevance
Framework").

A shard of an index is one file, which is memory-mapped: only the postings of the question's words are read
from the disk.

    ids      the records, sorted
    words    64-bit hashes of the words, rising
    ends     where the postings of each word end
    records  postings: the places of the records that hold the word
    scores   postings: what the word adds to the score of the record

Scores are computed when a shard is built, by bm25s. The frequency of words and the mean length are those of
the shard, as in other sharded search engines: with thousands of records in each they differ little.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.search.arrays import check_ids, packed, unpacked
from graphrag_ray.search.ranking import Found, best, named, places_of
from graphrag_ray.search.words import words
from graphrag_ray.unforeseen import is_unforeseen

K1, B = 1.2, 0.75
"""Lucene's: how soon a word's repetitions stop to count, how much a record's length does."""


TYPES = {"words": pa.uint64(), "ends": pa.int64(), "records": pa.int32(), "scores": pa.float32()}


@dataclass(frozen=True)
class KeywordShard:
    """Arrays as above, in mapped memory."""

    ids: pa.Array
    words: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    records: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def build(
    ids: Sequence[str], texts: Sequence[str], failed: Callable[[str, BaseException], object] | None = None
) -> pa.Buffer:
    """The bytes of a shard: the same for the same records, whatever their order.

    failed: told the id of a text that cannot be read, and why, which is a bug; it is then found by no word.
    None: the error is raised
    """

    def words_at(place: int) -> list[str]:
        try:
            return words(texts[place])
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
    data, records, starts = _matrix(len(numbers), rows)
    lengths = np.diff(starts)[by_hash]
    ends = np.cumsum(lengths)
    postings = np.repeat(starts[:-1][by_hash] - ends + lengths, lengths) + np.arange(len(data))
    return packed(
        {
            "ids": pa.array([ids[i] for i in order], pa.string()),
            "words": pa.array(hashes[by_hash]),
            "ends": pa.array(ends, pa.int64()),
            "records": pa.array(records[postings].astype(np.int32)),
            "scores": pa.array(data[postings].astype(np.float32)),
        }
    )


def read(data: pa.Buffer) -> KeywordShard:
    """A shard from its bytes, without copying them. Raises ValueError for what is none."""
    ids, arrays = unpacked(data, TYPES)
    if len(arrays) != len(TYPES):
        raise ValueError(f"it lacks {', '.join(TYPES.keys() - arrays.keys())}")
    shard = KeywordShard(ids, **arrays)
    if len(shard.words) != len(shard.ends) or len(shard.records) != len(shard.scores):
        raise ValueError("its arrays are of different lengths")
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
    if not np.isfinite(shard.scores).all():
        raise ValueError("a score is no number")


def asked(question: str) -> npt.NDArray[np.uint64]:
    """The distinct words of a question, as shards know them."""
    return np.unique(_hashes(words(question)))


def search(
    shard: KeywordShard, wanted: npt.NDArray[np.uint64], k: int, among: pa.Array | None = None
) -> list[Found]:
    """The k records with the highest scores, of those that hold a word of the question. wanted: `asked`."""
    places = np.searchsorted(shard.words, wanted)
    inside = np.flatnonzero(places < len(shard.words))
    known = shard.words[places[inside]] == wanted[inside]
    scores = np.zeros(len(shard.ids), np.float32)
    for at in places[inside[known]].tolist():
        start, end = (shard.ends[at - 1] if at else 0), shard.ends[at]
        scores[shard.records[start:end]] += shard.scores[start:end]
    rows = places_of(shard.ids, among)
    rows = np.flatnonzero(scores) if rows is None else rows[scores[rows] > 0]
    found = rows[best(scores[rows], k)]
    return named(shard.ids, found, scores[found])


def _matrix(
    n_words: int, rows: Sequence[array[int]]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """BM25 of every word in every record, as a sparse matrix by word: scores, records, starts."""
    if not n_words:
        return np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    import bm25s  # a question does without it

    made = bm25s.BM25(k1=K1, b=B, method="lucene").build_index_from_ids(
        range(n_words), rows, show_progress=False
    )
    return made["data"], made["indices"], made["indptr"]


def _hashes(of: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(w.encode(), digest_size=8).digest() for w in of)
    return np.frombuffer(digests, dtype="<u8")
