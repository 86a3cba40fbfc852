"""A document into chunks (text units), and both as Arrow tables (`schema.DOCUMENTS`, `schema.TEXT_UNITS`).

Chunks are windows of tokens that overlap (paper 3.1.1: 600 with 100). They begin and end between sentences,
else between words.

Columns are built from buffers: `pa.array` on a list imports pandas, which would cost every worker a good part
of a second at its start.
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
from graphrag_ray.corpus.document import PREFIX, Document, metadata_lines, one_line
from graphrag_ray.corpus.document_titles import begins_with, own_title

MAX_HEADER_FIELD = 300
"""Characters of a title or a date that a chunk's header shows: a title can be a paragraph by mistake."""
_SPACE = re.compile(r"\s++")
_LONGEST_TOKEN = 128
"""Characters, in any vocabulary. A text with more for each token that it may have need not be counted."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """start, end: character offsets into the document's text; n_tokens: of text[start:end]."""

    start: int
    end: int
    n_tokens: int


def chunk(text: str, options: index_settings.Chunking, vocabulary: str, header: str = "") -> list[Chunk]:
    """Cut a document's text into windows of at most `size` tokens, each beginning about `overlap` tokens
    before the last one's end; with size "document" the whole text is one. header: what is written above every
    chunk; its tokens count within `size`. vocabulary: a name of `tokens.VOCABULARIES`.

    The last chunk may have `min_new_tokens` - 1 tokens more than `size`. Starts and ends both increase. Every
    character that is not white space is in a chunk. `n_tokens` counts the chunk's text by itself. Time is
    linear.
    """
    if not text.strip():
        return []
    if options.size == "document":
        return [Chunk(0, len(text), tokens.count(text, vocabulary))]
    ends = tokens.offsets(text, vocabulary)
    length, overlap = options.size, options.overlap
    if header:
        # A long header would leave few new tokens a chunk and so multiply the calls: from half of the new
        # tokens on (250 of 500 by default) the overlap gives way, and then the budget.
        least_new = (length - overlap + 1) // 2
        length = max(length - tokens.count(header, vocabulary), least_new)
        overlap = min(overlap, length - least_new)
    if len(ends) <= length:
        return [Chunk(0, len(text), len(ends))]
    return list(_Cutter(text, ends, length, overlap, options.min_new_tokens, vocabulary).chunks())


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Chunks that begin and end at boundaries. ends: where each token ends, in characters; length, overlap,
    min_new: in tokens.

    A chunk ends with the last sentence, else the last line, within its budget; where that would leave less
    than half of its new tokens, with the last word. The next one begins at the sentence, else the line,
    nearest to `overlap` tokens before that end, half as many more or fewer; else at the word before. A word
    longer than boundaries.MAX_WORD is cut, but no character. What is left for a last chunk joins the one
    before where it has fewer than `min_new` new tokens.
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
                start = done  # a long word leaves no room for what was there before
                end, n_tokens = self._end(start, done, last)
            # A chunk takes in what is left after it, if that is little and there is room.
            most = self.length + self.min_new - 1
            little = end < last and self._token(last) - self._token(end) < self.min_new
            if little and last - start <= _LONGEST_TOKEN * most:
                whole = tokens.count(self.text[start:last], self.vocabulary)
                if whole <= most:
                    end, n_tokens = last, whole
            yield Chunk(start, end, n_tokens)
            if end == last:
                return
            done = self._after_space(end)
            start = self._next_start(start, end)
            if self._token(done) - self._token(start) > self.length - self._least_new:
                start = done  # there is a lot of white space between

    def _end(self, start: int, done: int, last: int) -> tuple[int, int]:
        """The end of a chunk and its tokens. done: where what no other chunk holds begins.

        A text by itself may have some tokens more than it has inside another: then it is cut shorter.
        """
        first, budget = self._token(start), self.length
        while True:
            end = self._cut(first + budget, done, last)
            n_tokens = tokens.count(self.text[start:end], self.vocabulary)
            if n_tokens <= self.length or end <= boundaries.character_end(self.text, done):
                return end, n_tokens
            budget = min(budget, self._token(end) - first) - (n_tokens - self.length)

    def _cut(self, most_token: int, done: int, last: int) -> int:
        """The best place after `done` with at most so many tokens before it."""
        if most_token >= self._token(last):
            return last
        least = self._token(done) + self._least_new
        low, high = self._place(min(least, most_token)), self._place(most_token)
        if high <= done:
            return boundaries.character_end(self.text, done)
        best = None
        for boundary in boundaries.boundaries(self.text, low, high + 1):
            if done < boundary.end <= high and (best is None or boundary.kind >= best.kind):
                best = boundary
        if best is not None and best.kind > boundaries.Kind.WORD:
            return best.end
        end = boundaries.last_word_end(self.text, done, high) or (best.end if best else None)
        end = end or boundaries.last_character_end(self.text, done, high)
        end = end or boundaries.character_end(self.text, done)
        return done + len(self.text[done:end].rstrip())

    def _next_start(self, start: int, end: int) -> int:
        """Where the chunk after the one between two places begins, later than that one."""
        if not self.overlap:
            return self._after_space(end)
        last, slack = self._token(end), self.overlap // 2
        longest = min(self.overlap + slack, self.length - self._least_new)
        low = max(self._place(last - longest), start + 1)
        target = max(self._place(last - self.overlap), low)
        high = self._place(last - self.overlap + slack)
        found = []
        for boundary in boundaries.boundaries(self.text, low, end):
            if boundary.start < end:
                kind = boundary.kind if boundary.start <= high else boundaries.Kind.WORD
                found.append((-kind, abs(boundary.start - target), boundary.start))
        if found:
            return min(found)[2]
        place = boundaries.last_word_end(self.text, start, target)
        if place is None and not boundaries.is_word_end(self.text, end):
            place = boundaries.last_character_end(self.text, start, target)
        return self._after_space(place or end)

    @property
    def _least_new(self) -> int:
        """Of the tokens of a chunk, those that no other has, so that their number is at most doubled."""
        return (self.length - self.overlap + 1) // 2

    def _token(self, place: int) -> int:
        """How many tokens end at a place or before."""
        return int(np.searchsorted(self.ends, place, side="right"))

    def _place(self, token: int) -> int:
        """Where so many tokens end."""
        return int(self.ends[token - 1]) if token > 0 else 0

    def _after_space(self, place: int) -> int:
        found = _SPACE.match(self.text, place)
        return found.end() if found else place


def documents_table(documents: Iterable[Document]) -> pa.Table:
    """`schema.DOCUMENTS`, one row a document, in the order given.

    `human_readable_id` is 0 and `text_unit_ids` is empty: both are filled in when a snapshot is written.
    """
    docs = list(documents)
    names = ("id", "title", "text", "raw_data", "path", "row", "content_hash", "encoding")
    columns: dict[str, Sequence[Any]] = {name: [getattr(d, name) for d in docs] for name in names}
    return _table(schema.DOCUMENTS, len(docs), columns | {"creation_date": [d.date for d in docs]})


def text_units_table(document: Document, options: index_settings.Chunking, vocabulary: str) -> pa.Table:
    """`schema.TEXT_UNITS`, one row a chunk of the document, by position.

    A text unit's id is that of its document, its text and how many earlier chunks of the document have
    the same text: inserting a paragraph leaves the ids of the chunks it does not touch as they were.
    `human_readable_id` is 0 and the lists of ids are empty until a snapshot is written.
    """
    header = header_of(document, options)
    chunks = chunk(document.text, options, vocabulary, header(""))
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


def header_of(document: Document, options: index_settings.Chunking) -> Callable[[str], str]:
    """What is written above a chunk of a document, by the chunk's text ("": whatever it is): a line for each
    field of `options.prepend` that the document has, then an empty line; "" where there is none."""
    names, title = options.prepend or (), one_line(document.title)
    own = ""
    if names == "auto":
        names, title = ("title", "date"), own_title(title, document.path, document.row)
        own = title
    fields = {"title": ("Title", title), "date": ("Date", one_line(document.date or ""))}
    lines = {}
    for name in names:
        if name not in fields:
            lines[name] = metadata_lines(document.metadata, [name.removeprefix(PREFIX)])
        elif value := fields[name][1]:
            lines[name] = f"{fields[name][0]}: {shortened(value, MAX_HEADER_FIELD)}\n"
    whole = "".join(lines.values())
    rest = "".join(line for name, line in lines.items() if name != "title")

    def of(text: str) -> str:
        shown = rest if own and begins_with(text, own) else whole
        return shown and shown + "\n"

    return of


def _table(schema_: pa.Schema, rows: int, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Columns that are not given are 0 or empty lists, as `human_readable_id` and ids are at first."""
    arrays = []
    for column in schema_:
        values = columns.get(column.name)
        if pa.types.is_list(column.type):
            offsets = pa.py_buffer(np.zeros(rows + 1, dtype=np.int32))
            arrays.append(pa.Array.from_buffers(column.type, rows, [None, offsets], children=[strings([])]))
        elif pa.types.is_int64(column.type):
            arrays.append(arrow(np.fromiter(values or [0] * rows, dtype=np.int64, count=rows)))
        else:
            arrays.append(strings(columns[column.name], column.type))
    return pa.Table.from_arrays(arrays, schema=schema_)
