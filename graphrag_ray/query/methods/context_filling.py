"""Fill one context from several lists of records that share its tokens.

First every list fills its own share; then the lists use the remaining tokens in turn. Each list ends at the
first record that does not fit: a shorter but less relevant one must not replace it. Every line is counted
with its number, and the whole once more at the end, so no context exceeds its budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graphrag_ray.base import context_records
from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.context_plan import MIN_CONTEXT_TOKENS, NUMBER_TOKENS, max_element_tokens
from graphrag_ray.graph.report_context import (
    COLUMNS,
    Context,
    Count,
    Record,
    count_record_tokens,
    shorten_record,
    write_sections,
)

MIN_SHOWN_TOKENS = 16
"""A record is not truncated below this size, at which it is meaningless."""
MIN_NEIGHBOUR_TOKENS = 100
"""The same for a neighbour, whose text includes the name of its document."""


@dataclass(frozen=True, slots=True)
class Share:
    """Records by falling priority, and the fraction of the context that is reserved for them."""

    records: Sequence[Record]
    of: float = 1.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A chunk that directly precedes (`before`) or follows the chunk with id `of` in a document."""

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

    A record that is longer than its share, or an entity, relationship or claim longer than
    `max_element_tokens`, is
    truncated.

    Args:
        shares: Earlier shares use the tokens that others leave first.
        left_out: Number of relevant records that are in no share.
        neighbours: By falling priority; added next to their chunks if there is room after all shares.

    Raises:
        SettingsError: The budget is too small.
    """
    if budget < MIN_CONTEXT_TOKENS:
        raise SettingsError(
            f"query.context_tokens is {budget}, but a context needs at least {MIN_CONTEXT_TOKENS} tokens"
        )
    sheet = _Sheet(budget, count)
    ends = [sheet.take(s.records, 0, int(s.of * budget)) for s in shares]
    for share, first in zip(shares, ends, strict=True):
        sheet.take(share.records, first, int(share.of * budget), use_rest=True)
    return sheet.context(left_out + sum(len(s.records) for s in shares), neighbours)


def first_fitting(waiting: Sequence[Record], budget: int, count: Count) -> tuple[list[Record], int]:
    """Return the first records that fit into `budget` tokens, and how many are truncated."""
    sheet = _Sheet(budget, count)
    sheet.take(waiting, 0, budget)
    cut = sheet.context(len(waiting)).cut
    return sheet.shown, cut


class _Sheet:
    """A context that is being filled."""

    def __init__(self, budget: int, count: Count) -> None:
        self._budget, self._count = budget, count
        self.shown: list[Record] = []
        self._cut: list[bool] = []
        self._numbers: Counter[str] = Counter()
        self._used = 0

    def take(self, waiting: Sequence[Record], first: int, room: int, use_rest: bool = False) -> int:
        """Add records while they fit into `room` tokens or, with `use_rest`, into all the rest.

        Returns:
            The position of the first record that was not added.
        """
        free = self._budget - self._used
        free = free if use_rest else min(room, free)
        for place in range(first, len(waiting)):
            record = waiting[place]
            number = self._numbers[record.section] + 1
            heading = context_records.section_heading(record.section, COLUMNS[record.section])
            # Truncate a record that is too long for its share of an empty context.
            limit = room - self._count(heading) - NUMBER_TOKENS
            if record.section not in (*REPORT_SECTIONS, "Sources"):
                limit = min(limit, max_element_tokens(self._budget))
            if limit < MIN_SHOWN_TOKENS:
                return place
            fitted = shorten_record(record, limit, self._count)
            cost = self._count(context_records.csv_line([number, *fitted.fields]))
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
        """Build the context. `n_all` is the number of records that could have been added."""
        # A tokenizer may merge the end of a line with the start of the next, so count the whole.
        while self._tokens() > self._budget:
            self.shown.pop()
        n_shown = len(self.shown)
        for neighbour in neighbours:
            # Insert in reading order: the next chunk may be truncated, the previous one has to fit whole.
            record = neighbour.record
            sources = {r.id: n for n, r in enumerate(self.shown) if r.section == "Sources"}
            if record.id in sources or neighbour.of not in sources:
                continue
            place = sources[neighbour.of] + (not neighbour.before)
            excess = self._tokens(record, place) - self._budget
            limit = count_record_tokens(record, self._count) - excess
            if excess > 0 and not neighbour.before and limit >= MIN_NEIGHBOUR_TOKENS:
                record = shorten_record(record, limit, self._count)
                excess = self._tokens(record, place) - self._budget
            if excess <= 0:
                self.shown.insert(place, record)
        text, numbering = write_sections(self.shown)
        return Context(text, numbering, self._count(text), n_all - n_shown, sum(self._cut[:n_shown]))

    def _tokens(self, inserted: Record | None = None, place: int = 0) -> int:
        """Count the tokens of the context, optionally with another record at `place`."""
        more = [] if inserted is None else [inserted]
        return self._count(write_sections([*self.shown[:place], *more, *self.shown[place:]])[0])
