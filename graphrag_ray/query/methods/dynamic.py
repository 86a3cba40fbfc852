"""Dynamic selection of communities: which reports concern a question, found from the top of the hierarchy.

After Microsoft Research, "GraphRAG: Improving global search via dynamic community selection" (November 2024):
reports are rated level by level, and only what lies below a relevant one is rated next. A relevant report is
replaced by the relevant ones below it, and read itself where there are none. Where nothing at all is relevant
so far, the next level is rated whole, since a report on thousands of entities may not name what is asked for.

Where the description is silent: a report without a rating, because its call failed, counts as relevant; a
community without a report is passed through. With a budget, the descent ends where another level could exceed
it, and the finest selection within it is read.

One call rates several reports, each by itself: one call a report would send the instructions and the question
(some 600 tokens) with every report of some 600, at twice the price and ten times the calls that a rate limit
counts. More than RATED_TOGETHER dilute a model's attention, and lose more where a reply fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from graphrag_ray.base.declarations import SEARCHED
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.graph.report_context import Context, Count, Record, clean, longest_start
from graphrag_ray.query.methods.answer import ContextUsed
from graphrag_ray.query.methods.budget import Most, check_room, reading, refuse_beyond, showing
from graphrag_ray.query.methods.levels import Levels
from graphrag_ray.query.methods.map_reduce import (
    AnswerSpec,
    asked_for,
    pack,
    spec_of,
)
from graphrag_ray.query.methods.method import Dialogues, Given, Kind, Ran, Rows
from graphrag_ray.query.methods.one_context import context_used
from graphrag_ray.query.methods.record_rows import loaded

Ints = npt.NDArray[np.int64]

ADVICE = "Raise the budget, or ask without --dynamic."


@dataclass
class Rated:
    """What rating has found, and what is to be read. Places are those of `Levels`.

    relevant   places whose report is relevant -> its rating; RELEVANT_FROM for want of one
    passed     places of communities without a report, whose branch is looked at
    seen       all places that were looked at
    unrated    reports whose rating failed; errors: why calls failed
    most       what rating may have taken at most
    ended      why it went no deeper, as a sentence; "" where it went as far as it was asked to
    places     of the reports to be read, ascending; reading: what that takes at most
    missing    communities below relevant ones that no report covers
    left_out   relevant reports for which the budget leaves no room: the least relevant
    """

    relevant: dict[int, float] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    n_rated: int = 0
    unrated: int = 0
    contexts: list[ContextUsed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    most: Most = field(default_factory=Most)
    ended: str = ""
    places: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reading: Most = field(default_factory=Most)
    missing: int = 0
    left_out: int = 0


def select(
    question: str, given: Given, kind: Kind, known: Levels, ids: Sequence[str], max_level: int
) -> Generator[Any, Any, Rated]:
    """Rate reports from the root down to `max_level`. kind: that the reports are; ids: [rows] of their table.

    Raises BudgetSpent where rating the first level and reading one context of it could exceed the budget.
    """
    query, spec = given.settings.query, rate_spec(given.settings, given.prompts)
    check_room(question, given, (spec,))
    rated = Rated()
    frontier = np.flatnonzero(known.level == 0)
    while len(frontier):
        with_report = frontier[known.report[frontier] >= 0]
        led_on = np.isin(known.community[with_report], known.parent[known.level <= max_level])
        sizes = known.n_tokens[with_report] + np.where(led_on, BELOW_TOKENS, 0)
        most = rated.most + showing(question, given, "rate", spec, sizes, RATED_TOGETHER)
        first = not rated.seen
        if first:
            one = reading(question, given, [query.context_tokens])
            refuse_beyond(most + one, query, ADVICE, "rating C0, and reading one context of it,")
        elif not (most + rated.reading).within(query):
            rated.ended = f"C{known.level[frontier[0]]} could not be rated within the budget."
            break
        rated.most = most
        yield from _rate_level(question, given, kind, known, ids, frontier, max_level, rated)
        kept, missing = kept_and_missing(rated, known)
        taken = reading(question, given, known.n_tokens[kept])
        if first or (rated.most + taken).within(query):
            rated.places, rated.missing, rated.reading = kept, missing, taken
        if rated.ended:
            break
        going_on = np.array(sorted(rated.relevant.keys() | rated.passed), dtype=np.int64)
        above = frontier[np.isin(frontier, going_on)] if rated.relevant else frontier
        below = np.flatnonzero(np.isin(known.parent, known.community[above]))
        frontier = below[known.level[below] <= max_level]
    # As many of the reports as the budget leaves room for, the most relevant first.
    order = sorted(rated.places.tolist(), key=lambda place: (-rated.relevant[place], place))

    def of_first(n: int) -> Most:
        return reading(question, given, known.n_tokens[order[:n]])

    numbers = range(1, len(order) + 1)
    n = bisect_left(numbers, True, key=lambda n: not (rated.most + of_first(n)).within(query))
    rated.places, rated.reading = np.array(sorted(order[:n]), dtype=np.int64), of_first(n)
    rated.left_out = len(order) - n
    return rated


def _rate_level(
    question: str,
    given: Given,
    kind: Kind,
    known: Levels,
    ids: Sequence[str],
    frontier: Ints,
    max_level: int,
    rated: Rated,
) -> Generator[Any, Any, None]:
    """Rate the reports of places, and note what comes of it."""
    query, spec = given.settings.query, rate_spec(given.settings, given.prompts)
    with_report = frontier[known.report[frontier] >= 0]
    place_of = {ids[known.report[place]]: int(place) for place in with_report}
    records = yield from loaded(((kind, id_) for id_ in place_of), given)
    # Titles of the reports directly below each that may be rated next, the highest rated first.
    at = {int(known.community[place]): int(place) for place in with_report}
    inside = np.isin(known.parent, list(at)) & (known.report >= 0) & (known.level <= max_level)
    above = {ids[known.report[child]]: at[int(known.parent[child])] for child in np.flatnonzero(inside)}
    if above:
        rows = (yield Rows(SEARCHED[kind].table, ["id", "title", "rank"], list(above))).to_pylist()
        below: dict[int, list[str]] = {}
        for row in sorted(rows, key=lambda r: (-(r["rank"] or 0.0), r["id"])):
            below.setdefault(above[row["id"]], []).append(row["title"] or "")
        records = [with_below(r, below.get(place_of[r.id], []), given.count) for r in records]
    packed = pack(records, query.context_tokens, query.seed, given.count, RATED_TOGETHER)
    ran: list[Ran[Mapping[str, float]]] = yield Dialogues(
        "rate", [partial(rate_reports, question, context, spec) for context in packed]
    )
    ratings = {id_: r for said in ran if said.result for id_, r in said.result.items()}
    found = {place: ratings.get(id_, RELEVANT_FROM) for id_, place in place_of.items()}
    rated.relevant |= {place: rating for place, rating in found.items() if rating >= RELEVANT_FROM}
    rated.passed |= set(frontier[known.report[frontier] < 0].tolist())
    rated.seen |= set(frontier.tolist())
    rated.n_rated += len(place_of)
    rated.unrated += len(place_of) - len(ratings)
    rated.contexts += [context_used("rate", context) for context in packed]
    rated.errors += [said.error for said in ran if said.result is None]
    if rated.n_rated and rated.unrated == rated.n_rated:
        rated.ended = "No call that rates reports succeeded."


def kept_and_missing(rated: Rated, known: Levels) -> tuple[Ints, int]:
    """Places of the relevant reports below which none is relevant, ascending; and how many communities
    without a report, below which nothing was looked at, lie below none of these."""
    place_of = {int(known.community[p]): p for p in rated.relevant.keys() | rated.passed}

    def above(place: int) -> list[int]:
        """Places of its ancestors that were looked at and lead to it, the nearest first."""
        found = []
        while (up := place_of.get(int(known.parent[place]))) is not None:
            found.append(up)
            place = up
        return found

    kept = rated.relevant.keys() - {up for place in rated.relevant for up in above(place)}
    parents = {int(known.parent[place]) for place in rated.seen}
    deepest = (place for place in rated.passed if int(known.community[place]) not in parents)
    missing = sum(kept.isdisjoint(above(place)) for place in deepest)
    return np.array(sorted(kept), dtype=np.int64), missing


HIGHEST = 5.0
RELEVANT_FROM = 1.0
"""A report rated so, or higher, is relevant: 0 alone is of no use."""

RATED_TOGETHER = 10
MAX_RATE_TOKENS = 1_000
"""Of a reply: some 40 tokens each, and room for a model that gives long reasons."""


class RatingReply(JsonReply):
    id: int = 0
    reason: str = ""
    rating: float | None = Field(default=None, le=HIGHEST)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"id": ("report", "reportid"), "rating": ("score",)}


class RatingsReply(JsonReply):
    ratings: list[RatingReply]


RATING_SCHEMA: Mapping[str, Any] = schema_of(RatingsReply)

COLUMNS = ("id", "title", "below", "content")
"""Of reports that are rated, where one of them has others below it."""
BELOW_SHOWN = 6
BELOW_TOKENS = 80
"""Of the titles below a report, at most."""


def with_below(report: Record, titles: Sequence[str], count: Count) -> Record:
    """The record of a report with what stands below it. titles: the most important first."""
    more = len(titles) - BELOW_SHOWN
    told = "; ".join([*map(clean, titles[:BELOW_SHOWN]), *([f"and {more} more"] if more > 0 else [])])
    if count(told) > BELOW_TOKENS:
        told = longest_start(told, lambda start: count(f"{start}…") <= BELOW_TOKENS) + "…"
    title, content = report.fields
    return replace(report, fields=(title, told, content), columns=COLUMNS)


def rate_spec(settings: Settings, prompts: Mapping[str, Prompt]) -> AnswerSpec:
    return spec_of("rate", settings, prompts, MAX_RATE_TOKENS)


def rate_reports(question: str, context: Context, spec: AnswerSpec) -> Dialogue[Mapping[str, float]]:
    """Ask how relevant the reports of a context are, and once more where a rating is missing: id of each
    report with a rating that can be read -> 0–5. Raises DialogueFailed where neither reply has one."""
    known = {n: id_ for (_, n), id_ in context.numbering.items()}
    found: dict[int, float] = {}

    def read(reply: ChatReply) -> Mapping[int, float] | ReplyProblem:
        found.update(parse_ratings(reply.text, known, reply.finish_reason))
        without = ", ".join(str(n) for n in known if n not in found)
        return ReplyProblem(f"it has no rating from 0 to 5 for {without}") if without else found

    try:
        yield from asked_for("rate", question, spec, read, RATING_SCHEMA, context=context.text)
    except DialogueFailed:
        if not found:
            raise
    return {known[n]: rating for n, rating in found.items()}


def parse_ratings(reply: str, known: Collection[int], finish_reason: str = "stop") -> dict[int, float]:
    """Rating of each known number that has one; the highest, where a reply contradicts itself: a branch
    that is read in vain costs less than one that is missed."""
    listed = read_reply(reply, RatingsReply, finish_reason)
    found: dict[int, float] = {}
    for one in [] if isinstance(listed, ReplyProblem) else listed.ratings:
        if one.id in known and one.rating is not None:
            found[one.id] = max(one.rating, found.get(one.id, 0.0))
    return found
