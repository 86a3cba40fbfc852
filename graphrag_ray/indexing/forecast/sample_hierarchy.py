"""The communities of a sample's graph and the contexts of their reports: planned as a run plans them,
with lengths that are assumed instead of texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.graph.communities import communities, edge_order
from graphrag_ray.graph.plan import HEADING_TOKENS, arrange
from graphrag_ray.graph.schedule import Schedule
from graphrag_ray.indexing.forecast.sample import Ints, SampleGraph

LINE_TOKENS = 3
"""Commas, quotes and the line's end of a record in a context."""
MEAN_HEADINGS = 36
"""What the headings of the usual two sections really take of HEADING_TOKENS."""


@dataclass(frozen=True)
class Lengths:
    """Tokens: of a description as extracted, of one that replaces several, of a report."""

    entity: float
    relationship: float
    summary: float
    report: float


@dataclass(frozen=True)
class Shape:
    """communities, levels: of the graph; context_tokens: of a report's context, on average."""

    communities: int
    levels: int
    context_tokens: float


def shape_of(graph: SampleGraph, settings: Settings, lengths: Lengths, edges_per_edge: float) -> Shape:
    """edges_per_edge: relationships that the forecast has among the same entities for each in the graph;
    each is counted as so much longer."""
    n = len(graph.entities.descriptions)
    node_tokens = _record_tokens(graph.entities.descriptions, graph.entities.title_tokens, lengths, "entity")
    edge_tokens = _record_tokens(
        graph.relationships.descriptions, graph.relationships.title_tokens, lengths, "relationship"
    )
    budget = settings.reports.context_tokens
    hierarchy = communities(
        n, graph.source, graph.target, graph.weight, settings.communities, node_tokens, budget // 2
    )
    order, community = edge_order(hierarchy, graph.source, graph.target)
    none = np.zeros(0, dtype=np.int64)
    longer = np.rint(edge_tokens * edges_per_edge).astype(np.int64)
    elements, _ = arrange(
        hierarchy, node_tokens, graph.source, graph.target, longer, order, community, none, none
    )
    schedule = Schedule(hierarchy, elements, budget)
    total = 0
    while not schedule.finished:
        for plan in schedule.ready():
            total += max(0, plan.tokens - HEADING_TOKENS + MEAN_HEADINGS)
            schedule.done(plan.community, round(lengths.report))
    c = hierarchy.n_communities
    return Shape(c, hierarchy.n_levels, total / c if c else 0.0)


def _record_tokens(descriptions: Ints, titles: Ints, lengths: Lengths, kind: str) -> Ints:
    single = lengths.entity if kind == "entity" else lengths.relationship
    text = np.where(descriptions > 1, lengths.summary, np.where(descriptions == 1, single, 0.0))
    return np.rint(titles + text + LINE_TOKENS).astype(np.int64)
