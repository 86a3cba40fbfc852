"""Attributed communities (`graph/attributed.py`) as a run builds them: levels are clustered on the driver;
between two of them a report is written on each cluster of the lower one, and embedded.

The entities are clustered in a step of their own, which asks no model. Each level is kept with its edges: an
update starts from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id
from graphrag_ray.graph.attributed import (
    ClusteredLevel,
    NodesOfLevel,
    clustered,
    goes_on,
    linked,
    one_hierarchy,
)
from graphrag_ray.graph.communities import edge_order
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.graph.leiden import Edges, canonical, modularity
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.schedule import ReportsAlone, Schedule
from graphrag_ray.graph.seeds import Past
from graphrag_ray.graph.spectral import MOST_NODES
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.communities_stage import (
    IntegerGraph,
    Layout,
    arrays_of,
    element_groups,
    hierarchy_of,
    load_layout,
    read_graph,
    saved,
    stored_ids,
)
from graphrag_ray.indexing.stages.graph_hierarchy import GraphHierarchy, ReportsSoFar, vectors_of
from graphrag_ray.indexing.stages.reports_stage import (
    PART_ROWS,
    ReportWork,
    failures_of,
    report_tables,
    tell_about,
)
from graphrag_ray.indexing.stages.short_ids import Keys, prefixes_of, read_arrays, write_arrays
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.parts import Part

KIND = HIERARCHIES["attributed"]
FIRST, REST = "entity_clusters", "attributed"
"""The steps."""


def build_attributed(run: Run, corpus: Result, graph: ExtractedGraph | None) -> GraphHierarchy:
    """The communities and their reports; before the first report, what the corpus is about."""
    assert graph is not None, "declared to be over entities"
    groups = element_groups(graph.merged, graph.described)
    own = _Graph(run, groups, read_graph(run, graph.merged, graph.described), graph.embedded)
    found = own.cluster_entities()
    about = tell_about(run, corpus, partial(load_layout, run, own.integers, found))
    rest = own.write(found)
    counts = {name: rest.counts[name] for name in ("levels", "modularity")}
    load = cache(partial(load_layout, run, own.integers, rest))
    return GraphHierarchy(KIND, load, stored_ids(run, rest), rest, (about, rest), counts)


@dataclass(frozen=True)
class _Graph:
    """groups: of its elements' parts; integers: of the same; embedded: table embeddings_entity."""

    run: Run
    groups: dict[str, list[list[Part]]]
    integers: IntegerGraph
    embedded: Result

    def cluster_entities(self) -> Result:
        """Tables of the first level, hierarchy (of that level alone), and the
        elements in its order: block_entities, block_relationships, block_covariates."""
        run, graph = self.run, self.integers

        def compute() -> Result:
            nodes = NodesOfLevel(
                linked(graph.n_nodes, graph.source, graph.target),
                vectors_of(run, self.embedded.parts("embeddings_entity"), graph.node_keys),
                graph.nodes["n_tokens"],
                graph.node_keys,
                *_past(run, FIRST, 0),
            )
            level = self._clustered(nodes)
            hierarchy, _ = one_hierarchy(graph.n_nodes, [level.cluster], [level.packed])
            order, community = edge_order(hierarchy, graph.source, graph.target)
            _, claims = graph.arrange(hierarchy, order, community)
            tables = _kept(run, [level], [graph.node_keys]) | {"hierarchy": [saved(run, hierarchy)]}
            blocks = graph.laid_out(run, FIRST, self.groups, hierarchy.order, order, claims)
            counts = {"modularity": 0.0, "clusters": len(level.packed)}
            return Result(tables | blocks.tables, counts, made_from=blocks.made_from)

        depends_on = [
            *self.groups.values(),
            self.embedded,
            run.settings.attributed,
            run.settings.communities,
            run.settings.reports.context_tokens,
        ]
        return run.step(FIRST, depends_on, compute)

    def write(self, found: Result) -> Result:
        """Tables of all levels above the first, of the hierarchy of all, reports, failures;
        and block_entities and block_relationships, as far as tables of communities need them."""
        run, graph, options = self.run, self.integers, self.run.settings.attributed
        layout = load_layout(run, graph, found)
        asking = ReportWork.of(run, layout.blocks, 0.0)

        def compute() -> Result:
            levels, so_far = [_level(run, found, 0)[0]], ReportsSoFar(KIND)
            keys, tokens, of_node = graph.node_keys, graph.nodes["n_tokens"], np.arange(graph.n_nodes)
            vectors = vectors_of(run, self.embedded.parts("embeddings_entity"), graph.node_keys)
            all_keys: list[Keys] = []
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
        run, options, height = self.run, self.run.settings.reports, len(so_far.ids) - 1
        called = partial(_called, height)
        if height:
            children = _grouped(level.cluster, len(so_far.ids[-1]))
            alone = partial(ReportsAlone, children, so_far.record_tokens(height - 1), options.context_tokens)
            so_far.write(run, asking.work, alone, called, alone().without)
        else:
            _, (place,) = one_hierarchy(len(level.cluster), [level.cluster], [level.packed])
            sizes = options.context_tokens, options.max_claims_per_entity
            schedule = partial(Schedule, layout.hierarchy, layout.elements, *sizes)
            so_far.write(run, asking.work, schedule, called, place=place)

    def _stored(
        self,
        asking: ReportWork,
        levels: Sequence[ClusteredLevel],
        so_far: ReportsSoFar,
        keys: Sequence[Keys],
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
        tables = _kept(run, levels[1:], keys) | blocks.tables
        tables["hierarchy"] = [saved(run, hierarchy, ids)]
        written = report_tables(reports, hierarchy.level, ids)
        parts = run.write(REST, "reports", written, max_rows=PART_ROWS)
        tables["reports"] = [[part] for part in parts]
        tables["failures"] = [failures_of(run, asking.work, so_far.failed)]
        of_entity = hierarchy.community_of(0)
        edges = canonical(graph.n_nodes, graph.source, graph.target, graph.edges["weight"])
        counts = {
            "levels": {f"C{k}": len(hierarchy.at_level(k)) for k in range(hierarchy.n_levels)},
            "communities": hierarchy.n_communities,
            "modularity": round(modularity(of_entity, edges), 4),
            "reports": len(reports),
            "failed_reports": len(so_far.failed),
        }
        return Result(tables, counts, so_far.nothing_to_retry, blocks.made_from)


def _called(height: int, id_: str) -> str:
    above = f", {height} above the finest level" if height else ""
    return f"community {id_} of hierarchy {KIND.name}{above}"


def _grouped(label: Ints, n: int) -> list[Ints]:
    """[n] the members of each group."""
    order = np.argsort(label, kind="stable")
    return np.split(order, np.cumsum(np.bincount(label, minlength=n))[:-1]) if n else []


def _kept(run: Run, levels: Sequence[ClusteredLevel], keys: Sequence[Keys]) -> dict[str, list[list[Part]]]:
    """Table levels, a group each. keys: the names of the nodes of each."""
    parts = []
    for level, own in zip(levels, keys, strict=True):
        centres = np.zeros((0, 0), np.float32) if level.centres is None else level.centres
        arrays = {
            "key": own,
            "ends": level.edges.ends.ravel(),
            "weight": level.edges.weight,
            "cluster": level.cluster,
            "cluster_packed": level.packed,
            "neighbours": np.array([level.neighbours]),
            "centres": centres.ravel(),
            "n_centres": np.array([len(centres)]),
        }
        parts.append(write_arrays(run, REST, "levels", arrays | arrays_of(level.inner)))
    return {"levels": parts}


def _level(run: Run, found: Result, at: int) -> tuple[ClusteredLevel, Keys]:
    """What `_kept` stored of a level, and the names of its nodes."""
    a = read_arrays(run.store, found.tables["levels"][at])
    n_centres = int(a["n_centres"][0])
    centres = a["centres"].reshape(n_centres, -1) if n_centres else None
    edges, neighbours = Edges(a["ends"].reshape(-1, 2), a["weight"]), int(a["neighbours"][0])
    level = ClusteredLevel(edges, hierarchy_of(a), a["cluster"], a["cluster_packed"], neighbours, centres)
    return level, a["key"]


def _past(run: Run, step: str, at: int) -> tuple[Past | None, int | None, Vectors | None]:
    """A level of the parent snapshot, and how many neighbours were linked; None where there is none, it was
    made by other settings, or is damaged."""
    parent, now, nothing = run.parent, run.settings.kept(), (None, None, None)
    if parent is None or step not in parent.steps or {FIRST, REST} & run.afresh:
        return nothing
    if any(parent.settings.get(name) != now[name] for name in ("attributed", "communities")):
        return nothing
    before = run.of_parent[step]
    levels = before.tables.get("levels", [])
    if at >= len(levels) or run.lost(levels[at]):
        return nothing
    level, keys = _level(run, before, at)
    if len(level.inner.order) != len(keys):
        return nothing
    source, target = level.edges.ends.T
    past = Past(level.inner, keys, source, target, level.edges.weight)
    return past, level.neighbours, level.centres
