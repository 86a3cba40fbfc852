"""The elements of a graph as integer arrays in the order of its hierarchy.

Planning a report needs to know how long every element is and in which order elements go into a
context, never what they say. So these arrays are all that the driver holds: some 60 bytes an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphrag_ray.graph.hierarchy import Hierarchy, Ints


@dataclass(frozen=True)
class Elements:
    """Nodes by place, edges sorted by community, claims sorted by the place of their subject.

    Token numbers are `context.record_tokens` of each record: its line without the local number.

    node_tokens      [N] by place
    edge_source      [E] place of one end
    edge_target      [E] place of the other
    edge_tokens      [E]
    edge_degree      [E] combined degree: the two ends' degrees in the whole graph, added (paper 3.1.5)
    edge_id_rank     [E] rank of the relationship's id among all of them; breaks ties
    edge_community   [E] ascending: the smallest community that holds both ends, -1 where none does
    claim_place      [K] ascending: place of the subject; claims without a matched subject are not here
    claim_tokens     [K]

    Raises ValueError where lengths or orders do not agree.
    """

    node_tokens: Ints
    edge_source: Ints
    edge_target: Ints
    edge_tokens: Ints
    edge_degree: Ints
    edge_id_rank: Ints
    edge_community: Ints
    claim_place: Ints
    claim_tokens: Ints

    def __post_init__(self) -> None:
        edges = (self.edge_target, self.edge_tokens, self.edge_degree, self.edge_id_rank, self.edge_community)
        if any(len(column) != len(self.edge_source) for column in edges):
            raise ValueError("the edge arrays differ in length")
        if len(self.claim_place) != len(self.claim_tokens):
            raise ValueError("the claim arrays differ in length")
        for name in ("edge_community", "claim_place"):
            if np.any(np.diff(getattr(self, name)) < 0):
                raise ValueError(f"{name} must be ascending")

    @property
    def n_nodes(self) -> int:
        return len(self.node_tokens)

    @property
    def n_edges(self) -> int:
        return len(self.edge_source)


def arrange(
    hierarchy: Hierarchy,
    node_tokens: Ints,
    source: Ints,
    target: Ints,
    edge_tokens: Ints,
    edge_order: Ints,
    edge_community: Ints,
    claim_node: Ints,
    claim_tokens: Ints,
) -> tuple[Elements, Ints]:
    """Bring a graph's elements into the order of its hierarchy.

    node_tokens, claim_node   by node number (nodes sorted by id), as are source and target
    source, target            [E] edges sorted by relationship id
    edge_order                [E] permutation that sorts edges by community, of `communities.edge_order`
    edge_community            [E] the community of each edge, in the order of `source`

    Returns the elements and the permutation that was applied to the claims. Edge e of the elements is
    edge edge_order[e] of the arguments, the node at place p is hierarchy.order[p].
    """
    place = np.empty(len(hierarchy.order), dtype=np.int64)
    place[hierarchy.order] = np.arange(len(hierarchy.order))
    ends = np.concatenate([source, target])
    degree = np.bincount(ends, minlength=len(hierarchy.order))
    claim_order = np.argsort(place[claim_node], kind="stable")
    elements = Elements(
        node_tokens=node_tokens[hierarchy.order],
        edge_source=place[source[edge_order]],
        edge_target=place[target[edge_order]],
        edge_tokens=edge_tokens[edge_order],
        edge_degree=(degree[source] + degree[target])[edge_order],
        edge_id_rank=np.asarray(edge_order, dtype=np.int64),
        edge_community=edge_community[edge_order],
        claim_place=place[claim_node][claim_order],
        claim_tokens=claim_tokens[claim_order],
    )
    return elements, claim_order
