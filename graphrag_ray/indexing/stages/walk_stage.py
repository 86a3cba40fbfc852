"""The index for walks over the graph (`store/search/name_links.py`): which names each chunk holds.

A chunk holds the entities that were extracted from it, and the name in its document's title, to which it is
linked TITLE_WEIGHT times as strongly: what a passage is about leads further than what it mentions.
(A title is not looked for in the text of other documents, where extraction finds it as a name; that found no
more: "Walks" in benchmarks/RESULTS.md.)

An index is made of shards, each over some consecutive parts of the corpus. A shard that was made before from
the same parts is found by its name and not made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.ids import name_id, stable_id
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.corpus.document_titles import title_name
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.search_stage import failures_of, made_shards, stored_shard
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.store.files import Store, in_threads
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.search import name_links

TITLE_WEIGHT = 10
SHOWN = 100
"""Characters of a name that failed."""
SHARD_ROWS = 131_072
SHARD_BYTES = 128 << 20
"""Of a shard's parts as they are stored. A question goes through all shards, so many small ones are slow."""
_THREADS = 8
"""That read parts, for storage that answers late."""

_ABOUT = ["id", "title", "path", "row"]
_Group: TypeAlias = tuple[Sequence[Part], Sequence[Part], Sequence[Part]]
"""Parts of documents, of their chunks, and of the entities found in these."""
_Links: TypeAlias = tuple[Ints, Ints, Ints]
"""Numbers of chunks and of names, and weights."""


@dataclass(frozen=True)
class _WalkShard:
    """made_from: a hash of all that it depends on."""

    groups: Sequence[_Group]
    made_from: str
    table: str = schema.WALKS

    @property
    def rows(self) -> int:
        return sum(part.rows for _, units, _ in self.groups for part in units)


def index_for_walks(run: Run, corpus: Result, graph: ExtractedGraph) -> Result:
    """Table `schema.WALKS`, a shard a group."""
    tables = corpus.tables["documents"], corpus.tables["text_units"], graph.extracted.tables["found_entities"]

    def compute() -> Result:
        parts, made = made_shards(run, "walk", _shards(list(zip(*tables, strict=True))), _make)
        failed = failures_of(run, "walk", made)
        return Result(
            {schema.WALKS: [[part] for part in parts]} | failed, {"shards": len(parts)}, final=not failed
        )

    return run.step("walk", list(tables), compute)


def _shards(groups: Sequence[_Group]) -> list[_WalkShard]:
    """A group that is larger than a shard is one by itself."""
    some = [group for group in groups if any(part.rows for part in group[1])]
    names = [stable_id("group", *(part.path for parts in group for part in parts)) for group in some]
    sizes = [
        max(
            sum(part.bytes for parts in group[1:] for part in parts),
            sum(part.rows for part in group[1]) * SHARD_BYTES // SHARD_ROWS,
        )
        for group in some
    ]
    return [
        _WalkShard([some[i] for i in batch], stable_id("walk", code_version(), *(names[i] for i in batch)))
        for batch in stable_batches(names, sizes, SHARD_BYTES)
    ]


def _make(store: Store, shard: _WalkShard) -> Iterator[pa.Table]:
    groups = list(in_threads(partial(_read, store), shard.groups, _THREADS))
    first = np.cumsum([0, *(len(group.chunks) for group in groups)]).tolist()
    names = _Names()
    links = [_extracted(groups, first, names)]
    links += [_titled(group, start, names) for group, start in zip(groups, first, strict=False)]
    chunk, name, weight = (np.concatenate(column) for column in zip(*links, strict=True))
    chunks = [id_ for group in groups for id_ in group.chunks]
    data = name_links.build(chunks, names.texts, chunk, name, weight)
    yield stored_shard(store, shard, data, names.failed)


@dataclass(frozen=True)
class _Names:
    """Distinct names. texts: id -> the name, as a title has it where it is one; numbers: of these, in their
    order; failed: names that cannot be read, which is a bug."""

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    failed: list[dict[str, str]] = field(default_factory=list)

    def number(self, text: str, title: bool = False) -> int:
        """-1 for what is no name."""
        try:
            id_ = name_id(text)
        except Exception as e:
            if not is_unforeseen(e):
                raise
            item = f"name {text[:SHOWN]}: walked over by no question"
            self.failed.append({"item": item, "error": note_bug(e)})
            return -1
        if not id_:
            return -1
        if title or id_ not in self.texts:
            self.texts[id_] = text
        return self.numbers.setdefault(id_, len(self.numbers))


@dataclass(frozen=True)
class _ReadGroup:
    """chunks: ids; document_of: the document of each; found: of each entity that was found the number of its
    chunk, -1 where it is of none; found_names: and its name"""

    chunks: list[str]
    document_of: list[str]
    documents: pa.Table
    found: Ints
    found_names: pa.DictionaryArray


def _read(store: Store, group: _Group) -> _ReadGroup:
    documents, units, entities = group
    rows = read_table(store, units, ["id", "document_id"], schema.TEXT_UNITS)
    found = read_table(store, entities, ["title", "text_unit_id"], schema.ENTITY_INSTANCES)
    chunk = pc.index_in(found["text_unit_id"], value_set=rows["id"].combine_chunks())
    return _ReadGroup(
        rows["id"].to_pylist(),
        rows["document_id"].to_pylist(),
        read_table(store, documents, _ABOUT, schema.DOCUMENTS),
        chunk.fill_null(-1).to_numpy().astype(np.int64),
        found["title"].combine_chunks().dictionary_encode(),
    )


def _extracted(groups: Sequence[_ReadGroup], first: Sequence[int], names: _Names) -> _Links:
    """Links of chunks to the entities that were extracted from them. first: number of each group's first
    chunk."""
    # Most names stand in many groups; to read one takes as long as all else that is done with it.
    titles = pa.chunked_array([group.found_names for group in groups]).unify_dictionaries()
    number = np.array([names.number(text) for text in titles.chunk(0).dictionary.to_pylist()] or [-1])
    name = np.concatenate([number[of.indices.to_numpy()] for of in titles.chunks])
    chunk = np.concatenate([group.found for group in groups])
    known = np.flatnonzero((chunk >= 0) & (name >= 0))
    chunk += np.repeat(first[:-1], [len(group.found) for group in groups])
    return chunk[known], name[known], np.ones(len(known), int)


def _titled(group: _ReadGroup, first: int, names: _Names) -> _Links:
    """Links of chunks to the titles of their documents. first: number of the group's first chunk"""
    number = {
        row["id"]: names.number(title_name(row["title"], row["path"] or "", row["row"] or ""), title=True)
        for row in group.documents.to_pylist()
    }
    name = np.array([number.get(id_, -1) for id_ in group.document_of] or [-1])
    titled = np.flatnonzero(name >= 0)
    return titled + first, name[titled], np.full(len(titled), TITLE_WEIGHT)
