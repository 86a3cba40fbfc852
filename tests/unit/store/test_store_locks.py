import os
import signal
import subprocess
import sys
import time

import orjson
import pytest
from sleeping_clock import Clock

from graphrag_ray.base.errors import LockHeld, LockLost, StoreError
from graphrag_ray.store import locks
from graphrag_ray.store.files import Store


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path))


def acquire(store, clock=None, **options):
    with (clock or Clock()).passes():
        return locks.acquire(store, **options)


HOLD = """if True:
    import sys, time
    from graphrag_ray.store import locks
    from graphrag_ray.store.files import Store
    with locks.acquire(Store(sys.argv[1]), "another run") as lock:
        print("held", flush=True)
        sys.stdin.readline()
        lock.check()
"""


@pytest.fixture
def other_process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def test_lock_of_a_killed_local_writer_is_taken_over_immediately(store, other_process):
    other_process.kill()
    other_process.wait()
    clock = Clock()
    assert acquire(store, clock).epoch == 2
    assert clock.seconds == 0


def test_zombie_writer_counts_as_dead(store, other_process):
    other_process.kill()
    os.waitid(os.P_PID, other_process.pid, os.WEXITED | os.WNOWAIT)
    assert os.path.exists(f"/proc/{other_process.pid}")
    clock = Clock()
    assert acquire(store, clock).epoch == 2
    assert clock.seconds == 0


def test_live_writer_keeps_the_lock_with_heartbeats(store, other_process):
    with pytest.raises(LockHeld, match=f"process {other_process.pid} on .*another run"):
        locks.acquire(store)
    _, errors = other_process.communicate("\n", timeout=30)
    assert (errors, other_process.returncode) == ("", 0)
    assert acquire(store).epoch == 2


def test_check_free_reports_a_live_writer_and_does_not_wait_for_a_dead_one(store, other_process):
    with pytest.raises(LockHeld, match=f"process {other_process.pid} on .*another run"):
        locks.check_free(store)
    other_process.send_signal(signal.SIGSTOP)
    clock = Clock()
    with clock.passes():
        locks.check_free(store)
    assert clock.seconds <= 2 * locks.HEARTBEAT_S + 0.2  # `acquire` waits longer and takes over


def test_stopped_writer_loses_the_lock(store, other_process):
    other_process.send_signal(signal.SIGSTOP)
    with locks.acquire(store, stale_s=0.3) as lock:
        assert lock.epoch == 2
        other_process.send_signal(signal.SIGCONT)
        _, errors = other_process.communicate("\n", timeout=30)
        assert "LockLost" in errors
        assert f"taken over by process {os.getpid()}" in errors
        lock.check()


def test_lock_of_a_dead_remote_writer_is_taken_over_within_30_seconds(store, monkeypatch):
    acquire(store)
    monkeypatch.setattr(locks, "_machine", lambda: "another machine")
    clock = Clock()
    assert acquire(store, clock).epoch == 2
    assert 19 < clock.seconds < 30


def test_remote_writer_is_alive_if_its_heartbeat_changes(store, monkeypatch):
    lock = acquire(store)
    assert locks.find_live_holder(store) == lock.holder
    monkeypatch.setattr(locks, "_machine", lambda: "another machine")
    beating, silent = Clock(each=lock.beat), Clock()
    with beating.passes():
        assert locks.find_live_holder(store) == lock.holder and beating.seconds < 1
    with silent.passes():
        assert locks.find_live_holder(store) is None and 19 < silent.seconds < 30
    assert locks.find_holder(store) == lock.holder, "nothing was taken over"
    lock.release()
    assert locks.find_live_holder(store) is None


def test_process_that_reuses_the_pid_is_not_the_writer(store, monkeypatch):
    acquire(store)
    monkeypatch.setattr(locks, "_process_start", lambda pid: "12345")
    clock = Clock()
    assert acquire(store, clock).epoch == 2
    assert clock.seconds == 0


def test_unknown_machine_never_declares_a_process_dead(store, monkeypatch):
    monkeypatch.setattr(locks, "_machine", lambda: "")
    acquire(store)
    monkeypatch.setattr(locks, "_process_start", lambda pid: None)
    clock = Clock()
    acquire(store, clock)
    assert clock.seconds > 19


def test_wrong_clock_of_another_machine_does_not_matter(store, monkeypatch):
    monkeypatch.setattr(locks, "_now", lambda: 4e9)
    lock = acquire(store)
    monkeypatch.setattr(locks, "_now", lambda: 0.0)
    with pytest.raises(LockHeld, match="since 2096"):
        acquire(store, Clock(each=lock.beat))


def test_heartbeat_just_before_the_deadline_counts(store):
    lock = acquire(store)
    clock = Clock()
    clock.each = lambda: lock.beat() if clock.seconds > 19 else None
    with pytest.raises(LockHeld):
        acquire(store, clock)


def test_announced_silence_extends_the_wait(store):
    lock = acquire(store)
    clock = Clock()
    with lock.allow_silence(100):
        taker = acquire(store, clock)
    assert 100 <= clock.seconds < 110
    with pytest.raises(LockLost):
        lock.check()
    with taker.allow_silence(100):
        pass
    clock = Clock()
    acquire(store, clock)
    assert clock.seconds < 30


def test_dead_process_is_detected_during_its_announced_silence(store, monkeypatch):
    acquire(store).allow_silence(1000).__enter__()
    monkeypatch.setattr(locks, "_process_start", lambda pid: "12345")
    clock = Clock()
    acquire(store, clock)
    assert clock.seconds == 0


def test_release_is_noticed_while_waiting(store):
    lock = acquire(store)
    clock = Clock()
    clock.each = lambda: lock.release() if clock.seconds == 2.0 else None
    assert acquire(store, clock).epoch == 2
    assert clock.seconds == 2.0


def test_released_lock_neither_beats_nor_commits(store):
    lock = acquire(store)
    lock.keep_beating(0.001)
    lock.release()
    lock.beat()
    assert orjson.loads(store.read("locks/1.beat.json"))["released"] is True
    with pytest.raises(LockLost, match="This writer has released its lock"):
        lock.check()


def test_background_heartbeat_notices_a_lost_lock(store):
    lock = acquire(store)
    lock.keep_beating(0.01)
    assert not lock.lost
    acquire(store, Clock(), stale_s=0)
    for _ in range(500):
        if lock.lost:
            break
        time.sleep(0.01)
    assert lock.lost
    lock.release()


def test_heartbeat_continues_after_a_storage_failure(store, monkeypatch, caplog):
    lock = acquire(store)
    real, faults = Store.write, [1, 1]

    def write(self, path, data):
        if faults:
            faults.pop()
            raise StoreError("busy")
        real(self, path, data)

    monkeypatch.setattr(Store, "write", write)
    before = store.read("locks/1.beat.json")
    lock.keep_beating(0.01)
    for _ in range(500):
        if store.read("locks/1.beat.json") != before:
            break
        time.sleep(0.01)
    lock.release()
    assert caplog.text.count("Cannot write a heartbeat: busy") == 2
    assert store.read("locks/1.beat.json") != before


def test_unreadable_lock_file_still_holds_the_lock(store):
    store.write("locks/5.json", b"{half")
    clock = Clock()
    clock.each = lambda: store.write("locks/5.beat.json", b"%f" % clock.seconds)
    with pytest.raises(LockHeld, match="unknown writer"):
        acquire(store, clock)
    clock.each = lambda: None
    assert acquire(store, clock).epoch == 6


def test_epochs_are_compared_as_numbers(store):
    for _ in range(11):
        lock = acquire(store)
        lock.release()
    assert lock.epoch == 11
    assert locks.find_holder(store) is None
    lock = acquire(store)
    assert locks.find_holder(store) == lock.holder


def test_lock_is_released_after_an_error_in_its_block(store):
    with pytest.raises(KeyError), acquire(store):
        raise KeyError
    assert locks.find_holder(store) is None


def test_store_that_ignores_conditions_is_detected(store, monkeypatch, caplog):
    def create(self, path, data):
        self.write(path, data)
        return True

    monkeypatch.setattr(Store, "create", create)
    acquire(store)
    assert "but does not" in caplog.text
