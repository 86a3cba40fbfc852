"""Write the snapshot's tables: assign short ids, fill in lists of ids, render references, and index rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.ids import ID_LENGTH, stable_id
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph.integer_arrays import Ints, id_hash64, node_degrees
from graphrag_ray.graph.stable_batches import stable_batches
from graphrag_ray.indexing.results import ExtractedGraph, Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.describe_stage import COLUMNS, edge_ends, read_columns
from graphrag_ray.indexing.stages.merge_stage import range_of
from graphrag_ray.indexing.stages.search_stage import build_shards, write_shard
from graphrag_ray.indexing.stages.short_ids import (
    GROUP,
    IDS,
    ShortIds,
    assign_short_ids,
    id_keys,
    load_integer_columns,
    parent_short_ids,
    row_slices,
)
from graphrag_ray.indexing.step_result import Result, code_version, is_failures_table, join_results
from graphrag_ray.store import index_files, pages, parquet
from graphrag_ray.store.files import Store, map_in_threads
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, explain_damage, read_table
from graphrag_ray.store.search import row_index
from graphrag_ray.store.search.mapped_arrays import Keys
from graphrag_ray.store.search.row_index import PartRows, entry_type, entry_types, group_name

_MAX_HUBS = 3
"""Number of best-connected entities that the counts of a snapshot name."""


@dataclass
class Finished:
    """The tables of the snapshot, the next short id of each table, and counts of the graph."""

    tables: dict[str, list[Part]] = field(default_factory=dict)
    next_human_readable_id: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)


def write_snapshot_tables(run: Run, results: Results, period: str, failures: pa.Table) -> Finished:
    """Write the snapshot's tables, which depend only on the arguments and the parent's short ids.

    `period` is the ISO date of the run.
    """
    finished = Finished()
    tables = finished.tables

    def compute() -> Result:
        # The short ids of these tables follow the order of their rows.
        sources = {name: results.corpus.tables[name] for name in ("documents", "text_units")}
        if results.graph:
            sources["covariates"] = results.graph.merged.tables["covariates"]
        ids = {name: load_integer_columns(run.store, groups, IDS) for name, groups in sources.items()}
        numbers = _assign_all_numbers(run, results, ids)
        finished.next_human_readable_id = {table: n.next_short_id for table, n in numbers.items()}
        shared = run.executor.share(numbers)
        written = [_finish_units(run, numbers, shared, results, ids["text_units"])]
        if results.graph:
            of_graph, finished.counts = _finish_graph(run, shared, results.graph)
            written += of_graph
            for name in ("entity_instances", "relationship_instances"):
                tables[name] = results.graph.merged.parts(name)
            tables["resolutions"] = results.graph.resolution.parts("resolutions")
        written += [hierarchy.write_tables(run, shared, period) for hierarchy in results.hierarchies.values()]
        result = join_results(written)
        tables.update({name: result.parts(name) for name in result.tables if name in schema.TABLES})
        for stage in (*results.other_stages.values(), results.embeddings, results.search_indexes):
            tables.update({name: stage.parts(name) for name in stage.tables if not is_failures_table(name)})
        tables["failures"] = run.write("finish", "failures", [failures])
        tables.update(_index_rows(run, tables))
        return result

    run.step("finish", None, compute)
    return finished


def _assign_all_numbers(run: Run, results: Results, ids: Mapping[str, pa.Table]) -> dict[str, ShortIds]:
    numbers = {name: assign_short_ids(run, name, table["id"].to_numpy()) for name, table in ids.items()}
    if results.graph:
        # New entities are numbered by degree, so that 1 is the largest hub; new relationships by weight.
        nodes, edges = (read_columns(run, results.graph.descriptions, kind) for kind in COLUMNS)
        degree = node_degrees(*edge_ends(nodes, edges), nodes.num_rows)
        by_degree = np.argsort(-degree, kind="stable")
        by_weight = np.argsort(-edges["weight"].to_numpy(), kind="stable")
        numbers["entities"] = assign_short_ids(run, "entities", nodes["id"].to_numpy(), by_degree)
        numbers["relationships"] = assign_short_ids(run, "relationships", edges["id"].to_numpy(), by_weight)
    for hierarchy in results.hierarchies.values():
        numbers |= hierarchy.short_ids(run)
    return numbers


def _finish_units(
    run: Run,
    numbers: Mapping[str, ShortIds],
    shared: Callable[[], dict[str, ShortIds]],
    results: Results,
    ids: pa.Table,
) -> Result:
    """Write documents with the ids of their chunks, and chunks with the ids of the records found in them."""
    corpus = results.corpus.tables
    none: list[list[Part]] = [[] for _ in corpus["text_units"]]
    extracted = results.graph.extraction.tables if results.graph else {}
    claims = results.graph.claims.tables.get("found_claims") if results.graph else None
    instances = (
        extracted.get("found_entities", none),
        extracted.get("found_relationships", none),
        claims or none,
    )
    inputs = list(zip(corpus["documents"], corpus["text_units"], *instances, strict=True))
    names, forced = ("text_units", "documents"), _groups_affected_by_pruning(run, numbers, results, ids)
    plan = run.reuse_plan("finish", inputs, ["units", sorted(numbers)], names, forced_inputs=forced)
    return plan.merge_new(run.store, run.map("finish", partial(_unit_tables, shared), plan.new_inputs))


def _groups_affected_by_pruning(
    run: Run, numbers: Mapping[str, ShortIds], results: Results, ids: pa.Table
) -> set[int]:
    """Return groups of chunks that may name an entity or relationship whose pruning changed.

    They must be written again although their parts are unchanged. Claims are not pruned.
    """
    graph = results.graph
    if graph is None or run.parent is None or run.parent_result("finish") is None:
        return set()
    units = [np.empty(0, np.uint64)]
    for kind, table, key in (
        ("entities", "entity_instances", "entity_id"),
        ("relationships", "relationship_instances", "relationship_id"),
    ):
        changed = np.setxor1d(numbers[kind].keys, parent_short_ids(run, kind).keys)
        ranges = graph.merged.tables[table]
        affected = [ranges[n] for n in np.unique(range_of(changed, len(ranges))).tolist()]
        for rows in run.executor.stream("finish", partial(_units_naming, key, pa.array(changed)), affected):
            units.append(rows["unit"].to_numpy())
    naming = np.isin(ids["id"].to_numpy(), np.unique(np.concatenate(units)))
    return set(ids[GROUP].to_numpy()[naming].tolist())


def _units_naming(key: str, ids: pa.Array, store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    """Yield the chunks with instances of these ids. All ids are represented by their first 64 bits."""
    if not parts:
        return
    rows = read_table(store, parts, [key, "text_unit_id"])
    matching = rows.filter(pc.is_in(pa.array(id_keys(rows[key])), value_set=ids))
    yield pa.table({"unit": pa.array(np.unique(id_keys(matching["text_unit_id"])), pa.uint64())})


def _unit_tables(
    shared: Callable[[], dict[str, ShortIds]], store: Store, groups: Sequence[list[Part]]
) -> Iterator[Tables]:
    documents, units, entities, relationships, claims = groups
    numbers = shared()
    chunks = read_table(store, units, None, schema.TEXT_UNITS)
    for column, parts, key, kind in (
        ("entity_ids", entities, "entity_id", "entities"),
        ("relationship_ids", relationships, "relationship_id", "relationships"),
        ("covariate_ids", claims, "claim_id", "covariates"),
    ):
        if kind not in numbers:  # There is no graph.
            continue
        columns = pa.schema([(key, pa.string()), ("text_unit_id", pa.string())])
        instances = read_table(store, parts, [key, "text_unit_id"], columns)
        instances = instances.filter(pa.array(numbers[kind].look_up(instances[key]) >= 0))
        chunks = _set_lists(chunks, column, instances["text_unit_id"], instances[key])
    numbered = _set_short_ids(chunks, numbers["text_units"])
    yield {"text_units": mark_for_row_access(numbered.cast(schema.TEXT_UNITS))}
    table = read_table(store, documents, None, schema.DOCUMENTS)
    table = _set_lists(table, "text_unit_ids", chunks["document_id"], chunks["id"])
    numbered = _set_short_ids(table, numbers["documents"])
    yield {"documents": mark_for_row_access(numbered.cast(schema.DOCUMENTS))}


def _set_lists(table: pa.Table, column: str, row_ids: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.Table:
    """Set a column to the distinct values that belong to each row's id, in order."""
    lists: dict[str, dict[str, None]] = {}
    for row_id, value in zip(row_ids.to_pylist(), values.to_pylist(), strict=True):
        lists.setdefault(row_id, {})[value] = None
    array = pa.array([list(lists.get(id_, {})) for id_ in table["id"].to_pylist()], pa.list_(pa.string()))
    return table.set_column(table.schema.get_field_index(column), column, array)


def _finish_graph(
    run: Run, shared: Callable[[], dict[str, ShortIds]], graph: ExtractedGraph
) -> tuple[list[Result], dict[str, Any]]:
    """Write entities, relationships and claims. Also returns `_connection_counts`."""
    nodes, edges = (read_columns(run, graph.descriptions, kind) for kind in COLUMNS)
    source, target = edge_ends(nodes, edges)
    degree = node_degrees(source, target, nodes.num_rows)
    tables: dict[str, tuple[list[list[Part]], dict[str, Ints]]] = {
        "entities": (graph.descriptions.tables["entities"], {"degree": degree}),
        "relationships": (
            graph.descriptions.tables["relationships"],
            {"combined_degree": degree[source] + degree[target]},
        ),
        "covariates": (graph.merged.tables["covariates"], {}),
    }
    written = []
    for name, (groups, columns) in tables.items():
        inputs = [
            (name, group, {column: values[span] for column, values in columns.items()})
            for group, span in zip(groups, row_slices(groups), strict=True)
        ]
        depends_on = [
            [parts, *(hashlib.sha256(values.tobytes()).hexdigest() for values in added.values())]
            for _, parts, added in inputs
        ]
        plan = run.reuse_plan("finish", inputs, name, (name,), identities=depends_on)
        tables_written = run.map("finish", partial(_graph_table, shared), plan.new_inputs)
        written.append(plan.merge_new(run.store, tables_written))
    return written, _connection_counts(run.store, graph.descriptions.tables["entities"], degree)


def _connection_counts(store: Store, entities: Sequence[list[Part]], degree: Ints) -> dict[str, Any]:
    """Count the entities without a relationship, and name those with the most relationships."""
    starts = [span.start for span in row_slices(entities)]
    hubs = {}
    for node in np.argsort(-degree, kind="stable")[:_MAX_HUBS].tolist():
        if degree[node]:
            group = int(np.searchsorted(starts, node, side="right")) - 1
            title = read_table(store, entities[group], ["title"])["title"][node - starts[group]].as_py()
            hubs[title] = int(degree[node])
    return {"orphans": int((degree == 0).sum()), "hubs": hubs}


def _graph_table(
    shared: Callable[[], dict[str, ShortIds]], store: Store, group: tuple[str, list[Part], dict[str, Ints]]
) -> Iterator[Tables]:
    name, parts, columns = group
    if not parts:
        return
    table = read_table(store, parts)
    for column, values in columns.items():
        table = table.append_column(column, pa.array(values))
    if "human_readable_id" not in table.column_names:
        table = table.append_column("human_readable_id", pa.nulls(table.num_rows, pa.int64()))
    columns_of_table = schema.TABLES[name]
    table = _set_short_ids(table, shared()[name]).select(columns_of_table.names)
    yield {name: mark_for_row_access(table.cast(columns_of_table))}


def _set_short_ids(table: pa.Table, numbers: ShortIds) -> pa.Table:
    index = table.schema.get_field_index("human_readable_id")
    return table.set_column(index, "human_readable_id", pa.array(numbers.look_up(table["id"])))


# Queries use row indexes to find single rows of the snapshot's tables. An index covers consecutive parts of a
# table, and is reused as long as all of them exist. An update changes parts of nearly every index, so a new
# index is derived from one of the parent snapshot, and only new parts are read.

MAX_ROWS = 1_000_000
MAX_BYTES = 256 << 20
"""Maximum size of the parts that an index covers. Building it reads all of them."""
MIN_SHARED_FRACTION = 0.25
"""Minimum fraction of an earlier index's rows that must still exist. Deriving from it reads all of it."""
_THREADS = 4
"""Number of threads that read parts, because storage may have a high latency."""


@dataclass(frozen=True)
class CoveredParts:
    source: str
    parts: list[Part]

    @cached_property
    def made_from(self) -> str:
        columns = map(str, schema.ROW_INDEXES[self.source].items())
        return stable_id("rows", code_version(), *columns, *(part.path for part in self.parts))

    @property
    def table(self) -> str:
        return schema.row_index_table(self.source)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class RowIndexPlan:
    """An index to build. `earlier` is an index to derive it from, and the parts that this one covers."""

    covered: CoveredParts
    earlier: tuple[Part, CoveredParts] | None = None


def _index_rows(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Return tables rows_<table> for tables whose rows are looked up. Only missing indexes are built."""
    covered = [cover for name in schema.ROW_INDEXES for cover in row_index_parts(name, tables.get(name, []))]

    def with_earlier(missing: Sequence[CoveredParts]) -> list[RowIndexPlan]:
        earlier: dict[str, list[tuple[Part, CoveredParts]]] = {}
        for name in {cover.source for cover in missing} if run.parent else ():
            assert run.parent is not None
            stored = {
                index_files.source_hash(part.path): part
                for part in run.parent.parts(schema.row_index_table(name))
            }
            before = row_index_parts(name, run.parent.parts(name))
            earlier[name] = [(stored[old.made_from], old) for old in before if old.made_from in stored]
        return [RowIndexPlan(cover, _nearest(cover, earlier.get(cover.source, ()))) for cover in missing]

    parts, _ = build_shards(run, "finish", covered, build_row_index, with_earlier)
    indexes: dict[str, list[Part]] = {}
    for cover, part in zip(covered, parts, strict=True):
        indexes.setdefault(cover.table, []).append(part)
    return indexes


def _nearest(
    wanted: CoveredParts, earlier: Sequence[tuple[Part, CoveredParts]]
) -> tuple[Part, CoveredParts] | None:
    """Return the index that covers most of the wanted rows, or None if reading their parts is as fast."""
    paths = {part.path for part in wanted.parts}
    shared = [sum(part.rows for part in cover.parts if part.path in paths) for _, cover in earlier]
    best = max(range(len(earlier)), key=shared.__getitem__, default=None)
    if best is None or shared[best] < MIN_SHARED_FRACTION * earlier[best][1].rows:
        return None
    return earlier[best]


def row_index_parts(table: str, parts: Sequence[Part]) -> list[CoveredParts]:
    """Return the parts that each index of a table covers, in order."""
    sizes = [max(part.bytes, part.rows * MAX_BYTES // MAX_ROWS) for part in parts]
    batches = stable_batches([part.path for part in parts], sizes, MAX_BYTES)
    return [CoveredParts(table, [parts[i] for i in batch]) for batch in batches]


def build_row_index(store: Store, wanted: RowIndexPlan) -> Iterator[pa.Table]:
    """Build an index and yield the result of `write_shard`."""
    covered = wanted.covered
    data = _derive(store, wanted)
    if data is None:
        data = row_index.build_from_parts(_read_parts(store, covered.source, covered.parts))
    yield write_shard(store, covered, data)


def _derive(store: Store, wanted: RowIndexPlan) -> bytes | None:
    """Derive an index from the earlier one. Returns None if that is missing, damaged or lacks columns."""
    if wanted.earlier is None:
        return None
    stored, before = wanted.earlier
    table, number = before.source, {part.path: n for n, part in enumerate(before.parts)}
    try:
        earlier = row_index.read(
            index_files.open_part(store, stored), entry_types(schema.row_index_columns(table))
        )
        if np.diff(earlier.ends, prepend=0).tolist() != [part.rows for part in before.parts]:
            raise earlier.source.invalid("it covers other parts of the table")
        columns = schema.TABLES[table]
        lists = [f for f in columns if pa.types.is_list(f.type)]
        nested = {f.name for f in lists if pa.types.is_struct(f.type.value_type)}
        if set(earlier.paged_columns) != set(columns.names) - nested:
            return None
        new = [part for part in wanted.covered.parts if part.path not in number]
        read = dict(zip((part.path for part in new), _read_parts(store, table, new), strict=True))
        sources: dict[str, int | PartRows] = {**read, **number}
        return row_index.derive(earlier, [sources[part.path] for part in wanted.covered.parts])
    except CorruptPart as e:
        if e.path != stored.path:
            raise
        return None


def _read_parts(store: Store, table: str, parts: Sequence[Part]) -> list[PartRows]:
    return list(map_in_threads(partial(_read_part, store, table), parts, _THREADS))


def _read_part(store: Store, table: str, part: Part) -> PartRows:
    data = parquet.read_bytes(store, part.path)
    file = pq.ParquetFile(pa.BufferReader(data))
    groups = schema.ROW_INDEXES[table].items()
    columns = dict.fromkeys(column for group, carried in groups for column in (*group, *carried))
    rows = file.read(list(columns), use_threads=False)
    halves = {name: _halves(rows[name]) for name in columns if rows[name].type == pa.string()}
    entries = {
        group_name(group): np.concatenate([_entries(rows, halves, column, *carried) for column in group])
        for group, carried in schema.row_index_columns(table).items()
    }
    stored = list(file.schema_arrow)
    columns_stored = [field.name for field in schema.TABLES[table] if field in stored]
    with explain_damage(store, part.path):
        try:
            located = pages.locate_pages(data, columns_stored)
        except ValueError as e:
            raise CorruptPart(f"{store.url_of(part.path)} is damaged: {e}", path=part.path) from e
    return PartRows(part.rows, entries, located)


def _entries(
    table: pa.Table,
    halves: Mapping[str, tuple[Keys, Keys]],
    column: str,
    ids: Sequence[str],
    numbers: Sequence[str],
) -> npt.NDArray[Any]:
    """Return an entry for each id in a column, with its row and the values carried along."""
    values, rows = table[column].combine_chunks(), np.arange(table.num_rows)
    if pa.types.is_list(values.type):
        rows = pc.list_parent_indices(values).to_numpy().astype(np.int64)
        values = values.flatten()
    rows, values = rows[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()
    entries = np.zeros(len(rows), entry_type(ids, numbers))
    entries["place"] = rows
    carried = {name: (high[rows], low[rows]) for name, (high, low) in halves.items()}
    if pa.types.is_string(values.type):
        if column not in carried:  # a list
            carried[column] = _halves(values)
        entries["key"] = carried[column][0]
    else:
        entries["key"] = values.to_numpy()
    for name in ids:
        entries[name]["high"], entries[name]["low"] = carried[name]
    for name in numbers:
        value = table[name]
        value = pc.list_value_length(value) if pa.types.is_list(value.type) else value
        entries[name] = value.cast(pa.float64()).to_numpy()[rows]
    return entries


def _halves(column: pa.ChunkedArray | pa.Array) -> tuple[Keys, Keys]:
    """Return the first and second 64 bits of ids."""
    filled = column.fill_null("0" * ID_LENGTH) if column.null_count else column
    return id_keys(filled), cast(Keys, id_hash64(filled, 1))
