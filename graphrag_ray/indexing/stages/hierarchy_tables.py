"""Build hierarchies of entities, and write the snapshot's tables of all hierarchies.

The second half is for hierarchies that are built level by level: the reports of each level are written from
the reports below, and embedded before the next level is clustered.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, HierarchyKind
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.wording import plural
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph.community_signatures import SIGNATURE_WIDTH, signatures
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.report_schedule import HierarchySchedule, LevelSchedule
from graphrag_ray.graph.summary_tree import SummaryTree
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run, failure_rows
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages import communities_stage, reports_stage
from graphrag_ray.indexing.stages.document_periods import Periods, community_periods
from graphrag_ray.indexing.stages.embed_stage import Texts, embed_now
from graphrag_ray.indexing.stages.reports_stage import ReportSource, WrittenReport
from graphrag_ray.indexing.stages.reused_reports import WRITTEN
from graphrag_ray.indexing.stages.short_ids import (
    Keys,
    ReferenceRenderer,
    ShortIds,
    assign_short_ids,
    id_keys,
    read_arrays,
    sorted_short_ids,
)
from graphrag_ray.indexing.step_result import Result, fingerprint_of, join_results
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.search.vector_index import normalize

_CHILDREN, _PARENT = 3, SIGNATURE_WIDTH
"""Columns of the signatures that depend on the communities below and above."""
PART_COMMUNITIES = 2_000
PART_ELEMENTS = 200_000
"""Maximum number of nodes and edges of the communities in a part, unless a single community has more. At the
coarsest level, communities contain the whole graph with all its lists of chunks."""
NO_REPORTS_BELOW = "none of the reports it would summarize exist"


class Positions(NamedTuple):
    """The structure of a hierarchy, with the id, short id, dates and covered period of each community."""

    kind: HierarchyKind
    hierarchy: Hierarchy | SummaryTree
    ids: pa.Array
    short_ids: Ints
    periods: Sequence[str]
    covered: Periods


@dataclass(frozen=True)
class GraphHierarchy:
    """A hierarchy of entities; see `BuiltHierarchy`.

    Attributes:
        load: Returns the layout. Its blocks contain at least the ids and chunks of elements.
    """

    kind: HierarchyKind
    corpus: Result
    load: Callable[[], communities_stage.Layout]
    ids: list[str]
    reports: Result
    results: Sequence[Result]
    counts: Mapping[str, Any]

    @property
    def level(self) -> Ints:
        return self.load().hierarchy.level

    def short_ids(self, run: Run) -> dict[str, ShortIds]:
        return short_ids_by_level(run, self.kind, self.ids, self.level)

    def write_tables(self, run: Run, numbers: Callable[[], dict[str, ShortIds]], period: str) -> Result:
        kind, layout = self.kind, self.load()
        h = layout.hierarchy
        ids = pa.array(self.ids, pa.string())
        short_ids = numbers()[kind.communities_table].look_up(ids)
        is_reset = not run.forced_steps.isdisjoint(kind.stages)
        periods = [period] * len(ids)
        before = run.parent.parts(kind.communities_table) if run.parent else []
        if not run.has_lost_parts(before) and not is_reset:
            # A community keeps the date of the run that first found it.
            rows = read_table(run.store, before, ["id", "period"], schema.COMMUNITIES)
            dates = dict(zip(rows["id"].to_pylist(), rows["period"].to_pylist(), strict=True))
            periods = [dates.get(id_, period) for id_ in self.ids]
        blocks = layout.blocks["entities"].parts
        covered = community_periods(run, self.corpus, h, blocks)
        # A row of the communities table depends on the community's signature, its parent and its dates.
        keys = id_keys(ids)
        above = np.where(h.parent >= 0, keys[h.parent], np.uint64(0)) if len(keys) else keys
        none_truncated = np.zeros(h.n_communities, np.bool_)
        signature_rows = signatures(h, layout.elements, layout.contents, keys, none_truncated)
        signature_rows = np.column_stack([signature_rows, above])

        edge_community = layout.elements.edge_community
        first, last = (
            np.searchsorted(edge_community, c) for c in (np.arange(h.n_communities), h.subtree_end)
        )
        sizes = np.maximum(h.sizes() + last - first, PART_ELEMENTS // PART_COMMUNITIES)
        all_communities = np.ones(h.n_communities, np.bool_)
        batches = reports_stage.community_batches(
            self.ids, h.level, short_ids, all_communities, sizes, PART_ELEMENTS
        )
        groups = [np.array(batch) for batch in batches]
        depends_on: list[Any] = [
            [
                hashlib.sha256(signature_rows[group].tobytes()).hexdigest(),
                [periods[c] for c in group],
                fingerprint_of(covered.fingerprints(group.tolist())),
            ]
            for group in groups
        ]
        forced = range(len(groups)) if is_reset else ()
        names = (kind.communities_table,)
        plan = run.reuse_plan("finish", groups, kind.name, names, identities=depends_on, forced_inputs=forced)
        positions = run.executor.share(Positions(kind, h, ids, short_ids, periods, covered))
        make = partial(_community_table, run.executor.share(layout), positions)
        communities = plan.merge_new(run.store, run.map("finish", make, plan.new_inputs))

        # A report depends on the dates of its community, and on the communities below and above.
        depends_on, number = [], {id_: c for c, id_ in enumerate(self.ids)}
        for group in self.reports.tables["reports"]:
            in_group = read_table(run.store, group, ["community"])["community"].to_pylist() if group else []
            members = [number[id_] for id_ in in_group]
            neighbours = hashlib.sha256(
                signature_rows[members][:, [_CHILDREN, _PARENT]].tobytes()
            ).hexdigest()
            depends_on.append([group, neighbours, fingerprint_of([periods[c] for c in members])])
            depends_on[-1].append(fingerprint_of(covered.fingerprints(members)))
        return join_results(
            [communities, finish_reports(run, numbers, positions, kind, self.reports, depends_on)]
        )


def short_ids_by_level(run: Run, kind: HierarchyKind, ids: list[str], level: Ints) -> dict[str, ShortIds]:
    """Assign short ids to communities, level by level, and to their reports."""
    array = pa.array(ids, pa.string())
    by_level = np.lexsort((np.arange(len(ids)), level))
    communities = assign_short_ids(run, kind.communities_table, id_keys(array), by_level)
    report_keys = id_keys(pa.array([report_id(id_) for id_ in ids], pa.string()))
    # A report has the short id of its community, as in other GraphRAG implementations.
    reports = sorted_short_ids(report_keys, communities.look_up(array), communities.next_short_id)
    return {kind.communities_table: communities, kind.reports_table: reports}


def build_leiden(run: Run, corpus: Result, graph: ExtractedGraph | None) -> GraphHierarchy:
    """Find communities of the graph (paper 3.1.4) and write their reports (paper 3.1.5).

    With `build: names`, no reports are written.
    """
    assert graph is not None, "declared as a hierarchy of entities"
    partition = communities_stage.find_communities(run, graph.merged, graph.descriptions)

    @cache  # Called lazily, so that an unchanged graph is not read.
    def layout() -> communities_stage.Layout:
        integers = communities_stage.read_graph(run, graph.merged, graph.descriptions)
        return communities_stage.load_layout(run, integers, partition)

    ids = read_arrays(run.store, partition.parts("hierarchy"), ["id"])["id"].tolist()
    counts = {name: partition.counts[name] for name in ("levels", "modularity", "components")}
    kind = HIERARCHIES[communities_stage.LEIDEN]
    if not run.settings.built_hierarchies:
        return GraphHierarchy(kind, corpus, layout, ids, Result({"reports": []}), (), counts)
    about = reports_stage.describe_corpus(run, corpus, layout)

    def number() -> Ints:
        numbers = short_ids_by_level(run, kind, ids, layout().hierarchy.level)[kind.communities_table]
        return numbers.look_up(pa.array(ids, pa.string()))

    reports = reports_stage.write_reports(run, corpus, partition, layout, ids, number)
    counts["composed_reports"] = reports.counts["composed_reports"]
    return GraphHierarchy(kind, corpus, layout, ids, reports, (about, reports), counts)


def _community_table(
    load: Callable[[], communities_stage.Layout],
    positions: Callable[[], Positions],
    store: Store,
    wanted: Ints,
) -> Iterator[Tables]:
    layout, id_columns = load(), communities_stage.TABLE_COLUMNS
    h, edge_community = layout.hierarchy, layout.elements.edge_community
    entity_ids, relationship_ids, text_unit_ids = [], [], []
    for c in wanted.tolist():
        members = layout.blocks["entities"].between(store, h.start[c], h.end[c], id_columns)
        first, last = np.searchsorted(edge_community, [c, h.subtree_end[c]])
        edges = layout.blocks["relationships"].between(store, first, last, id_columns)
        # The chunks of a community support its relationships or, if there are none, its members.
        chunk_lists = (edges if edges.num_rows else members)["text_unit_ids"]
        entity_ids.append(members["id"])
        relationship_ids.append(edges["id"])
        text_unit_ids.append(pa.chunked_array([pc.unique(pc.list_flatten(chunk_lists))], pa.string()))
    columns = {
        "entity_ids": _list_column(entity_ids),
        "relationship_ids": _list_column(relationship_ids),
        "text_unit_ids": _list_column(text_unit_ids),
        "packed": h.packed[wanted],
    }
    yield {positions().kind.communities_table: community_rows(positions(), wanted, "Community", columns)}


def community_rows(positions: Positions, wanted: Ints, title: str, columns: dict[str, Any]) -> pa.Table:
    """Return rows of COMMUNITIES. `title` precedes the number; `columns` are specific to the hierarchy."""
    columns = _position_columns(positions, wanted) | columns
    columns["id"] = positions.ids.take(pa.array(wanted))
    columns["title"] = [f"{title} {n}" for n in columns["community"].tolist()]
    return mark_for_row_access(
        pa.Table.from_pydict({n: columns[n] for n in schema.COMMUNITIES.names}, schema.COMMUNITIES)
    )


def _position_columns(positions: Positions, wanted: Ints) -> dict[str, Any]:
    kind, h, _, short_ids, periods, covered = positions
    return {
        "human_readable_id": short_ids[wanted],
        "community": short_ids[wanted],
        "level": h.level[wanted],
        "parent": np.where(h.parent[wanted] >= 0, short_ids[h.parent[wanted]], -1),
        "children": [[int(short_ids[k]) for k in h.children(c)] for c in wanted.tolist()],
        "period": [periods[c] for c in wanted.tolist()],
        "size": h.sizes()[wanted],
        "hierarchy": [kind.name] * len(wanted),
        **covered.columns(wanted),
    }


def _list_column(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    flat = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    offsets = pa.array(np.cumsum([0, *map(len, columns)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, flat.combine_chunks())


def finish_reports(
    run: Run,
    numbers: Callable[[], dict[str, ShortIds]],
    positions: Callable[[], Positions],
    kind: HierarchyKind,
    reports: Result,
    depends_on: Sequence[Any] | None = None,
) -> Result:
    """Write reports with references by short id. Without `depends_on`, no group of reports is reused."""
    groups, name = reports.tables["reports"], kind.reports_table
    forced = range(len(groups)) if not run.forced_steps.isdisjoint(kind.stages) else ()
    identities = depends_on or [None] * len(groups)
    plan = run.reuse_plan("finish", groups, kind.name, (name,), identities=identities, forced_inputs=forced)
    written = run.map("finish", partial(_report_table, numbers, positions), plan.new_inputs)
    return plan.merge_new(run.store, written)


def _report_table(
    numbers: Callable[[], dict[str, ShortIds]],
    positions: Callable[[], Positions],
    store: Store,
    parts: list[Part],
) -> Iterator[Tables]:
    if not parts:
        return
    kind, ids = positions().kind, positions().ids
    renderer = ReferenceRenderer(numbers())
    table = read_table(store, parts, WRITTEN.names, WRITTEN)
    community = pc.index_in(table["community"], value_set=ids).to_numpy().astype(np.int64)
    position_rows = pa.table(_position_columns(positions(), community)).to_pylist()
    written = table.drop_columns(["community"]).to_pylist()
    renderer.prepare(reference for row in written for reference in row["references"])
    rows = []
    for row, position, id_ in zip(written, position_rows, table["community"].to_pylist(), strict=True):
        content = {
            "title": row["title"],
            "summary": renderer.render(row["summary"]),
            "rating": row["rank"],
            "rating_explanation": renderer.render(row["rating_explanation"]),
            "findings": [{k: renderer.render(v) for k, v in f.items()} for f in row["findings"]],
        }
        rows.append(
            {
                **row,
                **position,
                **{name: content[name] for name in ("summary", "rating_explanation", "findings")},
                "id": report_id(id_),
                "full_content": renderer.render(row["full_content"]),
                "full_content_json": orjson.dumps(content, option=orjson.OPT_INDENT_2).decode(),
            }
        )
    rows.sort(key=lambda r: (r["level"], r["community"]))
    yield {
        kind.reports_table: mark_for_row_access(pa.Table.from_pylist(rows, schema=schema.COMMUNITY_REPORTS))
    }


# Hierarchies that are built level by level.


@dataclass
class LevelReports:
    """The reports of the levels built so far, the lowest level first.

    Attributes:
        name_format: Format of a cluster's name in progress lines and failures, into which its id is inserted.
        first_cluster: For each level, the number of its first cluster among the clusters of all levels.
        written: Reports by the number of their cluster. `composed` of them were composed.
        all_embedded: Whether every text could be embedded, so that the next run has nothing to retry.
    """

    kind: HierarchyKind
    name_format: str
    ids: list[list[str]] = field(default_factory=list)
    first_cluster: list[int] = field(default_factory=list)
    written: Spool[WrittenReport] = field(default_factory=Spool)
    failed: list[tuple[Row, Outcome[WrittenReport]]] = field(default_factory=list)
    all_embedded: bool = True
    composed: int = 0

    def begin(self, ids: list[str]) -> None:
        """Start the next level, with the ids of its clusters."""
        self.first_cluster.append(self.first_cluster[-1] + len(self.ids[-1]) if self.ids else 0)
        self.ids.append(ids)

    def reports_of_level(self, height: int) -> Iterator[WrittenReport | None]:
        return (
            self.written.get(self.first_cluster[height] + cluster) for cluster in range(len(self.ids[height]))
        )

    def record_tokens(self, height: int) -> list[int | None]:
        """Return the tokens of each report's record, or None for a cluster without a report."""
        return [report.record_tokens if report else None for report in self.reports_of_level(height)]

    def write(
        self,
        run: Run,
        work: Work[WrittenReport],
        schedule: Callable[[], HierarchySchedule | LevelSchedule],
        skipped: Iterable[int] = (),
        numbers: Ints | None = None,
        periods: Periods | None = None,
    ) -> None:
        """Write the reports of the last level, except for the `skipped` clusters, which have no report below.

        `schedule` creates a schedule, in which clusters may have other `numbers`. `periods` are those of the
        clusters, for prompts that state them.
        """
        ids, first, height = self.ids[-1], self.first_cluster[-1], len(self.ids) - 1
        above = f", {plural(height, 'level')} above the lowest" if height else ""

        def display_name(id_: str) -> str:
            return self.name_format.format(id_) + above

        number_of = list(range(len(ids))) if numbers is None else numbers.tolist()
        scheduled = [""] * len(ids)
        if periods and numbers is not None:
            periods = periods.take(np.argsort(numbers))
        for cluster, number in enumerate(number_of):
            scheduled[number] = ids[cluster]
        below: tuple[Callable[[int], WrittenReport], Sequence[str]] | None = None
        if len(self.ids) > 1:
            lower = self.first_cluster[-2]
            below = (lambda cluster: self.written[lower + cluster]), self.ids[-2]

        def plan() -> ReportSource:
            return ReportSource(
                schedule(),
                lambda c: display_name(scheduled[c]),
                scheduled,
                below=below,
                section=self.kind.section,
                periods=periods,
            )

        source = reports_stage.sweep_reports(run, work, plan)
        for cluster, number in enumerate(number_of):
            if (report := source.written.get(number)) is not None:
                self.written[first + cluster] = report
        self.failed += source.sorted_failures()
        self.composed += source.composed
        outcome: Outcome[WrittenReport] = Outcome("", "failed", error=NO_REPORTS_BELOW)
        self.failed += [({"display_name": display_name(ids[cluster])}, outcome) for cluster in skipped]

    def write_tables(
        self, run: Run, step: str, work: Work[WrittenReport], level: Ints, communities: Iterable[Ints]
    ) -> tuple[dict[str, list[list[Part]]], list[str]]:
        """Write the tables `reports` and `failures`, given the communities of each level's clusters.

        Also returns the ids of the communities.
        """
        reports: Spool[WrittenReport] = Spool()
        ids = [""] * len(level)
        for height, numbers in enumerate(communities):
            clusters = zip(numbers.tolist(), self.ids[height], self.reports_of_level(height), strict=True)
            for community, id_, report in clusters:
                ids[community] = id_
                if report is not None:
                    reports[community] = report
        rows = reports_stage.report_tables(reports, level, ids)
        parts = run.write(step, "reports", rows, max_rows=reports_stage.PART_ROWS)
        failures = run.write(work.name, "failures", [failure_rows(work.name, work, self.failed)])
        return {"reports": [[part] for part in parts], "failures": [failures]}, ids

    def embed(self, run: Run, step: str, members: Iterable[Ints], below: Vectors) -> Vectors:
        """Embed the reports of the last level as unit vectors [clusters, dimensions].

        A cluster without a report gets the mean of its `members`, which are rows of the vectors `below`.
        """
        ids = self.ids[-1]
        reports: Spool[WrittenReport] = Spool()
        for cluster, report in enumerate(self.reports_of_level(len(self.ids) - 1)):
            if report is not None:
                reports[cluster] = report
        # Write several parts, so that all workers take part in embedding.
        tables = reports_stage.report_tables(reports, np.zeros(len(ids), np.int64), ids)
        parts = run.write(step, "level_reports", tables, max_rows=reports_stage.PART_ROWS)
        embedded, all_embedded = embed_now(
            run, step, [Texts(self.kind.report_kind, [part]) for part in parts]
        )
        self.all_embedded &= all_embedded
        keys = id_keys(pa.array([report_id(id_) for id_ in ids], pa.string()))
        vectors = load_vectors(run, embedded, keys)
        if vectors.shape[1] != below.shape[1]:
            vectors = np.zeros((len(ids), below.shape[1]), np.float32)
        for cluster, rows in enumerate(members):
            if not vectors[cluster].any():
                vectors[cluster] = below[rows].sum(axis=0)
        return normalize(vectors)

    @property
    def nothing_to_retry(self) -> bool:
        return self.all_embedded and not any(outcome.status == "retry" for _, outcome in self.failed)


def load_vectors(run: Run, embeddings: Sequence[Part], keys: Keys) -> Vectors:
    """Load embeddings into a memory-mapped file as unit vectors [nodes, dimensions].

    Nodes without an embedding get zeros. The file is allocated first, so that a full disk raises OSError
    instead of crashing the process on a write to mapped memory.
    """
    order = np.argsort(keys)
    sorted_keys = keys[order]
    vectors: Vectors | None = None
    for part in embeddings:
        table = read_part(run.store, part)
        column = table["vector"].combine_chunks()
        if vectors is None:
            shape = len(keys), column.type.list_size
            n_bytes = shape[0] * shape[1] * np.dtype(np.float32).itemsize
            with TemporaryFile() as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, n_bytes)
                else:
                    file.truncate(n_bytes)
                vectors = np.memmap(file, np.float32, "r+", shape=shape)
        rows = order[np.searchsorted(sorted_keys, id_keys(table["id"]))]
        vectors[rows] = normalize(column.flatten().to_numpy().reshape(len(table), -1))
    return np.zeros((len(keys), 1), np.float32) if vectors is None else vectors
