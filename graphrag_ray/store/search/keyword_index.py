"""Keyword search: BM25 as in Lucene (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework").

A shard of the index is one file, of which only the postings of the question's words are read. Document
frequencies and lengths are those of all shards of a kind, because shards follow the paths of files: a word
that is rare in the corpus may be common in one shard.

Words are processed from the rarest on. Records that contain none of the words so far and can no longer reach
the top k are skipped, which does not change the result (MaxScore: Turtle and Flood 1995, "Query Evaluation:
Strategies and Optimizations").
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

from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.store.search import mapped_arrays
from graphrag_ray.store.search.mapped_arrays import ByteSource, Halves, Ints, Keys, Shard, block_heads
from graphrag_ray.store.search.tokenizer import WORDS, tokenize
from graphrag_ray.store.search.vector_index import ScoredId, kth_highest

K1, B = 1.2, 0.75  # Lucene's: saturation of repeated words, and influence of a record's length.
MAX_COUNT = 65_535  # Counted repetitions of a word in a record.

_TYPES = {
    "high": "<u8",  # Halves of the records' ids, sorted, and their block heads.
    "low": "<u8",
    "top.high": "<u8",
    "lengths": "<i4",  # Words in each record, and in all together.
    "n_words": "<i8",
    "words": "<u8",  # 64-bit hashes of the words, sorted, and their block heads.
    "top.words": "<u8",
    "ends": "<i8",  # End of each word's postings.
    "records": "<i4",  # Postings: sorted positions of the records with the word, and its counts there.
    "counts": "<u2",
    "language": "<u1",  # Used for stemming; UTF-8.
}

Failed = Callable[[str, BaseException], object]
Postings = Mapping[int, tuple[int, int]]
"""Hash of a word -> start and end of its postings."""
_Arrays = dict[str, npt.NDArray[Any]]


class KeywordShard(Shard):
    """A shard of the index."""

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
        """Find the postings of those words that occur."""
        places = mapped_arrays.find_positions(self.arrays["words"], self.arrays["top.words"], wanted)
        known = np.flatnonzero(places >= 0)
        start, end = self.arrays["ends"].spans(places[known])
        spans = zip(start.tolist(), end.tolist(), strict=True)
        return dict(zip(wanted[known].tolist(), spans, strict=True))

    def read_postings(self, span: tuple[int, int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the positions of records, sorted, and the word's count in each."""
        records = self.arrays["records"].run(*span)
        is_sorted = (records[1:] > records[:-1]).all()
        if len(records) and (records[0] < 0 or records[-1] >= len(self) or not is_sorted):
            raise self.source.invalid("a posting is of no record")
        return records, self.arrays["counts"].run(*span).astype(np.float64)


def build(
    ids: Sequence[str], texts: Sequence[str], language: str = "", failed: Failed | None = None
) -> bytes:
    """Return the bytes of a shard, which do not depend on the order of the records.

    Args:
        language: A key of `words.WORDS`, or "" if unknown.
        failed: Called with the id of a text that cannot be read because of a bug, and the error; no word then
            finds it. By default the error is raised.
    """
    return _packed(_count(ids, texts, language, failed), language)


def update(
    shard: KeywordShard,
    gone: Sequence[str],
    ids: Sequence[str],
    texts: Sequence[str],
    failed: Failed | None = None,
) -> bytes:
    """Derive the shard with other records from an earlier one; equals what `build` makes.

    Saves splitting most texts into words, which takes most of the time of `build`. A shard that does not fit
    raises `source.refused`.

    Args:
        gone: Ids of records to remove.
        ids: Ids of records to add, in the shard's language; may be removed ones with other texts.
        failed: As for `build`.
    """
    kept = mapped_arrays.kept_records(shard, gone)
    old = {name: array.whole() for name, array in shard.arrays.items()}
    held = kept[old["records"]]
    each = np.diff(np.cumsum(held)[old["ends"] - 1], prepend=0)
    old = {
        "high": old["high"][kept],
        "low": old["low"][kept],
        "words": old["words"][each > 0],
        "ends": np.cumsum(each[each > 0]),
        "records": (np.cumsum(kept) - 1)[old["records"][held]],
        "counts": old["counts"][held],
        "lengths": shard.lengths[kept],
    }
    new = _count(ids, texts, shard.language, failed)
    # Old and new records are disjoint. The merge is fast if few are new.
    both = [(arrays["high"], arrays["low"]) for arrays in (old, new)]
    (high, low), old_places, new_places = mapped_arrays.merge_ids(shard.source, *both)
    after, before = (np.searchsorted(old["words"], new["words"], side) for side in ("left", "right"))
    is_new = after == before
    all_words = np.insert(old["words"], after[is_new], new["words"][is_new])
    postings = np.zeros(len(all_words), np.int64)
    keys, records = [], []
    lengths = np.empty(len(high), np.int32)
    for arrays, places in ((old, old_places), (new, new_places)):
        rank, each = np.searchsorted(all_words, arrays["words"]), np.diff(arrays["ends"], prepend=0)
        postings[rank] += each
        records.append(places[arrays["records"]])
        keys.append(np.repeat(rank * len(high), each) + records[-1])
        lengths[places] = arrays["lengths"]
    at = np.searchsorted(keys[0], keys[1])
    merged = {"high": high, "low": low, "words": all_words, "ends": np.cumsum(postings), "lengths": lengths}
    merged["records"] = np.insert(records[0], at, records[1])
    merged["counts"] = np.insert(old["counts"], at, new["counts"])
    return _packed(merged, shard.language)


def _count(ids: Sequence[str], texts: Sequence[str], language: str, failed: Failed | None) -> _Arrays:
    """Count the words of some records; return the arrays from which `_packed` derives the others."""

    def words_of(place: int) -> list[str]:
        try:
            return tokenize(texts[place], language)
        except Exception as e:
            if failed is None or not is_unexpected(e):
                raise
            failed(ids[place], e)
            return []

    (high, low), order = mapped_arrays.sorted_halves(ids)
    numbers: dict[str, int] = {}
    rows = [array("i", [numbers.setdefault(w, len(numbers)) for w in words_of(i)]) for i in order.tolist()]
    # Words with the same hash count as one: no question can distinguish them.
    hashes, rank = np.unique(_hashes(list(numbers)), return_inverse=True)
    lengths = np.array([len(row) for row in rows], np.int32)
    n = max(1, len(rows))
    pairs = rank[np.frombuffer(b"".join(rows), np.int32)] * n + np.repeat(np.arange(len(rows)), lengths)
    pairs, counts = np.unique(pairs, return_counts=True)
    word, records = np.divmod(pairs, n)
    ends = np.cumsum(np.bincount(word, minlength=len(hashes)))
    arrays: _Arrays = {"high": high, "low": low, "words": hashes, "ends": ends, "records": records}
    return arrays | {"lengths": lengths, "counts": np.minimum(counts, MAX_COUNT)}


def _packed(arrays: _Arrays, language: str) -> bytes:
    derived = {
        "top.high": block_heads(arrays["high"]),
        "top.words": block_heads(arrays["words"]),
        "language": np.frombuffer(language.encode(), np.uint8),
        "n_words": np.array([arrays["lengths"].sum(dtype=np.int64)]),
    }
    return mapped_arrays.pack(arrays | derived, _TYPES)


def read(source: ByteSource) -> KeywordShard:
    """Open a shard. Invalid files raise `source.refused`."""
    equal = (("high", "low", "lengths"), ("words", "ends"), ("records", "counts"))
    heads_of = {"top.high": "high", "top.words": "words"}
    arrays = mapped_arrays.unpack(source, _TYPES, _TYPES, equal, heads_of)
    if len(arrays["n_words"]) != 1:
        raise source.invalid("its arrays are of different lengths")
    shard = KeywordShard(source, arrays)
    if shard.language and shard.language not in WORDS:
        raise source.invalid("its words are of no known language")
    return shard


def search(
    shards: Sequence[KeywordShard], question: str, k: int, among: Sequence[str] | None = None
) -> list[ScoredId]:
    """Return the k records with the highest scores, in all shards of a kind or only `among` some ids."""
    hashes = {language: _hash_question(question, language) for language in {s.language for s in shards}}
    postings = [shard.postings(hashes[shard.language]) for shard in shards]
    n, n_words = sum(map(len, shards)), sum(s.n_words for s in shards)
    frequency = Counter[int]()
    for by_word in postings:
        frequency.update({word: end - start for word, (start, end) in by_word.items()})
    idf = {word: math.log(1 + max(0.5, n - f + 0.5) / (f + 0.5)) for word, f in frequency.items()}
    mean_length = n_words / n if n and n_words > 0 else 1.0
    allowed = None if among is None else mapped_arrays.id_halves(among)
    found: list[ScoredId] = []
    for shard, by_word in zip(shards, postings, strict=True):
        threshold = found[k - 1][1] if len(found) >= k > 0 else 0.0
        places, scores = _score(shard, by_word, idf, mean_length, k, allowed, threshold)
        chosen = np.flatnonzero(scores >= kth_highest(scores, k, 0.0))
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")][: max(k, 0)]
        found += zip(shard.ids.at(places[chosen]), scores[chosen].tolist(), strict=True)
        found = sorted(found, key=lambda hit: (-hit[1], hit[0]))[: max(k, 0)]
    return found


def count_records(shards: Sequence[KeywordShard], text: str) -> int:
    """Count the records that contain a word; 0 if the text is several words."""
    hashes = [(shard, _hash_question(text, shard.language)) for shard in shards]
    spans = [span for shard, words in hashes if len(words) == 1 for span in shard.postings(words).values()]
    return sum(end - start for start, end in spans)


def _score(
    shard: KeywordShard,
    postings: Postings,
    idf: Mapping[int, float],
    mean_length: float,
    k: int,
    allowed: Halves | None,
    threshold: float,  # The score that k records of other shards reach.
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return the sorted positions and the scores of all records that can be among the k best."""
    rarest_first = sorted(postings, key=lambda word: (-idf[word], word))
    # The most that the words from each one on can add to a score: each adds less than its idf.
    remaining = [*accumulate((idf[word] for word in reversed(rarest_first)), initial=0.0)][::-1]
    scores = np.zeros(len(shard))
    places = None if allowed is None else shard.ids.held(allowed)
    for n, word in enumerate(rarest_first):
        if places is None and n:
            candidates = np.flatnonzero(scores)
            if remaining[n] < max(threshold, kth_highest(scores[candidates], k, 0.0)):
                places = candidates
        if places is not None:
            needed = max(threshold, kth_highest(scores[places], k, 0.0))
            places = places[scores[places] + remaining[n] >= needed]
        records, counts = shard.read_postings(postings[word])
        if places is not None:
            at = np.minimum(np.searchsorted(records, places), max(0, len(records) - 1))
            same = records[at] == places if len(records) else np.zeros(len(places), np.bool_)
            records, counts = places[same], counts[at[same]]
        lengths = shard.lengths[records]
        scores[records] += idf[word] * counts / (counts + K1 * (1 - B + B * lengths / mean_length))
    found = np.flatnonzero(scores) if places is None else places[scores[places] > 0]
    return found, scores[found]


def _hash_question(question: str, language: str) -> Keys:
    """Return the sorted hashes of a question's words."""
    return np.unique(_hashes(tokenize(question, language)))


def _hashes(texts: Sequence[str]) -> Keys:
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8")
