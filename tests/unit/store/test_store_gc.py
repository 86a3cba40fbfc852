"""Garbage collection and trimming of journals, killed at every operation."""

import hashlib
import shutil

import numpy as np
import pyarrow as pa
import pytest

from graphrag_ray.base.errors import StoreError
from graphrag_ray.store import (
    compaction,
    gc,
    index_files,
    journal,
    journal_rows,
    locks,
    parts,
    snapshots,
)
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow
from graphrag_ray.store.snapshots import Manifest


class Killed(BaseException):
    pass


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "index"))


def key(i):
    return hashlib.sha256(b"%d" % i).hexdigest()


def prefixes(*numbers):
    return np.sort(journal_rows.key_prefixes([key(i) for i in numbers]))


def snapshot(store, number, *values):
    stored = [parts.write_part(store, "numbers", pa.table({"n": [v]})) for v in values]
    steps = {"read": {"fingerprint": "", "tables": {"more": [[[stored[0].path, 1, stored[0].bytes]]]}}}
    tables = {"numbers": stored}
    snapshots.commit(store, Manifest(number, number - 1 or None, "", "0", tables=tables, steps=steps))


def numbers_in(store, number):
    return parts.read_table(store, snapshots.load(store, number).parts("numbers"))["n"].to_pylist()


@pytest.fixture
def kill_at(monkeypatch):
    """Kill the process at the n-th change to a store."""
    left = [None]

    def wrap(operation):
        def count_and_maybe_kill(self, path, *data):
            if left[0] is not None and not path.startswith("locks/"):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
            return operation(self, path, *data)

        return count_and_maybe_kill

    for name in ("write", "create", "delete"):
        monkeypatch.setattr(Store, name, wrap(getattr(Store, name)))
    return left


@pytest.mark.parametrize("grace_s", [0.0, 3600.0])
def test_gc_killed_at_any_operation_keeps_live_snapshots_and_can_be_repeated(store, kill_at, grace_s):
    for number in (1, 2, 3, 4):
        snapshot(store, number, 0, number, number + 1)
    parts.write_part(store, "numbers", pa.table({"n": [99]}))
    store.write("work/extract/damaged/x.parquet", b"")
    saved = store.url + "-saved"
    shutil.copytree(store.url, saved)
    options = gc.GcOptions(keep=2, grace_s=grace_s, damaged=True)
    for moment in range(100):
        shutil.rmtree(store.url)
        shutil.copytree(saved, store.url)
        kill_at[0] = moment
        try:
            gc.execute_gc(store, gc.plan_gc(store, options), lambda: None)
            done = True
        except Killed:
            done = False
        kill_at[0] = None
        numbers = snapshots.list_numbers(store)
        assert {3, 4} <= set(numbers) and snapshots.open_latest(store).number == 4
        assert all(numbers_in(store, n) == [0, n, n + 1] for n in numbers)
        gc.execute_gc(store, gc.plan_gc(store, options), lambda: None)
        gc.execute_gc(
            store,
            gc.plan_gc(store, gc.GcOptions(keep=2, grace_s=0)),
            lambda: None,
        )
        assert snapshots.list_numbers(store) == [3, 4] and store.list("gc") == []
        assert sorted(numbers_in(store, 3) + numbers_in(store, 4)) == [0, 0, 3, 4, 4, 5]
        assert len(store.list("tables")) == 4
        if done:
            break
    assert done and moment >= 5


def test_gc_deletes_cached_copies_of_removed_remote_parts(tmp_path, monkeypatch):
    monkeypatch.setenv(index_files.CACHE_DIR_ENV, str(tmp_path / "cache"))
    far = Store(f"memory://{tmp_path.name}-{id(tmp_path)}")
    shards = [index_files.write_index_file(far, "numbers", f"a{n}", b"%d" % n, rows=1) for n in (1, 2)]
    for number, shard in enumerate(shards, 1):
        index_files.open_part(far, shard)
        earlier = tmp_path / "cache" / (index_files._copy_prefix(far, shard.path) + index_files.SUFFIX)
        earlier.write_bytes(b"as versions before named it")
        snapshots.commit(far, Manifest(number, number - 1 or None, "", "0", tables={"numbers": [shard]}))
    gc.execute_gc(
        far,
        gc.plan_gc(far, gc.GcOptions(at_once=frozenset({1}))),
        lambda: None,
    )
    remaining = {path.name for path in (tmp_path / "cache").iterdir()}
    assert remaining == {index_files._copy_name(far, shards[1]), earlier.name}


def test_ages_use_only_the_storage_clock(store, monkeypatch):
    """This machine's clock is years ahead."""
    for number in (1, 2):
        snapshot(store, number, number)
    parts.write_part(store, "numbers", pa.table({"n": [99]}))
    monkeypatch.setattr(gc.time, "time", lambda: 2e9)
    with locks.acquire(store) as lock:
        found = gc.plan_gc(store, gc.GcOptions(keep=1, older_than_s=60.0), lock)
        assert found.snapshots == [] and found.parts == [] and len(found.waiting) == 1


def write(store, *numbers, writer="w"):
    out = JournalWriter(store, "extract", writer)
    for i in numbers:
        for turn in range(2):
            out.append(JournalRow(key(i), turn, 0, f"h{turn}", "turn", 1000.0 + i, reply=f"reply {i}"))
    return out.flush()


def test_trim_removes_items_and_keeps_the_rows_of_others(store):
    write(store, 1, 2, writer="a")
    untouched = write(store, 3, writer="b")
    write(store, 4, 5, writer="c")
    seen = compaction.plan_trim(store, "extract", prefixes(2, 3))
    found = compaction.trim(store, "extract", prefixes(2, 3), drop_damaged=False, check=lambda: None)
    assert (seen, found.items, found.rows, len(found.parts)) == (found, 3, 6, 2)
    index = JournalIndex.load(store, "extract")
    assert set(index.lookup(map(key, range(9)))) == {key(2), key(3)}
    assert [len(index.rows_of_item(key(i))) for i in (2, 3)] == [2, 2]
    left = [info.path for info in store.list("work/extract")]
    assert untouched in left and len(left) == 2
    assert all(journal.PART_NAME.fullmatch(path.rsplit("/", 1)[-1]) for path in left)


def test_trim_killed_at_any_operation_loses_no_kept_item_and_can_be_repeated(store, kill_at):
    for i in range(6):
        write(store, 2 * i, 2 * i + 1, writer=f"w{i}")
    keep = [0, 3, 4, 5]
    for moment in range(50):
        kill_at[0] = moment
        try:
            compaction.trim(store, "extract", prefixes(*keep), drop_damaged=False, check=lambda: None)
            break
        except Killed:
            kill_at[0] = None
            index = JournalIndex.load(store, "extract")
            assert all(len(index.rows_of_item(key(i))) == 2 for i in keep)
    kill_at[0] = None
    index = JournalIndex.load(store, "extract")
    assert set(index.lookup(map(key, range(12)))) == set(map(key, keep))
    assert moment > 3


def test_damaged_part_is_only_removed_on_request(store):
    path = write(store, 1)
    store.write(path, b"PAR1 and no more")
    assert not compaction.trim(store, "extract", prefixes(1), drop_damaged=False, check=lambda: None).damaged
    assert [info.path for info in store.list("work/extract")] == [path]
    assert compaction.trim(store, "extract", prefixes(1), drop_damaged=True, check=lambda: None).damaged
    assert store.list("work/extract") == []


def test_part_that_cannot_be_rewritten_is_kept_and_reported(store, monkeypatch):
    path = write(store, 1, 2)
    monkeypatch.setattr(compaction, "_merge", lambda *_: False)
    with pytest.raises(StoreError, match="Cannot rewrite"):
        compaction.trim(store, "extract", prefixes(1), drop_damaged=False, check=lambda: None)
    assert [info.path for info in store.list("work/extract")] == [path]
