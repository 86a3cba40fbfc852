import hashlib
import pickle
import random
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import StoreError
from graphrag_ray.store import compaction, journal, parquet
from graphrag_ray.store import journal_rows as rows_module
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow, resolve


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path))


@pytest.fixture(autouse=True)
def _cold_cache():
    journal.cache.clear()


def key(i):
    return hashlib.sha256(b"%d" % i).hexdigest()


def row(i, kind="turn", at=1000.0, **fields):
    reply = f"reply {i}" if kind == "turn" else None
    return JournalRow(
        **{"key": key(i), "turn": 0, "slot": 0, "request_hash": key(i), "kind": kind, "at": at}
        | {"reply": reply, "model": "m"}
        | fields
    )


def write(store, *rows, writer="w", dialogue="extract"):
    out = JournalWriter(store, dialogue, writer)
    for r in rows:
        out.append(r)
    return out.flush()


# rows


full_rows = st.builds(
    JournalRow,
    key=st.integers(0, 4).map(key),
    turn=st.integers(0, 2),
    slot=st.integers(0, 1),
    request_hash=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["turn", "turn", "turn", "done", "failed"]),
    at=st.sampled_from([1.0, 2.0, 3.5]),
    reply=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    vector=st.none() | st.binary(max_size=5),
    prompt_tokens=st.integers(0, 2),
    model=st.sampled_from(["m", "n"]),
    error=st.none() | st.just("e"),
    retryable=st.booleans(),
)


@given(st.lists(full_rows, max_size=20))
def test_rows_round_trip(rows):
    table = rows_module.to_table(rows)
    table.validate(full=True)
    store = Store("memory://rows")
    path = f"x-{parquet.content_hash(parquet.encode(table))}.parquet"
    store.write(path, parquet.encode(table))
    assert rows_module.from_table(parquet.read_whole(store, path)) == rows


@given(st.lists(full_rows, max_size=12), st.randoms(use_true_random=False))
def test_order_and_duplicates_of_rows_do_not_matter(rows, shuffle):
    shuffled = rows + shuffle.sample(rows, len(rows) // 2)
    shuffle.shuffle(shuffled)
    resolved = resolve(rows)
    assert resolve(shuffled) == resolved
    assert resolve(resolved) == resolved
    assert set(resolved) <= set(rows)


def test_earliest_reply_counts_and_all_failures_are_kept():
    late, early = row(1, at=2.0, reply="late"), row(1, at=1.0, reply="early")
    failures = [row(1, "failed", at=5.0, error="x"), row(1, "failed", at=4.0, error="y")]
    done = row(1, "done", at=9.0)
    other_request = row(1, at=3.0, request_hash="another prompt")
    rows = [done, late, *failures, other_request, early]
    assert resolve(rows) == [
        *sorted([early, other_request], key=lambda r: r.request_hash),
        *failures[::-1],
        done,
    ]


def test_simultaneous_replies_are_chosen_by_hash():
    rows = [row(1, reply=reply) for reply in "abcdef"]
    smallest = min(rows, key=lambda r: hashlib.sha256(r.reply.encode()).hexdigest())
    for _ in range(5):
        random.shuffle(rows)
        assert resolve(rows) == [smallest]


@pytest.mark.parametrize(
    "change",
    [
        {"key": "abc"},
        {"key": key(1).upper()},
        {"kind": "other"},
        {"at": float("nan")},
        {"at": 1e12},
        {"turn": -1},
        {"slot": 2**31},
        {"completion_tokens": 2**63},
        {"cached_tokens": -1},
        {"model": None},
        {"latency_s": float("inf")},
    ],
)
def test_invalid_row_is_refused_on_append(store, change):
    writer = JournalWriter(store, "extract", "w")
    writer.append(row(1))
    with pytest.raises(ValueError, match=r"journal row|item key"):
        writer.append(replace(row(2), **change))
    assert writer.pending == 1
    assert writer.flush()


def test_lone_surrogate_in_a_reply_is_replaced(store):
    write(store, row(1, reply="a\ud800b"))
    assert JournalIndex.load(store, "extract").rows_of_item(key(1))[0].reply == "a?b"


# writing


def test_rows_of_a_failed_flush_are_kept_and_written_once(store, monkeypatch):
    writer = JournalWriter(store, "extract", "w")
    real = Store.write

    def write_then_fail(self, path, data):
        real(self, path, data)
        raise StoreError("the answer was lost")

    writer.append(row(1))
    monkeypatch.setattr(Store, "write", write_then_fail)
    for _ in range(2):
        with pytest.raises(StoreError):
            writer.flush()
        assert writer.pending == 1
    writer.append(row(2))
    assert writer.pending == 2
    monkeypatch.setattr(Store, "write", real)
    writer.flush()
    assert writer.pending == 0
    index = JournalIndex.load(store, "extract")
    assert index.n_parts == 2
    assert index.lookup([key(1), key(2)]) == {key(1): [row(1)], key(2): [row(2)]}
    assert compaction.totals(store, "extract").by_model["m"].calls == 2


def test_rows_appended_while_another_thread_flushes_are_all_written(store):
    writer = JournalWriter(store, "extract", "w")
    stop = threading.Event()

    def keep_flushing():
        while not stop.is_set():
            writer.flush()

    flushers = [threading.Thread(target=keep_flushing) for _ in range(2)]
    for thread in flushers:
        thread.start()
    for i in range(2000):
        writer.append(row(i))
    stop.set()
    for thread in flushers:
        thread.join()
    writer.flush()
    found = JournalIndex.load(store, "extract").lookup(map(key, range(2000)))
    assert found == {key(i): [row(i)] for i in range(2000)}
    assert compaction.totals(store, "extract").by_model["m"].calls == 2000


def test_large_backlog_is_written_as_several_parts(store, monkeypatch):
    monkeypatch.setattr(journal, "FLUSH_BYTES", 5000)
    write(store, *[row(i, at=1000.0 + i, reply="x" * 1000) for i in range(20)])
    index = JournalIndex.load(store, "extract")
    assert index.n_parts == 7
    assert len(index.lookup(map(key, range(20)))) == 20


def test_part_names_sort_by_time_and_contain_the_writer(store):
    late = write(store, row(1, at=2000.0), writer="a")
    early = write(store, row(2, at=999.9), row(3, at=1500.0), writer="node-7_2")
    assert early < late
    assert early.startswith("work/extract/part-0000000999900-node-7_2-000000-")


def test_invalid_names_are_refused(store):
    for bad in ("", "a/b", "..", "a b"):
        with pytest.raises(ValueError, match="letters"):
            JournalWriter(store, bad, "w")
        with pytest.raises(ValueError, match="letters"):
            JournalWriter(store, "extract", bad)


# reading


def test_keys_with_equal_prefixes_are_distinguished(store):
    a, b = "0" * 64, "0" * 63 + "1"
    write(store, row(1, key=a), row(2, key=b))
    index = JournalIndex.load(store, "extract")
    assert index.rows_of_item(a) == [row(1, key=a)]
    assert index.rows_of_item(b) == [row(2, key=b)]
    assert index.rows_of_item("0" * 63 + "2") == []


def test_rows_of_an_item_are_collected_from_many_parts(store):
    for turn in range(5):
        write(store, row(1, turn=turn, at=1000.0 + turn), row(turn + 10), writer=f"w{turn}")
    index = JournalIndex.load(store, "extract")
    assert [r.turn for r in index.rows_of_item(key(1))] == [0, 1, 2, 3, 4]
    assert sum(len(part.prefixes) for part in index._parts.values()) == 10


def test_lookup_does_not_search_every_part(store):
    for i in range(5):
        write(store, row(i), writer=f"w{i}")
    index = JournalIndex.load(store, "extract")
    for part in index._parts.values():
        object.__setattr__(part, "prefixes", None)
    assert index.lookup([key(3), key(9), key(1)]) == {key(3): [row(3)], key(1): [row(1)]}


def test_batch_lookup_reads_each_part_once(store, monkeypatch):
    for i in range(3):
        write(store, *[row(j) for j in range(i, 300, 3)], writer=f"w{i}")
    index = JournalIndex.load(store, "extract")
    reads = []
    real = parquet.read_whole
    monkeypatch.setattr(parquet, "read_whole", lambda *a: reads.append(a) or real(*a))
    assert len(index.lookup(map(key, range(300)))) == 300
    assert len(reads) == 3
    index.lookup(map(key, range(300)))
    assert len(reads) == 3


def test_cache_evicts_the_least_recently_used_part(store):
    paths = [write(store, row(i, reply="x" * 10_000), writer=f"w{i}") for i in range(4)]
    cache = journal.Cache(limit_bytes=25_000)
    for path in (paths[0], paths[1], paths[0], paths[2], paths[3]):
        cache.get(store, path)
    assert [path for _, path in cache._parts] == [paths[2], paths[3]]
    assert cache._size == sum(d.nbytes for d in cache._parts.values()) < 25_000


def test_done_and_failed_items_are_counted_without_reading_replies(store, monkeypatch):
    write(store, row(1), row(1, "done"), row(2), row(3, "failed", error="x"), writer="a")
    write(store, row(1, "done", at=2000.0), row(4, "failed"), row(4, "done"), writer="b")
    index = JournalIndex.load(store, "extract")
    monkeypatch.setattr(Store, "read", None)
    assert index.count_done() == 2
    assert index.is_done([key(i) for i in (1, 2, 3, 4, 5)]).tolist() == [True, False, False, True, False]
    assert index.is_done([]).tolist() == []


def test_done_items_are_computed_once_per_load(store, monkeypatch):
    write(store, row(1, "done"), row(2, "done"), writer="a")
    write(store, row(2, "retry", at=3000.0), row(2, "done", at=4000.0), row(3, "killed"), writer="b")
    index = JournalIndex.load(store, "extract")
    found, real = [], JournalIndex._with_kind
    monkeypatch.setattr(JournalIndex, "_with_kind", lambda self, kind: found.append(kind) or real(self, kind))
    for _ in range(3):
        assert index.is_done([key(1), key(2), key(3)]).tolist() == [True, True, False]
    assert found == ["done", "retry"] and index.any_killed
    write(store, row(3, "done"), writer="c")
    compaction.compact(store, "extract", at_least=1)
    journal.cache.clear()
    index.rows_of_item(key(1))
    assert index.is_done([key(3)]).tolist() == [True] and len(found) == 4


def test_any_killed_reads_no_entries(store):
    write(store, row(1), row(2, "killed"))
    index = JournalIndex.load(store, "extract")
    for part in index._parts.values():
        object.__setattr__(part, "flags", None)
    assert index.any_killed


def test_index_with_an_added_part_equals_a_reloaded_one(store):
    write(store, *[row(i) for i in range(0, 50, 2)], writer="a")
    index = JournalIndex.load(store, "extract")
    new = [*[row(i) for i in range(0, 50, 5)], row(3, "done"), row(7, "killed"), row(7)]
    path = write(store, *new, writer="b")
    extended, again = index.with_part(path, new), JournalIndex.load(store, "extract")
    assert extended.lookup(map(key, range(50))) == again.lookup(map(key, range(50)))
    assert (extended.n_parts, extended.count_done(), extended.any_killed) == (2, 1, True)
    assert extended._parts.keys() == again._parts.keys()
    for name in ("prefixes", "flags"):
        assert getattr(extended._parts[path], name).tolist() == getattr(again._parts[path], name).tolist()
    assert extended.with_part(path, new) is extended


def test_reloading_reads_only_new_parts(store, monkeypatch):
    paths = [write(store, row(i), row(i + 100, "killed"), writer=f"w{i}") for i in range(6)]
    index = JournalIndex.load(store, "extract")
    new = [write(store, row(i), row(3, at=2000.0 + i), writer=f"w{i}") for i in range(6, 9)]
    for path in paths[:4]:
        store.delete(path)
    read, real = [], Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: read.append(path) or real(self, path))
    again = index.reload()
    assert sorted(path for path in read if path.endswith(".parquet")) == sorted(new)
    fresh = JournalIndex.load(store, "extract")
    keys = [*map(key, range(120))]
    assert again.lookup(keys) == fresh.lookup(keys)
    assert (again.n_parts, again.any_killed, again.damaged) == (fresh.n_parts, True, [])
    assert again.reload().lookup(keys) == fresh.lookup(keys)


def test_failed_items_are_listed_with_all_their_rows(store):
    write(store, row(1), row(1, "failed", error="x"), row(2, "failed"), row(2, "done"), writer="a")
    write(store, row(1, "failed", at=2000.0, error="y"), row(3), writer="b")
    failed = JournalIndex.load(store, "extract").failed_items()
    assert failed == {key(1): [row(1), row(1, "failed", error="x"), row(1, "failed", at=2000.0, error="y")]}


def test_empty_journal_has_no_rows(store):
    index = JournalIndex.load(store, "extract")
    assert (index.n_parts, index.count_done(), index.rows_of_item(key(1)), index.failed_items()) == (
        0,
        0,
        [],
        {},
    )
    assert index.is_done([key(1)]).tolist() == [False]
    assert compaction.totals(store, "extract").items == 0
    assert compaction.compact(store, "extract", at_least=1) == 0


def test_index_pickles_with_out_of_band_arrays(store):
    write(store, *[row(i) for i in range(1000)])
    index = JournalIndex.load(store, "extract")
    buffers = []
    data = pickle.dumps(index, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2000
    assert sum(len(b.raw()) for b in buffers) == 21 * 1000
    frozen = [bytes(b.raw()) for b in buffers]
    assert pickle.loads(data, buffers=frozen).rows_of_item(key(5)) == [row(5)]


def test_part_damaged_after_loading_is_reported_and_its_items_are_pending(store, caplog):
    path = write(store, row(1), row(1, "done"))
    index = JournalIndex.load(store, "extract")
    rotten = bytearray(store.read(path))
    rotten[len(rotten) // 3] ^= 0xFF
    store.write(path, bytes(rotten))
    assert index.rows_of_item(key(1)) == []
    assert index.damaged == [path]
    assert path in caplog.text
    assert JournalIndex.load(store, "extract").count_done() == 0


def test_damage_in_the_key_column_of_a_large_part_is_detected(store, caplog):
    noise = random.Random(1)
    path = write(store, *[row(i, reply=noise.randbytes(300).hex()) for i in range(6000)])
    whole = store.read(path)
    assert len(whole) > 1 << 20
    assert len(JournalIndex.load(store, "extract").lookup([key(1), key(5999)])) == 2
    rotten = bytearray(whole)
    rotten[1000] ^= 0xFF  # in the key column, which is the first
    store.write(path, bytes(rotten))
    assert JournalIndex.load(store, "extract").damaged == [path]
    store.write(path, whole[:-1])
    assert JournalIndex.load(store, "extract").damaged == [path]
    assert caplog.text.count(path) == 2


def test_unrelated_files_in_the_journal_are_ignored(store):
    store.write("work/extract/damaged/part-0000000000000-w-000000-" + "0" * 32 + ".parquet", b"x")
    store.write("work/extract/notes.txt", b"x")
    store.write("work/extract2/part-0000000000000-w-000000-" + "0" * 32 + ".parquet", b"x")
    index = JournalIndex.load(store, "extract")
    assert (index.n_parts, index.damaged) == (0, [])


def test_repeatedly_vanishing_parts_are_an_error(store, monkeypatch):
    write(store, row(1))
    write(store, row(2), writer="v")
    found = journal.list_parts(store, "extract")
    store.delete(found[0].path)
    monkeypatch.setattr(journal, "list_parts", lambda *_: found)
    with pytest.raises(StoreError, match="vanish"):
        JournalIndex.load(store, "extract")


def test_journal_can_be_loaded_during_continuous_merges(store, monkeypatch):
    """A merge follows each listing, for more listings than MAX_RELOADS."""
    for i in range(24):
        write(store, row(i, at=1000.0 + i), writer=f"w{i:02d}")
    real, scanned = journal.list_parts, []

    def list_then_merge(*_):
        parts = real(store, "extract")
        small = [part for part in parts if "~" not in part.path][:2]
        if small:
            compaction.merge_parts(store, "extract", small, lambda: None, print)
        return parts

    monkeypatch.setattr(journal, "list_parts", list_then_merge)
    scan = parquet.read_columns
    monkeypatch.setattr(parquet, "read_columns", lambda *a: scanned.append(a[1]) or scan(*a))
    index = JournalIndex.load(store, "extract")
    assert len(scanned) < 40
    monkeypatch.setattr(journal, "list_parts", real)
    assert len(index.lookup(map(key, range(24)))) == 24


def test_reading_and_writing_the_journal_does_not_import_pandas(tmp_path):
    code = """if True:
        import sys
        from graphrag_ray.store import compaction
        from graphrag_ray.store.files import Store
        from graphrag_ray.store.journal import JournalIndex, JournalWriter
        from graphrag_ray.store.journal_rows import JournalRow
        store = Store(sys.argv[1])
        for i in range(3):
            writer = JournalWriter(store, "d", f"w{i}")
            writer.append(JournalRow("a" * 64, i, 0, "h", "turn", 1.0, reply="x"))
            writer.flush()
        assert len(JournalIndex.load(store, "d").rows_of_item("a" * 64)) == 3
        compaction.compact(store, "d", at_least=1)
        assert len(JournalIndex.load(store, "d").rows_of_item("a" * 64)) == 3
        print("pandas" in sys.modules)
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
