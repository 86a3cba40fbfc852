"""Fill one context from several lists of records that share its tokens.

Every list first fills its share, then the lists use the remaining tokens in turn. Each list ends at the first
record that does not fit: a shorter but less relevant record must not replace it. Every line is counted with
its number, and finally the whole context is counted, so no context exceeds its budget.
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
    leave_out_shown,
    shorten_record,
    write_sections,
)

MIN_SHOWN_TOKENS = 16
"""Minimum size of a truncated record. A shorter one would be meaningless."""
MIN_NEIGHBOUR_TOKENS = 100
"""Minimum size of a truncated neighbour, whose text includes the name of its document."""


@dataclass(frozen=True, slots=True)
class Share:
    """Records by descending priority, and the fraction of the context that is reserved for them."""

    records: Sequence[Record]
    of: float = 1.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A chunk directly before or after the chunk with id `of` in a document."""

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

    Records longer than their share, and entities, relationships and claims longer than `max_element_tokens`,
    are truncated.

    Args:
        shares: Records to add. Earlier shares are the first to use tokens that other shares leave.
        left_out: Number of relevant records that are in no share.
        neighbours: Chunks by descending priority, added next to their chunks if the shares leave room.

    Raises:
        SettingsError: The budget is too small.
    """
    if budget < MIN_CONTEXT_TOKENS:
        raise SettingsError(
            f"query.context_tokens is {budget}, but a context needs at least {MIN_CONTEXT_TOKENS} tokens"
        )
    builder = _ContextBuilder(budget, count)
    ends = [builder.take(s.records, 0, int(s.of * budget)) for s in shares]
    for share, first in zip(shares, ends, strict=True):
        builder.take(share.records, first, int(share.of * budget), use_all=True)
    return builder.context(left_out + sum(len(s.records) for s in shares), neighbours)


def records_that_fit(candidates: Sequence[Record], budget: int, count: Count) -> tuple[list[Record], int]:
    """Return the leading records that fit into `budget` tokens, and how many of them are truncated."""
    builder = _ContextBuilder(budget, count)
    builder.take(candidates, 0, budget)
    cut = builder.context(len(candidates)).cut
    return builder.records, cut


class _ContextBuilder:
    """A context under construction."""

    def __init__(self, budget: int, count: Count) -> None:
        self._budget, self._count = budget, count
        self.records: list[Record] = []
        self._cut: list[bool] = []
        self._shown: set[str] = set()  # paragraphs
        self._numbers: Counter[str] = Counter()
        self._used = 0

    def take(self, candidates: Sequence[Record], first: int, room: int, use_all: bool = False) -> int:
        """Add records while they fit into `room` tokens or, with `use_all`, into all remaining tokens.

        Returns:
            The position of the first record that was not added.
        """
        free = self._budget - self._used
        free = free if use_all else min(room, free)
        for position in range(first, len(candidates)):
            record = leave_out_shown(candidates[position], self._shown)
            number = self._numbers[record.section] + 1
            heading = context_records.section_heading(record.section, COLUMNS[record.section])
            # Truncate a record that is too long for its share of an empty context.
            limit = room - self._count(heading) - NUMBER_TOKENS
            if record.section not in (*REPORT_SECTIONS, "Sources"):
                limit = min(limit, max_element_tokens(self._budget))
            if limit < MIN_SHOWN_TOKENS:
                return position
            fitted = shorten_record(record, limit, self._count)
            cost = self._count(context_records.csv_line([number, *fitted.fields]))
            cost += self._count(heading) if number == 1 else 0
            if cost > free:
                return position
            self.records.append(fitted)
            self._cut.append(fitted is not record)
            if fitted is record:
                self._shown.update(record.paragraphs)
            self._numbers[record.section] = number
            self._used += cost
            free -= cost
        return len(candidates)

    def context(self, n_all: int, neighbours: Sequence[Neighbour] = ()) -> Context:
        """Build the context. `n_all` is the number of records that could have been added."""
        # A tokenizer may merge the end of a line with the start of the next, so count the whole.
        while self._tokens() > self._budget:
            self.records.pop()
        n_shown = len(self.records)
        for neighbour in neighbours:
            # Insert in reading order. A following chunk may be truncated, a preceding one must fit whole.
            record = leave_out_shown(neighbour.record, self._shown)
            sources = {r.id: n for n, r in enumerate(self.records) if r.section == "Sources"}
            if record.id in sources or neighbour.of not in sources:
                continue
            position = sources[neighbour.of] + (not neighbour.before)
            excess = self._tokens(record, position) - self._budget
            limit = count_record_tokens(record, self._count) - excess
            if excess > 0 and not neighbour.before and limit >= MIN_NEIGHBOUR_TOKENS:
                record = shorten_record(record, limit, self._count)
                excess = self._tokens(record, position) - self._budget
            if excess <= 0:
                self.records.insert(position, record)
        text, numbering = write_sections(self.records)
        return Context(text, numbering, self._count(text), n_all - n_shown, sum(self._cut[:n_shown]))

    def _tokens(self, inserted: Record | None = None, position: int = 0) -> int:
        """Count the tokens of the context, optionally with another record at `position`."""
        new = [] if inserted is None else [inserted]
        return self._count(write_sections([*self.records[:position], *new, *self.records[position:]])[0])
