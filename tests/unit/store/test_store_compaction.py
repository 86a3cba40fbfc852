import hashlib
import threading
import tracemalloc
from collections import defaultdict

import numpy as np
import pytest
from faulty import InMemory, faulty
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import LockLost, StoreError
from graphrag_ray.store import compaction, damaged_files, journal, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import KINDS, JournalRow, resolve, to_table


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path))


def key(i):
    return hashlib.sha256(b"%d" % i).hexdigest()


def row(i, at=None, kind="turn", **fields):
    return JournalRow(
        **{"key": key(i), "turn": 0, "slot": 0, "request_hash": "h", "kind": kind, "at": at or 1000.0 + i}
        | {"reply": f"reply {i}", "model": "m", "prompt_tokens": 10, "completion_tokens": 1}
        | fields
    )


def write(store, *rows, writer="w"):
    out = JournalWriter(store, "extract", writer)
    for r in rows:
        out.append(r)
    return out.flush()


def list_files(store):
    return [info.path for info in store.list("work/extract")]


def test_merged_rows_are_sorted_by_time(store):
    write(store, row(5), row(1), writer="a")
    write(store, row(4), row(2), writer="b")
    compaction.compact(store, "extract", at_least=1)
    (path,) = list_files(store)
    assert journal.cache.get(store, path).table.column("at").to_pylist() == [1001.0, 1002.0, 1004.0, 1005.0]


def test_few_small_parts_are_not_merged(store):
    for i in range(7):
        write(store, row(i), writer=f"w{i}")
    assert compaction.compact(store, "extract") == 0
    assert len(list_files(store)) == 7


def test_large_parts_are_not_rewritten_and_part_sizes_are_limited(store, monkeypatch):
    monkeypatch.setattr(compaction, "TARGET_BYTES", 25_000)
    monkeypatch.setattr(compaction, "SMALL_BYTES", 3_000)
    for i in range(40):
        write(store, row(i, reply=hashlib.sha512(b"%d" % i).hexdigest() * 8), writer=f"w{i}")
    compaction.compact(store, "extract")
    merged = list_files(store)
    assert 1 < len(merged) < 10
    assert all(journal.cache.get(store, path).table.nbytes <= 25_000 for path in merged)
    write(store, row(100), writer="late")
    write(store, row(101), writer="later")
    compaction.compact(store, "extract", at_least=1)
    assert set(merged[:-1]) < set(list_files(store))
    assert len(JournalIndex.load(store, "extract").lookup(map(key, range(102)))) == 42


def test_merged_part_sorts_after_its_sources(store):
    """A listing in order of names that misses a source must still find the merged part."""
    for i in range(30):
        before = list_files(store)
        before.append(write(store, row(i, at=1000.0 + i // 4), writer=f"w-{i % 7}"))
        if i % 3 == 2:
            compaction.compact(store, "extract", at_least=1)
            (merged,) = list_files(store)
            assert merged > max(before)


def test_listing_during_a_merge_misses_no_row(store, monkeypatch):
    """The listing passes the merged part before it is written, and its sources after they are deleted."""
    for i in range(3):
        write(store, row(i), writer=f"w{i}")
    real, calls = Store.list, []

    def list_(self, folder=""):
        if not calls:
            calls.append(folder)
            compaction.compact(store, "extract", at_least=1)
            return []
        return real(self, folder)

    monkeypatch.setattr(Store, "list", list_)
    index = JournalIndex.load(store, "extract")
    assert (index.n_parts, len(index.lookup(map(key, range(3))))) == (1, 3)


class ConcurrentFiles(InMemory):
    """Blocks reads and deletions until enough of them are concurrent."""

    def __init__(self, n):
        super().__init__()
        self.gate, self.shut = threading.Barrier(n), False

    def read(self, path):
        return self.wait_for_others(path, super().read)

    def delete(self, path):
        return self.wait_for_others(path, super().delete)

    def wait_for_others(self, path, do):
        if self.shut and "~" not in path:
            self.gate.wait(timeout=60)
        return do(path)


def test_parts_are_read_and_deleted_concurrently():
    store, disk = faulty(inner=ConcurrentFiles(4))
    for i in range(60):
        write(store, row(i), writer=f"w{i}")
    disk.inner.shut = True
    assert compaction.compact(store, "extract") == 59
    (path,) = list_files(store)
    assert journal.cache.get(store, path).table.num_rows == 60


def test_read_ahead_is_limited(store, monkeypatch):
    parts = [write(store, row(i), writer=f"w{i}") for i in range(20)]
    size = max(info.bytes for info in store.list("work/extract"))
    monkeypatch.setattr(compaction, "READ_AHEAD_BYTES", 4 * size)
    monkeypatch.setattr(compaction, "TARGET_BYTES", 1)
    read, real = [], Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: read.append(path) or real(self, path))
    groups = compaction._groups(store, store.list("work/extract"), print)
    for used, _ in enumerate(groups):
        assert len(read) <= used + 6
    assert sorted(read) == sorted(parts)


def test_many_parts_are_merged_in_pieces(store, monkeypatch):
    monkeypatch.setattr(compaction, "PIECE_PARTS", 8)
    for i in range(20):
        write(store, row(i), writer=f"w{i}")
    pieces = compaction.find_mergeable(store, "extract")
    assert [len(piece) for piece in pieces] == [6, 7, 7]
    for piece in reversed(pieces):
        assert compaction.merge_parts(store, "extract", piece, lambda: None, print) == len(piece) - 1
    assert len(list_files(store)) == 3 and not compaction.find_mergeable(store, "extract")
    assert len(JournalIndex.load(store, "extract").lookup(map(key, range(20)))) == 20


class Killed(BaseException):
    pass


@pytest.mark.parametrize("survived", range(5))
def test_merge_killed_at_any_step_neither_loses_nor_duplicates_rows(store, monkeypatch, survived):
    for i in range(4):
        write(store, row(i), row(i, kind="done", at=2000.0), writer=f"w{i}")
    real, calls, one = Store.delete, [], threading.Lock()

    def delete(self, path):
        with one:
            if len(calls) >= survived:
                raise Killed
            calls.append(path)
        real(self, path)

    monkeypatch.setattr(Store, "delete", delete)
    if survived < 4:
        with pytest.raises(Killed):
            compaction.compact(store, "extract", at_least=1)
    else:
        compaction.compact(store, "extract", at_least=1)
    monkeypatch.undo()
    assert len(list_files(store)) == 5 - survived
    for _ in range(2):
        assert JournalIndex.load(store, "extract").lookup(map(key, range(4))) == {
            key(i): [row(i), row(i, kind="done", at=2000.0)] for i in range(4)
        }
        counted = compaction.totals(store, "extract")
        assert (counted.items, counted.done, counted.by_model["m"].calls) == (4, 4, 4)
        compaction.compact(store, "extract", at_least=1)
    assert len(list_files(store)) == 1


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_merge_without_the_lock_deletes_nothing(store, looks):
    for i in range(3):
        write(store, row(i), writer=f"w{i}")
    remaining = [None] * looks

    def check():
        if not remaining:
            raise LockLost("taken over")
        remaining.pop()

    before = list_files(store)
    with pytest.raises(LockLost):
        compaction.compact(store, "extract", at_least=1, check=check)
    assert set(before) <= set(list_files(store))


def test_merged_part_that_cannot_be_read_back_replaces_nothing(store, monkeypatch, caplog):
    """A delayed deletion could remove the part after the next merge has written it again."""
    paths = [write(store, row(i), writer=f"w{i}") for i in range(3)]
    real, deleted = Store.write, []
    monkeypatch.setattr(Store, "write", lambda self, path, data: real(self, path, data[:-1]))
    monkeypatch.setattr(Store, "delete", lambda self, path: deleted.append(path))
    assert compaction.compact(store, "extract", at_least=1) == 0
    torn = [path for path in list_files(store) if path not in paths]
    assert len(torn) == 1 and len(list_files(store)) == 4 and deleted == []
    assert "cannot be read back" in caplog.text
    monkeypatch.undo()
    assert len(JournalIndex.load(store, "extract").lookup(map(key, range(3)))) == 3
    assert compaction.compact(store, "extract", at_least=1) == 2
    assert list_files(store) == torn
    assert len(JournalIndex.load(store, "extract").lookup(map(key, range(3)))) == 3


def test_truncated_read_back_is_retried(store, monkeypatch, caplog):
    for i in range(3):
        write(store, row(i), writer=f"w{i}")
    real, cut = Store.read, []

    def read(self, path):
        data = real(self, path)
        if "~" in path and len(cut) < parquet.READ_ATTEMPTS - 1:
            cut.append(path)
            return data[:-1]
        return data

    monkeypatch.setattr(Store, "read", read)
    assert compaction.compact(store, "extract", at_least=1) == 2
    assert len(list_files(store)) == 1 and cut and not caplog.records


def test_damaged_part_is_neither_merged_nor_deleted(store, caplog):
    paths = [write(store, row(i), writer=f"w{i}") for i in range(3)]
    store.write(paths[1], b"PAR1")
    assert compaction.compact(store, "extract", at_least=1) == 1
    assert paths[1] in list_files(store)
    assert paths[1] in caplog.text
    assert set(JournalIndex.load(store, "extract").lookup(map(key, range(3)))) == {key(0), key(2)}


def test_intact_part_is_not_set_aside(store):
    path = write(store, row(1))
    assert damaged_files.set_aside(store, [path, "work/extract/gone"]) == []
    assert list_files(store) == [path]


def test_readers_see_all_rows_during_writes_and_merges(store):
    """A load contains everything flushed before it."""
    flushed, failures, stop = [0], [], threading.Event()

    def keep_writing():
        writer = JournalWriter(store, "extract", "w")
        for i in range(150):
            writer.append(row(i))
            writer.flush()
            flushed[0] = i + 1
        stop.set()

    def keep_reading():
        while not stop.is_set():
            known = flushed[0]
            found = JournalIndex.load(store, "extract").lookup(map(key, range(known)))
            if len(found) != known:
                failures.append((known, len(found)))

    threads = [threading.Thread(target=f) for f in (keep_writing, keep_reading)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        compaction.compact(store, "extract", at_least=4)
    for thread in threads:
        thread.join()
    assert failures == []


def test_totals_count_paid_replies_by_model(store):
    write(
        store,
        row(1, cached_tokens=4, latency_s=0.5, attempts=2),
        row(1, at=3000.0, reported=False),  # a hedged call, also paid
        row(2, model="n"),
        row(1, kind="done", at=3000.0, model=""),
        row(3, kind="failed", model="m"),
        row(2, kind="failed"),
        row(2, kind="done", at=4000.0),
    )
    found = compaction.totals(store, "extract")
    assert (found.items, found.done, found.failed, found.parts) == (3, 2, 1, 1)
    assert (found.first_at, found.last_at) == (1001.0, 4000.0)
    assert found.by_model == {
        "m": compaction.ModelTotals(
            calls=2,
            attempts=3,
            prompt_tokens=20,
            cached_tokens=4,
            completion_tokens=2,
            unreported=1,
            latency_s=0.5,
        ),
        "n": compaction.ModelTotals(calls=1, attempts=1, prompt_tokens=10, completion_tokens=1),
    }


def test_totals_during_a_merge_count_every_row_once(store, monkeypatch):
    for i in range(6):
        write(store, row(i), row(i, kind="done", at=2000.0), writer=f"w{i}")
    before = compaction.totals(store, "extract")
    real, read, one = parquet.read_columns, [], threading.Lock()

    def merge_first(*args):
        with one:
            if len(read) == 2:
                assert compaction.compact(store, "extract", at_least=1) == 5
            read.append(args)
        return real(*args)

    monkeypatch.setattr(parquet, "read_columns", merge_first)
    found = compaction.totals(store, "extract")
    assert (found.parts, found.damaged) == (1, [])
    assert (found.items, found.done, found.by_model) == (before.items, before.done, before.by_model)
    assert (found.first_at, found.last_at) == (before.first_at, before.last_at) == (1000.0, 2000.0)


def test_totals_need_little_memory_per_row(store):
    for part in range(10):
        write(store, *[row(part * 3000 + i) for i in range(3000)], writer=f"w{part}")
    tracemalloc.start()
    found = compaction.totals(store, "extract")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.items == found.by_model["m"].calls == 30_000
    assert peak < 30_000 * 40 + 3000 * 500


def test_totals_list_damaged_parts(store):
    path = write(store, row(1))
    store.write(path, store.read(path)[:-5])
    assert compaction.totals(store, "extract").damaged == [path]


# random sequences


some_rows = st.builds(
    row,
    st.integers(0, 3),
    at=st.sampled_from([1.0, 2.0]),
    kind=st.sampled_from(["turn", "turn", "done", "failed"]),
    turn=st.integers(0, 1),
    reply=st.sampled_from(["x", "y"]),
    prompt_tokens=st.integers(1, 2),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.lists(some_rows, min_size=1, max_size=4)),
        st.tuples(
            st.just("flush"), st.integers(0, 1), st.sampled_from(["ok", "ok", "refused", "unanswered"])
        ),
        st.tuples(st.just("compact"), st.integers(0, 4), st.none()),
    ),
    max_size=15,
)
_example = iter(range(10**9))


@given(steps)
def test_any_sequence_of_flushes_faults_and_merges_preserves_the_rows(sequence):
    store = Store(f"memory://journal-{next(_example)}")
    writers = [JournalWriter(store, "extract", f"w{i}") for i in range(2)]
    early = JournalIndex.load(store, "extract")
    all_rows = []
    for step, number, argument in sequence:
        if step == "append":
            for r in argument:
                writers[number].append(r)
            all_rows += argument
        elif step == "flush":
            flush(writers[number], argument)
        else:
            compact_until_killed(store, number)
    for writer in writers:
        writer.flush()
    by_key = defaultdict(list)
    for r in all_rows:
        by_key[r.key].append(r)
    expected = {k: resolve(rows) for k, rows in by_key.items()}
    index = JournalIndex.load(store, "extract")
    assert index.lookup(map(key, range(4))) == expected
    assert index.count_done() == sum(any(r.kind == "done" for r in rows) for rows in by_key.values())
    before = compaction.totals(store, "extract")
    compaction.compact(store, "extract", at_least=1)
    assert index.lookup(map(key, range(4))) == expected
    after = compaction.totals(store, "extract")
    assert (before.by_model, before.items, before.done) == (after.by_model, after.items, after.done)
    paid = {r for r in all_rows if r.kind == "turn"}
    assert sum(m.calls for m in after.by_model.values()) == len(
        {(r.key, r.at, r.turn, r.prompt_tokens) for r in paid}
    )
    early.lookup(map(key, range(4)))


def flush(writer, outcome):
    """Write, fail, or write and lose the response."""
    real = Store.write

    def faulty(self, path, data):
        if outcome == "unanswered":
            real(self, path, data)
        raise StoreError(outcome)

    if outcome == "ok":
        writer.flush()
        return
    Store.write = faulty
    try:
        writer.flush()
    except StoreError:
        pass
    finally:
        Store.write = real


def compact_until_killed(store, deletions):
    real, done = Store.delete, []

    def delete(self, path):
        if len(done) >= deletions:
            raise Killed
        done.append(path)
        real(self, path)

    Store.delete = delete
    try:
        compaction.compact(store, "extract", at_least=1)
    except Killed:
        pass
    finally:
        Store.delete = real


# distinct values


values = st.integers(0, 2**64 - 1) | st.integers(0, 20)


@given(st.lists(st.lists(values, max_size=30), max_size=12))
def test_first_occurrence_of_a_value_is_new(batches):
    met, known = compaction._DistinctValues(), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in known)
            known.add(value)
        assert met.add(np.array(batch, dtype=np.uint64)).tolist() == expected
        assert sum(map(len, met.runs)) == len(known)


def test_small_batches_are_merged_into_few_runs():
    met = compaction._DistinctValues()
    for start in range(0, 30_000, 30):
        met.add(np.arange(start, start + 30, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert sum(map(len, met.runs)) == 30_000 and len(met.runs) < 15


told_apart = st.builds(
    row,
    st.integers(0, 20),
    at=st.floats(1, 1e10),
    turn=st.integers(0, 2**31 - 1),
    reported=st.booleans(),
    kind=st.sampled_from(KINDS),
)


@given(st.lists(told_apart | some_rows, max_size=40))
def test_equal_rows_have_equal_hashes(rows):
    distinct_rows = {(r.key, r.at, r.turn, r.kind, r.reported, r.prompt_tokens) for r in rows}
    assert len(np.unique(compaction._row_hashes(to_table(rows)))) == len(distinct_rows)


def test_similar_rows_have_different_hashes():
    rows = [
        JournalRow(key(0), at % 20, at // 400, "h", "turn", 1.7e9 + (at % 400 // 20) / 1024)
        for at in range(50_000)
    ]
    assert len(np.unique(compaction._row_hashes(to_table(rows)))) == 50_000
