"""Reports, bottom-up (paper 3.1.5): each starts as soon as what it needs is there.

The driver plans contexts as integers (`graph/schedule.py`); a worker reads the elements, renders the
context and runs the dialogue; the length of its report wakes the community that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.declarations import ABOUT
from graphrag_ray.base.errors import TooManyFailures
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.document_titles import label
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.executor import Written
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph import report_context
from graphrag_ray.graph.about_corpus import (
    MAX_ENTITIES,
    AboutSpec,
    about,
    about_spec,
    entity_lines,
    is_to_be_told,
    spread,
    title_lines,
)
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.graph.integer_arrays import degrees
from graphrag_ray.graph.kept_reports import Earlier, Evidence, Sketch, evidence, sketch, standing
from graphrag_ray.graph.plan import CHUNK, CLAIM, EDGE, NODE, ContextPlan
from graphrag_ray.graph.report_dialogue import Report, ReportSpec, full_content, report, report_spec
from graphrag_ray.graph.schedule import ReportsAlone, Schedule
from graphrag_ray.graph.signatures import Hashes, signatures
from graphrag_ray.graph.summary_dialogue import (
    SummarySpec,
    longest_record,
    summary,
    summary_spec,
)
from graphrag_ray.indexing.run import Run, failure_rows, replayed
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages.communities_stage import IN_CONTEXTS, ElementBlocks, Layout, blocks_of
from graphrag_ray.indexing.stages.parent_reports import (
    COMPARED,
    WRITTEN,
    EarlierReports,
    UnchangedReports,
    earlier_reports,
    report_of,
    unchanged_reports,
)
from graphrag_ray.indexing.stages.short_ids import prefixes_of
from graphrag_ray.indexing.step_result import Result, fingerprint_of, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part
from graphrag_ray.store.retries import answered_twice

PLANS_AT_ONCE = 64

MOST_PLANS = 5
"""Reports are planned so often at most, where requests were answered twice."""

PART_ROWS = 512
"""Reports in a stored part, at most: some 2 MB."""

ELEMENTS = {NODE: "entities", EDGE: "relationships", CLAIM: "covariates", CHUNK: "text_units"}
"""The tables of what contexts show."""


@dataclass(frozen=True)
class WrittenReport:
    """A report and what it was written from.

    record_tokens  of its record in the context of another one
    sketch         None where no later run asks for it
    evidence       what it rests on now
    kept           it is that of the parent snapshot
    """

    report: Report
    n_tokens: int
    record_tokens: int
    context_tokens: int
    left_out: int
    sketch: Sketch | None = None
    evidence: Evidence = ()
    kept: bool = False


@dataclass(frozen=True)
class _Budget:
    """tokens: of a context, in a vocabulary; keep_below: see settings.Reports; longest: see `render`."""

    tokens: int
    vocabulary: str
    keep_below: float
    longest: int | None = None

    def count(self, text: str) -> int:
        return count(text, self.vocabulary)


_Ask: TypeAlias = Callable[[report_context.Context], Dialogue[Report]]


@dataclass(frozen=True)
class ReportWork:
    """How reports, or summaries, are asked for."""

    spec: ReportSpec | SummarySpec
    budget: _Budget
    work: Work[WrittenReport]

    @classmethod
    def of(cls, run: Run, blocks: Mapping[str, ElementBlocks], keep_below: float) -> ReportWork:
        spec = report_spec(run.settings, run.prompts)
        budget = _Budget(run.settings.reports.context_tokens, _vocabulary(run, "report"), keep_below)
        start = partial(_start, partial(report, spec=spec), blocks, budget)
        return cls(spec, budget, Work("report", start, _label, returns=True))

    @classmethod
    def of_summaries(cls, run: Run, blocks: Mapping[str, ElementBlocks], context_tokens: int) -> ReportWork:
        spec = summary_spec(run.settings, run.prompts)
        budget = _Budget(context_tokens, _vocabulary(run, "summary"), 0.0, longest_record(context_tokens))
        start = partial(_start, partial(summary, spec=spec), blocks, budget)
        return cls(spec, budget, Work("summary", start, _label, returns=True))

    @property
    def depends_on(self) -> list[Any]:
        return [spec_key(self.spec), self.budget.vocabulary]


def _vocabulary(run: Run, dialogue: str) -> str:
    model = run.settings.model(run.settings.model_name(dialogue))
    return vocabulary_for(model.model, model.tokenizer).name


def write_reports(
    run: Run,
    corpus: Result,
    found: Result,
    load_layout: Callable[[], Layout],
    ids: list[str],
    number: Callable[[], Ints],
) -> Result:
    """Tables reports (COMPARED, in groups of `batches_by_number`) and failures. number: the short id of each
    community.

    Which reports of the parent snapshot stand is no part of the fingerprint: they stand in the next run, too.
    """
    options = run.settings.reports
    asking = ReportWork.of(run, blocks_of(found, ELEMENTS.values()), options.keep_below)
    work, (spec, vocabulary) = asking.work, asking.depends_on
    asked_as = fingerprint_of(spec)  # what a report must have been asked like to stand

    def compute() -> Result:
        how = fingerprint_of([spec, options, vocabulary])
        layout = load_layout()
        h = layout.hierarchy
        schedule = partial(
            Schedule, h, layout.elements, options.context_tokens, options.max_claims_per_entity
        )
        keys = prefixes_of(pa.array(ids, pa.string()))
        signed = signatures(h, layout.elements, layout.contents, keys, schedule().is_cut)
        before = unchanged_reports(run, how, h, ids, signed)
        planned = ~before.unchanged if before else np.ones(len(ids), np.bool_)
        run.items["reports"] = len(ids), "reports"
        earlier = None
        if options.keep_below and planned.any():
            earlier = earlier_reports(run, corpus, layout, asked_as, planned)
        below = _reports_below(run.store, before, h.parent) if before else Spool[WrittenReport]()

        def plan() -> ReportSource:
            called = partial(_called, h.level)
            known = before.tokens if before else {}
            return ReportSource(schedule(known), called, ids, earlier, known=below, n_known=len(known))

        source = settled(run, work, plan)
        has_report = ~planned
        has_report[source.written.numbers()] = True
        groups = batches_by_number(ids, h.level, number(), has_report)
        known = run.taken_over(
            "reports",
            groups,
            how,
            ("reports",),
            told=[[ids[c] for c in group] for group in groups],
            again=[n for n, group in enumerate(groups) if planned[group].any()],
        )
        written: Written = []
        for group in known.new:
            old, new = ([c for c in group if planned[c] == is_new] for is_new in (False, True))
            rows = [_compared_row(ids[c], source, c, signed[c], asked_as) for c in new]
            tables = [pa.Table.from_pylist(rows, schema=COMPARED)]
            tables += [before.table(run.store, old)] if before and old else []
            place = {c: n for n, c in enumerate((*new, *old))}
            table = pa.concat_tables(tables).take(pa.array([place[c] for c in group]))
            written.append({"reports": run.write("reports", "reports", [table.combine_chunks()])})
        result = known.with_new(run.store, written)
        # In the order of communities, not in that in which they failed.
        failed = failures_of(run, work, sorted(source.failed, key=lambda f: f[0]["community"]))
        final = not any(outcome.status == "retry" for _, outcome in source.failed)
        counts = {"reports": int(has_report.sum()), "failed_reports": len(source.failed)}
        if options.keep_below:
            counts["kept_reports"] = source.kept
        tables_ = result.tables | {"failures": [failed]}
        return Result(tables_, counts, final, result.made_from | {"signatures": [how]})

    depends_on = [found, spec, options, vocabulary]
    return run.step("reports", depends_on, compute, work.name)


def batches_by_number(
    ids: Sequence[str],
    level: Ints,
    number: Ints,
    which: npt.NDArray[np.bool_],
    sizes: Ints | None = None,
    limit: int = 0,
) -> list[list[int]]:
    """Some communities, by level and short id, in batches whose boundaries depend on the ids around them: one
    community more or less changes few of them.

    sizes: of each community, and limit of a batch; None: PART_ROWS communities are a batch at most
    """
    order = [c for c in np.lexsort((number, level)).tolist() if which[c]]
    own = [1] * len(order) if sizes is None else sizes[order].tolist()
    batches = stable_batches([ids[c] for c in order], own, limit or PART_ROWS)
    return [[order[n] for n in batch] for batch in batches]


def _called(level: Ints, community: int) -> str:
    return f"community {community} at level {level[community]}"


def _reports_below(store: Store, before: UnchangedReports, parent: Ints) -> Spool[WrittenReport]:
    """Unchanged reports that the contexts of others may show."""
    found: Spool[WrittenReport] = Spool()
    wanted = np.flatnonzero(before.unchanged & (parent >= 0) & ~before.unchanged[parent])
    # Part by part: in the order of the hierarchy each would be read again and again.
    shown = wanted[np.argsort(before.at[wanted])].tolist()
    for at in range(0, len(shown), PART_ROWS):
        some = shown[at : at + PART_ROWS]
        for c, row in zip(some, before.table(store, some).to_pylist(), strict=True):
            sizes = row["n_tokens"], row["record_tokens"], row["context_tokens"], row["context_left_out"]
            found[c] = WrittenReport(report_of(row), *sizes, evidence=tuple(row["evidence"]))
    return found


def failures_of(
    run: Run, work: Work[WrittenReport], failed: Sequence[tuple[Row, Outcome[WrittenReport]]]
) -> list[Part]:
    """Parts of table failures."""
    return run.write(work.name, "failures", [failure_rows(work.name, work, failed)])


def settled(run: Run, work: Work[WrittenReport], plan: Callable[[], ReportSource]) -> ReportSource:
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


class ReportSource:
    """Feeds a sweep from a schedule: what is done decides what may start.

    called   what each community is called, for people
    ids      of the communities, by number
    below    by number, the reports of which this level's are written, and the ids of their communities; None:
             those that are written here
    section  in which reports are shown
    known    reports that are there, and that contexts may show; n_known: how many communities have one
    """

    def __init__(
        self,
        schedule: Schedule | ReportsAlone,
        called: Callable[[int], str],
        ids: Sequence[str],
        earlier: EarlierReports | None = None,
        below: tuple[Callable[[int], WrittenReport], Sequence[str]] | None = None,
        section: str = "Reports",
        known: Spool[WrittenReport] | None = None,
        n_known: int = 0,
    ) -> None:
        self._schedule, self._called, self._section = schedule, called, section
        self._earlier = earlier
        self.kept = 0
        self._given: list[int] = []
        self._open: dict[int, Row] = {}
        self.written: Spool[WrittenReport] = Spool()
        self.sketches: Spool[Sketch] = Spool()  # apart: a report is read for each context that shows it
        self._below = below or (lambda c: (known.get(c) if known else None) or self.written[c], ids)
        self.failed: list[tuple[Row, Outcome[WrittenReport]]] = []
        self.total: int | None = len(ids) - n_known

    def take(self) -> list[Row] | None:
        if self._schedule.finished:
            return None
        rows = [self._row(plan) for plan in self._schedule.ready(PLANS_AT_ONCE)]
        for row in rows:
            self._given.append(row["community"])
            # What `_label` needs: the row itself is the worker's, and may hold the reports below it.
            self._open[row["community"]] = {name: row[name] for name in ("community", "called")}
        return rows

    def finished(self, number: int, outcome: Outcome[WrittenReport]) -> None:
        community = self._given[number]
        row = self._open.pop(community)
        if outcome.status != "complete" or outcome.result is None:
            self.failed.append((row, outcome))
            self._schedule.done(community, None)
            return
        self.written[community] = replace(outcome.result, sketch=None)
        if outcome.result.sketch:
            self.sketches[community] = outcome.result.sketch
        self.kept += outcome.result.kept
        self._schedule.done(community, outcome.result.record_tokens)

    def _row(self, plan: ContextPlan) -> Row:
        earlier = self._earlier.of(plan.community) if self._earlier else None
        reports, ids = self._below
        shown: dict[int, tuple[report_context.Record, Evidence]] = {}
        for c in plan.reports.tolist():
            written = reports(c)
            content = written.report.title, full_content(written.report), self._section
            shown[c] = report_context.report_record(report_id(ids[c]), *content), written.evidence
        return {
            "earlier": earlier,
            "lost": self._earlier.lost_by(earlier) if self._earlier and earlier else None,
            "community": plan.community,
            "called": self._called(plan.community),
            "kinds": plan.kinds,
            "places": plan.indices,
            "left_out": plan.left_out,
            "reports": shown,
        }


def _start(
    ask: _Ask, blocks: Mapping[str, ElementBlocks], budget: _Budget, store: Store, row: Row
) -> Dialogue[WrittenReport]:
    """Render the context that was planned, then ask for its report, unless that of before stands."""
    elements = _records(store, blocks, row)
    records = [record for record, _ in elements]
    shown = report_context.render(records, budget.tokens, budget.count, row["left_out"], budget.longest)
    now: Sketch | None = None
    if budget.keep_below:
        rests_on = [evidence(chunks) if isinstance(chunks, list) else chunks for _, chunks in elements]
        now = sketch(shown, records, rests_on)
        earlier: Earlier | None = row["earlier"]
        if earlier and (stands := standing(earlier, now, records, budget.keep_below, row["lost"])):
            sizes = _record_tokens(stands, budget), earlier.context_tokens, earlier.left_out
            return WrittenReport(
                stands, earlier.n_tokens, *sizes, earlier.sketch, evidence=now.evidence, kept=True
            )
    written = yield from ask(shown)
    n_tokens = budget.count(report_context.shown_content(full_content(written)))
    sizes = _record_tokens(written, budget), shown.n_tokens, shown.left_out
    return WrittenReport(written, n_tokens, *sizes, now, now.evidence if now else ())


def _record_tokens(written: Report, budget: _Budget) -> int:
    record = report_context.report_record("", written.title, full_content(written))
    return report_context.record_tokens(record, budget.count)


def _records(
    store: Store, blocks: Mapping[str, ElementBlocks], row: Row
) -> list[tuple[report_context.Record, list[str] | Evidence]]:
    """What a context shows, and the chunks that each of it rests on."""
    kinds, places = row["kinds"], row["places"]
    by_kind = {
        kind: iter(blocks[name].rows(store, places[kinds == kind], IN_CONTEXTS[name]))
        for kind, name in ELEMENTS.items()
        if name in blocks
    }
    records: list[tuple[report_context.Record, list[str] | Evidence]] = []
    for kind, place in zip(kinds.tolist(), places.tolist(), strict=True):
        if kind not in by_kind:
            records.append(row["reports"][place])
            continue
        e = next(by_kind[kind])
        if kind == NODE:
            record = report_context.entity(e["id"], e["title"], e["description"])
        elif kind == EDGE:
            record = report_context.relationship(e["id"], e["source"], e["target"], e["description"])
        elif kind == CHUNK:
            records.append((report_context.source(e["id"], e["text"], e["header"]), [e["id"]]))
            continue
        else:
            record = report_context.claim_of(e)
        records.append((record, e["text_unit_ids"]))
    return records


def _label(row: Row) -> tuple[str, str]:
    return row["called"], ""


def _row(community: str, written: WrittenReport) -> dict[str, Any]:
    r = written.report
    return {
        "community": community,
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


def _compared_row(
    community: str, source: ReportSource, number: int, signature: Hashes, spec: str
) -> dict[str, Any]:
    """A row of COMPARED."""
    written, sketched = source.written[number], source.sketches.get(number)
    return {
        **_row(community, written),
        "signature": signature.tolist(),
        "record_tokens": written.record_tokens,
        "kept": written.kept,
        "evidence": written.evidence,
        "spec": spec if sketched else None,
        "whole": sketched and sketched.whole,
        "records": sketched and [record._asdict() for record in sketched.records],
    }


def report_tables(written: Spool[WrittenReport], level: Ints, ids: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of WRITTEN level by level, by community in each. ids: of the communities, by number."""
    numbers = sorted(written.numbers(), key=lambda c: (level[c], c))
    for at in range(0, len(numbers), PART_ROWS):
        rows = [_row(ids[c], written[c]) for c in numbers[at : at + PART_ROWS]]
        yield pa.Table.from_pylist(rows, schema=WRITTEN)


def tell_about(run: Run, corpus: Result, load_layout: Callable[[], Layout]) -> Result:
    """Sets `corpus.about` of the run's settings where nothing says it. Table failures: the item, where that
    failed: reports are written without then.

    It is no step: later runs do not have it.
    """
    if run.untold:  # what follows is done again, since a part was damaged
        return run.untold
    if not is_to_be_told(run.settings, run.prompts) or not len((layout := load_layout()).node_keys):
        return Result()
    work = Work(ABOUT, partial(_start_about, about_spec(run.settings, run.prompts)), _label_about)
    with run.chore(ABOUT) as counts:
        rows = pa.Table.from_pylist([_material(run, corpus, layout)])
        with suppress(TooManyFailures):  # one of one
            run.sweep_rows(work, _just_rows, [rows], 1)
        batch = next(replayed(work, run.journal(ABOUT), run.store, [rows]))
        outcome = batch[0][1]
        counts["sentences"] = int(outcome.status == "complete")
        if outcome.status == "complete" and outcome.result:
            run.settings = run.settings.with_about(outcome.result)
            return Result()
        run.observer.note(
            f"What the corpus is about could not be told ({outcome.error}): reports are written without, now "
            "and later. --set corpus.about='…' tells it, and asks for all reports anew."
        )
        # Also for a run that goes on where this one stops: with it, all reports would be asked for anew.
        run.settings = run.settings.with_about("")
        written = run.write(ABOUT, "failures", [failure_rows(ABOUT, work, batch)])
        run.untold = Result({"failures": [written]})
        return run.untold


def _material(run: Run, corpus: Result, layout: Layout) -> Row:
    model = run.settings.model(run.settings.model_name("report"))
    in_tokens = partial(count, vocabulary_name=vocabulary_for(model.model, model.tokenizer).name)
    elements, n = layout.elements, len(layout.hierarchy.order)
    degree = degrees(elements.edge_source, elements.edge_target, n)
    places = np.lexsort((layout.node_keys[layout.hierarchy.order], -degree))[:MAX_ENTITIES]
    named = layout.blocks["entities"].rows(run.store, places, ["title", "description"])
    # Titles of documents that lie evenly over the corpus; only the parts that hold them are read.
    documents = corpus.parts("documents")
    ends = np.cumsum([part.rows for part in documents])
    chosen = np.array(spread(int(ends[-1]) if len(ends) else 0), dtype=np.int64)
    of_part = np.searchsorted(ends, chosen, side="right")
    titles = []
    for at in np.unique(of_part).tolist():
        columns = ["title", "creation_date", "path", "row"]
        rows = chosen[of_part == at] - (ends[at] - documents[at].rows)
        found = read_part(run.store, documents[at], columns).take(pa.array(rows)).to_pylist()
        titles += [label(d["title"], d["creation_date"], d["path"] or "", d["row"] or "") for d in found]
    return {
        "titles": title_lines(titles, in_tokens),
        "entities": entity_lines([(e["title"], e["description"]) for e in named], in_tokens),
    }


def _start_about(spec: AboutSpec, store: Store, row: Row) -> Dialogue[str]:
    return about(row["titles"], row["entities"], spec)


def _label_about(row: Row) -> tuple[str, str]:
    return "the corpus", ""


def _just_rows(store: Store, rows: pa.Table) -> Iterator[pa.Table]:
    yield rows
