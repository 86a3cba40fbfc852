"""The snapshot's own tables: short ids carried over, lists of ids filled in, references made readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.ids import report_id
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph.integer_arrays import degrees
from graphrag_ray.indexing.run import Result, Run
from graphrag_ray.indexing.stages.blocks import element_slice
from graphrag_ray.indexing.stages.communities_stage import HIERARCHY, Layout
from graphrag_ray.indexing.stages.id_columns import Keys, edge_ends, keys
from graphrag_ray.indexing.stages.short_ids import Numbers, Rendered, number, prefixes_of, renumbered
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

Ints = npt.NDArray[np.int64]
COMMUNITIES_AT_ONCE = 2_000
ELEMENTS_AT_ONCE = 200_000
"""Communities of a part hold so many nodes and edges together, or there is one only: those of the coarsest
level hold the whole graph between them, with all its lists of text units."""

_Shared: TypeAlias = tuple[Layout, pa.Array, Ints]
"""The layout, and by community its id and its human_readable_id."""


@dataclass(frozen=True)
class Results:
    """What the steps came to."""

    corpus: Result
    extracted: Result
    claimed: Result
    merged: Result
    described: Result
    about: Result
    reports: Result
    embedded: Result
    searchable: Result


@dataclass
class Finished:
    """The tables of the snapshot, and what the next one needs to go on numbering."""

    tables: dict[str, list[Part]] = field(default_factory=dict)
    next_human_readable_id: dict[str, int] = field(default_factory=dict)


def finish(
    run: Run, results: Results, layout: Layout, ids: list[str], period: str, failures: pa.Table
) -> Finished:
    """Write the snapshot's tables. A function of its arguments and the parent's short ids: equal inputs
    give equal parts.

    ids: of the communities, by number in the hierarchy; period: ISO date of the run.
    """
    numbers = _all_numbers(run, results, layout, ids)
    done = Finished(next_human_readable_id={t: n.next for t, n in numbers.items()})

    def compute() -> Result:
        share = run.executor.share(numbers)
        _finish_units(run, done, share, results)
        _finish_graph(run, done, share, results.described, results.merged.tables["covariates"])
        community_ids = pa.array(ids, pa.string())
        shared = run.executor.share((layout, community_ids, numbers["communities"].of(community_ids)))
        _finish_communities(run, done, shared, layout, period)
        _finish_reports(run, done, share, shared, results.reports, period)
        for name in ("entity_instances", "relationship_instances"):
            done.tables[name] = results.merged.parts(name)
        for kind in schema.EMBEDDINGS:
            done.tables[f"embeddings_{kind}"] = results.embedded.parts(f"embeddings_{kind}")
        for name in results.searchable.tables:
            if name != "failures":
                done.tables[name] = results.searchable.parts(name)
        _write_one(run, done, "failures", failures)
        return Result()

    run.step("finish", None, compute)
    return done


def _all_numbers(run: Run, results: Results, layout: Layout, ids: list[str]) -> dict[str, Numbers]:
    """New entities and relationships are numbered from the best connected on, so that 1 is the largest
    hub; communities level by level."""

    def all_keys(groups: list[list[Part]]) -> Keys:
        return keys(run.store, [p for g in groups for p in g])

    corpus, merged, described = results.corpus, results.merged, results.described
    edges = [p for g in described.tables["relationships"] for p in g]
    entities = _columns(run, described.tables["entities"], "id")["id"]
    source, target = edge_ends(run.store, entities, edges)
    weight = read_table(run.store, edges, ["weight"], pa.schema([("weight", pa.float64())]))["weight"]
    degree = degrees(source, target, len(entities))
    community_ids = pa.array(ids, pa.string())
    report_ids = pa.array([report_id(i) for i in ids], pa.string())
    by_degree = np.lexsort((np.arange(len(degree)), -degree))
    by_weight = np.lexsort((np.arange(len(source)), -weight.to_numpy()))
    by_level = np.lexsort((np.arange(len(ids)), layout.hierarchy.level))
    communities = number(run, "communities", prefixes_of(community_ids), by_level)
    return {
        "documents": number(run, "documents", all_keys(corpus.tables["documents"])),
        "text_units": number(run, "text_units", all_keys(corpus.tables["text_units"])),
        "entities": number(run, "entities", prefixes_of(entities), by_degree),
        "relationships": number(run, "relationships", keys(run.store, edges), by_weight),
        "covariates": number(run, "covariates", all_keys(merged.tables["covariates"])),
        "communities": communities,
        # A report bears its community's number, as everywhere in this family of tools.
        "community_reports": renumbered(report_ids, communities.of(community_ids), communities.next),
    }


def _finish_units(
    run: Run,
    done: Finished,
    numbers: Callable[[], dict[str, Numbers]],
    results: Results,
) -> None:
    """Documents with their chunks' ids; chunks with the ids of what they name."""
    corpus, extracted, claimed = results.corpus, results.extracted, results.claimed
    groups = len(corpus.tables["text_units"])
    claims = claimed.tables.get("found_claims") or [[] for _ in range(groups)]
    inputs = list(
        zip(
            corpus.tables["documents"],
            corpus.tables["text_units"],
            extracted.tables["found_entities"],
            extracted.tables["found_relationships"],
            claims,
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
        lists = _ids_by_unit(store, parts, key, own[kind], table["id"])
        table = table.set_column(table.schema.get_field_index(column), column, lists)
    yield {"text_units": _numbered(table, own["text_units"]).cast(schema.TEXT_UNITS)}
    documents_table = read_table(store, documents, None, schema.DOCUMENTS)
    by_document: dict[str, list[str]] = {}
    for unit, document in zip(table["id"].to_pylist(), table["document_id"].to_pylist(), strict=True):
        by_document.setdefault(document, []).append(unit)
    lists = pa.array(
        [by_document.get(d, []) for d in documents_table["id"].to_pylist()], pa.list_(pa.string())
    )
    at = documents_table.schema.get_field_index("text_unit_ids")
    documents_table = documents_table.set_column(at, "text_unit_ids", lists)
    yield {"documents": _numbered(documents_table, own["documents"]).cast(schema.DOCUMENTS)}


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
    described: Result,
    covariates: list[list[Part]],
) -> None:
    entities, edges = described.tables["entities"], described.tables["relationships"]
    ids = _columns(run, entities, "id")
    source, target = edge_ends(run.store, ids["id"], [p for g in edges for p in g])
    degree = degrees(source, target, ids.num_rows)
    inputs = [
        *_sliced("entities", entities, {"degree": degree}),
        *_sliced("relationships", edges, {"combined_degree": degree[source] + degree[target]}),
        *_sliced("covariates", covariates, {}),
    ]
    written = run.executor.map("finish", partial(_graph_tables, numbers), inputs)
    for name in ("entities", "relationships", "covariates"):
        done.tables[name] = [p for w in written for p in w.get(name, [])]


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
    yield {kind: table.select(of.names).cast(of)}


def _finish_communities(
    run: Run, done: Finished, shared: Callable[[], _Shared], layout: Layout, period: str
) -> None:
    h, edge_community = layout.hierarchy, layout.elements.edge_community
    order = np.lexsort((np.arange(h.n_communities), h.level))
    first, last = (np.searchsorted(edge_community, ends) for ends in (np.arange(h.n_communities), h.last))
    inputs = _batches(order, (h.sizes() + last - first)[order])
    written = run.executor.map("finish", partial(_community_table, shared, period), inputs)
    done.tables["communities"] = [p for w in written for p in w.get("communities", [])]


def _batches(order: Ints, elements: Ints) -> list[Ints]:
    """Communities that are finished together: COMMUNITIES_AT_ONCE and ELEMENTS_AT_ONCE at most."""
    batches, start, held = [], 0, 0
    for at, n in enumerate(elements.tolist()):
        if at > start and (at - start == COMMUNITIES_AT_ONCE or held + n > ELEMENTS_AT_ONCE):
            batches.append(order[start:at])
            start, held = at, 0
        held += n
    return [*batches, order[start:]] if len(order) else []


def _community_table(
    shared: Callable[[], _Shared], period: str, store: Store, wanted: Ints
) -> Iterator[Tables]:
    layout, ids, numbers = shared()
    h, edge_community = layout.hierarchy, layout.elements.edge_community
    rows = []
    for c in wanted.tolist():
        members = element_slice(
            store, layout.blocks["entities"], h.start[c], h.end[c], ["id", "text_unit_ids"]
        )
        low, high = np.searchsorted(edge_community, [c, h.last[c]])
        inside = element_slice(store, layout.blocks["relationships"], low, high, ["id", "text_unit_ids"])
        # The text of a community is that of its relationships; without any, its members'.
        of_text = inside if inside.num_rows else members
        units = pc.unique(pc.list_flatten(of_text["text_unit_ids"])) if of_text.num_rows else pa.array([])
        rows.append(
            {
                "id": ids[c].as_py(),
                "human_readable_id": int(numbers[c]),
                "community": int(numbers[c]),
                "level": int(h.level[c]),
                "parent": int(numbers[h.parent[c]]) if h.parent[c] >= 0 else -1,
                "children": [int(numbers[k]) for k in h.children(c)],
                "title": f"Community {numbers[c]}",
                "entity_ids": members["id"].to_pylist(),
                "relationship_ids": inside["id"].to_pylist(),
                "text_unit_ids": units.to_pylist(),
                "period": period,
                "size": int(h.end[c] - h.start[c]),
                "hierarchy": HIERARCHY,
                "packed": bool(h.packed[c]),
            }
        )
    yield {"communities": pa.Table.from_pylist(rows, schema=schema.COMMUNITIES)}


def _finish_reports(
    run: Run,
    done: Finished,
    numbers: Callable[[], dict[str, Numbers]],
    shared: Callable[[], _Shared],
    reports: Result,
    period: str,
) -> None:
    """Reports with references as people read them: human_readable_ids."""
    inputs = [group for group in reports.tables["reports"] if group]
    written = run.executor.map("finish", partial(_report_table, numbers, shared, period), inputs)
    done.tables["community_reports"] = [p for w in written for p in w.get("community_reports", [])]


def _report_table(
    numbers: Callable[[], dict[str, Numbers]],
    shared: Callable[[], _Shared],
    period: str,
    store: Store,
    parts: list[Part],
) -> Iterator[Tables]:
    layout, ids, known = shared()
    h = layout.hierarchy
    shown = Rendered(numbers())
    rows = []
    written = read_table(store, parts).to_pylist()
    shown.prepare(reference for row in written for reference in row["references"])
    for row in written:
        c = row.pop("number")
        findings = [{k: shown.render(v) for k, v in f.items()} for f in row["findings"]]
        summary, explanation = shown.render(row["summary"]), shown.render(row["rating_explanation"])
        content = {
            "title": row["title"],
            "summary": summary,
            "rating": row["rank"],
            "rating_explanation": explanation,
            "findings": findings,
        }
        rows.append(
            {
                **row,
                "id": report_id(ids[c].as_py()),
                "human_readable_id": int(known[c]),
                "community": int(known[c]),
                "level": int(h.level[c]),
                "parent": int(known[h.parent[c]]) if h.parent[c] >= 0 else -1,
                "children": [int(known[k]) for k in h.children(c)],
                "summary": summary,
                "full_content": shown.render(row["full_content"]),
                "rating_explanation": explanation,
                "findings": findings,
                "full_content_json": orjson.dumps(content, option=orjson.OPT_INDENT_2).decode(),
                "period": period,
                "size": int(h.end[c] - h.start[c]),
                "hierarchy": HIERARCHY,
            }
        )
    rows.sort(key=lambda r: (r["level"], r["community"]))
    yield {"community_reports": pa.Table.from_pylist(rows, schema=schema.COMMUNITY_REPORTS)}


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
