"""Communities on the driver, from integer arrays; then elements laid out in the order of the hierarchy.

Only integers come to the driver. The texts stay in storage and are rewritten once, so that the elements
of any community are a few slices of a few blocks (see `graph/hierarchy.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from graphrag_ray.base.ids import community_id
from graphrag_ray.base.index_settings import Communities
from graphrag_ray.corpus.tokens import vocabulary_for
from graphrag_ray.graph.communities import communities, edge_order
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.plan import Elements, arrange
from graphrag_ray.graph.seeds import Past
from graphrag_ray.graph.signatures import Hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.blocks import IN_CONTEXTS, IN_TABLES, ElementBlocks, blocks_of, lay_out
from graphrag_ray.indexing.stages.describe_stage import COLUMNS, KINDS, ends_of, read_columns
from graphrag_ray.indexing.stages.merge_stage import CLAIM_COLUMNS
from graphrag_ray.indexing.stages.short_ids import IDS, Keys, columns_of, places_of
from graphrag_ray.indexing.step_result import Result, joined
from graphrag_ray.store.parts import Part, read_table

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
    edge_keys  [E] those of relationships, in the order of their ids; claim_keys: of claims about entities;
               None where nobody asks
    contents   hashes of what entities, relationships and claims say, in the order of `elements`; None where
               nobody asks
    """

    hierarchy: Hierarchy
    elements: Elements
    blocks: dict[str, ElementBlocks]
    node_keys: Any
    contents: tuple[Hashes, Hashes, Hashes] | None = None
    edge_keys: Keys | None = None
    claim_keys: Keys | None = None


def find_communities(run: Run, merged: Result, described: Result) -> Result:
    """Tables hierarchy_nodes, hierarchy_communities (integers), community_ids, and those of `graph.laid_out`.

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
                graph.weight,
                options,
                graph.node_tokens,
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
        ids = pa.table({"id": pa.array(community_ids(hierarchy, graph.node_keys), pa.string())})
        names = {"community_ids": [run.write("communities", "community_ids", [ids])]}
        tables = saved(run, hierarchy) | names | blocks.tables
        return Result(tables, counts, made_from=blocks.made_from)

    depends_on = [*groups.values(), options, run.settings.reports.context_tokens, vocabulary]
    return run.step("communities", depends_on, compute)


def load_layout(run: Run, merged: Result, described: Result, found: Result) -> Layout:
    """The hierarchy and the arrays that planning reports needs, from what `find_communities` stored."""
    graph = read_graph(run, merged, described)
    hierarchy = restored(run, found)
    order, community = edge_order(hierarchy, graph.source, graph.target)
    elements, claims = graph.arrange(hierarchy, order, community)
    laid_out = blocks_of(found, ELEMENTS)
    claimed = graph.claim_content[graph.claim_rows[claims]]
    contents = graph.node_content[hierarchy.order], graph.edge_content[order], claimed
    about = graph.claim_keys[graph.claim_rows]
    return Layout(hierarchy, elements, laid_out, graph.node_keys, contents, graph.edge_keys, about)


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
    try:
        options = Communities.model_validate(parent.settings.get("communities", {}))
    except ValidationError:  # another version's settings
        return None
    if options != run.settings.communities:
        return None
    before = run.of_parent["communities"]
    stored = [part for name in ("hierarchy_nodes", "hierarchy_communities") for part in before.parts(name)]
    described = [part for kind in KINDS.values() for part in run.of_parent["describe"].parts(kind)]
    if run.lost([*described, *stored]):
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
    """The graph as integers: nodes and edges in the order of their ids; claims whose subject is an entity.
    claim_rows: the places of these among all claims; claim_keys, claim_content: of all."""

    n_nodes: int
    node_keys: Any
    edge_keys: Keys
    node_tokens: Ints
    source: Ints
    target: Ints
    weight: Any
    edge_tokens: Ints
    claim_rows: Ints
    claim_node: Ints
    claim_tokens: Ints
    claim_keys: Keys
    node_content: Hashes
    edge_content: Hashes
    claim_content: Hashes

    def arrange(self, hierarchy: Hierarchy, order: Ints, community: Ints) -> tuple[Elements, Ints]:
        return arrange(
            hierarchy,
            self.node_tokens,
            self.source,
            self.target,
            self.edge_tokens,
            order,
            community,
            self.claim_node,
            self.claim_tokens,
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
            "entities": (nodes, self.node_keys, self.node_content),
            "relationships": (edges, self.edge_keys, self.edge_content),
        }
        if claims is not None:
            of["covariates"] = self.claim_rows[claims], self.claim_keys, self.claim_content
        columns = IN_CONTEXTS if claims is not None else dict.fromkeys(IN_CONTEXTS, IN_TABLES)
        return joined(lay_out(run, step, kind, groups[kind], *x, columns[kind]) for kind, x in of.items())

    def components_summary(self) -> dict[str, Any]:
        """Number of connected components, and the largest one's share of the nodes."""
        from graphrag_ray.graph.leiden import components

        if not self.n_nodes:
            return {"count": 0, "largest_share": 0.0}
        label = components(self.n_nodes, np.stack([self.source, self.target], axis=1))
        sizes = np.bincount(label)
        return {"count": len(sizes), "largest_share": round(float(sizes.max()) / self.n_nodes, 4)}


def read_graph(run: Run, merged: Result, described: Result) -> IntegerGraph:
    entities, edges = (read_columns(run, described, kind) for kind in COLUMNS)
    node_keys = entities["id"].to_numpy()
    source, target = ends_of(entities, edges)
    claims = columns_of(run.store, merged.tables["covariates"], CLAIM_COLUMNS)
    subjects = claims["subject_entity_id"].to_numpy()
    matched = np.flatnonzero(subjects)
    return IntegerGraph(
        n_nodes=entities.num_rows,
        node_keys=node_keys,
        edge_keys=edges["id"].to_numpy(),
        node_tokens=entities["n_tokens"].to_numpy(),
        source=source,
        target=target,
        weight=edges["weight"].to_numpy(),
        edge_tokens=edges["n_tokens"].to_numpy(),
        claim_rows=matched.astype(np.int64),
        claim_node=places_of(node_keys, subjects[matched]),
        claim_tokens=claims["n_tokens"].to_numpy()[matched],
        node_content=entities["content"].to_numpy(),
        edge_content=edges["content"].to_numpy(),
        claim_keys=claims["id"].to_numpy(),
        claim_content=claims["content"].to_numpy(),
    )


def saved(run: Run, hierarchy: Hierarchy) -> dict[str, list[list[Part]]]:
    """Tables hierarchy_nodes and hierarchy_communities, of which `restored` makes it again."""
    nodes = pa.table({"node": hierarchy.order})
    names = ("level", "parent", "start", "end", "last", "packed")
    rows = pa.table({name: getattr(hierarchy, name) for name in names})
    tables = {"hierarchy_nodes": nodes, "hierarchy_communities": rows}
    return {name: [run.write("communities", name, [table])] for name, table in tables.items()}


def restored(run: Run, found: Result) -> Hierarchy:
    """The hierarchy that `find_communities` stored."""
    nodes = read_table(run.store, found.parts("hierarchy_nodes"), None, pa.schema([("node", pa.int64())]))
    names = ("level", "parent", "start", "end", "last")
    of = pa.schema([(name, pa.int64()) for name in names] + [("packed", pa.bool_())])
    rows = read_table(run.store, found.parts("hierarchy_communities"), None, of)
    arrays: dict[str, Any] = {name: rows[name].to_numpy() for name in names}
    packed = rows["packed"].to_numpy().astype(np.bool_)
    modularity = float(found.counts["modularity"])
    return Hierarchy(order=nodes["node"].to_numpy(), packed=packed, modularity=modularity, **arrays)
