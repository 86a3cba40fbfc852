"""A shard of the walk index is the same as one built link by link."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import schema
from graphrag_ray.base.ids import name_id, stable_id
from graphrag_ray.corpus.document_titles import name_from_title
from graphrag_ray.indexing.stages import walk_stage
from graphrag_ray.indexing.stages.titles_stage import MENTIONS
from graphrag_ray.indexing.stages.walk_stage import MENTION_WEIGHT, TITLE_WEIGHT
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part
from graphrag_ray.store.search import name_links
from graphrag_ray.store.search.pagerank import count_holders

NAMES = st.sampled_from(["U.S.", "US", "U S", "ADA", "Ada", "Ada (poet)", "BERT", "?", "", "C", "C++"])
"""Several spellings of some names, and texts that are not names."""

Chunk = tuple[list[str], list[str]]
"""The names and the titles of documents in a chunk."""
Document = tuple[str, list[Chunk]]
"""A title, and chunks."""

CHUNKS = st.tuples(st.lists(NAMES, max_size=4), st.lists(NAMES.filter(bool), max_size=2))
GROUPS = st.lists(st.lists(st.tuples(NAMES, st.lists(CHUNKS, max_size=3)), max_size=3))


def write_group(store: Store, number: int, documents: Sequence[Document]) -> tuple[list[Part], ...]:
    ids = [stable_id("document", str(number), str(n)) for n in range(len(documents))]
    rows: dict[str, list[dict[str, Any]]] = {"documents": [], "text_units": [], "found_entities": []}
    rows["mentions"] = []
    for id_, (title, chunks) in zip(ids, documents, strict=True):
        rows["documents"].append({"id": id_, "title": title, "path": "notes.jsonl", "row": "7"})
        for n, (names, titles) in enumerate(chunks):
            unit = stable_id("chunk", id_, str(n))
            rows["text_units"].append({"id": unit, "document_id": id_})
            rows["found_entities"] += [{"title": name, "text_unit_id": unit} for name in names]
            rows["mentions"] += [{"text_unit_id": unit, "title": name} for name in titles]
    schemas = (schema.DOCUMENTS, schema.TEXT_UNITS, schema.ENTITY_INSTANCES, MENTIONS)
    tables = (pa.Table.from_pylist(x, schema=y) for x, y in zip(rows.values(), schemas, strict=True))
    return tuple(
        [write_part(store, name, table)] if table.num_rows else []
        for name, table in zip(rows, tables, strict=True)
    )


def build_link_by_link(groups: Sequence[Sequence[Document]]) -> bytes:
    chunks: list[str] = []
    texts: dict[str, str] = {}
    links: list[tuple[int, str, int]] = []
    for number, documents in enumerate(groups):
        for n, (_, document_chunks) in enumerate(documents):
            for k, (names, _) in enumerate(document_chunks):
                for name in names:
                    if id_ := name_id(name):
                        texts.setdefault(id_, name)
                        links.append((len(chunks), id_, 1))
                id_ = stable_id("document", str(number), str(n))
                chunks.append(stable_id("chunk", id_, str(k)))
    all_chunks = [chunk for documents in groups for _, chunks_ in documents for chunk in chunks_]
    for n, (_, titles) in enumerate(all_chunks):
        for name in titles:
            if id_ := name_id(name):
                texts.setdefault(id_, name)
                links.append((n, id_, MENTION_WEIGHT))
    first = 0
    for documents in groups:
        for title, document_chunks in documents:
            text = name_from_title(title, "notes.jsonl", "7")
            if id_ := name_id(text):
                texts[id_] = text
                links += [(first + k, id_, TITLE_WEIGHT) for k in range(len(document_chunks))]
            first += len(document_chunks)
    numbers = {id_: n for n, id_ in enumerate(texts)}
    of_chunk, of_name, weights = (np.array([link[k] for link in links], object) for k in range(3))
    name_numbers = np.array([numbers[id_] for id_ in of_name], np.int64)
    return name_links.build(chunks, texts, of_chunk.astype(np.int64), name_numbers, weights.astype(np.int64))


@fewer(2)
@given(GROUPS)
def test_spelling_in_the_last_title_wins_over_the_first_in_a_chunk(groups: list[list[Document]]):
    with_chunks = [documents for documents in groups if any(chunks for _, chunks in documents)]
    if not with_chunks:
        return
    with TemporaryDirectory() as folder:
        store = Store(folder)
        stored_groups = [write_group(store, number, group) for number, group in enumerate(with_chunks)]
        (shard,) = walk_stage._shards(stored_groups)
        (row,) = next(iter(walk_stage._build_shard(store, shard))).to_pylist()
        stored = index_files.open_part(store, Part(row["path"], shard.rows, row["bytes"]))
        assert bytes(stored.data) == build_link_by_link(with_chunks)
        assert row["failed"] == []


def test_a_title_that_is_an_ordinary_word_is_linked_to_its_own_document_only(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(walk_stage, "MIN_WORD_CHUNKS", 2)
    chunks: list[Chunk] = [([], ["ADA", "Ada Byron"])] * 3
    with TemporaryDirectory() as folder:
        store = Store(folder)
        (shard,) = walk_stage._shards([write_group(store, 0, [("ADA", [([], [])]), ("BERT", chunks)])])
        (row,) = next(iter(walk_stage._build_shard(store, shard))).to_pylist()
        stored = name_links.read(index_files.open_part(store, Part(row["path"], shard.rows, row["bytes"])))
        counts = count_holders([stored], [name_id("Ada"), name_id("Ada Byron")])
        assert counts == {name_id("Ada"): 1, name_id("Ada Byron"): 3}
