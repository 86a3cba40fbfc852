"""A corpus in numbers: its chunks and the first request for each, exactly as a run would send it."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import ChatRequest, item_key
from graphrag_ray.corpus.chunks import chunk as cut
from graphrag_ray.corpus.chunks import header_of
from graphrag_ray.corpus.document import Document, metadata_lines
from graphrag_ray.corpus.document_titles import header as title_header
from graphrag_ray.corpus.tokens import count_many, vocabulary_for
from graphrag_ray.graph.extraction_dialogue import ExtractSpec, ShownChunk, extract
from graphrag_ray.llm.request_sizes import TOKENS_PER_MESSAGE, output_limit, text_size


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

    def plus(self, **counts: float) -> CorpusCounts:
        return replace(self, **{name: getattr(self, name) + n for name, n in counts.items()})

    def scaled(self, read_share: float) -> CorpusCounts:
        """The whole corpus, from the share of its bytes that was read."""
        names = (
            *("chunks", "chunk_tokens", "prompt_tokens", "passage_tokens", "embed_tokens", "too_long"),
            *("repeated", "answered", "answered_prompt_tokens"),
        )
        return replace(self, read_share=read_share, **{n: getattr(self, n) / read_share for n in names})


@dataclass(order=True, slots=True)
class Drawn:
    """A chunk of a sample. rank: minus its pseudo-random number, so that a heap drops the highest."""

    rank: int
    chunk: ShownChunk = field(compare=False)
    prompt_tokens: int = field(compare=False)
    key: str = field(compare=False)


class ChunkCounter:
    """Counts the chunks of documents, and draws two samples: of all, and of those that a journal answers.

    The samples are the chunks with the smallest hashes: without replacement, the same in every run, and
    nearly the same when the corpus has grown.

    done: item keys -> which of them a journal answers
    """

    def __init__(
        self,
        spec: ExtractSpec,
        settings: Settings,
        sample: int,
        done: Callable[[Sequence[str]], npt.NDArray[np.bool_]] | None,
    ) -> None:
        self._spec, self._settings, self._sample, self._done = spec, settings, sample, done
        self._model = settings.model(settings.model_name("extract"))
        self._vocabulary = vocabulary_for(self._model.model, self._model.tokenizer).name
        embedding = settings.model(settings.model_name("embed"))
        self._embed_vocabulary = vocabulary_for(embedding.model, embedding.tokenizer).name
        # Of the last message: the others are the same for every chunk.
        *fixed, last = self._first_request(ShownChunk("")).messages
        self._fixed = TOKENS_PER_MESSAGE + sum(self._size(m.content) + TOKENS_PER_MESSAGE for m in fixed)
        self._empty = self._fixed + self._size(last.content)
        self.corpus = CorpusCounts()
        self._seen: set[int] = set()
        self.drawn: list[Drawn] = []
        self.drawn_answered: list[Drawn] = []

    def add(self, document: Document) -> None:
        header = header_of(document, self._settings.chunking)
        found = cut(document.text, self._settings.chunking, self._vocabulary, header(""))
        texts = [document.text[c.start : c.end] for c in found]
        chunks = [ShownChunk(text, header(text)) for text in texts]
        new = []  # that no earlier one is equal to, by 64 bits of a hash: a run asks about each once
        for i, chunk in enumerate(chunks):
            content = f"{chunk.header}\0{chunk.text}".encode("utf-8", "surrogatepass")
            digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
            if digest not in self._seen:
                self._seen.add(digest)
                new.append(i)
        sent: list[Drawn] = []
        for i in new:
            request = self._first_request(chunks[i])
            size = self._fixed + self._size(request.messages[-1].content)
            if size + output_limit(request, self._model) <= self._model.context_window:
                rank = hashlib.blake2b(f"{document.id} {i}".encode(), digest_size=8).digest()
                key = item_key(request) if self._done else ""
                sent.append(Drawn(-int.from_bytes(rank, "big"), chunks[i], size, key))
        keys = [item.key for item in sent]
        done = self._done(keys).tolist() if self._done and keys else [False] * len(sent)
        answered = [item for item, is_done in zip(sent, done, strict=True) if is_done]
        for sample, items in ((self.drawn, sent), (self.drawn_answered, answered)):
            for item in items:
                heapq.heappush(sample, item)
                if len(sample) > self._sample:
                    heapq.heappop(sample)
        total = sum(item.prompt_tokens for item in sent)
        self.corpus = self.corpus.plus(
            documents=1,
            chunks=len(found),
            chunk_tokens=sum(c.n_tokens for c in found),
            prompt_tokens=total,
            passage_tokens=total - len(sent) * self._empty,
            embed_tokens=self._embed_tokens(document, [texts[i] for i in new]),
            too_long=len(new) - len(sent),
            repeated=len(found) - len(new),
            answered=len(answered),
            answered_prompt_tokens=sum(item.prompt_tokens for item in answered),
        )

    def _first_request(self, chunk: ShownChunk) -> ChatRequest:
        request = next(extract(chunk, self._spec))
        assert isinstance(request, ChatRequest)
        return request

    def _size(self, text: str) -> int:
        return text_size(text, self._model)

    def _embed_tokens(self, document: Document, texts: list[str]) -> int:
        """Of texts of a document, and of what is said of it above each."""
        options = self._settings.embeddings
        if not options.enabled or not texts:
            return 0
        sizes = count_many(texts, self._embed_vocabulary)
        if options.with_titles:
            about = (document.title, document.date, document.path, document.row)
            more = metadata_lines(document.metadata, self._settings.chunking.prepended_metadata)
            sizes += count_many([title_header(*about, text, more) for text in texts], self._embed_vocabulary)
        return int(np.minimum(sizes, options.max_tokens).sum())
