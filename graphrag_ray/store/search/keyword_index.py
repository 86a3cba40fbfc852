"""Keyword search: BM25 as in Lucene (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework").

A shard of the index is one file. Only the postings of the question's words are read from it. Document
frequencies and lengths cover all shards of a kind, because a shard contains files with neighbouring paths, in
which a word that is rare in the corpus may be common.

Words are processed from rare to frequent, skipping records that can no longer be among the top k (MaxScore:
Turtle and Flood 1995, "Query Evaluation: Strategies and Optimizations"). The result is the same.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.store.search import mapped_arrays
from graphrag_ray.store.search.mapped_arrays import ByteSource, Halves, Ints, Keys, Shard, block_heads
from graphrag_ray.store.search.tokenizer import FUNCTION_WORDS, tokenize
from graphrag_ray.store.search.vector_index import ScoredId, kth_highest

K1, B = 1.2, 0.75  # Saturation of repeated words, and influence of a record's length, as in Lucene.
MAX_COUNT = 65_535  # Maximum count of a word in a record.

_TYPES = {
    "high": "<u8",  # Halves of the sorted record ids, and their block heads.
    "low": "<u8",
    "top.high": "<u8",
    "lengths": "<i4",  # Number of words in each record, and in all records.
    "n_words": "<i8",
    "words": "<u8",  # Sorted 64-bit hashes of the words, and their block heads.
    "top.words": "<u8",
    "ends": "<i8",  # End of each word's postings.
    "records": "<i4",  # Postings: sorted positions of the records with the word, and its counts in them.
    "counts": "<u2",
    "language": "<u1",  # Language for stemming, in UTF-8.
}

OnError = Callable[[str, BaseException], object]
Postings = Mapping[int, tuple[int, int]]
"""Hash of a word -> start and end of its postings."""
_Arrays = dict[str, npt.NDArray[Any]]
_NONE: Ints = np.zeros(0, np.int64)


class KeywordShard(Shard):
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
        """Find the postings of the wanted words that occur."""
        positions = mapped_arrays.find_positions(self.arrays["words"], self.arrays["top.words"], wanted)
        known = np.flatnonzero(positions >= 0)
        start, end = self.arrays["ends"].spans(positions[known])
        spans = zip(start.tolist(), end.tolist(), strict=True)
        return dict(zip(wanted[known].tolist(), spans, strict=True))

    def read_postings(self, span: tuple[int, int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the sorted positions of records, and the word's count in each."""
        records = self.arrays["records"].run(*span)
        is_sorted = (records[1:] > records[:-1]).all()
        if len(records) and (records[0] < 0 or records[-1] >= len(self) or not is_sorted):
            raise self.source.invalid("a posting refers to an unknown record")
        return records, self.arrays["counts"].run(*span).astype(np.float64)


def build(
    ids: Sequence[str], texts: Sequence[str], language: str = "", failed: OnError | None = None
) -> bytes:
    """Return the bytes of a shard, which do not depend on the order of the records.

    Args:
        language: A key of `tokenizer.FUNCTION_WORDS`, or "" if unknown.
        failed: Called with the id of a text and the unexpected error of its tokenization. The record is then
            stored without words. By default the error is raised.
    """
    return _packed(_count(ids, texts, language, failed), language)


def update(
    shard: KeywordShard,
    removed_ids: Sequence[str],
    ids: Sequence[str],
    texts: Sequence[str],
    failed: OnError | None = None,
) -> bytes:
    """Derive a shard from an earlier one, with the same bytes as `build` would return.

    This avoids tokenizing most texts, which takes most of the time of `build`. A shard that does not match
    raises `source.invalid`.

    Args:
        removed_ids: Records to remove.
        ids: Records to add, in the shard's language. They may be removed ones with other texts.
        texts: Texts of the records to add.
        failed: As for `build`.
    """
    remaining = mapped_arrays.remaining_records(shard, removed_ids)
    old = {name: array.whole() for name, array in shard.arrays.items()}
    mask = remaining[old["records"]]
    n_postings = np.diff(np.cumsum(mask)[old["ends"] - 1], prepend=0)
    old = {
        "high": old["high"][remaining],
        "low": old["low"][remaining],
        "words": old["words"][n_postings > 0],
        "ends": np.cumsum(n_postings[n_postings > 0]),
        "records": (np.cumsum(remaining) - 1)[old["records"][mask]],
        "counts": old["counts"][mask],
        "lengths": shard.lengths[remaining],
    }
    new = _count(ids, texts, shard.language, failed)
    # Old and new records are disjoint. Insertions are fast if there are few new records.
    both = [(arrays["high"], arrays["low"]) for arrays in (old, new)]
    (high, low), old_positions, new_positions = mapped_arrays.merge_ids(shard.source, *both)
    after, before = (np.searchsorted(old["words"], new["words"], side) for side in ("left", "right"))
    is_new = after == before
    all_words = np.insert(old["words"], after[is_new], new["words"][is_new])
    postings = np.zeros(len(all_words), np.int64)
    keys, records = [], []
    lengths = np.empty(len(high), np.int32)
    for arrays, positions in ((old, old_positions), (new, new_positions)):
        rank, n_postings = np.searchsorted(all_words, arrays["words"]), np.diff(arrays["ends"], prepend=0)
        postings[rank] += n_postings
        records.append(positions[arrays["records"]])
        keys.append(np.repeat(rank * len(high), n_postings) + records[-1])
        lengths[positions] = arrays["lengths"]
    insert_at = np.searchsorted(keys[0], keys[1])
    merged = {"high": high, "low": low, "words": all_words, "ends": np.cumsum(postings), "lengths": lengths}
    merged["records"] = np.insert(records[0], insert_at, records[1])
    merged["counts"] = np.insert(old["counts"], insert_at, new["counts"])
    return _packed(merged, shard.language)


def _count(ids: Sequence[str], texts: Sequence[str], language: str, failed: OnError | None) -> _Arrays:
    """Count the words of some records. Return the arrays from which `_packed` derives the others."""

    def words_of(position: int) -> list[str]:
        try:
            return tokenize(texts[position], language)
        except Exception as e:
            if failed is None or not is_unexpected(e):
                raise
            failed(ids[position], e)
            return []

    (high, low), order = mapped_arrays.sorted_halves(ids)
    numbers: dict[str, int] = {}
    rows = [array("i", [numbers.setdefault(w, len(numbers)) for w in words_of(i)]) for i in order.tolist()]
    # Words with the same hash count as one, because questions cannot distinguish them.
    hashes, rank = np.unique(word_hashes(list(numbers)), return_inverse=True)
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
    """Open a shard. Invalid files raise `source.invalid`."""
    equal = (("high", "low", "lengths"), ("words", "ends"), ("records", "counts"))
    heads_of = {"top.high": "high", "top.words": "words"}
    arrays = mapped_arrays.unpack(source, _TYPES, _TYPES, equal, heads_of)
    if len(arrays["n_words"]) != 1:
        raise source.invalid("its arrays have inconsistent lengths")
    shard = KeywordShard(source, arrays)
    if shard.language and shard.language not in FUNCTION_WORDS:
        raise source.invalid("its language is unknown")
    return shard


def search(
    shards: Sequence[KeywordShard], question: str, k: int, allowed_ids: Sequence[str] | None = None
) -> list[ScoredId]:
    """Return the k records with the highest scores in all shards, or only those with ids in `among`."""
    hashes = {language: _hash_question(question, language) for language in {s.language for s in shards}}
    postings = [shard.postings(hashes[shard.language]) for shard in shards]
    n, n_words = sum(map(len, shards)), sum(s.n_words for s in shards)
    frequency = Counter[int]()
    for by_word in postings:
        frequency.update({word: end - start for word, (start, end) in by_word.items()})
    idf = {word: math.log(1 + max(0.5, n - f + 0.5) / (f + 0.5)) for word, f in frequency.items()}
    mean_length = n_words / n if n and n_words > 0 else 1.0
    allowed = None if allowed_ids is None else mapped_arrays.id_halves(allowed_ids)
    best: list[ScoredId] = []
    for shard, by_word in zip(shards, postings, strict=True):
        threshold = best[k - 1][1] if len(best) >= k > 0 else 0.0
        positions, scores = _score(shard, by_word, idf, mean_length, k, allowed, threshold)
        chosen = np.flatnonzero(scores >= kth_highest(scores, k, 0.0))
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")][: max(k, 0)]
        best += zip(shard.ids.at(positions[chosen]), scores[chosen].tolist(), strict=True)
        best = sorted(best, key=lambda hit: (-hit[1], hit[0]))[: max(k, 0)]
    return best


def count_records(shards: Sequence[KeywordShard], text: str) -> int:
    """Count the records that contain a word. Returns 0 for several words."""
    hashes = [(shard, _hash_question(text, shard.language)) for shard in shards]
    spans = [span for shard, words in hashes if len(words) == 1 for span in shard.postings(words).values()]
    return sum(end - start for start, end in spans)


def find_with_all_words(shards: Sequence[KeywordShard], texts: Iterable[str]) -> set[str]:
    """Return the ids of the records that contain all words of one of some texts, in any order."""
    ids = set[str]()
    for shard in shards:
        positions = [_NONE]
        for text in texts:
            words = _hash_question(text, shard.language)
            spans = sorted(shard.postings(words).values(), key=lambda span: span[1] - span[0])
            if 0 < len(words) == len(spans):
                common = shard.read_postings(spans[0])[0]
                for span in spans[1:]:
                    if not len(common):
                        break
                    common = common[np.isin(common, shard.read_postings(span)[0], assume_unique=True)]
                positions.append(common.astype(np.int64))
        ids.update(shard.ids.at(np.unique(np.concatenate(positions))))
    return ids


def _score(
    shard: KeywordShard,
    postings: Postings,
    idf: Mapping[int, float],
    mean_length: float,
    k: int,
    allowed: Halves | None,
    threshold: float,  # Other shards have k records with at least this score.
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return the sorted positions and the scores of all records that may be among the k best."""
    rarest_first = sorted(postings, key=lambda word: (-idf[word], word))
    # Bounds for what each word and its successors can add to a score. A word adds less than its idf.
    remaining = [*accumulate((idf[word] for word in reversed(rarest_first)), initial=0.0)][::-1]
    scores = np.zeros(len(shard))
    positions = None if allowed is None else shard.ids.find_existing(allowed)
    for n, word in enumerate(rarest_first):
        if positions is None and n:
            candidates = np.flatnonzero(scores)
            if remaining[n] < max(threshold, kth_highest(scores[candidates], k, 0.0)):
                positions = candidates
        if positions is not None:
            needed = max(threshold, kth_highest(scores[positions], k, 0.0))
            positions = positions[scores[positions] + remaining[n] >= needed]
        records, counts = shard.read_postings(postings[word])
        if positions is not None:
            nearest = np.minimum(np.searchsorted(records, positions), max(0, len(records) - 1))
            same = records[nearest] == positions if len(records) else np.zeros(len(positions), np.bool_)
            records, counts = positions[same], counts[nearest[same]]
        lengths = shard.lengths[records]
        scores[records] += idf[word] * counts / (counts + K1 * (1 - B + B * lengths / mean_length))
    matches = np.flatnonzero(scores) if positions is None else positions[scores[positions] > 0]
    return matches, scores[matches]


def _hash_question(question: str, language: str) -> Keys:
    """Return the sorted hashes of a question's words."""
    return np.unique(word_hashes(tokenize(question, language)))


def word_hashes(words: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the hash of each word, as stored in the keyword index."""
    digests = b"".join(hashlib.blake2b(word.encode(), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, dtype="<u8")
