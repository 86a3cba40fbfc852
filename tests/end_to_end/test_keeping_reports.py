"""An update reuses reports whose evidence changed little, announces what it will write, and forgets deleted
documents."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from comparing import by_id
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st
from machine import Machine, Small, machine
from world import everything

from graphrag_ray.indexing.purge import clean_up
from graphrag_ray.store.gc import GcOptions

NAMES = ["ANNA", "BERT", "CORA", "DIRK", "EDNA", "FRED", "GINA", "HANS", "INGE", "JOHN", "KATE", "LARS"]
SECTION_TABLES = {"Entities": "entities", "Relationships": "relationships", "Reports": "community_reports"}
MARK = re.compile(r"mark\d+")


def entangled(numbers: range) -> dict[str, str]:
    """Documents that all mention the same people, each with one word of its own."""
    found = {}
    for n in numbers:
        dice = random.Random(n)
        people = dice.sample(NAMES, len(NAMES))
        found[f"{n:03}.txt"] = " ".join(f"{a} met {b} at mark{n}." for a, b in pairwise(people))
    return found


@pytest.fixture
def computer() -> Iterator[Machine]:
    with machine() as made:
        yield made


@pytest.fixture
def world(computer: Machine) -> Iterator[Small]:
    with Small() as made:
        made.changes |= {
            "communities": {"max_size": 4, "pack_components_below": 1},
            "reports": {"rewrite_threshold": 0.05},
        }
        yield made


def update(world: Small, documents: Mapping[str, str], **changes: object) -> tuple[int, int]:
    """Reports that were written, and reports that were reused."""
    world.hold(documents)
    manifest = world.index(allow_deletes=True, **changes).manifest
    return manifest.run["asked"].get("report", 0), manifest.steps["reports"]["counts"].get("kept_reports", 0)


def contents(world: Small) -> dict[str, str]:
    return {r["id"]: r["full_content"] for r in world.table("community_reports")}


def test_a_small_change_to_every_context_rewrites_no_report(world: Small):
    written, kept = update(world, entangled(range(40)))
    assert written > 1 and kept == 0
    before = contents(world)
    assert update(world, entangled(range(41))) == (0, written)
    assert contents(world) == before
    assert update(world, entangled(range(41)), reports={"rewrite_threshold": 0})[0] == written


def test_small_changes_accumulate(world: Small):
    update(world, entangled(range(40)))
    written = [update(world, entangled(range(41 + n)))[0] for n in range(4)]
    assert written[0] == 0 and sum(written) > 0, "each brings a fortieth, and 5% may differ"


def test_reused_reports_survive_later_runs_without_the_journal(world: Small, computer: Machine):
    update(world, entangled(range(40)))
    update(world, entangled(range(41)))
    before, asked = contents(world), len(computer.asked)
    assert not world.index(verify=True).committed
    clean_up(world.store, GcOptions(keep=1, grace_s=0.0), journal=True, delete=True)
    assert not world.index().committed and contents(world) == before
    update(world, {**entangled(range(41)), "other.txt": "ZORA sang to YURI."})
    assert before.items() <= contents(world).items()
    assert sum("ZORA" in text for text in contents(world).values()) and len(computer.asked) > asked


def test_reports_are_rewritten_from_scratch_on_request(world: Small):
    update(world, entangled(range(40)))
    update(world, entangled(range(41)))
    world.index(reset_communities=True)
    reset = everything(world.open())
    world.forget()
    world.index()
    assert by_id(reset) == by_id(everything(world.open()))


def test_an_update_announces_what_it_will_write_before_any_call(world: Small):
    update(world, entangled(range(40)))
    assert not any("Expected work" in note for note in world.observer.notes)
    changed = {**entangled(range(1, 41)), "005.txt": "ANNA met BERT at last."}
    update(world, changed)
    (told,) = [note for note in world.observer.notes if "Expected work" in note]
    assert told.startswith(
        "Documents: 1 new, 1 changed, 1 removed. Expected work: at most 2 chunks to extract, "
    )


histories = st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=9), min_size=2, max_size=4)


@given(histories, st.sampled_from([0.1, 0.3, 0.5]))
@fewer(5)
def test_no_report_mentions_a_deleted_document_or_cites_missing_records(
    history: list[set[int]], below: float
):
    with machine(), Small() as world:
        world.changes |= {
            "communities": {"max_size": 3, "pack_components_below": 1},
            "reports": {"rewrite_threshold": below},
        }
        for held in history:
            every = entangled(range(12))
            update(world, {name: every[name] for name in (f"{n:03}.txt" for n in held)})
            known = {s: {row["id"] for row in world.table(t)} for s, t in SECTION_TABLES.items()}
            for report in world.table("community_reports"):
                assert set(MARK.findall(report["full_content"])) <= {f"mark{n}" for n in held}
                assert all(r["id"] in known[r["section"]] for r in report["references"])
