"""Reports of the parent snapshot: those that are as they would be written now, since nothing that they are
written from changed (`graph/signatures.py`), and those that may stand although it did
(`graph/kept_reports.py`).

The former are not planned, and their rows are taken over. For the latter: which of them a community of now
resembles, and what each was written from.
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
from graphrag_ray.base.records import Reference
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.kept_reports import Earlier, Hashes, Lost, Shown, Sketch
from graphrag_ray.graph.report_dialogue import Report
from graphrag_ray.graph.signatures import WIDTH, as_before
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages.communities_stage import (
    ELEMENTS,
    Layout,
    community_ids,
    restored,
)
from graphrag_ray.indexing.stages.short_ids import IDS, Keys, columns_of, places_in, prefixes_of
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

WRITTEN = pa.schema(
    [
        ("community", pa.string()),  # its id
        ("title", pa.string()),
        ("summary", pa.string()),
        ("full_content", pa.string()),  # references by string id
        ("rank", pa.float64()),
        ("rating_explanation", pa.string()),
        (
            "findings",
            pa.list_(pa.struct([pa.field("summary", pa.string()), pa.field("explanation", pa.string())])),
        ),
        ("references", pa.list_(schema.REFERENCE)),
        ("n_tokens", pa.int64()),
        ("context_tokens", pa.int64()),
        ("context_left_out", pa.int64()),
        ("dropped_references", pa.int64()),
    ]
)
_RECORD = [("section", pa.string()), ("id", pa.uint64()), ("text", pa.uint64()), ("size", pa.int32())]
COMPARED = pa.schema(
    [
        *WRITTEN,
        ("signature", pa.list_(pa.uint64())),  # [WIDTH]
        ("record_tokens", pa.int64()),  # of the report's record in the context of another one
        ("kept", pa.bool_()),  # it was written from another context, and stood
        ("evidence", pa.list_(pa.uint32())),  # what it rests on now
        # What it was written from; null where no later run asks for it.
        ("spec", pa.string()),  # a hash of how it was asked for
        ("whole", pa.string()),
        ("records", pa.list_(pa.struct([*_RECORD, ("evidence", pa.list_(pa.uint32()))]))),
    ]
)
"""Reports with what later runs compare."""


@dataclass(frozen=True)
class EarlierReports:
    """alike: by community of now the earlier one that shares most members with it, by number; -1: none."""

    reports: Spool[Earlier]
    alike: Ints
    lost: Lost

    def of(self, community: int) -> Earlier | None:
        return self.reports.get(int(self.alike[community]))

    def lost_by(self, earlier: Earlier) -> Lost:
        """Of what was lost, only what this report was written from."""
        ids = np.array([r.id for r in earlier.sketch.records], dtype=np.uint64)
        return Lost(ids[places_in(self.lost.elements, ids) >= 0], self.lost.deleted)


def earlier_reports(
    run: Run, corpus: Result, layout: Layout, spec: str, planned: npt.NDArray[np.bool_]
) -> EarlierReports | None:
    """None where no report of the parent can stand: there is none, its parts are damaged, or everything is to
    be as in an index from scratch. spec: a report that was asked for in another way is none of them; planned:
    [C] communities that are asked about."""
    parent = run.parent
    if parent is None or "reports" in run.afresh or "reports" not in parent.steps:
        return None
    written = run.of_parent["reports"]
    found = run.of_parent["communities"]
    needed = [p for result in (written, found) for name in result.tables for p in result.parts(name)]
    needed += [p for name in ("text_units", *ELEMENTS) for p in parent.parts(name)]
    needed += run.of_parent["read"].parts("documents")
    needed += [part for step, table in _COMPARED for part in run.of_parent[step].parts(table)]
    if not found.parts("hierarchy") or run.lost(needed):  # another version's tables, or damaged ones
        return None
    before = restored(run, found)
    keys = _parent_ids(run, "describe", "entities")
    if len(before.order) != len(keys):
        return None
    resembled = alike(before, keys, layout.hierarchy, layout.node_keys)
    wanted = set(resembled[planned].tolist())
    number = {id_: c for c, id_ in enumerate(community_ids(before, keys)) if c in wanted}
    reports: Spool[Earlier] = Spool()
    communities = pa.array(list(number), pa.string())
    for part in written.parts("reports"):
        rows = read_part(run.store, part, ["community", "spec"])
        asked = pc.fill_null(pc.equal(rows["spec"], spec), False)
        same = pc.and_(asked, pc.is_in(rows["community"], value_set=communities))
        for row in read_part(run.store, part).filter(same).to_pylist() if pc.any(same).as_py() else ():
            records = tuple(Shown(**r | {"evidence": tuple(r["evidence"])}) for r in row["records"])
            sizes = row["n_tokens"], row["context_tokens"], row["context_left_out"]
            sketch = Sketch(row["whole"], records)
            reports[number[row["community"]]] = Earlier(report_of(row), sketch, *sizes)
    if not reports.numbers():
        return None
    return EarlierReports(reports, resembled, _lost(run, corpus, layout))


def alike(before: Hierarchy, keys_before: Hashes, now: Hierarchy, keys_now: Hashes) -> Ints:
    """[C] for each community of now, the one of before at its level that shares most members with it, the
    first of several; -1 where none shares any. keys: of the nodes, rising."""
    best = np.full(now.n_communities, -1, dtype=np.int64)
    at = np.searchsorted(keys_before, keys_now)
    at[at == len(keys_before)] = 0
    known = keys_before[at] == keys_now if len(keys_before) else np.zeros(len(keys_now), dtype=np.bool_)
    for level in range(min(now.n_levels, before.n_levels)):
        one, other = _members(now, level), np.where(known, _members(before, level)[at], -1)
        both = (one >= 0) & (other >= 0)
        pairs, shared = np.unique(one[both] * before.n_communities + other[both], return_counts=True)
        community, earlier = np.divmod(pairs, before.n_communities)
        order = np.lexsort((earlier, -shared, community))
        first, where = np.unique(community[order], return_index=True)
        best[first] = earlier[order][where]
    return best


def _members(of: Hierarchy, level: int) -> Ints:
    """[N] by node, its community of exactly this level, -1 for none."""
    out = np.full(len(of.order), -1, dtype=np.int64)
    at = np.flatnonzero(of.level == level)
    sizes = of.end[at] - of.start[at]
    places = np.repeat(of.start[at] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    out[of.order[places]] = np.repeat(at, sizes)
    return out


def report_of(row: Mapping[str, Any]) -> Report:
    """What a row of table reports holds."""
    return Report(
        title=row["title"],
        summary=row["summary"],
        rating=row["rank"],
        rating_explanation=row["rating_explanation"],
        findings=tuple((f["summary"], f["explanation"]) for f in row["findings"]),
        references=tuple(Reference(r["section"], r["id"]) for r in row["references"]),
        dropped_references=row["dropped_references"],
    )


_COMPARED = (("describe", "entities"), ("describe", "relationships"), ("merge", "covariates"))
"""Steps and tables of the parent snapshot whose ids are compared with those of now."""


def _lost(run: Run, corpus: Result, layout: Layout) -> Lost:
    assert run.parent is not None
    no_more = [
        np.setdiff1d(_parent_ids(run, step, table), now)
        for (step, table), now in zip(
            _COMPARED, (layout.node_keys, layout.edge_keys, layout.claim_keys), strict=True
        )
    ]
    then, now = (Counter(of.parts("documents")) for of in (run.of_parent["read"], corpus))
    went, come = (
        read_table(run.store, [*parts.elements()], ["id"], schema.DOCUMENTS)["id"]
        for parts in (then - now, now - then)
    )
    deleted = went.filter(pc.invert(pc.is_in(went, come.combine_chunks())))
    if len(deleted):  # what rested on them
        units = run.parent.parts("text_units")
        chunks = _ids(run, partial(_chunks_of, deleted.combine_chunks()), units)
        parts = [part for name in ELEMENTS for part in run.parent.parts(name)]
        no_more.append(prefixes_of(_ids(run, partial(_resting_on, chunks), parts)))
    return Lost(np.unique(np.concatenate(no_more)), len(deleted) > 0)


def _parent_ids(run: Run, step: str, table: str) -> Keys:
    ids: Keys = columns_of(run.store, run.of_parent[step].tables[table], IDS)["id"].to_numpy()
    return ids


def _ids(run: Run, find: Any, parts: Sequence[Part]) -> pa.ChunkedArray:
    found = [table["id"].cast(pa.string()) for table in run.executor.stream("reports", find, parts)]
    return pa.chunked_array(
        [chunk for column in found for chunk in column.chunks], pa.string()
    ).combine_chunks()


def _chunks_of(documents: pa.Array, store: Store, part: Part) -> Iterator[pa.Table]:
    table = read_part(store, part, ["id", "document_id"])
    yield table.filter(pc.is_in(table["document_id"], documents)).select(["id"])


def _resting_on(chunks: pa.Array, store: Store, part: Part) -> Iterator[pa.Table]:
    table = read_part(store, part, ["id", "text_unit_ids"]).combine_chunks()
    lists = table["text_unit_ids"]
    hit = pc.is_in(pc.list_flatten(lists), chunks)
    rows = pc.unique(pc.list_parent_indices(lists).filter(hit))
    yield table.select(["id"]).take(rows)


@dataclass(frozen=True)
class UnchangedReports:
    """Reports of the parent snapshot that are as they would be written now.

    unchanged  [C]
    at         [C] the row of each among `rows`, some columns of COMPARED; -1: it has none
    parts      that hold the rows
    """

    unchanged: npt.NDArray[np.bool_]
    at: npt.NDArray[np.int64]
    rows: pa.Table
    parts: Sequence[Part]

    @property
    def tokens(self) -> dict[int, int | None]:
        """By community, those of its report's record."""
        own = np.flatnonzero(self.unchanged)
        found = self.rows["record_tokens"].to_numpy()[self.at[own]]
        return dict(zip(own.tolist(), found.tolist(), strict=True))

    def table(self, store: Store, communities: Sequence[int]) -> pa.Table:
        """All columns of some communities' rows, in this order."""
        at = self.at[list(communities)]
        order = np.argsort(at, kind="stable")
        ends = np.cumsum([0, *(part.rows for part in self.parts)])
        of_part = np.searchsorted(ends, at[order], "right") - 1
        tables = [COMPARED.empty_table()]
        for n in np.unique(of_part).tolist():
            rows = read_part(store, self.parts[n]).take(pa.array(at[order][of_part == n] - ends[n]))
            tables.append(rows.select(COMPARED.names).cast(COMPARED))
        return pa.concat_tables(tables).take(pa.array(np.argsort(order)))


def unchanged_reports(
    run: Run, how: str, hierarchy: Hierarchy, ids: Sequence[str], now: Hashes
) -> UnchangedReports | None:
    """None where reports are asked for in another way now. Those that were kept although their contexts had
    changed are looked at again.

    now: [C, WIDTH] signatures
    """
    before = run.before("reports")
    if before is None or before.made_from.get("signatures") != [how]:
        return None
    parts = before.parts("reports")
    wanted = ["community", "signature", "record_tokens", "kept"]
    rows = read_table(run.store, parts, wanted, COMPARED)
    found = pc.index_in(pa.array(ids, pa.string()), value_set=rows["community"].combine_chunks())
    at = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    known = np.flatnonzero(at >= 0)
    same = np.zeros(len(ids), np.bool_)
    then = rows["signature"].combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)
    kept = rows["kept"].to_numpy(zero_copy_only=False).astype(np.bool_)
    same[known] = (then[at[known]] == now[known]).all(axis=1) & ~kept[at[known]]
    return UnchangedReports(as_before(hierarchy, same), at, rows, parts)
