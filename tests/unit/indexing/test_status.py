"""A run that is watched through storage that is away for a while."""

from __future__ import annotations

import logging

import pytest
from faulty import Faults, FaultyFiles, InMemory, faulty

from graphrag_ray.base.errors import StoreError
from graphrag_ray.indexing import status
from graphrag_ray.store import locks, run_records
from graphrag_ray.store.files import Store

AWAY = Faults(final_from=0)


class Clock:
    """Time passes while somebody sleeps. at: what happens at the n-th sleep."""

    def __init__(self, **at: object) -> None:
        self.now, self.slept = 0.0, 0
        self.at = {int(name.removeprefix("s")): act for name, act in at.items()}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now, self.slept = self.now + seconds, self.slept + 1
        if act := self.at.get(self.slept):
            act()  # type: ignore[operator]


@pytest.fixture
def storage() -> tuple[FaultyFiles, Store]:
    store, backend = faulty(Faults(), InMemory())
    return backend, store


def begin(
    store: Store, lock: locks.Lock, outcome: str = run_records.RUNNING, code: int | None = None
) -> None:
    run_records.write(
        store, run_records.RunRecord(lock.epoch, lock.holder.nonce, 1.0, "0", outcome, exit_code=code)
    )


def test_a_run_is_watched_on_when_storage_answers_again(
    storage: tuple[FaultyFiles, Store], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    backend, store = storage
    with locks.acquire(store) as lock:
        begin(store, lock)

        def back() -> None:
            backend.heal()
            begin(store, lock, "committed", 0)

        clock = Clock(s1=lambda: setattr(backend, "faults", AWAY), s9=back)
        seen = [found["outcome"] for found in status.watch_last_run(store, clock, clock.sleep)]
    assert seen == ["running", "committed"] and clock.slept == 9
    assert caplog.text.count("Retrying") == 1


def test_a_run_that_is_waited_for_is_seen_though_storage_was_away(storage: tuple[FaultyFiles, Store]):
    backend, store = storage
    with locks.acquire(store) as lock:

        def back() -> None:
            backend.heal()
            begin(store, lock)

        clock = Clock(s2=lambda: setattr(backend, "faults", AWAY), s9=back)
        status.wait_for_run(store, clock, clock.sleep)
        assert clock.slept == 9


def test_storage_that_stays_away_ends_the_watch_and_not_the_run(storage: tuple[FaultyFiles, Store]):
    backend, store = storage
    with locks.acquire(store) as lock:
        begin(store, lock)
        clock = Clock(s1=lambda: setattr(backend, "faults", AWAY))
        with pytest.raises(StoreError, match="may still be active"):
            list(status.watch_last_run(store, clock, clock.sleep))
        assert clock.now >= status.OUTAGE_TIMEOUT_S
        backend.heal()


def test_storage_that_never_answered_is_told_at_once(storage: tuple[FaultyFiles, Store]):
    backend, store = storage
    backend.faults = AWAY
    clock = Clock()
    with pytest.raises(StoreError):
        list(status.watch_last_run(store, clock, clock.sleep))
    assert clock.slept == 0
