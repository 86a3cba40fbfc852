"""Dynamic community selection: find the reports relevant to a question from the top of the hierarchy.

After Microsoft Research, "GraphRAG: Improving global search via dynamic community selection" (November 2024):
reports are rated level by level, and only reports below a relevant one are rated next. A relevant report is
read unless reports below it are relevant, which then replace it. As long as nothing is relevant, the next
level is rated completely, because a report on thousands of entities may not mention the subject of the
question.

Where the description is silent, a report whose rating failed counts as relevant, and the communities below a
community without a report are rated. With a budget, the descent ends before a level that could exceed it, and
the finest selection within the budget is read.

One call rates several reports, each independently. One call per report would repeat the instructions and the
question (about 600 tokens) for every report of about 600 tokens, which doubles the price and makes ten times
as many calls that count towards a rate limit. More than MAX_REPORTS_PER_CALL reports would dilute the model's
attention, and lose more if a reply fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from graphrag_ray.base.declarations import SEARCHABLE_KINDS
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, parse_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, Count, Record, longest_prefix_that_fits, sanitize
from graphrag_ray.query.methods.answer import ContextUsed
from graphrag_ray.query.methods.budget import (
    CostBound,
    check_budget,
    check_context_fits,
    map_reduce_bound,
    packed_bound,
)
from graphrag_ray.query.methods.levels import Ints, Levels
from graphrag_ray.query.methods.map_reduce import AnswerSpec, ask_for_reply, build_spec, pack
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues, Kind, Rows, SearchEnv, Steps
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import context_used

ADVICE = "Raise the budget, or ask without --dynamic."

MAX_RATING = 5.0
MIN_RELEVANT_RATING = 1.0
"""Lowest rating of a relevant report. Only 0 means irrelevant."""
MAX_REPORTS_PER_CALL = 10
MAX_RATE_TOKENS = 1_000
"""Maximum size of a reply: about 40 tokens per report, with room for a model that gives long reasons."""

COLUMNS = ("id", "title", "below", "content")
"""Columns of rated reports if at least one has reports below it."""
MAX_TITLES_BELOW = 6
MAX_BELOW_TOKENS = 80
"""Maximum total size of the titles listed below a report."""


@dataclass
class Selection:
    """The state of dynamic selection. Positions refer to `Levels`.

    Attributes:
        relevant: Position of a relevant report -> its rating, or MIN_RELEVANT_RATING if the rating failed.
        passed: Positions of communities without a report, whose sub-communities are rated.
        seen: Positions of all communities considered.
        unrated: Number of reports whose rating failed.
        errors: Messages of failed calls.
        spent: Upper bound on the cost of rating so far.
        ended: Why the descent ended early, as a sentence.
        positions: Positions of the reports to read, ascending.
        reading: Upper bound on the cost of reading these reports.
        missing: Number of communities below relevant ones that no report covers.
        left_out: Number of relevant reports left out because of the budget.
    """

    relevant: dict[int, float] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    n_rated: int = 0
    unrated: int = 0
    contexts: list[ContextUsed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    spent: CostBound = field(default_factory=CostBound)
    ended: str = ""
    positions: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reading: CostBound = field(default_factory=CostBound)
    missing: int = 0
    left_out: int = 0


def select(
    question: str, env: SearchEnv, kind: Kind, known: Levels, ids: Sequence[str], max_level: int
) -> Steps[Selection]:
    """Rate reports from the top down to `max_level`, and choose which to read. `ids` are all report ids.

    Raises:
        BudgetSpent: Rating the first level and reading one context could exceed the budget.
    """
    query, spec = env.settings.query, rate_spec(env.settings, env.prompts)
    check_context_fits(question, env, (spec,))
    state = Selection()
    frontier = np.flatnonzero(known.level == 0)
    while len(frontier):
        with_report = frontier[known.report[frontier] >= 0]
        has_children = np.isin(known.community[with_report], known.parent[known.level <= max_level])
        sizes = known.n_tokens[with_report] + np.where(has_children, MAX_BELOW_TOKENS, 0)
        spent = state.spent + packed_bound(question, env, "rate", spec, sizes, MAX_REPORTS_PER_CALL)
        first = not state.seen
        if first:
            one_context = map_reduce_bound(question, env, [query.context_tokens])
            check_budget(spent + one_context, query, ADVICE, "Rating C0 and reading one context of it")
        elif not (spent + state.reading).within(query):
            state.ended = f"C{known.level[frontier[0]]} could not be rated within the budget."
            break
        state.spent = spent
        yield from _rate_level(question, env, kind, known, ids, frontier, max_level, state)
        selected, missing = select_reports(state, known)
        reading = map_reduce_bound(question, env, known.n_tokens[selected])
        if first or (state.spent + reading).within(query):
            state.positions, state.missing, state.reading = selected, missing, reading
        if state.ended:
            break
        open_places = np.array(sorted(state.relevant.keys() | state.passed), dtype=np.int64)
        above = frontier[np.isin(frontier, open_places)] if state.relevant else frontier
        below = np.flatnonzero(np.isin(known.parent, known.community[above]))
        frontier = below[known.level[below] <= max_level]
    # Read as many of the reports as the budget allows, the most relevant first.
    order = sorted(state.positions.tolist(), key=lambda position: (-state.relevant[position], position))

    def bound(n: int) -> CostBound:
        return map_reduce_bound(question, env, known.n_tokens[order[:n]])

    numbers = range(1, len(order) + 1)
    n = bisect_left(numbers, True, key=lambda n: not (state.spent + bound(n)).within(query))
    state.positions, state.reading = np.array(sorted(order[:n]), dtype=np.int64), bound(n)
    state.left_out = len(order) - n
    return state


def _rate_level(
    question: str,
    env: SearchEnv,
    kind: Kind,
    known: Levels,
    ids: Sequence[str],
    frontier: Ints,
    max_level: int,
    state: Selection,
) -> Steps[None]:
    """Rate the reports of the frontier, and update the state."""
    query, spec = env.settings.query, rate_spec(env.settings, env.prompts)
    with_report = frontier[known.report[frontier] >= 0]
    position_of = {ids[known.report[position]]: int(position) for position in with_report}
    records = yield from load_records(((kind, id_) for id_ in position_of), env)
    # For each report, list the titles of reports directly below that may be rated next, by descending rank.
    by_community = {int(known.community[position]): int(position) for position in with_report}
    inside = np.isin(known.parent, list(by_community)) & (known.report >= 0) & (known.level <= max_level)
    parent_of = {
        ids[known.report[child]]: by_community[int(known.parent[child])] for child in np.flatnonzero(inside)
    }
    if parent_of:
        rows = (
            yield Rows(SEARCHABLE_KINDS[kind].table, ["id", "title", "rank"], list(parent_of))
        ).to_pylist()
        below: dict[int, list[str]] = {}
        for row in sorted(rows, key=lambda r: (-(r["rank"] or 0.0), r["id"])):
            below.setdefault(parent_of[row["id"]], []).append(row["title"] or "")
        records = [add_titles_below(r, below.get(position_of[r.id], []), env.count) for r in records]
    packed = pack(records, query.context_tokens, query.seed, env.count, MAX_REPORTS_PER_CALL)
    outcomes: list[DialogueOutcome[Mapping[str, float]]] = yield Dialogues(
        "rate", [partial(rate_reports, question, context, spec) for context in packed]
    )
    ratings = {id_: r for outcome in outcomes if outcome.result for id_, r in outcome.result.items()}
    rated = {position: ratings.get(id_, MIN_RELEVANT_RATING) for id_, position in position_of.items()}
    state.relevant |= {position: r for position, r in rated.items() if r >= MIN_RELEVANT_RATING}
    state.passed |= set(frontier[known.report[frontier] < 0].tolist())
    state.seen |= set(frontier.tolist())
    state.n_rated += len(position_of)
    state.unrated += len(position_of) - len(ratings)
    state.contexts += [context_used("rate", context) for context in packed]
    state.errors += [outcome.error for outcome in outcomes if outcome.result is None]
    if state.n_rated and state.unrated == state.n_rated:
        state.ended = "No call that rates reports succeeded."


def select_reports(state: Selection, known: Levels) -> tuple[Ints, int]:
    """Find the positions of the most specific relevant reports, and count uncovered communities.

    A community is uncovered if it has no report, nothing below it was considered, and it is not below a
    selected report.
    """
    position_of = {int(known.community[p]): p for p in state.relevant.keys() | state.passed}

    def above(position: int) -> list[int]:
        """List the ancestors of a position that were rated or passed, nearest first."""
        positions = []
        while (parent := position_of.get(int(known.parent[position]))) is not None:
            positions.append(parent)
            position = parent
        return positions

    selected = state.relevant.keys() - {p for position in state.relevant for p in above(position)}
    parents = {int(known.parent[position]) for position in state.seen}
    deepest = (position for position in state.passed if int(known.community[position]) not in parents)
    missing = sum(selected.isdisjoint(above(position)) for position in deepest)
    return np.array(sorted(selected), dtype=np.int64), missing


class RatingReply(JsonReply):
    id: int = 0
    reason: str = ""
    rating: float | None = Field(default=None, le=MAX_RATING)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"id": ("report", "reportid"), "rating": ("score",)}


class RatingsReply(JsonReply):
    ratings: list[RatingReply]


RATING_SCHEMA: Mapping[str, Any] = schema_of(RatingsReply)


def add_titles_below(report: Record, titles: Sequence[str], count: Count) -> Record:
    """Add a column with the titles of reports below a report, the most important first."""
    n_more = len(titles) - MAX_TITLES_BELOW
    suffix = [f"and {n_more} more"] if n_more > 0 else []
    below = "; ".join([*map(sanitize, titles[:MAX_TITLES_BELOW]), *suffix])
    if count(below) > MAX_BELOW_TOKENS:
        below = longest_prefix_that_fits(below, lambda start: count(f"{start}…") <= MAX_BELOW_TOKENS) + "…"
    title, *period, content = report.fields
    columns = (*COLUMNS[:-1], "period", COLUMNS[-1]) if period else COLUMNS
    return replace(report, fields=(title, below, *period, content), columns=columns)


def rate_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec("rate", settings, prompts, MAX_RATE_TOKENS)


def rate_reports(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Mapping[str, float]]:
    """Ask for the relevance of the reports of a context, 0–5, by id, and once more if a rating is missing.

    Raises:
        DialogueFailed: Neither reply has a usable rating.
    """
    known = {n: id_ for (_, n), id_ in context.numbering.items()}
    ratings: dict[int, float] = {}

    def parse(reply: ChatReply) -> Mapping[int, float] | ReplyProblem:
        ratings.update(parse_ratings(reply.text, known, reply.finish_reason))
        missing = ", ".join(str(n) for n in known if n not in ratings)
        return ReplyProblem(f"it has no rating from 0 to 5 for {missing}") if missing else ratings

    try:
        yield from ask_for_reply("rate", question, spec, parse, RATING_SCHEMA, context=context.text)
    except DialogueFailed:
        if not ratings:
            raise
    return {known[n]: rating for n, rating in ratings.items()}


def parse_ratings(reply: str, known: Collection[int], finish_reason: str = "stop") -> dict[int, float]:
    """Parse ratings by number. If a report has several, the highest wins, so that no branch is missed."""
    parsed = parse_reply(reply, RatingsReply, finish_reason)
    ratings: dict[int, float] = {}
    for reply_rating in [] if isinstance(parsed, ReplyProblem) else parsed.ratings:
        if reply_rating.id in known and reply_rating.rating is not None:
            ratings[reply_rating.id] = max(reply_rating.rating, ratings.get(reply_rating.id, 0.0))
    return ratings
