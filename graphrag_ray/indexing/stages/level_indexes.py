"""Indexes of all levels of a hierarchy at once (`chnsw.py`), for hierarchies that are made by meaning.

A shard holds consecutive parts of the embeddings of what the hierarchy is over, and its share of the parts of
its reports' embeddings, so that many can be made side by side. Every shard has all levels; the nearest of a
level are the nearest of those of all shards. Where a community has changed, all shards are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import report_id, stable_id
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.step_result import code_version
from graphrag_ray.store import blobs
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table
from graphrag_ray.store.search import chnsw

SHARD_ROWS = 262_144
"""Of what the hierarchy is over. A shard of so many with 256 dimensions is made in 1 GB of memory."""
LEAST_ROWS = 100_000
"""Below, a question looks at all vectors: 13 ms at most. To load the compiled loops takes .4 s, once."""

_MADE = pa.schema([("at", pa.int64()), ("path", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64())])


@dataclass(frozen=True)
class _LevelShard:
    """parts: of embeddings, of what the hierarchy is over and of its reports; levels: how many there are;
    level_of: of each report, by id; made_from: a hash of all that it depends on."""

    table: str
    parts: tuple[Sequence[Part], Sequence[Part]]
    n_levels: int
    level_of: Callable[[], Mapping[str, int]]
    made_from: str


def level_indexes(run: Run, results: Results) -> dict[str, list[list[Part]]]:
    """Tables search_<hierarchy>_levels, a shard a group."""
    tables: dict[str, list[list[Part]]] = {}
    for name in _indexed(results):
        shards = _shards(run, results, name)
        table = schema.search_table(name, "levels")
        known = blobs.made(run.store, table)
        missing = [(at, shard) for at, shard in enumerate(shards) if shard.made_from not in known]
        for made in run.executor.stream("search", _make, missing):
            for row in made.to_pylist():
                known[shards[row["at"]].made_from] = row["path"], row["bytes"]
        tables[table] = []
        for shard in shards:
            path, n_bytes = known[shard.made_from]
            rows = sum(part.rows for parts in shard.parts for part in parts)
            tables[table].append([Part(path, rows, n_bytes)])
    return tables


def level_fingerprint(results: Results) -> list[Any]:
    """What they depend on beside embeddings."""
    return [[name, results.hierarchies[name].level.tolist()] for name in _indexed(results)]


def _indexed(results: Results) -> list[str]:
    """Hierarchies of a graph that are made by meaning and have enough records, where numba is there."""
    rows = {
        name: sum(part.rows for part in results.embedded.parts(f"embeddings_{HIERARCHIES[name].over}"))
        for name in results.hierarchies
        if HIERARCHIES[name].by_meaning and HIERARCHIES[name].of_graph
    }
    return [name for name, n in rows.items() if n >= LEAST_ROWS and chnsw.has_loops()]


def _shards(run: Run, results: Results, name: str) -> list[_LevelShard]:
    kind, hierarchy = HIERARCHIES[name], results.hierarchies[name]
    parts = results.embedded.parts(f"embeddings_{kind.over}")
    reports = results.embedded.parts(f"embeddings_{kind.reports}")
    batches = stable_batches([part.path for part in parts], [part.rows for part in parts], SHARD_ROWS)
    ids, level = [report_id(id_) for id_ in hierarchy.ids], hierarchy.level.tolist()
    level_of = run.executor.share(dict(zip(ids, level, strict=True)))
    # The same vectors may come to stand at other levels.
    levels = stable_id("levels of reports", *ids, *map(str, level))
    bounds = [len(reports) * at // len(batches) for at in range(len(batches) + 1)]
    n_levels = int(hierarchy.level.max(initial=-1)) + 1
    found = []
    for at, batch in enumerate(batches):
        own = [parts[i] for i in batch], reports[bounds[at] : bounds[at + 1]]
        paths = [part.path for some in own for part in some]
        made_from = stable_id("levels", code_version(), levels, *paths)
        found.append(_LevelShard(schema.search_table(name, "levels"), own, n_levels, level_of, made_from))
    return found


def _make(store: Store, x: tuple[int, _LevelShard]) -> Iterator[pa.Table]:
    at, shard = x
    over, reports = shard.parts
    levels = [_vectors(store, over)]
    ids, vectors = _vectors(store, reports) if reports else ([], levels[0][1][:0])
    known = shard.level_of()
    level = np.array([known.get(id_, -1) for id_ in ids], np.int64)
    for number in reversed(range(shard.n_levels)):
        rows = np.flatnonzero(level == number)
        levels.append(([ids[i] for i in rows.tolist()], vectors[rows]))
    data = chnsw.build(levels)
    n_rows = sum(len(ids_) for ids_, _ in levels)
    part = blobs.write(store, shard.table, shard.made_from, data, n_rows)
    made = {"at": at, "path": part.path, "bytes": part.bytes, "rows": n_rows}
    yield pa.Table.from_pylist([made], schema=_MADE)


def _vectors(store: Store, parts: Sequence[Part]) -> tuple[list[str], Any]:
    table = read_table(store, parts, ["id", "vector"])
    column = table["vector"].combine_chunks()
    return table["id"].to_pylist(), column.flatten().to_numpy().reshape(table.num_rows, -1)
