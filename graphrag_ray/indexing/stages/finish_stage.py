"""The snapshot's own tables: short ids carried over, lists of ids filled in, references made readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph.integer_arrays import degrees
from graphrag_ray.indexing.results import ExtractedGraph, Results
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.id_columns import Keys, edge_ends, keys
from graphrag_ray.indexing.stages.row_indexes import index_rows
from graphrag_ray.indexing.stages.short_ids import Numbers, number, prefixes_of
from graphrag_ray.indexing.step_result import Result, is_failures
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import by_row
from graphrag_ray.store.parts import Part, read_table

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
    numbers = _all_numbers(run, results)
    done = Finished(next_human_readable_id={t: n.next for t, n in numbers.items()})

    def compute() -> Result:
        share = run.executor.share(numbers)
        _finish_units(run, done, share, results)
        if results.graph:
            _finish_graph(run, done, share, results.graph)
        for hierarchy in results.hierarchies.values():
            done.tables |= hierarchy.tables(run, share, period)
        for made in (*results.more.values(), results.embedded, results.searchable):
            done.tables |= {name: made.parts(name) for name in made.tables if not is_failures(name)}
        _write_one(run, done, "failures", failures)
        done.tables |= index_rows(run, done.tables)
        return Result()

    run.step("finish", None, compute)
    return done


def _all_numbers(run: Run, results: Results) -> dict[str, Numbers]:
    corpus = results.corpus.tables
    found = {name: number(run, name, _keys(run, corpus[name])) for name in ("documents", "text_units")}
    if results.graph:
        found |= _numbers_of_graph(run, results.graph)
    for hierarchy in results.hierarchies.values():
        found |= hierarchy.numbers(run)
    return found


def _numbers_of_graph(run: Run, graph: ExtractedGraph) -> dict[str, Numbers]:
    """New entities and relationships are numbered from the best connected on, so that 1 is the largest
    hub."""
    described = graph.described.tables
    edges = [p for g in described["relationships"] for p in g]
    entities = _columns(run, described["entities"], "id")["id"]
    source, target = edge_ends(run.store, entities, edges)
    weight = read_table(run.store, edges, ["weight"], pa.schema([("weight", pa.float64())]))["weight"]
    degree = degrees(source, target, len(entities))
    by_degree = np.lexsort((np.arange(len(degree)), -degree))
    by_weight = np.lexsort((np.arange(len(source)), -weight.to_numpy()))
    return {
        "entities": number(run, "entities", prefixes_of(entities), by_degree),
        "relationships": number(run, "relationships", keys(run.store, edges), by_weight),
        "covariates": number(run, "covariates", _keys(run, graph.merged.tables["covariates"])),
    }


def _keys(run: Run, groups: list[list[Part]]) -> Keys:
    return keys(run.store, [p for g in groups for p in g])


def _finish_units(
    run: Run,
    done: Finished,
    numbers: Callable[[], dict[str, Numbers]],
    results: Results,
) -> None:
    """Documents with their chunks' ids; chunks with the ids of what they name."""
    corpus = results.corpus.tables
    none: list[list[Part]] = [[] for _ in corpus["text_units"]]
    found = results.graph.extracted.tables if results.graph else {}
    claims = results.graph.claimed.tables.get("found_claims") if results.graph else None
    inputs = list(
        zip(
            corpus["documents"],
            corpus["text_units"],
            found.get("found_entities", none),
            found.get("found_relationships", none),
            claims or none,
            strict=True,
        )
    )
    written = run.executor.map("finish", partial(_unit_tables, numbers), inputs)
    for name in ("documents", "text_units"):
        done.tables[name] = [p for w in written for p in w.get(name, [])]


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
        lists = _ids_by_unit(store, parts, key, own[kind], table["id"])
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


def _ids_by_unit(
    store: Store, parts: list[Part], key: str, known: Numbers, units: pa.ChunkedArray
) -> pa.Array:
    """For each text unit the distinct ids it names, those that are in the snapshot, in order."""
    of = pa.schema([(key, pa.string()), ("text_unit_id", pa.string())])
    found = read_table(store, parts, [key, "text_unit_id"], of)
    found = found.filter(pa.array(known.of(found[key]) >= 0))
    lists: dict[str, dict[str, None]] = {}
    for id_, unit in zip(found[key].to_pylist(), found["text_unit_id"].to_pylist(), strict=True):
        lists.setdefault(unit, {})[id_] = None
    return pa.array([list(lists.get(u, {})) for u in units.to_pylist()], pa.list_(pa.string()))


def _finish_graph(
    run: Run,
    done: Finished,
    numbers: Callable[[], dict[str, Numbers]],
    graph: ExtractedGraph,
) -> None:
    entities, edges = graph.described.tables["entities"], graph.described.tables["relationships"]
    ids = _columns(run, entities, "id")
    source, target = edge_ends(run.store, ids["id"], [p for g in edges for p in g])
    degree = degrees(source, target, ids.num_rows)
    inputs = [
        *_sliced("entities", entities, {"degree": degree}),
        *_sliced("relationships", edges, {"combined_degree": degree[source] + degree[target]}),
        *_sliced("covariates", graph.merged.tables["covariates"], {}),
    ]
    written = run.executor.map("finish", partial(_graph_tables, numbers), inputs)
    for name in ("entities", "relationships", "covariates"):
        done.tables[name] = [p for w in written for p in w.get(name, [])]
    for name in ("entity_instances", "relationship_instances"):
        done.tables[name] = graph.merged.parts(name)


def _sliced(kind: str, groups: list[list[Part]], columns: Mapping[str, Ints]) -> list[Any]:
    out, at = [], 0
    for group in groups:
        rows = sum(p.rows for p in group)
        out.append((kind, group, {name: c[at : at + rows] for name, c in columns.items()}))
        at += rows
    return out


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
    if "human_readable_id" in table.column_names:
        table = table.drop_columns(["human_readable_id"])
    table = table.append_column("human_readable_id", pa.array(numbers()[kind].of(table["id"])))
    yield {kind: by_row(table.select(of.names).cast(of))}


def _numbered(table: pa.Table, numbers: Numbers) -> pa.Table:
    at = table.schema.get_field_index("human_readable_id")
    return table.set_column(at, "human_readable_id", pa.array(numbers.of(table["id"])))


def _columns(run: Run, groups: list[list[Part]], *names: str) -> pa.Table:
    of = pa.schema([(n, pa.string()) for n in names])
    return read_table(run.store, [p for g in groups for p in g], list(names), of)


def _write_one(run: Run, done: Finished, name: str, table: pa.Table) -> None:
    done.tables[name] = run.executor.map("finish", _just, [{name: table}])[0].get(name, [])


def _just(store: Store, tables: Tables) -> list[Tables]:
    return [tables]
