"""Split documents into chunks (text units), and build the documents and text units tables.

Chunks are overlapping windows of tokens (paper 3.1.1: 600 tokens with an overlap of 100). They begin and end
at sentence boundaries where possible, otherwise at word boundaries. Columns are built from buffers because
`pa.array(list)` imports pandas, which would slow down worker start-up.
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
from graphrag_ray.base.arrow_arrays import to_arrow, to_arrow_strings
from graphrag_ray.base.wording import shorten
from graphrag_ray.corpus import boundaries, tokens
from graphrag_ray.corpus.document import METADATA_PREFIX, Document, metadata_lines, one_line
from graphrag_ray.corpus.document_titles import MAX_TITLE, begins_with, explicit_title

_OPENING, _NOTE = "Opening of the document", "About the document"
"""Labels of the first words of a document, or of a note on it, in the headers of its chunks."""
_SPACE = re.compile(r"\s++")
_MAX_TOKEN_CHARACTERS = 128  # maximum length of a token in any vocabulary


@dataclass(frozen=True, slots=True)
class Chunk:
    """Character offsets into the document's text, and the number of tokens in text[start:end]."""

    start: int
    end: int
    n_tokens: int


def split_into_chunks(
    text: str, options: index_settings.Chunking, vocabulary: str, header: str = ""
) -> list[Chunk]:
    """Split a text into windows of at most `size` tokens that overlap by about `overlap`, in linear time.

    The last chunk may exceed `size` by up to `min_last_chunk_tokens` - 1 tokens. Chunk starts and ends are
    strictly increasing, and together the chunks cover all non-whitespace text.

    Args:
        options: With size "document", the whole text is one chunk.
        header: Text above every chunk. Its tokens count towards `size`, but a chunk keeps at least half of
            its usual new tokens, so a very long header makes chunk and header together exceed `size`.
    """
    if not text.strip():
        return []
    if options.size == "document":
        return [Chunk(0, len(text), tokens.count_tokens(text, vocabulary))]
    ends = tokens.token_ends(text, vocabulary)
    length, overlap = options.size, options.overlap
    if header:
        # A long header would leave few new tokens per chunk and multiply the calls. So a chunk keeps half of
        # its usual new tokens (250 of 500 by default): the overlap shrinks, then the size is exceeded.
        min_new_tokens = (length - overlap + 1) // 2
        length = max(length - tokens.count_tokens(header, vocabulary), min_new_tokens)
        overlap = min(overlap, length - min_new_tokens)
    if len(ends) <= length:
        return [Chunk(0, len(text), len(ends))]
    return list(_Cutter(text, ends, length, overlap, options.min_last_chunk_tokens, vocabulary).chunks())


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts a text into chunks at the best boundaries.

    A chunk ends at the last sentence end that fits, or at the last line end if no sentence ends there. If
    either would leave it less than half of its new tokens, it ends at the last word instead. The next chunk
    begins at the sentence or line nearest to `overlap` tokens (±50%) before that end, otherwise at a word.
    Words longer than boundaries.MAX_WORD are split, but never inside a user-perceived character.
    Fewer than `min_remainder` tokens at the end of the text join the last chunk.
    """

    text: str
    ends: npt.NDArray[np.int64]  # character offset of each token's end
    length: int  # in tokens, like `overlap` and `min_remainder`
    overlap: int
    min_remainder: int
    vocabulary: str

    def chunks(self) -> Iterator[Chunk]:
        last = len(self.text.rstrip())
        start = covered_end = self._after_space(0)
        while True:
            end, n_tokens = self._fit_end(start, covered_end, last)
            if start < covered_end and (n_tokens > self.length or not boundaries.is_word_end(self.text, end)):
                start = covered_end  # a long word leaves no room for an overlap
                end, n_tokens = self._fit_end(start, covered_end, last)
            # A small remainder joins this chunk if there is room.
            max_tokens = self.length + self.min_remainder - 1
            is_small_remainder = end < last and self._token(last) - self._token(end) < self.min_remainder
            if is_small_remainder and last - start <= _MAX_TOKEN_CHARACTERS * max_tokens:
                n_with_remainder = tokens.count_tokens(self.text[start:last], self.vocabulary)
                if n_with_remainder <= max_tokens:
                    end, n_tokens = last, n_with_remainder
            yield Chunk(start, end, n_tokens)
            if end == last:
                return
            covered_end = self._after_space(end)
            start = self._next_start(start, end)
            if self._token(covered_end) - self._token(start) > self.length - self._min_new_tokens:
                start = covered_end  # there is a long run of whitespace in between

    def _fit_end(self, start: int, covered_end: int, last: int) -> tuple[int, int]:
        """Return the end and the token count of a chunk. Text before `covered_end` is in earlier chunks.

        A slice can have more tokens by itself than within the whole text. In that case it is shortened.
        """
        first, budget = self._token(start), self.length
        while True:
            end = self._best_end(first + budget, covered_end, last)
            n_tokens = tokens.count_tokens(self.text[start:end], self.vocabulary)
            if n_tokens <= self.length or end <= boundaries.character_end(self.text, covered_end):
                return end, n_tokens
            budget = min(budget, self._token(end) - first) - (n_tokens - self.length)

    def _best_end(self, max_token: int, covered_end: int, last: int) -> int:
        """Return the best offset after `covered_end` with at most `max_token` tokens before it."""
        if max_token >= self._token(last):
            return last
        min_token = self._token(covered_end) + self._min_new_tokens
        low, high = self._offset(min(min_token, max_token)), self._offset(max_token)
        if high <= covered_end:
            return boundaries.character_end(self.text, covered_end)
        best = None
        for boundary in boundaries.boundaries(self.text, low, high + 1):
            if covered_end < boundary.end <= high and (best is None or boundary.kind >= best.kind):
                best = boundary
        if best is not None and best.kind > boundaries.Kind.WORD:
            return best.end
        end = (
            boundaries.last_word_end(self.text, covered_end, high)
            or (best.end if best else None)
            or boundaries.last_character_end(self.text, covered_end, high)
            or boundaries.character_end(self.text, covered_end)
        )
        return covered_end + len(self.text[covered_end:end].rstrip())

    def _next_start(self, start: int, end: int) -> int:
        """Return where the next chunk begins, after `start`."""
        if not self.overlap:
            return self._after_space(end)
        last, slack = self._token(end), self.overlap // 2
        longest = min(self.overlap + slack, self.length - self._min_new_tokens)
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
    def _min_new_tokens(self) -> int:
        """Minimum number of new tokens per chunk, which limits the number of chunks to twice the ideal."""
        return (self.length - self.overlap + 1) // 2

    def _token(self, offset: int) -> int:
        """Return the number of tokens that end at or before an offset."""
        return int(np.searchsorted(self.ends, offset, side="right"))

    def _offset(self, n_tokens: int) -> int:
        """Return the offset at which the first `n_tokens` tokens end."""
        return int(self.ends[n_tokens - 1]) if n_tokens > 0 else 0

    def _after_space(self, offset: int) -> int:
        space = _SPACE.match(self.text, offset)
        return space.end() if space else offset


def documents_table(documents: Iterable[Document]) -> pa.Table:
    """Build `schema.DOCUMENTS`, one row per document, in the order given.

    `human_readable_id` and `text_unit_ids` are filled in when the snapshot is written.
    """
    docs = list(documents)
    names = ("id", "title", "text", "raw_data", "path", "row", "content_hash", "encoding", "date_source")
    columns: dict[str, Sequence[Any]] = {name: [getattr(d, name) for d in docs] for name in names}
    return _table(schema.DOCUMENTS, len(docs), columns | {"creation_date": [d.date for d in docs]})


def text_units_table(
    document: Document, options: index_settings.Chunking, vocabulary: str, opening: str = ""
) -> pa.Table:
    """Build `schema.TEXT_UNITS`, one row per chunk of the document, by position.

    The header of every chunk but the first quotes the opening of the document. It does not count towards the
    size of a chunk.

    A text unit's id depends on its document, its text and how many earlier chunks have the same text, so
    inserting a paragraph leaves the ids of untouched chunks unchanged. `human_readable_id` and lists of ids
    are filled in when the snapshot is written.
    """
    make_header = chunk_header(document, options)
    chunks = split_into_chunks(document.text, options, vocabulary, make_header(""))
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
        "header": [make_header(text, opening if n else "") for n, text in enumerate(texts)],
    }
    return _table(schema.TEXT_UNITS, len(chunks), columns)


def chunk_header(document: Document, options: index_settings.Chunking) -> Callable[..., str]:
    """Return a function that builds the header for a chunk's text; pass "" for the longest header.

    The header has one line for each field of `options.prepend_metadata` that the document has and one for the
    opening, if it is passed as well, then an empty line. It is "" without any of these.
    """
    names, title = options.prepend_metadata or (), one_line(document.title)
    auto_title = ""
    if names == "auto":
        names, title = ("title", "date"), explicit_title(title, document.path, document.row)
        auto_title = title
    fields = {"title": ("Title", title), "date": ("Date", one_line(document.date or ""))}
    lines = {}
    for name in names:
        if name not in fields:
            lines[name] = metadata_lines(document.metadata, [name.removeprefix(METADATA_PREFIX)])
        elif value := fields[name][1]:
            lines[name] = f"{fields[name][0]}: {shorten(value, MAX_TITLE)}\n"
    full = "".join(lines.values())
    without_title = "".join(line for name, line in lines.items() if name != "title")

    def header(text: str, opening: str = "") -> str:
        selected = without_title if auto_title and begins_with(text, auto_title) else full
        selected += opening and f"{_OPENING}: {opening}\n"
        return selected and selected + "\n"

    return header


def with_opening(label: str, header: str | None) -> str:
    """Add the opening of the document, if the header of a chunk quotes it, to the label of the chunk."""
    quoted = (line for line in (header or "").splitlines() if line.startswith(f"{_OPENING}: "))
    return "; ".join(filter(None, (label, next(quoted, ""))))


def with_note(header: str, note: str | None) -> str:
    """Add a note on the document to the header of a chunk."""
    return f"{header.rstrip()}\n{_NOTE}: {note}\n\n".lstrip() if note else header


def _table(schema_: pa.Schema, n_rows: int, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Build a table. Missing columns are filled with 0 or empty lists."""
    arrays = []
    for column in schema_:
        values = columns.get(column.name)
        if pa.types.is_list(column.type):
            offsets = pa.py_buffer(np.zeros(n_rows + 1, dtype=np.int32))
            arrays.append(
                pa.Array.from_buffers(column.type, n_rows, [None, offsets], children=[to_arrow_strings([])])
            )
        elif pa.types.is_int64(column.type):
            arrays.append(to_arrow(np.fromiter(values or [0] * n_rows, dtype=np.int64, count=n_rows)))
        else:
            arrays.append(to_arrow_strings(columns[column.name], column.type))
    return pa.Table.from_arrays(arrays, schema=schema_)
