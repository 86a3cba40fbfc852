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
import numpy.typing as npt
import pyarrow as pa
from pydantic import ValidationError

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id
from graphrag_ray.base.index_settings import Chunking, Tree
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
from graphrag_ray.indexing.stages.blocks import IN_CONTEXTS, ElementBlocks, blocks_of, lay_out
from graphrag_ray.indexing.stages.embed_stage import embed_chunks
from graphrag_ray.indexing.stages.graph_hierarchy import (
    Placed,
    ReportsSoFar,
    finished_reports,
    in_batches,
    numbered_by_level,
    vectors_of,
)
from graphrag_ray.indexing.stages.reports_stage import (
    PART_ROWS,
    ReportSource,
    ReportWork,
    failures_of,
    report_tables,
    settled,
)
from graphrag_ray.indexing.stages.short_ids import Numbers, prefixes_of
from graphrag_ray.indexing.step_result import Result, by_input, joined
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import by_row
from graphrag_ray.store.parts import Part, read_part, read_table

KIND = HIERARCHIES["tree"]
STEP = "tree"
FEW_CHUNKS = 150
"""Fewer chunks than these are reduced by principal components, whatever the settings say: the clusters are as
close, and compiling UMAP would take longer than all else, up to minutes on a busy machine."""
_COUNTED = pa.schema([("at", pa.int64()), ("tokens", pa.list_(pa.int64()))])
_GROUP = pa.schema([("at", pa.int64()), ("members", pa.list_(pa.int64()))])
"""A row for each cluster, since tables come in pieces of some rows."""
_LEVEL = {
    "tree_nodes": {"key": pa.uint64()},
    "tree_members": {"cluster": pa.int64(), "member": pa.int64()},
    "tree_born": {"born": pa.uint64()},
    "tree_main": {"main": pa.int64()},
    "tree_ids": {"id": pa.string()},
}
"""Tables of the step, a group of parts a level, that of the chunks first: what names the nodes, the members
of each cluster, what names the clusters, the main cluster of each node, and the clusters' ids."""


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
        order = np.lexsort((np.arange(len(ids)), self.level))
        inputs = in_batches(order, self.tree.sizes()[order])
        written = run.map("finish", partial(_cluster_table, placed, chunk_ids, period), inputs)
        clusters = Result(by_input(written, KIND.communities))
        periods = [period] * len(ids)
        return joined([clusters, finished_reports(run, numbers, placed, KIND, self.reports, periods)])


def build_tree(run: Run, corpus: Result, graph: ExtractedGraph | None) -> TreeHierarchy:
    """The tree over all chunks. graph: there may be none."""
    embedded = embed_chunks(run, corpus)
    made = _Chunks(run, corpus, embedded).write()
    levels, ids, main = [], list[str](), []
    for at in range(len(made.tables["tree_nodes"])):
        levels.append(_level(run, made, at).clusters)
        main.append(_numbers(run, made, "tree_main", "main", at))
        ids = [*_column(run, made.tables["tree_ids"][at], "id", pa.string()).to_pylist(), *ids]
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
        """The tables of `_LEVEL`, reports and failures."""
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
        run, ids, clusters = self.run, so_far.ids[-1], so_far.levels[-1].clusters
        height = len(so_far.levels) - 1
        blocks: Mapping[str, ElementBlocks] = {}
        below = places = None
        if height:
            below = so_far.below()
        else:
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

        def plan() -> ReportSource:
            schedule = planned()
            return ReportSource(schedule, lambda c: _called(height, ids[c]), ids, None, below, KIND.section)

        source = settled(run, ReportWork.of_summaries(run, blocks, budget).work, plan)
        so_far.take(source, lambda c: _called(height, ids[c]), planned().without)
        return np.array([n or 0 for n in so_far.record_tokens(height)], dtype=np.int64)

    def _stored(self, asking: ReportWork, so_far: _Levels) -> Result:
        run = self.run
        tables: dict[str, list[list[Part]]] = {name: [] for name in _LEVEL}
        each = zip(so_far.levels, so_far.keys, so_far.main, so_far.ids, strict=True)
        for level, keys, main, ids in each:
            columns: list[dict[str, Any]] = [
                {"key": keys},
                {"cluster": level.clusters.of_member, "member": level.clusters.member},
                {"born": level.born},
                {"main": main},
                {"id": ids},
            ]
            for (name, types), values in zip(_LEVEL.items(), columns, strict=True):
                arrays = {column: pa.array(values[column], type_) for column, type_ in types.items()}
                tables[name].append(run.write(STEP, name, [pa.table(arrays)]))
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
        counts["usual"] = [round(level.usual, 3) for level in so_far.levels]
        return Result(tables, counts, so_far.nothing_to_retry)


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
    kind, tree, ids, numbers = placed()
    assert isinstance(tree, SummaryTree)
    every = chunk_ids()
    rows = []
    for c in wanted.tolist():
        texts = tree.texts[c]
        rows.append(
            {
                "id": ids[c].as_py(),
                "human_readable_id": int(numbers[c]),
                "community": int(numbers[c]),
                "level": int(tree.level[c]),
                "parent": int(numbers[tree.parent[c]]) if tree.parent[c] >= 0 else -1,
                "children": [int(numbers[k]) for k in tree.children(c)],
                "title": f"Summary {numbers[c]}",
                "entity_ids": [],
                "relationship_ids": [],
                "text_unit_ids": every.take(pa.array(texts)).to_pylist(),
                "period": period,
                "size": len(texts),
                "hierarchy": kind.name,
                "packed": False,
            }
        )
    yield {kind.communities: by_row(pa.Table.from_pylist(rows, schema=schema.COMMUNITIES))}


def _column(run: Run, parts: Sequence[Part], name: str, type_: pa.DataType) -> pa.Array:
    table = read_table(run.store, parts, [name], pa.schema([(name, type_)]))
    found = table[name].combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _numbers(run: Run, made: Result, name: str, column: str, at: int) -> Any:
    return _column(run, made.tables[name][at], column, _LEVEL[name][column]).to_numpy()


def _level(run: Run, made: Result, at: int) -> TreeLevel:
    """What `_stored` kept."""
    cluster = _numbers(run, made, "tree_members", "cluster", at)
    born: npt.NDArray[np.uint64] = _numbers(run, made, "tree_born", "born", at)
    bounds = np.searchsorted(cluster, np.arange(len(born) + 1))
    clusters = Clusters(_numbers(run, made, "tree_members", "member", at), bounds)
    return TreeLevel(clusters, born, made.counts["usual"][at])


def _earlier(run: Run, height: int, budget: int) -> EarlierLevel | None:
    """A level of the parent snapshot; None where there is none, its clusters were made by other settings, or
    it is damaged."""
    parent = run.parent
    if parent is None or STEP not in parent.steps or STEP in run.afresh:
        return None
    try:
        options = Tree.model_validate(parent.settings.get("tree", {}))
        chunking = Chunking.model_validate(parent.settings.get("chunking", {}))
    except ValidationError:  # another version's settings
        return None
    now = run.settings.tree.reduction, budget
    if (options.reduction, context_tokens(options, chunking)) != now:
        return None
    before = run.of_parent[STEP]
    names = ("tree_nodes", "tree_members", "tree_born")
    if any(height >= len(before.tables.get(name, [])) for name in names):
        return None
    if run.lost([part for name in names for part in before.tables[name][height]]):
        return None
    return EarlierLevel(_level(run, before, height), _numbers(run, before, "tree_nodes", "key", height))
