"""Retry rows and duplicate replies."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store import compaction, parquet, retry_rows
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter, list_parts
from graphrag_ray.store.journal_rows import DONE, FAILED, RETRY, TURN, JournalRow, resolve


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


def key(n: int) -> str:
    return f"{n:064x}"[::-1]


def turn_row(n: int, at: float, number: int = 0, reply: str = "garbage") -> JournalRow:
    return JournalRow(key(n), number, 0, "h", TURN, at, reply=reply, prompt_tokens=10, model="m")


def done_row(n: int, at: float, why: str | None = None) -> JournalRow:
    return JournalRow(key(n), 0, 0, "", DONE, at, error=why)


def failed_row(n: int, at: float, number: int = 0) -> JournalRow:
    return JournalRow(key(n), number, 0, "h", FAILED, at, error="too long")


def write(store: Store, *rows: JournalRow, writer: str = "w") -> None:
    journal = JournalWriter(store, "extract", writer)
    for row in rows:
        journal.append(row)
    journal.flush()


def read_journal(store: Store) -> JournalIndex:
    return JournalIndex.load(store, "extract")


def test_retried_item_has_no_replies_until_it_is_requested_again(store: Store):
    write(
        store, turn_row(1, 5.0), done_row(1, 5.1, "no JSON"), turn_row(2, 6.0, reply="fine"), done_row(2, 6.1)
    )
    assert retry_rows.mark_for_retry(store, "extract", {key(1): 5}, "by hand") == 1
    assert read_journal(store).rows_of_item(key(1)) == [] and read_journal(store).rows_of_item(key(2)) != []
    assert (
        read_journal(store).is_done([key(1), key(2)]).tolist() == [False, True]
        and read_journal(store).count_done() == 1
    )
    write(store, turn_row(1, 5.2, reply="good"), done_row(1, 5.3), writer="v")
    assert [r.reply for r in read_journal(store).rows_of_item(key(1)) if r.kind == TURN] == ["good"]
    assert read_journal(store).count_done() == 2


def test_replies_before_a_failed_turn_stay_valid(store: Store):
    write(store, turn_row(1, 5.0, 0, "good"), failed_row(1, 6.0, 1))
    assert list(read_journal(store).failed_items()) == [key(1)]
    retry_rows.mark_for_retry(store, "extract", {key(1): 6}, "by hand")
    assert [(r.kind, r.reply) for r in read_journal(store).rows_of_item(key(1))] == [(TURN, "good")]
    assert read_journal(store).failed_items() == {}


def test_items_answered_after_the_retry_are_skipped(store: Store):
    write(store, turn_row(1, 5.0), done_row(1, 5.1, "no JSON"))
    retry_rows.mark_for_retry(store, "extract", {key(1): 5}, "by hand")
    assert retry_rows.mark_for_retry(store, "extract", {key(1): 5}, "again") == 0
    write(store, turn_row(1, 9.0, reply="good"), done_row(1, 9.1), writer="v")
    assert retry_rows.mark_for_retry(store, "extract", {key(1): 5}, "once more") == 0
    assert [r.reply for r in read_journal(store).rows_of_item(key(1)) if r.kind == TURN] == ["good"]


def test_fast_clock_does_not_void_later_replies(store: Store):
    ahead = time.time() + 86_400
    write(store, failed_row(1, ahead))
    assert read_journal(store).next_time() < ahead
    retry_rows.mark_for_retry(store, "extract", {key(1): ahead}, "by hand")
    retry_rows.mark_for_retry(store, "extract", {key(1): ahead}, "again")
    now = read_journal(store).next_time()
    assert now > ahead
    write(store, turn_row(1, now, reply="good"), done_row(1, now), writer="v")
    assert [r.reply for r in read_journal(store).rows_of_item(key(1)) if r.kind == TURN] == ["good"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_killed_retry_does_not_void_later_replies(store: Store, monkeypatch, writes: int):
    ahead = time.time() + 60
    write(store, failed_row(1, ahead))
    real, done = Store.write, []

    def killed(self, path, data):
        if len(done) == writes:
            raise Killed
        done.append(path)
        real(self, path, data)

    monkeypatch.setattr(Store, "write", killed)
    with contextlib.suppress(Killed):
        retry_rows.mark_for_retry(store, "extract", {key(1): ahead}, "by hand")
    monkeypatch.undo()
    now = read_journal(store).next_time()
    write(store, turn_row(1, now, reply="good"), done_row(1, now), writer="v")
    assert [r.reply for r in read_journal(store).rows_of_item(key(1)) if r.kind == TURN] == ["good"]


def test_retried_until_is_the_time_of_the_latest_retry(store: Store):
    ahead = time.time() + 60
    write(store, failed_row(1, ahead), failed_row(2, ahead - 30), failed_row(3, ahead + 100))
    assert read_journal(store).retried_until == 0.0
    retry_rows.mark_for_retry(store, "extract", {key(1): ahead}, "by hand")
    before = read_journal(store)
    retry_rows.mark_for_retry(store, "extract", {key(2): ahead}, "by hand")
    for index in (read_journal(store), before.reload()):
        assert index.retried_until == ahead < index.next_time() < ahead + 1


def test_item_without_an_end_is_retried_by_its_time(store: Store):
    write(store, turn_row(1, 5.7))
    assert retry_rows.mark_for_retry(store, "extract", {key(1): 4}, "answered since") == 0
    assert retry_rows.mark_for_retry(store, "extract", {key(1): 5}, "by hand") == 1
    assert read_journal(store).rows_of_item(key(1)) == []


def test_every_retry_changes_the_marker(store: Store):
    assert retry_rows.retry_marker(store, "extract") == ""
    retry_rows.mark_for_retry(store, "extract", {key(1): 0}, "x")
    first = retry_rows.retry_marker(store, "extract")
    retry_rows.mark_for_retry(store, "extract", {key(1): 0}, "x")
    assert first and retry_rows.retry_marker(store, "extract") not in ("", first)
    assert retry_rows.retry_marker(store, "report") == "" and list_parts(store, "extract") == []


def test_totals_count_paid_replies_but_not_retried_failures(store: Store):
    write(store, turn_row(1, 5.0), done_row(1, 5.1, "no JSON"), turn_row(2, 6.0), failed_row(2, 7.0, 1))
    retry_rows.mark_for_retry(store, "extract", {key(1): 5, key(2): 7}, "by hand")
    found = compaction.totals(store, "extract")
    assert (found.items, found.done, found.failed, found.by_model["m"].calls) == (2, 0, 0, 2)


def test_compaction_preserves_retries(store: Store):
    for i in range(4):
        write(store, turn_row(i, 5.0 + i), done_row(i, 5.1 + i, "no JSON"), writer=f"w{i}")
    retry_rows.mark_for_retry(store, "extract", {key(1): 6, key(2): 7}, "by hand")
    before = {i: read_journal(store).rows_of_item(key(i)) for i in range(4)}
    assert compaction.compact(store, "extract", at_least=2) > 0
    assert {i: read_journal(store).rows_of_item(key(i)) for i in range(4)} == before
    assert before[1] == before[2] == [] and read_journal(store).count_done() == 2


def test_find_failed_returns_failed_items_with_reasons(store: Store):
    write(
        store,
        turn_row(1, 5.0),
        done_row(1, 5.1, "no JSON"),
        turn_row(2, 6.0),
        done_row(2, 6.1),
        failed_row(3, 7.0),
    )
    found = retry_rows.find_failed(store, "extract")
    assert {k: [r.error for r in rows if r.error] for k, rows in found.items()} == {
        key(1): ["no JSON"],
        key(3): ["too long"],
    }
    retry_rows.mark_for_retry(store, "extract", {key(1): 5, key(3): 7}, "by hand")
    assert retry_rows.find_failed(store, "extract") == {}


def test_find_failed_during_a_merge_misses_no_item(store: Store, monkeypatch):
    for i in range(4):
        write(store, turn_row(i, 5.0 + i), done_row(i, 5.1 + i, "no JSON"), writer=f"w{i}")
    real, overtaken = parquet.read_columns, []

    def read(*args):
        if "error" in args[2] and not overtaken:
            overtaken.append(args)
            assert compaction.compact(store, "extract", at_least=1) == 3
        return real(*args)

    monkeypatch.setattr(parquet, "read_columns", read)
    assert set(retry_rows.find_failed(store, "extract")) == {key(i) for i in range(4)} and overtaken


rows_of_an_item = st.lists(
    st.builds(
        lambda kind, number, at: JournalRow(key(1), number, 0, "", kind, float(at), reply=f"{at}"),
        st.sampled_from([TURN, FAILED, DONE, RETRY]),
        st.integers(0, 2),
        st.integers(0, 6),
    ),
    max_size=8,
)


@given(rows_of_an_item, st.randoms(use_true_random=False))
def test_order_and_duplicates_of_retry_rows_do_not_matter(rows, rng):
    shuffled = rows + rows[: rng.randint(0, len(rows))]
    rng.shuffle(shuffled)
    assert resolve(shuffled) == resolve(rows)


@given(rows_of_an_item)
def test_valid_row_is_not_voided_by_a_later_retry(rows):
    for row in resolve(rows):
        assert row.kind != RETRY
        turn_number = row.turn if row.kind != DONE else 9
        assert not any(r.kind == RETRY and r.at >= row.at and r.turn <= turn_number for r in rows)


# duplicate replies


def reply_row(n: int, at: float, text: str = "one", latency_s: float = 1.0) -> JournalRow:
    return JournalRow(key(n), 0, 0, "h", TURN, at, reply=text, latency_s=latency_s)


def test_find_duplicate_replies_during_a_merge_misses_no_reply(store: Store, monkeypatch):
    write(store, reply_row(1, 5.0), reply_row(2, 5.5), writer="a")
    write(store, reply_row(1, 6.0, "two"), writer="b")
    write(store, reply_row(3, 7.0), reply_row(3, 7.0, "a clock that is held", 2.0), writer="c")
    real, overtaken = parquet.read_columns, []

    def read(*args):
        if not overtaken:
            overtaken.append(args)
            assert compaction.compact(store, "extract", at_least=1) == 2
        return real(*args)

    monkeypatch.setattr(parquet, "read_columns", read)
    assert retry_rows.find_duplicate_replies(store, "extract") == {key(1), key(3)} and overtaken


def test_rows_left_in_two_parts_by_a_merge_are_not_duplicates(store: Store, monkeypatch):
    for n in range(3):
        write(store, reply_row(n, 5.0 + n), writer=f"w{n}")
    contents = {part.path: store.read(part.path) for part in list_parts(store, "extract")}
    compaction.compact(store, "extract", at_least=1)
    for path, data in contents.items():
        store.write(path, data)
    monkeypatch.setattr(JournalIndex, "load", None)
    assert retry_rows.find_duplicate_replies(store, "extract") == set()
