"""Parts that are no parquet: files of which single places are read, in mapped memory.

indexes/<table>/part-<made from>-<hash>.blocks

The first hash says what a part was made from, so that who made it before can find it by a listing; the second
is that of its bytes, as in every part's name. Behind the data stands the CRC-32 of each block of it. A block
is checked when it is first looked at, so that damage is found in what is read, and nothing else is read for
that. What the numbers in it say is hostile input: whoever reads them sees that they do not lead out of it.

A local store's file is mapped where it lies. Of any other the blocks that are looked at are fetched to a file
in the cache of this machine, which has holes where nothing was; a block whose checksum is right is there.

That cache is a folder: GRAPHRAG_RAY_CACHE, else graphrag-ray under XDG_CACHE_HOME or ~/.cache. It is its
user's alone. Copies are named by their store and their content; those that were not opened for the longest
time go when all are more than GRAPHRAG_RAY_CACHE_GB (20). Everything in it can be deleted at any time.
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
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import parquet
from graphrag_ray.store.files import GAP_BYTES, REQUESTS_AT_ONCE, Store, in_threads
from graphrag_ray.store.parts import INDEXES, Part, damage_told
from graphrag_ray.store.search.mapped_arrays import Ints, spread

SUFFIX = ".blocks"
BLOCK_BYTES = 8 << 10
TAIL_BYTES = 128 << 10
"""Read with the first request: what tells where all else is stands at the end."""
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


def opened(store: Store, part: Part) -> Blob:
    """A part, of which nothing but the end is read. Raises CorruptPart where it is missing or not what was
    written; StoreError."""
    with damage_told(store, part.path):
        return Blob(store, part)


class Blob:
    """An opened part: the source of a `MappedArray` (`store/search/mapped_arrays.py`).

    data: [bytes] in mapped memory, of which only what was needed may be looked at
    """

    data: npt.NDArray[np.uint8]

    def __init__(self, store: Store, part: Part) -> None:
        self.store, self.part = store, part
        if not _TAIL.size <= part.bytes <= _MOST_BYTES:
            raise parquet.damaged(store, part.path, f"there is none of {part.bytes:,} bytes")
        local = store.local_path(part.path)
        file = os.open(local, os.O_RDONLY) if local else _sparse(_folder() / _name(store, part), part.bytes)
        self._copy = None if local else file
        """A copy of a remote part, which may have holes."""
        try:
            found = os.fstat(file).st_size
            if found != part.bytes:
                raise parquet.damaged(store, part.path, f"it has {found:,} of {part.bytes:,} bytes")
            mapped = np.frombuffer(mmap.mmap(file, found, access=mmap.ACCESS_READ), np.uint8)
        finally:
            if local:  # the mapping holds the file
                os.close(file)
        tail, start, end = _tail_of(mapped, part.bytes), 0, b""
        for _ in range(0 if local else parquet.READS):
            if tail:
                break
            lacking = max(TAIL_BYTES, part.bytes // BLOCK_BYTES * 4 + 4 + _TAIL.size)
            start = max(0, part.bytes - lacking) // BLOCK_BYTES * BLOCK_BYTES
            end = store.read_range(part.path, start, part.bytes)
            if tail := _tail_of(np.frombuffer(end, np.uint8), part.bytes):
                self._write(end[tail[0] - start :], tail[0])
        if not tail:
            raise parquet.damaged(store, part.path, "its end is not what was written")
        size, self._sums = tail
        self.data, self._sound = mapped[:size], np.zeros(len(self._sums), np.bool_)
        self._keep(end[: max(0, size - start)], start)

    def __del__(self) -> None:
        if (copy := getattr(self, "_copy", None)) is not None:
            os.close(copy)

    def need(self, starts: Ints, ends: Ints) -> None:
        """See that these bytes are there and as they were written. Raises CorruptPart, StoreError."""
        some = ends > starts
        blocks = spread(starts[some] // BLOCK_BYTES, -(-ends[some] // BLOCK_BYTES))[0]
        unseen = np.unique(blocks[~self._sound[blocks]])
        if not len(unseen):
            return
        with damage_told(self.store, self.part.path):
            lacking = self._unsound(unseen)
            for _ in range(0 if self._copy is None else parquet.READS):
                if not len(lacking):
                    break
                near = np.split(lacking, np.flatnonzero(np.diff(lacking) * BLOCK_BYTES > GAP_BYTES) + 1)
                pieces = [
                    of[i : i + REQUEST_BLOCKS] for of in near for i in range(0, len(of), REQUEST_BLOCKS)
                ]
                list(in_threads(self._fetch, pieces, REQUESTS_AT_ONCE))
                lacking = self._unsound(lacking)
            if len(lacking):
                raise parquet.damaged(self.store, self.part.path, "a block does not have its checksum")
        self._sound[unseen] = True

    def refused(self, why: str) -> Exception:
        """Where it has its hash, and holds what we would not have written."""
        told = f"{self.store.url_of(self.part.path)} is not what graphrag-ray writes there: {why}"
        again = "delete that file and run the same `graphrag-ray index` command again"
        return CorruptPart(f"{told}. If the index is your own, {again}", path=self.part.path)

    def _unsound(self, blocks: Ints) -> Ints:
        spans = ((at, self.data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]) for at in blocks.tolist())
        return np.array([at for at, own in spans if zlib.crc32(own.data) != int(self._sums[at])], np.int64)

    def _fetch(self, blocks: Ints) -> None:
        """Bring blocks that lie near each other to the copy, with those between them."""
        start, end = int(blocks[0]) * BLOCK_BYTES, (int(blocks[-1]) + 1) * BLOCK_BYTES
        self._keep(self.store.read_range(self.part.path, start, min(end, len(self.data))), start)

    def _keep(self, data: bytes, start: int) -> None:
        """Write to the copy what was read from a block's start on, but only blocks that have their checksum:
        others may be looking at what is there. Now and then, make room for it."""
        for at in range(0, len(data), BLOCK_BYTES):
            own = data[at : at + BLOCK_BYTES]
            if zlib.crc32(own) == int(self._sums[(start + at) // BLOCK_BYTES]):
                self._write(own, start + at)
        with _lock:
            _written[0] += len(data)
            is_due = self._copy is not None and _written[0] >= LOOK_EACH_BYTES
            _written[0] = 0 if is_due else _written[0]
        if is_due:
            with _told_where_it_is():
                _make_room(_folder() / _name(self.store, self.part))

    def _write(self, data: bytes, at: int) -> None:
        """Put bytes of the part into the copy."""
        assert self._copy is not None
        with _told_where_it_is():
            while data:  # a disk that is nearly full takes some, and tells it with the next
                n = os.pwrite(self._copy, data, at)
                data, at = data[n:], at + n


def _tail_of(end: npt.NDArray[np.uint8], n_bytes: int) -> tuple[int, npt.NDArray[np.uint32]] | None:
    """How many bytes of data a file has, and the checksums of its blocks; None where its end is none.

    end: the last bytes of a file of n_bytes
    """
    if len(end) < _TAIL.size:
        return None
    size, block, count, summed, magic = _TAIL.unpack(end[-_TAIL.size :].tobytes())
    at = len(end) - _TAIL.size - 4 * count
    if magic != _MAGIC or block != BLOCK_BYTES or count != -(-size // block):
        return None
    if size + 4 * count + _TAIL.size != n_bytes or at < 0:
        return None
    sums = end[at : at + 4 * count]
    return (size, sums.view("<u4").copy()) if zlib.crc32(sums.data) == summed else None


def forget(store: Store, paths: Iterable[str]) -> None:
    """Delete the copies that this machine has of a remote store's parts. Raises StoreError."""
    for path in paths:
        if path.endswith(SUFFIX) and store.local_path(path) is None:
            with _told_where_it_is():
                for copy in _place().glob(f"{_store_and_path(store, path)}*"):
                    copy.unlink(missing_ok=True)


def _name(store: Store, part: Part) -> str:
    """Of a copy. Each store has its own: who gives us another index could else give a part of it the name of
    one of ours. So has each size: whoever has mapped a file would be killed if it became shorter."""
    return f"{_store_and_path(store, part.path)}-{part.bytes}{SUFFIX}"


def _store_and_path(store: Store, path: str) -> str:
    return hashlib.sha256(f"{store.url}\0{path}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _place() -> Path:
    for variable, below in ((FOLDER_VARIABLE, ""), ("XDG_CACHE_HOME", "graphrag-ray")):
        if given := os.environ.get(variable):
            return Path(given).expanduser() / below
    try:
        return Path.home() / ".cache" / "graphrag-ray"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"graphrag-ray-{os.geteuid()}"


def _folder() -> Path:
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


@contextlib.contextmanager
def _told_where_it_is() -> Iterator[None]:
    """Raises StoreError where the system refuses what is done here."""
    try:
        yield
    except OSError as e:
        raise StoreError(f"cannot write to the cache folder {_place()}: {e.strerror}. {_ELSEWHERE}") from e


def _sparse(path: Path, n_bytes: int) -> int:
    """The opened file of a copy of so many bytes, which has holes where nothing was fetched yet. Raises
    StoreError where there can be none."""
    with _told_where_it_is():
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, n_bytes)
            os.utime(file)
        except BaseException:
            os.close(file)
            raise
    return file


def _make_room(newest: Path) -> None:
    """Delete what was not used for the longest time, but not what has just come. Raises StoreError."""
    given = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(given or LIMIT_GB) * 1e9
    except ValueError:
        raise StoreError(f"{LIMIT_VARIABLE} is a number of gigabytes, not {given!r}") from None
    found = []
    for path in newest.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            seen = path.stat()
            if stat.S_ISREG(seen.st_mode):
                found.append((path == newest, seen.st_mtime, seen.st_blocks * _SYSTEM_BLOCK, path))
    used = 0.0
    for is_newest, _, n_bytes, path in sorted(found, reverse=True):
        used += n_bytes
        if used > limit and not is_newest:
            path.unlink(missing_ok=True)
