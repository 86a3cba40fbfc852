"""Build the index for walks over the graph (`store/search/name_links.py`): links between chunks and names.

A chunk is linked to the entities extracted from it, by their titles and by the names as extracted, with
weight 1; to titles of documents that it contains (`titles_stage.py`), with MENTION_WEIGHT; and to the name
in its document's title, with TITLE_WEIGHT, because the subject of a passage leads further than other names.

The index consists of shards, each over some consecutive parts of the corpus. They are reused in the same way
as the shards in `search_stage.py`.
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
from graphrag_ray.base.ids import name_id, name_words, stable_id
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.corpus.document_titles import name_from_title
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.graph.stable_batches import stable_batches
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.search_stage import build_shards, shard_failures, write_shard
from graphrag_ray.indexing.stages.titles_stage import MENTIONS
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.store.files import Store, map_in_threads
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.search import name_links

TITLE_WEIGHT, MENTION_WEIGHT = 10, 2
MAX_WORD_SHARE, MIN_WORD_CHUNKS = 0.01, 100
"""A title of one word that more than this share, and this number, of a shard's chunks contain is an ordinary
word there, and is linked to its own document only."""
MAX_NAME_CHARS = 100
"""Maximum length of a name in its failure, in characters."""
SHARD_ROWS = 131_072
SHARD_BYTES = 128 << 20
"""Maximum stored size of a shard's parts. A query reads every shard, so small ones would be slow."""
_THREADS = 8
"""Number of threads that read parts, because storage may have a high latency."""

_Group: TypeAlias = tuple[Sequence[Part], Sequence[Part], Sequence[Part], Sequence[Part]]
"""Parts of documents, of their chunks, and of the entities and titles found in these."""
_Links: TypeAlias = tuple[Ints, Ints, Ints]
"""Numbers of chunks, numbers of names, and weights."""


@dataclass(frozen=True)
class _WalkShard:
    groups: Sequence[_Group]
    made_from: str
    table: str = schema.NAME_LINKS_TABLE

    @property
    def rows(self) -> int:
        return sum(part.rows for _, units, *_ in self.groups for part in units)


def build_walk_index(run: Run, corpus: Result, graph: ExtractedGraph, titles: Result) -> Result:
    """Return table `schema.NAME_LINKS_TABLE` with a group per shard, and failures."""
    tables = (
        corpus.tables["documents"],
        corpus.tables["text_units"],
        graph.extraction.tables["found_entities"],
        titles.tables["mentions"],
    )

    def compute() -> Result:
        parts, built = build_shards(run, "walk", _shards(list(zip(*tables, strict=True))), _build_shard)
        failed = shard_failures(run, "walk", built)
        failures = {"failures": [*failed.get("failures", []), titles.failures]}
        shards = {schema.NAME_LINKS_TABLE: [[part] for part in parts]}
        return Result(shards | failures, {"shards": len(parts)}, final=not failed)

    return run.step("walk", [*tables, titles.failures], compute)


def _shards(groups: Sequence[_Group]) -> list[_WalkShard]:
    """Batch groups into shards. A group that exceeds the limit becomes a separate shard."""
    groups = [group for group in groups if any(part.rows for part in group[1])]
    # Boundaries do not depend on mentions, because a new title changes them in many groups.
    hashes = [stable_id("group", *(part.path for parts in group[:3] for part in parts)) for group in groups]
    mentions = [[part.path for part in group[3]] for group in groups]
    sizes = [
        max(
            sum(part.bytes for part in (*units, *entities)),
            sum(part.rows for part in units) * SHARD_BYTES // SHARD_ROWS,
        )
        for _, units, entities, _ in groups
    ]
    shards = []
    for batch in stable_batches(hashes, sizes, SHARD_BYTES):
        depends_on = [path for i in batch for path in (hashes[i], *mentions[i])]
        shards.append(_WalkShard([groups[i] for i in batch], stable_id("walk", code_version(), *depends_on)))
    return shards


@dataclass(frozen=True)
class _Names:
    """Distinct names by id, and names that raised an unexpected error. The spelling in a title wins."""

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    failed: list[dict[str, str]] = field(default_factory=list)

    def number(self, text: str, is_title: bool = False) -> int:
        """Return the number of a name, or -1 if the text is not a name."""
        try:
            id_ = name_id(text)
        except Exception as e:
            if not is_unexpected(e):
                raise
            item = f"name {text[:MAX_NAME_CHARS]}: not used in walks"
            self.failed.append({"item": item, "error": record_bug(e)})
            return -1
        if not id_:
            return -1
        if is_title or id_ not in self.texts:
            self.texts[id_] = text
        return self.numbers.setdefault(id_, len(self.numbers))


@dataclass(frozen=True)
class _ReadGroup:
    """The data of a group. `entities` and `mentions` are pairs of a chunk's position, or -1, and a name."""

    chunks: list[str]
    document_of: list[str]
    documents: pa.Table
    entities: tuple[Ints, pa.DictionaryArray]
    mentions: tuple[Ints, pa.DictionaryArray]


def _build_shard(store: Store, shard: _WalkShard) -> Iterator[pa.Table]:
    groups = list(map_in_threads(partial(_read, store), shard.groups, _THREADS))
    first = np.cumsum([0, *(len(group.chunks) for group in groups)]).tolist()
    names = _Names()
    links = [_name_links([group.entities for group in groups], first, names, 1)]
    chunk, name, weight = _name_links([group.mentions for group in groups], first, names, MENTION_WEIGHT)
    is_word = np.array([len(name_words(text)) == 1 for text in names.texts.values()] or [False])
    common = is_word & (
        np.bincount(name, minlength=len(is_word)) > max(MIN_WORD_CHUNKS, MAX_WORD_SHARE * first[-1])
    )
    mask = ~common[name]
    links += [(chunk[mask], name[mask], weight[mask])]
    links += [_title_links(group, start, names) for group, start in zip(groups, first, strict=False)]
    chunk, name, weight = (np.concatenate(column) for column in zip(*links, strict=True))
    chunks = [id_ for group in groups for id_ in group.chunks]
    data = name_links.build(chunks, names.texts, chunk, name, weight)
    yield write_shard(store, shard, data, names.failed)


def _read(store: Store, group: _Group) -> _ReadGroup:
    documents, units, entities, mentions = group
    chunks = read_table(store, units, ["id", "document_id"], schema.TEXT_UNITS)
    instances = read_table(store, entities, ["title", "text_unit_id", "name"], schema.ENTITY_INSTANCES)
    renamed = instances.filter(instances["name"].is_valid())
    renamed = pa.table({"title": renamed["name"], "text_unit_id": renamed["text_unit_id"]})
    instances = pa.concat_tables([instances.select(["title", "text_unit_id"]), renamed])
    titles = read_table(store, mentions, None, MENTIONS)
    ids = chunks["id"].combine_chunks()

    def linked(rows: pa.Table) -> tuple[Ints, pa.DictionaryArray]:
        chunk = pc.index_in(rows["text_unit_id"], value_set=ids).fill_null(-1)
        return chunk.to_numpy().astype(np.int64), rows["title"].combine_chunks().dictionary_encode()

    return _ReadGroup(
        chunks["id"].to_pylist(),
        chunks["document_id"].to_pylist(),
        read_table(store, documents, ["id", "title", "path", "row"], schema.DOCUMENTS),
        linked(instances),
        linked(titles),
    )


def _name_links(
    groups: Sequence[tuple[Ints, pa.DictionaryArray]], first: Sequence[int], names: _Names, weight: int
) -> _Links:
    """Link chunks to the names found in them; `first` is the number of each group's first chunk."""
    # Number distinct names only: most occur in many groups, and normalising one costs half of the work.
    texts = pa.chunked_array([name for _, name in groups]).unify_dictionaries()
    number = np.array([names.number(text) for text in texts.chunk(0).dictionary.to_pylist()] or [-1])
    name = np.concatenate([number[array.indices.to_numpy()] for array in texts.chunks])
    chunk = np.concatenate([chunk for chunk, _ in groups])
    known = np.flatnonzero((chunk >= 0) & (name >= 0))
    chunk += np.repeat(first[:-1], [len(chunk) for chunk, _ in groups])
    return chunk[known], name[known], np.full(len(known), weight)


def _title_links(group: _ReadGroup, first: int, names: _Names) -> _Links:
    """Link chunks to the titles of their documents; `first` is the number of the group's first chunk."""
    number = {
        row["id"]: names.number(
            name_from_title(row["title"], row["path"] or "", row["row"] or ""), is_title=True
        )
        for row in group.documents.to_pylist()
    }
    name = np.array([number.get(id_, -1) for id_ in group.document_of] or [-1])
    titled = np.flatnonzero(name >= 0)
    return titled + first, name[titled], np.full(len(titled), TITLE_WEIGHT)
