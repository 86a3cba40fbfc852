"""Decide whether a report can be reused after small changes to its context.

A report is compared with the context from which it was written, however many updates ago, so small changes
add up. The comparison is based on evidence, the chunks behind each record: if a name mentioned in sixty
chunks occurs in one more, its description differs, but only a sixtieth of the evidence is new. A reused
report contains nothing from deleted documents and cites only records of its current context. See
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
_REWRITTEN_OVERLAP = 0.5  # two reports with this overlap of evidence are versions of the same report
_ID = re.compile(r"\b[0-9a-f]{32}\b")


class RecordSketch(NamedTuple):
    """A record of a context. (A NamedTuple pickles several times faster than a dataclass.)"""

    section: str
    id: int  # first 64 bits of the record's id
    text: int  # hash of the fields
    size: int  # total length of the fields in characters
    evidence: Evidence  # the chunks behind the record


@dataclass(frozen=True, slots=True)
class ContextSketch:
    """A context without its text. `text_hash` depends on the order of records."""

    text_hash: str
    records: tuple[RecordSketch, ...]

    @property
    def evidence(self) -> Evidence:
        """The evidence of the report, from all its records."""
        return smallest(hash_ for r in self.records for hash_ in r.evidence)


@dataclass(frozen=True, slots=True)
class PreviousReport:
    """A report of the previous snapshot. `context_tokens` and `left_out` describe its context."""

    report: Report
    sketch: ContextSketch
    n_tokens: int
    context_tokens: int
    left_out: int


@dataclass(frozen=True, slots=True)
class RemovedEvidence:
    """The elements and documents that an update removed."""

    elements: Hashes  # first 64 bits of ids: elements that are gone or have a deleted document as evidence
    any_document_deleted: bool


def sketch_evidence(chunks: Iterable[str]) -> Evidence:
    """Sketch a set of chunks from their ids, which are uniform hashes."""
    return smallest(int(id_[:8], 16) for id_ in chunks)


def smallest(hashes: Iterable[int]) -> Evidence:
    return tuple(nsmallest(SKETCH_SIZE, set(hashes)))


def overlap(left: Evidence, right: Evidence) -> float:
    """Estimate the Jaccard similarity of two sets of chunks to about 2%. Exact up to SKETCH_SIZE chunks."""
    union = smallest((*left, *right))
    both = set(left) & set(right)
    return sum(h in both for h in union) / len(union) if union else 1.0


def sketch_context(
    context: Context, records: Sequence[Record], evidence: Sequence[Evidence]
) -> ContextSketch:
    """Sketch a context from its records, before they were shortened, and the evidence of each record."""
    ids = set(context.numbering.values())
    sketches = tuple(
        RecordSketch(r.section, _prefix(r.id), _text_hash(r), sum(map(len, r.fields)), chunks)
        for r, chunks in zip(records, evidence, strict=True)
        if r.id in ids
    )
    return ContextSketch(hashlib.blake2b(context.text.encode(), digest_size=16).hexdigest(), sketches)


def difference(before: ContextSketch, now: ContextSketch) -> float:
    """Return the fraction by which two contexts differ, weighted by record size and ignoring order.

    A record in only one of them counts fully, and a record with the same text does not count. Any other
    record counts in proportion to the difference of its evidence.
    """
    total = differing = 0.0
    for old, new in _pairs(before.records, now.records):
        size = max(old.size if old else 0, new.size if new else 0)
        total += size
        if old is None or new is None:
            differing += size
        elif old.text != new.text:
            # Different text for the same evidence comes from another prompt or model.
            is_same_evidence = old.evidence == new.evidence
            differing += size * (1.0 if is_same_evidence else 1.0 - overlap(old.evidence, new.evidence))
    return differing / total if total else 0.0


def reusable_report(
    previous: PreviousReport,
    now: ContextSketch,
    records: Sequence[Record],
    max_difference: float,
    removed: RemovedEvidence,
) -> Report | None:
    """Return the earlier report, adapted to the current context, or None if it must be rewritten.

    `now` and `records` describe the current context. It may differ by less than `max_difference`.
    """
    before = previous.sketch
    # With an identical context, the journal already has the reply.
    if before.text_hash == now.text_hash or difference(before, now) >= max_difference:
        return None
    # The report must not contain text of a record that lost evidence and changed. After a deletion, reports
    # in the context must be unchanged, because their own evidence is unknown here.
    texts, lost_ids = {r.text for r in now.records}, set(removed.elements.tolist())
    for record in before.records:
        may_be_stale = (
            removed.any_document_deleted if record.section in REPORT_SECTIONS else record.id in lost_ids
        )
        if may_be_stale and record.text not in texts:
            return None
    # Find the current ids of cited records.
    shown_keys = {(r.section, r.id) for r in now.records}
    current_records = [r for r in records if (r.section, _prefix(r.id)) in shown_keys]
    current = {(r.section, r.id) for r in current_records}
    id_by_text = {_text_hash(r): r.id for r in current_records}
    old_text = {(r.section, r.id): r.text for r in before.records}
    report, new_ids = previous.report, dict[str, str]()
    for cited in report.references:
        same_id = cited.id if (cited.section, cited.id) in current else ""
        old_hash = old_text.get((cited.section, _prefix(cited.id)), -1)
        new_ids[cited.id] = same_id or id_by_text.get(old_hash, "")
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
    """Pair each earlier record with its current version. None stands for a missing counterpart."""
    old, new = list(before), list(now)
    keys: tuple[Callable[[RecordSketch], tuple[str, int]], ...] = (
        lambda r: (r.section, r.id),
        lambda r: (r.section, r.text),  # a report whose community has changed members
    )
    for key in keys:
        by_key = {key(r): r for r in new}
        paired = [(r, by_key[key(r)]) for r in old if key(r) in by_key]
        yield from paired
        old = [r for r in old if key(r) not in by_key]
        taken = {id(partner) for _, partner in paired}
        new = [r for r in new if id(r) not in taken]
    for record in old:  # pair reports that were rewritten
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
