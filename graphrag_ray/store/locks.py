"""The lock that lets only one writer at a time change an index.

    locks/<epoch>.json        who took the lock; made by conditional create and never changed
    locks/<epoch>.beat.json   the holder's heartbeat, and finally its release

The highest epoch holds the lock. A writer takes over by creating the next epoch, so two writers can never
both do so. To find out whether the holder is alive, others watch its heartbeat by their own clock: the
clocks of two machines are never compared. A process that died on this machine is recognized immediately.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from graphrag_ray.base.errors import LockHeld, LockLost, StoreError
from graphrag_ray.store.files import Store
from graphrag_ray.store.json_types import UnixTime, read_as

HEARTBEAT_S = 2.0  # Seconds between heartbeats.
STALE_S = 20.0  # A writer whose heartbeat does not change for this long counts as dead or paused.
MAX_SILENCE_S = 86_400.0  # Limit for `Lock.allow_silence`, so that no lock is held forever.
POLL_S = 0.5  # Seconds between reads of another writer's heartbeat.

_now, _clock, _sleep = time.time, time.monotonic, time.sleep
_NAME = re.compile(r"locks/([1-9][0-9]*)\.json")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """The writer that took an epoch."""

    host: str
    pid: int
    # Boot id and pid namespace, because containers share the boot id. If "", death cannot be detected.
    machine: str
    process_start: str  # In clock ticks, because pids are reused.
    since: UnixTime  # By the holder's clock, for messages.
    note: str  # What the writer does, for messages.
    nonce: str  # Distinguishes this claim from others with equal fields.

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.pid} on {self.host}{f' ({self.note})' if self.note else ''} since {since}"


class Lock:
    """A lock held by this process. Its context manager beats in the background and finally releases it."""

    def __init__(self, store: Store, epoch: int, holder: Holder) -> None:
        self.epoch, self.holder = epoch, holder
        self.lost = False  # Whether another writer took over, so that this one should stop spending.
        self._store = store
        self._beats = 0
        self._quiet_s = 0.0
        self._write_lock = threading.Lock()
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise LockLost if another writer took over. Called before every commit and deletion."""
        try:
            check(self._store, self.epoch)
        except LockLost:
            self.lost = True
            raise
        if self._released.is_set():
            raise LockLost(f"This writer has released its lock on {self._store.url}")

    def beat(self) -> None:
        with self._write_lock:
            if not self._released.is_set():
                self._beats += 1
                self._write_beat({"beats": self._beats, "quiet_s": self._quiet_s})

    @contextmanager
    def allow_silence(self, seconds: float) -> Iterator[None]:
        """Announce that heartbeats may stop for this many seconds.

        For calls into C that block all Python threads (igraph's Leiden: 19 s for a million nodes). Other
        writers wait that long before they take over, unless the process died on their machine.
        """
        self._quiet_s = seconds
        try:
            self.beat()
            yield
        finally:
            self._quiet_s = 0.0
            self.beat()

    def keep_beating(self, interval_s: float | None = None) -> None:
        """Beat in a background thread until released. Failed beats only warn, because `check` decides."""

        def run() -> None:
            while not self._released.wait(HEARTBEAT_S if interval_s is None else interval_s):
                try:
                    self.beat()
                    self.lost = self.lost or self._store.exists(_path(self.epoch + 1))
                except StoreError as e:
                    _log.warning("Cannot write a heartbeat: %s", e)

        self._thread = threading.Thread(target=run, name="lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lock. A failure is only a warning, because others notice that the heartbeat stopped."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        with self._write_lock:
            try:
                self._write_beat({"beats": self._beats, "released": True})
            except StoreError as e:
                _log.warning("Cannot release the lock (it will expire in %.0f s): %s", STALE_S, e)

    def __enter__(self) -> Lock:
        self.keep_beating()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _write_beat(self, content: dict[str, object]) -> None:
        self._store.write(heartbeat_path(self.epoch), orjson.dumps({"nonce": self.holder.nonce, **content}))


def check(store: Store, epoch: int) -> None:
    """Like `Lock.check`, for processes that work for the holder of this epoch."""
    if store.exists(_path(epoch + 1)):
        other = _holder(store, _highest(store)) or "another writer"
        raise LockLost(
            f"The lock on {store.url} was taken over by {other}, because this writer sent no heartbeat for "
            f"{STALE_S:.0f} s. Nothing is lost: run the same command again when the other writer is done."
        )


def acquire(store: Store, note: str = "", *, stale_s: float | None = None) -> Lock:
    """Acquire the lock, or raise LockHeld, which says who holds the lock and since when.

    Takes over a lock if it was released, if its process died on this machine, or if its heartbeat did not
    change for `stale_s` seconds (STALE_S by default). A live holder is detected within one heartbeat. `note`
    describes the writer's work to others.
    """
    epoch = _highest(store)
    patience_s = STALE_S if stale_s is None else stale_s
    state = _watch(store, epoch, patience_s, POLL_S)
    if state == "living":
        raise _held_error(store, epoch)
    if state == "silent":
        claim = store.url_of(_path(epoch))
        other = _holder(store, epoch) or f"an unknown writer ({claim} is missing or damaged)"
        _log.warning("Taking over from %s, which sent no heartbeat for at least %.0f s", other, patience_s)
    holder = Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=_machine(),
        process_start=_process_start(os.getpid()) or "",
        since=_now(),
        note=note,
        nonce=secrets.token_hex(8),
    )
    path, data = _path(epoch + 1), orjson.dumps(asdict(holder), option=orjson.OPT_INDENT_2)
    if not store.create(path, data):
        raise _held_error(store, epoch + 1)
    lock = Lock(store, epoch + 1, holder)
    lock.beat()
    if store.can_create and store.create(path, data + b"\n"):
        _log.warning(
            "%s claims to support conditional creation but does not, so concurrent writers cannot detect "
            "each other. Run only one writer at a time there.",
            store.url,
        )
    return lock


def find_holder(store: Store) -> Holder | None:
    """Return the holder of the lock, or None if it is free or its process died on this machine.

    A holder on another machine may be dead.
    """
    epoch = _highest(store)
    owner = None if not epoch or _beat(store, epoch).get("released") else _holder(store, epoch)
    return None if owner is None or _is_dead(owner) else owner


def find_live_holder(store: Store, *, stale_s: float | None = None) -> Holder | None:
    """Return the holder of the lock if it is known to be alive, or None.

    Watches the heartbeat of a holder on another machine until it changes, or for as long as `acquire` would.
    """
    epoch, owner = _highest(store), find_holder(store)
    if owner is None or _is_here(owner):
        return owner
    state = _watch(store, epoch, STALE_S if stale_s is None else stale_s, POLL_S)
    return owner if state == "living" else None


def check_free(store: Store) -> None:
    """Raise LockHeld if another writer is alive, to fail before slow work. Only `acquire` is conclusive."""
    epoch = _highest(store)
    if _watch(store, epoch, 2 * HEARTBEAT_S, 0.1) == "living":
        raise _held_error(store, epoch)


def obsolete_files(store: Store) -> set[str]:
    """Return the lock files that are no longer needed.

    The highest epoch stays. An epoch that was not released stays together with its successor, because its
    holder may be paused and has to find out that it lost the lock.
    """
    paths = [info.path for info in store.list("locks")]
    epochs = sorted(int(m.group(1)) for m in map(_NAME.fullmatch, paths) if m)
    ended: dict[int, bool] = {}
    for epoch in epochs[:-1]:
        owner = _holder(store, epoch)
        ended[epoch] = bool(_beat(store, epoch).get("released")) or (owner is not None and _is_dead(owner))
    obsolete = [epoch for epoch in epochs[:-1] if ended[epoch] and ended.get(epoch - 1, True)]
    # A claim is deleted before its heartbeat: an epoch without its release would never become obsolete.
    needed = {heartbeat_path(epoch) for epoch in epochs if epoch not in obsolete}
    return {*map(_path, obsolete), *(p for p in paths if p.endswith(".beat.json") and p not in needed)}


def _watch(store: Store, epoch: int, stale_s: float, poll_s: float) -> Literal["free", "living", "silent"]:
    """Watch the holder of an epoch until it beats or has been silent for too long. Epoch 0 is free."""
    if not epoch:
        return "free"
    owner = _holder(store, epoch)
    beat = first = _beat(store, epoch)
    announced = first.get("quiet_s")
    quiet_s = min(float(announced), MAX_SILENCE_S) if isinstance(announced, int | float) else 0.0
    end = _clock() + max(stale_s, quiet_s)
    while beat == first or beat.get("released"):
        if beat.get("released") or (owner is not None and _is_dead(owner)):
            return "free"
        if _clock() >= end:
            return "silent"
        _sleep(poll_s)
        beat = _beat(store, epoch)
    return "living"


def _is_dead(owner: Holder) -> bool:
    return _is_here(owner) and _process_start(owner.pid) != owner.process_start


def _is_here(owner: Holder) -> bool:
    """Return whether the holder ran on this machine, so that its death can be detected."""
    return bool(owner.machine) and owner.machine == _machine() and bool(owner.process_start)


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_start(pid: int) -> str | None:
    """Return the start time of a live process, or None if it does not exist or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The process name, in brackets, may contain spaces and brackets.
            state, *rest = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in ("Z", "X") else rest[18]


def _highest(store: Store) -> int:
    return max(store.list_numbers("locks", _NAME), default=0)


def _holder(store: Store, epoch: int) -> Holder | None:
    try:
        return read_as(Holder, orjson.loads(store.read(_path(epoch))))
    except (FileNotFoundError, ValueError):
        return None


def _beat(store: Store, epoch: int) -> dict[str, Any]:
    """Return the last heartbeat. Unreadable ones compare unequal if their bytes differ."""
    try:
        data = store.read(heartbeat_path(epoch))
        content = orjson.loads(data)
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {"unread": data}


def _held_error(store: Store, epoch: int) -> LockHeld:
    owner = _holder(store, epoch) or "an unknown writer"
    return LockHeld(
        f"{store.url} is being written by {owner}. Wait for it or stop it; the lock is free at most "
        f"{STALE_S + HEARTBEAT_S:.0f} s after its process has ended."
    )


def _path(epoch: int) -> str:
    return f"locks/{epoch}.json"


def heartbeat_path(epoch: int) -> str:
    return f"locks/{epoch}.beat.json"
