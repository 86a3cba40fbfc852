"""`gc` removes what no retained snapshot needs, and `--purge` every trace of a document, and nothing else."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy_model
from endpoint import Endpoint
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st
from world import REJECTED, TOWN, WITHOUT_A_TREE, Command, World, everything, prompt_of

from graphrag_ray import open_index
from graphrag_ray.base.errors import (
    CorruptPart,
    DeletionRefused,
    IndexNotFound,
    LockHeld,
    LockLost,
    SnapshotRemoved,
    UsageError,
)
from graphrag_ray.indexing.purge import clean_up
from graphrag_ray.store import compaction, locks, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.gc import GcOptions
from graphrag_ray.store.parts import list_parts

MARKER = "XQJZVW"
"""A name in one document: toy extraction, descriptions, reports and embeddings all come to hold it."""
HOUR = 3600.0
FROM_THE_JOURNAL = {"reports": {"rewrite_threshold": 0}}
"""A report that an update keeps is the parent's; without such ones all are what the journal gives."""
MORE = {f"more{i}.txt": f"ALICE met BOB, for the time number {i}." for i in range(12)}
SECRET = {"letters/secret.txt": f"{MARKER} met ALICE. {MARKER} owes BOB {MARKER.lower()} crowns."}


def aged(root: Path, seconds: float) -> None:
    """Make everything look as if it had been written that long ago."""
    for path in root.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An index of four snapshots, two hours old. Only the second one contains SECRET. Not to be changed."""
    with Endpoint(respond=toy_model.respond) as endpoint:
        world = World(tmp_path_factory.mktemp("grown"), endpoint)
        world.changes = world.embedding | FROM_THE_JOURNAL
        for texts in (TOWN | MORE, SECRET, {"zoo.txt": "ZOE feeds YURI."}, {"zoo.txt": "ZOE left."}):
            if (world.input / "letters").exists():
                shutil.rmtree(world.input / "letters")
            world.write(texts)
            world.index(allow_deletes=True)
        aged(world.root, 2 * HOUR)
        yield world


@pytest.fixture
def town(grown: World, tmp_path: Path) -> World:
    """A copy of the index."""
    shutil.copytree(grown.root.parent, tmp_path / "copy")
    copy = World(tmp_path / "copy", grown.endpoint)
    copy.changes = copy.embedding | FROM_THE_JOURNAL
    return copy


@pytest.fixture(scope="module")
def held(grown: World) -> dict[int, dict[str, Any]]:
    """The tables of each snapshot."""
    return {n: at(grown, n) for n in grown.snapshots()}


def at(world: World, number: int) -> dict[str, Any]:
    return everything(open_index(str(world.root), snapshot=number))


def traces(world: World | Path, what: str) -> list[str]:
    """Files that contain a text in their name or content, ignoring case. Parquet is decoded."""
    wanted, root = what.lower().encode(), world if isinstance(world, Path) else world.root

    def holds(path: Path) -> bool:
        data = path.read_bytes()
        if wanted in data.lower() or wanted in str(path.relative_to(root)).lower().encode():
            return True
        try:
            table = pq.read_table(io.BytesIO(data))
        except Exception:
            return False
        return wanted in str(table.to_pylist()).lower().encode()

    return [str(p) for p in sorted(root.rglob("*")) if p.is_file() and holds(p)]


def files_of(world: World) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in world.root.rglob("*") if p.is_file()}


def test_without_delete_nothing_is_removed_and_the_plan_is_shown(town: World):
    before = files_of(town)
    found = clean_up(town.store, GcOptions(keep=2), journal=True)
    assert found.plan.snapshots == [1, 2] and found.plan.kept == [3, 4] and not found.deleted
    assert files_of(town) == before
    found = clean_up(town.store, GcOptions(), purge=list(SECRET))
    assert found.plan.snapshots == [2] and list(found.documents) == list(SECRET)
    assert files_of(town) == before


def test_retained_snapshots_are_unchanged_and_unneeded_parts_are_removed(town: World, held: dict):
    n_parts = len(list_parts(town.store))
    clean_up(town.store, GcOptions(keep=2, grace_s=0), delete=True)
    assert {n: at(town, n) for n in town.snapshots()} == {n: held[n] for n in (3, 4)}
    needed = {p for n in (3, 4) for p in snapshots.part_paths(snapshots.load(town.store, n))}
    assert {i.path for i in list_parts(town.store)} == needed and len(needed) < n_parts
    asked = len(town.endpoint.requests)
    assert not town.index().committed and len(town.endpoint.requests) == asked


def test_readers_work_during_the_grace_period_and_get_an_error_after_it(town: World, held: dict):
    reader = open_index(str(town.root), snapshot=1)
    found = clean_up(town.store, GcOptions(keep=1), delete=True)
    assert town.snapshots() == [4] and found.plan.waiting and found.plan.waiting_until is not None
    assert everything(reader) == held[1]
    aged(town.root, HOUR / 2)
    clean_up(town.store, GcOptions(keep=1), delete=True)
    assert everything(reader) == held[1]
    aged(town.root, HOUR)
    clean_up(town.store, GcOptions(keep=1), delete=True)
    with pytest.raises(
        SnapshotRemoved, match=r"Snapshot 1 .*removed by `gc` while it was being read.*snapshot, 4"
    ):
        reader.table("entities")
    assert everything(town.open()) == held[4]
    assert town.store.list("gc") == []


def test_a_removed_snapshot_is_not_found(town: World):
    clean_up(town.store, GcOptions(keep=2), delete=True)
    with pytest.raises(IndexNotFound, match=r"no snapshot 2. Existing snapshots: 3, 4"):
        open_index(str(town.root), snapshot=2)


def test_older_than_keeps_young_snapshots(town: World):
    for number, age in ((1, 5), (2, 4), (3, 1), (4, 0)):
        at = time.time() - age * HOUR
        os.utime(town.root / f"snapshots/{number}.json", (at, at))
    assert clean_up(town.store, GcOptions(keep=1, older_than_s=6 * HOUR)).plan.snapshots == []
    assert clean_up(town.store, GcOptions(keep=1, older_than_s=3 * HOUR)).plan.snapshots == [1, 2]
    assert clean_up(town.store, GcOptions(keep=3, older_than_s=3 * HOUR)).plan.snapshots == [1]


def test_old_remains_of_a_killed_run_are_removed(town: World):
    clean_up(town.store, GcOptions(keep=9), delete=True)
    town.store.write("tables/entities/part-" + "0" * 32 + ".parquet", b"orphan")
    (town.root / "tables" / "entities" / ".tmp-1-abc").write_bytes(b"half")
    found = clean_up(town.store, GcOptions(keep=9), delete=True)
    assert found.plan.parts == [] and [i.bytes for i in found.plan.waiting] == [6]
    aged(town.root, 2 * HOUR)
    found = clean_up(town.store, GcOptions(keep=9), delete=True)
    assert [i.bytes for i in found.plan.parts] == [6]
    assert [i.bytes for i in found.plan.others["temporary"]] == [4]
    assert not list(town.root.rglob(".tmp-*"))


def test_locks_are_removed_except_the_last_and_one_whose_holder_may_be_paused(town: World):
    paused = locks.acquire(town.store, note="paused")
    data = orjson.loads(town.store.read(f"locks/{paused.epoch}.json")) | {"machine": "another"}
    town.store.write(f"locks/{paused.epoch}.json", orjson.dumps(data))
    taken = locks.acquire(town.store, stale_s=0.01)
    taken.release()
    clean_up(town.store, GcOptions(keep=9), delete=True)
    left = {int(i.path.split("/")[1].split(".")[0]) for i in town.store.list("locks")}
    assert left == {paused.epoch, taken.epoch, taken.epoch + 1}
    with pytest.raises(LockLost):
        paused.check()


def test_a_running_writer_is_named_and_nothing_is_removed(town: World):
    with locks.acquire(town.store, note="index elsewhere"):
        before = {p: b for p, b in files_of(town).items() if "/locks/" not in p}
        assert "index elsewhere" in (clean_up(town.store, GcOptions(keep=1)).writer or "")
        with pytest.raises(LockHeld, match="index elsewhere"):
            clean_up(town.store, GcOptions(keep=1), delete=True)
        assert {p: b for p, b in files_of(town).items() if "/locks/" not in p} == before


def test_a_process_that_lost_the_lock_stops_deleting(town: World, monkeypatch: pytest.MonkeyPatch):
    def take_over(lock: locks.Lock) -> None:
        town.store.write(f"locks/{lock.epoch + 1}.json", b"{}")
        check(lock)

    check = locks.Lock.check
    monkeypatch.setattr(locks.Lock, "check", take_over)
    with pytest.raises(LockLost):
        clean_up(town.store, GcOptions(keep=1, grace_s=0), delete=True)
    assert town.snapshots() == [1, 2, 3, 4]


def test_a_damaged_manifest_removes_nothing(town: World):
    town.store.write("snapshots/3.json", b"{")
    n = len(list_parts(town.store))
    with pytest.raises(CorruptPart, match=r"snapshots/3.json is damaged.*Nothing is removed"):
        clean_up(town.store, GcOptions(keep=1, grace_s=0), delete=True)
    assert len(list_parts(town.store)) == n and town.snapshots() == [1, 2, 3, 4]


def test_an_unfinished_index_is_not_touched(world: World):
    world.store.write("work/extract/x", b"")
    with pytest.raises(IndexNotFound, match="is incomplete"):
        clean_up(world.store, GcOptions(), delete=True)
    assert [i.path for i in world.store.list()] == ["work/extract/x"]


def test_a_purge_removes_every_trace_of_a_document_and_nothing_else(town: World, held: dict):
    """Damaged parts and unfinished files, whose content cannot be checked, are removed as well."""
    (part, *_) = town.store.list("work/extract")
    data = town.store.read(part.path) + MARKER.encode()
    town.store.write("work/extract/damaged/" + part.path.split("/")[-1], data)
    town.store.write(part.path.replace("part-1", "part-0"), data)
    (town.root / "tables/.tmp-7-x").write_bytes(MARKER.encode())
    assert len(traces(town, MARKER)) > 10 and traces(town, "secret")
    found = clean_up(town.store, GcOptions(), purge=list(SECRET), delete=True)
    assert list(found.documents) == list(SECRET) and found.plan.snapshots == [2]
    assert {"extract", "describe", "report", "embed"} <= {n for n, t in found.journal.items() if t.items}
    assert traces(town, MARKER) == traces(town, "secret") == []
    assert {n: at(town, n) for n in town.snapshots()} == {n: held[n] for n in (1, 3, 4)}
    asked = len(town.endpoint.requests)
    assert not town.index().committed and len(town.endpoint.requests) == asked


@pytest.mark.parametrize("method", WITHOUT_A_TREE)
def test_an_open_snapshot_does_not_reveal_a_purged_document(town: World, method: str):
    # The toy model answers these with three titles or names, none of which is MARKER.
    name = "BOB" if method in ("global", "drift") else MARKER
    reader, about = open_index(str(town.root), snapshot=2), f"What did {name} do ?"
    answer = reader.ask(about, method=method)
    assert name in answer.text and answer.references, "it is in memory now"
    clean_up(town.store, GcOptions(), purge=list(SECRET), delete=True)
    asked = len(town.endpoint.requests)
    with pytest.raises(SnapshotRemoved, match="the newest snapshot, 4"):
        reader.ask(about, method=method)
    with pytest.raises(SnapshotRemoved):
        reader.sources(answer.references, answer)
    assert not any("messages" in r.body for r in town.endpoint.requests[asked:]), "no model writes about it"


@pytest.mark.parametrize("when", ["map", "reduce"])
def test_a_question_whose_snapshot_is_removed_reports_what_it_had_cost(town: World, run: Command, when: str):
    purged: list[Any] = []

    def respond(body: dict[str, Any]) -> Any:
        if prompt_of(body) == when and not purged:
            purged.append(clean_up(town.store, GcOptions(), purge=list(SECRET), delete=True))
        return toy_model.respond(body)

    town.endpoint.respond = respond
    done = run("query", "What are the main themes?", "--root", town.root, "--snapshot", 2, "--sources")
    town.endpoint.respond = toy_model.respond
    assert done.exit_code == 1 and "the newest snapshot, 4" in done.output and MARKER not in done.output
    calls = int(re.search(r"The question had used (\d+) calls", done.output).group(1))
    asked = [prompt_of(body) for body in town.endpoint.bodies("/chat/completions")[-calls:]]
    assert when in asked and (when == "reduce") == ("reduce" in asked)


def test_after_a_purge_the_index_can_be_rebuilt_from_its_journal(town: World, held: dict):
    clean_up(town.store, GcOptions(), purge=list(SECRET), delete=True)
    for folder in ("tables", "snapshots"):
        shutil.rmtree(town.root / folder)
    asked = len(town.endpoint.requests)
    town.index()
    assert len(town.endpoint.requests) == asked
    entities = [{k: v for k, v in e.items() if k != "human_readable_id"} for e in held[4]["entities"]]
    now = [{k: v for k, v in e.items() if k != "human_readable_id"} for e in town.table("entities")]
    assert now == entities


@pytest.mark.parametrize("claims", [False, True])
def test_permanent_failures_are_not_retried_after_a_purge(world: World, claims: bool):
    def respond(body: dict) -> Any:
        return REJECTED if "HEIDI" in body["messages"][-1]["content"] else toy_model.respond(body)

    world.changes = {
        "claims": {"enabled": claims},
        "run": {"journal_flush_s": 0.1, "max_failed_fraction": 1.0},
    }
    world.endpoint.respond = respond
    world.write(TOWN | SECRET)
    world.index()
    shutil.rmtree(world.input / "letters")
    done = world.index(allow_deletes=True)
    assert done.failed
    clean_up(world.store, GcOptions(), purge=["letters/*"], delete=True)
    assert traces(world, MARKER) == []
    asked = len(world.endpoint.requests)
    assert world.index().failed == done.failed and len(world.endpoint.requests) == asked


def test_a_document_in_the_newest_snapshot_is_not_purged(town: World):
    before = files_of(town)
    with pytest.raises(DeletionRefused, match=r"Snapshot 4.*zoo.txt.*Delete them from INPUT"):
        clean_up(town.store, GcOptions(), purge=["letters/secret.txt", "zoo.txt"])
    with pytest.raises(DeletionRefused, match=r"12 documents.*more0.txt, more1.txt, more10.txt, …"):
        clean_up(town.store, GcOptions(), purge=["more*.txt"])
    assert files_of(town) == before


def test_an_unknown_document_is_reported_with_a_suggestion(town: World):
    with pytest.raises(
        UsageError,
        match=r"no document 'letters/secrt.txt'|'letters/secrt.txt'.*Did you mean 'letters/secret.txt'",
    ):
        clean_up(town.store, GcOptions(), purge=["letters/secrt.txt"], delete=True)
    assert town.snapshots() == [1, 2, 3, 4]


def test_documents_are_purged_by_id_and_by_pattern(town: World, held: dict):
    (id_,) = (d["id"] for d in held[2]["documents"] if d["path"] in SECRET)
    assert list(clean_up(town.store, GcOptions(), purge=[id_]).documents) == list(SECRET)
    assert list(clean_up(town.store, GcOptions(), purge=["letters/*"]).documents) == list(SECRET)


def test_files_outside_the_index_with_text_of_a_purged_document_are_listed(
    town: World, run: Command, tmp_path: Path, held: dict
):
    (document,) = (d for d in held[2]["documents"] if d["path"] in SECRET)
    (chunk,) = document["text_unit_ids"]
    text = document["text"]
    replies, other = tmp_path / "replies", tmp_path / "other"
    asked = ("query", f"What about {MARKER}?", "--root", town.root, "--snapshot", 2, "--method", "local")
    run(*asked, "--cache", replies)
    (kept,) = (p for p in replies.rglob("*.parquet") if traces(p.parent, MARKER))
    other.mkdir()
    files: dict[str, str | bytes] = {
        "evaluation/judged.json": json.dumps({"why": json.dumps(f"é {text.replace(' ', chr(10), 3)}")}),
        "evaluation/page.html": "<p>" + html.escape(text.replace("met", "<b>met</b> & '")).upper() + "</p>",
        "evaluation/long.txt": "x " * 3_000_000 + text,
        "ids.csv": f"n,chunk\n1,{chunk}\n",
        "path.md": "See [letters/secret.txt](there).",
        "names.txt": f"Nobody knows {MARKER.title()}.",
        "archive.zip": b"PK\x03\x04\0\0",
        "newest.txt": "\n".join([*TOWN.values(), *MORE.values(), "ALICE met BOB, a secret of letters, txt"]),
    }
    for name, content in files.items():
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    answers = pa.table({"question": ["?", "?"], "context": [["nothing"], ["", f"It says: “{text}”"]]})
    pq.write_table(answers, other / "answers.parquet", compression="zstd")
    place = f"{other}/"
    expected = {
        str(kept): "quotes it",
        **{f"{place}evaluation/{name}": "quotes it" for name in ("judged.json", "long.txt", "page.html")},
        f"{place}answers.parquet": "quotes it",
        **{f"{place}{name}": "names it" for name in ("ids.csv", "path.md", "names.txt")},
        f"{place}archive.zip": "cannot be searched (neither text nor Parquet)",
    }
    also = [str(replies), str(other), str(town.root)]
    assert clean_up(town.store, GcOptions(), purge=list(SECRET), search_paths=also).traces == expected
    one = [f"{place}ids.csv"]
    done = clean_up(town.store, GcOptions(), purge=list(SECRET), search_paths=one, delete=True)
    assert list(done.traces) == one and (other / "ids.csv").exists()


def test_nothing_is_removed_if_a_folder_to_search_does_not_exist(town: World, tmp_path: Path):
    before = files_of(town)
    with pytest.raises(UsageError, match=r"--also .*gone: There is no such file"):
        clean_up(
            town.store, GcOptions(), purge=list(SECRET), search_paths=[str(tmp_path / "gone")], delete=True
        )
    with pytest.raises(UsageError, match="--purge"):
        clean_up(town.store, GcOptions(), search_paths=[str(town.input)])
    assert {p: b for p, b in files_of(town).items() if "/locks/" not in p} == {
        p: b for p, b in before.items() if "/locks/" not in p
    }


def test_a_journal_that_does_not_reproduce_the_snapshot_is_not_trimmed(town: World):
    """For example after a prompt was changed: the replies that the next run needs are not known."""
    for info in town.store.list("work/report"):
        town.store.delete(info.path)
    left = len(town.store.list("work"))
    with pytest.raises(UsageError, match=r"snapshot 4 needs.*results for reports.*index"):
        clean_up(town.store, GcOptions(), journal=True, delete=True)
    assert len(town.store.list("work")) == left


def test_only_replies_that_the_newest_snapshot_does_not_replay_are_removed(town: World):
    before = {
        n: compaction.plan_trim(town.store, n, np.empty(0, np.uint64)).items for n in ("extract", "report")
    }
    found = clean_up(town.store, GcOptions(), journal=True, delete=True)
    after = {
        n: compaction.plan_trim(town.store, n, np.empty(0, np.uint64)).items for n in ("extract", "report")
    }
    assert found.journal["extract"].items == 2, "the secret letter, and the zoo before it was changed"
    assert {n: before[n] - found.journal[n].items for n in before} == after
    assert town.snapshots() == [2, 3, 4], "three are kept"
    asked = len(town.endpoint.requests)
    assert not town.index().committed and len(town.endpoint.requests) == asked
    again = clean_up(town.store, GcOptions(), journal=True)
    assert not any(t.items for t in again.journal.values())


class Killed(BaseException):
    """The simulated process was killed."""


def dying(patch: pytest.MonkeyPatch, store: Store, moment: int) -> None:
    """End the process at one of its changes to a store."""
    left = [moment]

    def counted(operation: Any) -> Any:
        def counting(self: Store, path: str, *data: bytes) -> Any:
            if self.url == store.url and not path.startswith("locks/"):
                if not left[0]:
                    raise Killed
                left[0] -= 1
            return operation(self, path, *data)

        return counting

    for name in ("write", "create", "delete"):
        patch.setattr(Store, name, counted(getattr(Store, name)))


@given(st.integers(0, 90), st.sampled_from([0.0, HOUR]), st.booleans())
@fewer(5)
def test_a_gc_killed_at_any_moment_leaves_snapshots_intact_and_the_next_one_finishes(
    grown: World,
    held: dict,
    tmp_path_factory: pytest.TempPathFactory,
    moment: int,
    grace_s: float,
    purging: bool,
):
    root = tmp_path_factory.mktemp("killed") / "index"
    shutil.copytree(grown.root, root)
    store, options = Store(str(root)), GcOptions(keep=2, grace_s=grace_s)
    purge = list(SECRET) if purging else []
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        dying(patch, store, moment)
        clean_up(store, options, purge=purge, delete=True)
    there = snapshots.list_numbers(store)
    assert {3, 4} <= set(there)
    assert {n: everything(open_index(str(root), snapshot=n)) for n in there} == {n: held[n] for n in there}
    shutil.rmtree(root / "locks")  # The process is dead, so its lock is taken over.
    begun = store.exists("gc/purge.json")
    clean_up(store, options, purge=purge if begun else [], delete=True)
    assert snapshots.list_numbers(store) == [3, 4] and not store.exists("gc/purge.json")
    assert {n: everything(open_index(str(root), snapshot=n)) for n in (3, 4)} == {n: held[n] for n in (3, 4)}
    if begun:
        assert traces(root, MARKER) == []
