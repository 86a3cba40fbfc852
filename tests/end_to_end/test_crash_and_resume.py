"""Killed at any moment and run again, an index is the one that an undisturbed run leaves.

The model answers without HTTP here, so that many corpora and many moments can be tried.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import toy_model
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from world import World, everything

from graphrag_ray.engine import local
from graphrag_ray.engine.work import Answer
from graphrag_ray.errors import FatalCallError, ModelRefused
from graphrag_ray.index import JOURNALS
from graphrag_ray.messages import Request
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_part

IN_FLIGHT = 3

names = st.sampled_from(["ANNA", "BERT", "CORA", "DIRK", "EDNA", "FRED", "GINA"])
sentences = st.lists(names, min_size=1, max_size=3, unique=True).map(lambda n: f"{' met '.join(n)} there. ")
texts = st.lists(sentences, min_size=1, max_size=6).map("".join)
corpora = st.dictionaries(st.sampled_from("abcdef"), texts, min_size=1, max_size=4)


class Killed(BaseException):
    """The process is no more: nothing catches this."""


class Machine:
    """Where an index is built: answers by the toy rules, and can be made to die or to refuse.

    asked      hashes of all requests sent
    die_at     the store operation at which everything ends, and nothing is written any more
    refuse_at  the request from which on the key is refused
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.in_flight = 0
        self.operations = 0
        self.die_at: int | None = None
        self.refuse_at: int | None = None

    def heal(self) -> None:
        self.die_at = self.refuse_at = None

    @asynccontextmanager
    async def gateway(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Stands in for `open_gateway`."""
        yield self._ask

    async def _ask(self, request: Request, stage: str) -> Answer:
        if self.refuse_at is not None and len(self.asked) >= self.refuse_at:
            raise FatalCallError("the key is refused", status=401)
        self.asked.append(request.hash)
        await asyncio.sleep(0)
        return Answer(toy_model.answer(request))

    def operate(self) -> None:
        """Before every operation that changes the store."""
        self.operations += 1
        if self.die_at is not None and self.operations > self.die_at:
            raise Killed


@contextmanager
def machine() -> Iterator[Machine]:
    built = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "open_gateway", built.gateway)
        for name in ("write", "create", "delete"):
            patch.setattr(Store, name, counted(getattr(Store, name), built))
        yield built


def counted(operation: Any, built: Machine) -> Any:
    def counting(store: Store, path: str, *data: bytes) -> Any:
        if not path.startswith("locks/"):
            built.operate()
        return operation(store, path, *data)

    return counting


class Nobody:
    base_url = "http://127.0.0.1:9/v1"


class Small(World):
    """A world without HTTP, in a folder that goes when it is closed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="graphrag-ray-crash-"))
        super().__init__(self.folder, Nobody())  # type: ignore[arg-type]
        self.changes = {"embeddings": {"enabled": False}, "run": {"flush_s": 0.001}}
        self.changes["communities"] = {"max_size": 2, "small_component": 1}

    def executor(self, settings: Any) -> local.LocalExecutor:
        executor = super().executor(settings)
        executor.in_flight = IN_FLIGHT
        return executor

    def hold(self, corpus: dict[str, str]) -> None:
        shutil.rmtree(self.input)
        self.input.mkdir()
        self.write({f"{name}.txt": text for name, text in corpus.items()})

    def journalled(self) -> set[str]:
        """Hashes of the requests whose replies are in the journal."""
        found = set()
        for name in JOURNALS:
            for info in self.store.list(f"work/{name}"):
                rows = read_part(self.store, info.path, ["kind", "request_hash"]).to_pylist()
                found |= {r["request_hash"] for r in rows if r["kind"] == "turn"}
        return found

    def __enter__(self) -> Small:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)


slow_but_few = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])


def undisturbed(*corpora: dict[str, str]) -> tuple[dict[str, Any], Machine]:
    """The tables after indexing one corpus after the other, and what it took."""
    with machine() as calm, Small() as world:
        for corpus in corpora:
            world.hold(corpus)
            world.index(allow_deletes=True)
        return everything(world.open()), calm


@given(corpora, st.floats(0, 1))
@slow_but_few
def test_a_refused_key_at_any_call_costs_nothing_twice_but_what_was_in_flight(
    corpus: dict[str, str], moment: float
):
    tables, calm = undisturbed(corpus)
    with machine() as world_machine, Small() as world:
        world.hold(corpus)
        world_machine.refuse_at = int(moment * (len(calm.asked) - 1))
        with pytest.raises(ModelRefused):
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
@slow_but_few
def test_a_kill_at_any_write_leaves_no_trace_in_the_index(corpus: dict[str, str], moment: float):
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
        shutil.rmtree(world.root / "locks")  # the process is dead: its lock is taken over
        world.index()
        assert kept.isdisjoint(world_machine.asked[before:]), "what is journalled is never asked again"
        assert everything(world.open()) == tables


@given(corpora, corpora, st.floats(0, 1))
@slow_but_few
def test_a_kill_during_an_update_leaves_the_old_snapshot_until_the_new_one_is_there(
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


@given(corpora, corpora)
@slow_but_few
def test_an_update_holds_what_a_fresh_index_holds(first: dict[str, str], second: dict[str, str]):
    updated, _ = undisturbed(first, second)
    fresh, _ = undisturbed(second)
    for table in ("entities", "relationships", "entity_instances", "relationship_instances"):
        shown = [{k: v for k, v in row.items() if k != "human_readable_id"} for row in updated[table]]
        assert shown == [{k: v for k, v in row.items() if k != "human_readable_id"} for row in fresh[table]]
    members = [sorted(sorted(c["entity_ids"]) for c in t["communities"]) for t in (updated, fresh)]
    assert members[0] == members[1]
