"""Counting and sampling the chunks of a corpus."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.corpus.chunks import text_units_table
from graphrag_ray.corpus.document import Document
from graphrag_ray.corpus.document_context import opening
from graphrag_ray.graph.extraction_dialogue import ChunkText, ExtractSpec, extract, extract_spec
from graphrag_ray.indexing.forecast.corpus_counts import ChunkCounter
from graphrag_ray.llm.request_sizes import count_prompt_tokens

SETTINGS = parse_settings(
    {
        "models": {"default": {"provider": "openai", "model": "gpt-4o-mini"}},
        "chunking": {"size": 20, "overlap": 5, "min_last_chunk_tokens": 3},
    }
)
SPEC = extract_spec(load_prompts(), SETTINGS)


def document(text: str, name: str = "a.txt") -> Document:
    return Document(name, "", name, text)


def text_without_repetitions(start: int) -> str:
    return " ".join(str(1_000 * start + i) for i in range(200))


def counter(settings: Settings = SETTINGS, sample: int = 10, done=None, spec: ExtractSpec = SPEC):
    return ChunkCounter(spec, settings, sample, done)


@given(st.text(min_size=1, max_size=400).filter(str.strip))
def test_tokens_of_first_requests_equal_the_counts_of_the_client(text: str):
    counted, sample = counter(), document(text)
    counted.add(sample)
    first_words = opening(sample, SETTINGS.input, "o200k_base")
    rows = text_units_table(sample, SETTINGS.chunking, "o200k_base", first_words).to_pylist()
    model = SETTINGS.model("default")
    different = dict.fromkeys(ChunkText(row["text"], row["header"]) for row in rows)
    requests = [next(extract(chunk, SPEC)) for chunk in different]
    assert counted.corpus.chunks == len(rows)
    assert counted.corpus.prompt_tokens == sum(count_prompt_tokens(r, model) for r in requests)
    assert counted.corpus.chunk_tokens == sum(row["n_tokens"] for row in rows)


def test_sample_does_not_depend_on_the_order_of_documents():
    texts = [document(text_without_repetitions(i), f"{i}.txt") for i in range(20)]
    one, other = counter(sample=15), counter(sample=15)
    for d in texts:
        one.add(d)
    for d in reversed(texts):
        other.add(d)
    assert len(one.sampled) == 15
    assert {d.rank for d in one.sampled} == {d.rank for d in other.sampled}


def test_chunks_that_do_not_fit_the_context_window_are_counted_separately():
    small = parse_settings(
        {
            "models": {
                "default": {
                    "provider": "openai", "model": "gpt-4o-mini", "context_window": 3_000,
                    "max_output_tokens": 100,
                }
            },
            "chunking": {"size": "document"},
        }
    )  # fmt: skip
    counted = counter(small, spec=extract_spec(load_prompts(), small))
    counted.add(document("short"))
    counted.add(document("long " * 3_000, "b.txt"))
    assert (counted.corpus.chunks, counted.corpus.too_long, counted.corpus.sent_chunks) == (2, 1, 1)
    assert counted.corpus.prompt_tokens < 3_000


def test_repeated_chunk_is_sent_once():
    counted = counter()
    counted.add(document("one and the same"))
    once = counted.corpus
    counted.add(document("one and the same", "b.txt"))
    both = counted.corpus
    assert (both.chunks, both.repeated, both.sent_chunks) == (2, 1, 1)
    assert both.prompt_tokens == once.prompt_tokens and both.embed_tokens == once.embed_tokens
    assert len(counted.sampled) == 1


def test_answered_chunks_are_counted_and_sampled_separately():
    counted_keys: list[str] = []

    def every_other(keys):
        counted_keys.extend(keys)
        return np.arange(len(keys)) % 2 == 0

    counted = counter(sample=3, done=every_other)
    counted.add(document(text_without_repetitions(0)))
    n = len(counted_keys)
    assert counted.corpus.chunks == n and counted.corpus.answered == -(-n // 2)
    assert 0 < counted.corpus.answered_prompt_tokens < counted.corpus.prompt_tokens
    assert len(counted.sampled_answered) == 3
    assert all(chunk.key in counted_keys[::2] for chunk in counted.sampled_answered)


def test_counts_of_a_part_are_extrapolated():
    counted = counter()
    counted.add(document(text_without_repetitions(0)))
    whole = counted.corpus.scaled(0.25)
    assert whole.chunks == 4 * counted.corpus.chunks
    assert whole.prompt_tokens == pytest.approx(4 * counted.corpus.prompt_tokens)
    assert whole.read_share == 0.25
