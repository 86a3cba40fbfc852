"""Reports, bottom-up (paper 3.1.5): each starts as soon as what it needs is there.

The driver plans contexts as integers (`reports/schedule.py`); a worker reads the elements, renders the
context and runs the dialogue; the length of its report wakes the community that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.ids import community_id, report_id
from graphrag_ray.messages import Dialogue
from graphrag_ray.reports import context
from graphrag_ray.reports.dialogue import Report, ReportSpec, full_content, report, report_spec
from graphrag_ray.reports.plan import CLAIM, EDGE, NODE, Plan
from graphrag_ray.reports.schedule import Schedule
from graphrag_ray.schema import REFERENCE
from graphrag_ray.steps.blocks import elements_at
from graphrag_ray.steps.communities import HIERARCHY, Layout
from graphrag_ray.steps.run import Result, Run, failure_rows, spec_key
from graphrag_ray.steps.spool import Spool
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_parts
from graphrag_ray.store.repeats import answered_twice

PLANS_AT_ONCE = 64

MOST_PLANS = 5
"""Reports are planned so often at most, where requests were answered twice."""

PART_ROWS = 2_000
"""Reports in a stored part: some 10 MB."""

ELEMENTS: dict[int, tuple[str, list[str] | None]] = {
    NODE: ("entities", ["id", "title", "description"]),
    EDGE: ("relationships", ["id", "source", "target", "description"]),
    CLAIM: ("covariates", None),
}
"""What a context shows of each kind: its table and columns. A hub's list of text units is not among them."""

WRITTEN = pa.schema(
    [
        ("number", pa.int64()),  # of the community in the hierarchy
        ("title", pa.string()),
        ("summary", pa.string()),
        ("full_content", pa.string()),  # references by string id
        ("rank", pa.float64()),
        ("rating_explanation", pa.string()),
        (
            "findings",
            pa.list_(pa.struct([pa.field("summary", pa.string()), pa.field("explanation", pa.string())])),
        ),
        ("references", pa.list_(REFERENCE)),
        ("n_tokens", pa.int64()),
        ("context_tokens", pa.int64()),
        ("context_left_out", pa.int64()),
        ("dropped_references", pa.int64()),
    ]
)


@dataclass(frozen=True)
class WrittenReport:
    """A report and what it was written from."""

    report: Report
    n_tokens: int
    context_tokens: int
    left_out: int


def community_ids(layout: Layout) -> list[str]:
    """The id of each community: a hash of its level and members."""
    h = layout.hierarchy
    members = layout.node_keys[h.order]
    return [
        community_id(HIERARCHY, int(h.level[c]), members[h.start[c] : h.end[c]])
        for c in range(h.n_communities)
    ]


def write_reports(run: Run, found: Result, layout: Layout, ids: list[str]) -> Result:
    """Tables reports (WRITTEN, by level and community number; one group a part) and failures."""
    spec = report_spec(run.settings, run.prompts)
    options = run.settings.reports
    model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    start = partial(_start, spec, layout.blocks, options.context_tokens, vocabulary)
    work = Work("report", start, _label, returns=True)

    def compute() -> Result:
        def plan() -> _ReportSource:
            schedule = Schedule(
                layout.hierarchy, layout.elements, options.context_tokens, options.max_claims_per_entity
            )
            return _ReportSource(schedule, layout, ids, vocabulary)

        source = _settled(run, work, plan)
        parts = write_parts(
            run.store, "reports", _tables(source.written, layout.hierarchy.level), max_rows=PART_ROWS
        )
        # In the order of communities, not in that in which they failed.
        failures = failure_rows("report", work, sorted(source.failed, key=lambda f: f[0]["community"]))
        failed = run.executor.map("report", _just, [{"failures": failures}])[0].get("failures", [])
        final = not any(outcome.status == "retry" for _, outcome in source.failed)
        counts = {"reports": len(source.written), "failed_reports": len(source.failed)}
        return Result({"reports": [[part] for part in parts], "failures": [failed]}, counts, final)

    depends_on = [found, spec_key(spec), options, vocabulary]
    return run.step("reports", depends_on, compute, work.name)


def _settled(run: Run, work: Work[WrittenReport], plan: Callable[[], _ReportSource]) -> _ReportSource:
    """Write all reports. What came of them is what the journal says.

    A worker that is thought dead may answer what another one was given too. Of two replies the earlier one
    counts for ever, though the report above may have been written from the later one. So where a request was
    answered twice all is planned anew from the journal, until nothing is left to ask.
    """
    for _ in range(MOST_PLANS):
        source = plan()
        swept = run.sweep(work, source, run.journal(work.name))
        if not swept.accounts.total.calls or not answered_twice(run.store, work.name):
            break
    return source


class _ReportSource:
    """Feeds a sweep from a schedule: what is done decides what may start."""

    def __init__(self, schedule: Schedule, layout: Layout, ids: list[str], vocabulary: str) -> None:
        self._schedule = schedule
        self._layout = layout
        self._ids = ids
        self._vocabulary = vocabulary
        self._given: list[int] = []
        self._open: dict[int, Row] = {}
        self.written: Spool[WrittenReport] = Spool()
        self.failed: list[tuple[Row, Outcome[WrittenReport]]] = []
        self.total: int | None = layout.hierarchy.n_communities

    def take(self) -> list[Row] | None:
        if self._schedule.finished:
            return None
        rows = [self._row(plan) for plan in self._schedule.ready(PLANS_AT_ONCE)]
        for row in rows:
            self._given.append(row["community"])
            # What `_label` needs: the row itself is the worker's, and may hold the reports below it.
            self._open[row["community"]] = {name: row[name] for name in ("community", "level")}
        return rows

    def finished(self, number: int, outcome: Outcome[WrittenReport]) -> None:
        community = self._given[number]
        row = self._open.pop(community)
        if outcome.status != "complete" or outcome.result is None:
            self.failed.append((row, outcome))
            self._schedule.done(community, None)
            return
        self.written[community] = outcome.result
        self._schedule.done(community, self._tokens(community))

    def _row(self, plan: Plan) -> Row:
        return {
            "community": plan.community,
            "level": int(self._layout.hierarchy.level[plan.community]),
            "kinds": plan.kinds,
            "places": plan.indices,
            "left_out": plan.left_out.total,
            "reports": {c: self._record(c) for c in plan.reports.tolist()},
        }

    def _record(self, community: int) -> context.Record:
        written = self.written[community].report
        return context.report_record(report_id(self._ids[community]), written.title, full_content(written))

    def _tokens(self, community: int) -> int:
        return context.record_tokens(self._record(community), lambda text: count(text, self._vocabulary))


def _start(
    spec: ReportSpec,
    blocks: dict[str, list[list[Part]]],
    budget: int,
    vocabulary: str,
    store: Store,
    row: Row,
) -> Dialogue[WrittenReport]:
    """Render the context that was planned, then ask for its report."""
    shown = context.render(
        _records(store, blocks, row), budget, lambda text: count(text, vocabulary), row["left_out"]
    )
    return _write(shown, spec, vocabulary)


def _write(shown: context.Context, spec: ReportSpec, vocabulary: str) -> Dialogue[WrittenReport]:
    written = yield from report(shown, spec)
    n_tokens = count(context.shown_content(full_content(written)), vocabulary)
    return WrittenReport(written, n_tokens, shown.n_tokens, shown.left_out)


def _records(store: Store, blocks: dict[str, list[list[Part]]], row: Row) -> list[context.Record]:
    kinds, places = row["kinds"], row["places"]
    by_kind = {
        kind: iter(elements_at(store, blocks[name], places[kinds == kind], columns))
        for kind, (name, columns) in ELEMENTS.items()
    }
    records = []
    for kind, place in zip(kinds.tolist(), places.tolist(), strict=True):
        if kind == NODE:
            e = next(by_kind[NODE])
            records.append(context.entity(e["id"], e["title"], e["description"]))
        elif kind == EDGE:
            r = next(by_kind[EDGE])
            records.append(context.relationship(r["id"], r["source"], r["target"], r["description"]))
        elif kind == CLAIM:
            records.append(context.claim_of(next(by_kind[CLAIM])))
        else:
            records.append(row["reports"][place])
    return records


def _label(row: Row) -> tuple[str, str]:
    return f"community {row['community']} at level {row['level']}", ""


def _row(community: int, written: WrittenReport) -> dict[str, Any]:
    r = written.report
    return {
        "number": community,
        "title": r.title,
        "summary": r.summary,
        "full_content": full_content(r),
        "rank": r.rating,
        "rating_explanation": r.rating_explanation,
        "findings": [{"summary": s, "explanation": e} for s, e in r.findings],
        "references": [{"section": f.section, "id": f.id} for f in r.references],
        "n_tokens": written.n_tokens,
        "context_tokens": written.context_tokens,
        "context_left_out": written.left_out,
        "dropped_references": r.dropped_references,
    }


def _tables(written: Spool[WrittenReport], level: Ints) -> Iterator[pa.Table]:
    """Rows of WRITTEN level by level, by community in each."""
    numbers = sorted(written.numbers(), key=lambda c: (level[c], c))
    for at in range(0, len(numbers), PART_ROWS):
        rows = [_row(c, written[c]) for c in numbers[at : at + PART_ROWS]]
        yield pa.Table.from_pylist(rows, schema=WRITTEN)


def _just(store: Store, tables: Tables) -> list[Tables]:
    return [tables]
