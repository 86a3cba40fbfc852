"""Failing storage: a backend for `store/files.py` that wraps another one and fails as a seed decides.

Faults stay within what real storage does: an acknowledged operation was carried out, and one that failed may
have been carried out, or will be. Only `cut_reads` and `torn_writes` go further, for formats with checksums.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from graphrag_ray.store import files
from graphrag_ray.store.files import Backend, Store
from graphrag_ray.store.local_files import LocalFiles

IN_A_ROW = 1
"""So often at most an operation fails by chance before it succeeds: a create is several of them, and the
store tries it eight times. For longer faults there is `out_until`."""

LATE_BY = 6
"""Operations after which a write that was given up is carried out after all."""


class Busy(Exception):
    """A transient fault."""


class Killed(BaseException):
    """The process was killed: nothing catches this, and nothing it does afterwards has an effect."""


@dataclass
class Faults:
    """Faults; shares are of operations.

    `refused`: a transient fault, not carried out. `unanswered`: carried out, then a fault. `late`: a write
    that fails and is carried out some operations later. `torn_writes`: part of the bytes is stored, then a
    fault. `cut_reads`: part of the bytes is returned without an error. `delay_s`: each operation takes up to
    that long. `out_until`: operations up to this one get no answer. `final_from`: operations from this one on
    are denied. `die_at`: the change at which the process dies, before or after it, or in the middle if
    `torn_writes` is not 0.
    """

    seed: int = 0
    refused: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    torn_writes: float = 0.0
    cut_reads: float = 0.0
    delay_s: float = 0.0
    out_until: int = 0
    final_from: int | None = None
    die_at: int | None = None


@dataclass
class InMemory:
    """A backend in memory that keeps the contract, for many examples."""

    can_create = True

    held: dict[str, bytes] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, path: str) -> bytes:
        try:
            return self.held[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self.read(path)[start:end]

    def write(self, path: str, data: bytes) -> None:
        self.held[path] = data
        self.at[path] = time.time()

    def upload(self, path: str, source: str) -> None:
        with open(source, "rb") as file:
            self.write(path, file.read())

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            self.at.setdefault(path, time.time())
            return self.held.setdefault(path, data) is data

    def size(self, path: str) -> int | None:
        data = self.held.get(path)
        return None if data is None else len(data)

    def list(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        below = f"{folder}/" if folder else ""
        return (
            (path, len(data), self.at.get(path))
            for path, data in list(self.held.items())
            if path.startswith(below)
        )

    def leftovers(self) -> Iterator[Any]:
        return iter(())

    def delete(self, path: str) -> None:
        self.held.pop(path, None)
        self.at.pop(path, None)

    def is_transient(self, error: BaseException) -> bool:
        return False


class FaultyFiles:
    """`between` is called in the middle of every listing, when part of the files has been seen."""

    def __init__(self, faults: Faults, inner: Backend | None = None) -> None:
        self.faults, self.inner = faults, inner or InMemory()
        self.between: Callable[[], object] = lambda: None
        self.can_create = self.inner.can_create
        self.operations = self.changes = 0
        self.dead = False
        self._random = random.Random(faults.seed)
        self._late: list[tuple[int, str, bytes]] = []
        self._in_a_row: dict[tuple[str, str, int], int] = {}
        self._lock = threading.RLock()

    def heal(self) -> None:
        """Continue without faults in a new process. Delayed writes are carried out."""
        self.faults, self.dead, self.between = Faults(), False, lambda: None
        for _, path, data in self._late:
            self.inner.write(path, data)
        self._late = []

    def read(self, path: str) -> bytes:
        return self._cut("read", path, self._do("read", path, lambda: self.inner.read(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        found = self._do("read_range", path, lambda: self.inner.read_range(path, start, end))
        return self._cut("read_range", path, found)

    def write(self, path: str, data: bytes) -> None:
        self._change("write", path, data, lambda: self.inner.write(path, data))

    def upload(self, path: str, source: str) -> None:
        with open(source, "rb") as file:
            self.write(path, file.read())

    def create(self, path: str, data: bytes) -> bool:
        made = self._change("create", path, data, lambda: self.inner.create(path, data))
        return bool(made)

    def size(self, path: str) -> int | None:
        found: int | None = self._do("size", path, lambda: self.inner.size(path))
        return found

    def list(self, folder: str) -> Iterator[Any]:
        """List in any order, in two steps between which others continue to work."""
        seen = self._do("list", folder, lambda: [*self.inner.list(folder)])
        self._random.shuffle(seen)
        half = seen[: len(seen) // 2]
        between, self.between = self.between, lambda: None
        between()
        self.between = between
        known = {path for path, *_ in half}
        later = [found for found in self.inner.list(folder) if found[0] not in known]
        return iter(half + later)

    def leftovers(self) -> Iterator[Any]:
        return iter(self._do("list", "", lambda: [*self.inner.leftovers()]))

    def delete(self, path: str) -> None:
        self._change("delete", path, None, lambda: self.inner.delete(path))

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, Busy) or self.inner.is_transient(error)

    def _change(self, what: str, path: str, data: bytes | None, act: Callable[[], Any]) -> Any:
        with self._lock:
            if self.dead:
                raise Killed
            if self.faults.die_at is not None and self.changes >= self.faults.die_at:
                self._die(path, data, act)
            self.changes += 1
            if data is not None:
                if what == "write" and self._happens(self.faults.late, what, path):
                    self._late.append((self.operations + LATE_BY, path, data))
                    raise Busy(f"{what} {path}: no answer yet")
                if self._happens(self.faults.torn_writes, what, path):
                    if what == "write" or self.inner.size(path) is None:
                        self.inner.write(path, self._part(data))
                    raise Busy(f"{what} {path}: the connection broke")
        return self._do(what, path, act)

    def _die(self, path: str, data: bytes | None, act: Callable[[], Any]) -> None:
        self.dead = True
        how = self._random.choice(["before", "after", *(["within"] if self.faults.torn_writes else [])])
        if how == "after":
            act()
        elif how == "within" and data is not None and self.inner.size(path) is None:
            self.inner.write(path, self._part(data))
        raise Killed

    def _do(self, what: str, path: str, act: Callable[[], Any]) -> Any:
        with self._lock:
            if self.dead:
                raise Killed
            self._arrive()
            self.operations += 1
            faults = self.faults
            refused = self.operations <= faults.out_until or self._happens(faults.refused, what, path)
            unanswered = not refused and self._happens(faults.unanswered, what, path)
            delay_s = self._random.random() * faults.delay_s
        if faults.final_from is not None and self.operations > faults.final_from:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if delay_s:
            time.sleep(delay_s)
        if refused:
            raise Busy(f"{what} {path}: busy")
        found = act()
        if unanswered:
            raise Busy(f"{what} {path}: the connection broke")
        self._forget(what, path)
        return found

    def _arrive(self) -> None:
        due = [w for w in self._late if w[0] <= self.operations]
        self._late = [w for w in self._late if w[0] > self.operations]
        for _, path, data in due:
            self.inner.write(path, data)

    def _cut(self, what: str, path: str, data: bytes) -> bytes:
        with self._lock:
            if data and self._happens(self.faults.cut_reads, f"cut {what}", path):
                return self._part(data)
            self._forget(f"cut {what}", path)
            return data

    def _part(self, data: bytes) -> bytes:
        return data[: self._random.randrange(len(data))] if data else data

    def _happens(self, share: float, what: str, path: str) -> bool:
        if not share or self._random.random() >= share:
            return False
        name = (what, path, threading.get_ident())
        self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        return self._in_a_row[name] <= (1 if what.startswith("cut") else IN_A_ROW)

    def _forget(self, what: str, path: str) -> None:
        self._in_a_row.pop((what, path, threading.get_ident()), None)


class _Below:
    """A folder of a backend as a backend."""

    def __init__(self, backend: FaultyFiles, folder: str) -> None:
        self._backend, self._folder = backend, folder
        self.can_create = backend.can_create

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._backend, name)
        if name == "is_transient":
            return act
        return lambda path, *more: act(f"{self._folder}/{path}", *more)


_made: dict[str, FaultyFiles] = {}
_number = itertools.count()


def _open(url: str, options: Any) -> Any:
    number, _, folder = url.removeprefix("faulty://").partition("/")
    return _Below(_made[number], folder) if folder else _made[number]


files.BACKENDS["faulty"] = _open


def faulty(faults: Faults | None = None, inner: Backend | None = None) -> tuple[Store, FaultyFiles]:
    """A store with these faults, and its backend. For this process only."""
    number = str(next(_number))
    _made[number] = FaultyFiles(faults or Faults(), inner)
    return Store(f"faulty://{number}"), _made[number]


def on_disk(folder: str) -> LocalFiles:
    return LocalFiles(folder, {})


class Outage(LocalFiles):
    """A local folder that cannot be written while a file named OUT is next to it."""

    def __init__(self, url: str, options: Any) -> None:
        super().__init__(url.removeprefix("outage://"), options)
        files.FIRST_DELAY_S = 0.02  # About 3 s of retries.

    def write(self, path: str, data: bytes) -> None:
        if os.path.exists(f"{self.root}/../OUT"):
            raise Busy("the storage is out of reach")
        super().write(path, data)

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, Busy)


class OutageStore(Store):
    """A store on `Outage`, in workers too: unpickling it imports this file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OutageStore, (self.url, self.options)


files.BACKENDS["outage"] = Outage
