"""How much of INPUT may have changed since a snapshot, before any of it is read."""

from __future__ import annotations

import pytest

from graphrag_ray.indexing.build import _estimate_changed_bytes
from graphrag_ray.indexing.stages.input_listing import InputFile
from graphrag_ray.store.snapshots import Manifest

MADE = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""


@pytest.mark.parametrize(("age_s", "changed"), [(50, 10), (70, 0), (None, 10)])
def test_files_count_that_were_written_after_the_run_began(age_s: float | None, changed: int):
    steps = {"read": {"counts": {"files": 1}}, "extract": {}, "finish": {}}
    seconds = {"read": 20.0, "extract": 40.0, "compact": 30.0, "finish": 50.0}
    # It is dated when `finish` begins; the journal is compacted within `extract`.
    before = Manifest(1, None, "2027-01-15T08:00:00Z", "", {}, steps=steps, run={"seconds": seconds})
    modified = None if age_s is None else MADE - age_s
    assert _estimate_changed_bytes([InputFile("a.txt", "a.txt", 10, modified=modified)], before) == changed
