"""A minimal hierarchy over chunks: one level with a community per document, whose report is written from its
chunks. It replaces Leiden's where an index should have no graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.ids import community_id, report_id
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph import report_context
from graphrag_ray.graph.report_dialogue import Report, ReportSpec, full_content, report, report_spec
from graphrag_ray.indexing import index as indexing
from graphrag_ray.indexing.results import ExtractedGraph
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.stages.short_ids import (
    ReferenceRenderer,
    ShortIds,
    assign_short_ids,
    id_keys,
    sorted_short_ids,
)
from graphrag_ray.indexing.step_result import Result, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_table, write_parts

NAME = "leiden"


def instead_of_leiden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        HIERARCHIES, NAME, replace(HIERARCHIES[NAME], member_kind="text_unit", stages=("reports",))
    )
    monkeypatch.setitem(indexing.HIERARCHY_BUILDERS, NAME, build)


@dataclass(frozen=True)
class DocumentHierarchy:
    chunks: Sequence[Sequence[str]]
    ids: list[str]
    reports: Result

    @property
    def level(self) -> Any:
        return np.zeros(len(self.ids), np.int64)

    @property
    def results(self) -> Sequence[Result]:
        return (self.reports,)

    @property
    def counts(self) -> Mapping[str, Any]:
        return {"levels": {"C0": len(self.ids)}}

    def short_ids(self, run: Run) -> dict[str, ShortIds]:
        ids = pa.array(self.ids, pa.string())
        communities = assign_short_ids(run, "communities", id_keys(ids))
        reports = pa.array([report_id(id_) for id_ in self.ids], pa.string())
        own = sorted_short_ids(id_keys(reports), communities.look_up(ids), communities.next_short_id)
        return {"communities": communities, "community_reports": own}

    def write_tables(self, run: Run, numbers: Callable[[], dict[str, ShortIds]], period: str) -> Result:
        known = numbers()["communities"].look_up(pa.array(self.ids, pa.string())).tolist()
        common = [
            {"human_readable_id": n, "community": n, "level": 0, "parent": -1, "period": period}
            | {"children": [], "size": len(chunks), "hierarchy": NAME}
            for n, chunks in zip(known, self.chunks, strict=True)
        ]
        communities = [
            row
            | {"id": id_, "title": f"Document {row['community']}", "text_unit_ids": chunks}
            | {"entity_ids": [], "relationship_ids": [], "packed": False}
            for row, id_, chunks in zip(common, self.ids, self.chunks, strict=True)
        ]
        parts = self.reports.parts("reports")
        written = read_table(run.store, parts).to_pylist() if parts else []
        shown = ReferenceRenderer(numbers())
        shown.prepare(reference for row in written for reference in row["references"])
        reports = [
            common[at := self.ids.index(r.pop("community"))]
            | r
            | {"id": report_id(self.ids[at]), "full_content": shown.render(r["full_content"])}
            for r in written
        ]
        of = {"communities": communities, "community_reports": reports}
        return Result(
            {
                name: [write_parts(run.store, name, [pa.Table.from_pylist(rows, schema=schema.TABLES[name])])]
                for name, rows in of.items()
            }
        )


def build(run: Run, corpus: Result, graph: ExtractedGraph | None) -> DocumentHierarchy:
    assert graph is None
    columns = ["id", "document_id", "text"]
    texts: dict[str, dict[str, str]] = {}
    for row in read_table(run.store, corpus.parts("text_units"), columns, schema.TEXT_UNITS).to_pylist():
        texts.setdefault(row["document_id"], {})[row["id"]] = row["text"]
    chunks = [list(of) for of in texts.values()]
    ids = [community_id(NAME, 0, np.sort(id_keys(pa.array(of)))) for of in chunks]
    spec = report_spec(run.settings, run.prompts)
    work = Work("report", partial(_start, spec), _label)

    def compute() -> Result:
        rows = pa.Table.from_pylist(
            [{"number": at, "chunks": [*of.items()]} for at, of in enumerate(texts.values())],
            schema=pa.schema([("number", pa.int64()), ("chunks", pa.map_(pa.string(), pa.string()))]),
        )
        run.sweep_rows(work, _just, [rows], rows.num_rows)
        done, failed = [], []
        for row, outcome in next(replay_rows(work, run.journal(work.name), run.store, [rows])):
            written = outcome.result
            if written is None:
                failed.append((row, outcome))
                continue
            text = full_content(written)
            found = {"community": ids[row["number"]], "title": written.title, "summary": written.summary}
            references = [{"section": r.section, "id": r.id} for r in written.references]
            found |= {"full_content": text, "rank": written.rating, "n_tokens": len(text)}
            done.append(found | {"references": references, "rating_explanation": "", "findings": []})
        reports = write_parts(run.store, "reports/reports", [pa.Table.from_pylist(done)] if done else [])
        failures = write_parts(
            run.store, "reports/failures", [failure_rows("report", work, failed)] if failed else []
        )
        return Result({"reports": [[part] for part in reports], "failures": [list(failures)]})

    return DocumentHierarchy(chunks, ids, run.step("reports", [corpus, spec_key(spec)], compute, work.name))


def _start(spec: ReportSpec, store: Store, row: Row) -> Dialogue[Report]:
    records = [report_context.source_record(id_, text) for id_, text in row["chunks"]]
    return report(report_context.render(records, 2_000, len), spec)


def _label(row: Row) -> tuple[str, str]:
    return f"document {row['number']}", ""


def _just(store: Store, rows: pa.Table) -> Iterator[pa.Table]:
    yield rows
