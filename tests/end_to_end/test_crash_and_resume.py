"""An index killed at any moment and resumed equals the index of an undisturbed run.

The model answers without HTTP, so that many corpora and moments can be tried.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest
from examples import fewer
from hypothesis import event, given
from hypothesis import strategies as st
from machine import IN_FLIGHT, Killed, Machine, Small, machine
from world import everything

from graphrag_ray.base.errors import ModelUnavailable

names = st.sampled_from(["ANNA", "BERT", "CORA", "DIRK", "EDNA", "FRED", "GINA"])
sentences = st.lists(names, min_size=1, max_size=3, unique=True).map(lambda n: f"{' met '.join(n)} there. ")
texts = st.lists(sentences, min_size=1, max_size=6).map("".join)
corpora = st.dictionaries(st.sampled_from([f"{c}.txt" for c in "abcdef"]), texts, min_size=1, max_size=4)


def undisturbed(*corpora: dict[str, str]) -> tuple[dict[str, Any], Machine]:
    """The tables after indexing several corpora one after the other, and the calls it took."""
    with machine() as calm, Small() as world:
        for corpus in corpora:
            world.hold(corpus)
            world.index(allow_deletes=True)
        return everything(world.open()), calm


@given(corpora, st.floats(0, 1))
@fewer(5)
def test_after_a_rejected_key_only_calls_in_flight_are_paid_twice(corpus: dict[str, str], moment: float):
    tables, calm = undisturbed(corpus)
    with machine() as world_machine, Small() as world:
        world.hold(corpus)
        world_machine.refuse_at = int(moment * (len(calm.asked) - 1))
        with pytest.raises(ModelUnavailable):
            world.index()
        assert world.snapshots() == []
        kept = world.journalled()
        assert world_machine.refuse_at - len(kept) <= IN_FLIGHT
        world_machine.heal()
        world.index()
        assert everything(world.open()) == tables
    twice = sum(n - 1 for n in Counter(world_machine.asked).values())
    assert twice <= IN_FLIGHT and set(world_machine.asked) == set(calm.asked)


@given(corpora, st.floats(0, 1))
@fewer(5)
def test_a_kill_at_any_write_does_not_change_the_final_index(corpus: dict[str, str], moment: float):
    tables, calm = undisturbed(corpus)
    with machine() as world_machine, Small() as world:
        world.hold(corpus)
        world_machine.die_at = int(moment * calm.operations)
        try:
            world.index()
        except Killed:
            event("killed")
        world_machine.heal()
        kept, before = world.journalled(), len(world_machine.asked)
        shutil.rmtree(world.root / "locks")  # The process is dead, so its lock is taken over.
        world.index()
        assert kept.isdisjoint(world_machine.asked[before:]), "what is journalled is never asked again"
        assert everything(world.open()) == tables


@given(corpora, corpora, st.floats(0, 1))
@fewer(5)
def test_a_killed_update_leaves_the_old_snapshot_until_the_new_one_is_committed(
    first: dict[str, str], second: dict[str, str], moment: float
):
    tables, calm = undisturbed(first, second)
    with machine() as world_machine, Small() as world:
        world.hold(first)
        world.index()
        old, done = everything(world.open()), world_machine.operations
        world.hold(second)
        world_machine.die_at = done + int(moment * (calm.operations - done))
        try:
            world.index(allow_deletes=True)
        except Killed:
            event("killed")
        world_machine.heal()
        found = world.open()
        assert everything(found) == (old if found.manifest.number == 1 else tables)
        shutil.rmtree(world.root / "locks")
        world.index(allow_deletes=True)
        assert everything(world.open()) == tables
