"""Whatever happens to an index, it ends up equal to an index built from scratch.

Documents are added, changed and deleted; runs are killed at store operations and model calls, meet a full
disk, and are resumed; the file system fails transiently throughout. Small part sizes stand in for a large
corpus.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import orjson
from comparing import Tables, by_id, without_numbers
from examples import fewer
from hypothesis import event, given
from hypothesis import strategies as st
from machine import Killed, Machine, Small, machine, tiny_parts
from world import everything

from graphrag_ray.base.errors import StoreError
from graphrag_ray.store import snapshots

PEOPLE = ["ANNA", "BERT", "CORA", "DIRK", "EDNA", "FRED", "GINA", "HANS", "INGE", "JOHN", "KATE", "LARS"]
SETTINGS = {
    "claims": {"enabled": True},
    "communities": {"max_size": 3, "pack_components_below": 3},
    "reports": {"rewrite_threshold": 0},
}
GRAPH = ("documents", "text_units", "entity_instances", "relationship_instances", "entities", "relationships")
NUMBERED = ("documents", "text_units", "entities", "relationships", "covariates", "communities")


@dataclass(frozen=True)
class Step:
    """Documents to write (None: delete), then a run and its faults."""

    documents: dict[str, str | None]
    trouble: str
    at: int
    faults: float


names = st.sampled_from(PEOPLE)
sentences = st.lists(names, min_size=1, max_size=4, unique=True).map(lambda n: f"{' met '.join(n)} there. ")
# Three or more documents with the same notice are asked about it once. Some contain nothing else.
notices = st.sampled_from(["", "", f"\n\n{' and '.join(PEOPLE[:3])} {'accept no liability ' * 6}.\n\n"])
bodies = st.lists(sentences, min_size=1, max_size=5).map("".join)
texts = st.builds(
    lambda body, notice, alone: notice if alone and notice else notice + body,
    bodies,
    notices,
    st.booleans(),
)
files = st.sampled_from([f"{c}.txt" for c in "abcdefgh"])
troubles = st.sampled_from(["", "", "dies writing", "dies when it has written", "dies asking", "disk full"])
steps = st.builds(
    Step,
    st.dictionaries(files, st.one_of(texts, texts, st.none()), min_size=1, max_size=4),
    troubles,
    st.integers(0, 60),
    st.sampled_from([0.0, 0.1]),
)
first = st.dictionaries(files, texts, min_size=1, max_size=7)


@given(first, st.lists(steps, min_size=1, max_size=3), st.sampled_from([tiny_parts, nullcontext]))
@fewer(12)
def test_any_history_ends_like_an_index_built_from_scratch(
    corpus: dict[str, str], history: list[Step], parts: Callable[[], AbstractContextManager[None]]
):
    with parts(), machine() as computer, Small() as world:
        world.changes |= SETTINGS
        known = Known()
        held = dict(corpus)
        for step in [Step({**corpus}, history[0].trouble, history[0].at, 0.0), *history]:
            held = {n: t for n, t in {**held, **step.documents}.items() if t is not None} or held
            world.hold(held)
            attempt(computer, world, step)
            known.look(world)
        world.index(allow_deletes=True)
        known.look(world)
        with Small() as other:
            other.changes |= SETTINGS
            other.hold(held)
            best = other.index().manifest.counts["modularity"]
            fresh = everything(other.open())
        as_good_as(world, fresh, best)
        every_report_matches_its_context(world)
        asked = len(computer.asked)
        assert not world.index(allow_deletes=True).committed and len(computer.asked) == asked
        world.index(allow_deletes=True, reset_communities=True)
        assert by_id(everything(world.open())) == by_id(fresh)
        known.look(world)


def attempt(computer: Machine, world: Small, step: Step) -> None:
    """Run with faults, and check that nothing journalled before is requested again."""
    kept, before = world.journalled(), len(computer.asked)
    computer.faults = step.faults
    if step.trouble == "dies asking":
        computer.die_asking = before + step.at
    elif step.trouble == "disk full":
        computer.full_at = computer.operations + step.at
    elif step.trouble:
        computer.die_at, computer.carried_out = computer.operations + step.at, "has written" in step.trouble
    try:
        world.index(allow_deletes=True)
        event("not hit" if step.trouble else "no trouble")
    except (Killed, StoreError):
        if not step.trouble:
            raise
        event(step.trouble)
    computer.heal()
    shutil.rmtree(world.root / "locks", ignore_errors=True)  # The process is dead, so its lock is taken over.
    assert kept.isdisjoint(computer.asked[before:])


class Known:
    """Short ids seen so far: each keeps its meaning, and every record keeps its id."""

    def __init__(self) -> None:
        self.meant: dict[tuple[str, int], str] = {}
        self.last: dict[tuple[str, str], int] = {}
        self.snapshot: int | None = None

    def look(self, world: Small) -> None:
        newest = snapshots.read_latest(world.store)
        if newest is None or newest.number == self.snapshot:
            return
        tables = everything(world.open())
        now = {(t, r["id"]): r["human_readable_id"] for t in NUMBERED for r in tables[t]}
        for (table, id_), number in now.items():
            assert self.meant.setdefault((table, number), id_) == id_
            assert self.last.get((table, id_), number) == number
        assert len(set(zip((t for t, _ in now), now.values(), strict=True))) == len(now)
        self.last, self.snapshot = now, newest.number


def as_good_as(world: Small, fresh: Tables, best: float) -> None:
    """Check for equal tables, except that communities may be another valid partition of equal modularity."""
    opened = world.open()
    updated, counts = everything(opened), opened.manifest.counts
    for table in (*GRAPH, "covariates", "failures"):
        assert without_numbers(updated[table]) == without_numbers(fresh[table]), table
    for level in range(len(counts["levels"])):
        holds_every_entity_once(updated, level)
    assert counts["modularity"] >= best - 0.01 * abs(best) - 1e-4
    numbers = [{r["community"] for r in updated[t]} for t in ("communities", "community_reports")]
    assert numbers[0] == numbers[1]


def holds_every_entity_once(tables: Tables, level: int) -> None:
    parents = {c["parent"] for c in tables["communities"]}
    members = [
        id_
        for c in tables["communities"]
        if c["level"] == level or (c["level"] < level and c["community"] not in parents)
        for id_ in c["entity_ids"]
    ]
    assert sorted(members) == sorted(e["id"] for e in tables["entities"])


def every_report_matches_its_context(world: Small) -> None:
    """Check that requesting all reports again gives the same reports for the same communities."""
    newest = snapshots.read_latest(world.store)
    assert newest is not None
    path = world.root / "snapshots" / f"{newest.number}.json"
    manifest = orjson.loads(path.read_bytes())
    manifest["steps"]["reports"]["fingerprint"] = ""
    del manifest["digest"]  # From the content before the update.
    path.write_bytes(snapshots.seal(manifest))
    shutil.rmtree(world.root / "work" / "report", ignore_errors=True)
    assert not world.index(allow_deletes=True).committed
    assert not world.observer.reused["reports"] and world.observer.reused["communities"]
