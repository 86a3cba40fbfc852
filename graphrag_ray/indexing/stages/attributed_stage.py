"""Build the hierarchy of attributed communities (`graph/attributed_communities.py`).

Levels are clustered on the driver. Before the next level is clustered, a report on each cluster is written
and embedded. Entities are clustered in a separate step, which makes no model calls. Each level is stored with
its edges, from which an update starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id
from graphrag_ray.base.stored_settings import snapshot_settings, stored_section
from graphrag_ray.graph import attributed_communities
from graphrag_ray.graph.attributed_communities import ClusteredLevel, LevelNodes
from graphrag_ray.graph.communities import sort_edges_by_community
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.graph.leiden import Edges, canonical_edges, modularity
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.report_schedule import HierarchySchedule, LevelSchedule
from graphrag_ray.graph.seeded_partition import PreviousPartition
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import communities_stage, reports_stage
from graphrag_ray.indexing.stages.communities_stage import Layout
from graphrag_ray.indexing.stages.document_periods import Periods, entity_periods
from graphrag_ray.indexing.stages.hierarchy_tables import GraphHierarchy, LevelReports, load_vectors
from graphrag_ray.indexing.stages.reports_stage import ReportWork
from graphrag_ray.indexing.stages.short_ids import Keys, id_keys, read_arrays, write_arrays
from graphrag_ray.indexing.step_result import Result, count_rows
from graphrag_ray.store.parts import Part

KIND = HIERARCHIES["attributed"]
CLUSTER_STEP, REPORT_STEP = "entity_clusters", "attributed"


def build_attributed(run: Run, corpus: Result, graph: ExtractedGraph | None) -> GraphHierarchy:
    """Build the communities and their reports."""
    assert graph is not None, "declared as a hierarchy of entities"
    groups = communities_stage.element_groups(graph.merged, graph.descriptions)
    integers = communities_stage.read_graph(run, graph.merged, graph.descriptions)
    builder = _Builder(run, groups, integers, graph.embedded, corpus)
    entity_clusters = builder.cluster_entities()
    load_first = partial(communities_stage.load_layout, run, integers, entity_clusters)
    about = reports_stage.describe_corpus(run, corpus, load_first)
    result = builder.build_levels(entity_clusters)
    counts = {name: result.counts[name] for name in ("levels", "modularity", "composed_reports")}
    load = cache(partial(communities_stage.load_layout, run, integers, result))
    ids = read_arrays(run.store, result.parts("hierarchy"), ["id"])["id"].tolist()
    return GraphHierarchy(KIND, corpus, load, ids, result, (about, result), counts)


@dataclass(frozen=True)
class _Builder:
    """Builds the hierarchy from the graph and the embeddings of its entities."""

    run: Run
    groups: dict[str, list[list[Part]]]
    graph: communities_stage.IntegerGraph
    embedded: Result
    corpus: Result

    def cluster_entities(self) -> Result:
        """Return the tables `levels` and `hierarchy` of the first level, and all elements in blocks.

        The blocks follow the order of the hierarchy.
        """
        run, graph = self.run, self.graph

        def compute() -> Result:
            n_nodes = len(graph.node_keys)
            nodes = LevelNodes(
                attributed_communities.unit_edges(n_nodes, graph.source, graph.target),
                load_vectors(run, self.embedded.parts("embeddings_entity"), graph.node_keys),
                graph.nodes["n_tokens"],
                graph.node_keys,
                *_previous_level(run, CLUSTER_STEP, 0),
            )
            level = self._cluster(nodes)
            hierarchy, _ = attributed_communities.stack_levels(n_nodes, [level.cluster], [level.packed])
            order, _, claims = graph.arrange(hierarchy)
            tables = _write_levels(run, [level], [graph.node_keys])
            tables["hierarchy"] = [communities_stage.write_hierarchy(run, hierarchy)]
            blocks = graph.write_blocks(
                run, CLUSTER_STEP, self.groups, hierarchy.node_at_place, order, claims
            )
            counts = {"modularity": 0.0, "clusters": len(level.packed)}
            return Result(tables | blocks.tables, counts, made_from=blocks.made_from)

        settings = run.settings
        depends_on = [*self.groups.values(), self.embedded, settings.attributed, settings.communities]
        return run.step(CLUSTER_STEP, [*depends_on, settings.reports.context_tokens], compute)

    def build_levels(self, entity_clusters: Result) -> Result:
        """Write reports level by level, and cluster each level into the next.

        Returns the tables `levels` (above the first), `hierarchy`, `reports` and `failures`, and blocks of
        `TABLE_COLUMNS`.
        """
        run, graph, options = self.run, self.graph, self.run.settings.attributed
        layout = communities_stage.load_layout(run, graph, entity_clusters)
        requests = ReportWork.for_reports(run, layout.blocks, 0.0)

        def compute() -> Result:
            levels = [_read_level(run, entity_clusters, 0)[0]]
            reports = LevelReports(KIND, "community {} of the attributed hierarchy")
            keys, tokens = graph.node_keys, graph.nodes["n_tokens"]
            cluster_of = np.arange(len(keys))
            vectors = load_vectors(run, self.embedded.parts("embeddings_entity"), keys)
            all_keys: list[Keys] = []
            periods = None
            if requests.shows_period:
                of_entities = entity_periods(run, self.corpus, layout.blocks["entities"].parts)
                periods = of_entities.take(np.argsort(layout.hierarchy.node_at_place))
            while True:
                level = levels[-1]
                cluster_of = level.cluster[cluster_of]
                members = _members(cluster_of, int(cluster_of.max(initial=-1)) + 1)
                height = len(levels) - 1  # Counted from below, because an update may add or remove levels.
                reports.begin([community_id(KIND.name, height, graph.node_keys[rows]) for rows in members])
                if periods:
                    periods = periods.merge(level.cluster, len(members))
                self._write_level(requests, level, reports, layout, periods)
                children = _members(level.cluster, len(reports.ids[-1]))
                vectors = reports.embed(run, REPORT_STEP, children, vectors)
                keys = id_keys(pa.array(reports.ids[-1], pa.string()))
                tokens = np.bincount(level.cluster, tokens, len(level.packed)).astype(np.int64)
                if len(levels) == options.max_levels:
                    break
                previous = _previous_level(run, REPORT_STEP, height)
                nodes = LevelNodes(level.links, vectors, tokens, keys, *previous, level.neighbours)
                above = self._cluster(nodes)
                if not attributed_communities.has_next_level(len(keys), len(above.packed), options):
                    break
                levels.append(above)
                all_keys.append(keys)
            return self._write_result(requests, levels, reports, all_keys)

        settings = run.settings
        depends_on = [entity_clusters, *requests.depends_on, settings.reports, settings.embeddings]
        depends_on += [options, settings.communities]
        if requests.shows_period:
            depends_on.append(self.corpus.tables["documents"])
        return run.step(REPORT_STEP, depends_on, compute, requests.work.name)

    def _cluster(self, nodes: LevelNodes) -> ClusteredLevel:
        settings = self.run.settings
        options, pack_tokens = settings.attributed, settings.reports.context_tokens // 2
        # igraph blocks all other threads while it works.
        with self.run.expecting_silence(60 + len(nodes.links) / 1_000):
            return attributed_communities.cluster_level(nodes, options, settings.communities, pack_tokens)

    def _write_level(
        self,
        requests: ReportWork,
        level: ClusteredLevel,
        reports: LevelReports,
        layout: Layout,
        periods: Periods | None,
    ) -> None:
        run, options, height = self.run, self.run.settings.reports, len(reports.ids) - 1
        if height:
            children = _members(level.cluster, len(reports.ids[-1]))
            tokens = reports.record_tokens(height - 1)
            schedule = partial(LevelSchedule, children, tokens, options.context_tokens)
            reports.write(run, requests.work, schedule, schedule().without_inputs, periods=periods)
        else:
            _, (numbers,) = attributed_communities.stack_levels(
                len(level.cluster), [level.cluster], [level.packed]
            )
            limits = options.context_tokens, options.max_claims_per_entity
            finest = partial(HierarchySchedule, layout.hierarchy, layout.elements, *limits)
            reports.write(run, requests.work, finest, numbers=numbers, periods=periods)

    def _write_result(
        self,
        requests: ReportWork,
        levels: Sequence[ClusteredLevel],
        reports: LevelReports,
        keys: Sequence[Keys],
    ) -> Result:
        run, graph, n_nodes = self.run, self.graph, len(self.graph.node_keys)
        clusters, packed = [level.cluster for level in levels], [level.packed for level in levels]
        hierarchy, communities = attributed_communities.stack_levels(n_nodes, clusters, packed)
        tables, ids = reports.write_tables(run, REPORT_STEP, requests.work, hierarchy.level, communities)
        order, _ = sort_edges_by_community(hierarchy, graph.source, graph.target)
        blocks = graph.write_blocks(run, REPORT_STEP, self.groups, hierarchy.node_at_place, order, None)
        tables |= _write_levels(run, levels[1:], keys) | blocks.tables
        tables["hierarchy"] = [communities_stage.write_hierarchy(run, hierarchy, ids)]
        edges = canonical_edges(n_nodes, graph.source, graph.target, graph.edges["weight"])
        counts = {
            "levels": {f"C{k}": len(hierarchy.communities_at_level(k)) for k in range(hierarchy.n_levels)},
            "communities": hierarchy.n_communities,
            "modularity": round(modularity(hierarchy.community_of(0), edges), 4),
            "reports": count_rows(tables["reports"]),
            "failed_reports": len(reports.failed),
            "composed_reports": reports.composed,
        }
        return Result(tables, counts, reports.nothing_to_retry, blocks.made_from)


def _members(label: Ints, n: int) -> list[Ints]:
    """Return the members of each of n groups."""
    order = np.argsort(label, kind="stable")
    return np.split(order, np.cumsum(np.bincount(label, minlength=n))[:-1]) if n else []


def _write_levels(
    run: Run, levels: Sequence[ClusteredLevel], keys: Sequence[Keys]
) -> dict[str, list[list[Part]]]:
    """Write the table `levels` with a group per level. `keys` are the keys of each level's nodes."""
    groups = []
    for level, level_keys in zip(levels, keys, strict=True):
        centres = np.zeros((0, 0), np.float32) if level.centres is None else level.centres
        arrays = {
            "key": level_keys,
            "ends": level.edges.ends.ravel(),
            "weight": level.edges.weight,
            "cluster": level.cluster,
            "cluster_packed": level.packed,
            "neighbours": np.array([level.neighbours]),
            "centres": centres.ravel(),
            "n_centres": np.array([len(centres)]),
        }
        arrays |= communities_stage.hierarchy_arrays(level.inner)
        groups.append(write_arrays(run, REPORT_STEP, "levels", arrays))
    return {"levels": groups}


def _read_level(run: Run, result: Result, index: int) -> tuple[ClusteredLevel, Keys]:
    """Read a level that `_write_levels` wrote, and the keys of its nodes."""
    a = read_arrays(run.store, result.tables["levels"][index])
    n_centres, neighbours = int(a["n_centres"][0]), int(a["neighbours"][0])
    centres = a["centres"].reshape(n_centres, -1) if n_centres else None
    edges, inner = Edges(a["ends"].reshape(-1, 2), a["weight"]), communities_stage.hierarchy_from_arrays(a)
    cluster, packed = a["cluster"], a["cluster_packed"]
    return ClusteredLevel(edges, inner, cluster, packed, neighbours, centres), a["key"]


def _previous_level(
    run: Run, step: str, index: int
) -> tuple[PreviousPartition | None, int | None, Vectors | None]:
    """Read a level of the parent snapshot, its number of neighbours and its centres.

    All are None if there is no such level, if it is damaged, or if the settings differ.
    """
    parent, settings, no_level = run.parent, snapshot_settings(run.settings), (None, None, None)
    if parent is None or step not in parent.steps or {CLUSTER_STEP, REPORT_STEP} & run.forced_steps:
        return no_level
    if any(stored_section(parent.settings, name) != settings[name] for name in ("attributed", "communities")):
        return no_level
    previous = run.parent_results[step]
    levels = previous.tables.get("levels", [])
    if index >= len(levels) or run.has_lost_parts(levels[index]):
        return no_level
    level, keys = _read_level(run, previous, index)
    if len(level.inner.node_at_place) != len(keys):
        return no_level
    source, target = level.edges.ends.T
    partition = PreviousPartition(level.inner, keys, source, target, level.edges.weight)
    return partition, level.neighbours, level.centres
