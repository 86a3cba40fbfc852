"""Attributed communities (`graph/attributed.py`) as a run builds them: levels are clustered on the driver;
between two of them a report is written on each cluster of the lower one, and embedded.

The entities are clustered in a step of their own, which asks no model. Each level is kept with its edges: an
update starts from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ValidationError

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id
from graphrag_ray.base.index_settings import Attributed, Communities
from graphrag_ray.graph.attributed import (
    ClusteredLevel,
    NodesOfLevel,
    clustered,
    goes_on,
    linked,
    one_hierarchy,
)
from graphrag_ray.graph.communities import edge_order
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.leiden import Edges, canonical, modularity
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.schedule import ReportsAlone, Schedule
from graphrag_ray.graph.seeds import Past
from graphrag_ray.graph.spectral import MOST_NODES
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.about_stage import tell_about
from graphrag_ray.indexing.stages.blocks import blocks_of
from graphrag_ray.indexing.stages.communities_stage import (
    IntegerGraph,
    Layout,
    element_groups,
    read_graph,
    restored,
    saved,
)
from graphrag_ray.indexing.stages.graph_hierarchy import GraphHierarchy, ReportsSoFar, vectors_of
from graphrag_ray.indexing.stages.reports_stage import (
    PART_ROWS,
    ReportSource,
    ReportWork,
    failures_of,
    report_tables,
    settled,
)
from graphrag_ray.indexing.stages.short_ids import prefixes_of
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.parts import Part, read_part, read_table

KIND = HIERARCHIES["attributed"]
FIRST, REST = "entity_clusters", "attributed"
"""The steps."""
_LEVEL = ("level_edges", "level_clusters", "level_packed", "inner_nodes", "inner_communities")
"""Tables of a step, a group of parts a level: what was clustered, the cluster of each node, whether each
cluster is packed, and how the clustering divided the nodes."""


def build_attributed(run: Run, corpus: Result, graph: ExtractedGraph | None) -> GraphHierarchy:
    """The communities and their reports; before the first report, what the corpus is about."""
    assert graph is not None, "declared to be over entities"
    groups = element_groups(graph.merged, graph.described)
    own = _Graph(run, groups, read_graph(run, graph.merged, graph.described), graph.embedded)
    found = own.cluster_entities()
    about = tell_about(run, corpus, partial(own.layout, found))
    rest = own.write(found)
    ids = _columns(run, rest, "community_ids", 0, ["id"])[0].tolist()
    counts = {name: rest.counts[name] for name in ("levels", "modularity")}
    return GraphHierarchy(KIND, cache(partial(own.layout, rest)), ids, rest, (about, rest), counts)


@dataclass(frozen=True)
class _Graph:
    """groups: of its elements' parts; integers: of the same; embedded: table embeddings_entity."""

    run: Run
    groups: dict[str, list[list[Part]]]
    integers: IntegerGraph
    embedded: Result

    def cluster_entities(self) -> Result:
        """Tables of the first level, hierarchy_nodes and hierarchy_communities (of that level alone), and the
        elements in its order: block_entities, block_relationships, block_covariates."""
        run, graph = self.run, self.integers

        def compute() -> Result:
            nodes = NodesOfLevel(
                linked(graph.n_nodes, graph.source, graph.target),
                vectors_of(run, self.embedded.parts("embeddings_entity"), graph.node_keys),
                graph.node_tokens,
                graph.node_keys,
                *_past(run, FIRST, 0),
            )
            level = self._clustered(nodes)
            hierarchy, _ = one_hierarchy(graph.n_nodes, [level.cluster], [level.packed])
            order, community = edge_order(hierarchy, graph.source, graph.target)
            _, claims = graph.arrange(hierarchy, order, community)
            tables = _kept(run, [level], [graph.node_keys]) | saved(run, hierarchy)
            blocks = graph.laid_out(run, FIRST, self.groups, hierarchy.order, order, claims)
            counts = {"modularity": 0.0, "clusters": len(level.packed), "neighbours": [level.neighbours]}
            return Result(tables | blocks.tables, counts, made_from=blocks.made_from)

        depends_on = [
            *self.groups.values(),
            self.embedded,
            run.settings.attributed,
            run.settings.communities,
            run.settings.reports.context_tokens,
        ]
        return run.step(FIRST, depends_on, compute)

    def layout(self, of: Result) -> Layout:
        """The hierarchy that a step stored, and where its elements are."""
        graph, hierarchy = self.integers, restored(self.run, of)
        order, community = edge_order(hierarchy, graph.source, graph.target)
        elements, _ = graph.arrange(hierarchy, order, community)
        return Layout(hierarchy, elements, blocks_of(of, self.groups), graph.node_keys)

    def write(self, found: Result) -> Result:
        """Tables of all levels above the first, of the hierarchy of all, reports, community_ids, failures;
        and block_entities and block_relationships, as far as tables of communities need them."""
        run, graph, options = self.run, self.integers, self.run.settings.attributed
        layout = self.layout(found)
        asking = ReportWork.of(run, layout.blocks, 0.0)

        def compute() -> Result:
            levels, so_far = [_level(run, found, 0)], ReportsSoFar(KIND)
            keys, tokens, of_node = graph.node_keys, graph.node_tokens, np.arange(graph.n_nodes)
            vectors = vectors_of(run, self.embedded.parts("embeddings_entity"), graph.node_keys)
            all_keys: list[npt.NDArray[np.uint64]] = []
            while True:
                level = levels[-1]
                of_node = level.cluster[of_node]
                members = _grouped(of_node, int(of_node.max(initial=-1)) + 1)
                height = len(levels) - 1  # those below are counted, since those above may come and go
                so_far.begin([community_id(KIND.name, height, graph.node_keys[own]) for own in members])
                self._write_level(asking, level, so_far, layout)
                vectors = so_far.embed(run, REST, _grouped(level.cluster, len(so_far.ids[-1])), vectors)
                keys = prefixes_of(pa.array(so_far.ids[-1], pa.string()))
                tokens = np.bincount(level.cluster, tokens, len(level.packed)).astype(np.int64)
                if len(levels) == options.max_levels:
                    break
                past = _past(run, REST, height)
                above = self._clustered(NodesOfLevel(level.links, vectors, tokens, keys, *past))
                if not goes_on(len(keys), len(above.packed), options):
                    break
                levels.append(above)
                all_keys.append(keys)
            return self._stored(asking, levels, so_far, all_keys)

        settings = run.settings
        depends_on = [found, *asking.depends_on, settings.reports, settings.embeddings]
        depends_on += [options, settings.communities]
        return run.step(REST, depends_on, compute, asking.work.name)

    def _clustered(self, nodes: NodesOfLevel) -> ClusteredLevel:
        settings = self.run.settings
        options, pack_tokens = settings.attributed, settings.reports.context_tokens // 2
        if options.clustering == "spectral" and len(nodes.keys) > MOST_NODES:
            self.run.observer.note(
                f"Spectral clustering takes up to {MOST_NODES:,} nodes: Leiden clusters a level of "
                f"{len(nodes.keys):,}."
            )
            options = options.model_copy(update={"clustering": "leiden"})
        # igraph lets no other thread run while it works.
        with self.run.expecting_silence(60 + len(nodes.links) / 1_000):
            return clustered(nodes, options, settings.communities, pack_tokens)

    def _write_level(
        self, asking: ReportWork, level: ClusteredLevel, so_far: ReportsSoFar, layout: Layout
    ) -> None:
        run, options = self.run, self.run.settings.reports
        height, ids = len(so_far.ids) - 1, so_far.ids[-1]
        lacking: list[int] = []
        place = None
        if height:
            children, tokens = _grouped(level.cluster, len(ids)), so_far.record_tokens(height - 1)
            lacking = ReportsAlone(children, tokens, options.context_tokens).without

            def plan() -> ReportSource:
                schedule = ReportsAlone(children, tokens, options.context_tokens)
                below = so_far.below()
                return ReportSource(
                    schedule, lambda c: _called(height, ids[c]), ids, None, below, KIND.section
                )
        else:
            _, (place,) = one_hierarchy(len(level.cluster), [level.cluster], [level.packed])
            by_community = [""] * len(ids)
            for cluster, community in enumerate(place.tolist()):
                by_community[community] = ids[cluster]

            def plan() -> ReportSource:
                schedule = Schedule(
                    layout.hierarchy, layout.elements, options.context_tokens, options.max_claims_per_entity
                )
                return ReportSource(schedule, lambda c: _called(0, by_community[c]), by_community)

        so_far.take(settled(run, asking.work, plan), lambda c: _called(height, ids[c]), lacking, place)

    def _stored(
        self,
        asking: ReportWork,
        levels: Sequence[ClusteredLevel],
        so_far: ReportsSoFar,
        keys: Sequence[npt.NDArray[np.uint64]],
    ) -> Result:
        run, graph = self.run, self.integers
        clusters, packed = [x.cluster for x in levels], [x.packed for x in levels]
        hierarchy, places = one_hierarchy(graph.n_nodes, clusters, packed)
        ids = [""] * hierarchy.n_communities
        for of_level, place in zip(so_far.ids, places, strict=True):
            for cluster, community in enumerate(place.tolist()):
                ids[community] = of_level[cluster]
        reports = so_far.by_community(places)
        order, community = edge_order(hierarchy, graph.source, graph.target)
        blocks = graph.laid_out(run, REST, self.groups, hierarchy.order, order, None)
        tables = _kept(run, levels[1:], keys) | saved(run, hierarchy) | blocks.tables
        written = report_tables(reports, hierarchy.level, ids)
        parts = run.write(REST, "reports", written, max_rows=PART_ROWS)
        tables["reports"] = [[part] for part in parts]
        tables["community_ids"] = [
            run.write(REST, "community_ids", [pa.table({"id": pa.array(ids, pa.string())})])
        ]
        tables["failures"] = [failures_of(run, asking.work, so_far.failed)]
        of_entity = hierarchy.community_of(0)
        edges = canonical(graph.n_nodes, graph.source, graph.target, graph.weight)
        counts = {
            "levels": {f"C{k}": len(hierarchy.at_level(k)) for k in range(hierarchy.n_levels)},
            "communities": hierarchy.n_communities,
            "modularity": round(modularity(of_entity, edges), 4),
            "reports": len(reports),
            "failed_reports": len(so_far.failed),
            "neighbours": [level.neighbours for level in levels[1:]],
        }
        return Result(tables, counts, so_far.nothing_to_retry, blocks.made_from)


def _called(height: int, id_: str) -> str:
    above = f", {height} above the finest level" if height else ""
    return f"community {id_} of hierarchy {KIND.name}{above}"


def _grouped(label: Ints, n: int) -> list[Ints]:
    """[n] the members of each group."""
    order = np.argsort(label, kind="stable")
    return np.split(order, np.cumsum(np.bincount(label, minlength=n))[:-1]) if n else []


def _kept(
    run: Run, levels: Sequence[ClusteredLevel], keys: Sequence[npt.NDArray[np.uint64]]
) -> dict[str, list[list[Part]]]:
    """The tables of `_LEVEL`; level_keys, the names of the nodes; level_centres, by which near ones were
    found."""
    tables: dict[str, list[list[Part]]] = {name: [] for name in (*_LEVEL, "level_keys", "level_centres")}
    for level, own in zip(levels, keys, strict=True):
        of_inner = saved(run, level.inner)
        tables["inner_nodes"] += of_inner["hierarchy_nodes"]
        tables["inner_communities"] += of_inner["hierarchy_communities"]
        one, other = level.edges.ends.T
        columns = {
            "level_edges": {"source": one, "target": other, "weight": level.edges.weight},
            "level_clusters": {"cluster": level.cluster},
            "level_packed": {"packed": level.packed},
            "level_keys": {"key": own},
        }
        centres = level.centres
        tables["level_centres"].append(
            [] if centres is None else run.write(REST, "level_centres", [pa.table({"centre": list(centres)})])
        )
        for name, arrays in columns.items():
            tables[name].append(run.write(REST, name, [pa.table(arrays)]))
    return tables


def _level(run: Run, found: Result, at: int) -> ClusteredLevel:
    """What `_kept` stored."""
    source, target, weight = _columns(run, found, "level_edges", at, ("source", "target", "weight"))
    (cluster,) = _columns(run, found, "level_clusters", at, ("cluster",))
    (packed,) = _columns(run, found, "level_packed", at, ("packed",))
    edges = Edges(np.stack([source, target], axis=1).astype(np.int64), weight.astype(np.float64))
    neighbours = found.counts["neighbours"][at]
    whole = packed.astype(np.bool_)
    return ClusteredLevel(edges, _inner(run, found, at), cluster, whole, neighbours, _centres(run, found, at))


def _centres(run: Run, found: Result, at: int) -> Vectors | None:
    tables = [read_part(run.store, part) for part in found.tables["level_centres"][at]]
    if not tables:
        return None
    column = pa.concat_tables(tables)["centre"].combine_chunks()
    centres: Vectors = column.flatten().to_numpy().reshape(len(column), -1)
    return centres


def _inner(run: Run, found: Result, at: int) -> Hierarchy:
    of = {f"hierarchy_{name}": [found.tables[f"inner_{name}"][at]] for name in ("nodes", "communities")}
    return restored(run, Result(of, {"modularity": 0.0}))


_TYPES = {"source": pa.int64(), "target": pa.int64(), "weight": pa.float64(), "cluster": pa.int64()}
_TYPES |= {"packed": pa.bool_(), "key": pa.uint64(), "id": pa.string()}


def _columns(run: Run, found: Result, name: str, at: int, columns: Sequence[str]) -> list[Any]:
    of = pa.schema([(column, _TYPES[column]) for column in columns])
    table = read_table(run.store, found.tables[name][at], list(columns), of)
    return [table[column].to_numpy() for column in columns]


def _past(run: Run, step: str, at: int) -> tuple[Past | None, int | None, Vectors | None]:
    """A level of the parent snapshot, and how many neighbours were linked; None where there is none, it was
    made by other settings, or is damaged."""
    parent, nothing = run.parent, (None, None, None)
    if parent is None or step not in parent.steps or {FIRST, REST} & run.afresh:
        return nothing
    try:
        options = Attributed.model_validate(parent.settings.get("attributed", {}))
        leiden = Communities.model_validate(parent.settings.get("communities", {}))
    except ValidationError:  # another version's settings
        return nothing
    if (options, leiden) != (run.settings.attributed, run.settings.communities):
        return nothing
    before = run.of_parent[step]
    names = ("level_keys", "level_edges", "inner_nodes", "inner_communities", "level_centres")
    if any(at >= len(before.tables.get(name, [])) for name in names):
        return nothing
    if run.lost([part for name in names for part in before.tables[name][at]]):
        return nothing
    (then,) = _columns(run, before, "level_keys", at, ("key",))
    source, target, weight = _columns(run, before, "level_edges", at, ("source", "target", "weight"))
    hierarchy = _inner(run, before, at)
    if len(hierarchy.order) != len(then):
        return nothing
    return (
        Past(hierarchy, then, source, target, weight),
        before.counts["neighbours"][at],
        _centres(run, before, at),
    )
