"""Dynamic community selection: find the reports relevant to a question from the top of the hierarchy.

After Microsoft Research, "GraphRAG: Improving global search via dynamic community selection" (November 2024):
reports are rated level by level, and only those below a relevant one are rated next. A relevant report is
replaced by the relevant ones below it, and read itself if there are none. While nothing at all is relevant,
the next level is rated completely, since a report on thousands of entities may not mention what the question
asks for.

Where the description is silent: a report whose rating failed counts as relevant, and a community without a
report is passed through. With a budget, the descent ends where another level could exceed it, and the finest
selection within it is read.

One call rates several reports, each independently: one call per report would repeat the instructions and the
question (about 600 tokens) for every report of about 600, at twice the price and ten times the calls that
count towards a rate limit. More than RATED_TOGETHER would dilute the model's attention, and lose more if a
reply fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from graphrag_ray.base.declarations import SEARCHED_KINDS
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
    check_room,
    map_reduce_bound,
    packed_bound,
)
from graphrag_ray.query.methods.levels import Ints, Levels
from graphrag_ray.query.methods.map_reduce import AnswerSpec, ask_for_reply, build_spec, pack
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues, Kind, Rows, SearchEnv, Steps
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import context_used

ADVICE = "Raise the budget, or ask without --dynamic."

HIGHEST = 5.0
RELEVANT_FROM = 1.0
"""The lowest rating of a relevant report; only 0 means irrelevant."""
RATED_TOGETHER = 10
MAX_RATE_TOKENS = 1_000
"""Maximum size of a reply: about 40 tokens per report, and room for a model that gives long reasons."""

COLUMNS = ("id", "title", "below", "content")
"""Columns of rated reports if one of them has reports below it."""
BELOW_SHOWN = 6
BELOW_TOKENS = 80
"""Number and maximum size of the titles listed below a report."""


@dataclass
class Selection:
    """The state of dynamic selection. Places are positions in `Levels`.

    Attributes:
        relevant: Places of relevant reports -> rating; RELEVANT_FROM if the rating failed.
        passed: Places of communities without a report that were passed through.
        seen: All places that were considered.
        unrated: Number of reports whose rating failed.
        errors: Why calls failed.
        spent: Upper bound on the cost of rating so far.
        ended: Why the descent ended early, as a sentence.
        places: Places of the reports to read, ascending.
        reading: Upper bound on the cost of reading them.
        missing: Number of communities below relevant ones that no report covers.
        left_out: Number of relevant reports that the budget leaves no room for.
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
    places: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reading: CostBound = field(default_factory=CostBound)
    missing: int = 0
    left_out: int = 0


def select(
    question: str, env: SearchEnv, kind: Kind, known: Levels, ids: Sequence[str], max_level: int
) -> Steps[Selection]:
    """Rate reports from the root down to `max_level`, and choose those to read. `ids` are of all reports.

    Raises:
        BudgetSpent: Rating the first level and reading one context could exceed the budget.
    """
    query, spec = env.settings.query, rate_spec(env.settings, env.prompts)
    check_room(question, env, (spec,))
    state = Selection()
    frontier = np.flatnonzero(known.level == 0)
    while len(frontier):
        with_report = frontier[known.report[frontier] >= 0]
        has_children = np.isin(known.community[with_report], known.parent[known.level <= max_level])
        sizes = known.n_tokens[with_report] + np.where(has_children, BELOW_TOKENS, 0)
        spent = state.spent + packed_bound(question, env, "rate", spec, sizes, RATED_TOGETHER)
        first = not state.seen
        if first:
            one = map_reduce_bound(question, env, [query.context_tokens])
            check_budget(spent + one, query, ADVICE, "Rating C0 and reading one context of it")
        elif not (spent + state.reading).within(query):
            state.ended = f"C{known.level[frontier[0]]} could not be rated within the budget."
            break
        state.spent = spent
        yield from _rate_level(question, env, kind, known, ids, frontier, max_level, state)
        kept, missing = kept_and_missing(state, known)
        reading = map_reduce_bound(question, env, known.n_tokens[kept])
        if first or (state.spent + reading).within(query):
            state.places, state.missing, state.reading = kept, missing, reading
        if state.ended:
            break
        open_places = np.array(sorted(state.relevant.keys() | state.passed), dtype=np.int64)
        above = frontier[np.isin(frontier, open_places)] if state.relevant else frontier
        below = np.flatnonzero(np.isin(known.parent, known.community[above]))
        frontier = below[known.level[below] <= max_level]
    # Read as many of the reports as the budget allows, the most relevant first.
    order = sorted(state.places.tolist(), key=lambda place: (-state.relevant[place], place))

    def bound(n: int) -> CostBound:
        return map_reduce_bound(question, env, known.n_tokens[order[:n]])

    numbers = range(1, len(order) + 1)
    n = bisect_left(numbers, True, key=lambda n: not (state.spent + bound(n)).within(query))
    state.places, state.reading = np.array(sorted(order[:n]), dtype=np.int64), bound(n)
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
    place_of = {ids[known.report[place]]: int(place) for place in with_report}
    records = yield from load_records(((kind, id_) for id_ in place_of), env)
    # List the titles of the reports directly below each that may be rated next, highest rank first.
    by_community = {int(known.community[place]): int(place) for place in with_report}
    inside = np.isin(known.parent, list(by_community)) & (known.report >= 0) & (known.level <= max_level)
    parent_of = {
        ids[known.report[child]]: by_community[int(known.parent[child])] for child in np.flatnonzero(inside)
    }
    if parent_of:
        rows = (yield Rows(SEARCHED_KINDS[kind].table, ["id", "title", "rank"], list(parent_of))).to_pylist()
        below: dict[int, list[str]] = {}
        for row in sorted(rows, key=lambda r: (-(r["rank"] or 0.0), r["id"])):
            below.setdefault(parent_of[row["id"]], []).append(row["title"] or "")
        records = [with_below(r, below.get(place_of[r.id], []), env.count) for r in records]
    packed = pack(records, query.context_tokens, query.seed, env.count, RATED_TOGETHER)
    outcomes: list[DialogueOutcome[Mapping[str, float]]] = yield Dialogues(
        "rate", [partial(rate_reports, question, context, spec) for context in packed]
    )
    ratings = {id_: r for one in outcomes if one.result for id_, r in one.result.items()}
    rated = {place: ratings.get(id_, RELEVANT_FROM) for id_, place in place_of.items()}
    state.relevant |= {place: rating for place, rating in rated.items() if rating >= RELEVANT_FROM}
    state.passed |= set(frontier[known.report[frontier] < 0].tolist())
    state.seen |= set(frontier.tolist())
    state.n_rated += len(place_of)
    state.unrated += len(place_of) - len(ratings)
    state.contexts += [context_used("rate", context) for context in packed]
    state.errors += [one.error for one in outcomes if one.result is None]
    if state.n_rated and state.unrated == state.n_rated:
        state.ended = "No call that rates reports succeeded."


def kept_and_missing(state: Selection, known: Levels) -> tuple[Ints, int]:
    """Find the places of relevant reports without relevant ones below them, and count uncovered communities.

    A community is uncovered if it has no report, nothing below it was considered, and it is not below a kept
    report.
    """
    place_of = {int(known.community[p]): p for p in state.relevant.keys() | state.passed}

    def above(place: int) -> list[int]:
        """The ancestors that led to a place, nearest first."""
        places = []
        while (up := place_of.get(int(known.parent[place]))) is not None:
            places.append(up)
            place = up
        return places

    kept = state.relevant.keys() - {up for place in state.relevant for up in above(place)}
    parents = {int(known.parent[place]) for place in state.seen}
    deepest = (place for place in state.passed if int(known.community[place]) not in parents)
    missing = sum(kept.isdisjoint(above(place)) for place in deepest)
    return np.array(sorted(kept), dtype=np.int64), missing


class RatingReply(JsonReply):
    id: int = 0
    reason: str = ""
    rating: float | None = Field(default=None, le=HIGHEST)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"id": ("report", "reportid"), "rating": ("score",)}


class RatingsReply(JsonReply):
    ratings: list[RatingReply]


RATING_SCHEMA: Mapping[str, Any] = schema_of(RatingsReply)


def with_below(report: Record, titles: Sequence[str], count: Count) -> Record:
    """Add a column with the titles below a report, the most important first."""
    more = len(titles) - BELOW_SHOWN
    below = "; ".join([*map(sanitize, titles[:BELOW_SHOWN]), *([f"and {more} more"] if more > 0 else [])])
    if count(below) > BELOW_TOKENS:
        below = longest_prefix_that_fits(below, lambda start: count(f"{start}…") <= BELOW_TOKENS) + "…"
    title, content = report.fields
    return replace(report, fields=(title, below, content), columns=COLUMNS)


def rate_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return build_spec("rate", settings, prompts, MAX_RATE_TOKENS)


def rate_reports(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Mapping[str, float]]:
    """Ask how relevant the reports of a context are, 0–5, by id, and once more if a rating is missing.

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
    """Parse ratings by number. The highest of several counts: missing a branch costs more than reading it."""
    parsed = parse_reply(reply, RatingsReply, finish_reason)
    ratings: dict[int, float] = {}
    for one in [] if isinstance(parsed, ReplyProblem) else parsed.ratings:
        if one.id in known and one.rating is not None:
            ratings[one.id] = max(one.rating, ratings.get(one.id, 0.0))
    return ratings
