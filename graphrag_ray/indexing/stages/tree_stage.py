"""The tree of summaries (`graph/summary_tree.py`) as a run builds it: level upon level, the nodes are
clustered, a summary is written of each cluster, and embedded.

Groups of nodes are clustered by tasks, one a group. The driver holds integers and the vectors of a level:
those of the chunks in a mapped file, those of summaries, and in an update of the clusters' means, in memory.
Each level is stored with its clusters, since an update starts from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.nearest_neighbours import Vectors
from graphrag_ray.graph.plan import CHUNK, HEADING_TOKENS, NUMBER_TOKENS, REPORT
from graphrag_ray.graph.report_context import Count, record_tokens, source
from graphrag_ray.graph.schedule import ReportsAlone
from graphrag_ray.graph.soft_clusters import Reduction, soft_clusters
from graphrag_ray.graph.summary_dialogue import context_tokens, longest_record
from graphrag_ray.graph.summary_tree import (
    MOST_NODES,
    Clusters,
    EarlierLevel,
    Keys,
    SummaryTree,
    TreeLevel,
    bounded,
    goes_on,
    groups,
    in_order,
    kept,
    main_clusters,
    with_divided,
)
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.communities_stage import IN_CONTEXTS, ElementBlocks, blocks_of, lay_out
from graphrag_ray.indexing.stages.embed_stage import embed_chunks
from graphrag_ray.indexing.stages.graph_hierarchy import (
    ELEMENTS_AT_ONCE,
    Placed,
    ReportsSoFar,
    community_rows,
    finished_reports,
    numbered_by_level,
    vectors_of,
)
from graphrag_ray.indexing.stages.reports_stage import (
    PART_ROWS,
    ReportWork,
    batches_by_number,
    failures_of,
    report_tables,
)
from graphrag_ray.indexing.stages.short_ids import Numbers, prefixes_of, read_arrays, write_arrays
from graphrag_ray.indexing.step_result import Result, by_input, joined
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

KIND = HIERARCHIES["tree"]
STEP = "tree"
FEW_CHUNKS = 150
"""Fewer chunks than these are reduced by principal components, whatever the settings say: the clusters are as
close, and compiling UMAP would take longer than all else, up to minutes on a busy machine."""
_COUNTED = pa.schema([("at", pa.int64()), ("tokens", pa.list_(pa.int64()))])
_GROUP = pa.schema([("at", pa.int64()), ("members", pa.list_(pa.int64()))])
"""A row for each cluster, since tables come in pieces of some rows."""


@dataclass(frozen=True)
class TreeHierarchy:
    """See `BuiltHierarchy`. chunks: table text_units of the run."""

    tree: SummaryTree
    ids: list[str]
    reports: Result
    results: Sequence[Result]
    counts: Mapping[str, Any]
    chunks: Sequence[Part]

    @property
    def level(self) -> Ints:
        return self.tree.level

    def numbers(self, run: Run) -> dict[str, Numbers]:
        return numbered_by_level(run, KIND, self.ids, self.level)

    def tables(self, run: Run, numbers: Callable[[], dict[str, Numbers]], period: str) -> Result:
        ids = pa.array(self.ids, pa.string())
        own = numbers()[KIND.communities].of(ids)
        _ = self.tree.texts  # else each task would put these together for itself
        placed: Callable[[], Placed] = run.executor.share((KIND, self.tree, ids, own))
        chunk_ids = run.executor.share(_column(run, self.chunks, "id", pa.string()))
        every, periods = np.ones(len(ids), np.bool_), [period] * len(ids)
        batches = batches_by_number(self.ids, self.level, own, every, self.tree.sizes(), ELEMENTS_AT_ONCE)
        make = partial(_cluster_table, placed, chunk_ids, period)
        written = run.map("finish", make, [np.array(batch) for batch in batches])
        clusters = Result(by_input(written, KIND.communities))
        return joined([clusters, finished_reports(run, numbers, placed, KIND, self.reports, periods)])


def build_tree(run: Run, corpus: Result, graph: ExtractedGraph | None) -> TreeHierarchy:
    """The tree over all chunks. graph: there may be none."""
    embedded = embed_chunks(run, corpus)
    made = _Chunks(run, corpus, embedded).write()
    levels, ids, main = [], list[str](), []
    for parts in made.tables["levels"]:
        level, arrays = _level(run, parts)
        levels.append(level.clusters)
        main.append(arrays["main"])
        ids = [*arrays["id"].tolist(), *ids]
    tree = SummaryTree(levels, main)
    counts = {"levels": {f"C{k}": int((tree.level == k).sum()) for k in range(len(levels))}}
    return TreeHierarchy(tree, ids, made, (embedded, made), counts, corpus.parts("text_units"))


@dataclass
class _Levels(ReportsSoFar):
    """levels: the levels so far, that of the chunks first; keys: of the nodes of each; main: see
    `main_clusters`"""

    levels: list[TreeLevel] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    main: list[Ints] = field(default_factory=list)


@dataclass(frozen=True)
class _Chunks:
    """embedded: table embeddings_text_unit."""

    run: Run
    corpus: Result
    embedded: Result

    def write(self) -> Result:
        """Tables levels (a group each, that of the chunks first), reports and failures."""
        run, options = self.run, self.run.settings.tree
        budget = context_tokens(options, run.settings.chunking)
        asking = ReportWork.of_summaries(run, {}, budget)

        def compute() -> Result:
            so_far = _Levels(KIND)
            parts = self.corpus.parts("text_units")
            keys = prefixes_of(_column(run, parts, "id", pa.string()))
            vectors = vectors_of(run, self.embedded.parts("embeddings_text_unit"), keys)
            reduction = options.reduction if len(keys) >= FEW_CHUNKS else "pca"
            # Of the chunks' records, in the vocabulary of the model that summarises.
            counted: list[Any] = [np.zeros(0, np.int64)] * len(parts)
            work = partial(_count, asking.budget.count)
            for table in run.executor.stream(STEP, work, list(enumerate(parts))):
                counted[table["at"][0].as_py()] = table["tokens"].combine_chunks().flatten().to_numpy()
            tokens = np.concatenate([np.zeros(0, np.int64), *counted])
            named = keys  # as the ids of what stands there, where `keys` stay
            while goes_on(len(keys), len(so_far.levels), options.max_levels):
                level = self._clustered(len(so_far.levels), keys, tokens, vectors, budget, reduction)
                there = np.bincount(level.clusters.member, minlength=len(keys))
                assert there.all(), "every node is in a cluster"
                if len(level.clusters) >= len(keys) > 1:
                    break  # one more level would say the same again
                so_far.levels.append(level)
                so_far.keys.append(keys)
                so_far.main.append(main_clusters(level.clusters, vectors))
                height = len(so_far.levels) - 1
                so_far.begin([community_id(KIND.name, height, named[own]) for own in level.clusters])
                tokens = self._write_level(so_far, tokens, budget)
                vectors = so_far.embed(run, STEP, level.clusters, vectors)
                keys, named = level.born, prefixes_of(pa.array(so_far.ids[-1], pa.string()))
            return self._stored(asking, so_far)

        depends_on = [self.corpus.tables["text_units"], self.embedded, *asking.depends_on, options]
        depends_on += [budget, run.settings.embeddings]
        return run.step(STEP, depends_on, compute, asking.work.name)

    def _clustered(
        self, height: int, keys: Keys, tokens: Ints, vectors: Vectors, budget: int, reduction: Reduction
    ) -> TreeLevel:
        """A level, that of the parent snapshot as far as it goes."""
        most = budget - HEADING_TOKENS
        # One that has no summary yet may have one in the next run.
        whole_tokens = np.where(tokens > 0, tokens, self.run.settings.tree.max_output_tokens)
        tokens = np.minimum(whole_tokens, longest_record(budget)) + NUMBER_TOKENS
        before = kept(keys, vectors, tokens, most, _earlier(self.run, height, budget))
        whole = groups(vectors) if before is None else before.divided
        pieces, of = bounded(whole, vectors)
        parts: list[list[Ints]] = [[] for _ in whole]
        for at, clusters in zip(of, self._divided(pieces, tokens, vectors, most, reduction), strict=True):
            parts[at] += clusters
        names = [
            np.array(
                [int(community_id(f"{KIND.name}, born", height, keys[own])[:16], 16) for own in of_group],
                dtype=np.uint64,
            )
            for of_group in parts
        ]
        if before is not None:
            return with_divided(before, parts, names)
        every = [own for of_group in parts for own in of_group]
        return in_order(every, [name for named in names for name in named.tolist()])

    def _divided(
        self, whole: Sequence[Ints], tokens: Ints, vectors: Vectors, most: int, reduction: Reduction
    ) -> list[list[Ints]]:
        """The clusters of each group, by tasks."""
        inputs = _Inputs(_together(whole), whole, tokens, vectors)
        found: list[list[Ints]] = [[] for _ in whole]
        work = partial(_divide, most, reduction)
        for table in self.run.executor.stream(STEP, work, inputs):
            for row in table.to_pylist():
                found[row["at"]].append(whole[row["at"]][np.array(row["members"], dtype=np.int64)])
        return found

    def _write_level(self, so_far: _Levels, tokens: Ints, budget: int) -> Ints:
        """Write the summaries of the last level; tokens of each one's record, 0 where there is none.
        tokens: of the nodes."""
        run, clusters = self.run, so_far.levels[-1].clusters
        height = len(so_far.levels) - 1
        blocks: Mapping[str, ElementBlocks] = {}
        places = None
        if not height:
            order = np.argsort(so_far.main[0], kind="stable")
            groups_of = self.corpus.tables["text_units"]
            own = so_far.keys[0], None, IN_CONTEXTS["text_units"]
            laid_out = lay_out(run, STEP, "text_units", groups_of, order, *own)
            blocks = blocks_of(laid_out, ["text_units"])
            places = np.empty(len(order), dtype=np.int64)
            places[order] = np.arange(len(order))
        known = [n or None for n in tokens.tolist()]
        kind, longest = REPORT if height else CHUNK, longest_record(budget)
        planned = partial(
            ReportsAlone, clusters, known, budget, kind, in_order=True, places=places, longest=longest
        )

        work = ReportWork.of_summaries(run, blocks, budget).work
        so_far.write(run, work, planned, partial(_called, height), planned().without)
        return np.array([n or 0 for n in so_far.record_tokens(height)], dtype=np.int64)

    def _stored(self, asking: ReportWork, so_far: _Levels) -> Result:
        run = self.run
        tables: dict[str, list[list[Part]]] = {"levels": []}
        for level, keys, main, ids in zip(so_far.levels, so_far.keys, so_far.main, so_far.ids, strict=True):
            arrays = {
                "key": keys,
                "cluster": level.clusters.of_member,
                "member": level.clusters.member,
                "born": level.born,
                "main": main,
                "id": pa.array(ids, pa.string()),
                "usual": np.array([level.usual]),
            }
            tables["levels"].append(write_arrays(run, STEP, "levels", arrays))
        tree = SummaryTree([level.clusters for level in so_far.levels], so_far.main)
        places = zip(tree.first.tolist(), tree.levels, strict=True)
        reports = so_far.by_community(first + np.arange(len(clusters)) for first, clusters in places)
        of_all = [""] * len(tree.level)
        for first, of_level in zip(tree.first.tolist(), so_far.ids, strict=True):
            of_all[first : first + len(of_level)] = of_level
        rows = report_tables(reports, tree.level, of_all)
        parts = run.write(STEP, "reports", rows, max_rows=PART_ROWS)
        tables["reports"] = [[part] for part in parts]
        tables["failures"] = [failures_of(run, asking.work, so_far.failed)]
        counts: dict[str, Any] = {"summaries": len(reports), "failed_summaries": len(so_far.failed)}
        made_from = {"clusters": [run.settings.tree.reduction, str(asking.budget.tokens)]}
        return Result(tables, counts, so_far.nothing_to_retry, made_from)


@dataclass(frozen=True)
class _Inputs(Sequence[tuple[list[tuple[int, Ints]], Ints, Vectors]]):
    """What tasks work on: some groups, tokens and vectors of their nodes, read when a task begins."""

    batches: Sequence[Sequence[int]]
    whole: Sequence[Ints]
    tokens: Ints
    vectors: Vectors

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        own = self.batches[at]
        rows = np.concatenate([self.whole[group] for group in own])
        bounds = np.cumsum([0, *(len(self.whole[group]) for group in own)])
        inside = [(g, np.arange(a, b)) for g, a, b in zip(own, bounds[:-1], bounds[1:], strict=True)]
        return inside, self.tokens[rows], np.array(self.vectors[rows])


def _together(whole: Sequence[Ints]) -> list[list[int]]:
    """Small groups that one task does, in order."""
    batches: list[list[int]] = []
    held = MOST_NODES
    for group, own in enumerate(whole):
        if held + len(own) > MOST_NODES:
            batches.append([])
            held = 0
        batches[-1].append(group)
        held += len(own)
    return batches


def _divide(
    most: int, reduction: Reduction, store: Store, x: tuple[list[tuple[int, Ints]], Ints, Vectors]
) -> Iterator[pa.Table]:
    own, tokens, vectors = x
    for group, rows in own:
        clusters = soft_clusters(vectors[rows], tokens[rows], most, reduction)
        members = pa.array([own.tolist() for own in clusters], pa.list_(pa.int64()))
        yield pa.table([pa.array([group] * len(clusters), pa.int64()), members], schema=_GROUP)


def _count(count: Count, store: Store, x: tuple[int, Part]) -> Iterator[pa.Table]:
    at, part = x
    rows = read_part(store, part, ["id", "text", "header"]).to_pylist()
    tokens = [record_tokens(source(row["id"], row["text"], row["header"]), count) for row in rows]
    yield pa.table([pa.array([at]), pa.array([tokens], pa.list_(pa.int64()))], schema=_COUNTED)


def _called(height: int, id_: str) -> str:
    above = f", {height} above those of chunks" if height else ""
    return f"summary {id_}{above}"


def _cluster_table(
    placed: Callable[[], Placed], chunk_ids: Callable[[], pa.Array], period: str, store: Store, wanted: Ints
) -> Iterator[Tables]:
    tree, every = placed()[1], chunk_ids()
    assert isinstance(tree, SummaryTree)
    texts = [every.take(pa.array(tree.texts[c])).to_pylist() for c in wanted.tolist()]
    none: list[list[str]] = [[] for _ in texts]
    own: dict[str, Any] = {"entity_ids": none, "relationship_ids": none, "text_unit_ids": texts}
    own["packed"] = [False] * len(texts)
    periods = [period] * len(tree.level)
    yield {KIND.communities: community_rows(placed(), wanted, "Summary", periods, own)}


def _column(run: Run, parts: Sequence[Part], name: str, type_: pa.DataType) -> pa.Array:
    table = read_table(run.store, parts, [name], pa.schema([(name, type_)]))
    found = table[name].combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _level(run: Run, parts: Sequence[Part]) -> tuple[TreeLevel, dict[str, Any]]:
    """What `_stored` kept of a level."""
    a = read_arrays(run.store, parts)
    bounds = np.searchsorted(a["cluster"], np.arange(len(a["born"]) + 1))
    return TreeLevel(Clusters(a["member"], bounds), a["born"], float(a["usual"][0])), a


def _earlier(run: Run, height: int, budget: int) -> EarlierLevel | None:
    """A level of the parent snapshot; None where there is none, its clusters were made by other settings, or
    it is damaged."""
    parent = run.parent
    if parent is None or STEP not in parent.steps or STEP in run.afresh:
        return None
    before = run.of_parent[STEP]
    levels = before.tables.get("levels", [])
    alike = before.made_from.get("clusters") == [run.settings.tree.reduction, str(budget)]
    if not alike or height >= len(levels) or run.lost(levels[height]):
        return None
    level, arrays = _level(run, levels[height])
    return EarlierLevel(level, arrays["key"])
