"""Watching a run while storage is unavailable for a while."""

from __future__ import annotations

import logging

import pytest
from faulty import Faults, FaultyFiles, InMemory, faulty

from graphrag_ray.base.errors import StoreError
from graphrag_ray.indexing import status
from graphrag_ray.store import locks, run_records
from graphrag_ray.store.files import Store

UNAVAILABLE = Faults(final_from=0)


class Clock:
    """A clock on which time passes only while somebody sleeps. `s3=f` calls f at the third sleep."""

    def __init__(self, **actions: object) -> None:
        self.now, self.slept = 0.0, 0
        self.actions = {int(name.removeprefix("s")): action for name, action in actions.items()}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now, self.slept = self.now + seconds, self.slept + 1
        if action := self.actions.get(self.slept):
            action()  # type: ignore[operator]


@pytest.fixture
def storage() -> tuple[FaultyFiles, Store]:
    store, backend = faulty(Faults(), InMemory())
    return backend, store


def record_run(
    store: Store, lock: locks.Lock, outcome: str = run_records.RUNNING, code: int | None = None
) -> None:
    run_records.write_record(
        store, run_records.RunRecord(lock.epoch, lock.holder.nonce, 1.0, "0", outcome, exit_code=code)
    )


def test_watching_continues_when_storage_is_available_again(
    storage: tuple[FaultyFiles, Store], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    backend, store = storage
    with locks.acquire(store) as lock:
        record_run(store, lock)

        def restore() -> None:
            backend.heal()
            record_run(store, lock, "committed", 0)

        clock = Clock(s1=lambda: setattr(backend, "faults", UNAVAILABLE), s9=restore)
        outcomes = [run["outcome"] for run in status.watch_last_run(store, clock, clock.sleep)]
    assert outcomes == ["running", "committed"] and clock.slept == 9
    assert caplog.text.count("Retrying") == 1


def test_waiting_for_a_run_survives_a_storage_outage(storage: tuple[FaultyFiles, Store]):
    backend, store = storage
    with locks.acquire(store) as lock:

        def restore() -> None:
            backend.heal()
            record_run(store, lock)

        clock = Clock(s2=lambda: setattr(backend, "faults", UNAVAILABLE), s9=restore)
        status.wait_for_run(store, clock, clock.sleep)
        assert clock.slept == 9


def test_long_outage_ends_watching_but_not_the_run(storage: tuple[FaultyFiles, Store]):
    backend, store = storage
    with locks.acquire(store) as lock:
        record_run(store, lock)
        clock = Clock(s1=lambda: setattr(backend, "faults", UNAVAILABLE))
        with pytest.raises(StoreError, match="may still be active"):
            list(status.watch_last_run(store, clock, clock.sleep))
        assert clock.now >= status.OUTAGE_TIMEOUT_S
        backend.heal()


def test_storage_that_is_unavailable_from_the_start_is_reported_immediately(
    storage: tuple[FaultyFiles, Store],
):
    backend, store = storage
    backend.faults = UNAVAILABLE
    clock = Clock()
    with pytest.raises(StoreError):
        list(status.watch_last_run(store, clock, clock.sleep))
    assert clock.slept == 0
