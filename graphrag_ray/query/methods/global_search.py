"""Global search: the reports of one level of the hierarchy, all of them (paper 3.1.6; C0–C3 of 4.1.2), or
with `query.dynamic` those that were rated relevant from the top."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import BudgetSpent
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, communities_of, reports_of
from graphrag_ray.query.methods.budget import (
    Most,
    budget_in_words,
    has_budget,
    reading,
    recounted,
    refuse_beyond,
)
from graphrag_ray.query.methods.dynamic import Rated, select
from graphrag_ray.query.methods.levels import Ints, LevelReports, Levels, is_auto, levels
from graphrag_ray.query.methods.map_parts import ToRead, answered, read
from graphrag_ray.query.methods.method import Given, Method, Question
from graphrag_ray.query.methods.methods import MethodKind

NAME = "global"
ADVICE = "Raise the budget, or let it decide the level: --level auto."


def search(question: Question, given: Given) -> Method:
    """Read all reports of C_k, or those that dynamic selection finds. Raises LevelNotFound, BudgetSpent,
    UsageError for a question that leaves no room for data, or a hierarchy that the snapshot lacks."""
    kind = asked_hierarchy(given)
    reports, communities = yield reports_of(kind), communities_of(kind)
    reports = yield from recounted(kind.reports, reports, given)
    known = levels(communities, reports, kind.name)
    query = given.settings.query
    if query.dynamic:
        if not known.n_levels or not (known.report >= 0).any():
            raise known.empty()
        deepest = min(query.dynamic_max_level, known.n_levels - 1)
        if not is_auto(question.level):
            deepest = known.parse(question.level, query.context_tokens)
        ids = reports["id"].to_pylist()
        rated = yield from select(question.text, given, kind.reports, known, ids, deepest)
        what = yield from read(question.text, given, of_rows(kind, reports, known.report[rated.places]))
        notes = rated_in_words(rated, deepest)
        answer: Answer = yield from answered(question.text, NAME, "reports", what, notes=notes)
        return replace(answer, contexts=(*rated.contexts, *answer.contexts))
    chosen, why = choose(question, given, known, reports)
    what = yield from read(question.text, given, of_rows(kind, reports, chosen.rows))
    notes = (*why, *gaps(chosen))
    return (yield from answered(question.text, NAME, "reports", what, level=chosen.level, notes=notes))


METHOD = MethodKind(
    search,
    asks=("map", "reduce"),
    reads="what the reports say of the whole",
    levels=True,
    dynamic=True,
    instead="text",
    others=("local", "hybrid"),
    reports=True,
)


def choose(
    question: Question, given: Given, known: Levels, reports: pa.Table
) -> tuple[LevelReports, tuple[str, ...]]:
    """The level that is asked for; else the finest within the budget; without one, the default. And why, as
    sentences, where there is something to say."""
    query = given.settings.query

    def most(at: LevelReports) -> Most:
        return reading(question.text, given, reports["n_tokens"].take(pa.array(at.rows)))

    auto = is_auto(question.level)
    if auto and has_budget(query):
        with_reports = [at for k in range(known.n_levels) if len((at := known.at(k)).rows)]
        if not with_reports:
            raise known.empty()
        found = next((at for at in reversed(with_reports) if most(at).within(query)), None)
        if found is None:
            least = min(with_reports, key=lambda at: most(at).tokens)
            raise BudgetSpent(
                f"even C{least.level} would take {most(least)}; {budget_in_words(query)}. No answer was "
                "asked for. Raise the budget, or ask with --method vector."
            )
        finer = next((at for at in with_reports if at.level > found.level), None)
        more = f"; C{finer.level} would take {most(finer)}" if finer else ""
        return found, (f"C{found.level} is the finest level within the budget: {most(found)}{more}.",)
    level = known.parse(None if auto else question.level, query.context_tokens)
    chosen = known.at(level)
    refuse_beyond(most(chosen), query, ADVICE)
    if question.level is None or not auto:
        return chosen, ()
    return chosen, (f"C{level} is the coarsest level with enough reports to fill a context.",)


def rated_in_words(rated: Rated, deepest: int) -> tuple[str, ...]:
    """What dynamic selection did, as sentences."""
    n_kept, calls = len(rated.places), plural(len(rated.contexts), "call")
    why = f" ({Counter(rated.errors).most_common(1)[0][0]})" if rated.errors else ""
    n_missing, left_out = rated.missing, rated.left_out
    said = (
        (True, f"{plural(rated.n_rated, 'report')} down to C{deepest} rated in {calls}, {n_kept:,} read."),
        (rated.unrated, f"{plural(rated.unrated, 'report')} got no rating and counted as relevant{why}."),
        (rated.ended, rated.ended),
        (left_out, f"{plural(left_out, 'relevant report')} left out, the least relevant, for the budget."),
        (n_missing, f"{plural(n_missing, 'community', 'communities')} below relevant ones have no report."),
    )
    return tuple(text for applies, text in said if applies)


def of_rows(kind: HierarchyKind, reports: pa.Table, rows: Ints) -> ToRead:
    """Rows of a table of reports, to be read."""
    chosen = reports.take(pa.array(rows))
    return ToRead(kind.reports, chosen["id"].to_pylist(), chosen["n_tokens"].to_pylist())


def gaps(chosen: LevelReports) -> tuple[str, ...]:
    """What the reader should know of communities without a report, as sentences."""
    said = (
        (len(chosen.missing), "have no report and are missing."),
        (len(chosen.replaced), "have no report; reports of their sub-communities stand in."),
    )
    return tuple(f"{n} communities {what}" for n, what in said if n)
