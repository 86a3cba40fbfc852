"""Reusing reports after small changes to their contexts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import ids
from graphrag_ray.base.context_records import Reference
from graphrag_ray.graph import report_context
from graphrag_ray.graph.report_dialogue import Report
from graphrag_ray.graph.report_reuse import (
    SKETCH_SIZE,
    ContextSketch,
    Evidence,
    PreviousReport,
    RemovedEvidence,
    difference,
    overlap,
    reusable_report,
    sketch_context,
    sketch_evidence,
)

NOTHING_LOST = RemovedEvidence(np.empty(0, np.uint64), False)
CHUNKS = [ids.stable_id("text_unit", str(n)) for n in range(3_000)]
Behind = dict[str, tuple[str, list[str]]]
"""By name what an entity's description says, and the chunks that it rests on."""


def entity(name: str, text: str) -> report_context.Record:
    return report_context.entity_record(ids.entity_id(name), name, text)


def shown(
    behind: Behind, reports: dict[str, tuple[str, Evidence]] | None = None
) -> tuple[list, ContextSketch]:
    """The records of a context and its sketch. `reports` are those of sub-communities, by community."""
    pairs = [
        (report_context.report_record(ids.report_id(c), "A title", text), rests)
        for c, (text, rests) in (reports or {}).items()
    ]
    pairs += [(entity(name, text), sketch_evidence(chunks)) for name, (text, chunks) in behind.items()]
    records = [record for record, _ in pairs]
    made = report_context.render(records, 100_000, len)
    return records, sketch_context(made, records, [rests for _, rests in pairs])


def written(records: list, of: ContextSketch, cited: list[str]) -> PreviousReport:
    """A report that cites names."""
    references = tuple(Reference("Entities", ids.entity_id(name)) for name in cited)
    told = " ".join(f"[Data: Entities ({r.id})]" for r in references)
    report = Report("Title", told, 5.0, "", ((told, told),), references, 0)
    return PreviousReport(report, of, 10, 100, 0)


def people(n: int, each: int = 30) -> Behind:
    return {f"NAME {i}": (f"What is told of {i}.", CHUNKS[i * each : (i + 1) * each]) for i in range(n)}


def stands(
    before: Behind,
    now: Behind,
    below: float = 0.1,
    cited: tuple[str, ...] = (),
    lost: RemovedEvidence = NOTHING_LOST,
) -> Report | None:
    earlier = written(*shown(before), list(cited))
    records, of = shown(now)
    return reusable_report(earlier, of, records, below, lost)


def one_more(of: Behind, name: str, chunk: str) -> Behind:
    """Add a chunk with the name, which changes its description."""
    text, chunks = of[name]
    return {**of, name: (f"{text} And more.", [*chunks, chunk])}


def lost_by(*names: str, deleted: bool = True) -> RemovedEvidence:
    return RemovedEvidence(
        np.array([int(ids.entity_id(name)[:16], 16) for name in names], dtype=np.uint64), deleted
    )


def test_report_is_reused_if_little_evidence_is_new():
    before = people(10)
    now = one_more(before, "NAME 3", CHUNKS[-1])
    assert stands(before, now, cited=("NAME 3",)) is not None
    assert stands(before, now, below=0.001) is None


def test_second_chunk_of_a_name_changes_half_of_its_evidence():
    before = people(4, each=1)
    assert stands(before, one_more(before, "NAME 0", CHUNKS[-1])) is None


def test_order_and_numbers_do_not_count_as_changes():
    before = people(5)
    now = dict(reversed(before.items()))
    assert shown(before)[1].text_hash != shown(now)[1].text_hash
    assert stands(before, now, below=1e-9, cited=("NAME 1",)) is not None


def test_identical_context_is_left_to_the_journal():
    assert stands(people(5), people(5)) is None


def test_changed_text_with_the_same_evidence_is_a_change():
    before = people(2)
    now = {**before, "NAME 0": ("Told by another model.", before["NAME 0"][1])}
    assert stands(before, now, below=0.4) is None


def test_small_changes_add_up():
    before = people(3, each=10)
    earlier, now, kept = written(*shown(before), []), before, 0
    for n in range(20):
        now = one_more(now, f"NAME {n % 3}", CHUNKS[-1 - n])
        records, of = shown(now)
        if reusable_report(earlier, of, records, 0.2, NOTHING_LOST) is None:
            break
        kept += 1
    assert 2 < kept < 12, "each of the changes alone is a thirtieth"


def test_cited_records_must_be_in_the_context():
    before = people(20)
    now = {name: description for name, description in before.items() if name != "NAME 7"}
    assert stands(before, now) is not None
    assert stands(before, now, cited=("NAME 7",)) is None


def test_report_that_may_contain_deleted_text_is_rewritten():
    before = people(10)
    text, chunks = before["NAME 3"]
    now = {**before, "NAME 3": ("Without that document.", chunks[:-1])}
    assert stands(before, now) is not None, "what changed without a deletion may lag behind"
    assert stands(before, now, lost=lost_by("NAME 3")) is None
    assert stands(before, now, lost=lost_by("NAME 4")) is not None, "it reads as before"
    vanished = {name: description for name, description in before.items() if name != "NAME 3"}
    assert stands(before, vanished, lost=lost_by("NAME 3")) is None
    unchanged_text = one_more({**before, "NAME 3": (text, chunks[:-1])}, "NAME 5", CHUNKS[-1])
    assert stands(before, unchanged_text, lost=lost_by("NAME 3")) is not None


def test_report_on_removed_elements_is_rewritten():
    before = people(30)
    now = {name: description for name, description in before.items() if name != "NAME 3"}
    assert stands(before, now) is not None, "it may be shown elsewhere"
    assert stands(before, now, lost=lost_by("NAME 3", deleted=False)) is None


def test_after_a_deletion_parents_of_rewritten_reports_are_rewritten():
    behind, rests = people(10), sketch_evidence(CHUNKS[1_000:1_100])
    records, of = shown(behind, {"old": ("Told of them.", rests)})
    earlier = written(records, of, [])
    more = sketch_evidence(CHUNKS[1_000:1_101])
    records, now = shown(behind, {"old": ("Told of them again.", more)})
    assert reusable_report(earlier, now, records, 0.1, NOTHING_LOST) is not None
    assert reusable_report(earlier, now, records, 0.1, lost_by()) is None


def test_cited_report_gets_its_new_id():
    behind, rests = people(10), sketch_evidence(CHUNKS[1_000:1_100])
    records, of = shown(behind, {"old": ("Told of them.", rests)})
    old, new = ids.report_id("old"), ids.report_id("new")
    told = f"As a report says [Data: Reports ({old})]."
    report = Report("T", told, 5.0, told, ((told, told),), (Reference("Reports", old),), 0)
    grown = one_more(behind, "NAME 1", CHUNKS[-1])
    records, now = shown(grown, {"new": ("Told of them.", rests)})
    kept = reusable_report(PreviousReport(report, of, 1, 1, 0), now, records, 0.1, NOTHING_LOST)
    assert kept is not None and kept.references == (Reference("Reports", new),)
    assert old not in repr(kept) and kept.summary == told.replace(old, new)
    records, now = shown(grown, {"other": ("Of others.", rests)})
    assert reusable_report(PreviousReport(report, of, 1, 1, 0), now, records, 0.5, NOTHING_LOST) is None, (
        "it is not shown any more"
    )


names = st.sampled_from([f"NAME {i}" for i in range(6)])
contexts = st.dictionaries(
    names, st.tuples(st.text(max_size=9), st.lists(st.sampled_from(CHUNKS), max_size=9))
)


@given(contexts, contexts)
def test_difference_is_symmetric_and_zero_for_equal_contexts(one: Behind, other: Behind):
    a, b = shown(one)[1], shown(other)[1]
    assert difference(a, a) == 0.0
    assert 0.0 <= difference(a, b) <= 1.0
    assert difference(a, b) == pytest.approx(difference(b, a))


@given(
    st.lists(st.sampled_from(CHUNKS[:200]), max_size=60), st.lists(st.sampled_from(CHUNKS[:200]), max_size=60)
)
def test_the_overlap_of_few_chunks_is_exact(one: list[str], other: list[str]):
    union = set(one) | set(other)
    expected = len(set(one) & set(other)) / len(union) if union else 1.0
    assert overlap(sketch_evidence(one), sketch_evidence(other)) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.97])
def test_overlap_of_many_chunks_is_estimated(share: float):
    n = 2_000
    common = round(2 * n * share / (1 + share))
    one, other = CHUNKS[:n], CHUNKS[n - common : 2 * n - common][:n]
    exact = len(set(one) & set(other)) / len(set(one) | set(other))
    assert len(sketch_evidence(one)) == SKETCH_SIZE
    assert overlap(sketch_evidence(one), sketch_evidence(other)) == pytest.approx(exact, abs=0.15)


def test_evidence_of_a_report_combines_all_records():
    behind = people(10)
    _, of = shown(behind)
    assert of.evidence == sketch_evidence(c for _, chunks in behind.values() for c in chunks)
    assert replace(of, records=()).evidence == ()
