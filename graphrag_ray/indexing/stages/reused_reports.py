"""Reuse reports of the parent snapshot.

Reports with unchanged inputs (`graph/community_signatures.py`) are not planned, and their rows are reused.
Others may be kept although their inputs changed slightly (`graph/report_reuse.py`). For these, this module
finds the earlier report of the most similar community, and a sketch of the context it was written from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.context_records import Reference
from graphrag_ray.graph.community_signatures import SIGNATURE_WIDTH, unchanged_subtrees
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.report_dialogue import Report
from graphrag_ray.graph.report_reuse import (
    ContextSketch,
    Hashes,
    PreviousReport,
    RecordSketch,
    RemovedEvidence,
)
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages.communities_stage import ELEMENTS, Layout, community_ids, read_hierarchy
from graphrag_ray.indexing.stages.short_ids import IDS, Keys, find_positions, id_keys, load_integer_columns
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

WRITTEN = pa.schema(
    [
        ("community", pa.string()),  # id of the community
        ("title", pa.string()),
        ("summary", pa.string()),
        ("full_content", pa.string()),  # with references by id
        ("rank", pa.float64()),
        ("rating_explanation", pa.string()),
        ("findings", pa.list_(pa.struct([("summary", pa.string()), ("explanation", pa.string())]))),
        ("references", pa.list_(schema.REFERENCE)),
        *((n, pa.int64()) for n in ("n_tokens", "context_tokens", "context_left_out", "dropped_references")),
        ("composed", pa.bool_()),
    ]
)
_RECORD = [("section", pa.string()), ("id", pa.uint64()), ("text", pa.uint64()), ("size", pa.int32())]
COMPARED = pa.schema(
    [
        *WRITTEN,
        ("signature", pa.list_(pa.uint64())),  # [SIGNATURE_WIDTH]
        ("record_tokens", pa.int64()),  # of the report's record in the context of another report
        ("kept", pa.bool_()),  # whether it was kept although its context changed
        ("evidence", pa.list_(pa.uint32())),  # hashes of the chunks that support it now
        # The sketch of the context that it was written from, null if later runs do not need it.
        ("spec", pa.string()),  # hash of the specification of its dialogue
        ("whole", pa.string()),
        ("records", pa.list_(pa.struct([*_RECORD, ("evidence", pa.list_(pa.uint32()))]))),
    ]
)
"""Reports with all data that later runs compare."""
_COMPARED_TABLES = (("describe", "entities"), ("describe", "relationships"), ("merge", "covariates"))
"""Steps and tables of the parent snapshot whose ids are compared with the current ones."""


@dataclass(frozen=True)
class EarlierReports:
    """Reports of the parent snapshot that might be kept, by number. See `most_similar` for `similar`."""

    reports: Spool[PreviousReport]
    similar: Ints
    lost: RemovedEvidence

    def report_for(self, community: int) -> PreviousReport | None:
        return self.reports.get(int(self.similar[community]))

    def lost_by(self, earlier: PreviousReport) -> RemovedEvidence:
        """Return the lost elements that this report was written from."""
        ids = np.array([r.id for r in earlier.sketch.records], dtype=np.uint64)
        return RemovedEvidence(
            ids[find_positions(self.lost.elements, ids) >= 0], self.lost.any_document_deleted
        )


def earlier_reports(
    run: Run, corpus: Result, layout: Layout, spec_hash: str, planned: npt.NDArray[np.bool_]
) -> EarlierReports | None:
    """Load the reports of the parent snapshot that might be kept for planned communities.

    Returns None if no report was requested with the same specification, if parts are damaged, or if all
    reports must be rewritten.
    """
    parent = run.parent
    if parent is None or "reports" in run.forced_steps or "reports" not in parent.steps:
        return None
    written = run.parent_results["reports"]
    partition = run.parent_results["communities"]
    parts = [p for result in (written, partition) for name in result.tables for p in result.parts(name)]
    parts += [p for name in ("text_units", *ELEMENTS) for p in parent.parts(name)]
    parts += run.parent_results["read"].parts("documents")
    parts += [part for step, table in _COMPARED_TABLES for part in run.parent_results[step].parts(table)]
    if not partition.parts("hierarchy") or run.has_lost_parts(parts):  # another version, or damaged
        return None
    before = read_hierarchy(run, partition)
    keys = _parent_keys(run, "describe", "entities")
    if len(before.node_at_place) != len(keys):
        return None
    similar = most_similar(before, keys, layout.hierarchy, layout.node_keys)
    wanted = set(similar[planned].tolist())
    number = {id_: c for c, id_ in enumerate(community_ids(before, keys)) if c in wanted}
    reports: Spool[PreviousReport] = Spool()
    communities = pa.array(list(number), pa.string())
    for part in written.parts("reports"):
        rows = read_part(run.store, part, ["community", "spec"])
        same_spec = pc.fill_null(pc.equal(rows["spec"], spec_hash), False)
        mask = pc.and_(same_spec, pc.is_in(rows["community"], value_set=communities))
        for row in read_part(run.store, part).filter(mask).to_pylist() if pc.any(mask).as_py() else ():
            records = tuple(RecordSketch(**r | {"evidence": tuple(r["evidence"])}) for r in row["records"])
            sizes = row["n_tokens"], row["context_tokens"], row["context_left_out"]
            sketch = ContextSketch(row["whole"], records)
            reports[number[row["community"]]] = PreviousReport(report_from_row(row), sketch, *sizes)
    return EarlierReports(reports, similar, _find_lost(run, corpus, layout)) if len(reports) else None


def most_similar(before: Hierarchy, keys_before: Hashes, now: Hierarchy, keys_now: Hashes) -> Ints:
    """Return, for each community, the earlier one at its level that shares most members with it.

    The first of several wins. Returns -1 for communities that share no members with any. `keys_before` and
    `keys_now` are the keys of the nodes, in ascending order.
    """
    best = np.full(now.n_communities, -1, dtype=np.int64)
    position = np.searchsorted(keys_before, keys_now)
    position[position == len(keys_before)] = 0
    known = keys_before[position] == keys_now if len(keys_before) else np.zeros(len(keys_now), np.bool_)
    for level in range(min(now.n_levels, before.n_levels)):
        new, old = _members(now, level), np.where(known, _members(before, level)[position], -1)
        common = (new >= 0) & (old >= 0)
        pairs, shared = np.unique(new[common] * before.n_communities + old[common], return_counts=True)
        community, earlier = np.divmod(pairs, before.n_communities)
        order = np.lexsort((earlier, -shared, community))
        first, index = np.unique(community[order], return_index=True)
        best[first] = earlier[order][index]
    return best


def _members(h: Hierarchy, level: int) -> Ints:
    """Return an array [N]: the community of exactly this level for each node, or -1."""
    community = np.full(len(h.node_at_place), -1, dtype=np.int64)
    at_level = np.flatnonzero(h.level == level)
    sizes = h.end[at_level] - h.start[at_level]
    positions = np.repeat(h.start[at_level] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    community[h.node_at_place[positions]] = np.repeat(at_level, sizes)
    return community


def report_from_row(row: Mapping[str, Any]) -> Report:
    return Report(
        title=row["title"],
        summary=row["summary"],
        rating=row["rank"],
        rating_explanation=row["rating_explanation"],
        findings=tuple((f["summary"], f["explanation"]) for f in row["findings"]),
        references=tuple(Reference(r["section"], r["id"]) for r in row["references"]),
        dropped_references=row["dropped_references"],
        composed=bool(row.get("composed")),  # missing in indexes of earlier versions
    )


def _find_lost(run: Run, corpus: Result, layout: Layout) -> RemovedEvidence:
    assert run.parent is not None
    current = (layout.node_keys, layout.edge_keys, layout.claim_keys)
    lost = [
        np.setdiff1d(_parent_keys(run, step, table), keys)
        for (step, table), keys in zip(_COMPARED_TABLES, current, strict=True)
    ]
    before, now = (Counter(result.parts("documents")) for result in (run.parent_results["read"], corpus))
    removed, added = (
        read_table(run.store, [*parts.elements()], ["id"], schema.DOCUMENTS)["id"]
        for parts in (before - now, now - before)
    )
    deleted = removed.filter(pc.invert(pc.is_in(removed, added.combine_chunks()))).combine_chunks()
    if len(deleted):  # Elements that were supported by deleted documents are lost, too.
        chunks = _matching_ids(run, partial(_chunks_of, deleted), run.parent.parts("text_units"))
        parts = [part for name in ELEMENTS for part in run.parent.parts(name)]
        lost.append(id_keys(_matching_ids(run, partial(_supported_by, chunks), parts)))
    return RemovedEvidence(np.unique(np.concatenate(lost)), len(deleted) > 0)


def _parent_keys(run: Run, step: str, table: str) -> Keys:
    keys: Keys = load_integer_columns(run.store, run.parent_results[step].tables[table], IDS)["id"].to_numpy()
    return keys


def _matching_ids(run: Run, find: Any, parts: Sequence[Part]) -> pa.Array:
    columns = [table["id"].cast(pa.string()) for table in run.executor.stream("reports", find, parts)]
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.string()).combine_chunks()


def _chunks_of(documents: pa.Array, store: Store, part: Part) -> Iterator[pa.Table]:
    table = read_part(store, part, ["id", "document_id"])
    yield table.filter(pc.is_in(table["document_id"], documents)).select(["id"])


def _supported_by(chunks: pa.Array, store: Store, part: Part) -> Iterator[pa.Table]:
    table = read_part(store, part, ["id", "text_unit_ids"]).combine_chunks()
    lists = table["text_unit_ids"]
    rows = pc.list_parent_indices(lists).filter(pc.is_in(pc.list_flatten(lists), chunks))
    yield table.select(["id"]).take(pc.unique(rows))


@dataclass(frozen=True)
class UnchangedReports:
    """Reports of the parent snapshot that are still current.

    `row_of` is the row of each community in `rows` (some columns of `COMPARED`), or -1 if it has none.
    """

    unchanged: npt.NDArray[np.bool_]
    row_of: Ints
    rows: pa.Table
    parts: Sequence[Part]

    @property
    def n_composed(self) -> int:
        rows = self.row_of[np.flatnonzero(self.unchanged & (self.row_of >= 0))]
        return pc.sum(self.rows["composed"].take(pa.array(rows))).as_py() or 0

    @property
    def tokens(self) -> dict[int, int | None]:
        communities = np.flatnonzero(self.unchanged)
        tokens = self.rows["record_tokens"].to_numpy()[self.row_of[communities]]
        return dict(zip(communities.tolist(), tokens.tolist(), strict=True))

    def table(self, store: Store, communities: Sequence[int]) -> pa.Table:
        """Read all columns of the rows of some communities, in this order."""
        rows = self.row_of[list(communities)]
        order = np.argsort(rows, kind="stable")
        ends = np.cumsum([0, *(part.rows for part in self.parts)])
        part_of = np.searchsorted(ends, rows[order], "right") - 1
        tables = [COMPARED.empty_table()]
        for n in np.unique(part_of).tolist():
            taken = read_part(store, self.parts[n]).take(pa.array(rows[order][part_of == n] - ends[n]))
            tables.append(taken.select(COMPARED.names).cast(COMPARED))
        return pa.concat_tables(tables).take(pa.array(np.argsort(order)))


def unchanged_reports(
    run: Run, fingerprint: str, hierarchy: Hierarchy, ids: Sequence[str], signatures: Hashes
) -> UnchangedReports | None:
    """Find reports that are still current. Returns None if reports are requested differently now.

    Reports that were kept although their contexts had changed do not count as current.
    """
    before = run.parent_result("reports")
    if before is None or before.made_from.get("signatures") != [fingerprint]:
        return None
    parts = before.parts("reports")
    columns = ["community", "signature", "record_tokens", "kept", "composed"]
    rows = read_table(run.store, parts, columns, COMPARED)
    row_of = pc.index_in(pa.array(ids, pa.string()), value_set=rows["community"].combine_chunks())
    row_of = pc.fill_null(row_of, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    known = np.flatnonzero(row_of >= 0)
    is_same = np.zeros(len(ids), np.bool_)
    earlier = rows["signature"].combine_chunks().flatten().to_numpy().reshape(-1, SIGNATURE_WIDTH)
    kept = rows["kept"].to_numpy(zero_copy_only=False).astype(np.bool_)
    is_same[known] = (earlier[row_of[known]] == signatures[known]).all(axis=1) & ~kept[row_of[known]]
    return UnchangedReports(unchanged_subtrees(hierarchy, is_same), row_of, rows, parts)
