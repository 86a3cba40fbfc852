"""Find the titles of documents in texts, in a time that does not grow with the number of titles.

Every word of a text is hashed once. The hash of each sequence of up to MAX_WORDS words follows from that of
the sequence without its last word (Karp and Rabin 1987), and is looked up among the sorted hashes of all
titles, for all texts of a batch at the same time. Of overlapping titles, the leftmost and longest counts.

Words are those of keyword search (`tokenizer.py`), so its index finds all texts that may contain a title.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.store.search.mapped_arrays import Ints, Keys
from graphrag_ray.store.search.tokenizer import split_words, word_hashes

MAX_WORDS = 10
"""Maximum number of words of a title or, in scripts without spaces, of characters."""
MAX_WORD_CHARS = 32
MAX_LITERAL_CHARS = 3
"""A single word of at most this length must be spelled as in the title, with its punctuation: C++, It."""
MAX_CHARS = 200
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class TitleMatcher:
    """Titles that can be found in texts: those of up to MAX_WORDS words, one for each sequence of words."""

    keys: Keys  # [titles] Sorted hashes of the titles' words, ignoring case.
    titles: pa.Array  # [titles] A title that is not in lower case follows one that is.
    is_capitalized: npt.NDArray[np.bool_]  # [titles] A single word that is not in lower case.
    is_literal: npt.NDArray[np.bool_]  # [titles] See MAX_LITERAL_CHARS.

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def build(titles: Iterable[str]) -> TitleMatcher:
        # In sorted order, the last spelling of the same words is the one with the fewest capitals.
        by_words = {}
        for title in sorted(set(titles)):
            words = tuple(word.casefold() for word in split_words(title[: MAX_CHARS + 1]))
            is_short = len(title) <= MAX_CHARS and max(map(len, words), default=0) <= MAX_WORD_CHARS
            if is_short and 0 < len(words) <= MAX_WORDS:
                by_words[words] = title
        numbers = {word: n for n, word in enumerate({word for words in by_words for word in words})}
        hashes = word_hashes(list(numbers))
        keys = np.zeros(len(by_words), np.uint64)
        lengths = np.array([len(words) for words in by_words], np.int64)
        for place in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > place)
            keys[rows] *= _FACTOR
            keys[rows] += hashes[[numbers[words[place]] for words in by_words if len(words) > place]]
        order = np.argsort(keys, kind="stable")
        is_word = lengths == 1
        short = np.array([len(words[0]) <= MAX_LITERAL_CHARS for words in by_words], np.bool_)
        capitalized = np.array([title != title.lower() for title in by_words.values()], np.bool_)
        return TitleMatcher(
            keys[order],
            pa.array(list(by_words.values()), pa.string()).take(pa.array(order)),
            (is_word & capitalized)[order],
            (is_word & short)[order],
        )

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
