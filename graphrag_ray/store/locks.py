"""One writer at a time.

    locks/<epoch>.json        who took the lock; made by conditional create, never changed or deleted
    locks/<epoch>.beat.json   the holder's heartbeat, and in the end its release

The highest epoch holds. Taking over is creating the next one, so two can never both do it. Whether a holder
still lives is judged by watching its heartbeat with one's own clock: no two machines' clocks are compared.
A process that is dead on this very machine is known to be dead at once.
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
from graphrag_ray.store.untrusted_json import At, read_as

BEAT_S = 2.0
"""Seconds between heartbeats."""
STALE_S = 20.0
"""A heartbeat that does not change for so long belongs to a dead or paused writer."""
MOST_QUIET_S = 86_400.0
"""A silence that is announced; longer ones are not believed."""

POLL_S = 0.5
"""Seconds between looks at another's heartbeat."""

_now, _clock, _sleep = time.time, time.monotonic, time.sleep
_NAME = re.compile(r"locks/([1-9][0-9]*)\.json")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """Who took an epoch.

    host, pid      for people
    machine        boot id of the kernel and its space of process ids, since containers share the former;
                   "" where there is neither, and then no process is ever known to be dead
    process_start  start time of the process in clock ticks: pids are used again
    since          unix seconds by the holder's clock, for people
    note           what it does
    nonce          tells its claim from any other
    """

    host: str
    pid: int
    machine: str
    process_start: str
    since: At
    note: str
    nonce: str

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.pid} on {self.host}{f' ({self.note})' if self.note else ''} since {since}"


class Lock:
    """A lock that is held. Used as a context manager it beats in the background and releases at the end."""

    def __init__(self, store: Store, epoch: int, holder: Holder) -> None:
        self.epoch, self.holder = epoch, holder
        self.lost = False
        """Somebody took over, as far as the heartbeat has noticed: stop spending."""
        self._store = store
        self._beats = 0
        self._quiet_s = 0.0
        self._writing = threading.Lock()
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Look whether the lock is still ours; to be called before every commit and deletion. Raises
        LockLost, StoreError."""
        try:
            check(self._store, self.epoch)
        except LockLost:
            self.lost = True
            raise
        if self._released.is_set():
            raise LockLost(f"the lock on {self._store.url} was released by this writer itself")

    def beat(self) -> None:
        """Give a sign of life. Raises StoreError."""
        with self._writing:
            if not self._released.is_set():
                self._beats += 1
                self._write_beat({"beats": self._beats, "quiet_s": self._quiet_s})

    @contextmanager
    def expecting_silence(self, seconds: float) -> Iterator[None]:
        """Announce that no heartbeat may come for so long, for a call into C that keeps Python's threads
        from running (igraph's Leiden does: 19 s for a million nodes). Others wait that long before they
        take over; a dead process on the same machine is still told at once. Raises StoreError."""
        self._quiet_s = seconds
        try:
            self.beat()
            yield
        finally:
            self._quiet_s = 0.0
            self.beat()

    def keep_beating(self, interval_s: float | None = None) -> None:
        """Beat in a background thread until released. A beat that cannot be written is tried again at the
        next; whether that was too late is for `check`. interval_s: None: BEAT_S."""

        def beat_on() -> None:
            while not self._released.wait(BEAT_S if interval_s is None else interval_s):
                try:
                    self.beat()
                    self.lost = self.lost or self._store.exists(_path(self.epoch + 1))
                except StoreError as e:
                    _log.warning("no heartbeat: %s", e)

        self._thread = threading.Thread(target=beat_on, name="lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let others have it. Failing to say so is only a warning: the heartbeat ends, and that tells."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        with self._writing:
            try:
                self._write_beat({"beats": self._beats, "released": True})
            except StoreError as e:
                _log.warning("the lock will be free in %.0f s: %s", STALE_S, e)

    def __enter__(self) -> Lock:
        self.keep_beating()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _write_beat(self, content: dict[str, object]) -> None:
        self._store.write(beat_path(self.epoch), orjson.dumps({"nonce": self.holder.nonce, **content}))


def check(store: Store, epoch: int) -> None:
    """As `Lock.check`, for processes that work for the holder of the lock of that epoch."""
    if store.exists(_path(epoch + 1)):
        other = _holder(store, _highest(store)) or "another writer"
        raise LockLost(
            f"the lock on {store.url} was taken over by {other}: this writer gave no sign of life for "
            f"{STALE_S:.0f} s. Nothing of it is lost; when the other one is done, run it again"
        )


def acquire(store: Store, note: str = "", *, stale_s: float | None = None) -> Lock:
    """Become the one writer.

    Takes over a lock that was released, whose process is dead on this machine, or whose heartbeat did not
    change for `stale_s` (None: STALE_S). Otherwise it is told within a heartbeat that the holder lives.
    note: what the writer does, for others to read.

    Raises LockHeld, saying who holds it and since when; StoreError.
    """
    epoch = _highest(store)
    patience_s = STALE_S if stale_s is None else stale_s
    found = _watched(store, epoch, patience_s, POLL_S)
    if found == "living":
        raise _held(store, epoch)
    if found == "silent":
        who = (
            _holder(store, epoch) or f"an unknown writer ({store.url_of(_path(epoch))} is missing or damaged)"
        )
        _log.warning("taking over from %s: it gave no sign of life for %.0f s or more", who, patience_s)
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
        raise _held(store, epoch + 1)
    lock = Lock(store, epoch + 1, holder)
    lock.beat()
    if store.can_create and store.create(path, data + b"\n"):
        _log.warning(
            "%s says that it creates objects on condition and does not: two writers at once would not notice "
            "each other. Let only one write there",
            store.url,
        )
    return lock


def holder(store: Store) -> Holder | None:
    """Who holds the lock or held it last and has not released it; None when it is free, or that process is
    dead on this machine. Says nothing about whether a writer elsewhere lives. Raises StoreError."""
    epoch = _highest(store)
    owner = None if not epoch or _beat(store, epoch).get("released") else _holder(store, epoch)
    return None if owner is None or _is_dead(owner) else owner


def living(store: Store, *, stale_s: float | None = None) -> Holder | None:
    """Who holds the lock and is known to live; None when nobody does. Of a process on this machine it is
    known at once, else its heartbeat is watched: until it changes, or for as long as `acquire` would."""
    epoch, owner = _highest(store), holder(store)
    if owner is None or _is_here(owner):
        return owner
    found = _watched(store, epoch, STALE_S if stale_s is None else stale_s, POLL_S)
    return owner if found == "living" else None


def check_free(store: Store) -> None:
    """Before anything that takes time: whether somebody writes there, which is known within a heartbeat.
    `acquire` decides in the end. Raises LockHeld, StoreError."""
    epoch = _highest(store)
    if _watched(store, epoch, 2 * BEAT_S, 0.1) == "living":
        raise _held(store, epoch)


def finished(store: Store) -> set[str]:
    """Files of locks that nobody needs any more. The highest epoch stays, and so does every one whose holder
    has not released it: it may be paused, and learns from the next epoch that it was taken over. So an epoch
    goes only when the one before it was released, or is gone for the same reason. Raises StoreError."""
    paths = [info.path for info in store.list("locks")]
    epochs = sorted(int(m.group(1)) for m in map(_NAME.fullmatch, paths) if m)
    ended: dict[int, bool] = {}
    for epoch in epochs[:-1]:
        owner = _holder(store, epoch)
        ended[epoch] = bool(_beat(store, epoch).get("released")) or (owner is not None and _is_dead(owner))
    done = [epoch for epoch in epochs[:-1] if ended[epoch] and ended.get(epoch - 1, True)]
    beats = {beat_path(epoch) for epoch in epochs if epoch not in done}
    # The claim before the heartbeat: without its release an epoch would be kept for ever.
    return {*map(_path, done), *(p for p in paths if p.endswith(".beat.json") and p not in beats)}


def _watched(store: Store, epoch: int, stale_s: float, poll_s: float) -> Literal["free", "living", "silent"]:
    """Watch the holder of an epoch until it gives a sign of life, or gave none for too long. 0: nobody."""
    if not epoch:
        return "free"
    owner = _holder(store, epoch)
    seen = first = _beat(store, epoch)
    announced = first.get("quiet_s")
    quiet_s = min(float(announced), MOST_QUIET_S) if isinstance(announced, int | float) else 0.0
    end = _clock() + max(stale_s, quiet_s)
    while seen == first or seen.get("released"):
        if seen.get("released") or (owner is not None and _is_dead(owner)):
            return "free"
        if _clock() >= end:
            return "silent"
        _sleep(poll_s)
        seen = _beat(store, epoch)
    return "living"


def _is_dead(owner: Holder) -> bool:
    """Certain only on the machine where it ran."""
    return _is_here(owner) and _process_start(owner.pid) != owner.process_start


def _is_here(owner: Holder) -> bool:
    """Whether it ran on this machine, and what became of it can be told."""
    return bool(owner.machine) and owner.machine == _machine() and bool(owner.process_start)


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_start(pid: int) -> str | None:
    """Start time of a living process; None when there is none, or only its entry in the table is left."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name in brackets may hold spaces and brackets.
            state, *rest = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in ("Z", "X") else rest[18]


def _highest(store: Store) -> int:
    return max(store.numbered("locks", _NAME), default=0)


def _holder(store: Store, epoch: int) -> Holder | None:
    try:
        return read_as(Holder, orjson.loads(store.read(_path(epoch))))
    except (FileNotFoundError, ValueError):
        return None


def _beat(store: Store, epoch: int) -> dict[str, Any]:
    """The last heartbeat. One that cannot be read is told from the next as well."""
    try:
        data = store.read(beat_path(epoch))
        found = orjson.loads(data)
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unread": data}


def _held(store: Store, epoch: int) -> LockHeld:
    owner = _holder(store, epoch) or "an unknown writer"
    return LockHeld(
        f"{store.url} is being written by {owner}. Wait for it, or stop it; once it is dead the lock is free "
        f"within {STALE_S + BEAT_S:.0f} s"
    )


def _path(epoch: int) -> str:
    return f"locks/{epoch}.json"


def beat_path(epoch: int) -> str:
    """Where an epoch's holder gives its signs of life."""
    return f"locks/{epoch}.beat.json"
