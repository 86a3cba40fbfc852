"""Whether a report may stand although its context has changed a little since it was written.

What counts is the evidence: the chunks behind each record that the context shows. A name in sixty chunks that
is found in one more has another description, but of what its reports rest on only a sixtieth is new. A report
is compared with what it was written from, however many updates ago, so small changes add up. One that stands
may lack a little of what is new. It never holds what a deleted document said, and it cites nothing that its
context does not show any more.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.declarations import REPORT_SECTIONS
from graphrag_ray.graph.report_context import Context, Record
from graphrag_ray.graph.report_dialogue import Report

Hashes = npt.NDArray[np.uint64]
Evidence: TypeAlias = tuple[int, ...]
"""The smallest EVIDENCE of the 32-bit hashes of some chunks, rising: a bottom-k sketch of their set (Broder
1997, "On the resemblance and containment of documents")."""

EVIDENCE = 128
ALIKE = 0.5
"""Of two reports that have this much evidence in common, one is taken for the other written again."""

_ID = re.compile(r"\b[0-9a-f]{32}\b")


class Shown(NamedTuple):
    """What one record of a context said. id: first 64 bits; text: a hash; size: in characters.

    A NamedTuple, since there are many and they travel: it is pickled several times as fast as a dataclass.
    """

    section: str
    id: int
    text: int
    size: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Sketch:
    """What a report was written from, without its words. whole: a hash of all its text, order included."""

    whole: str
    records: tuple[Shown, ...]

    @property
    def evidence(self) -> Evidence:
        """Of the report: what all its records rest on."""
        return smallest(hash_ for r in self.records for hash_ in r.evidence)


@dataclass(frozen=True, slots=True)
class Earlier:
    """A report of the snapshot before. n_tokens: of it; context_tokens, left_out: of its own context."""

    report: Report
    sketch: Sketch
    n_tokens: int
    context_tokens: int
    left_out: int


@dataclass(frozen=True, slots=True)
class Lost:
    """What an update took away.

    elements  ids (64 bits) of those that are no more, and of those that rested on a document deleted by it
    deleted   it deleted a document
    """

    elements: Hashes
    deleted: bool


NOTHING_LOST = Lost(np.empty(0, np.uint64), False)


def evidence(chunks: Iterable[str]) -> Evidence:
    """chunks: by id, which is a uniform hash."""
    return smallest(int(id_[:8], 16) for id_ in chunks)


def smallest(hashes: Iterable[int]) -> Evidence:
    return tuple(nsmallest(EVIDENCE, set(hashes)))


def overlap(one: Evidence, other: Evidence) -> float:
    """How much two sets of chunks have in common, 0 to 1: their intersection by their union, exactly where
    that has no more than EVIDENCE chunks, else to some 2%."""
    union = smallest((*one, *other))
    both = set(one) & set(other)
    return sum(h in both for h in union) / len(union) if union else 1.0


def sketch(shown: Context, records: Sequence[Record], behind: Sequence[Evidence]) -> Sketch:
    """records: those that were to be shown, before they were cut to size; behind: what each rests on."""
    there = set(shown.numbering.values())
    kept = tuple(
        Shown(r.section, _prefix(r.id), _text(r), sum(map(len, r.fields)), rests)
        for r, rests in zip(records, behind, strict=True)
        if r.id in there
    )
    return Sketch(hashlib.blake2b(shown.text.encode(), digest_size=16).hexdigest(), kept)


def difference(before: Sketch, now: Sketch) -> float:
    """The share of the two contexts that differs, 0 to 1, by their records' sizes. One that stands in one of
    them only differs whole, one that reads as before not at all, another as far as its evidence does. Order
    and numbers do not count."""
    total = differs = 0.0
    for old, new in _pairs(before.records, now.records):
        size = max(old.size if old else 0, new.size if new else 0)
        total += size
        if old is None or new is None:
            differs += size
        elif old.text != new.text:
            # The same evidence, told in other words: by another prompt or model.
            same = old.evidence == new.evidence
            differs += size * (1.0 if same else 1.0 - overlap(old.evidence, new.evidence))
    return differs / total if total else 0.0


def standing(
    earlier: Earlier, now: Sketch, records: Sequence[Record], below: float, lost: Lost
) -> Report | None:
    """The earlier report as it stands in the context of now; None where it has to be written again.

    below: a share; so much of the context may not differ
    """
    before = earlier.sketch
    # The very same context is an item like any other, and the journal has its reply.
    if before.whole == now.whole or difference(before, now) >= below:
        return None
    # Was it written from a record that lost something, and reads otherwise since? After a deletion another
    # report must be there as it was: nobody knows what it was written from.
    there, ids = {r.text for r in now.records}, set(lost.elements.tolist())
    for record in before.records:
        may_tell = lost.deleted if record.section in REPORT_SECTIONS else record.id in ids
        if may_tell and record.text not in there:
            return None
    # What the ids of cited records are now.
    still = {(r.section, r.id) for r in now.records}
    shown = [r for r in records if (r.section, _prefix(r.id)) in still]
    known = {(r.section, r.id) for r in shown}
    by_text = {_text(r): r.id for r in shown}
    said = {(r.section, r.id): r.text for r in before.records}
    report, names = earlier.report, dict[str, str]()
    for one in report.references:
        same = one.id if (one.section, one.id) in known else ""
        names[one.id] = same or by_text.get(said.get((one.section, _prefix(one.id)), -1), "")
    if not all(names.values()):
        return None

    def renamed(written: str) -> str:
        return _ID.sub(lambda found: names.get(found[0], found[0]), written)

    return replace(
        report,
        summary=renamed(report.summary),
        rating_explanation=renamed(report.rating_explanation),
        findings=tuple((renamed(short), renamed(long)) for short, long in report.findings),
        references=tuple(replace(r, id=names[r.id]) for r in report.references),
    )


def _pairs(before: Sequence[Shown], now: Sequence[Shown]) -> Iterator[tuple[Shown | None, Shown | None]]:
    """Each record of before with what it is now; those that have no partner, alone."""
    old, new = list(before), list(now)
    keys: tuple[Callable[[Shown], tuple[str, int]], ...] = (
        lambda r: (r.section, r.id),
        lambda r: (r.section, r.text),  # a report whose community has other members
    )
    for key in keys:
        there = {key(r): r for r in new}
        found = [(r, there[key(r)]) for r in old if key(r) in there]
        yield from found
        old = [r for r in old if key(r) not in there]
        taken = {id(partner) for _, partner in found}
        new = [r for r in new if id(r) not in taken]
    for one in old:  # and one that was written again
        alike = [
            overlap(one.evidence, r.evidence)
            if r.section == one.section and one.section in REPORT_SECTIONS
            else 0
            for r in new
        ]
        at = max(range(len(new)), key=alike.__getitem__, default=-1)
        yield one, new.pop(at) if at >= 0 and alike[at] >= ALIKE else None
    yield from ((None, r) for r in new)


def _prefix(id_: str) -> int:
    return int(id_[:16], 16)


def _text(record: Record) -> int:
    digest = hashlib.blake2b("\x1f".join((record.section, *record.fields)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")
