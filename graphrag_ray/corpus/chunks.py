"""Cut a document into chunks (text units), and build both tables (`schema.DOCUMENTS`, `schema.TEXT_UNITS`).

Chunks are overlapping windows of tokens (paper 3.1.1: 600 with 100) that begin and end between sentences,
else between words. Columns are built from buffers, because `pa.array` of a list imports pandas, which would
delay the start of every worker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base import ids, index_settings, schema
from graphrag_ray.base.arrow_arrays import arrow, strings
from graphrag_ray.base.wording import shortened
from graphrag_ray.corpus import boundaries, tokens
from graphrag_ray.corpus.document import METADATA_PREFIX, Document, metadata_lines, one_line
from graphrag_ray.corpus.document_titles import MAX_TITLE, begins_with, own_title

_SPACE = re.compile(r"\s++")
_MAX_TOKEN_CHARACTERS = 128  # in any vocabulary; a text with more per token need not be counted


@dataclass(frozen=True, slots=True)
class Chunk:
    """Character offsets into the document's text, and the tokens of text[start:end]."""

    start: int
    end: int
    n_tokens: int


def cut_chunks(text: str, options: index_settings.Chunking, vocabulary: str, header: str = "") -> list[Chunk]:
    """Cut a text into windows of at most `size` tokens that overlap by about `overlap`, in linear time.

    The last chunk may have up to `min_last_chunk_tokens` - 1 tokens more. Starts and ends both increase.
    Every
    character that is not white space is in a chunk.

    Args:
        options: Size "document" makes the whole text one chunk.
        header: Text above every chunk, whose tokens count within `size`.
    """
    if not text.strip():
        return []
    if options.size == "document":
        return [Chunk(0, len(text), tokens.count_tokens(text, vocabulary))]
    ends = tokens.token_ends(text, vocabulary)
    length, overlap = options.size, options.overlap
    if header:
        # A long header would leave few new tokens per chunk and multiply the calls. Once only half of the new
        # tokens are left (250 of 500 by default), the overlap shrinks, and then the budget grows.
        least_new = (length - overlap + 1) // 2
        length = max(length - tokens.count_tokens(header, vocabulary), least_new)
        overlap = min(overlap, length - least_new)
    if len(ends) <= length:
        return [Chunk(0, len(text), len(ends))]
    return list(_Cutter(text, ends, length, overlap, options.min_last_chunk_tokens, vocabulary).chunks())


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts chunks at boundaries. `ends`: character offset of each token's end; lengths are in tokens.

    A chunk ends with the last sentence, else the last line, within its budget; if that would leave less than
    half of its new tokens, with the last word. The next one begins at the sentence, else the line, nearest to
    `overlap` tokens before that end, give or take half of them; else at the word before. A word longer than
    boundaries.MAX_WORD is cut, but no character. A remainder of fewer than `min_new` tokens joins the last
    chunk.
    """

    text: str
    ends: npt.NDArray[np.int64]
    length: int
    overlap: int
    min_new: int
    vocabulary: str

    def chunks(self) -> Iterator[Chunk]:
        last = len(self.text.rstrip())
        start = done = self._after_space(0)
        while True:
            end, n_tokens = self._end(start, done, last)
            if start < done and (n_tokens > self.length or not boundaries.is_word_end(self.text, end)):
                start = done  # a long word leaves no room for an overlap
                end, n_tokens = self._end(start, done, last)
            # A chunk takes in a small remainder if there is room.
            max_tokens = self.length + self.min_new - 1
            small_rest = end < last and self._token(last) - self._token(end) < self.min_new
            if small_rest and last - start <= _MAX_TOKEN_CHARACTERS * max_tokens:
                whole = tokens.count_tokens(self.text[start:last], self.vocabulary)
                if whole <= max_tokens:
                    end, n_tokens = last, whole
            yield Chunk(start, end, n_tokens)
            if end == last:
                return
            done = self._after_space(end)
            start = self._next_start(start, end)
            if self._token(done) - self._token(start) > self.length - self._least_new:
                start = done  # there is much white space in between

    def _end(self, start: int, done: int, last: int) -> tuple[int, int]:
        """Return the end of a chunk, and its tokens. Earlier chunks hold the text up to `done`.

        A text by itself may have more tokens than inside another; then it is cut shorter.
        """
        first, budget = self._token(start), self.length
        while True:
            end = self._cut(first + budget, done, last)
            n_tokens = tokens.count_tokens(self.text[start:end], self.vocabulary)
            if n_tokens <= self.length or end <= boundaries.character_end(self.text, done):
                return end, n_tokens
            budget = min(budget, self._token(end) - first) - (n_tokens - self.length)

    def _cut(self, max_token: int, done: int, last: int) -> int:
        """Return the best offset after `done` with at most `max_token` tokens before it."""
        if max_token >= self._token(last):
            return last
        min_token = self._token(done) + self._least_new
        low, high = self._offset(min(min_token, max_token)), self._offset(max_token)
        if high <= done:
            return boundaries.character_end(self.text, done)
        best = None
        for boundary in boundaries.boundaries(self.text, low, high + 1):
            if done < boundary.end <= high and (best is None or boundary.kind >= best.kind):
                best = boundary
        if best is not None and best.kind > boundaries.Kind.WORD:
            return best.end
        end = (
            boundaries.last_word_end(self.text, done, high)
            or (best.end if best else None)
            or boundaries.last_character_end(self.text, done, high)
            or boundaries.character_end(self.text, done)
        )
        return done + len(self.text[done:end].rstrip())

    def _next_start(self, start: int, end: int) -> int:
        """Return where the next chunk begins, after `start`."""
        if not self.overlap:
            return self._after_space(end)
        last, slack = self._token(end), self.overlap // 2
        longest = min(self.overlap + slack, self.length - self._least_new)
        low = max(self._offset(last - longest), start + 1)
        target = max(self._offset(last - self.overlap), low)
        high = self._offset(last - self.overlap + slack)
        candidates = []
        for boundary in boundaries.boundaries(self.text, low, end):
            if boundary.start < end:
                kind = boundary.kind if boundary.start <= high else boundaries.Kind.WORD
                candidates.append((-kind, abs(boundary.start - target), boundary.start))
        if candidates:
            return min(candidates)[2]
        offset = boundaries.last_word_end(self.text, start, target)
        if offset is None and not boundaries.is_word_end(self.text, end):
            offset = boundaries.last_character_end(self.text, start, target)
        return self._after_space(offset or end)

    @property
    def _least_new(self) -> int:
        """Minimum tokens of a chunk that no earlier one has, so that the number of chunks at most doubles."""
        return (self.length - self.overlap + 1) // 2

    def _token(self, offset: int) -> int:
        """Return the number of tokens that end at or before an offset."""
        return int(np.searchsorted(self.ends, offset, side="right"))

    def _offset(self, n_tokens: int) -> int:
        """Return where the first `n_tokens` tokens end."""
        return int(self.ends[n_tokens - 1]) if n_tokens > 0 else 0

    def _after_space(self, offset: int) -> int:
        space = _SPACE.match(self.text, offset)
        return space.end() if space else offset


def documents_table(documents: Iterable[Document]) -> pa.Table:
    """Build `schema.DOCUMENTS`, one row per document, in the order given.

    `human_readable_id` and `text_unit_ids` are 0 and empty until a snapshot is written.
    """
    docs = list(documents)
    names = ("id", "title", "text", "raw_data", "path", "row", "content_hash", "encoding")
    columns: dict[str, Sequence[Any]] = {name: [getattr(d, name) for d in docs] for name in names}
    return _table(schema.DOCUMENTS, len(docs), columns | {"creation_date": [d.date for d in docs]})


def text_units_table(document: Document, options: index_settings.Chunking, vocabulary: str) -> pa.Table:
    """Build `schema.TEXT_UNITS`, one row per chunk of the document, by position.

    A text unit's id depends on its document, its text and how many earlier chunks have the same text, so
    inserting a paragraph leaves the ids of untouched chunks unchanged. `human_readable_id` and lists of ids
    are 0 and empty until a snapshot is written.
    """
    header = chunk_header(document, options)
    chunks = cut_chunks(document.text, options, vocabulary, header(""))
    texts = [document.text[c.start : c.end] for c in chunks]
    document_id = document.id
    seen: Counter[str] = Counter()
    unit_ids = []
    for text in texts:
        unit_ids.append(ids.text_unit_id(document_id, text, seen[text]))
        seen[text] += 1
    columns: dict[str, Sequence[Any]] = {
        "id": unit_ids,
        "text": texts,
        "n_tokens": [c.n_tokens for c in chunks],
        "document_id": [document_id] * len(chunks),
        "position": range(len(chunks)),
        "start": [c.start for c in chunks],
        "end": [c.end for c in chunks],
        "header": [header(text) for text in texts],
    }
    return _table(schema.TEXT_UNITS, len(chunks), columns)


def chunk_header(document: Document, options: index_settings.Chunking) -> Callable[[str], str]:
    """Return a function that maps a chunk's text ("": any) to the header above it.

    The header has a line for each field of `options.prepend` that the document has, then an empty line; it is
    "" if there is none.
    """
    names, title = options.prepend_metadata or (), one_line(document.title)
    auto_title = ""
    if names == "auto":
        names, title = ("title", "date"), own_title(title, document.path, document.row)
        auto_title = title
    fields = {"title": ("Title", title), "date": ("Date", one_line(document.date or ""))}
    lines = {}
    for name in names:
        if name not in fields:
            lines[name] = metadata_lines(document.metadata, [name.removeprefix(METADATA_PREFIX)])
        elif value := fields[name][1]:
            lines[name] = f"{fields[name][0]}: {shortened(value, MAX_TITLE)}\n"
    whole = "".join(lines.values())
    rest = "".join(line for name, line in lines.items() if name != "title")

    def header(text: str) -> str:
        shown = rest if auto_title and begins_with(text, auto_title) else whole
        return shown and shown + "\n"

    return header


def _table(schema_: pa.Schema, n_rows: int, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Build a table; missing columns are 0 or empty lists."""
    arrays = []
    for column in schema_:
        values = columns.get(column.name)
        if pa.types.is_list(column.type):
            offsets = pa.py_buffer(np.zeros(n_rows + 1, dtype=np.int32))
            arrays.append(pa.Array.from_buffers(column.type, n_rows, [None, offsets], children=[strings([])]))
        elif pa.types.is_int64(column.type):
            arrays.append(arrow(np.fromiter(values or [0] * n_rows, dtype=np.int64, count=n_rows)))
        else:
            arrays.append(strings(columns[column.name], column.type))
    return pa.Table.from_arrays(arrays, schema=schema_)
