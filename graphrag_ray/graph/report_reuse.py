"""Decide whether a report can be kept although its context has changed a little.

A report is compared with the context it was written from, however many updates ago, so small changes add up.
What counts is the evidence: the chunks behind each record. If a name mentioned in sixty chunks occurs in one
more, its description differs, but only a sixtieth of what its reports rest on is new. A kept report never
holds what a deleted document said and cites only what its context shows. See
docs/concepts/decisions/reused-reports.md.
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
"""The SKETCH_SIZE smallest 32-bit hashes of a set of chunks, ascending: a bottom-k sketch (Broder 1997, "On
the resemblance and containment of documents")."""

SKETCH_SIZE = 128
_REWRITTEN_OVERLAP = 0.5  # reports with this much common evidence are two versions of one report
_ID = re.compile(r"\b[0-9a-f]{32}\b")


class RecordSketch(NamedTuple):
    """A record that a context showed. (A NamedTuple pickles several times as fast as a dataclass.)"""

    section: str
    id: int  # first 64 bits
    text: int  # hash of the fields
    size: int  # characters of the fields
    evidence: Evidence  # the chunks behind the record


@dataclass(frozen=True, slots=True)
class ContextSketch:
    """A context without its text. `text_hash` depends on the order of records."""

    text_hash: str
    records: tuple[RecordSketch, ...]

    @property
    def evidence(self) -> Evidence:
        """The evidence of the report: that of all records."""
        return smallest(hash_ for r in self.records for hash_ in r.evidence)


@dataclass(frozen=True, slots=True)
class PreviousReport:
    """A report of the previous snapshot; `context_tokens` and `left_out` describe its context."""

    report: Report
    sketch: ContextSketch
    n_tokens: int
    context_tokens: int
    left_out: int


@dataclass(frozen=True, slots=True)
class RemovedEvidence:
    """What an update removed."""

    elements: Hashes  # first 64 bits of the ids of those that are gone or rested on a deleted document
    any_document_deleted: bool  # whether it deleted a document


def sketch_evidence(chunks: Iterable[str]) -> Evidence:
    """Sketch a set of chunks by their ids, which are uniform hashes."""
    return smallest(int(id_[:8], 16) for id_ in chunks)


def smallest(hashes: Iterable[int]) -> Evidence:
    return tuple(nsmallest(SKETCH_SIZE, set(hashes)))


def overlap(left: Evidence, right: Evidence) -> float:
    """Estimate the Jaccard similarity of two sets of chunks, to some 2%; exact up to SKETCH_SIZE chunks."""
    union = smallest((*left, *right))
    both = set(left) & set(right)
    return sum(h in both for h in union) / len(union) if union else 1.0


def sketch_context(shown: Context, records: Sequence[Record], behind: Sequence[Evidence]) -> ContextSketch:
    """Sketch a context from its records, before they were cut to size, and the evidence of each."""
    ids = set(shown.numbering.values())
    kept = tuple(
        RecordSketch(r.section, _prefix(r.id), _text_hash(r), sum(map(len, r.fields)), chunks)
        for r, chunks in zip(records, behind, strict=True)
        if r.id in ids
    )
    return ContextSketch(hashlib.blake2b(shown.text.encode(), digest_size=16).hexdigest(), kept)


def difference(before: ContextSketch, now: ContextSketch) -> float:
    """Return the share of two contexts that differs, weighted by record size; order does not matter.

    A record in only one of them differs entirely, a record with the same text not at all, any other as much
    as its evidence does.
    """
    total = differs = 0.0
    for old, new in _pairs(before.records, now.records):
        size = max(old.size if old else 0, new.size if new else 0)
        total += size
        if old is None or new is None:
            differs += size
        elif old.text != new.text:
            # Different words for the same evidence come from another prompt or model.
            same = old.evidence == new.evidence
            differs += size * (1.0 if same else 1.0 - overlap(old.evidence, new.evidence))
    return differs / total if total else 0.0


def reusable_report(
    earlier: PreviousReport,
    now: ContextSketch,
    records: Sequence[Record],
    max_difference: float,
    lost: RemovedEvidence,
) -> Report | None:
    """Return the earlier report, adapted to today's context; None if it has to be written again.

    `now` and `records` describe today's context. A share of less than `max_difference` of the
    context may differ.
    """
    before = earlier.sketch
    # An identical context is an ordinary item, and the journal holds its reply.
    if before.text_hash == now.text_hash or difference(before, now) >= max_difference:
        return None
    # A record that lost something and changed must not live on in the report. After a deletion, other reports
    # in the context must be unchanged, since what they were written from is unknown here.
    texts, lost_ids = {r.text for r in now.records}, set(lost.elements.tolist())
    for record in before.records:
        may_be_stale = (
            lost.any_document_deleted if record.section in REPORT_SECTIONS else record.id in lost_ids
        )
        if may_be_stale and record.text not in texts:
            return None
    # Find the current ids of cited records.
    shown_keys = {(r.section, r.id) for r in now.records}
    shown = [r for r in records if (r.section, _prefix(r.id)) in shown_keys]
    current = {(r.section, r.id) for r in shown}
    id_by_text = {_text_hash(r): r.id for r in shown}
    old_text = {(r.section, r.id): r.text for r in before.records}
    report, new_ids = earlier.report, dict[str, str]()
    for cited in report.references:
        same = cited.id if (cited.section, cited.id) in current else ""
        new_ids[cited.id] = same or id_by_text.get(old_text.get((cited.section, _prefix(cited.id)), -1), "")
    if not all(new_ids.values()):
        return None

    def renamed(text: str) -> str:
        return _ID.sub(lambda match: new_ids.get(match[0], match[0]), text)

    return replace(
        report,
        summary=renamed(report.summary),
        rating_explanation=renamed(report.rating_explanation),
        findings=tuple((renamed(short), renamed(long)) for short, long in report.findings),
        references=tuple(replace(r, id=new_ids[r.id]) for r in report.references),
    )


def _pairs(
    before: Sequence[RecordSketch], now: Sequence[RecordSketch]
) -> Iterator[tuple[RecordSketch | None, RecordSketch | None]]:
    """Pair each earlier record with its current version; None for those without a counterpart."""
    old, new = list(before), list(now)
    keys: tuple[Callable[[RecordSketch], tuple[str, int]], ...] = (
        lambda r: (r.section, r.id),
        lambda r: (r.section, r.text),  # a report whose community has other members
    )
    for key in keys:
        by_key = {key(r): r for r in new}
        paired = [(r, by_key[key(r)]) for r in old if key(r) in by_key]
        yield from paired
        old = [r for r in old if key(r) not in by_key]
        taken = {id(partner) for _, partner in paired}
        new = [r for r in new if id(r) not in taken]
    for record in old:  # a report that was written again
        overlaps = [
            overlap(record.evidence, r.evidence)
            if r.section == record.section and record.section in REPORT_SECTIONS
            else 0
            for r in new
        ]
        best = max(range(len(new)), key=overlaps.__getitem__, default=-1)
        yield record, new.pop(best) if best >= 0 and overlaps[best] >= _REWRITTEN_OVERLAP else None
    yield from ((None, r) for r in new)


def _prefix(id_: str) -> int:
    return int(id_[:16], 16)


def _text_hash(record: Record) -> int:
    digest = hashlib.blake2b("\x1f".join((record.section, *record.fields)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")
