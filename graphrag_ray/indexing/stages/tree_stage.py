"""Build the summary tree (`graph/summary_tree.py`): cluster a level, summarise and embed the clusters.

Tasks cluster groups of nodes. The driver needs integers and the vectors of one level: the vectors of chunks
are in a memory-mapped file, the vectors of summaries (and in an update, the means of clusters) are in memory.
Each level is stored with its clusters, from which an update starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id
from graphrag_ray.corpus.chunks import with_opening
from graphrag_ray.corpus.document_titles import document_label
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph import summary_tree
from graphrag_ray.graph.context_plan import CHUNK, HEADING_TOKENS, NUMBER_TOKENS, REPORT
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.report_context import Count, count_record_tokens, source_record
from graphrag_ray.graph.report_schedule import LevelSchedule
from graphrag_ray.graph.soft_clusters import Reduction, soft_clusters
from graphrag_ray.graph.summary_dialogue import context_tokens, max_record_tokens
from graphrag_ray.graph.summary_tree import Clusters, Keys, SummaryTree, TreeLevel
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import communities_stage, hierarchy_tables, reports_stage
from graphrag_ray.indexing.stages.document_periods import Periods, chunk_periods
from graphrag_ray.indexing.stages.embed_stage import embed_chunks
from graphrag_ray.indexing.stages.hierarchy_tables import LevelReports, Positions
from graphrag_ray.indexing.stages.reports_stage import ReportWork
from graphrag_ray.indexing.stages.short_ids import ShortIds, id_keys, read_arrays, write_arrays
from graphrag_ray.indexing.step_result import Result, count_rows, join_results, parts_by_input
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

KIND = HIERARCHIES["tree"]
STEP = "tree"
MIN_UMAP_CHUNKS = 150
"""Below this number of chunks, dimensions are always reduced with principal components: the clusters are as
good, and compiling UMAP can take minutes on a busy machine."""
_TOKENS = pa.schema([("at", pa.int64()), ("tokens", pa.list_(pa.int64()))])
_CLUSTER = pa.schema([("at", pa.int64()), ("members", pa.list_(pa.int64()))])


@dataclass(frozen=True)
class TreeHierarchy:
    """The summary tree; see `BuiltHierarchy`."""

    tree: SummaryTree
    ids: list[str]
    reports: Result
    results: Sequence[Result]
    counts: Mapping[str, Any]
    corpus: Result

    @property
    def level(self) -> Ints:
        return self.tree.level

    def short_ids(self, run: Run) -> dict[str, ShortIds]:
        return hierarchy_tables.short_ids_by_level(run, KIND, self.ids, self.level)

    def write_tables(self, run: Run, numbers: Callable[[], dict[str, ShortIds]], period: str) -> Result:
        ids = pa.array(self.ids, pa.string())
        short_ids = numbers()[KIND.communities_table].look_up(ids)
        _ = self.tree.texts  # Compute it here once, rather than in each task.
        periods = [period] * len(ids)
        _, chunk = chunk_periods(run, self.corpus)
        covered = merge_members(chunk, self.tree.texts)
        positions = run.executor.share(Positions(KIND, self.tree, ids, short_ids, periods, covered))
        chunks = read_table(run.store, self.corpus.parts("text_units"), ["id"], schema.TEXT_UNITS)
        chunk_ids = run.executor.share(chunks["id"].combine_chunks())
        all_clusters, sizes = np.ones(len(ids), np.bool_), self.tree.sizes()
        batches = reports_stage.community_batches(
            self.ids, self.level, short_ids, all_clusters, sizes, hierarchy_tables.PART_ELEMENTS
        )
        make = partial(_cluster_table, positions, chunk_ids)
        written = run.map("finish", make, [np.array(batch) for batch in batches])
        clusters = Result(parts_by_input(written, KIND.communities_table))
        return join_results(
            [clusters, hierarchy_tables.finish_reports(run, numbers, positions, KIND, self.reports)]
        )


def build_tree(run: Run, corpus: Result, graph: ExtractedGraph | None) -> TreeHierarchy:
    """Build the tree over all chunks. The graph is not used."""
    embedded = embed_chunks(run, corpus)
    result = _Builder(run, corpus, embedded).build()
    levels, ids, main = [], list[str](), []
    for parts in result.tables["levels"]:
        level, arrays = _read_level(run, parts)
        levels.append(level.clusters)
        main.append(arrays["main"])
        ids = [*arrays["id"].tolist(), *ids]
    tree = SummaryTree(levels, main)
    counts = {"levels": {f"C{k}": int((tree.level == k).sum()) for k in range(len(levels))}}
    return TreeHierarchy(tree, ids, result, (embedded, result), counts, corpus)


def merge_members(periods: Periods, clusters: Clusters) -> Periods:
    """Return the period of each cluster, given those of the members."""
    cluster = np.repeat(np.arange(len(clusters)), np.diff(clusters.bounds))
    return periods.take(clusters.member).merge(cluster, len(clusters))


@dataclass
class _Levels(LevelReports):
    """The levels built so far, with the keys of their nodes and their `main_clusters`."""

    levels: list[TreeLevel] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    main: list[Ints] = field(default_factory=list)


@dataclass(frozen=True)
class _Builder:
    """Builds the tree from the corpus and table embeddings_text_unit."""

    run: Run
    corpus: Result
    embedded: Result

    def build(self) -> Result:
        """Return tables levels (a group per level, lowest first), reports and failures."""
        run, options = self.run, self.run.settings.tree
        budget = context_tokens(options, run.settings.chunking)
        requests = ReportWork.for_summaries(run, {}, budget)

        def compute() -> Result:
            built = _Levels(KIND, "summary {}")
            units = self._units(requests)
            parts = [part for group in units for part in group]
            keys = id_keys(read_table(run.store, parts, ["id"], schema.TEXT_UNITS)["id"])
            vectors = hierarchy_tables.load_vectors(run, self.embedded.parts("embeddings_text_unit"), keys)
            reduction = options.dimensionality_reduction if len(keys) >= MIN_UMAP_CHUNKS else "pca"
            # Tokens of the chunks' records, in the vocabulary of the model that writes summaries.
            counts: list[Any] = [np.zeros(0, np.int64)] * len(parts)
            count = partial(_count_tokens, requests.budget.count)
            for table in run.executor.stream(STEP, count, list(enumerate(parts))):
                counts[table["at"][0].as_py()] = table["tokens"].combine_chunks().flatten().to_numpy()
            tokens = np.concatenate([np.zeros(0, np.int64), *counts])
            periods = chunk_periods(run, self.corpus)[1] if requests.shows_period else None
            node_keys = keys  # Keys of the nodes' ids. Unlike these, `keys` survive an update.
            while summary_tree.has_next_level(len(keys), len(built.levels), options.max_levels):
                height = len(built.levels)
                level = self._cluster(height, keys, tokens, vectors, budget, reduction)
                n_clusters_of = np.bincount(level.clusters.member, minlength=len(keys))
                assert n_clusters_of.all(), "every node is in a cluster"
                if len(level.clusters) >= len(keys) > 1:
                    break  # Another level would not condense anything.
                built.levels.append(level)
                built.keys.append(keys)
                built.main.append(summary_tree.main_clusters(level.clusters, vectors))
                built.begin(
                    [community_id(KIND.name, height, node_keys[members]) for members in level.clusters]
                )
                if periods:
                    periods = merge_members(periods, level.clusters)
                tokens = self._write_level(built, units, tokens, budget, periods)
                vectors = built.embed(run, STEP, level.clusters, vectors)
                keys, node_keys = level.names, id_keys(pa.array(built.ids[-1], pa.string()))
            return self._write_result(requests, built)

        depends_on = [self.corpus.tables["text_units"], self.embedded, *requests.depends_on, options]
        depends_on += [budget, run.settings.embeddings]
        if self._labels_documents(requests) or requests.shows_period:
            depends_on.append(self.corpus.tables["documents"])
        return run.step(STEP, depends_on, compute, requests.work.name)

    def _labels_documents(self, requests: ReportWork) -> bool:
        return bool(requests.spec.rules)

    def _units(self, requests: ReportWork) -> Sequence[Sequence[Part]]:
        """Return chunks as contexts show them, in groups: with the label of their document as `header`."""
        units = self.corpus.tables["text_units"]
        if not self._labels_documents(requests):
            return units
        groups = list(zip(units, self.corpus.tables["documents"], strict=True))
        return parts_by_input(self.run.map(STEP, _label_units, groups), "units")["units"]

    def _cluster(
        self, height: int, keys: Keys, tokens: Ints, vectors: Vectors, budget: int, reduction: Reduction
    ) -> TreeLevel:
        """Cluster a level, starting from the parent snapshot's level as far as possible."""
        limit = budget - HEADING_TOKENS
        # A node without a summary may get one in the next run.
        tokens = np.where(tokens > 0, tokens, self.run.settings.tree.max_output_tokens)
        tokens = np.minimum(tokens, max_record_tokens(budget)) + NUMBER_TOKENS
        before = summary_tree.update_level(
            keys, vectors, tokens, limit, _parent_level(self.run, height, budget)
        )
        whole = summary_tree.partition_into_groups(vectors) if before is None else before.divided
        pieces, group_of = summary_tree.split_large_sets(whole, vectors)
        by_group: list[list[Ints]] = [[] for _ in whole]
        inputs = _TaskInputs(_batches(pieces), pieces, tokens, vectors)
        by_piece: list[list[Ints]] = [[] for _ in pieces]
        for table in self.run.executor.stream(STEP, partial(_cluster_groups, limit, reduction), inputs):
            for row in table.to_pylist():
                by_piece[row["at"]].append(pieces[row["at"]][np.array(row["members"], dtype=np.int64)])
        for group, clusters in zip(group_of, by_piece, strict=True):
            by_group[group] += clusters
        names = [
            np.array(
                [int(community_id(f"{KIND.name}, born", height, keys[rows])[:16], 16) for rows in clusters],
                dtype=np.uint64,
            )
            for clusters in by_group
        ]
        if before is not None:
            return summary_tree.merge_divided(before, by_group, names)
        return summary_tree.sorted_level(
            [rows for clusters in by_group for rows in clusters],
            [name for group_names in names for name in group_names.tolist()],
        )

    def _write_level(
        self,
        built: _Levels,
        units: Sequence[Sequence[Part]],
        tokens: Ints,
        budget: int,
        periods: Periods | None,
    ) -> Ints:
        """Write the summaries of the last level. `tokens` are the tokens of each node's record.

        Returns the tokens of each summary's record, or 0 for a cluster without a summary.
        """
        run, clusters = self.run, built.levels[-1].clusters
        height = len(built.levels) - 1
        blocks: Mapping[str, communities_stage.ElementBlocks] = {}
        positions = None
        if not height:
            order = np.argsort(built.main[0], kind="stable")
            columns = communities_stage.CONTEXT_COLUMNS["text_units"]
            stored = communities_stage.write_blocks(
                run, STEP, "text_units", units, order, built.keys[0], None, columns
            )
            blocks = communities_stage.element_blocks(stored, ["text_units"])
            positions = np.empty(len(order), dtype=np.int64)
            positions[order] = np.arange(len(order))
        schedule = partial(
            LevelSchedule,
            clusters,
            [n or None for n in tokens.tolist()],
            budget,
            REPORT if height else CHUNK,
            sort_by_number=True,
            indices=positions,
            max_record_tokens=max_record_tokens(budget),
        )
        work = ReportWork.for_summaries(run, blocks, budget).work
        built.write(run, work, schedule, schedule().without_inputs, periods=periods)
        return np.array([n or 0 for n in built.record_tokens(height)], dtype=np.int64)

    def _write_result(self, requests: ReportWork, built: _Levels) -> Result:
        run = self.run
        tables: dict[str, list[list[Part]]] = {"levels": []}
        for level, keys, main, ids in zip(built.levels, built.keys, built.main, built.ids, strict=True):
            arrays = {
                "key": keys,
                "cluster": level.clusters.cluster_of_member,
                "member": level.clusters.member,
                "born": level.names,
                "main": main,
                "id": pa.array(ids, pa.string()),
                "usual": np.array([level.average_size]),
            }
            tables["levels"].append(write_arrays(run, STEP, "levels", arrays))
        tree = SummaryTree([level.clusters for level in built.levels], built.main)
        first_and_level = zip(tree.first.tolist(), tree.levels, strict=True)
        communities = [first + np.arange(len(clusters)) for first, clusters in first_and_level]
        written, _ = built.write_tables(run, STEP, requests.work, tree.level, communities)
        n_summaries = count_rows(written["reports"])
        counts: dict[str, Any] = {"summaries": n_summaries, "failed_summaries": len(built.failed)}
        made_from = {"clusters": [run.settings.tree.dimensionality_reduction, str(requests.budget.tokens)]}
        return Result(tables | written, counts, built.nothing_to_retry, made_from)


@dataclass(frozen=True)
class _TaskInputs(Sequence[tuple[list[tuple[int, Ints]], Ints, Vectors]]):
    """Inputs of clustering tasks, created lazily: groups, and the tokens and vectors of their nodes."""

    batches: Sequence[Sequence[int]]
    groups: Sequence[Ints]
    tokens: Ints
    vectors: Vectors

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        batch = self.batches[index]
        rows = np.concatenate([self.groups[group] for group in batch])
        bounds = np.cumsum([0, *(len(self.groups[group]) for group in batch)])
        local = [(g, np.arange(a, b)) for g, a, b in zip(batch, bounds[:-1], bounds[1:], strict=True)]
        return local, self.tokens[rows], np.array(self.vectors[rows])


def _batches(groups: Sequence[Ints]) -> list[list[int]]:
    """Batch consecutive small groups into tasks."""
    batches: list[list[int]] = []
    size = summary_tree.MAX_NODES
    for number, group in enumerate(groups):
        if size + len(group) > summary_tree.MAX_NODES:
            batches.append([])
            size = 0
        batches[-1].append(number)
        size += len(group)
    return batches


def _cluster_groups(
    limit: int, reduction: Reduction, store: Store, batch: tuple[list[tuple[int, Ints]], Ints, Vectors]
) -> Iterator[pa.Table]:
    groups, tokens, vectors = batch
    for group, rows in groups:
        clusters = soft_clusters(vectors[rows], tokens[rows], limit, reduction)
        members = pa.array([cluster.tolist() for cluster in clusters], pa.list_(pa.int64()))
        yield pa.table([pa.array([group] * len(clusters), pa.int64()), members], schema=_CLUSTER)


def _label_units(store: Store, group: tuple[list[Part], list[Part]]) -> Iterator[Tables]:
    units, documents = group
    columns = ["id", "title", "creation_date", "path", "row"]
    label_of = {
        row["id"]: document_label(row["title"], row["creation_date"], row["path"] or "", row["row"] or "")
        for row in read_table(store, documents, columns, schema.DOCUMENTS).to_pylist()
    }
    for part in units:
        table = read_part(store, part, ["id", "text", "document_id", "header"])
        documents_and_headers = (table[name].to_pylist() for name in ("document_id", "header"))
        labels = [
            with_opening(label_of.get(document, ""), header)
            for document, header in zip(*documents_and_headers, strict=True)
        ]
        yield {"units": table.select(["id", "text"]).append_column("header", pa.array(labels, pa.string()))}


def _count_tokens(count: Count, store: Store, numbered_part: tuple[int, Part]) -> Iterator[pa.Table]:
    number, part = numbered_part
    rows = read_part(store, part, ["id", "text", "header"]).to_pylist()
    tokens = [
        count_record_tokens(source_record(row["id"], row["text"], row["header"]), count) for row in rows
    ]
    yield pa.table([pa.array([number]), pa.array([tokens], pa.list_(pa.int64()))], schema=_TOKENS)


def _cluster_table(
    positions: Callable[[], Positions], chunk_ids: Callable[[], pa.Array], store: Store, wanted: Ints
) -> Iterator[Tables]:
    tree, ids = positions().hierarchy, chunk_ids()
    assert isinstance(tree, SummaryTree)
    chunks = [ids.take(pa.array(tree.texts[c])).to_pylist() for c in wanted.tolist()]
    none: list[list[str]] = [[] for _ in chunks]
    columns: dict[str, Any] = {"entity_ids": none, "relationship_ids": none, "text_unit_ids": chunks}
    columns["packed"] = [False] * len(chunks)
    yield {KIND.communities_table: hierarchy_tables.community_rows(positions(), wanted, "Summary", columns)}


def _read_level(run: Run, parts: Sequence[Part]) -> tuple[TreeLevel, dict[str, Any]]:
    a = read_arrays(run.store, parts)
    bounds = np.searchsorted(a["cluster"], np.arange(len(a["born"]) + 1))
    return TreeLevel(Clusters(a["member"], bounds), a["born"], float(a["usual"][0])), a


def _parent_level(run: Run, height: int, budget: int) -> summary_tree.PreviousLevel | None:
    """Read a level of the parent snapshot. Returns None if it is missing or damaged, or settings differ."""
    parent = run.parent
    if parent is None or STEP not in parent.steps or STEP in run.forced_steps:
        return None
    before = run.parent_results[STEP]
    levels = before.tables.get("levels", [])
    is_same = before.made_from.get("clusters") == [run.settings.tree.dimensionality_reduction, str(budget)]
    if not is_same or height >= len(levels) or run.has_lost_parts(levels[height]):
        return None
    level, arrays = _read_level(run, levels[height])
    return summary_tree.PreviousLevel(level, arrays["key"])
