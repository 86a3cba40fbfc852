"""Searching a snapshot, by the vectors of its records or by their words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, SEARCHED, HierarchyKind
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.index_settings import Settings, of_index
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.query.methods.method import Hit, Kind, LevelSearch, NameCounts, Rows, Search, Walk, WalkHit
from graphrag_ray.query.reading import Reader
from graphrag_ray.query.session import Asks
from graphrag_ray.store import blobs
from graphrag_ray.store.files import in_threads
from graphrag_ray.store.search import chnsw, keyword, name_links, vectors
from graphrag_ray.store.search.chnsw import ChnswIndex
from graphrag_ray.store.search.keyword import KeywordShard
from graphrag_ray.store.search.mapped_arrays import ByteSource, known
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.vectors import Floats, Found, VectorShard
from graphrag_ray.store.search.walk import Walked, count_holders, walk
from graphrag_ray.store.snapshots import being_read

T = TypeVar("T")
SHARDS_AT_ONCE = 8
"""That are opened."""


@dataclass(frozen=True)
class Searcher:
    """Searches one snapshot; what it has opened stays open for the next question.

    settings: of the questions
    """

    reader: Reader
    settings: Settings
    _opened: dict[str, list[Any]] = field(default_factory=dict)
    _levels: dict[str, list[list[str]]] = field(default_factory=dict)
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def vector_shards(self, kind: Kind) -> list[VectorShard]:
        return self._open(schema.search_table(kind, "vector"), vectors.read)

    def keyword_shards(self, kind: Kind) -> list[KeywordShard]:
        return self._open(schema.search_table(kind, "keyword"), keyword.read)

    def ids_by_level(self, kind: HierarchyKind) -> list[list[str]]:
        """Ids of the reports of each level, those of the finest first."""
        if kind.name not in self._levels:
            rows = self.reader.rows(Rows(kind.reports_table, ["id", "level"]))
            of_level: dict[int, list[str]] = {}
            for id_, level in zip(rows["id"].to_pylist(), rows["level"].to_pylist(), strict=True):
                of_level.setdefault(level, []).append(id_)
            self._levels[kind.name] = [of_level[level] for level in sorted(of_level, reverse=True)]
        return self._levels[kind.name]

    def level_shards(self, hierarchy: str) -> list[ChnswIndex]:
        """Of a snapshot with an index of a hierarchy's levels."""
        shards = self._open(schema.search_table(hierarchy, "levels"), chnsw.read)
        for shard in shards:
            if (shard.n_levels, shard.dimensions) != (shards[0].n_levels, shards[0].dimensions):
                raise shard.source.refused("its levels are not those of the other shards")
        return shards

    def walk_shards(self) -> list[NameLinks]:
        """Of a snapshot with an index for walks."""
        return self._open(schema.WALKS, name_links.read)

    def open_as(self, other: Searcher) -> None:
        """Open what another one has open, as far as this snapshot has it."""
        for kind in SEARCHED:
            for by, shards in (("vector", self.vector_shards), ("keyword", self.keyword_shards)):
                name = schema.search_table(kind, by)
                if name in other._opened and name in self.reader.manifest.tables:
                    shards(kind)
        if schema.WALKS in other._opened and schema.WALKS in self.reader.manifest.tables:
            self.walk_shards()
        for hierarchy in HIERARCHIES:
            name = schema.search_table(hierarchy, "levels")
            if name in other._opened and name in self.reader.manifest.tables:
                self.level_shards(hierarchy)

    def embedder(self) -> Embedder:
        """How the snapshot's texts were embedded. Raises UsageError where the settings of the questions say
        otherwise: vectors of two models have nothing in common."""
        manifest = self.reader.manifest
        built, own = parse_settings(of_index(manifest.settings)), Embedder.of(self.settings)
        then = Embedder.of(built)
        if not built.embeddings.enabled:
            raise UsageError(
                f"snapshot {manifest.number} has no embeddings, which vector search needs: it was indexed "
                "with embeddings.enabled: false. Run `graphrag-ray index` again with --set "
                "embeddings.enabled=true; nothing but the embeddings is paid for"
            )
        if (then.call.model_id, then.dimensions) != (own.call.model_id, own.dimensions):
            raise UsageError(
                f"the embeddings of snapshot {manifest.number} are those of {_told(then)}, and these "
                f"settings name {_told(own)}. Ask with the settings of the index, or run `graphrag-ray "
                "index` with these"
            )
        return own

    def _open(self, table: str, read: Callable[[ByteSource], T]) -> list[T]:
        """The shards of a table of indexes; [] where the snapshot has none."""
        if table not in self._opened:
            store, manifest = self.reader.store, self.reader.manifest
            with self._opening, being_read(store, manifest):
                if table not in self._opened:
                    parts = manifest.parts(table)
                    opened = in_threads(lambda part: read(blobs.opened(store, part)), parts, SHARDS_AT_ONCE)
                    self._opened[table] = list(opened)
        return self._opened[table]


@dataclass(frozen=True)
class Searching:
    """The searches of one question: a text is embedded once, however many searches it is for."""

    searcher: Searcher
    asker: Asks
    _embedded: dict[str, asyncio.Task[Floats]] = field(default_factory=dict)

    async def find(self, need: Search) -> list[Hit]:
        """Raises UsageError where the snapshot lacks what the search needs; GraphRagError where the text
        could not be embedded; what reading a snapshot raises."""
        if need.k <= 0 or (need.among is not None and not need.among):
            return []
        if need.by == "vector":
            wanted = await self._vector(need.text)
            found = await asyncio.to_thread(_by_vector, self.searcher, need, wanted)
        else:
            found = await asyncio.to_thread(_by_keyword, self.searcher, need)
        return [Hit(id_, score) for id_, score in found]

    async def find_levels(self, need: LevelSearch) -> list[list[Hit]]:
        """Raises as `find`."""
        table = schema.search_table(need.hierarchy, "levels")
        if table not in self.searcher.reader.manifest.tables or not chnsw.has_loops():
            return await self._one_by_one(need)
        wanted = await self._vector(need.text)
        found = await asyncio.to_thread(_by_levels, self.searcher, need, wanted)
        return [[Hit(id_, score) for id_, score in level] for level in found]

    async def count_names(self, need: NameCounts) -> dict[str, int]:
        """Raises what reading a snapshot raises."""
        return await asyncio.to_thread(_counted, self.searcher, need)

    async def walk(self, need: Walk) -> list[WalkHit]:
        """Raises what reading a snapshot raises."""
        found = await asyncio.to_thread(_walked, self.searcher, need)
        return [WalkHit(*one) for one in found]

    async def _one_by_one(self, need: LevelSearch) -> list[list[Hit]]:
        """Level by level, where there is no index of all."""
        kind = HIERARCHIES[need.hierarchy]
        levels = await asyncio.to_thread(self.searcher.ids_by_level, kind)
        searches = [Search(kind.over, "vector", need.text, need.k)]
        searches += [Search(kind.reports, "vector", need.text, need.k, ids) for ids in levels]
        return list(await asyncio.gather(*(self.find(search) for search in searches)))

    async def close(self) -> None:
        """Give up what is still being embedded."""
        tasks = list(self._embedded.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _vector(self, text: str) -> Floats:
        if text not in self._embedded:
            self._embedded[text] = asyncio.ensure_future(self._embed(text))
        wanted: Floats = await asyncio.shield(self._embedded[text])
        return wanted

    async def _embed(self, text: str) -> Floats:
        embedder = await asyncio.to_thread(self.searcher.embedder)
        sendable = text.encode(errors="replace").decode()  # half of a character, from a terminal, say
        (outcome,) = await self.asker.run("embed", [partial(embedder.embed, sendable)])
        if outcome.result is None:
            raise GraphRagError(f"the question could not be embedded: {outcome.error}")
        wanted: Floats = vectors.unit(np.frombuffer(outcome.result, "<f4").reshape(1, -1))[0]
        return wanted


def _by_vector(searcher: Searcher, need: Search, wanted: Floats) -> list[Found]:
    with being_read(searcher.reader.store, searcher.reader.manifest):
        return _by_vector_of(searcher, need, wanted)


def _by_vector_of(searcher: Searcher, need: Search, wanted: Floats) -> list[Found]:
    shards, among = searcher.vector_shards(need.kind), _ids(need)
    if not wanted.any():
        return []  # a text without a direction is near to nothing
    for shard in shards:
        _check_dimensions(searcher, shard.dimensions, wanted)
    return vectors.search(shards, wanted, need.k, among)


def _by_levels(searcher: Searcher, need: LevelSearch, wanted: Floats) -> list[list[Found]]:
    with being_read(searcher.reader.store, searcher.reader.manifest):
        shards = searcher.level_shards(need.hierarchy)
        if not wanted.any() or not shards:
            return [[]]
        for shard in shards:
            _check_dimensions(searcher, shard.dimensions, wanted)
        of_shards = [shard.nearest(wanted, need.k) for shard in shards]
        of_levels = (list(chain(*level)) for level in zip(*of_shards, strict=True))
        return [sorted(level, key=lambda f: (-f[1], f[0]))[: need.k] for level in of_levels]


def _counted(searcher: Searcher, need: NameCounts) -> dict[str, int]:
    with being_read(searcher.reader.store, searcher.reader.manifest):
        counts = count_holders(searcher.walk_shards(), list(need.names))
        words = searcher.keyword_shards("text_unit")
        return {id_: max(n, keyword.count_records(words, need.names[id_])) for id_, n in counts.items()}


def _walked(searcher: Searcher, need: Walk) -> list[Walked]:
    with being_read(searcher.reader.store, searcher.reader.manifest):
        among = None if need.among is None else known(need.among)
        return walk(searcher.walk_shards(), need.names, need.chunks, need.k, among)


def _check_dimensions(searcher: Searcher, dimensions: int, wanted: Floats) -> None:
    """Raises UsageError."""
    if dimensions != len(wanted):
        raise UsageError(
            f"the embeddings of snapshot {searcher.reader.manifest.number} have {dimensions} "
            f"dimensions, and the embedding of the question has {len(wanted)}: does another model answer "
            "now under that name? Run `graphrag-ray index` again"
        )


def _by_keyword(searcher: Searcher, need: Search) -> list[Found]:
    with being_read(searcher.reader.store, searcher.reader.manifest):
        return keyword.search(searcher.keyword_shards(need.kind), need.text, need.k, _ids(need))


def _ids(need: Search) -> list[str] | None:
    return None if need.among is None else known(need.among)


def _told(embedder: Embedder) -> str:
    of = f" with {embedder.dimensions} dimensions" if embedder.dimensions else ""
    return f"{embedder.call.model_id}{of}"
