"""Find paragraphs that many documents repeat word for word: legal notices, mastheads, navigation.

A paragraph is a block of lines between blank lines, or a single line of such a block. It counts if it has at
least `MIN_BYTES` bytes after folding: shorter ones, such as headings, speakers and table cells, give the text
around them its meaning. Two paragraphs are the same if their folded texts are: Unicode NFKC, without regard
to case and whitespace, so the width at which lines are wrapped does not matter. A paragraph is repeated if
`min_documents` different documents contain it. Repetition within one document does not count.

A document that contains nothing else is left as it is: it may differ from others in title and date only.

The rule needs no knowledge of the language, and depends on nothing but the texts and the order of documents.
All of the text is shown at least once: the first occurrence of a paragraph is left out only as part of a
longer one, and that one occurs earlier.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.ids import limit_combining_marks

MIN_BYTES = 120
"""Minimum size of a paragraph in UTF-8: some 20 words of English or 40 characters of Chinese."""
MARK = "[…]"
"""Stands for a paragraph that is left out."""
_MIN_DOCUMENTS, _MAX_DOCUMENTS, _SHARE = 3, 10, 10

Span = tuple[int, int]


def min_documents(n_documents: int) -> int:
    """Return how many documents must contain a paragraph: a tenth of them, but at least 3 and at most 10.

    In a small corpus, a few copies may be a coincidence, such as overlapping excerpts. In a large one, ten
    copies are enough, because a corpus of many publishers has a notice of each.
    """
    return min(_MAX_DOCUMENTS, max(_MIN_DOCUMENTS, -(-n_documents // _SHARE)))


def paragraphs(text: str) -> list[tuple[int, int, int]]:
    """Return (start, end, 64-bit hash) of the paragraphs of a text, in linear time.

    Spans do not include surrounding whitespace. A line comes after its block, if the block has other lines.
    """
    found: list[tuple[int, int, int]] = []
    block: list[tuple[int, int, bytes]] = []
    position = 0
    for line in (*text.splitlines(keepends=True), ""):
        stripped = line.strip()
        if stripped:
            start = position + len(line) - len(line.lstrip())
            block.append((start, start + len(stripped), _fold(stripped)))
        elif block:
            whole = b" ".join(folded for _, _, folded in block)
            if len(whole) >= MIN_BYTES:
                found.append((block[0][0], block[-1][1], _hash(whole)))
                lines = block if len(block) > 1 else ()
                found.extend((a, z, _hash(f)) for a, z, f in lines if MIN_BYTES <= len(f) < len(whole))
            block = []
        position += len(line)
    return found


def _fold(line: str) -> bytes:
    if not line.isascii():
        line = unicodedata.normalize("NFKC", limit_combining_marks(line))
    return " ".join(line.casefold().split()).encode("utf-8", "surrogatepass")


def _hash(folded: bytes) -> int:
    return int.from_bytes(blake2b(folded, digest_size=8).digest(), "big")


def find_repeats(
    hashes: npt.NDArray[np.uint64], documents: npt.NDArray[np.generic], n_required: int
) -> npt.NDArray[np.bool_]:
    """Find the occurrences of paragraphs to leave out: all but the first of each repeated paragraph.

    Args:
        hashes: Hash of each occurrence. Occurrences are sorted by hash, then by document and position.
        documents: Document of each occurrence.
        n_required: See `min_documents`.
    """
    if not len(hashes):
        return np.zeros(0, np.bool_)
    is_first = np.append(True, hashes[1:] != hashes[:-1])
    is_new_document = is_first | np.append(True, documents[1:] != documents[:-1])
    starts = np.flatnonzero(is_first)
    n_documents = np.add.reduceat(is_new_document.astype(np.int64), starts)
    is_repeated = np.repeat(n_documents >= n_required, np.diff(starts, append=len(hashes)))
    return np.asarray(is_repeated & ~is_first)


def merge_overlapping(spans: Iterable[Span]) -> list[Span]:
    """Merge spans that are sorted by start."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def leave_out(text: str, spans: Sequence[Span], start: int = 0) -> tuple[str, int]:
    """Replace spans with `MARK`, and count the characters left out. Returns "" if no letter or digit remains.

    Spans with only whitespace in between share a mark.

    Args:
        spans: Spans of the document, as `merge_overlapping` returns them.
        start: Offset of the text in the document.
    """
    pieces: list[str] = []
    end = n_left_out = 0
    for i in range(bisect_right(spans, start, key=itemgetter(1)), len(spans)):
        first, stop = max(spans[i][0] - start, 0), min(spans[i][1] - start, len(text))
        if first >= len(text):
            break
        between = text[end:first]
        if not pieces or between.strip():
            pieces += [between, MARK]
        n_left_out += stop - first
        end = stop
    if not pieces:
        return text, 0
    rest = [*pieces[::2], text[end:]]
    is_empty = not any(c.isalnum() for piece in rest for c in piece)
    return "" if is_empty else "".join([*pieces, rest[-1]]), n_left_out


def shown_texts(texts: Sequence[str], starts: Sequence[int], spans: Sequence[Span]) -> list[tuple[str, int]]:
    """Apply `leave_out` to all chunks of a document, unless nothing would remain of it.

    Args:
        starts: Offset of each chunk.
    """
    shown = [leave_out(text, spans, start) for text, start in zip(texts, starts, strict=True)]
    return shown if any(text for text, _ in shown) else [(text, 0) for text in texts]
