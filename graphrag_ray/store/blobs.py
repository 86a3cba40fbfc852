"""Parts that are no parquet: files of which single places are read, in mapped memory.

indexes/<table>/part-<made from>-<hash>.blocks

The first hash says what a part was made from, so that who made it before can find it by a listing; the second
is that of its bytes, as in every part's name. Behind the data stands the CRC-32 of each block of it. A block
is checked when it is first looked at, so that damage is found in what is read, and nothing else is read for
that. What the numbers in it say is hostile input: whoever reads them sees that they do not lead out of it.

A local store's file is mapped where it lies. Of any other the blocks that are looked at are fetched to a file
in the cache of this machine, which has holes where nothing was; a block whose checksum is right is there.

That cache is a folder: GRAPHRAG_RAY_CACHE, else graphrag-ray under XDG_CACHE_HOME or ~/.cache. It is its
user's alone. Copies are named by their store and their content; what was not used for the longest time goes
when they are more than GRAPHRAG_RAY_CACHE_GB (20) together. Everything in it can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import stat
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import parquet
from graphrag_ray.store.files import GAP_BYTES, REQUESTS_AT_ONCE, Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parts import INDEXES, Part, damage_told

SUFFIX = ".blocks"
BLOCK_BYTES = 8 << 10
TAIL_BYTES = 128 << 10
"""Read with the first request: what tells where all else is stands at the end."""
NOTED_S = 60.0
REQUEST_BLOCKS = 512
"""Of one request, at most."""

_MOST_BYTES = 1 << 40
"""The list of parts of an index from a stranger may name any size."""
_NAME = re.compile(rf"{INDEXES}/[^/]+/part-([0-9a-f]+)-[0-9a-f]+\{SUFFIX}")
_MAGIC = b"grblocks"
_TAIL = struct.Struct("<QIII8s")
"""Bytes of the data, of a block; how many blocks there are; CRC-32 of their checksums; the magic."""

FOLDER_VARIABLE = "GRAPHRAG_RAY_CACHE"
LIMIT_VARIABLE = "GRAPHRAG_RAY_CACHE_GB"
LIMIT_GB = 20.0
LOOK_EACH_BYTES = 256 << 20
"""After so much was fetched by a process, it makes room."""
_SYSTEM_BLOCK = 512
"""Bytes, of which stat tells how many a file takes."""

_written = [LOOK_EACH_BYTES]
"""Many processes fetch less: each makes room with the first that it fetches."""
_lock = threading.Lock()
_ELSEWHERE = f"Set {FOLDER_VARIABLE} to a folder of your own"

Ints = npt.NDArray[np.int64]


def is_blob(path: str) -> bool:
    return path.endswith(SUFFIX)


def write(store: Store, table: str, made_from: str, data: bytes, rows: int) -> Part:
    """Store a part, unless it is there. made_from: hex. Raises StoreError."""
    sums = [zlib.crc32(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    summed = struct.pack(f"<{len(sums)}I", *sums)
    tail = _TAIL.pack(len(data), BLOCK_BYTES, len(sums), zlib.crc32(summed), _MAGIC)
    file = b"".join([data, summed, tail])
    path = f"{INDEXES}/{table}/part-{made_from}-{parquet.content_hash(file)}{SUFFIX}"
    if store.size(path) != len(file):
        store.write(path, file)
    return Part(path, rows, len(file))


def made(store: Store, table: str) -> dict[str, tuple[str, int]]:
    """What parts of a table were made from -> path and bytes. Raises StoreError."""
    listed = ((made_from(info.path), info) for info in store.list(f"{INDEXES}/{table}"))
    return {of: (info.path, info.bytes) for of, info in listed if of}


def made_from(path: str) -> str:
    """What a part was made from, by its name; "" where that does not say so."""
    match = _NAME.fullmatch(path)
    return match.group(1) if match else ""


@dataclass(frozen=True)
class Blob:
    """An opened part: the source of a `MappedArray` (`store/search/mapped_arrays.py`).

    data: [bytes] in mapped memory, of which only what was needed may be looked at
    """

    store: Store
    part: Part
    _mapped: _Mapped
    data: npt.NDArray[np.uint8]
    _sums: npt.NDArray[np.uint32]
    _sound: npt.NDArray[np.bool_]
    """[blocks] that were looked at."""

    def need(self, starts: Ints, ends: Ints) -> None:
        """See that these bytes are there and as they were written. Raises CorruptPart, StoreError."""
        some = ends > starts
        first, last = starts[some] // BLOCK_BYTES, -(-ends[some] // BLOCK_BYTES)
        if not len(first):
            return
        lengths = last - first
        places = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
        lacking = np.unique(places[~self._sound[places]])
        if len(lacking):
            with damage_told(self.store, self.part.path):
                self._see_to(lacking)
            self._sound[lacking] = True
        self._mapped.note_used()

    def refused(self, why: str) -> Exception:
        """Where it has its hash, and holds what we would not have written."""
        told = f"{self.store.url_of(self.part.path)} is not what graphrag-ray writes there: {why}"
        again = "delete that file and run the same `graphrag-ray index` command again"
        return CorruptPart(f"{told}. If the index is your own, {again}", path=self.part.path)

    def _see_to(self, blocks: Ints) -> None:
        lacking = self._unsound(blocks)
        for _ in range(parquet.READS if self._mapped.is_copy else 0):
            if not len(lacking):
                return
            near = np.split(lacking, np.flatnonzero(np.diff(lacking) * BLOCK_BYTES > GAP_BYTES) + 1)
            pieces = [of[at : at + REQUEST_BLOCKS] for of in near for at in range(0, len(of), REQUEST_BLOCKS)]
            list(in_threads(self._fetch, pieces, REQUESTS_AT_ONCE))
            lacking = self._unsound(lacking)
        if len(lacking):
            raise _damaged(self.store, self.part, "a block does not have its checksum")

    def _fetch(self, blocks: Ints) -> None:
        """Bring blocks that lie near each other to the copy, with those between them."""
        start, end = int(blocks[0]) * BLOCK_BYTES, (int(blocks[-1]) + 1) * BLOCK_BYTES
        self._keep(self.store.read_range(self.part.path, start, min(end, len(self.data))), start)

    def _keep(self, data: bytes, start: int) -> None:
        """Write to the copy what was read from a block's start on, but only blocks that have their checksum:
        others may be looking at what is there."""
        for at in range(0, len(data), BLOCK_BYTES):
            own = data[at : at + BLOCK_BYTES]
            if zlib.crc32(own) == int(self._sums[(start + at) // BLOCK_BYTES]):
                self._mapped.write(own, start + at)
        note_written(len(data), _name(self.store, self.part.path))

    def _unsound(self, blocks: Ints) -> Ints:
        def is_sound(block: int) -> bool:
            at = block * BLOCK_BYTES
            return zlib.crc32(self.data[at : at + BLOCK_BYTES].data) == int(self._sums[block])

        return np.array([at for at in blocks.tolist() if not is_sound(at)], np.int64)


def opened(store: Store, part: Part) -> Blob:
    """A part, of which nothing but the end is read. Raises CorruptPart where it is missing or not what was
    written; StoreError."""
    with damage_told(store, part.path):
        if not _TAIL.size <= part.bytes <= _MOST_BYTES:
            raise _damaged(store, part, f"there is none of {part.bytes:,} bytes")
        mapped = _Mapped(store, part)
        tail, start, data = _tail_of(mapped.data, part.bytes), 0, b""
        for _ in range(parquet.READS if mapped.is_copy else 0):
            if tail:
                break
            sums_bytes = part.bytes // BLOCK_BYTES * 4 + 4
            start = max(0, part.bytes - max(TAIL_BYTES, sums_bytes + _TAIL.size)) // BLOCK_BYTES * BLOCK_BYTES
            data = store.read_range(part.path, start, part.bytes)
            if told := _tail_of(np.frombuffer(data, np.uint8), part.bytes):
                mapped.write(data[told[0] - start :], told[0])
                tail = _tail_of(mapped.data, part.bytes)
        if not tail:
            raise _damaged(store, part, "its end is not what was written")
        size, sums = tail
        found = Blob(store, part, mapped, mapped.data[:size], sums, np.zeros(len(sums), np.bool_))
        found._keep(data[: max(0, size - start)], start)
        return found


def forget(store: Store, paths: Iterable[str]) -> None:
    """Delete the copies that this machine has of a remote store's parts. Raises StoreError."""
    for path in paths:
        if is_blob(path) and store.local_path(path) is None:
            with told_where_it_is(), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (_place() / _name(store, path)).unlink()


class _Mapped:
    """A part's file in mapped memory. data: [bytes]; is_copy: a copy of a remote part, which may have holes.

    Raises CorruptPart where it has another size than the part; StoreError, OSError."""

    def __init__(self, store: Store, part: Part) -> None:
        local = store.local_path(part.path)
        self.is_copy = local is None
        self._noted = time.monotonic()
        self._file = os.open(local, os.O_RDONLY) if local else sparse(_name(store, part.path), part.bytes)
        found = os.fstat(self._file).st_size
        if found != part.bytes:
            raise _damaged(store, part, f"it has {found:,} of {part.bytes:,} bytes")
        memory = mmap.mmap(self._file, found, access=mmap.ACCESS_READ)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        if not self.is_copy:  # the mapping holds the file
            os.close(self._file)
            del self._file

    def write(self, data: bytes, at: int) -> None:
        """Put bytes of the part into the copy."""
        with told_where_it_is():
            while data:  # a disk that is nearly full takes some, and tells it with the next
                n = os.pwrite(self._file, data, at)
                data, at = data[n:], at + n

    def note_used(self) -> None:
        """Now and then, so that a copy that is read all the time is not one of those that go."""
        now = time.monotonic()
        if self.is_copy and now > self._noted + NOTED_S:
            self._noted = now
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            with contextlib.suppress(OSError):
                os.close(self._file)


def _tail_of(end: npt.NDArray[np.uint8], n_bytes: int) -> tuple[int, Any] | None:
    """How many bytes of data a file has, and the checksums of its blocks; None where its end is none.

    end: the last bytes of a file of n_bytes
    """
    if len(end) < _TAIL.size:
        return None
    size, block, count, summed, magic = _TAIL.unpack(end[-_TAIL.size :].tobytes())
    if magic != _MAGIC or block != BLOCK_BYTES or count != -(-size // block):
        return None
    at = len(end) - _TAIL.size - 4 * count
    if size + 4 * count + _TAIL.size != n_bytes or at < 0:
        return None
    sums = end[at : at + 4 * count]
    return (size, sums.view("<u4")) if zlib.crc32(sums.data) == summed else None


def _name(store: Store, path: str) -> str:
    """Of a copy. Each store has its own: who gives us another index could else give a part of it the name of
    one of ours."""
    of = f"{store.url}\0{path}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(of).hexdigest()[:32] + SUFFIX


def _damaged(store: Store, part: Part, why: str) -> CorruptPart:
    return CorruptPart(f"{store.url_of(part.path)} is damaged: {why}", path=part.path)


def folder() -> Path:
    """Where it is; made if need be. Raises StoreError where others could write there."""
    at = _place()
    try:
        at.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = at.stat()
    except OSError as e:
        raise StoreError(f"cannot use the cache folder {at}: {e.strerror}. {_ELSEWHERE}") from e
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
        raise StoreError(
            f"the cache folder {at} is another user's, or others may write there: what is read from it could "
            f"be anything. {_ELSEWHERE}"
        )
    return at


def sparse(name: str, n_bytes: int) -> int:
    """The opened file of a copy of so many bytes, which has holes where nothing was fetched yet. Raises
    StoreError where there can be none."""
    path = folder() / name
    with told_where_it_is():
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size not in (0, n_bytes):
                # Whoever has mapped it would be killed if it became shorter: they keep it.
                path.unlink(missing_ok=True)
                another = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                os.close(file)
                file = another
            os.ftruncate(file, n_bytes)
            os.utime(file)
        except BaseException:
            os.close(file)
            raise
    return file


def note_written(n_bytes: int, name: str) -> None:
    """That a copy has grown. Now and then room is made for it."""
    with _lock:
        _written[0] += n_bytes
        if _written[0] < LOOK_EACH_BYTES:
            return
        _written[0] = 0
    at = folder() / name
    with told_where_it_is():
        make_room(at)


@contextlib.contextmanager
def told_where_it_is() -> Iterator[None]:
    """Raises StoreError where the system refuses what is done here."""
    try:
        yield
    except OSError as e:
        raise StoreError(f"cannot write to the cache folder {_place()}: {e.strerror}. {_ELSEWHERE}") from e


def make_room(newest: Path) -> None:
    """Delete what was not used for the longest time, but not what has just come. Raises StoreError."""
    given = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(given or LIMIT_GB) * 1e9
    except ValueError:
        raise StoreError(f"{LIMIT_VARIABLE} is a number of gigabytes, not {given!r}") from None
    found = []
    used = 0.0
    for path in newest.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            seen = path.stat()
            if stat.S_ISREG(seen.st_mode):
                found.append((path == newest, seen.st_mtime, seen.st_blocks * _SYSTEM_BLOCK, path))
    for is_newest, _, n_bytes, path in sorted(found, reverse=True):
        used += n_bytes
        if used > limit and not is_newest:
            path.unlink(missing_ok=True)


def _place() -> Path:
    for variable, below in ((FOLDER_VARIABLE, ""), ("XDG_CACHE_HOME", "graphrag-ray")):
        if given := os.environ.get(variable):
            return Path(given).expanduser() / below
    try:
        return Path.home() / ".cache" / "graphrag-ray"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"graphrag-ray-{os.geteuid()}"
