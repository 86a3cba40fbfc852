"""Filling one context from several lists of records that share its tokens.

First every list fills its own share; then what is left goes to them in turn. In both, a list ends at the
first record that does not fit: a shorter but less helpful one must not take its place. Every line is
counted with its number, the whole once more at the end: no context is above its budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graphrag_ray.base import records
from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.plan import MIN_CONTEXT_TOKENS, NUMBER_TOKENS, element_cap
from graphrag_ray.graph.report_context import COLUMNS, Context, Count, Record, fit, record_tokens, write

MIN_SHOWN_TOKENS = 16
"""A record is not cut below this: so little of it says nothing."""
MIN_NEIGHBOUR_TOKENS = 100
"""Nor a neighbour, whose document is named in it."""


@dataclass(frozen=True, slots=True)
class Share:
    """Records by falling priority, and the share of the context, 0–1, that is theirs at least."""

    records: Sequence[Record]
    of: float = 1.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A chunk that stands beside another, `of`, in a document; before: or after it."""

    record: Record
    of: str
    before: bool


def fill(
    shares: Sequence[Share],
    budget: int,
    count: Count,
    left_out: int = 0,
    neighbours: Sequence[Neighbour] = (),
) -> Context:
    """Write the records of all shares as a context of at most `budget` tokens.

    shares      what the others leave goes to those that stand first
    left_out    records that belong there and are in no share
    neighbours  by falling priority: shown beside their chunks where all the others leave room

    A record that is longer than its share, or an entity, relationship or claim longer than `element_cap`,
    is cut at its end. Raises SettingsError for a budget too small.
    """
    if budget < MIN_CONTEXT_TOKENS:
        raise SettingsError(
            f"query.context_tokens is {budget}; a context needs at least {MIN_CONTEXT_TOKENS} tokens"
        )
    sheet = _Sheet(budget, count)
    shown = [sheet.take(s.records, 0, int(s.of * budget)) for s in shares]
    for share, first in zip(shares, shown, strict=True):
        sheet.take(share.records, first, int(share.of * budget), anything_left=True)
    return sheet.context(left_out + sum(len(s.records) for s in shares), neighbours)


def first_fitting(records_: Sequence[Record], budget: int, count: Count) -> tuple[list[Record], int]:
    """The first records whose table has at most `budget` tokens, as contexts of so many show them, and how
    many of them are cut at their end."""
    sheet = _Sheet(budget, count)
    sheet.take(records_, 0, budget)
    cut = sheet.context(len(records_)).cut
    return sheet.shown, cut


class _Sheet:
    """A context while it is filled: what is shown, whether it was cut, and its tokens."""

    def __init__(self, budget: int, count: Count) -> None:
        self._budget, self._count = budget, count
        self.shown: list[Record] = []
        self._cut: list[bool] = []
        self._numbers: Counter[str] = Counter()
        self._used = 0

    def take(self, waiting: Sequence[Record], first: int, room: int, anything_left: bool = False) -> int:
        """Show records from `first` on, as many as fit into `room` tokens, or into all that is left; returns
        the place of the first that did not."""
        free = self._budget - self._used
        free = free if anything_left else min(room, free)
        for place in range(first, len(waiting)):
            record = waiting[place]
            number = self._numbers[record.section] + 1
            heading = records.heading(record.section, COLUMNS[record.section])
            # Cut where it is too long for a context like this.
            limit = room - self._count(heading) - NUMBER_TOKENS
            if record.section not in (*REPORT_SECTIONS, "Sources"):
                limit = min(limit, element_cap(self._budget))
            if limit < MIN_SHOWN_TOKENS:
                return place
            fitted = fit(record, limit, self._count)
            cost = self._count(records.line([number, *fitted.fields]))
            cost += self._count(heading) if number == 1 else 0
            if cost > free:
                return place
            self.shown.append(fitted)
            self._cut.append(fitted is not record)
            self._numbers[record.section] = number
            self._used += cost
            free -= cost
        return len(waiting)

    def context(self, n_all: int, neighbours: Sequence[Neighbour] = ()) -> Context:
        """What was taken, counted as a whole; n_all: records that could have been taken."""
        # Vocabularies may join what stands at the end of a line with the next.
        while self._with() > self._budget:
            self.shown.pop()
        n_shown = len(self.shown)
        for neighbour in neighbours:
            # In reading order, where there is room: the chunk after, cut at its end, or the whole one before.
            record = neighbour.record
            sources = {r.id: n for n, r in enumerate(self.shown) if r.section == "Sources"}
            if record.id in sources or neighbour.of not in sources:
                continue
            at = sources[neighbour.of] + (not neighbour.before)
            excess = self._with(record, at) - self._budget
            limit = record_tokens(record, self._count) - excess
            if excess > 0 and not neighbour.before and limit >= MIN_NEIGHBOUR_TOKENS:
                record = fit(record, limit, self._count)
                excess = self._with(record, at) - self._budget
            if excess <= 0:
                self.shown.insert(at, record)
        text, numbering = write(self.shown)
        return Context(text, numbering, self._count(text), n_all - n_shown, sum(self._cut[:n_shown]))

    def _with(self, record: Record | None = None, at: int = 0) -> int:
        """Tokens of the context, with this record at this place."""
        more = [] if record is None else [record]
        return self._count(write([*self.shown[:at], *more, *self.shown[at:]])[0])
