"""Indexes for search: by keyword over the texts that are embedded, by vector over their embeddings.

An index is made of shards, each over some consecutive parts of a table. A shard that was made before from the
same parts is found by its name and not made again, also after a run that was killed; so of a corpus that
grows only the shards are made where something is new. Such a shard is derived from that of the parent
snapshot which holds most of the same rows: words are counted, and vectors read, of little more than what
differs. The bytes are those that all parts together give.

What is said of its document (`corpus/document_titles.py`) are words of a chunk, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.ids import report_id, stable_id
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.work import Row
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.indexing.results import Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.embed_stage import (
    TEXTS,
    Texts,
    by_part,
    earlier_texts,
    embeddings_of,
    load_texts,
    written_texts,
)
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.store import blobs
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.search import chnsw, keyword, vectors
from graphrag_ray.store.search.vectors import Floats
from graphrag_ray.store.search.words import common_language

By: TypeAlias = Literal["keyword", "vector"]
Groups: TypeAlias = Mapping[str, Sequence[Sequence[Part]]]

LOOKED_AT_PARTS, LOOKED_AT_CHUNKS = 16, 64
"""By which the language of the corpus is told."""
SHARD_ROWS = 131_072
SHARD_BYTES: Mapping[By, int] = {"keyword": 48 << 20, "vector": 128 << 20}
"""Of a shard's parts as they are stored. A shard takes some 1 GB of memory while it is made."""
EXACT_BYTES = 64 << 20
"""Embeddings of a kind that are gone through one by one for a question; above, by their signs first: see
"Search" in benchmarks/RESULTS.md."""

_MADE = pa.schema(
    [
        *(("table", pa.string()), ("made_from", pa.string()), ("path", pa.string()), ("bytes", pa.int64())),
        ("derived", pa.bool_()),
        ("failed", pa.list_(pa.struct([("item", pa.string()), ("error", pa.string())]))),
    ]
)


def made_shards(
    run: Run,
    step: str,
    shards: Sequence[Any],
    make: Callable[[Store, Any], Iterator[pa.Table]],
    inputs: Callable[[list[Any]], Sequence[Any]] = list,
) -> tuple[list[Part], list[Row]]:
    """Where each shard of an index is stored; and the rows of `stored_shard` of those that were made.

    shards  with `table`, `rows` and `made_from`, a hash of all that one depends on: where it is stored under
            that name it is not made again
    make    gives `stored_shard` of an input
    inputs  from the shards that are to be made
    """
    known = {table: blobs.made(run.store, table) for table in {shard.table for shard in shards}}
    missing = [shard for shard in shards if shard.made_from not in known[shard.table]]
    rows = [row for made in run.executor.stream(step, make, inputs(missing)) for row in made.to_pylist()]
    for row in rows:
        known[row["table"]][row["made_from"]] = row["path"], row["bytes"]
    stored = (known[shard.table][shard.made_from] for shard in shards)
    return [Part(path, x.rows, n) for x, (path, n) in zip(shards, stored, strict=True)], rows


def stored_shard(
    store: Store, shard: Any, data: bytes, failed: Sequence[Mapping[str, str]] = (), derived: bool = False
) -> pa.Table:
    """Write a shard. failed: item and error of what is not in it; the next run makes it anew then."""
    made_from = stable_id(shard.made_from, "incomplete") if failed else shard.made_from
    part = blobs.write(store, shard.table, made_from, data, shard.rows)
    row = {"table": shard.table, "made_from": shard.made_from, "path": part.path, "bytes": part.bytes}
    return pa.Table.from_pylist([{**row, "derived": derived, "failed": failed}], schema=_MADE)


def failures_of(run: Run, step: str, made: Sequence[Row]) -> dict[str, list[list[Part]]]:
    """Table failures, if some of what was made is not complete; the next run tries again."""
    rows = [
        {
            **dict.fromkeys(("document", "first_at", "last_at", "key"), ""),
            **failed,
            "stage": step,
            "kind": "transient",
            "attempts": 1,
        }
        for row in made
        for failed in row["failed"]
    ]
    table = pa.Table.from_pylist(sorted(rows, key=lambda f: f["item"]), schema=schema.FAILURES)
    return {"failures": [run.write("search", "failures", [table])]} if rows else {}


@dataclass(frozen=True)
class _Shard:
    """made_from: a hash of all that it depends on. texts: each of one part, of a shard by vector too.
    language: of its words; span: where its rows begin and end in the table, of 1."""

    kind: str
    by: By
    texts: Sequence[Texts]
    signs: bool
    made_from: str
    language: str
    span: tuple[float, float]

    @property
    def table(self) -> str:
        return schema.search_table(self.kind, self.by)

    @property
    def parts(self) -> list[Part]:
        return [part for x in self.texts for part in x.parts]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def paths(self) -> set[tuple[str, ...]]:
        """Of all that each of its texts is made of."""
        return set(map(_paths, self.texts))


_Earlier: TypeAlias = tuple[_Shard, Part]
"""A shard of the parent snapshot, and where it is stored."""


def index_for_search(run: Run, results: Results) -> Result:
    """Tables search_<kind>_keyword and, where there are embeddings, search_<kind>_vector; failures."""
    columns = run.settings.chunking.prepended_metadata
    texts = written_texts(results, columns)
    embedded = results.embedded

    def compute() -> Result:
        language = _language(run, results.corpus)
        said = {"text_unit": columns}
        own = [kind for kind in schema.EMBEDDINGS if kind in texts]

        def shards_of(texts: Mapping[str, Sequence[Texts]], embedded: Groups) -> list[_Shard]:
            found = []
            for kind in own:
                words_of, vectors_of = texts.get(kind, []), embedded.get(f"embeddings_{kind}", [])
                found += _shards(kind, "keyword", words_of, [language, *said.get(kind, ())], language)
                found += _shards(kind, "vector", [Texts(kind, group) for group in vectors_of])
            return found

        def with_earlier(missing: Sequence[_Shard]) -> list[tuple[_Shard, _Earlier | None]]:
            earlier: list[_Earlier] = []
            parent = run.parent if missing and "search" not in run.afresh else None
            if parent is not None and {"read", "search"} <= parent.steps.keys():
                stored = {blobs.made_from(p.path): p for name in kinds for p in parent.parts(name)}
                before = embeddings_of(run.of_parent.values())
                of_parent = shards_of(earlier_texts(run.of_parent, columns), before)
                earlier = [(x, stored[x.made_from]) for x in of_parent if x.made_from in stored]
            return list(zip(missing, _nearest(missing, earlier), strict=True))

        shards = shards_of(texts, embedded.tables)
        ways: list[By] = ["keyword", "vector"] if embedded.tables else ["keyword"]
        kinds = [schema.search_table(kind, by) for kind in own for by in ways]
        tables: dict[str, list[list[Part]]] = {name: [] for name in kinds}
        parts, made = made_shards(run, "search", shards, _make, with_earlier)
        for shard, part in zip(shards, parts, strict=True):
            tables[shard.table].append([part])
        failed = failures_of(run, "search", made)
        tables |= level_indexes(run, results) | failed
        counts = {"shards": len(shards), "made": len(made), "derived": sum(row["derived"] for row in made)}
        return Result(tables, counts, final=not failed)

    made_from = [texts, embedded, run.settings.search]
    made_from += [[name, results.hierarchies[name].level.tolist()] for name in _indexed(results)]
    return run.step("search", made_from, compute)


def _language(run: Run, corpus: Result) -> str:
    """In which keyword search stems words; "": in none. Told by the first chunks of some parts, which are
    spread over the corpus."""
    asked = run.settings.search.language
    if asked != "auto":
        return "" if asked == "none" else asked
    parts = corpus.parts("text_units")
    some = parts[:: max(1, len(parts) // LOOKED_AT_PARTS)][:LOOKED_AT_PARTS]
    tables = [read_part(run.store, part, ["text"]).slice(0, LOOKED_AT_CHUNKS) for part in some]
    return common_language(text for table in tables for text in table["text"].to_pylist())


def _shards(
    kind: str,
    by: By,
    groups: Sequence[Texts],
    depends_on: Sequence[str] = (),
    language: str = "",
) -> list[_Shard]:
    """A part that is larger than a shard is one by itself; no rows, no shard."""
    texts = [x for x in by_part(groups) if x.parts[0].rows]
    parts = [x.parts[0] for x in texts]
    signs = by == "vector" and sum(part.bytes for part in parts) > EXACT_BYTES
    limit = SHARD_BYTES[by]
    sizes = [max(part.bytes, part.rows * limit // SHARD_ROWS) for part in parts]
    ends = np.cumsum([0, *(part.rows for part in parts)])
    found = []
    for batch in stable_batches([part.path for part in parts], sizes, limit):
        own = [texts[i] for i in batch]
        paths = [part.path for x in own for part in (*x.parts, *x.documents)]
        made_from = stable_id("search", code_version(), _stemmer(), kind, by, str(signs), *depends_on, *paths)
        start, end = (ends[[batch.start, batch.stop]] / ends[-1]).tolist()
        found.append(_Shard(kind, by, own, signs, made_from, language, (start, end)))
    return found


def _nearest(shards: Sequence[_Shard], earlier: Sequence[_Earlier]) -> list[_Earlier | None]:
    """For each shard the earlier one that seems to hold most of its rows, if at least half.

    These are rows of parts that both are made of. Of words also those at the same place of the table: most
    texts in parts that have changed may be the same, and to compare them is quicker than to count words.
    """
    at = {(other.table, paths): n for n, (other, _) in enumerate(earlier) for paths in other.paths}
    found: list[_Earlier | None] = []
    for shard in shards:
        rows = {
            n: 0.0 for n, (x, _) in enumerate(earlier) if (x.table, x.signs) == (shard.table, shard.signs)
        }
        for x in shard.texts:
            if (n := at.get((shard.table, _paths(x)), -1)) in rows:
                rows[n] += sum(part.rows for part in x.parts)
        if shard.by == "keyword":
            start, end = shard.span
            for n, so_far in rows.items():
                others_start, others_end = earlier[n][0].span
                lap = min(end, others_end) - max(start, others_start)
                rows[n] = max(so_far, shard.rows * lap / (end - start))
        best = max(rows, key=rows.__getitem__, default=None)
        found.append(earlier[best] if best is not None and 2 * rows[best] >= shard.rows else None)
    return found


def _paths(x: Texts) -> tuple[str, ...]:
    return tuple(part.path for part in (*x.parts, *x.documents))


def _make(store: Store, x: tuple[_Shard, _Earlier | None]) -> Iterator[pa.Table]:
    shard, earlier = x
    failed: list[dict[str, str]] = []
    note = partial(_note, failed, shard.kind)
    data = _derived(store, shard, earlier, note) if earlier else None
    derived = data is not None
    if data is None:
        failed.clear()
        if shard.by == "vector":
            data = vectors.build(*_vectors(store, shard.parts), shard.signs)
        else:
            rows = pa.concat_tables(_rows(store, shard.texts))
            data = keyword.build(*_ids_and_texts(rows), shard.language, note)
    yield stored_shard(store, shard, data, failed, derived)


def _derived(
    store: Store, shard: _Shard, earlier: _Earlier, note: Callable[[str, BaseException], None]
) -> bytes | None:
    """The bytes of a shard, from an earlier one and the parts that only one of both has.

    None where the earlier shard, or what it was made from, is damaged: no run needs it.
    """
    before, part = earlier
    both = shard.paths & before.paths
    gone, come = ([x for x in of.texts if _paths(x) not in both] for of in (before, shard))
    try:
        source = blobs.opened(store, part)
        if shard.by == "vector":
            held = vectors.read(source)
            ids = [
                id_ for x in gone for p in x.parts for id_ in read_part(store, p, ["id"])["id"].to_pylist()
            ]
            if len(held) != part.rows or held.has_signs != shard.signs:
                return None
            return vectors.changed(held, ids, *_vectors(store, [p for x in come for p in x.parts]))
        words = keyword.read(source)
        if len(words) != part.rows or words.language != shard.language:
            return None
        rows = pa.concat_tables([TEXTS.empty_table(), *_rows(store, come)])
        ids, rows = _differing(_rows(store, gone), rows)
        return keyword.changed(words, ids, *_ids_and_texts(rows), note)
    except CorruptPart:
        return None


def _differing(before: Iterable[pa.Table], now: pa.Table) -> tuple[list[str], pa.Table]:
    """The ids of rows of before that are not the same now, and the rows of now that were not so before."""
    ids, texts = now["id"].combine_chunks(), now["text"].combine_chunks()
    gone, same = list[str](), np.zeros(now.num_rows, np.bool_)
    for table in before:
        at = pc.index_in(table["id"], value_set=ids)
        stays = pc.fill_null(pc.equal(table["text"], texts.take(at)), False)
        gone += table["id"].filter(pc.invert(stays)).to_pylist()
        same[at.filter(stays).to_numpy()] = True
    return gone, now.filter(pa.array(~same))


def _rows(store: Store, texts: Sequence[Texts]) -> Iterator[pa.Table]:
    return (table for x in texts for table in load_texts(store, x))


def _ids_and_texts(rows: pa.Table) -> tuple[list[str], list[str]]:
    return rows["id"].to_pylist(), [text or "" for text in rows["text"].to_pylist()]


def _vectors(store: Store, parts: Sequence[Part]) -> tuple[list[str], Floats]:
    if not parts:
        return [], np.zeros((0, 0), np.float32)
    table = read_table(store, parts, ["id", "vector"])
    matrix = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
    return table["id"].to_pylist(), matrix


def _note(failed: list[dict[str, str]], kind: str, id_: str, error: BaseException) -> None:
    failed.append({"item": f"{kind} {id_}: found by no word", "error": note_bug(error)})


@cache
def _stemmer() -> str:
    """The version of what makes a shard."""
    return version("PyStemmer")


# Indexes of all levels of a hierarchy at once (`chnsw.py`), for hierarchies that are made by meaning. A shard
# holds consecutive parts of the embeddings of what the hierarchy is over, and its share of the parts of its
# reports' embeddings. Every shard has all levels; the nearest of a level are the nearest of those of all
# shards. Where a community has changed, all shards are made anew.

LEVEL_SHARD_ROWS = 262_144
"""Of what the hierarchy is over. A shard of so many with 256 dimensions is made in 1 GB of memory."""
LEAST_ROWS = 100_000
"""Below, a question looks at all vectors: 13 ms at most. To load the compiled loops takes .4 s, once."""


@dataclass(frozen=True)
class _LevelShard:
    """parts: of embeddings, of what the hierarchy is over and of its reports; levels: how many there are;
    level_of: of each report, by id; made_from: a hash of all that it depends on."""

    table: str
    parts: tuple[Sequence[Part], Sequence[Part]]
    n_levels: int
    level_of: Callable[[], Mapping[str, int]]
    made_from: str

    @property
    def rows(self) -> int:
        return sum(part.rows for parts in self.parts for part in parts)


def level_indexes(run: Run, results: Results) -> dict[str, list[list[Part]]]:
    """Tables search_<hierarchy>_levels, a shard a group."""
    tables: dict[str, list[list[Part]]] = {}
    for name in _indexed(results):
        shards = _level_shards(run, results, name)
        parts, _ = made_shards(run, "search", shards, _make_levels)
        tables[schema.search_table(name, "levels")] = [[part] for part in parts]
    return tables


def _indexed(results: Results) -> list[str]:
    """Hierarchies of a graph that are made by meaning and have enough records, where numba is there."""
    rows = {
        name: sum(part.rows for part in results.embedded.parts(f"embeddings_{HIERARCHIES[name].over}"))
        for name in results.hierarchies
        if HIERARCHIES[name].by_meaning and HIERARCHIES[name].of_graph
    }
    return [name for name, n in rows.items() if n >= LEAST_ROWS and chnsw.has_loops()]


def _level_shards(run: Run, results: Results, name: str) -> list[_LevelShard]:
    kind, hierarchy = HIERARCHIES[name], results.hierarchies[name]
    parts = results.embedded.parts(f"embeddings_{kind.over}")
    reports = results.embedded.parts(f"embeddings_{kind.reports}")
    batches = stable_batches([part.path for part in parts], [part.rows for part in parts], LEVEL_SHARD_ROWS)
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


def _make_levels(store: Store, shard: _LevelShard) -> Iterator[pa.Table]:
    over, reports = shard.parts
    levels = [_vectors(store, over)]
    ids, vectors = _vectors(store, reports) if reports else ([], levels[0][1][:0])
    known = shard.level_of()
    level = np.array([known.get(id_, -1) for id_ in ids], np.int64)
    for number in reversed(range(shard.n_levels)):
        rows = np.flatnonzero(level == number)
        levels.append(([ids[i] for i in rows.tolist()], vectors[rows]))
    yield stored_shard(store, shard, chnsw.build(levels))
