"""Communities on the driver, from integer arrays; then elements laid out in the order of the hierarchy.

Only integers come to the driver. The texts stay in storage and are rewritten once, so that the elements
of any community are a few slices of a few blocks (see `graph/hierarchy.py`).
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
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph.communities import communities, edge_order
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.plan import Elements, arrange
from graphrag_ray.graph.seeds import Past
from graphrag_ray.graph.signatures import Hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.describe_stage import COLUMNS, KINDS, ends_of, read_columns
from graphrag_ray.indexing.stages.merge_stage import CLAIM_COLUMNS, n_bundles
from graphrag_ray.indexing.stages.short_ids import IDS, Keys, columns_of, places_of, read_arrays, write_arrays
from graphrag_ray.indexing.step_result import Result, joined
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part

BLOCK_ROWS = 1_024
"""Elements in one block, on average: some 300 KB of text."""

IN_TABLES = ["id", "text_unit_ids"]
"""Columns that the tables of communities are made of."""
IN_CONTEXTS: Mapping[str, list[str]] = {
    "entities": ["id", "title", "description", "text_unit_ids"],
    "relationships": ["id", "source", "target", "description", "text_unit_ids"],
    "covariates": [
        *("id", "subject_id", "object_id", "type", "status", "start_date", "end_date", "description"),
        "text_unit_ids",
    ],
    "text_units": ["id", "text", "header"],
}
"""What a context shows of each kind, and what it rests on."""

CACHE_BYTES = 128 << 20
"""ElementBlocks that a process keeps. The last one stays, however large."""


class BlockCache:
    """The blocks last used, up to a number of bytes. Parts never change, so none grows stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.nbytes = 0
        self._kept: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: Store, part: Part) -> pa.Table:
        """The table of a part. Raises as `read_part`."""
        name = (store.url, part.path)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        table = read_part(store, part)
        with self._lock:
            if name not in self._kept:
                self._kept[name] = table
                self.nbytes += table.nbytes
            while self.nbytes > self._limit and len(self._kept) > 1:
                self.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return table


_cache = BlockCache(CACHE_BYTES)


@dataclass(frozen=True)
class ElementBlocks:
    """Elements of a kind. parts: of each block."""

    parts: Sequence[Sequence[Part]]

    @cached_property
    def _starts(self) -> Ints:
        """[blocks + 1] the place at which each begins, and the number of all."""
        return np.cumsum([0, *(sum(part.rows for part in block) for block in self.parts)])

    def rows(self, store: Store, places: Ints, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The rows at some places, in the order asked for; columns: None for all."""
        rows: list[dict[str, Any]] = [{}] * len(places)
        of_block = np.searchsorted(self._starts, places, "right") - 1
        for block in np.unique(of_block):
            mine = np.flatnonzero(of_block == block)
            table = _block(store, self.parts[block], columns)
            found = table.take(pa.array(places[mine] - self._starts[block])).to_pylist()
            for at, row in zip(mine.tolist(), found, strict=True):
                rows[at] = row
        return rows

    def between(self, store: Store, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """The rows at places start…end-1 as a table of some columns."""
        pieces = []
        first, last = np.searchsorted(self._starts, [start, end - 1], "right").tolist()
        for block in range(first - 1, last) if start < end else ():
            table = _block(store, self.parts[block], columns)
            at = int(self._starts[block])
            low = max(start - at, 0)
            pieces.append(table.slice(low, end - at - low))
        return (
            pa.concat_tables(pieces) if pieces else pa.table({c: pa.array([], pa.string()) for c in columns})
        )


def blocks_of(result: Result, kinds: Iterable[str]) -> dict[str, ElementBlocks]:
    """What `lay_out` made of these kinds."""
    return {kind: ElementBlocks(result.tables.get(f"block_{kind}", [])) for kind in kinds}


def _block(store: Store, parts: Sequence[Part], columns: Sequence[str] | None) -> pa.Table:
    tables = [_cache.get(store, part) for part in parts]
    return pa.concat_tables(tables if columns is None else [t.select(columns) for t in tables])


_Places = tuple[Sequence[Part], Ints, Ints]
"""Parts; of each of their rows its place, and the number of its block. -1: it is in no block that is made."""


def lay_out(
    run: Run,
    step: str,
    kind: str,
    groups: Sequence[Sequence[Part]],
    order: Ints,
    keys: Keys,
    contents: Hashes | None,
    columns: Sequence[str],
) -> Result:
    """Table block_<kind>, a group a block.

    A block ends where the id of the next element says so, whatever stands before it. So an element that comes
    or goes changes one block, and the others are taken over.

    groups    parts that hold the rows
    order     which of them, by place
    keys      of each row the first 64 bits of its id
    contents  of each row a hash of what the columns hold; None: nothing of the parent snapshot is used
    columns   of the blocks
    """
    table, placed = f"block_{kind}", keys[order]
    ends = [*np.flatnonzero(placed[1:] % np.uint64(BLOCK_ROWS) == 0) + 1, len(order)] if len(order) else []
    bounds = list(pairwise([0, *ends]))
    told: list[Any] = [None] * len(bounds)
    if contents is not None:
        rows = np.column_stack([placed, contents[order]])
        told = [hashlib.sha256(rows[start:end].tobytes()).hexdigest() for start, end in bounds]
    known = run.taken_over(step, range(len(bounds)), columns, (table,), told=told)
    number = np.full(len(bounds), -1, np.int64)
    number[known.new] = np.arange(len(known.new))
    place = np.full(len(keys), -1, np.int64)
    place[order] = np.arange(len(order))
    block = np.full(len(keys), -1, np.int64)
    block[order] = np.repeat(number, [end - start for start, end in bounds])
    inputs: list[_Places] = []
    at = 0
    for group in groups:
        own = slice(at, at + sum(part.rows for part in group))
        at = own.stop
        if (block[own] >= 0).any():
            inputs.append((group, place[own], block[own]))
    if not inputs:
        return known.with_new(run.store, [])
    bundles = n_bundles(int((block >= 0).sum()))
    make = partial(_placed, columns), inputs, partial(_block_of, table), len(known.new), bundles
    return known.with_new(run.store, run.shuffle(step, *make))


def _placed(columns: Sequence[str], store: Store, x: _Places) -> Iterator[pa.Table]:
    group, places, blocks = x
    at = 0
    for part in group:
        own = slice(at, at + part.rows)
        at = own.stop
        wanted = blocks[own] >= 0
        if wanted.any():
            table = read_part(store, part, columns).filter(pa.array(wanted))
            table = table.append_column("place", pa.array(places[own][wanted]))
            yield table.append_column(PARTITION, pa.array(blocks[own][wanted].astype(np.int32)))


def _block_of(table: str, rows: pa.Table) -> Tables:
    return {table: rows.sort_by("place").drop_columns(["place", PARTITION])}


LEIDEN = "leiden"
ELEMENTS = ("entities", "relationships", "covariates")
_PAST_EDGES = pa.schema(
    [*((name, pa.uint64()) for name in ("id", "source_id", "target_id")), ("weight", pa.float64())]
)


@dataclass(frozen=True)
class Layout:
    """A hierarchy and where its elements are.

    blocks     for "entities", "relationships" and "covariates": in the order of `elements`
    node_keys  [N] first 64 bits of each entity's id, by node number
    edge_keys  [E] those of relationships, in the order of their ids; claim_keys: of claims about entities
    contents   hashes of what entities, relationships and claims say, in the order of `elements`
    """

    hierarchy: Hierarchy
    elements: Elements
    blocks: dict[str, ElementBlocks]
    node_keys: Any
    edge_keys: Keys
    claim_keys: Keys
    contents: tuple[Hashes, Hashes, Hashes]


def find_communities(run: Run, merged: Result, described: Result) -> Result:
    """Tables hierarchy (`saved`) and those of `graph.laid_out`.

    The graph is partitioned from the parent snapshot's communities, unless `run.afresh` names this step. The
    fingerprint does not hold the parent: an unchanged graph keeps its communities, wherever they came from.
    """
    options = run.settings.communities
    model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    groups = element_groups(merged, described)

    def compute() -> Result:
        graph = read_graph(run, merged, described)
        # igraph lets no other thread run while it works.
        with run.expecting_silence(60 + len(graph.source) / 10_000):
            hierarchy = communities(
                graph.n_nodes,
                graph.source,
                graph.target,
                graph.edges["weight"],
                options,
                graph.nodes["n_tokens"],
                run.settings.reports.context_tokens // 2,
                _past(run),
                graph.node_keys,
            )
        order, community = edge_order(hierarchy, graph.source, graph.target)
        _, claims = graph.arrange(hierarchy, order, community)
        blocks = graph.laid_out(run, "communities", groups, hierarchy.order, order, claims)
        counts = {
            "levels": {f"C{k}": len(hierarchy.at_level(k)) for k in range(hierarchy.n_levels)},
            "communities": hierarchy.n_communities,
            "modularity": round(hierarchy.modularity, 4),
            "components": graph.components_summary(),
        }
        tables = {"hierarchy": [saved(run, hierarchy, community_ids(hierarchy, graph.node_keys))]}
        tables |= blocks.tables
        return Result(tables, counts, made_from=blocks.made_from)

    depends_on = [*groups.values(), options, run.settings.reports.context_tokens, vocabulary]
    return run.step("communities", depends_on, compute)


def load_layout(run: Run, graph: IntegerGraph, found: Result) -> Layout:
    """The hierarchy that a step stored, and the arrays that planning reports needs."""
    hierarchy = restored(run, found)
    order, community = edge_order(hierarchy, graph.source, graph.target)
    elements, claims = graph.arrange(hierarchy, order, community)
    return Layout(
        hierarchy,
        elements,
        blocks_of(found, ELEMENTS),
        graph.node_keys,
        graph.edges["id"],
        graph.claims["id"][graph.about],
        (
            graph.nodes["content"][hierarchy.order],
            graph.edges["content"][order],
            graph.claims["content"][graph.about[claims]],
        ),
    )


def community_ids(hierarchy: Hierarchy, node_keys: Keys) -> list[str]:
    """The id of each community: a hash of its level and members. node_keys: see `Layout`."""
    h, members = hierarchy, node_keys[hierarchy.order]
    return [
        community_id(LEIDEN, int(h.level[c]), members[h.start[c] : h.end[c]]) for c in range(h.n_communities)
    ]


def _past(run: Run) -> Past | None:
    """The parent snapshot's graph and hierarchy; None where it was partitioned by other settings, or is
    damaged."""
    parent = run.parent
    if parent is None or "communities" not in parent.steps or "communities" in run.afresh:
        return None
    if parent.settings.get("communities") != run.settings.kept()["communities"]:
        return None
    before = run.of_parent["communities"]
    if not before.parts("hierarchy"):  # another version's tables
        return None
    described = [part for kind in KINDS.values() for part in run.of_parent["describe"].parts(kind)]
    if run.lost([*described, *before.parts("hierarchy")]):
        run.observer.note("The communities before are damaged: the graph is partitioned afresh.")
        return None
    then = run.of_parent["describe"].tables
    nodes = columns_of(run.store, then["entities"], IDS)
    edges = columns_of(run.store, then["relationships"], _PAST_EDGES)
    hierarchy = restored(run, before)
    if len(hierarchy.order) != nodes.num_rows:  # not the hierarchy of these tables, whatever came between
        return None
    return Past(hierarchy, nodes["id"].to_numpy(), *ends_of(nodes, edges), edges["weight"].to_numpy())


def element_groups(merged: Result, described: Result) -> dict[str, list[list[Part]]]:
    return {
        "entities": described.tables["entities"],
        "relationships": described.tables["relationships"],
        "covariates": merged.tables["covariates"],
    }


@dataclass(frozen=True)
class IntegerGraph:
    """The graph as integers.

    nodes, edges, claims  columns of entities, relationships and claims, in the order of their ids
    source, target        [E] ends of relationships, as places of entities
    about, subject        claims whose subject is an entity: their places, and that entity's
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

    @property
    def n_nodes(self) -> int:
        return len(self.node_keys)

    def arrange(self, hierarchy: Hierarchy, order: Ints, community: Ints) -> tuple[Elements, Ints]:
        return arrange(
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

    def laid_out(
        self,
        run: Run,
        step: str,
        groups: Mapping[str, list[list[Part]]],
        nodes: Ints,
        edges: Ints,
        claims: Ints | None,
    ) -> Result:
        """Tables of `lay_out` of entities, relationships and claims, in these orders. claims: None where only
        tables of communities are made of them."""
        of = {
            "entities": (nodes, self.nodes),
            "relationships": (edges, self.edges),
        }
        if claims is not None:
            of["covariates"] = self.about[claims], self.claims
        columns = IN_CONTEXTS if claims is not None else dict.fromkeys(IN_CONTEXTS, IN_TABLES)
        return joined(
            lay_out(run, step, kind, groups[kind], order, x["id"], x["content"], columns[kind])
            for kind, (order, x) in of.items()
        )

    def components_summary(self) -> dict[str, Any]:
        """Number of connected components, and the largest one's share of the nodes."""
        from graphrag_ray.graph.leiden import components

        if not self.n_nodes:
            return {"count": 0, "largest_share": 0.0}
        label = components(self.n_nodes, np.stack([self.source, self.target], axis=1))
        sizes = np.bincount(label)
        return {"count": len(sizes), "largest_share": round(float(sizes.max()) / self.n_nodes, 4)}


def read_graph(run: Run, merged: Result, described: Result) -> IntegerGraph:
    entities, relationships = (read_columns(run, described, kind) for kind in COLUMNS)
    claims = columns_of(run.store, merged.tables["covariates"], CLAIM_COLUMNS)
    tables = (entities, relationships, claims)
    nodes, edges, asserted = (
        {name: table[name].to_numpy() for name in table.column_names} for table in tables
    )
    source, target = ends_of(entities, relationships)
    about = np.flatnonzero(asserted["subject_entity_id"]).astype(np.int64)
    subject = places_of(nodes["id"], asserted["subject_entity_id"][about])
    return IntegerGraph(nodes, edges, asserted, source, target, about, subject)


_ARRAYS = ("order", "level", "parent", "start", "end", "last", "packed")


def arrays_of(hierarchy: Hierarchy) -> dict[str, Any]:
    return {name: getattr(hierarchy, name) for name in _ARRAYS}


def hierarchy_of(arrays: Mapping[str, Any], modularity: float = 0.0) -> Hierarchy:
    return Hierarchy(**{name: arrays[name] for name in _ARRAYS}, modularity=modularity)


def saved(run: Run, hierarchy: Hierarchy, ids: Sequence[str] = ()) -> list[Part]:
    """Parts of table hierarchy, of which `restored` makes it again. ids: of its communities."""
    named = pa.array(list(ids), pa.string())
    return write_arrays(run, "communities", "hierarchy", arrays_of(hierarchy) | {"id": named})


def restored(run: Run, found: Result) -> Hierarchy:
    """The hierarchy that a step stored."""
    arrays = read_arrays(run.store, found.parts("hierarchy"))
    return hierarchy_of(arrays, float(found.counts["modularity"]))


def stored_ids(run: Run, found: Result) -> list[str]:
    """The ids of its communities."""
    ids: list[str] = read_arrays(run.store, found.parts("hierarchy"), ["id"])["id"].tolist()
    return ids
