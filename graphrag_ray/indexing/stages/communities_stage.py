"""Find communities on the driver, and store the elements of the graph in the order of the hierarchy.

The driver loads only integers. Texts stay in storage and are rewritten once in the order of the hierarchy, so
that the elements of any community are a few slices of a few blocks (see `graph/hierarchy.py`).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base.ids import community_id
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph.communities import build_communities, sort_edges_by_community
from graphrag_ray.graph.community_signatures import Hashes
from graphrag_ray.graph.context_plan import GraphElements, order_elements
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.leiden import connected_components
from graphrag_ray.graph.seeded_partition import PreviousPartition
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.describe_stage import COLUMNS, KINDS, edge_ends, read_columns
from graphrag_ray.indexing.stages.merge_stage import CLAIM_COLUMNS, n_bundles
from graphrag_ray.indexing.stages.short_ids import (
    IDS,
    Keys,
    entity_positions,
    load_integer_columns,
    read_arrays,
    row_slices,
    write_arrays,
)
from graphrag_ray.indexing.step_result import Result, join_results
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part

LEIDEN = "leiden"
ELEMENTS = ("entities", "relationships", "covariates")
BLOCK_ROWS = 1_024
"""Average number of elements in a block, about 300 KB of text."""
CACHE_BYTES = 128 << 20
"""Maximum size of the blocks that a process caches. A single block may be larger."""

TABLE_COLUMNS = ["id", "text_unit_ids"]
"""Columns that the tables of communities are made from."""
CONTEXT_COLUMNS: Mapping[str, list[str]] = {
    "entities": ["id", "title", "description", "text_unit_ids"],
    "relationships": [
        *("id", "source", "target", "description", "text_unit_ids", "relation", "relation_reversed")
    ],
    "covariates": [
        *("id", "subject_id", "object_id", "type", "status", "start_date", "end_date", "description"),
        "text_unit_ids",
    ],
    "text_units": ["id", "text", "header"],
}
"""Columns that contexts contain, and the chunks that support them."""
_PREVIOUS_EDGES = pa.schema(
    [*((name, pa.uint64()) for name in ("id", "source_id", "target_id")), ("weight", pa.float64())]
)
_HIERARCHY_ARRAYS = {
    "order": "node_at_place",
    **{name: name for name in ("level", "parent", "start", "end")},
    "last": "subtree_end",
    "packed": "packed",
}
"""The fields of a hierarchy by their names in storage."""
_RowPositions = tuple[Sequence[Part], Ints, Ints]
"""Parts, and for each row its position and the number of its block, or -1 if that block is reused."""


class BlockCache:
    """An LRU cache of blocks, limited by bytes. Parts never change, so blocks never become stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.nbytes = 0
        self._tables: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: Store, part: Part) -> pa.Table:
        """Return the table of a part. Raises the errors of `read_part`."""
        key = (store.url, part.path)
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
                return self._tables[key]
        table = read_part(store, part)
        with self._lock:
            if key not in self._tables:
                self._tables[key] = table
                self.nbytes += table.nbytes
            while self.nbytes > self._limit and len(self._tables) > 1:
                self.nbytes -= self._tables.popitem(last=False)[1].nbytes
        return table


_cache = BlockCache(CACHE_BYTES)


@dataclass(frozen=True)
class ElementBlocks:
    """Elements of one kind in the order of a hierarchy, as the parts of each block."""

    parts: Sequence[Sequence[Part]]

    @cached_property
    def _starts(self) -> Ints:
        """[blocks + 1] position of the first row of each block, then the number of rows."""
        return np.cumsum([0, *(sum(part.rows for part in block) for block in self.parts)])

    def rows(self, store: Store, positions: Ints, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return some columns of the rows at some positions, in the given order."""
        rows: list[dict[str, Any]] = [{}] * len(positions)
        block_of = np.searchsorted(self._starts, positions, "right") - 1
        for block in np.unique(block_of):
            wanted = np.flatnonzero(block_of == block)
            table = self._table(store, block, columns)
            taken = table.take(pa.array(positions[wanted] - self._starts[block])).to_pylist()
            for i, row in zip(wanted.tolist(), taken, strict=True):
                rows[i] = row
        return rows

    def between(self, store: Store, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the rows at positions start…end-1."""
        slices = [pa.table({name: pa.array([], pa.string()) for name in columns})] if start >= end else []
        first, last = np.searchsorted(self._starts, [start, end - 1], "right").tolist()
        for block in range(first - 1, last) if start < end else ():
            offset = int(self._starts[block])
            low = max(start - offset, 0)
            slices.append(self._table(store, block, columns).slice(low, end - offset - low))
        return pa.concat_tables(slices)

    def _table(self, store: Store, block: int, columns: Sequence[str]) -> pa.Table:
        return pa.concat_tables(_cache.get(store, part).select(columns) for part in self.parts[block])


def element_blocks(result: Result, kinds: Iterable[str]) -> dict[str, ElementBlocks]:
    """Return the blocks that `write_blocks` stored."""
    return {kind: ElementBlocks(result.tables.get(f"block_{kind}", [])) for kind in kinds}


def write_blocks(
    run: Run,
    step: str,
    kind: str,
    groups: Sequence[Sequence[Part]],
    order: Ints,
    keys: Keys,
    contents: Hashes | None,
    columns: Sequence[str],
) -> Result:
    """Write table block_<kind> with a group per block: the rows of `groups` in the order `order`.

    Only the id of an element decides whether a block begins with it. So adding or removing an element changes
    one block, and all others are reused. `keys` are the first 64 bits of the ids. Without `contents` (a hash
    of the columns of each row) nothing is reused.
    """
    table, sorted_keys = f"block_{kind}", keys[order]
    starts_block = sorted_keys[1:] % np.uint64(BLOCK_ROWS) == 0
    ends = [*np.flatnonzero(starts_block) + 1, len(order)] if len(order) else []
    bounds = list(pairwise([0, *ends]))
    hashes: list[Any] = [None] * len(bounds)
    if contents is not None:
        rows = np.column_stack([sorted_keys, contents[order]])
        hashes = [hashlib.sha256(rows[start:end].tobytes()).hexdigest() for start, end in bounds]
    plan = run.reuse_plan(step, range(len(bounds)), columns, (table,), identities=hashes)
    number = np.full(len(bounds), -1, np.int64)
    number[plan.new_inputs] = np.arange(len(plan.new_inputs))
    position = np.full(len(keys), -1, np.int64)
    position[order] = np.arange(len(order))
    block = np.full(len(keys), -1, np.int64)
    block[order] = np.repeat(number, [end - start for start, end in bounds])
    inputs: list[_RowPositions] = []
    for group, span in zip(groups, row_slices(groups), strict=True):
        if (block[span] >= 0).any():
            inputs.append((group, position[span], block[span]))
    if not inputs:
        return plan.merge_new(run.store, [])
    bundles = n_bundles(int((block >= 0).sum()))
    select, make = partial(_select_rows, columns), partial(_make_block, table)
    return plan.merge_new(run.store, run.shuffle(step, select, inputs, make, len(plan.new_inputs), bundles))


def _select_rows(columns: Sequence[str], store: Store, rows: _RowPositions) -> Iterator[pa.Table]:
    group, positions, blocks = rows
    for part, span in zip(group, row_slices([[part] for part in group]), strict=True):
        wanted = blocks[span] >= 0
        if wanted.any():
            table = read_part(store, part, columns).filter(pa.array(wanted))
            table = table.append_column("place", pa.array(positions[span][wanted]))
            yield table.append_column(PARTITION, pa.array(blocks[span][wanted].astype(np.int32)))


def _make_block(table: str, rows: pa.Table) -> Tables:
    return {table: rows.sort_by("place").drop_columns(["place", PARTITION])}


@dataclass(frozen=True)
class Layout:
    """A hierarchy and the blocks of its elements.

    Keys are the first 64 bits of the ids: of entities by node number, of relationships and of claims about
    entities in the order of their ids. `blocks` and `contents` (content hashes of entities, relationships and
    claims) are in the order of `elements`.
    """

    hierarchy: Hierarchy
    elements: GraphElements
    blocks: dict[str, ElementBlocks]
    node_keys: Any
    edge_keys: Keys
    claim_keys: Keys
    contents: tuple[Hashes, Hashes, Hashes]


def find_communities(run: Run, merged: Result, descriptions: Result) -> Result:
    """Partition the graph, starting from the parent snapshot's communities unless they are reset.

    The fingerprint does not contain the parent, so an unchanged graph keeps its communities. Returns table
    hierarchy (`write_hierarchy`) and the blocks of all elements.
    """
    options = run.settings.communities
    model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    groups = element_groups(merged, descriptions)

    def compute() -> Result:
        graph = read_graph(run, merged, descriptions)
        # igraph blocks all other threads while it works.
        with run.expecting_silence(60 + len(graph.source) / 10_000):
            hierarchy = build_communities(
                len(graph.node_keys),
                graph.source,
                graph.target,
                graph.edges["weight"],
                options,
                graph.nodes["n_tokens"],
                run.settings.reports.context_tokens // 2,
                _previous_partition(run),
                graph.node_keys,
            )
        order, _, claims = graph.arrange(hierarchy)
        blocks = graph.write_blocks(run, "communities", groups, hierarchy.node_at_place, order, claims)
        sizes = np.bincount(
            connected_components(len(graph.node_keys), np.stack([graph.source, graph.target], axis=1))
        )
        largest_share = round(float(sizes.max()) / len(graph.node_keys), 4) if len(sizes) else 0.0
        counts = {
            "levels": {f"C{k}": len(hierarchy.communities_at_level(k)) for k in range(hierarchy.n_levels)},
            "communities": hierarchy.n_communities,
            "modularity": round(hierarchy.modularity, 4),
            "components": {"count": len(sizes), "largest_share": largest_share},
        }
        ids = community_ids(hierarchy, graph.node_keys)
        tables = {"hierarchy": [write_hierarchy(run, hierarchy, ids)], **blocks.tables}
        return Result(tables, counts, made_from=blocks.made_from)

    depends_on = [*groups.values(), options, run.settings.reports.context_tokens, vocabulary]
    return run.step("communities", depends_on, compute)


def load_layout(run: Run, graph: IntegerGraph, communities: Result) -> Layout:
    """Load a stored hierarchy, with the arrays that planning reports needs."""
    hierarchy = read_hierarchy(run, communities)
    order, elements, claims = graph.arrange(hierarchy)
    contents = (
        graph.nodes["content"][hierarchy.node_at_place],
        graph.edges["content"][order],
        graph.claims["content"][graph.about[claims]],
    )
    edge_keys, claim_keys = graph.edges["id"], graph.claims["id"][graph.about]
    blocks = element_blocks(communities, ELEMENTS)
    return Layout(hierarchy, elements, blocks, graph.node_keys, edge_keys, claim_keys, contents)


def community_ids(hierarchy: Hierarchy, node_keys: Keys) -> list[str]:
    """Return the id of each community: a hash of its level and members (`node_keys` as in `Layout`)."""
    h, members = hierarchy, node_keys[hierarchy.node_at_place]
    return [
        community_id(LEIDEN, int(h.level[c]), members[h.start[c] : h.end[c]]) for c in range(h.n_communities)
    ]


def _previous_partition(run: Run) -> PreviousPartition | None:
    """Load the parent snapshot's graph and hierarchy, or None if it is damaged or the settings differ.

    Graphs that differ in `build` have too little in common.
    """
    parent = run.parent
    if parent is None or "communities" not in parent.steps or "communities" in run.forced_steps:
        return None
    if bool(parent.hierarchies) != bool(run.settings.built_hierarchies):
        return None
    if parent.settings.get("communities") != snapshot_settings(run.settings)["communities"]:
        return None
    before = run.parent_results["communities"]
    if not before.parts("hierarchy"):  # written by another version
        return None
    descriptions = run.parent_results["describe"]
    parts = [part for kind in KINDS.values() for part in descriptions.parts(kind)]
    if run.has_lost_parts([*parts, *before.parts("hierarchy")]):
        run.observer.message("The communities of the parent snapshot are damaged: partitioning from scratch")
        return None
    nodes = load_integer_columns(run.store, descriptions.tables["entities"], IDS)
    edges = load_integer_columns(run.store, descriptions.tables["relationships"], _PREVIOUS_EDGES)
    hierarchy = read_hierarchy(run, before)
    if len(hierarchy.node_at_place) != nodes.num_rows:  # The hierarchy does not belong to these tables.
        return None
    return PreviousPartition(
        hierarchy, nodes["id"].to_numpy(), *edge_ends(nodes, edges), edges["weight"].to_numpy()
    )


def element_groups(merged: Result, descriptions: Result) -> dict[str, list[list[Part]]]:
    return {
        "entities": descriptions.tables["entities"],
        "relationships": descriptions.tables["relationships"],
        "covariates": merged.tables["covariates"],
    }


@dataclass(frozen=True)
class IntegerGraph:
    """The graph as integers.

    Columns of entities, relationships and claims are in the order of their ids. `source` and `target` are the
    positions of the entities that a relationship connects. `about` contains the positions of claims with an
    entity as subject, `subject` the positions of these entities.
    """

    nodes: Mapping[str, Any]
    edges: Mapping[str, Any]
    claims: Mapping[str, Any]
    source: Ints
    target: Ints
    about: Ints
    subject: Ints

    @property
    def node_keys(self) -> Keys:
        keys: Keys = self.nodes["id"]
        return keys

    def arrange(self, hierarchy: Hierarchy) -> tuple[Ints, GraphElements, Ints]:
        """Return the order of relationships, all elements sorted by community, and the order of claims."""
        order, community = sort_edges_by_community(hierarchy, self.source, self.target)
        elements, claims = order_elements(
            hierarchy,
            self.nodes["n_tokens"],
            self.source,
            self.target,
            self.edges["n_tokens"],
            order,
            community,
            self.subject,
            self.claims["n_tokens"][self.about],
        )
        return order, elements, claims

    def write_blocks(
        self,
        run: Run,
        step: str,
        groups: Mapping[str, list[list[Part]]],
        nodes: Ints,
        edges: Ints,
        claims: Ints | None,
    ) -> Result:
        """Write the blocks of all elements in these orders. Without claims, write only `TABLE_COLUMNS`."""
        orders = {"entities": (nodes, self.nodes), "relationships": (edges, self.edges)}
        if claims is not None:
            orders["covariates"] = self.about[claims], self.claims
        columns = CONTEXT_COLUMNS if claims is not None else dict.fromkeys(CONTEXT_COLUMNS, TABLE_COLUMNS)
        return join_results(
            write_blocks(run, step, kind, groups[kind], order, rows["id"], rows["content"], columns[kind])
            for kind, (order, rows) in orders.items()
        )


def read_graph(run: Run, merged: Result, descriptions: Result) -> IntegerGraph:
    entities, relationships = (read_columns(run, descriptions, kind) for kind in COLUMNS)
    covariates = load_integer_columns(run.store, merged.tables["covariates"], CLAIM_COLUMNS)
    nodes, edges, claims = (
        {name: table[name].to_numpy() for name in table.column_names}
        for table in (entities, relationships, covariates)
    )
    about = np.flatnonzero(claims["subject_entity_id"]).astype(np.int64)
    subject = entity_positions(nodes["id"], claims["subject_entity_id"][about])
    return IntegerGraph(nodes, edges, claims, *edge_ends(entities, relationships), about, subject)


def hierarchy_arrays(hierarchy: Hierarchy) -> dict[str, Any]:
    return {name: getattr(hierarchy, attribute) for name, attribute in _HIERARCHY_ARRAYS.items()}


def hierarchy_from_arrays(arrays: Mapping[str, Any], modularity: float = 0.0) -> Hierarchy:
    return Hierarchy(
        **{attribute: arrays[name] for name, attribute in _HIERARCHY_ARRAYS.items()}, modularity=modularity
    )


def write_hierarchy(run: Run, hierarchy: Hierarchy, ids: Sequence[str] = ()) -> list[Part]:
    arrays = hierarchy_arrays(hierarchy) | {"id": pa.array(list(ids), pa.string())}
    return write_arrays(run, "communities", "hierarchy", arrays)


def read_hierarchy(run: Run, result: Result) -> Hierarchy:
    arrays = read_arrays(run.store, result.parts("hierarchy"))
    return hierarchy_from_arrays(arrays, float(result.counts["modularity"]))
