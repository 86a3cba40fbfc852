"""A hierarchy of the entities as a run builds it, and its tables: Leiden's (paper 3.1.4, 3.1.5) and others.

What hierarchies share that are built level upon level: the reports so far, each level's written from those
below and embedded before the next is clustered; and the vectors of the lowest level.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from tempfile import TemporaryFile
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, HierarchyKind
from graphrag_ray.base.ids import report_id
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.schedule import ReportsAlone, Schedule
from graphrag_ray.graph.signatures import WIDTH, signatures
from graphrag_ray.graph.summary_tree import SummaryTree
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages.communities_stage import (
    IN_TABLES,
    LEIDEN,
    Layout,
    find_communities,
    load_layout,
    read_graph,
    stored_ids,
)
from graphrag_ray.indexing.stages.embed_stage import Texts, embed_now
from graphrag_ray.indexing.stages.parent_reports import WRITTEN
from graphrag_ray.indexing.stages.reports_stage import (
    PART_ROWS,
    ReportSource,
    WrittenReport,
    batches_by_number,
    report_tables,
    settled,
    tell_about,
    write_reports,
)
from graphrag_ray.indexing.stages.short_ids import Keys, Numbers, Rendered, number, prefixes_of, renumbered
from graphrag_ray.indexing.step_result import Result, fingerprint_of, joined
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import by_row
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.search.vectors import unit

_BELOW, _ABOVE = 3, WIDTH
"""Columns of what is signed: which communities are below, and which one is above."""
COMMUNITIES_AT_ONCE = 2_000
ELEMENTS_AT_ONCE = 200_000
"""Communities of a part hold so many nodes and edges together, or there is one only: those of the coarsest
level hold the whole graph between them, with all its lists of text units."""


Placed: TypeAlias = tuple[HierarchyKind, Hierarchy | SummaryTree, pa.Array, Ints]
"""The hierarchy's name and tables; where communities stand; by community its id and its human_readable_id."""


@dataclass(frozen=True)
class GraphHierarchy:
    """See `BuiltHierarchy`. load: its layout, whose blocks hold at least the ids and chunks of entities and
    relationships."""

    kind: HierarchyKind
    load: Callable[[], Layout]
    ids: list[str]
    reports: Result
    results: Sequence[Result]
    counts: Mapping[str, Any]

    @property
    def layout(self) -> Layout:
        return self.load()

    @property
    def level(self) -> Ints:
        return self.layout.hierarchy.level

    def numbers(self, run: Run) -> dict[str, Numbers]:
        """Communities level by level."""
        return numbered_by_level(run, self.kind, self.ids, self.level)

    def tables(self, run: Run, numbers: Callable[[], dict[str, Numbers]], period: str) -> Result:
        kind, layout, h = self.kind, self.layout, self.layout.hierarchy
        ids = pa.array(self.ids, pa.string())
        own = numbers()[kind.communities].of(ids)
        is_afresh = not run.afresh.isdisjoint(kind.stages)
        periods = [period] * len(ids)
        before = run.parent.parts(kind.communities) if run.parent else []
        if not run.lost(before) and not is_afresh:
            # The date of the run that made a community: that of the parent snapshot where it has it.
            rows = read_table(run.store, before, ["id", "period"], schema.COMMUNITIES)
            then = dict(zip(rows["id"].to_pylist(), rows["period"].to_pylist(), strict=True))
            periods = [then.get(id_, period) for id_ in self.ids]
        # Of each community what its row depends on: its signature, and which one is above.
        keys = prefixes_of(ids)
        above = np.where(h.parent >= 0, keys[h.parent], np.uint64(0)) if len(keys) else keys
        nothing_cut = np.zeros(h.n_communities, np.bool_)
        signed = signatures(h, layout.elements, layout.contents, keys, nothing_cut)
        signed = np.column_stack([signed, above])

        edge_community = layout.elements.edge_community
        first, last = (np.searchsorted(edge_community, x) for x in (np.arange(h.n_communities), h.last))
        sizes = np.maximum(h.sizes() + last - first, ELEMENTS_AT_ONCE // COMMUNITIES_AT_ONCE)
        every = np.ones(h.n_communities, np.bool_)
        batches = batches_by_number(self.ids, h.level, own, every, sizes, ELEMENTS_AT_ONCE)
        groups = [np.array(of) for of in batches]
        told: list[Any] = [
            [hashlib.sha256(signed[of].tobytes()).hexdigest(), [periods[c] for c in of]] for of in groups
        ]
        again = range(len(groups)) if is_afresh else ()
        known = run.taken_over("finish", groups, kind.name, (kind.communities,), told=told, again=again)
        shared = run.executor.share((kind, layout, ids, own))
        make = partial(_community_table, shared, run.executor.share(periods))
        communities = known.with_new(run.store, run.map("finish", make, known.new))

        # By group of the reports: where their communities stand and of which dates they are.
        told, place = [], {id_: c for c, id_ in enumerate(self.ids)}
        for group in self.reports.tables["reports"]:
            names = read_table(run.store, group, ["community"])["community"].to_pylist() if group else []
            at = [place[id_] for id_ in names]
            places = hashlib.sha256(signed[at][:, [_BELOW, _ABOVE]].tobytes()).hexdigest()
            told.append([group, places, fingerprint_of([periods[c] for c in at])])
        placed = run.executor.share((kind, h, ids, own))
        return joined(
            [communities, finished_reports(run, numbers, placed, kind, self.reports, periods, told)]
        )


def numbered_by_level(run: Run, kind: HierarchyKind, ids: list[str], level: Ints) -> dict[str, Numbers]:
    """Short ids of communities, level by level, and of their reports. ids, level: of the communities."""
    of = pa.array(ids, pa.string())
    by_level = np.lexsort((np.arange(len(of)), level))
    communities = number(run, kind.communities, prefixes_of(of), by_level)
    report_ids = pa.array([report_id(i) for i in ids], pa.string())
    # A report bears its community's number, as everywhere in this family of tools.
    reports = renumbered(report_ids, communities.of(of), communities.next)
    return {kind.communities: communities, kind.reports_table: reports}


def build_leiden(run: Run, corpus: Result, graph: ExtractedGraph | None) -> GraphHierarchy:
    """Communities of the graph, and their reports; before the first report, what the corpus is about."""
    assert graph is not None, "declared to be over entities"
    found = find_communities(run, graph.merged, graph.described)
    # An unchanged graph is not read.
    layout = cache(lambda: load_layout(run, read_graph(run, graph.merged, graph.described), found))
    ids = stored_ids(run, found)
    about = tell_about(run, corpus, layout)
    kind = HIERARCHIES[LEIDEN]

    def number() -> Ints:
        numbers = numbered_by_level(run, kind, ids, layout().hierarchy.level)[kind.communities]
        return numbers.of(pa.array(ids, pa.string()))

    reports = write_reports(run, corpus, found, layout, ids, number)
    counts = {name: found.counts[name] for name in ("levels", "modularity", "components")}
    return GraphHierarchy(kind, layout, ids, reports, (about, reports), counts)


def _community_table(
    shared: Callable[[], tuple[HierarchyKind, Layout, pa.Array, Ints]],
    periods: Callable[[], Sequence[str]],
    store: Store,
    wanted: Ints,
) -> Iterator[Tables]:
    kind, layout, ids, numbers = shared()
    h, edge_community = layout.hierarchy, layout.elements.edge_community
    entity_ids, relationship_ids, text_unit_ids = [], [], []
    for c in wanted.tolist():
        members = layout.blocks["entities"].between(store, h.start[c], h.end[c], IN_TABLES)
        low, high = np.searchsorted(edge_community, [c, h.last[c]])
        inside = layout.blocks["relationships"].between(store, low, high, IN_TABLES)
        # The text of a community is that of its relationships; without any, its members'.
        of_text = (inside if inside.num_rows else members)["text_unit_ids"]
        entity_ids.append(members["id"])
        relationship_ids.append(inside["id"])
        text_unit_ids.append(pa.chunked_array([pc.unique(pc.list_flatten(of_text))], pa.string()))
    own = {
        "entity_ids": _lists(entity_ids),
        "relationship_ids": _lists(relationship_ids),
        "text_unit_ids": _lists(text_unit_ids),
        "packed": h.packed[wanted],
    }
    yield {kind.communities: community_rows((kind, h, ids, numbers), wanted, "Community", periods(), own)}


def community_rows(
    placed: Placed, wanted: Ints, title: str, periods: Sequence[str], own: dict[str, Any]
) -> pa.Table:
    """Rows of COMMUNITIES. title: what comes before the number; own: columns of this kind of hierarchy."""
    columns = _where(placed, wanted, periods) | own
    columns["id"] = placed[2].take(pa.array(wanted))
    columns["title"] = [f"{title} {n}" for n in columns["community"].tolist()]
    return by_row(pa.Table.from_pydict({n: columns[n] for n in schema.COMMUNITIES.names}, schema.COMMUNITIES))


def _where(placed: Placed, wanted: Ints, periods: Sequence[str]) -> dict[str, Any]:
    """What communities and their reports say alike: columns about some communities."""
    kind, h, _, numbers = placed
    number = numbers[wanted]
    return {
        "human_readable_id": number,
        "community": number,
        "level": h.level[wanted],
        "parent": np.where(h.parent[wanted] >= 0, numbers[h.parent[wanted]], -1),
        "children": [[int(numbers[k]) for k in h.children(c)] for c in wanted.tolist()],
        "period": [periods[c] for c in wanted.tolist()],
        "size": h.sizes()[wanted],
        "hierarchy": [kind.name] * len(wanted),
    }


def _lists(texts: Sequence[pa.ChunkedArray]) -> pa.Array:
    """A column of lists, from the texts of each."""
    flat = pa.chunked_array([chunk for of in texts for chunk in of.chunks], pa.string()).combine_chunks()
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *map(len, texts)]), pa.int32()), flat)


def finished_reports(
    run: Run,
    numbers: Callable[[], dict[str, Numbers]],
    placed: Callable[[], Placed],
    kind: HierarchyKind,
    reports: Result,
    periods: Sequence[str],
    told: Sequence[Any] | None = None,
) -> Result:
    """Reports with references as people read them: human_readable_ids. periods: the date of each community's
    row, which is its report's; told: what each group of reports depends on; None: all are made."""
    groups, name = reports.tables["reports"], kind.reports_table
    again = range(len(groups)) if not run.afresh.isdisjoint(kind.stages) else ()
    known = run.taken_over(
        "finish", groups, kind.name, (name,), told=told or [None] * len(groups), again=again
    )
    make = partial(_report_table, numbers, placed, run.executor.share(periods))
    written = run.map("finish", make, known.new)
    return known.with_new(run.store, written)


def _report_table(
    numbers: Callable[[], dict[str, Numbers]],
    placed: Callable[[], Placed],
    periods: Callable[[], Sequence[str]],
    store: Store,
    parts: list[Part],
) -> Iterator[Tables]:
    if not parts:
        return
    kind, _, ids, _ = placed()
    shown = Rendered(numbers())
    rows = []
    table = read_table(store, parts, WRITTEN.names, WRITTEN)
    places = pc.index_in(table["community"], value_set=ids).to_numpy().astype(np.int64)
    where = pa.table(_where(placed(), places, periods())).to_pylist()
    written = table.drop_columns(["community"]).to_pylist()
    shown.prepare(reference for row in written for reference in row["references"])
    for row, own, id_ in zip(written, where, ids.take(pa.array(places)).to_pylist(), strict=True):
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
                **own,
                "id": report_id(id_),
                "summary": summary,
                "full_content": shown.render(row["full_content"]),
                "rating_explanation": explanation,
                "findings": findings,
                "full_content_json": orjson.dumps(content, option=orjson.OPT_INDENT_2).decode(),
            }
        )
    rows.sort(key=lambda r: (r["level"], r["community"]))
    yield {kind.reports_table: by_row(pa.Table.from_pylist(rows, schema=schema.COMMUNITY_REPORTS))}


# What hierarchies share that are built level upon level.

NOTHING_BELOW = "none of the reports that it is written from is there"


@dataclass
class ReportsSoFar:
    """Reports by level, the lowest first.

    ids      of the clusters of each level
    first    the number of each level's first cluster among those of all levels
    written  by this number
    final    the next run has nothing to try again: all that could be embedded is
    """

    kind: HierarchyKind
    ids: list[list[str]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    written: Spool[WrittenReport] = field(default_factory=Spool)
    failed: list[tuple[Row, Outcome[WrittenReport]]] = field(default_factory=list)
    final: bool = True

    def begin(self, ids: list[str]) -> None:
        """The next level. ids: of its clusters."""
        self.first.append(self.first[-1] + len(self.ids[-1]) if self.ids else 0)
        self.ids.append(ids)

    def record_tokens(self, height: int) -> list[int | None]:
        """Of a level, the tokens of each report's record; None where there is no report."""
        first = self.first[height]
        reports = (self.written.get(first + cluster) for cluster in range(len(self.ids[height])))
        return [report.record_tokens if report else None for report in reports]

    def write(
        self,
        run: Run,
        work: Work[WrittenReport],
        schedule: Callable[[], Schedule | ReportsAlone],
        called: Callable[[str], str],
        without: Iterable[int] = (),
        place: Ints | None = None,
    ) -> None:
        """Write the reports of the last level.

        schedule  makes one
        called    what people call a cluster, from its id
        without   clusters that are not asked about, since nothing is below
        place     the number of each cluster in the schedule; None: that of here
        """
        ids, first = self.ids[-1], self.first[-1]
        number = list(range(len(ids))) if place is None else place.tolist()
        scheduled = [""] * len(ids)
        for cluster, at in enumerate(number):
            scheduled[at] = ids[cluster]
        below: tuple[Callable[[int], WrittenReport], Sequence[str]] | None = None
        if len(self.ids) > 1:
            lower = self.first[-2]
            below = (lambda cluster: self.written[lower + cluster]), self.ids[-2]

        def plan() -> ReportSource:
            return ReportSource(
                schedule(), lambda c: called(scheduled[c]), scheduled, None, below, self.kind.section
            )

        source = settled(run, work, plan)
        for cluster, at in enumerate(number):
            if (report := source.written.get(at)) is not None:
                self.written[first + cluster] = report
        # In the order of communities, not in that in which they failed.
        self.failed += sorted(source.failed, key=lambda f: f[0]["community"])
        nothing: Outcome[WrittenReport] = Outcome("", "failed", error=NOTHING_BELOW)
        self.failed += [({"called": called(ids[cluster])}, nothing) for cluster in without]

    def by_community(self, places: Iterable[Ints]) -> Spool[WrittenReport]:
        """All reports by number of their communities. places: of each level, the community of each
        cluster."""
        found: Spool[WrittenReport] = Spool()
        for first, place in zip(self.first, places, strict=True):
            for cluster, community in enumerate(place.tolist()):
                if (report := self.written.get(first + cluster)) is not None:
                    found[community] = report
        return found

    def embed(self, run: Run, step: str, members: Iterable[Ints], below: Vectors) -> Vectors:
        """[clusters, dimensions] of the reports of the last level, of length 1, as these are found by search;
        where there is none, the mean of the members. members: of each cluster, rows of `below`"""
        ids, first = self.ids[-1], self.first[-1]
        own: Spool[WrittenReport] = Spool()
        for cluster in range(len(ids)):
            if (report := self.written.get(first + cluster)) is not None:
                own[cluster] = report
        # In parts, as later stages find them: all workers embed.
        tables = report_tables(own, np.zeros(len(ids), np.int64), ids)
        parts = run.write(step, "level_reports", tables, max_rows=PART_ROWS)
        texts = [Texts(self.kind.reports, [part]) for part in parts]
        keys = prefixes_of(pa.array([report_id(id_) for id_ in ids], pa.string()))
        embedded, final = embed_now(run, step, texts)
        self.final &= final
        vectors = vectors_of(run, embedded, keys)
        if vectors.shape[1] != below.shape[1]:
            vectors = np.zeros((len(ids), below.shape[1]), np.float32)
        for cluster, rows in enumerate(members):
            if not vectors[cluster].any():
                vectors[cluster] = below[rows].sum(axis=0)
        return unit(vectors)

    @property
    def nothing_to_retry(self) -> bool:
        return self.final and not any(outcome.status == "retry" for _, outcome in self.failed)


def vectors_of(run: Run, embeddings: Sequence[Part], keys: Keys) -> Vectors:
    """[nodes, dimensions] of length 1, zeros where a node has none; in a file, since there may be very many.

    embeddings: parts of their table; keys: of the nodes
    """
    order = np.argsort(keys)
    rising = keys[order]
    vectors: Vectors | None = None
    for part in embeddings:
        table = read_part(run.store, part)
        column = table["vector"].combine_chunks()
        if vectors is None:
            vectors = in_a_file((len(keys), column.type.list_size))
        rows = order[np.searchsorted(rising, prefixes_of(table["id"]))]
        vectors[rows] = unit(column.flatten().to_numpy().reshape(len(table), -1))
    return np.zeros((len(keys), 1), np.float32) if vectors is None else vectors


def in_a_file(shape: tuple[int, int]) -> Vectors:
    """Zeros. Raises OSError where the disk has no room: later, in mapped memory, that would be a crash."""
    n_bytes = shape[0] * shape[1] * np.dtype(np.float32).itemsize
    with TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:
            file.truncate(n_bytes)
        return np.memmap(file, np.float32, "r+", shape=shape)
