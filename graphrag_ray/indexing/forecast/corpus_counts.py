"""A corpus in numbers: its chunks and the first request for each, exactly as a run would send it."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphrag_ray.base.index_settings import Model, Settings
from graphrag_ray.base.messages import ChatRequest, item_key
from graphrag_ray.corpus.chunks import chunk as cut
from graphrag_ray.corpus.chunks import header_of
from graphrag_ray.corpus.document import Document, metadata_lines
from graphrag_ray.corpus.document_titles import header as title_header
from graphrag_ray.corpus.tokens import count_many, vocabulary_for
from graphrag_ray.graph.extraction_dialogue import ExtractSpec, ShownChunk, extract
from graphrag_ray.indexing.forecast.sample import Mask
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE, output_limit, prompt_size, text_size

Done = Callable[[Sequence[str]], Mask]
"""Item keys -> which of them a journal answers."""


@dataclass(frozen=True)
class CorpusCounts:
    """Sums over chunks, in tokens of the extraction model's vocabulary unless said otherwise.

    chunk_tokens        of the chunks' texts; prompt_tokens: of the first requests, system message and all
    passage_tokens      of the chunks as a prompt shows them, header included
    embed_tokens        of the texts to embed, in the embedding model's vocabulary
    too_long            chunks that do not fit the model's window and would not be sent
    repeated            chunks that say what another one says, which is asked about once
    answered            chunks that a journal answers; answered_prompt_tokens: of their first requests
    read_share          of the input's bytes; below 1 all the above is an extrapolation
    """

    files: int = 0
    documents: int = 0
    unreadable: int = 0
    chunks: float = 0
    chunk_tokens: float = 0
    prompt_tokens: float = 0
    passage_tokens: float = 0
    embed_tokens: float = 0
    too_long: float = 0
    repeated: float = 0
    answered: float = 0
    answered_prompt_tokens: float = 0
    read_share: float = 1.0

    @property
    def asked(self) -> float:
        """Chunks that are sent."""
        return self.chunks - self.too_long - self.repeated

    def scaled(self, read_share: float) -> CorpusCounts:
        """The whole corpus, from the share of its bytes that was read."""
        names = (
            *("chunks", "chunk_tokens", "prompt_tokens", "passage_tokens", "embed_tokens", "too_long"),
            *("repeated", "answered", "answered_prompt_tokens"),
        )
        sums = {name: getattr(self, name) / read_share for name in names}
        return replace(self, read_share=read_share, **sums)


@dataclass(order=True, slots=True)
class Drawn:
    """A chunk of a sample. rank: minus its pseudo-random number, so that a heap drops the highest."""

    rank: int
    chunk: ShownChunk = field(compare=False)
    prompt_tokens: int = field(compare=False)
    key: str = field(compare=False)


class ChunkCounter:
    """Counts the chunks of documents, and draws two samples: of all, and of those that a journal answers.

    The samples are those with the smallest hashes: without replacement, the same in every run, and nearly
    the same when the corpus has grown.
    """

    def __init__(self, spec: ExtractSpec, settings: Settings, sample: int, done: Done | None) -> None:
        self._spec, self._settings, self._sample, self._done = spec, settings, sample, done
        self._model = settings.model(settings.model_name("extract"))
        self._vocabulary = vocabulary_for(self._model.model, self._model.tokenizer).name
        self._embed_vocabulary = self._embedding_vocabulary()
        self._fixed = _Fixed(spec, self._model)
        self.corpus = CorpusCounts()
        self._seen: set[int] = set()
        self.drawn: list[Drawn] = []
        self.drawn_answered: list[Drawn] = []

    def add(self, document: Document) -> None:
        options = self._settings.chunking
        header = header_of(document, options)
        found = cut(document.text, options, self._vocabulary, header(""))
        texts = [document.text[c.start : c.end] for c in found]
        chunks = [ShownChunk(text, header(text)) for text in texts]
        new = self._new(chunks)
        requests = {i: _first_request(chunks[i], self._spec) for i in new}
        sizes = {i: self._fixed.size(request) for i, request in requests.items()}
        window = self._model.context_window
        sent = [i for i, r in requests.items() if sizes[i] + output_limit(r, self._model) <= window]
        keys = [item_key(requests[i]) if self._done else "" for i in sent]
        done = self._done(keys) if self._done and keys else np.zeros(len(sent), dtype=np.bool_)
        for i, key, answered in zip(sent, keys, done.tolist(), strict=True):
            item = Drawn(_rank(document.id, i), chunks[i], sizes[i], key)
            _draw(self.drawn, item, self._sample)
            if answered:
                _draw(self.drawn_answered, item, self._sample)
        total = sum(sizes[i] for i in sent)
        c = self.corpus
        self.corpus = replace(
            c,
            documents=c.documents + 1,
            chunks=c.chunks + len(found),
            chunk_tokens=c.chunk_tokens + sum(x.n_tokens for x in found),
            prompt_tokens=c.prompt_tokens + total,
            passage_tokens=c.passage_tokens + total - len(sent) * self._fixed.empty,
            embed_tokens=c.embed_tokens
            + self._embed_tokens(document, [texts[i] for i in new], [found[i].n_tokens for i in new]),
            too_long=c.too_long + len(new) - len(sent),
            repeated=c.repeated + len(found) - len(new),
            answered=c.answered + int(done.sum()),
            answered_prompt_tokens=c.answered_prompt_tokens
            + sum(sizes[i] for i, answered in zip(sent, done.tolist(), strict=True) if answered),
        )

    def _new(self, chunks: Sequence[ShownChunk]) -> list[int]:
        """The chunks that no earlier one is equal to, by 64 bits of a hash: a run asks about each once."""
        new = []
        for i, chunk in enumerate(chunks):
            content = f"{chunk.header}\0{chunk.text}".encode("utf-8", "surrogatepass")
            digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
            if digest not in self._seen:
                self._seen.add(digest)
                new.append(i)
        return new

    def _embedding_vocabulary(self) -> str | None:
        model = self._settings.model(self._settings.model_name("embed"))
        if not self._settings.embeddings.enabled:
            return None
        return vocabulary_for(model.model, model.tokenizer).name

    def _embed_tokens(self, document: Document, texts: list[str], counted: list[int]) -> int:
        """Of texts of a document, and of what is said of it above each."""
        if self._embed_vocabulary is None or not texts:
            return 0
        same = self._embed_vocabulary == self._vocabulary
        sizes = np.asarray(counted) if same else count_many(texts, self._embed_vocabulary)
        if self._settings.embeddings.with_titles:
            about = (document.title, document.date, document.path, document.row)
            more = metadata_lines(document.metadata, self._settings.chunking.prepended_metadata)
            headers = [title_header(*about, text, more) for text in texts]
            sizes = sizes + count_many(headers, self._embed_vocabulary)
        return int(np.minimum(sizes, self._settings.embeddings.max_tokens).sum())


class _Fixed:
    """Sizes of first requests: all messages but the last are the same for every chunk."""

    def __init__(self, spec: ExtractSpec, model: Model) -> None:
        self._model = model
        request = _first_request(ShownChunk(""), spec)
        roomy = model.model_copy(update={"context_window": 1 << 62})
        self.empty = prompt_size(request, roomy)
        self._before = self.empty - text_size(request.messages[-1].content, model) - TOKENS_PER_MESSAGE
        self._messages = request.messages[:-1]

    def size(self, request: ChatRequest) -> int:
        """`llm.sizes.prompt_size` of the request."""
        return self._before + text_size(request.messages[-1].content, self._model) + TOKENS_PER_MESSAGE


def _first_request(chunk: ShownChunk, spec: ExtractSpec) -> ChatRequest:
    request = next(extract(chunk, spec))
    assert isinstance(request, ChatRequest)
    return request


def _rank(document: str, position: int) -> int:
    digest = hashlib.blake2b(f"{document} {position}".encode(), digest_size=8).digest()
    return -int.from_bytes(digest, "big")


def _draw(sample: list[Drawn], item: Drawn, limit: int) -> None:
    if len(sample) < limit:
        heapq.heappush(sample, item)
    elif sample and item > sample[0]:
        heapq.heapreplace(sample, item)
