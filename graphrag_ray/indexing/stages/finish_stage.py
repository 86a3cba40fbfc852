"""The snapshot's own tables: short ids carried over, lists of ids filled in, references made readable; and
indexes of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.ids import ID_LENGTH, stable_id
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.integer_arrays import degrees, id_prefixes
from graphrag_ray.indexing.results import ExtractedGraph, Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.describe_stage import COLUMNS, ends_of, read_columns
from graphrag_ray.indexing.stages.merge_stage import range_of
from graphrag_ray.indexing.stages.search_stage import made_shards, stored_shard
from graphrag_ray.indexing.stages.short_ids import (
    GROUP,
    IDS,
    Numbers,
    columns_of,
    number,
    numbered_before,
    prefixes_of,
)
from graphrag_ray.indexing.step_result import Result, code_version, is_failures, joined
from graphrag_ray.store import blobs, pages, parquet
from graphrag_ray.store.files import Store, in_threads
from graphrag_ray.store.parquet import by_row
from graphrag_ray.store.parts import Part, damage_told, read_table
from graphrag_ray.store.search import row_index
from graphrag_ray.store.search.mapped_arrays import Keys
from graphrag_ray.store.search.row_index import RowIndex, RowsOfPart, entry_type, entry_types, group_name

Ints = npt.NDArray[np.int64]


@dataclass
class Finished:
    """The tables of the snapshot, and what the next one needs to go on numbering."""

    tables: dict[str, list[Part]] = field(default_factory=dict)
    next_human_readable_id: dict[str, int] = field(default_factory=dict)


def finish(run: Run, results: Results, period: str, failures: pa.Table) -> Finished:
    """Write the snapshot's tables. A function of its arguments and the parent's short ids: equal inputs
    give equal parts.

    period: ISO date of the run
    """
    done = Finished()

    def compute() -> Result:
        # Of tables that are numbered as they stand.
        tables = {name: results.corpus.tables[name] for name in ("documents", "text_units")}
        if results.graph:
            tables["covariates"] = results.graph.merged.tables["covariates"]
        ids = {name: columns_of(run.store, groups, IDS) for name, groups in tables.items()}
        numbers = _all_numbers(run, results, ids)
        done.next_human_readable_id = {t: n.next for t, n in numbers.items()}
        share = run.executor.share(numbers)
        made = [_finish_units(run, numbers, share, results, ids["text_units"])]
        if results.graph:
            made += _finish_graph(run, share, results.graph)
            for name in ("entity_instances", "relationship_instances"):
                done.tables[name] = results.graph.merged.parts(name)
        made += [hierarchy.tables(run, share, period) for hierarchy in results.hierarchies.values()]
        finished = joined(made)
        done.tables |= {name: finished.parts(name) for name in finished.tables if name in schema.TABLES}
        for of in (*results.more.values(), results.embedded, results.searchable):
            done.tables |= {name: of.parts(name) for name in of.tables if not is_failures(name)}
        done.tables["failures"] = run.write("finish", "failures", [failures])
        done.tables |= index_rows(run, done.tables)
        return finished

    run.step("finish", None, compute)
    return done


def _all_numbers(run: Run, results: Results, ids: Mapping[str, pa.Table]) -> dict[str, Numbers]:
    found = {name: number(run, name, of["id"].to_numpy()) for name, of in ids.items()}
    if results.graph:
        # New entities and relationships are numbered from the best connected on: 1 is the largest hub.
        nodes, edges = (read_columns(run, results.graph.described, kind) for kind in COLUMNS)
        source, target = ends_of(nodes, edges)
        degree = degrees(source, target, nodes.num_rows)
        by_degree = np.lexsort((np.arange(len(degree)), -degree))
        by_weight = np.lexsort((np.arange(len(source)), -edges["weight"].to_numpy()))
        found["entities"] = number(run, "entities", nodes["id"].to_numpy(), by_degree)
        found["relationships"] = number(run, "relationships", edges["id"].to_numpy(), by_weight)
    for hierarchy in results.hierarchies.values():
        found |= hierarchy.numbers(run)
    return found


def _finish_units(
    run: Run,
    numbers: Mapping[str, Numbers],
    share: Callable[[], dict[str, Numbers]],
    results: Results,
    ids: pa.Table,
) -> Result:
    """Documents with their chunks' ids; chunks with the ids of what they name. ids: of the chunks."""
    corpus = results.corpus.tables
    none: list[list[Part]] = [[] for _ in corpus["text_units"]]
    found = results.graph.extracted.tables if results.graph else {}
    claims = results.graph.claimed.tables.get("found_claims") if results.graph else None
    named = (found.get("found_entities", none), found.get("found_relationships", none), claims or none)
    inputs = list(zip(corpus["documents"], corpus["text_units"], *named, strict=True))
    names, others = ("text_units", "documents"), _naming_others(run, numbers, results, ids)
    known = run.taken_over("finish", inputs, ["units", sorted(numbers)], names, again=others)
    return known.with_new(run.store, run.map("finish", partial(_unit_tables, share), known.new))


def _naming_others(run: Run, numbers: Mapping[str, Numbers], results: Results, ids: pa.Table) -> set[int]:
    """Groups of chunks that may name an entity or a relationship which came into the snapshot since its
    parent, or left it, though their parts are as they were: those of what was pruned, or is not any more.
    Claims are not pruned.
    """
    graph = results.graph
    if graph is None or run.parent is None or run.before("finish") is None:
        return set()
    found = [np.empty(0, np.uint64)]
    for kind, table, key in (
        ("entities", "entity_instances", "entity_id"),
        ("relationships", "relationship_instances", "relationship_id"),
    ):
        other = np.setxor1d(numbers[kind].keys, numbered_before(run, kind).keys)
        ranges = graph.merged.tables[table]
        at = np.unique(range_of(other, len(ranges)))
        of = partial(_units_of, key, pa.array(other))
        for rows in run.executor.stream("finish", of, [ranges[n] for n in at.tolist()]):
            found.append(rows["unit"].to_numpy())
    naming = np.isin(ids["id"].to_numpy(), np.unique(np.concatenate(found)))
    return set(ids[GROUP].to_numpy()[naming].tolist())


def _units_of(key: str, ids: pa.Array, store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    """Text units of the instances of some ids; all are told by the first halves of their ids."""
    if not parts:
        return
    rows = read_table(store, parts, [key, "text_unit_id"])
    own = rows.filter(pc.is_in(pa.array(prefixes_of(rows[key])), value_set=ids))
    yield pa.table({"unit": pa.array(np.unique(prefixes_of(own["text_unit_id"])), pa.uint64())})


def _unit_tables(
    numbers: Callable[[], dict[str, Numbers]], store: Store, x: Sequence[list[Part]]
) -> Iterator[Tables]:
    documents, units, entities, relationships, claims = x
    own = numbers()
    table = read_table(store, units, None, schema.TEXT_UNITS)
    for column, parts, key, kind in (
        ("entity_ids", entities, "entity_id", "entities"),
        ("relationship_ids", relationships, "relationship_id", "relationships"),
        ("covariate_ids", claims, "claim_id", "covariates"),
    ):
        if kind not in own:  # without a graph, chunks name nothing
            continue
        # The distinct ids that each text unit names, those that are in the snapshot, in order.
        of = pa.schema([(key, pa.string()), ("text_unit_id", pa.string())])
        found = read_table(store, parts, [key, "text_unit_id"], of)
        found = found.filter(pa.array(own[kind].of(found[key]) >= 0))
        named: dict[str, dict[str, None]] = {}
        for id_, unit in zip(found[key].to_pylist(), found["text_unit_id"].to_pylist(), strict=True):
            named.setdefault(unit, {})[id_] = None
        lists = pa.array([list(named.get(u, {})) for u in table["id"].to_pylist()], pa.list_(pa.string()))
        table = table.set_column(table.schema.get_field_index(column), column, lists)
    yield {"text_units": by_row(_numbered(table, own["text_units"]).cast(schema.TEXT_UNITS))}
    documents_table = read_table(store, documents, None, schema.DOCUMENTS)
    by_document: dict[str, list[str]] = {}
    for unit, document in zip(table["id"].to_pylist(), table["document_id"].to_pylist(), strict=True):
        by_document.setdefault(document, []).append(unit)
    lists = pa.array(
        [by_document.get(d, []) for d in documents_table["id"].to_pylist()], pa.list_(pa.string())
    )
    at = documents_table.schema.get_field_index("text_unit_ids")
    documents_table = documents_table.set_column(at, "text_unit_ids", lists)
    yield {"documents": by_row(_numbered(documents_table, own["documents"]).cast(schema.DOCUMENTS))}


def _finish_graph(run: Run, numbers: Callable[[], dict[str, Numbers]], graph: ExtractedGraph) -> list[Result]:
    entities, edges = graph.described.tables["entities"], graph.described.tables["relationships"]
    nodes, links = (read_columns(run, graph.described, kind) for kind in COLUMNS)
    source, target = ends_of(nodes, links)
    degree = degrees(source, target, nodes.num_rows)
    tables: dict[str, tuple[list[list[Part]], dict[str, Ints]]] = {
        "entities": (entities, {"degree": degree}),
        "relationships": (edges, {"combined_degree": degree[source] + degree[target]}),
        "covariates": (graph.merged.tables["covariates"], {}),
    }
    made = []
    for name, (groups, columns) in tables.items():
        bounds = pairwise(np.cumsum([0, *(sum(part.rows for part in group) for group in groups)]).tolist())
        inputs = [
            (name, group, {column: values[start:end] for column, values in columns.items()})
            for group, (start, end) in zip(groups, bounds, strict=True)
        ]
        told = [
            [parts, *(hashlib.sha256(values.tobytes()).hexdigest() for values in more.values())]
            for _, parts, more in inputs
        ]
        known = run.taken_over("finish", inputs, name, (name,), told=told)
        made.append(known.with_new(run.store, run.map("finish", partial(_graph_tables, numbers), known.new)))
    return made


def _graph_tables(
    numbers: Callable[[], dict[str, Numbers]], store: Store, x: tuple[str, list[Part], dict[str, Ints]]
) -> Iterator[Tables]:
    kind, parts, columns = x
    if not parts:
        return
    table = read_table(store, parts)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    of = schema.TABLES[kind]
    if "human_readable_id" not in table.column_names:
        table = table.append_column("human_readable_id", pa.nulls(table.num_rows, pa.int64()))
    yield {kind: by_row(_numbered(table, numbers()[kind]).select(of.names).cast(of))}


def _numbered(table: pa.Table, numbers: Numbers) -> pa.Table:
    at = table.schema.get_field_index("human_readable_id")
    return table.set_column(at, "human_readable_id", pa.array(numbers.of(table["id"])))


# Where single rows of the snapshot's tables lie: what questions find them by. An index of rows is made for
# some consecutive parts of a table, and kept as long as all of them are there. An update changes some parts
# of nearly every index: such a one is derived from that of the parent snapshot, and only new parts are read.

MOST_ROWS = 1_000_000
MOST_BYTES = 256 << 20
"""Of the parts that an index covers: they are read to make it."""
SHARED = 0.25
"""An index is derived from an earlier one, all of which is read, if at least this share of its rows is still
there."""
_THREADS = 4
"""That read parts, for storage that answers late."""


@dataclass(frozen=True)
class CoveredParts:
    """Parts of a table that an index covers. of: the table's name."""

    of: str
    parts: list[Part]

    @cached_property
    def made_from(self) -> str:
        how = map(str, schema.LOOKED_UP[self.of].items())
        paths = (part.path for part in self.parts)
        return stable_id("rows", code_version(), *how, *paths)

    @property
    def table(self) -> str:
        return schema.rows_table(self.of)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class WantedIndex:
    """An index to be made. earlier: one of the parent snapshot that it can be derived from, and what that
    covers."""

    covered: CoveredParts
    earlier: tuple[Part, CoveredParts] | None = None


def index_rows(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Tables rows_<table> of those that are looked up. What is there already is not made again."""
    found = [x for name in schema.LOOKED_UP for x in covered_by_each(name, tables.get(name, []))]

    def wanted(missing: Sequence[CoveredParts]) -> list[WantedIndex]:
        earlier: dict[str, list[tuple[Part, CoveredParts]]] = {}
        for name in {x.of for x in missing} if run.parent else ():
            assert run.parent is not None
            stored = {blobs.made_from(part.path): part for part in run.parent.parts(schema.rows_table(name))}
            before = covered_by_each(name, run.parent.parts(name))
            earlier[name] = [(stored[x.made_from], x) for x in before if x.made_from in stored]
        return [WantedIndex(x, _nearest(x, earlier.get(x.of, ()))) for x in missing]

    parts, _ = made_shards(run, "finish", found, make_index, wanted)
    stored: dict[str, list[Part]] = {}
    for covered, part in zip(found, parts, strict=True):
        stored.setdefault(covered.table, []).append(part)
    return stored


def _nearest(
    wanted: CoveredParts, earlier: Sequence[tuple[Part, CoveredParts]]
) -> tuple[Part, CoveredParts] | None:
    """The index that covers most of the wanted rows; None where it is as quick to read their parts."""
    paths = {part.path for part in wanted.parts}
    shared = [sum(part.rows for part in of.parts if part.path in paths) for _, of in earlier]
    at = max(range(len(earlier)), key=lambda n: shared[n], default=-1)
    return earlier[at] if at >= 0 and shared[at] >= SHARED * earlier[at][1].rows else None


def covered_by_each(table: str, parts: Sequence[Part]) -> list[CoveredParts]:
    """The parts of each index, in order."""
    sizes = [max(part.bytes, part.rows * MOST_BYTES // MOST_ROWS) for part in parts]
    batches = stable_batches([part.path for part in parts], sizes, MOST_BYTES)
    return [CoveredParts(table, [parts[at] for at in batch]) for batch in batches]


def make_index(store: Store, wanted: WantedIndex) -> Iterator[pa.Table]:
    covered = wanted.covered
    data = _derived(store, wanted)
    if data is None:
        data = row_index.of_parts(_read(store, covered.of, covered.parts))
    yield stored_shard(store, covered, data)


def _derived(store: Store, wanted: WantedIndex) -> bytes | None:
    """The bytes of an index that is derived from an earlier one; None where there is none, or it is damaged,
    or has fewer columns than the new one may have."""
    if wanted.earlier is None:
        return None
    stored, before = wanted.earlier
    table, number = before.of, {part.path: n for n, part in enumerate(before.parts)}
    try:
        earlier = opened_index(store, stored, before)
        of = schema.TABLES[table]
        nested = {f.name for f in of if pa.types.is_list(f.type) and pa.types.is_struct(f.type.value_type)}
        if set(earlier.paged) != set(of.names) - nested:  # those of one kind of value can be read by pages
            return None
        new = [part for part in wanted.covered.parts if part.path not in number]
        read = dict(zip((part.path for part in new), _read(store, table, new), strict=True))
        of = [number[p.path] if p.path in number else read[p.path] for p in wanted.covered.parts]
        return row_index.derive(earlier, of)
    except CorruptPart as e:
        if e.path != stored.path:
            raise
        return None


def opened_index(store: Store, stored: Part, covered: CoveredParts) -> RowIndex:
    """Raises CorruptPart where it is not that of these parts."""
    index = row_index.read(blobs.opened(store, stored), entry_types(schema.carried(covered.of)))
    if np.diff(index.ends, prepend=0).tolist() != [part.rows for part in covered.parts]:
        raise index.source.refused("it is of other parts of the table")
    return index


def _read(store: Store, table: str, parts: Sequence[Part]) -> list[RowsOfPart]:
    return list(in_threads(partial(_of_part, store, table), parts, _THREADS))


def _of_part(store: Store, table: str, part: Part) -> RowsOfPart:
    data = parquet.read_bytes(store, part.path)
    file = pq.ParquetFile(pa.BufferReader(data))
    columns = dict.fromkeys(c for group, beside in schema.LOOKED_UP[table].items() for c in (*group, *beside))
    rows = file.read(list(columns), use_threads=False)
    halves = {name: _halves(rows[name]) for name in columns if rows[name].type == pa.string()}
    found = {
        group_name(group): np.concatenate([_entries(rows, halves, column, *beside) for column in group])
        for group, beside in schema.carried(table).items()
    }
    written_as = list(file.schema_arrow)
    same = [field.name for field in schema.TABLES[table] if field in written_as]
    with damage_told(store, part.path):
        try:
            located = pages.located(data, same)
        except ValueError as e:
            raise CorruptPart(f"{store.url_of(part.path)} is damaged: {e}", path=part.path) from e
    return RowsOfPart(part.rows, found, located)


def _entries(
    table: pa.Table,
    halves: Mapping[str, tuple[Keys, Keys]],
    column: str,
    ids: Sequence[str],
    numbers: Sequence[str],
) -> npt.NDArray[Any]:
    """An entry for each id that a column holds in a row. halves: of the ids of each column of ids."""
    held, rows = table[column].combine_chunks(), np.arange(table.num_rows)
    if pa.types.is_list(held.type):
        rows = pc.list_parent_indices(held).to_numpy().astype(np.int64)
        held = held.flatten()
    rows, held = rows[held.is_valid().to_numpy(zero_copy_only=False)], held.drop_null()
    entries = np.zeros(len(rows), entry_type(ids, numbers))
    entries["place"] = rows
    own = {name: (high[rows], low[rows]) for name, (high, low) in halves.items()}
    if pa.types.is_string(held.type):
        own |= {} if column in own else {column: _halves(held)}
        entries["key"] = own[column][0]
    else:
        entries["key"] = held.to_numpy()
    for name in ids:
        entries[name]["high"], entries[name]["low"] = own[name]
    for name in numbers:
        value = table[name]
        value = pc.list_value_length(value) if pa.types.is_list(value.type) else value
        entries[name] = value.cast(pa.float64()).to_numpy()[rows]
    return entries


def _halves(column: pa.ChunkedArray | pa.Array) -> tuple[Keys, Keys]:
    filled = column.fill_null("0" * ID_LENGTH) if column.null_count else column
    high, low = id_prefixes(filled, 0), id_prefixes(filled, 1)
    assert high is not None, "tables hold ids of our own"
    assert low is not None
    return high, low
