"""Build search indexes: keyword indexes over the texts of records, and vector indexes over their embeddings.

An index consists of shards, each over some consecutive parts of a table. A shard that was built from the same
parts is found by its name and reused, even after a run that was killed. So for a growing corpus, only shards
with new parts are built. A new shard is derived from the shard of the parent snapshot that shares most of its
rows, so that little more than the difference is read. The result has the same bytes as a shard built from all
parts.

The title and date of its document (`corpus/document_titles.py`) are indexed as words of a chunk, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.ids import report_id, stable_id
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.work import Row
from graphrag_ray.graph.stable_batches import stable_batches
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import embed_stage
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.store import index_files
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.search import chnsw, keyword_index, vector_index
from graphrag_ray.store.search.tokenizer import detect_common_language
from graphrag_ray.store.search.vector_index import Floats

IndexType: TypeAlias = Literal["keyword", "vector"]

LANGUAGE_PARTS, LANGUAGE_CHUNKS = 16, 64
"""Number of parts, and of chunks in each, from which the language of the corpus is detected."""
SHARD_ROWS = 131_072
SHARD_BYTES: Mapping[IndexType, int] = {"keyword": 48 << 20, "vector": 128 << 20}
"""Maximum stored size of a shard's parts. Building a shard takes about 1 GB of memory."""
EXACT_BYTES = 64 << 20
"""Up to this size, all embeddings of a kind are compared. Beyond it, their signs are compared first (see
"Vector and keyword search" in benchmarks/RESULTS.md)."""

_BUILT = pa.schema(
    [
        *(("table", pa.string()), ("made_from", pa.string()), ("path", pa.string()), ("bytes", pa.int64())),
        ("derived", pa.bool_()),
        ("failed", pa.list_(pa.struct([("item", pa.string()), ("error", pa.string())]))),
    ]
)


def build_shards(
    run: Run,
    step: str,
    shards: Sequence[Any],
    build: Callable[[Store, Any], Iterator[pa.Table]],
    inputs: Callable[[list[Any]], Sequence[Any]] = list,
) -> tuple[list[Part], list[Row]]:
    """Build the shards that are not stored yet.

    A shard has `table`, `rows` and `made_from`, a hash of everything that it depends on. `build` yields the
    result of `write_shard` for each of the `inputs` of the missing shards. Returns the part of each shard,
    and the rows of `write_shard` for the shards that were built.
    """
    stored = {
        table: index_files.list_by_source(run.store, table) for table in {shard.table for shard in shards}
    }
    missing = [shard for shard in shards if shard.made_from not in stored[shard.table]]
    rows = [row for built in run.executor.stream(step, build, inputs(missing)) for row in built.to_pylist()]
    for row in rows:
        stored[row["table"]][row["made_from"]] = row["path"], row["bytes"]
    files = (stored[shard.table][shard.made_from] for shard in shards)
    return [Part(path, shard.rows, size) for shard, (path, size) in zip(shards, files, strict=True)], rows


def write_shard(
    store: Store, shard: Any, data: bytes, failed: Sequence[Mapping[str, str]] = (), derived: bool = False
) -> pa.Table:
    """Write a shard. If it lacks failed items (item, error), the next run builds it again."""
    made_from = stable_id(shard.made_from, "incomplete") if failed else shard.made_from
    part = index_files.write_index_file(store, shard.table, made_from, data, shard.rows)
    row = {"table": shard.table, "made_from": shard.made_from, "path": part.path, "bytes": part.bytes}
    return pa.Table.from_pylist([{**row, "derived": derived, "failed": failed}], schema=_BUILT)


def shard_failures(run: Run, step: str, built: Sequence[Row]) -> dict[str, list[list[Part]]]:
    failed = [failed for row in built for failed in row["failed"]]
    return {"failures": [run.write("search", "failures", [failures_table(step, failed)])]} if failed else {}


def failures_table(step: str, failed: Sequence[Mapping[str, str]]) -> pa.Table:
    """Return failures (item, error) of a step that calls no model as a table."""
    rest = {
        **dict.fromkeys(("document", "first_at", "last_at", "key"), ""),
        "kind": "transient",
        "attempts": 1,
    }
    rows = [{**rest, **failure, "stage": step} for failure in sorted(failed, key=lambda f: f["item"])]
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


@dataclass(frozen=True)
class _Shard:
    """A shard of an index. `texts` have one part each, which contains embeddings for a vector index.

    `signs`: whether it stores the signs of vectors. `span`: its range of rows, as fractions of the table.
    """

    kind: str
    by: IndexType
    texts: Sequence[embed_stage.Texts]
    signs: bool
    made_from: str
    language: str
    span: tuple[float, float]

    @property
    def table(self) -> str:
        return schema.search_index_table(self.kind, self.by)

    @property
    def parts(self) -> list[Part]:
        return [part for group in self.texts for part in group.parts]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def paths(self) -> set[tuple[str, ...]]:
        return set(map(_paths, self.texts))


_Earlier: TypeAlias = tuple[_Shard, Part]
"""A shard of the parent snapshot, and its part."""


def build_search_indexes(run: Run, results: Results) -> Result:
    """Return tables search_<kind>_keyword, search_<kind>_vector (if there are embeddings), and failures."""
    columns = run.settings.chunking.prepended_metadata
    texts = embed_stage.current_texts(results, columns)
    embedded = results.embeddings

    def compute() -> Result:
        language = _language(run, results.corpus)
        searched = [kind for kind in schema.EMBEDDINGS if kind in texts]

        def shards_of(
            texts: Mapping[str, Sequence[embed_stage.Texts]],
            embeddings: Mapping[str, Sequence[Sequence[Part]]],
        ) -> list[_Shard]:
            shards = []
            for kind in searched:
                depends_on = [language, *(columns if kind == "text_unit" else ())]
                groups = embeddings.get(f"embeddings_{kind}", [])
                vector_groups = [embed_stage.Texts(kind, group) for group in groups]
                shards += _shards(kind, "keyword", texts.get(kind, []), depends_on, language)
                shards += _shards(kind, "vector", vector_groups)
            return shards

        def with_earlier(missing: Sequence[_Shard]) -> list[tuple[_Shard, _Earlier | None]]:
            earlier: list[_Earlier] = []
            parent = run.parent if missing and "search" not in run.forced_steps else None
            if parent is not None and {"read", "search"} <= parent.steps.keys():
                stored = {index_files.source_hash(p.path): p for name in names for p in parent.parts(name)}
                embeddings = embed_stage.embeddings_of(run.parent_results.values())
                previous = shards_of(embed_stage.parent_texts(run.parent_results, columns), embeddings)
                earlier = [(old, stored[old.made_from]) for old in previous if old.made_from in stored]
            return list(zip(missing, _nearest(missing, earlier), strict=True))

        shards = shards_of(texts, embedded.tables)
        index_kinds: list[IndexType] = ["keyword", "vector"] if embedded.tables else ["keyword"]
        names = [schema.search_index_table(kind, by) for kind in searched for by in index_kinds]
        tables: dict[str, list[list[Part]]] = {name: [] for name in names}
        parts, built = build_shards(run, "search", shards, _build, with_earlier)
        for shard, part in zip(shards, parts, strict=True):
            tables[shard.table].append([part])
        failed = shard_failures(run, "search", built)
        for name in with_levels:
            level_parts, _ = build_shards(run, "search", _level_shards(run, results, name), _build_levels)
            tables[schema.search_index_table(name, "levels")] = [[part] for part in level_parts]
        counts = {"shards": len(shards), "made": len(built), "derived": sum(row["derived"] for row in built)}
        return Result(tables | failed, counts, final=not failed)

    with_levels = _with_level_index(run, results)
    depends_on = [texts, embedded, run.settings.search]
    depends_on += [[name, results.hierarchies[name].level.tolist()] for name in with_levels]
    return run.step("search", depends_on, compute)


def _language(run: Run, corpus: Result) -> str:
    """Return the language whose stemmer keyword search uses, or "" for none."""
    setting = run.settings.search.language
    if setting != "auto":
        return "" if setting == "none" else setting
    parts = corpus.parts("text_units")
    sample = parts[:: max(1, len(parts) // LANGUAGE_PARTS)][:LANGUAGE_PARTS]
    tables = [read_part(run.store, part, ["text"]).slice(0, LANGUAGE_CHUNKS) for part in sample]
    return detect_common_language(text for table in tables for text in table["text"].to_pylist())


def _shards(
    kind: str,
    by: IndexType,
    groups: Sequence[embed_stage.Texts],
    depends_on: Sequence[str] = (),
    language: str = "",
) -> list[_Shard]:
    """Batch parts into shards. A part that exceeds the limit becomes a separate shard."""
    texts = [group for group in embed_stage.by_part(groups) if group.parts[0].rows]
    parts = [group.parts[0] for group in texts]
    signs = by == "vector" and sum(part.bytes for part in parts) > EXACT_BYTES
    limit = SHARD_BYTES[by]
    sizes = [max(part.bytes, part.rows * limit // SHARD_ROWS) for part in parts]
    ends = np.cumsum([0, *(part.rows for part in parts)])
    shards = []
    for batch in stable_batches([part.path for part in parts], sizes, limit):
        members = [texts[i] for i in batch]
        paths = [path for group in members for path in _paths(group)]
        made_from = stable_id("search", code_version(), _stemmer(), kind, by, str(signs), *depends_on, *paths)
        start, end = (ends[[batch.start, batch.stop]] / ends[-1]).tolist()
        shards.append(_Shard(kind, by, members, signs, made_from, language, (start, end)))
    return shards


def _nearest(shards: Sequence[_Shard], earlier: Sequence[_Earlier]) -> list[_Earlier | None]:
    """Return, for each shard, the earlier one that probably has most of its rows, if at least half of them.

    Rows of shared parts count. In keyword indexes, rows at the same position of the table count, too: most
    texts in changed parts may be the same, and comparing them is faster than counting words.
    """
    shard_of = {(other.table, paths): n for n, (other, _) in enumerate(earlier) for paths in other.paths}
    nearest: list[_Earlier | None] = []
    for shard in shards:
        kind = (shard.table, shard.signs)
        rows = {n: 0.0 for n, (old, _) in enumerate(earlier) if (old.table, old.signs) == kind}
        for texts in shard.texts:
            if (n := shard_of.get((shard.table, _paths(texts)), -1)) in rows:
                rows[n] += sum(part.rows for part in texts.parts)
        if shard.by == "keyword":
            start, end = shard.span
            for n, n_shared in rows.items():
                other_start, other_end = earlier[n][0].span
                overlap = min(end, other_end) - max(start, other_start)
                rows[n] = max(n_shared, shard.rows * overlap / (end - start))
        best = max(rows, key=rows.__getitem__, default=None)
        nearest.append(earlier[best] if best is not None and 2 * rows[best] >= shard.rows else None)
    return nearest


def _paths(texts: embed_stage.Texts) -> tuple[str, ...]:
    return tuple(part.path for part in (*texts.parts, *texts.documents))


def _build(store: Store, pair: tuple[_Shard, _Earlier | None]) -> Iterator[pa.Table]:
    shard, earlier = pair
    failed: list[dict[str, str]] = []

    def on_error(id_: str, error: BaseException) -> None:
        failed.append({"item": f"{shard.kind} {id_}: not found by keywords", "error": record_bug(error)})

    data = _derive(store, shard, earlier, on_error) if earlier else None
    is_derived = data is not None
    if data is None:
        failed.clear()
        if shard.by == "vector":
            data = vector_index.build(*_load_vectors(store, shard.parts), shard.signs)
        else:
            rows = pa.concat_tables(_load_rows(store, shard.texts))
            data = keyword_index.build(*_ids_and_texts(rows), shard.language, on_error)
    yield write_shard(store, shard, data, failed, is_derived)


def _derive(
    store: Store, shard: _Shard, earlier: _Earlier, on_error: Callable[[str, BaseException], None]
) -> bytes | None:
    """Derive a shard from an earlier one and the parts that differ. Returns None if data is damaged."""
    before, part = earlier
    shared = shard.paths & before.paths
    removed = [group for group in before.texts if _paths(group) not in shared]
    added = [group for group in shard.texts if _paths(group) not in shared]
    try:
        source = index_files.open_part(store, part)
        if shard.by == "vector":
            stored = vector_index.read(source)
            removed_parts = [p for group in removed for p in group.parts]
            ids = [id_ for p in removed_parts for id_ in read_part(store, p, ["id"])["id"].to_pylist()]
            if len(stored) != part.rows or stored.has_signs != shard.signs:
                return None
            new = _load_vectors(store, [p for group in added for p in group.parts])
            return vector_index.update(stored, ids, *new)
        words = keyword_index.read(source)
        if len(words) != part.rows or words.language != shard.language:
            return None
        rows = pa.concat_tables([embed_stage.TEXTS.empty_table(), *_load_rows(store, added)])
        ids, rows = _difference(_load_rows(store, removed), rows)
        return keyword_index.update(words, ids, *_ids_and_texts(rows), on_error)
    except CorruptPart:
        return None


def _difference(before: Iterable[pa.Table], now: pa.Table) -> tuple[list[str], pa.Table]:
    """Return the ids of earlier rows that were removed or changed, and the rows that are new or changed."""
    ids, texts = now["id"].combine_chunks(), now["text"].combine_chunks()
    outdated, unchanged = list[str](), np.zeros(now.num_rows, np.bool_)
    for table in before:
        position = pc.index_in(table["id"], value_set=ids)
        is_same = pc.fill_null(pc.equal(table["text"], texts.take(position)), False)
        outdated += table["id"].filter(pc.invert(is_same)).to_pylist()
        unchanged[position.filter(is_same).to_numpy()] = True
    return outdated, now.filter(pa.array(~unchanged))


def _load_rows(store: Store, texts: Sequence[embed_stage.Texts]) -> Iterator[pa.Table]:
    return (table for group in texts for table in embed_stage.load_texts(store, group))


def _ids_and_texts(rows: pa.Table) -> tuple[list[str], list[str]]:
    return rows["id"].to_pylist(), [text or "" for text in rows["text"].to_pylist()]


def _load_vectors(store: Store, parts: Sequence[Part]) -> tuple[list[str], Floats]:
    if not parts:
        return [], np.zeros((0, 0), np.float32)
    table = read_table(store, parts, ["id", "vector"])
    matrix = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
    return table["id"].to_pylist(), matrix


@cache
def _stemmer() -> str:
    return version("PyStemmer")


# Vector indexes over all levels of a hierarchy (`chnsw.py`). A shard covers consecutive parts of the
# embeddings of the hierarchy's members, and its share of the parts of the reports' embeddings. Every shard
# has all levels, so a search uses all shards. A changed community rebuilds all shards.

LEVEL_SHARD_ROWS = 262_144
"""Maximum number of members in a shard. Building one with 256 dimensions takes 1 GB of memory."""


@dataclass(frozen=True)
class _LevelShard:
    """A shard over all levels: embeddings of the hierarchy's members, and of its reports."""

    table: str
    parts: tuple[Sequence[Part], Sequence[Part]]
    n_levels: int
    level_of: Callable[[], Mapping[str, int]]
    made_from: str

    @property
    def rows(self) -> int:
        return sum(part.rows for parts in self.parts for part in parts)


def _with_level_index(run: Run, results: Results) -> list[str]:
    """Return the graph's hierarchies with embeddings that have enough records, if numba is installed."""
    rows = {
        name: sum(
            part.rows for part in results.embeddings.parts(f"embeddings_{HIERARCHIES[name].member_kind}")
        )
        for name in results.hierarchies
        if HIERARCHIES[name].needs_embeddings and HIERARCHIES[name].needs_graph
    }
    large = [name for name, n in rows.items() if n >= max(1, run.settings.search.level_index_from)]
    if large and not chnsw.has_loops():
        run.observer.message(
            f"No index over all levels of {large[0]}, because numba is not installed: pip install "
            "'graphrag-ray[archrag]'. Questions search level by level."
        )
        return []
    return large


def _level_shards(run: Run, results: Results, name: str) -> list[_LevelShard]:
    kind, hierarchy = HIERARCHIES[name], results.hierarchies[name]
    parts = results.embeddings.parts(f"embeddings_{kind.member_kind}")
    reports = results.embeddings.parts(f"embeddings_{kind.report_kind}")
    batches = stable_batches([part.path for part in parts], [part.rows for part in parts], LEVEL_SHARD_ROWS)
    ids, level = [report_id(id_) for id_ in hierarchy.ids], hierarchy.level.tolist()
    level_of = run.executor.share(dict(zip(ids, level, strict=True)))
    # A vector may move to another level although the parts are the same.
    levels = stable_id("levels of reports", *ids, *map(str, level))
    bounds = [len(reports) * n // len(batches) for n in range(len(batches) + 1)]
    n_levels = int(hierarchy.level.max(initial=-1)) + 1
    shards = []
    for n, batch in enumerate(batches):
        covered = [parts[i] for i in batch], reports[bounds[n] : bounds[n + 1]]
        paths = [part.path for group in covered for part in group]
        made_from = stable_id("levels", code_version(), levels, *paths)
        table = schema.search_index_table(name, "levels")
        shards.append(_LevelShard(table, covered, n_levels, level_of, made_from))
    return shards


def _build_levels(store: Store, shard: _LevelShard) -> Iterator[pa.Table]:
    members, reports = shard.parts
    levels = [_load_vectors(store, members)]
    ids, vectors = _load_vectors(store, reports) if reports else ([], levels[0][1][:0])
    level_of = shard.level_of()
    level = np.array([level_of.get(id_, -1) for id_ in ids], np.int64)
    for number in reversed(range(shard.n_levels)):
        rows = np.flatnonzero(level == number)
        levels.append(([ids[i] for i in rows.tolist()], vectors[rows]))
    yield write_shard(store, shard, chnsw.build(levels))
