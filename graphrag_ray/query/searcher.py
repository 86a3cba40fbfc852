"""Search a snapshot by embeddings or by keywords."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, HierarchyKind
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.stored_settings import without_machine_settings
from graphrag_ray.corpus.embedding import Embedder
from graphrag_ray.query.methods.method import Hit, LevelSearch, NameCounts, Rows, Search, Walk, WalkHit
from graphrag_ray.query.model_calls import BaseAsker
from graphrag_ray.query.row_reader import Reader
from graphrag_ray.store import index_files
from graphrag_ray.store.files import map_in_threads
from graphrag_ray.store.search import chnsw, keyword_index, name_links, vector_index
from graphrag_ray.store.search.mapped_arrays import ByteSource, valid_ids
from graphrag_ray.store.search.pagerank import count_holders, walk
from graphrag_ray.store.search.vector_index import Floats, ScoredId
from graphrag_ray.store.snapshots import detect_removal

N_THREADS = 8
_READ: dict[str, Callable[[ByteSource], Any]] = {
    "vector": vector_index.read,
    "keyword": keyword_index.read,
    "levels": chnsw.read,
    "names": name_links.read,
}
"""How to open a shard, by the suffix of its table's name."""


@dataclass(frozen=True)
class Searcher:
    """Searches one snapshot with the caller's settings. Search indexes stay open for later questions."""

    reader: Reader
    settings: Settings
    _opened: dict[str, list[Any]] = field(default_factory=dict)
    _levels: dict[str, list[list[str]]] = field(default_factory=dict)
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def shards(self, table: str) -> list[Any]:
        """Open the shards of a search index. Returns [] if the snapshot does not have this index."""
        if table not in self._opened:
            store, manifest = self.reader.store, self.reader.manifest
            read = _READ[table.rpartition("_")[2]]
            with self._opening, detect_removal(store, manifest):
                if table not in self._opened:
                    parts = manifest.parts(table)
                    opened = map_in_threads(
                        lambda part: read(index_files.open_part(store, part)), parts, N_THREADS
                    )
                    self._opened[table] = list(opened)
        return self._opened[table]

    def open_as(self, other: Searcher) -> None:
        """Open the indexes that another searcher has open, if this snapshot has them."""
        for table in other._opened.keys() & self.reader.manifest.tables.keys():
            self.shards(table)

    def ids_by_level(self, kind: HierarchyKind) -> list[list[str]]:
        """List the ids of the reports of each level, finest first."""
        if kind.name not in self._levels:
            by_level: dict[int, list[str]] = {}
            for row in self.reader.rows(Rows(kind.reports_table, ["id", "level"])).to_pylist():
                by_level.setdefault(row["level"], []).append(row["id"])
            self._levels[kind.name] = [by_level[level] for level in sorted(by_level, reverse=True)]
        return self._levels[kind.name]

    def embedder(self) -> Embedder:
        """Return the embedder for questions. Raises UsageError if the index has none or other embeddings."""
        number = self.reader.manifest.number
        index_settings = parse_settings(without_machine_settings(self.reader.manifest.settings))
        of_index, of_questions = Embedder.from_settings(index_settings), Embedder.from_settings(self.settings)
        if not index_settings.embeddings.enabled:
            raise UsageError(
                f"Vector search needs embeddings, but snapshot {number} was indexed with embeddings.enabled: "
                "false. Run `graphrag-ray index` again with --set embeddings.enabled=true; only the "
                "embeddings will be requested."
            )
        embedders = of_index, of_questions
        if len({(e.call.model_id, e.dimensions) for e in embedders}) > 1:
            models = [
                f"{e.call.model_id}{f' with {e.dimensions} dimensions' if e.dimensions else ''}"
                for e in embedders
            ]
            raise UsageError(
                f"The embeddings of snapshot {number} come from {models[0]}, but the settings name "
                f"{models[1]}. Use the settings of the index, or run `graphrag-ray index` with yours."
            )
        return of_questions

    def search(self, need: Search, vector: Floats | None) -> list[Hit]:
        """Search by the embedding of the text, or by keywords if `vector` is None."""
        only_ids = None if need.only_ids is None else valid_ids(need.only_ids)
        with detect_removal(self.reader.store, self.reader.manifest):
            shards = self.shards(schema.search_index_table(need.kind, need.by))
            if vector is None:
                return _hits(keyword_index.search(shards, need.text, need.k, only_ids))
            self._check_dimensions(shards, vector)
            # Nothing is similar to a zero vector.
            return _hits(vector_index.search(shards, vector, need.k, only_ids)) if vector.any() else []

    def search_levels(self, need: LevelSearch, vector: Floats) -> list[list[Hit]]:
        with detect_removal(self.reader.store, self.reader.manifest):
            shards = self.shards(schema.search_index_table(need.hierarchy, "levels"))
            self._check_dimensions(shards, vector)
            if not vector.any() or not shards:
                return [[]]
            for shard in shards:
                if shard.n_levels != shards[0].n_levels:
                    raise shard.source.invalid("its levels differ from those of the other shards")
            levels = zip(*(shard.nearest(vector, need.k, need.ef) for shard in shards), strict=True)
            ordered = (sorted(chain(*level), key=lambda scored: (-scored[1], scored[0])) for level in levels)
            return [_hits(level[: need.k]) for level in ordered]

    def count_names(self, need: NameCounts) -> dict[str, int]:
        with detect_removal(self.reader.store, self.reader.manifest):
            counts = count_holders(self.shards(schema.NAME_LINKS_TABLE), list(need.names))
            words = self.shards(schema.search_index_table("text_unit", "keyword"))
            return {
                id_: max(n, keyword_index.count_records(words, need.names[id_])) for id_, n in counts.items()
            }

    def walk(self, need: Walk) -> list[WalkHit]:
        with detect_removal(self.reader.store, self.reader.manifest):
            only_ids = None if need.only_ids is None else valid_ids(need.only_ids)
            visited = walk(self.shards(schema.NAME_LINKS_TABLE), need.names, need.chunks, need.k, only_ids)
            return [WalkHit(*chunk) for chunk in visited]

    def _check_dimensions(self, shards: Sequence[Any], vector: Floats) -> None:
        for shard in shards if vector.any() else ():
            if shard.dimensions != len(vector):
                raise UsageError(
                    f"The embeddings of snapshot {self.reader.manifest.number} have {shard.dimensions} "
                    f"dimensions, but the embedding of the question has {len(vector)}. The endpoint may now "
                    "serve another model under the same name. Run `graphrag-ray index` again."
                )


@dataclass(frozen=True)
class Searching:
    """Runs the searches of one question. Each text is embedded only once."""

    searcher: Searcher
    asker: BaseAsker
    _embedded: dict[str, asyncio.Task[Floats]] = field(default_factory=dict)

    async def find(self, need: Search) -> list[Hit]:
        """Run a search. Raises UsageError if its index is missing, GraphRagError if embedding fails."""
        if need.k <= 0 or (need.only_ids is not None and not need.only_ids):
            return []
        vector = await self._vector(need.text) if need.by == "vector" else None
        return await asyncio.to_thread(self.searcher.search, need, vector)

    async def find_levels(self, need: LevelSearch) -> list[list[Hit]]:
        """Search all levels, with one index if possible, otherwise level by level. Raises like `find`."""
        table = schema.search_index_table(need.hierarchy, "levels")
        if table in self.searcher.reader.manifest.tables and chnsw.has_loops():
            vector = await self._vector(need.text)
            return await asyncio.to_thread(self.searcher.search_levels, need, vector)
        kind = HIERARCHIES[need.hierarchy]
        levels = await asyncio.to_thread(self.searcher.ids_by_level, kind)
        searches = [Search(kind.member_kind, "vector", need.text, need.k)]
        searches += [Search(kind.report_kind, "vector", need.text, need.k, ids) for ids in levels]
        return list(await asyncio.gather(*map(self.find, searches)))

    async def close(self) -> None:
        """Cancel pending embedding calls."""
        tasks = list(self._embedded.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _vector(self, text: str) -> Floats:
        async def embed() -> Floats:
            embedder = await asyncio.to_thread(self.searcher.embedder)
            sendable = text.encode(errors="replace").decode()  # a terminal may send half of a character
            (outcome,) = await self.asker.run("embed", [partial(embedder.embed, sendable)])
            if outcome.result is None:
                raise GraphRagError(f"The question could not be embedded: {outcome.error}")
            vector: Floats = vector_index.normalize(np.frombuffer(outcome.result, "<f4").reshape(1, -1))[0]
            return vector

        if text not in self._embedded:
            self._embedded[text] = asyncio.ensure_future(embed())
        return await asyncio.shield(self._embedded[text])


def _hits(scored_ids: Iterable[ScoredId]) -> list[Hit]:
    return [Hit(id_, score) for id_, score in scored_ids]
