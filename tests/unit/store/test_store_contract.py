"""The contract of every kind of storage, tested on a local folder.

`tests/integration/test_object_store.py` runs the same tests against an S3 server with its own
`store` fixture.
"""

import hashlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pyarrow as pa
import pytest
from sleeping_clock import Clock

from graphrag_ray.base.errors import (
    CorruptPart,
    IndexNotFound,
    LockHeld,
    LockLost,
    SnapshotConflict,
    StoreError,
)
from graphrag_ray.store import compaction, damaged_files, gc, locks, parts, snapshots
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow
from graphrag_ray.store.snapshots import Manifest


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "an index über Bäume"))


def run_concurrently(n, work):
    """Call work(0) … work(n-1) concurrently."""
    barrier = threading.Barrier(n)

    def one(i):
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


def key(i):
    return hashlib.sha256(b"%d" % i).hexdigest()


def row(i, kind="turn", at=None, **fields):
    reply = f"reply {i}" if kind == "turn" else None
    return JournalRow(
        key=key(i), turn=0, slot=0, request_hash=key(i), kind=kind, at=at or 1000.0 + i,
        **{"reply": reply, "model": "m", "prompt_tokens": 10, **fields},
    )  # fmt: skip


def manifest(number, **fields):
    return Manifest(
        number=number, parent=number - 1 or None, created_at="2026-01-01T00:00:00Z", version="0", **fields
    )


# files


def test_written_file_can_be_read_and_replaced(store):
    store.write("a/b c/ä.bin", b"one")
    assert store.read("a/b c/ä.bin") == b"one"
    store.write("a/b c/ä.bin", b"")
    assert store.read("a/b c/ä.bin") == b""
    assert store.size("a/b c/ä.bin") == 0


def test_upload_replaces_the_file(store, tmp_path):
    local = tmp_path / "local"
    for content in (b"one", bytes(3 << 20), b""):
        local.write_bytes(content)
        store.upload("a/b c/ä.bin", str(local))
        assert store.read("a/b c/ä.bin") == content
    assert [i.path for i in store.list()] == ["a/b c/ä.bin"] and local.exists()


def test_uploading_a_missing_file_raises_and_stores_nothing(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.upload("a", str(tmp_path / "no such file"))
    assert store.list() == []


def test_range_is_read(store):
    store.write("a", bytes(range(100)))
    assert store.read_range("a", 10, 20) == bytes(range(10, 20))
    assert store.read_range("a", 90, 100) == bytes(range(90, 100))


def test_missing_file_raises_file_not_found(store):
    with pytest.raises(FileNotFoundError):
        store.read("a/b")
    with pytest.raises(FileNotFoundError):
        store.open_input("a/b")
    assert store.size("a/b") is None
    assert not store.exists("a/b")
    store.delete("a/b")


def test_folder_is_not_a_file(store):
    store.write("a/b", b"x")
    assert store.size("a") is None


def test_listing_is_sorted_complete_and_limited_to_its_folder(store):
    for path in ("work/b/2", "work/b/1/x", "work/a/3", "work2/a", "work-3", "top"):
        store.write(path, b"12345")
    assert [i.path for i in store.list("work")] == ["work/a/3", "work/b/1/x", "work/b/2"]
    assert [i.path for i in store.list()] == sorted(
        ["work/b/2", "work/b/1/x", "work/a/3", "work2/a", "work-3", "top"]
    )
    assert store.list("work2") == [FileInfo("work2/a", 5)]


def test_missing_folder_is_listed_as_empty(store):
    assert store.list("nothing/here") == []
    assert store.list() == []


def test_changes_by_another_process_are_visible_immediately(store):
    other = pickle.loads(pickle.dumps(store))
    assert other == store
    assert store.list("a") == []
    other.write("a/1", b"x")
    assert [i.path for i in store.list("a")] == ["a/1"]
    assert store.exists("a/1")
    other.delete("a/1")
    assert store.list("a") == []
    assert not store.exists("a/1")


def test_path_cannot_leave_the_store(store):
    for path in ("../a", "a/../b", "/etc/passwd", "a//b", "", "a/", "./a", "a\\b", "a\nb"):
        with pytest.raises(StoreError, match="not a path inside"):
            store.write(path, b"x")
        with pytest.raises(StoreError, match="not a path inside"):
            store.read(path)


def test_create_does_not_change_an_existing_file(store):
    assert store.can_create
    assert store.create("a/x", b"first")
    assert not store.create("a/x", b"second")
    assert store.read("a/x") == b"first"


def test_exactly_one_of_32_concurrent_creates_wins(store):
    won = run_concurrently(32, lambda i: store.create("race/x", b"%d" % i))
    assert won.count(True) == 1
    assert store.read("race/x") == b"%d" % won.index(True)
    assert len(store.list("race")) == 1


def test_child_store_is_a_folder_of_its_parent(store):
    store.child("a/b").write("c", b"x")
    assert store.read("a/b/c") == b"x"


# parts


def test_part_is_read_whole_and_by_columns(store):
    table = pa.table({"id": [f"{i:032x}" for i in range(60_000)], "n": list(range(60_000))})
    part = parts.write_part(store, "entities", table)
    assert part.bytes == store.size(part.path) > 1 << 18
    assert parts.read_part(store, part).equals(table)
    assert parts.read_part(store, part, ["n"]).equals(table.select(["n"]))


def test_only_wanted_columns_of_a_large_part_are_fetched(store):
    noise = [hashlib.sha512(b"%d" % i).digest() for i in range(30_000)]
    table = pa.table({"big": noise, "n": list(range(30_000))})
    part = parts.write_part(store, "entities", table)
    assert part.bytes > 1 << 20
    assert parts.read_part(store, part, ["n"]).equals(table.select(["n"]))
    assert parts.read_part(store, part).equals(table)


def test_truncated_changed_or_missing_part_is_reported(store):
    table = pa.table({"n": list(range(10_000))})
    part = parts.write_part(store, "entities", table)
    whole = store.read(part.path)
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", bytes(changed)):
        store.write(part.path, damaged)
        with pytest.raises(CorruptPart, match=part.path):
            parts.read_part(store, part)
        with pytest.raises(CorruptPart, match=part.path):
            parts.read_part(store, part, ["n"])
    store.delete(part.path)
    with pytest.raises(CorruptPart, match=f"{part.path} is missing"):
        parts.read_part(store, part)


def test_truncated_large_part_is_reported_when_columns_are_read(store):
    noise = [hashlib.sha512(b"%d" % i).digest() for i in range(30_000)]
    part = parts.write_part(store, "entities", pa.table({"big": noise, "n": list(range(30_000))}))
    whole = store.read(part.path)
    for left in (len(whole) - 1, 1 << 20, 1000, 0):
        store.write(part.path, whole[:left])
        with pytest.raises(CorruptPart, match=part.path):
            parts.read_part(store, part, ["n"])


# journal


def test_journalled_rows_can_be_looked_up(store):
    writer = JournalWriter(store, "extract", "w1")
    for i in range(50):
        writer.append(row(i))
        writer.append(row(i, "done"))
    assert writer.pending == 100
    assert writer.flush() is not None
    assert writer.pending == 0
    assert writer.flush() is None
    index = JournalIndex.load(store, "extract")
    assert index.count_done() == 50
    assert index.rows_of_item(key(7)) == [row(7), row(7, "done")]
    assert index.rows_of_item(key(99)) == []


def test_readers_opened_before_a_compaction_still_find_their_rows(store):
    for i in range(12):
        writer = JournalWriter(store, "extract", f"w{i}")
        writer.append(row(i))
        writer.flush()
    before = JournalIndex.load(store, "extract")
    assert before.n_parts == 12
    assert compaction.compact(store, "extract") == 11
    assert len(store.list("work/extract")) == 1
    assert before.lookup(map(key, range(12))) == {key(i): [row(i)] for i in range(12)}
    assert before.n_parts == 1
    assert compaction.totals(store, "extract").by_model["m"].prompt_tokens == 120


def test_truncated_journal_part_is_reported_skipped_and_set_aside(store, caplog):
    writer = JournalWriter(store, "extract", "w")
    paths = []
    for i in range(3):
        writer.append(row(i))
        paths.append(writer.flush())
    store.write(paths[1], store.read(paths[1])[:-100])
    index = JournalIndex.load(store, "extract")
    assert index.damaged == [paths[1]]
    assert paths[1] in caplog.text
    assert set(index.lookup(map(key, range(3)))) == {key(0), key(2)}
    moved = damaged_files.set_aside(store, paths)
    assert moved == [paths[1].replace("extract/", "extract/damaged/")]
    assert store.exists(moved[0])
    assert JournalIndex.load(store, "extract").damaged == []


# snapshots


def test_committed_snapshot_is_the_latest(store):
    assert snapshots.read_latest(store) is None
    part = parts.write_part(store, "entities", pa.table({"n": [1]}))
    for n in (1, 2):
        assert snapshots.next_number(store) == n
        snapshots.commit(store, manifest(n, tables={"entities": [part]}))
    found = snapshots.open_latest(store)
    assert found == manifest(2, tables={"entities": [part]})
    assert snapshots.open_latest(store, 1).number == 1
    assert snapshots.list_numbers(store) == [1, 2]


def test_exactly_one_of_several_concurrent_commits_wins(store):
    def commit(_):
        try:
            snapshots.commit(store, manifest(1))
        except SnapshotConflict:
            return False
        return True

    assert run_concurrently(8, commit).count(True) == 1


def test_missing_and_incomplete_indexes_have_different_messages(store):
    with pytest.raises(IndexNotFound, match="no index at"):
        snapshots.open_latest(store)
    store.write("work/extract/x", b"")
    with pytest.raises(IndexNotFound, match="is incomplete"):
        snapshots.open_latest(store)


# locks


def test_second_writer_learns_who_holds_the_lock_and_since_when(store):
    with patch.object(locks, "_now", lambda: 0.0):
        lock = locks.acquire(store, "index run 7")
    clock = Clock(each=lock.beat)
    message = r"process \d+ on .*index run 7.*since 1970-01-01"
    with clock.passes(), pytest.raises(LockHeld, match=message):
        locks.acquire(store)
    assert clock.seconds < 1
    lock.check()


def test_released_lock_is_free_immediately(store):
    locks.acquire(store).release()
    clock = Clock()
    with clock.passes():
        assert locks.acquire(store).epoch == 2
    assert clock.seconds == 0


def test_writer_without_heartbeat_loses_the_lock_and_cannot_commit(store):
    paused = locks.acquire(store)
    clock = Clock()
    with clock.passes():
        taker = locks.acquire(store)
    assert locks.STALE_S <= clock.seconds < 30
    taker.check()
    with pytest.raises(LockLost, match="taken over by process"):
        snapshots.commit(store, manifest(1), check=paused.check)
    assert snapshots.read_latest(store) is None
    snapshots.commit(store, manifest(1), check=taker.check)


def test_exactly_one_of_several_concurrent_writers_gets_the_lock(store, monkeypatch):
    monkeypatch.setattr(locks, "POLL_S", 0.02)

    def start(_):
        try:
            lock = locks.acquire(store)
        except LockHeld:
            return None
        lock.keep_beating(0.02)
        return lock

    won = [lock for lock in run_concurrently(8, start) if lock]
    for lock in won:
        lock.release()
    assert [lock.epoch for lock in won] == [1]
    assert locks.find_holder(store) is None


# garbage collection


def test_listing_contains_modification_times_by_the_storage_clock(store):
    store.write("a/1", b"x")
    store.write("a/2", b"x")
    first, second = (info.modified for info in store.list("a"))
    assert first is not None and abs(second - first) < 60


def test_parts_of_removed_snapshots_are_deleted_after_the_grace_period(store):
    shared, *distinct = (parts.write_part(store, "numbers", pa.table({"n": [i]})) for i in range(4))
    for number, part in enumerate(distinct, start=1):
        snapshots.commit(store, manifest(number, tables={"numbers": [shared, part]}))
    with locks.acquire(store) as lock:
        found = gc.plan_gc(store, gc.GcOptions(keep=1), lock)
        gc.execute_gc(store, found, lock.check)
        assert snapshots.list_numbers(store) == [3] and found.snapshots == [1, 2]
        assert len(store.list("tables")) == 4, "readers may still use the removed snapshots"
        with pytest.raises(IndexNotFound, match=r"no snapshot 2. Existing snapshots: 3"):
            snapshots.open_latest(store, 2)
        found = gc.plan_gc(store, gc.GcOptions(keep=1, grace_s=0), lock)
        assert found.expired == [1, 2] and {i.path for i in found.parts} == {p.path for p in distinct[:2]}
        gc.execute_gc(store, found, lock.check)
    assert snapshots.open_latest(store).number == 3
    assert {i.path for i in store.list("tables")} == {shared.path, distinct[2].path}
    assert store.list("gc") == []


def test_newest_snapshot_is_found_after_a_gap(store):
    for number in (1, 2, 3):
        snapshots.commit(store, manifest(number))
    store.write(snapshots.HINT, b"1\n")
    gc.execute_gc(
        store,
        gc.plan_gc(store, gc.GcOptions(at_once=frozenset({2}))),
        lambda: None,
    )
    assert snapshots.list_numbers(store) == [1, 3] and snapshots.open_latest(store).number == 3


def test_gc_keeps_parts_of_steps(store):
    part = parts.write_part(store, "numbers", pa.table({"n": [1]}))
    step = {"fingerprint": "f", "tables": {"numbers": [[[part.path, 1, part.bytes]]]}, "counts": {"n": 1}}
    snapshots.commit(store, manifest(1, steps={"read": step}))
    assert gc.plan_gc(store, gc.GcOptions(grace_s=0)).parts == []


def test_commit_after_planning_stops_gc(store):
    for number in (1, 2):
        part = parts.write_part(store, "numbers", pa.table({"n": [number]}))
        snapshots.commit(store, manifest(number, tables={"numbers": [part]}))
    found = gc.plan_gc(store, gc.GcOptions(keep=1, grace_s=0))
    snapshots.commit(store, manifest(3, tables={"numbers": [part]}))
    with pytest.raises(StoreError, match="changed during garbage collection"):
        gc.execute_gc(store, found, lambda: None)
    assert len(store.list("tables")) == 2


def test_file_without_a_time_is_removed_only_without_grace_period(store, monkeypatch):
    snapshots.commit(store, manifest(1))
    parts.write_part(store, "numbers", pa.table({"n": [1]}))
    listed = Store.list
    monkeypatch.setattr(
        Store, "list", lambda self, at="": [FileInfo(i.path, i.bytes) for i in listed(self, at)]
    )
    found = gc.plan_gc(store, gc.GcOptions())
    assert (found.parts, len(found.waiting), found.waiting_until) == ([], 1, None)
    assert len(gc.plan_gc(store, gc.GcOptions(grace_s=0)).parts) == 1


@pytest.mark.parametrize("removed", [True, False])
def test_paused_writer_undoes_its_commit_if_parts_were_removed(store, removed):
    """Another writer takes over between the check and the commit, and its gc removes the new parts."""
    old = parts.write_part(store, "old", pa.table({"n": [1]}))
    snapshots.commit(store, manifest(1, tables={"old": [old]}))
    new = parts.write_part(store, "new", pa.table({"n": [1]}))
    looks = []

    def check_and_pause():
        looks.append(None)
        if len(looks) == 2:
            raise LockLost("taken over")
        gc.execute_gc(store, gc.plan_gc(store, gc.GcOptions(grace_s=0)), lambda: None)

    late = manifest(2, tables={"new": [new]} if removed else {"old": [old]})
    if removed:
        with pytest.raises(LockLost):
            snapshots.commit(store, late, check=check_and_pause)
    else:
        snapshots.commit(store, late, check=check_and_pause)
    assert snapshots.list_numbers(store) == ([1] if removed else [1, 2])


def test_commit_during_part_deletion_is_undone(store, monkeypatch):
    one = parts.write_part(store, "numbers", pa.table({"n": [1]}))
    snapshots.commit(store, manifest(1, tables={"numbers": [one]}))
    orphan = parts.write_part(store, "numbers", pa.table({"n": [2]}))
    deleted = Store.delete

    def delete(self, path):
        if path == orphan.path:
            snapshots.commit(store, manifest(2, tables={"numbers": [orphan]}))
        deleted(self, path)

    monkeypatch.setattr(Store, "delete", delete)
    with pytest.raises(StoreError, match=r"Snapshot 2 .*removed again"):
        gc.execute_gc(store, gc.plan_gc(store, gc.GcOptions(grace_s=0)), lambda: None)
    assert snapshots.open_latest(store).number == 1
