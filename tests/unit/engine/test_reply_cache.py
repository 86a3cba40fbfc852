"""Cached replies are available immediately, soon written to a few parts, and then dropped from memory."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphrag_ray.base.errors import StoreError
from graphrag_ray.engine import reply_cache
from graphrag_ray.engine.reply_cache import JOURNAL, ReplyCache
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal_rows import JournalRow


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path))


@pytest.fixture(autouse=True)
def _no_timer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_cache, "FLUSH_S", 3600.0)


def key(i: int) -> str:
    return hashlib.sha256(b"%d" % i).hexdigest()


def row(i: int) -> JournalRow:
    return JournalRow(key(i), 0, 0, "h", "turn", 1000.0 + i, reply=f"reply {i}")


def parts(store: Store) -> int:
    return len(store.list(f"work/{JOURNAL}"))


def eventually(condition: Callable[[], object], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def test_written_rows_are_found_but_not_in_memory(store: Store):
    replies = ReplyCache(store)
    assert replies.lookup([key(0)]) == {key(0): []}
    for i in range(5):
        replies.append(row(i))
        assert replies.lookup([key(i)]) == {key(i): [row(i)]}
    replies.flush()
    assert replies._added == {} and parts(store) == 1
    assert replies.lookup([key(i) for i in range(5)]) == {key(i): [row(i)] for i in range(5)}
    replies.append(row(7))
    assert replies.lookup([key(7), key(1)]) == {key(7): [row(7)], key(1): [row(1)]}


def test_answers_in_quick_succession_share_a_part(store: Store):
    replies = ReplyCache(store)
    for i in range(20):
        replies.append(row(i))
        replies.flush_if_due()
    assert parts(store) == 1, "only the first, because no write preceded it"
    replies.flush()
    assert parts(store) == 2
    assert set(ReplyCache(store).lookup([key(i) for i in range(20)])) == {key(i) for i in range(20)}


def test_many_pending_rows_are_written_immediately(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_cache, "FLUSH_ROWS", 4)
    replies = ReplyCache(store)
    for i in range(9):
        replies.append(row(i))
        replies.flush_if_due()
    assert parts(store) == 3


def test_a_timer_writes_pending_rows(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_cache, "FLUSH_S", 0.01)
    ReplyCache(store).append(row(1))
    assert eventually(lambda: parts(store) == 1)


def test_small_parts_are_merged(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_cache, "MERGE_FROM_PARTS", 8)
    monkeypatch.setattr(reply_cache, "CHECK_AFTER_PARTS", 4)
    replies = ReplyCache(store)
    for i in range(40):
        replies.lookup([key(i)])
        replies.append(row(i))
        replies.flush()
        assert eventually(no_merge_is_running)
    assert parts(store) < 16
    assert replies.lookup([key(i) for i in range(40)]) == {key(i): [row(i)] for i in range(40)}


def test_single_questions_merge_parts_of_other_processes(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_cache, "MERGE_FROM_PARTS", 8)
    for i in range(20):
        replies = ReplyCache(store)
        replies.lookup([key(i)])
        replies.append(row(i))
        replies.flush()
        assert eventually(no_merge_is_running)
    assert parts(store) <= 9


def no_merge_is_running() -> bool:
    return not any(thread.name == "cache" for thread in threading.enumerate())


def test_rows_of_other_processes_are_found_after_a_refresh(store: Store):
    one, two = ReplyCache(store), ReplyCache(store)
    assert two.lookup([key(1)]) == {key(1): []}
    one.append(row(1))
    one.flush()
    two.append(row(2))
    two.flush()
    two.refresh()
    assert two.lookup([key(1), key(2)]) == {key(1): [row(1)], key(2): [row(2)]}


def test_parts_are_not_merged_while_another_writer_has_the_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reply_cache, "MERGE_FROM_PARTS", 2)
    monkeypatch.setattr(reply_cache, "CHECK_AFTER_PARTS", 1)
    replies = ReplyCache(store)
    with locks.acquire(store, "a batch"):
        for i in range(4):
            replies.append(row(i))
            replies.flush()
            assert eventually(no_merge_is_running)
        assert parts(store) == 4 and not replies.failure


def test_rows_that_cannot_be_written_stay_pending_and_are_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    def full(self: Store, path: str, data: bytes) -> None:
        raise StoreError("no space left")

    replies = ReplyCache(store)
    replies.append(row(1))
    with monkeypatch.context() as broken:
        broken.setattr(Store, "write", full)
        replies.flush_if_due()
    assert replies.failure == "no space left" and replies.lookup([key(1)]) == {key(1): [row(1)]}
    monkeypatch.setattr(reply_cache, "MAX_PENDING", 3)
    for i in range(2, 9):
        replies.append(row(i))
    replies.flush()
    found = ReplyCache(store).lookup([key(i) for i in range(1, 9)])
    assert not replies.failure and [r for rows in found.values() for r in rows] == [row(1), row(2), row(3)]


def test_replies_are_found_during_concurrent_writes(store: Store):
    replies = ReplyCache(store)

    def ask(i: int) -> bool:
        replies.append(row(i))
        replies.flush()
        return replies.lookup([key(i)]) == {key(i): [row(i)]}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(60)))
    assert len(ReplyCache(store).lookup([key(i) for i in range(60)])) == 60
