"""Estimates of how much of INPUT has changed since a snapshot."""

from __future__ import annotations

import pytest

from graphrag_ray.indexing.build import _estimate_changed_bytes
from graphrag_ray.indexing.stages.input_listing import InputFile
from graphrag_ray.store.snapshots import Manifest

CREATED_AT = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""


@pytest.mark.parametrize(("age_s", "changed"), [(50, 10), (70, 0), (None, 10)])
def test_files_modified_after_the_run_began_count(age_s: float | None, changed: int):
    steps = {"read": {"counts": {"files": 1}}, "extract": {}, "finish": {}}
    seconds = {"read": 20.0, "extract": 40.0, "compact": 30.0, "finish": 50.0}
    # A snapshot is dated when `finish` begins. The journal is compacted during `extract`.
    parent = Manifest(1, None, "2027-01-15T08:00:00Z", "", {}, steps=steps, run={"seconds": seconds})
    modified = None if age_s is None else CREATED_AT - age_s
    assert _estimate_changed_bytes([InputFile("a.txt", "a.txt", 10, modified=modified)], parent) == changed
