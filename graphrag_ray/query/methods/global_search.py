"""Global search: map-reduce over all reports of one level (paper 3.1.6; C0–C3 of 4.1.2).

With `query.dynamic`, it instead reads the reports that dynamic selection rates as relevant.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import BudgetSpent
from graphrag_ray.base.schema import PERIOD_COLUMNS
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.budget import (
    CostBound,
    check_budget,
    describe_budget,
    has_budget,
    map_reduce_bound,
    recount_tokens,
)
from graphrag_ray.query.methods.document_filters import reports_in_period
from graphrag_ray.query.methods.dynamic_selection import Selection, select
from graphrag_ray.query.methods.hierarchy_choice import communities_of, reports_of, resolve_hierarchy
from graphrag_ray.query.methods.levels import Ints, LevelReports, Levels, build_levels, is_auto
from graphrag_ray.query.methods.method import Method, Question, Rows, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.partial_answers import RecordsToRead, combined_answer, map_reduce

NAME = "global"
ADVICE = "Raise the budget, or let it choose the level: --level auto."


def search(question: Question, env: SearchEnv) -> Method:
    """Read all reports of C_k, or the reports that dynamic selection finds."""
    kind = resolve_hierarchy(env)
    reports, communities = yield reports_of(kind), communities_of(kind)
    reports = yield from recount_tokens(kind.report_kind, reports, env)
    restriction: tuple[str, ...] = ()
    if question.where:
        # A community without a suitable report is represented by suitable reports below it.
        periods = yield Rows(kind.reports_table, PERIOD_COLUMNS)
        inside = reports_in_period(question.where, periods)
        reports, restriction = reports.filter(pa.array(inside.mask)), (inside.note(),)
    known = build_levels(communities, reports, kind.name)
    query = env.settings.query
    if query.dynamic:
        if not known.n_levels or not (known.report >= 0).any():
            raise known.no_reports_error()
        deepest = min(query.dynamic_max_level, known.n_levels - 1)
        if not is_auto(question.level):
            deepest = known.parse(question.level, query.context_tokens)
        ids = reports["id"].to_pylist()
        selection = yield from select(question.text, env, kind.report_kind, known, ids, deepest)
        wanted = _records(kind, reports, known.report[selection.positions])
        parts = yield from map_reduce(question.text, env, wanted)
        notes = (*restriction, *selection_notes(selection, deepest))
        answer: Answer = yield from combined_answer(question.text, NAME, "reports", parts, notes=notes)
        return replace(answer, contexts=(*selection.contexts, *answer.contexts))
    chosen, level_notes = choose_level(question, env, known, reports)
    parts = yield from map_reduce(question.text, env, _records(kind, reports, chosen.rows))
    notes = (*restriction, *level_notes, *gap_notes(chosen, bool(restriction)))
    return (
        yield from combined_answer(question.text, NAME, "reports", parts, level=chosen.level, notes=notes)
    )


METHOD = MethodKind(
    search,
    stages=("map", "reduce"),
    description="community reports on the whole corpus",
    levels=True,
    dynamic=True,
    alternative="text",
    period=True,
    suggestions=("local", "hybrid"),
    reports=True,
)


def choose_level(
    question: Question, env: SearchEnv, known: Levels, reports: pa.Table
) -> tuple[LevelReports, tuple[str, ...]]:
    """Choose the requested level, the finest within the budget, or the default. Also returns notes."""
    query = env.settings.query

    def bound(level: LevelReports) -> CostBound:
        return map_reduce_bound(question.text, env, reports["n_tokens"].take(pa.array(level.rows)))

    auto = is_auto(question.level)
    if auto and has_budget(query):
        with_reports = [
            level for k in range(known.n_levels) if len((level := known.reports_of_level(k)).rows)
        ]
        if not with_reports:
            raise known.no_reports_error()
        chosen = next((level for level in reversed(with_reports) if bound(level).within(query)), None)
        if chosen is None:
            lowest = min(with_reports, key=lambda level: bound(level).tokens)
            raise BudgetSpent(
                f"Even C{lowest.level} would take {bound(lowest)}, but {describe_budget(query)}. No call was "
                "made for the answer. Raise the budget, or ask with --method vector."
            )
        finer = next((level for level in with_reports if level.level > chosen.level), None)
        suffix = f"; C{finer.level} would take {bound(finer)}" if finer else ""
        return chosen, (f"C{chosen.level} is the finest level within the budget: {bound(chosen)}{suffix}.",)
    chosen = known.reports_of_level(known.parse(None if auto else question.level, query.context_tokens))
    check_budget(bound(chosen), query, ADVICE)
    if question.level is None or not auto:
        return chosen, ()
    return chosen, (f"C{chosen.level} is the coarsest level with enough reports to fill a context.",)


def selection_notes(selection: Selection, deepest: int) -> tuple[str, ...]:
    """Describe what dynamic selection did."""
    n_read, calls = len(selection.positions), plural(len(selection.contexts), "call")
    reason = f" ({Counter(selection.errors).most_common(1)[0][0]})" if selection.errors else ""
    unrated, left_out, missing = selection.unrated, selection.left_out, selection.missing
    possible = (
        (
            True,
            f"{plural(selection.n_rated, 'report')} down to C{deepest} rated in {calls}, {n_read:,} read.",
        ),
        (unrated, f"{plural(unrated, 'report')} got no rating and counted as relevant{reason}."),
        (selection.ended, selection.ended),
        (left_out, f"{plural(left_out, 'relevant report')}, the least relevant, left out for the budget."),
        (missing, f"{plural(missing, 'community', 'communities')} below relevant ones have no report."),
    )
    return tuple(text for applies, text in possible if applies)


def _records(kind: HierarchyKind, reports: pa.Table, rows: Ints) -> RecordsToRead:
    chosen = reports.take(pa.array(rows))
    return RecordsToRead(kind.report_kind, chosen["id"].to_pylist(), chosen["n_tokens"].to_pylist())


def gap_notes(chosen: LevelReports, restricted: bool = False) -> tuple[str, ...]:
    """Describe the communities without a report. `restricted`: without one that satisfies the conditions."""
    what = "no report within the conditions" if restricted else "no report"
    possible = (
        (len(chosen.missing), f"have {what} and are missing."),
        (len(chosen.replaced), f"have {what}; reports of their sub-communities represent them."),
    )
    return tuple(f"{n} communities {what}" for n, what in possible if n)
