"""Find the titles of documents in texts, in a time that hardly grows with the number of titles.

Every word of a text is hashed once. The hash of each sequence of up to MAX_WORDS words follows from that of
the sequence without its last word (Karp and Rabin 1987), and is looked up among the sorted hashes of all
titles, for all texts of a batch at the same time. Of overlapping titles, the leftmost and longest counts.

Words are those of keyword search (`tokenizer.py`), so its index finds all texts that may contain a title.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.store.search.keyword_index import word_hashes
from graphrag_ray.store.search.mapped_arrays import Ints, Keys
from graphrag_ray.store.search.tokenizer import split_words

MAX_WORDS = 10
"""Maximum number of words of a title or, in scripts without spaces, of characters."""
MAX_WORD_CHARS = 32
MAX_LITERAL_CHARS = 3
"""A single word of at most this length must be spelled as in the title, with its punctuation: C++, It."""
MAX_CHARS = 200
_BATCH_TITLES = 10_000
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class TitleMatcher:
    """Titles that can be found in texts: those of up to MAX_WORDS words, one for each sequence of words."""

    keys: Keys  # [titles] Sorted hashes of the titles' words, ignoring case.
    titles: pa.StringArray  # [titles] Of several spellings, the one with the fewest capitals.
    is_capitalized: npt.NDArray[np.bool_]  # [titles] A single word that is not in lower case.
    is_literal: npt.NDArray[np.bool_]  # [titles] See MAX_LITERAL_CHARS.

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def build(titles: pa.StringArray) -> TitleMatcher:
        # In sorted order, the last spelling of the same words is the one with the fewest capitals.
        titles = titles.unique()
        titles = titles.take(pc.sort_indices(titles))
        starts = range(0, len(titles), _BATCH_TITLES)
        batches = [_Batch.of(titles.slice(start, _BATCH_TITLES).to_pylist()) for start in starts]
        none = _Batch(np.zeros(0, np.uint64), *(np.zeros(0, np.bool_) for _ in range(3)))
        columns = zip(none, *batches, strict=True)
        keys, is_valid, is_capitalized, is_literal = map(np.concatenate, columns)
        order = np.flatnonzero(is_valid)
        order = order[np.argsort(keys[order], kind="stable")]
        order = order[np.append(keys[order][1:] != keys[order][:-1], True)[: len(order)]]
        taken = titles.take(pa.array(order))
        return TitleMatcher(keys[order], taken, is_capitalized[order], is_literal[order])

    def find(self, texts: Sequence[str]) -> tuple[Ints, Ints]:
        """Return pairs of a text and a title in it, as indexes. They are sorted and distinct.

        A single word that is not in lower case must not be in lower case in the text either: Charmed.
        """
        numbers: dict[str, int] = {}
        rows = [array("i", [numbers.setdefault(w, len(numbers)) for w in split_words(t)]) for t in texts]
        lengths = np.array([len(row) for row in rows], np.int64)
        words = np.frombuffer(b"".join(rows), np.int32)
        hashes = word_hashes([word.casefold() for word in numbers])[words]
        is_lower = np.array([word.islower() for word in numbers], np.bool_)[words]
        text_of = np.repeat(np.arange(len(texts)), lengths)
        end_of_text = np.cumsum(lengths)[text_of]
        key = np.zeros(len(words), np.uint64)
        found = []
        for size in range(1, MAX_WORDS + 1 if len(self) else 1):
            key = key[: max(0, len(words) - size + 1)] * _FACTOR + hashes[size - 1 :]
            title = np.minimum(np.searchsorted(self.keys, key), len(self) - 1)
            start = np.flatnonzero(self.keys[title] == key)
            start = start[start + size <= end_of_text[start]]
            title = title[start]
            if size == 1:
                mask = ~(self.is_capitalized[title] & is_lower[start])
                for i in np.flatnonzero(self.is_literal[title] & mask).tolist():
                    mask[i] = self.titles[int(title[i])].as_py() in texts[int(text_of[start[i]])]
                start, title = start[mask], title[mask]
            found.append(np.stack([start, np.full(len(start), -size), title]))
        pairs, end = set(), 0
        matches = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
        for begin, size, number in matches[:, np.lexsort(matches[1::-1])].T.tolist():
            if begin >= end:
                pairs.add((int(text_of[begin]), number))
                end = begin - size
        sorted_pairs = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return sorted_pairs[:, 0], sorted_pairs[:, 1]


class _Batch(NamedTuple):
    """Columns of TitleMatcher for some titles, and whether they can be found in texts."""

    keys: Keys
    is_valid: npt.NDArray[np.bool_]
    is_capitalized: npt.NDArray[np.bool_]
    is_literal: npt.NDArray[np.bool_]

    @staticmethod
    def of(titles: Sequence[str]) -> _Batch:
        words = [[word.casefold() for word in split_words(title[: MAX_CHARS + 1])] for title in titles]
        numbers = {word: n for n, word in enumerate({word for row in words for word in row})}
        hashes, keys = word_hashes(list(numbers)), np.zeros(len(titles), np.uint64)
        lengths = np.array([len(row) for row in words], np.int64)
        for place in range(min(MAX_WORDS, int(lengths.max(initial=0)))):
            rows = np.flatnonzero(lengths > place)
            keys[rows] *= _FACTOR
            keys[rows] += hashes[[numbers[row[place]] for row in words if len(row) > place]]
        longest = np.array([max(map(len, row), default=0) for row in words], np.int64)
        is_short = np.array([len(title) <= MAX_CHARS for title in titles], np.bool_)
        is_capitalized = np.array([title != title.lower() for title in titles], np.bool_)
        return _Batch(
            keys,
            is_short & (lengths > 0) & (lengths <= MAX_WORDS) & (longest <= MAX_WORD_CHARS),
            is_capitalized & (lengths == 1),
            (lengths == 1) & (longest <= MAX_LITERAL_CHARS),
        )
