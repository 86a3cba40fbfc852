"""Count the chunks of a corpus, and the tokens of their first requests exactly as a run would send them."""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.dates import iso_date
from graphrag_ray.base.ids import document_id
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatRequest, item_key
from graphrag_ray.corpus.chunks import chunk_header, split_into_chunks
from graphrag_ray.corpus.document import Document, metadata_lines
from graphrag_ray.corpus.document_context import BEGINNING_CHARACTERS, opening
from graphrag_ray.corpus.document_titles import document_header
from graphrag_ray.corpus.repeated_paragraphs import (
    Span,
    find_repeats,
    merge_overlapping,
    min_documents,
    paragraphs,
    shown_texts,
)
from graphrag_ray.corpus.tokens import count_tokens, count_tokens_of, vocabulary_for
from graphrag_ray.graph.extraction_dialogue import ChunkText, ExtractSpec, extract
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE, count_text_tokens, output_limit


@dataclass(frozen=True)
class CorpusCounts:
    """Sums over chunks, in tokens of the extraction model's vocabulary unless stated otherwise.

    Attributes:
        dated: Documents with a readable date.
        chunk_tokens: Tokens of the chunks' texts.
        prompt_tokens: Tokens of the first requests, including the system message.
        beginning_tokens: Tokens of the beginnings of documents, if a model writes notes on them.
        passage_tokens: Tokens of the chunks in prompts, including their headers.
        embed_tokens: Tokens of the texts to embed, in the embedding model's vocabulary.
        left_out: Chunks that contain only repeated paragraphs and are not sent.
        too_long: Chunks that do not fit the context window and are not sent.
        repeated: Chunks that equal another chunk, which is sent once.
        answered: Chunks that a journal answers; `answered_prompt_tokens` counts their first requests.
        read_share: Share of the input's bytes that was read. Below 1, all counts are extrapolated.
    """

    files: int = 0
    documents: int = 0
    dated: int = 0
    unreadable: int = 0
    chunks: float = 0
    chunk_tokens: float = 0
    prompt_tokens: float = 0
    passage_tokens: float = 0
    beginning_tokens: float = 0
    embed_tokens: float = 0
    left_out: float = 0
    too_long: float = 0
    repeated: float = 0
    answered: float = 0
    answered_prompt_tokens: float = 0
    read_share: float = 1.0

    @property
    def sent_chunks(self) -> float:
        return self.chunks - self.left_out - self.too_long - self.repeated

    def plus(self, **counts: float) -> CorpusCounts:
        return replace(self, **{name: getattr(self, name) + n for name, n in counts.items()})

    def scaled(self, read_share: float) -> CorpusCounts:
        """Extrapolate to the whole corpus from the share of its bytes that was read."""
        names = (
            *("chunks", "chunk_tokens", "prompt_tokens", "passage_tokens", "beginning_tokens"),
            *("embed_tokens", "too_long", "left_out", "repeated", "answered", "answered_prompt_tokens"),
        )
        return replace(self, read_share=read_share, **{n: getattr(self, n) / read_share for n in names})


@dataclass(order=True, slots=True)
class SampledChunk:
    """A sampled chunk. `rank` is its negative hash, so that a heap drops the chunk with the highest hash."""

    rank: int
    chunk: ChunkText = field(compare=False)
    prompt_tokens: int = field(compare=False)
    key: str = field(compare=False)


class ChunkCounter:
    """Counts the chunks of documents, and draws two samples: of all chunks and of chunks the journal answers.

    A sample consists of the `sample` chunks with the smallest hashes: without replacement, the same in every
    run, and nearly the same after the corpus has grown. `done` returns which item keys the journal answers.
    """

    def __init__(
        self,
        spec: ExtractSpec,
        settings: Settings,
        sample: int,
        done: Callable[[Sequence[str]], npt.NDArray[np.bool_]] | None,
    ) -> None:
        self._spec, self._settings, self._sample_size, self._done = spec, settings, sample, done
        self._model = settings.model(settings.model_name("extract"))
        self._vocabulary = vocabulary_for(self._model.model, self._model.tokenizer).name
        embedding = settings.model(settings.model_name("embed"))
        self._embed_vocabulary = vocabulary_for(embedding.model, embedding.tokenizer).name
        # Only the last message depends on the chunk.
        *fixed, last = self._first_request(ChunkText("")).messages
        self._fixed = TOKENS_PER_MESSAGE + sum(
            count_text_tokens(m.content, self._model) + TOKENS_PER_MESSAGE for m in fixed
        )
        self._empty = self._fixed + count_text_tokens(last.content, self._model)
        self.corpus = CorpusCounts()
        self._embedded, self._sent = set[int](), set[int]()
        self.sampled: list[SampledChunk] = []
        self.sampled_answered: list[SampledChunk] = []

    def add(self, document: Document, left_out: Sequence[Span] = ()) -> None:
        """Count a document, whose spans `left_out` (see `RepeatFinder`) are not shown to the model."""
        header = chunk_header(document, self._settings.chunking)
        cuts = split_into_chunks(document.text, self._settings.chunking, self._vocabulary, header(""))
        texts = [document.text[c.start : c.end] for c in cuts]
        # The sentences that a model writes about a document are about as long as its opening.
        first_words = opening(document, self._settings.input, self._vocabulary)
        is_written = self._settings.input.document_context == "model"
        headers = [header(text, first_words if n or is_written else "") for n, text in enumerate(texts)]
        shown = shown_texts(texts, [c.start for c in cuts], left_out)
        chunks = [ChunkText(part, header) for (part, _), header in zip(shown, headers, strict=True)]
        # A run embeds equal chunks once, and sends chunks once that are equal after leaving out spans.
        embedded = _add_new(self._embedded, list(map(ChunkText, texts, headers)))
        shown_chunks = [chunk for chunk in chunks if chunk.text]
        new = _add_new(self._sent, shown_chunks)
        sent: list[SampledChunk] = []
        for i in new:
            request = self._first_request(shown_chunks[i])
            size = self._fixed + count_text_tokens(request.messages[-1].content, self._model)
            if size + output_limit(request, self._model) <= self._model.context_window:
                rank = hashlib.blake2b(f"{document.id} {i}".encode(), digest_size=8).digest()
                key = item_key(request) if self._done else ""
                sent.append(SampledChunk(-int.from_bytes(rank, "big"), shown_chunks[i], size, key))
        done = self._done([item.key for item in sent]).tolist() if self._done and sent else []
        answered = [item for item, is_done in zip(sent, done, strict=False) if is_done]
        for heap, items in ((self.sampled, sent), (self.sampled_answered, answered)):
            for item in items:
                heapq.heappush(heap, item)
                if len(heap) > self._sample_size:
                    heapq.heappop(heap)
        total = sum(item.prompt_tokens for item in sent)
        self.corpus = self.corpus.plus(
            documents=1,
            dated=bool(iso_date(document.date or "")),
            chunks=len(cuts),
            chunk_tokens=sum(c.n_tokens for c in cuts),
            prompt_tokens=total,
            passage_tokens=total - len(sent) * self._empty,
            beginning_tokens=count_tokens(document.text[:BEGINNING_CHARACTERS], self._vocabulary)
            if is_written
            else 0,
            embed_tokens=self._embed_tokens(document, [texts[i] for i in embedded]),
            left_out=len(cuts) - len(shown_chunks),
            too_long=len(new) - len(sent),
            repeated=len(shown_chunks) - len(new),
            answered=len(answered),
            answered_prompt_tokens=sum(item.prompt_tokens for item in answered),
        )

    def _first_request(self, chunk: ChunkText) -> ChatRequest:
        request = next(extract(chunk, self._spec))
        assert isinstance(request, ChatRequest)
        return request

    def _embed_tokens(self, document: Document, texts: list[str]) -> int:
        """Count the tokens of a document's texts to embed, including their title headers."""
        options = self._settings.embeddings
        if not options.enabled or not texts:
            return 0
        sizes = count_tokens_of(texts, self._embed_vocabulary)
        if options.include_titles:
            fields = (document.title, document.date, document.path, document.row)
            metadata = metadata_lines(document.metadata, self._settings.chunking.prepended_metadata)
            headers = [document_header(*fields, text, metadata) for text in texts]
            sizes += count_tokens_of(headers, self._embed_vocabulary)
        return int(np.minimum(sizes, options.max_tokens).sum())


def _add_new(seen: set[int], chunks: Sequence[ChunkText]) -> list[int]:
    """Add chunks, and return the positions of those not seen before. Equal 64-bit hashes count as equal."""
    new = []
    for i, chunk in enumerate(chunks):
        content = f"{chunk.header}\0{chunk.text}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
        if digest not in seen:
            seen.add(digest)
            new.append(i)
    return new


class RepeatFinder:
    """Finds the spans of documents that a run leaves out (`corpus/repeated_paragraphs.py`)."""

    def __init__(self) -> None:
        self._documents: list[tuple[str, int, str]] = []
        self._columns = [array("Q"), array("q"), array("q"), array("q")]

    def add(self, document: Document) -> None:
        number = len(self._documents)
        self._documents.append((document.path, len(document.row), document.row))
        for start, end, hash_ in paragraphs(document.text):
            for column, value in zip(self._columns, (hash_, number, start, end), strict=True):
                column.append(value)

    def find(self, read_share: float) -> dict[str, list[Span]]:
        """Return the spans to leave out by document id. `read_share` is as in `CorpusCounts`."""
        order = sorted(range(len(self._documents)), key=self._documents.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        hashes, numbers, starts, ends = (np.asarray(column) for column in self._columns)
        by_hash = np.lexsort((starts, rank[numbers], hashes))
        n_required = min_documents(round(len(order) / read_share))
        is_left_out = find_repeats(hashes[by_hash], numbers[by_hash], n_required)
        found: dict[str, list[Span]] = {}
        for i in np.sort(by_hash[is_left_out]).tolist():
            path, _, row = self._documents[numbers[i]]
            found.setdefault(document_id(path, row), []).append((int(starts[i]), int(ends[i])))
        return {id_: merge_overlapping(sorted(spans)) for id_, spans in found.items()}
