"""Write reports bottom-up (paper 3.1.5), each as soon as the reports that it needs are written.

The driver plans contexts as integers (`graph/report_schedule.py`). A worker reads the elements, renders the
context and runs the dialogue. Once the length of its report is known, the parent community can be planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.declarations import ABOUT_DIALOGUE, REPORT_SECTIONS
from graphrag_ray.base.errors import TooManyFailures
from graphrag_ray.base.ids import report_id
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.document_titles import document_label
from graphrag_ray.corpus.tokens import count_tokens, vocabulary_for
from graphrag_ray.engine.executor import WrittenParts
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.graph import corpus_overview, report_context
from graphrag_ray.graph.community_signatures import Hashes, signatures
from graphrag_ray.graph.composed_report import composed_report
from graphrag_ray.graph.context_plan import CHUNK, CLAIM, ENTITY, RELATIONSHIP, ContextPlan
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.graph.integer_arrays import node_degrees
from graphrag_ray.graph.report_dialogue import Report, ReportSpec, full_content, report, report_spec
from graphrag_ray.graph.report_reuse import (
    ContextSketch,
    Evidence,
    reusable_report,
    sketch_context,
    sketch_evidence,
)
from graphrag_ray.graph.report_schedule import HierarchySchedule, LevelSchedule
from graphrag_ray.graph.stable_batches import stable_batches
from graphrag_ray.graph.summary_dialogue import SummarySpec, max_record_tokens, summary, summary_spec
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.indexing.stages import reused_reports
from graphrag_ray.indexing.stages.communities_stage import (
    CONTEXT_COLUMNS,
    ElementBlocks,
    Layout,
    element_blocks,
)
from graphrag_ray.indexing.stages.document_periods import Periods, community_periods
from graphrag_ray.indexing.stages.short_ids import id_keys
from graphrag_ray.indexing.step_result import Result, fingerprint_of, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_part
from graphrag_ray.store.retry_rows import find_duplicate_replies

_PLAN_BATCH = 64
MAX_SWEEPS = 5
"""Maximum number of times that reports are planned because a request was answered twice."""
PART_ROWS = 512
"""Maximum number of reports in a part, about 2 MB."""
ELEMENT_TABLES = {ENTITY: "entities", RELATIONSHIP: "relationships", CLAIM: "covariates", CHUNK: "text_units"}


@dataclass(frozen=True)
class WrittenReport:
    """A report, and a summary of the context that it was written from.

    Attributes:
        record_tokens: Tokens of its record in the context of another report.
        left_out: Number of records that did not fit into its context.
        sketch: A sketch of its context for comparison by later runs; None if they never compare it.
        evidence: Hashes of the chunks that support it now.
        kept: Whether it is the parent snapshot's report, although its context changed.
    """

    report: Report
    n_tokens: int
    record_tokens: int
    context_tokens: int
    left_out: int
    sketch: ContextSketch | None = None
    evidence: Evidence = ()
    kept: bool = False


@dataclass(frozen=True)
class _Budget:
    """Token budget of a context, and of each record in it.

    `rewrite_threshold` and `model_from` are settings of reports. Reports are composed if their records have
    at most `report_tokens`. With later `rules`, contexts do not repeat sentences.
    """

    tokens: int
    vocabulary: str
    rewrite_threshold: float = 0.0
    max_record_tokens: int | None = None
    rules: int | None = None
    model_from: int = 0
    report_tokens: int = 0

    def count(self, text: str) -> int:
        return count_tokens(text, self.vocabulary)


@dataclass(frozen=True)
class ReportWork:
    """How reports or summaries are requested."""

    spec: ReportSpec | SummarySpec
    budget: _Budget
    work: Work[WrittenReport]

    @classmethod
    def for_reports(
        cls, run: Run, blocks: Mapping[str, ElementBlocks], rewrite_threshold: float
    ) -> ReportWork:
        spec = report_spec(run.settings, run.prompts)
        options = run.settings.reports
        budget = _Budget(
            options.context_tokens,
            _vocabulary(run, "report"),
            rewrite_threshold,
            rules=spec.rules,
            model_from=run.settings.composes_below,
            report_tokens=options.max_output_tokens,
        )
        start = partial(_start, partial(report, spec=spec), blocks, budget)
        return cls(spec, budget, Work("report", start, _label, needs_results=True))

    @classmethod
    def for_summaries(cls, run: Run, blocks: Mapping[str, ElementBlocks], context_tokens: int) -> ReportWork:
        spec = summary_spec(run.settings, run.prompts)
        budget = _Budget(
            context_tokens, _vocabulary(run, "summary"), max_record_tokens=max_record_tokens(context_tokens)
        )
        start = partial(_start, partial(summary, spec=spec), blocks, budget)
        return cls(spec, budget, Work("summary", start, _label, needs_results=True))

    @property
    def depends_on(self) -> list[Any]:
        return [spec_key(self.spec), self.budget.vocabulary]

    @property
    def shows_period(self) -> bool:
        """Whether requests state the period, so that they depend on the dates of documents."""
        return "period" in self.spec.prompt.placeholders


def _vocabulary(run: Run, dialogue: str) -> str:
    model = run.settings.model(run.settings.model_name(dialogue))
    return vocabulary_for(model.model, model.tokenizer).name


def write_reports(  # noqa: PLR0915
    run: Run,
    corpus: Result,
    communities: Result,
    load_layout: Callable[[], Layout],
    ids: list[str],
    number: Callable[[], Ints],
) -> Result:
    """Write a report on each of the `communities`, the result of `find_communities`.

    The fingerprint does not cover which reports of the parent snapshot are kept, because the next run keeps
    them too. `number` returns the short id of each community. Returns tables reports (`COMPARED`, in groups
    of `community_batches`) and failures.
    """
    options = run.settings.reports
    requests = ReportWork.for_reports(
        run, element_blocks(communities, ELEMENT_TABLES.values()), options.rewrite_threshold
    )
    work, (spec, vocabulary) = requests.work, requests.depends_on
    documents = [corpus.tables["documents"]] if requests.shows_period else []
    spec_hash = fingerprint_of(spec)  # Only reports requested with the same specification can be kept.

    def compute() -> Result:
        depends_on = fingerprint_of([spec, options, vocabulary])
        layout = load_layout()
        h, elements = layout.hierarchy, layout.elements
        schedule = partial(
            HierarchySchedule, h, elements, options.context_tokens, options.max_claims_per_entity
        )
        keys = id_keys(pa.array(ids, pa.string()))
        signed = signatures(h, elements, layout.contents, keys, schedule().is_cut)
        periods = None
        if documents:
            periods = community_periods(run, corpus, h, layout.blocks["entities"].parts)
            signed[:, -1] += periods.hashes()
        unchanged = reused_reports.unchanged_reports(run, depends_on, h, ids, signed)
        planned = ~unchanged.unchanged if unchanged else np.ones(len(ids), np.bool_)
        run.item_totals["reports"] = len(ids), "reports"
        earlier = None
        if options.rewrite_threshold and planned.any():
            earlier = reused_reports.earlier_reports(run, corpus, layout, spec_hash, planned)
        known_tokens: dict[int, int | None] = {}
        known_reports = Spool[WrittenReport]()
        if unchanged:
            known_tokens = unchanged.tokens
            known_reports = _load_child_reports(run.store, unchanged, h.parent)

        def plan() -> ReportSource:
            return ReportSource(
                schedule(known=known_tokens),
                lambda community: f"community {community} at level {h.level[community]}",
                ids,
                earlier,
                known=known_reports,
                n_known=len(known_tokens),
                periods=periods,
            )

        source = sweep_reports(run, work, plan)
        has_report = ~planned
        has_report[source.written.numbers()] = True
        groups = community_batches(ids, h.level, number(), has_report)
        names = [[ids[c] for c in group] for group in groups]
        rewritten = [n for n, group in enumerate(groups) if planned[group].any()]
        reuse_plan = run.reuse_plan(
            "reports", groups, depends_on, ("reports",), identities=names, forced_inputs=rewritten
        )
        written: WrittenParts = []
        for group in reuse_plan.new_inputs:
            old, new = ([c for c in group if planned[c] == is_new] for is_new in (False, True))
            rows = [_compared_row(ids[c], source, c, signed[c], spec_hash) for c in new]
            tables = [pa.Table.from_pylist(rows, schema=reused_reports.COMPARED)]
            tables += [unchanged.table(run.store, old)] if unchanged and old else []
            row_of = {c: n for n, c in enumerate((*new, *old))}
            table = pa.concat_tables(tables).take(pa.array([row_of[c] for c in group]))
            written.append({"reports": run.write("reports", "reports", [table.combine_chunks()])})
        result = reuse_plan.merge_new(run.store, written)
        failed = failure_rows(work.name, work, source.sorted_failures())
        failures = run.write(work.name, "failures", [failed])
        final = not any(outcome.status == "retry" for _, outcome in source.failed)
        counts = {"reports": int(has_report.sum()), "failed_reports": len(source.failed)}
        if options.rewrite_threshold:
            counts["kept_reports"] = source.kept
        counts["composed_reports"] = source.composed + (unchanged.n_composed if unchanged else 0)
        made_from = result.made_from | {"signatures": [depends_on]}
        return Result(result.tables | {"failures": [failures]}, counts, final, made_from)

    return run.step("reports", [communities, spec, options, vocabulary, *documents], compute, work.name)


def community_batches(
    ids: Sequence[str],
    level: Ints,
    number: Ints,
    wanted: npt.NDArray[np.bool_],
    sizes: Ints | None = None,
    limit: int | None = None,
) -> list[list[int]]:
    """Batch the wanted communities by level and short id, with content-defined boundaries.

    `limit` is the maximum sum of `sizes` in a batch. By default, a batch has at most PART_ROWS communities.
    """
    order = [c for c in np.lexsort((number, level)).tolist() if wanted[c]]
    ordered_sizes = [1] * len(order) if sizes is None else sizes[order].tolist()
    batches = stable_batches([ids[c] for c in order], ordered_sizes, limit or PART_ROWS)
    return [[order[n] for n in batch] for batch in batches]


def _load_child_reports(
    store: Store, unchanged: reused_reports.UnchangedReports, parent: Ints
) -> Spool[WrittenReport]:
    """Load the unchanged reports that the contexts of new reports may contain."""
    reports: Spool[WrittenReport] = Spool()
    wanted = np.flatnonzero(unchanged.unchanged & (parent >= 0) & ~unchanged.unchanged[parent])
    # Load them in the order of parts, so that each part is read once.
    ordered = wanted[np.argsort(unchanged.row_of[wanted])].tolist()
    for start in range(0, len(ordered), PART_ROWS):
        batch = ordered[start : start + PART_ROWS]
        for c, row in zip(batch, unchanged.table(store, batch).to_pylist(), strict=True):
            sizes = row["n_tokens"], row["record_tokens"], row["context_tokens"], row["context_left_out"]
            report = reused_reports.report_from_row(row)
            reports[c] = WrittenReport(report, *sizes, evidence=tuple(row["evidence"]))
    return reports


def sweep_reports(run: Run, work: Work[WrittenReport], plan: Callable[[], ReportSource]) -> ReportSource:
    """Write all reports, so that the result depends only on the journal.

    A worker that is considered dead may still answer an item that was reassigned. From then on, the earlier
    of the two replies counts, but the parent's report may have been written from the later one. If a request
    was answered twice, everything is therefore planned again from the journal until no request is left.
    """
    for _ in range(MAX_SWEEPS):
        source = plan()
        swept = run.sweep(work, source, run.journal(work.name))
        if not swept.accounts.total.calls or not find_duplicate_replies(run.store, work.name):
            break
    return source


class ReportSource:
    """Feeds a sweep from a schedule: finished reports decide which others can start.

    `display_name` returns the name of a community in progress lines and failures. `below` are the reports, by
    number, that this level is written from, and the ids of their communities. By default, these are the
    reports that this source writes and the `known` ones. `n_known` communities need no new report. `periods`
    are those of communities, for prompts that state them.
    """

    def __init__(
        self,
        schedule: HierarchySchedule | LevelSchedule,
        display_name: Callable[[int], str],
        ids: Sequence[str],
        earlier: reused_reports.EarlierReports | None = None,
        below: tuple[Callable[[int], WrittenReport], Sequence[str]] | None = None,
        section: str = "Reports",
        known: Spool[WrittenReport] | None = None,
        n_known: int = 0,
        periods: Periods | None = None,
    ) -> None:
        self._schedule, self._display_name, self._section = schedule, display_name, section
        self._earlier, self._periods = earlier, periods
        self.kept = self.composed = 0
        self._taken: list[int] = []
        self._open: dict[int, Row] = {}
        self.written: Spool[WrittenReport] = Spool()
        # Stored separately, because reports are read for each context that contains them.
        self.sketches: Spool[ContextSketch] = Spool()
        self._below = below or (lambda c: (known.get(c) if known else None) or self.written[c], ids)
        self.failed: list[tuple[Row, Outcome[WrittenReport]]] = []
        self.total: int | None = len(ids) - n_known

    def take(self) -> list[Row] | None:
        if self._schedule.finished:
            return None
        rows = [self._row(plan) for plan in self._schedule.take_ready(_PLAN_BATCH)]
        for row in rows:
            self._taken.append(row["community"])
            # Store only the fields that `_label` needs, because a row may contain whole reports.
            self._open[row["community"]] = {name: row[name] for name in ("community", "display_name")}
        return rows

    def on_finished(self, number: int, outcome: Outcome[WrittenReport]) -> None:
        community = self._taken[number]
        row = self._open.pop(community)
        if outcome.status != "complete" or outcome.result is None:
            self.failed.append((row, outcome))
            self._schedule.mark_done(community, None)
            return
        self.written[community] = replace(outcome.result, sketch=None)
        if outcome.result.sketch:
            self.sketches[community] = outcome.result.sketch
        self.kept += outcome.result.kept
        self.composed += outcome.result.report.composed
        self._schedule.mark_done(community, outcome.result.record_tokens)

    def sorted_failures(self) -> list[tuple[Row, Outcome[WrittenReport]]]:
        """Return failures in the order of communities."""
        return sorted(self.failed, key=lambda failure: failure[0]["community"])

    def _row(self, plan: ContextPlan) -> Row:
        earlier = self._earlier.report_for(plan.community) if self._earlier else None
        load_report, ids = self._below
        reports: dict[int, tuple[report_context.Record, Evidence]] = {}
        for c in plan.reports.tolist():
            written = load_report(c)
            content = written.report.title, full_content(written.report), self._section
            reports[c] = report_context.report_record(report_id(ids[c]), *content), written.evidence
        return {
            "earlier": earlier,
            "lost": self._earlier.lost_by(earlier) if self._earlier and earlier else None,
            "community": plan.community,
            "display_name": self._display_name(plan.community),
            "kinds": plan.kinds,
            "places": plan.indices,
            "left_out": plan.left_out,
            "reports": reports,
            "period": self._periods.describe(plan.community) if self._periods else "",
        }


def _start(
    dialogue: Callable[..., Dialogue[Report]],
    blocks: Mapping[str, ElementBlocks],
    budget: _Budget,
    store: Store,
    row: Row,
) -> Dialogue[WrittenReport]:
    """Render the planned context and request its report.

    The report of a small community is composed, and the earlier report is kept if it can be.
    """
    elements = _records(store, blocks, row)
    records = [record for record, _ in elements]
    context = report_context.render(
        report_context.without_repetitions(records) if budget.rules else records,
        budget.tokens,
        budget.count,
        row["left_out"],
        budget.max_record_tokens,
    )
    is_composed = _is_small(records, context, budget)
    now: ContextSketch | None = None
    if budget.rewrite_threshold:
        support = [sketch_evidence(chunks) if isinstance(chunks, list) else chunks for _, chunks in elements]
        now = sketch_context(context, records, support)
        earlier = row["earlier"]
        if (
            not is_composed
            and earlier
            and (kept := reusable_report(earlier, now, records, budget.rewrite_threshold, row["lost"]))
        ):
            sizes = _record_tokens(kept, budget), earlier.context_tokens, earlier.left_out
            return WrittenReport(kept, earlier.n_tokens, *sizes, earlier.sketch, now.evidence, kept=True)
    written = (
        composed_report(elements) if is_composed else (yield from dialogue(context, period=row["period"]))
    )
    n_tokens = budget.count(report_context.content_for_context(full_content(written)))
    sizes = _record_tokens(written, budget), context.n_tokens, context.left_out
    # A composed report is never kept, so its context need not be compared.
    evidence = now.evidence if now else ()
    return WrittenReport(written, n_tokens, *sizes, None if is_composed else now, evidence)


def _is_small(
    records: Sequence[report_context.Record], context: report_context.Context, budget: _Budget
) -> bool:
    """Return whether the report on a context is composed."""
    n_entities = sum(record.section == "Entities" for record in records)
    is_whole = not context.left_out and not any(record.section in REPORT_SECTIONS for record in records)
    return 0 < n_entities < budget.model_from and is_whole and context.n_tokens <= budget.report_tokens


def _record_tokens(written: Report, budget: _Budget) -> int:
    record = report_context.report_record("", written.title, full_content(written))
    return report_context.count_record_tokens(record, budget.count)


def _records(
    store: Store, blocks: Mapping[str, ElementBlocks], row: Row
) -> list[tuple[report_context.Record, list[str] | Evidence]]:
    """Return the records of a context, each with the chunks that support it."""
    kinds, positions = row["kinds"], row["places"]
    elements = {
        kind: iter(blocks[name].rows(store, positions[kinds == kind], CONTEXT_COLUMNS[name]))
        for kind, name in ELEMENT_TABLES.items()
        if name in blocks
    }
    records: list[tuple[report_context.Record, list[str] | Evidence]] = []
    for kind, position in zip(kinds.tolist(), positions.tolist(), strict=True):
        if kind not in elements:
            records.append(row["reports"][position])
            continue
        e = next(elements[kind])
        if kind == ENTITY:
            record = report_context.entity_record(e["id"], e["title"], e["description"])
        elif kind == RELATIONSHIP:
            record = report_context.relationship_record(
                *(e["id"], e["source"], e["target"], e["description"]), e["relation"], e["relation_reversed"]
            )
        elif kind == CHUNK:
            record = report_context.source_record(e["id"], e["text"], e["header"])
        else:
            record = report_context.claim_record(e)
        records.append((record, [e["id"]] if kind == CHUNK else e["text_unit_ids"]))
    return records


def _label(row: Row) -> tuple[str, str]:
    return row["display_name"], ""


def _report_row(community: str, written: WrittenReport) -> dict[str, Any]:
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
        "composed": r.composed,
    }


def _compared_row(
    community: str, source: ReportSource, number: int, signature: Hashes, spec_hash: str
) -> dict[str, Any]:
    written, sketched = source.written[number], source.sketches.get(number)
    return {
        **_report_row(community, written),
        "signature": signature.tolist(),
        "record_tokens": written.record_tokens,
        "kept": written.kept,
        "evidence": written.evidence,
        "spec": spec_hash if sketched else None,
        "whole": sketched and sketched.text_hash,
        "records": sketched and [record._asdict() for record in sketched.records],
    }


def report_tables(written: Spool[WrittenReport], level: Ints, ids: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows of `WRITTEN` by level and community number. `ids` are the ids of all communities."""
    numbers = sorted(written.numbers(), key=lambda c: (level[c], c))
    for start in range(0, len(numbers), PART_ROWS):
        rows = [_report_row(ids[c], written[c]) for c in numbers[start : start + PART_ROWS]]
        yield pa.Table.from_pylist(rows, schema=reused_reports.WRITTEN)


def describe_corpus(run: Run, corpus: Result, load_layout: Callable[[], Layout]) -> Result:
    """Ask the model once what the corpus is about, and store the reply as the setting `corpus.description`.

    This is not a step, because later runs do not repeat it. If it fails, reports are written without a
    description, and the result contains table failures.
    """
    if run.about_failure:  # It failed in an attempt of this run that a damaged part aborted.
        return run.about_failure
    if not corpus_overview.needs_overview(run.settings, run.prompts):
        return Result()
    layout = load_layout()
    if not len(layout.node_keys):
        return Result()
    spec = corpus_overview.about_spec(run.settings, run.prompts)
    work = Work(
        ABOUT_DIALOGUE,
        lambda store, row: corpus_overview.request_overview(row["titles"], row["entities"], spec),
        lambda row: ("the corpus", ""),
    )
    with run.maintenance_task(ABOUT_DIALOGUE) as counts:
        rows = pa.Table.from_pylist([_corpus_overview(run, corpus, layout)])
        with suppress(TooManyFailures):  # A single item of one is always too many.
            run.sweep_rows(work, lambda store, table: [table], [rows], 1)
        batch = next(replay_rows(work, run.journal(ABOUT_DIALOGUE), run.store, [rows]))
        outcome = batch[0][1]
        counts["sentences"] = int(outcome.status == "complete")
        if outcome.status == "complete" and outcome.result:
            run.settings = run.settings.with_description(outcome.result)
            return Result()
        run.observer.message(
            f"Could not describe the corpus as a whole ({outcome.error}). This and later runs write reports "
            "without a description. Use --set corpus.description='…' to add one and rewrite all reports."
        )
        # A run that resumes this one uses this setting, too. Otherwise, it would request all reports again.
        run.settings = run.settings.with_description("")
        written = run.write(ABOUT_DIALOGUE, "failures", [failure_rows(ABOUT_DIALOGUE, work, batch)])
        run.about_failure = Result({"failures": [written]})
        return run.about_failure


def _corpus_overview(run: Run, corpus: Result, layout: Layout) -> Row:
    """Return the titles of documents spread evenly over the corpus, and the best connected entities."""
    tokens_of = partial(count_tokens, vocabulary_name=_vocabulary(run, "report"))
    elements, n = layout.elements, len(layout.hierarchy.node_at_place)
    degree = node_degrees(elements.edge_source, elements.edge_target, n)
    positions = np.lexsort((layout.node_keys[layout.hierarchy.node_at_place], -degree))[
        : corpus_overview.MAX_ENTITIES
    ]
    entities = layout.blocks["entities"].rows(run.store, positions, ["title", "description"])
    described = [(e["title"], e["description"]) for e in entities]
    documents = corpus.parts("documents")
    ends = np.cumsum([part.rows for part in documents])
    chosen = np.array(corpus_overview.evenly_spaced(int(ends[-1]) if len(ends) else 0), dtype=np.int64)
    part_of = np.searchsorted(ends, chosen, side="right")
    titles = []
    for number in np.unique(part_of).tolist():
        part = documents[number]
        rows = chosen[part_of == number] - (ends[number] - part.rows)
        table = read_part(run.store, part, ["title", "creation_date", "path", "row"])
        titles += [
            document_label(d["title"], d["creation_date"], d["path"] or "", d["row"] or "")
            for d in table.take(pa.array(rows)).to_pylist()
        ]
    return {
        "titles": corpus_overview.title_lines(titles, tokens_of),
        "entities": corpus_overview.entity_lines(described, tokens_of),
    }
