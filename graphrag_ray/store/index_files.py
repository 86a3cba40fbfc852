"""Files of search indexes, which are read through a memory map, a few blocks at a time.

A part is stored as `indexes/<table>/part-<source hash>-<content hash>.blocks`: the data, the CRC-32 of each
block, and a tail. Blocks are verified on first access. Local files are mapped directly. Blocks of remote
files are fetched on demand into sparse copies in a private cache folder, which can be deleted at any time.
The contents are untrusted, so readers check every offset that they take from a file.
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
from graphrag_ray.store.files import GAP_BYTES, RANGE_REQUESTS, Store, map_in_threads
from graphrag_ray.store.parts import INDEXES, Part, explain_damage
from graphrag_ray.store.search.mapped_arrays import Ints, expand_ranges

SUFFIX = ".blocks"
BLOCK_BYTES = 8 << 10
TAIL_BYTES = 128 << 10  # Size of the first request: the table of contents is at the end.
REQUEST_BLOCKS = 512  # Maximum number of blocks per request.
CACHE_DIR_ENV = "GRAPHRAG_RAY_CACHE"  # Default: graphrag-ray in XDG_CACHE_HOME or ~/.cache.
CACHE_LIMIT_ENV = "GRAPHRAG_RAY_CACHE_GB"
CACHE_LIMIT_GB = 20.0
EVICT_EVERY_BYTES = 256 << 20  # Number of bytes that a process fetches between two evictions.

_MAX_BYTES = 1 << 40  # The manifest of an untrusted index may claim any size.
_NAME = re.compile(rf"{INDEXES}/[^/]+/part-([0-9a-f]+)-[0-9a-f]+\{SUFFIX}")
_MAGIC = b"grblocks"
_TAIL = struct.Struct("<QIII8s")  # Data bytes, block bytes, number of blocks, CRC-32 of their CRCs, magic.
_USE_ANOTHER_FOLDER = f"Set {CACHE_DIR_ENV} to a private folder."

# Starts at the limit, so that processes that fetch little evict, too: after their first fetch.
_fetched_bytes = [EVICT_EVERY_BYTES]
_lock = threading.Lock()


def write_index_file(store: Store, table: str, source_hash: str, data: bytes, rows: int) -> Part:
    """Store a part unless it exists.

    `source_hash` is a hex hash of the inputs, with which `list_by_source` finds the part.
    """
    checksums = [zlib.crc32(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES)]
    packed_checksums = struct.pack(f"<{len(checksums)}I", *checksums)
    tail = _TAIL.pack(len(data), BLOCK_BYTES, len(checksums), zlib.crc32(packed_checksums), _MAGIC)
    file = b"".join([data, packed_checksums, tail])
    path = f"{INDEXES}/{table}/part-{source_hash}-{parquet.content_hash(file)}{SUFFIX}"
    if store.size(path) != len(file):
        store.write(path, file)
    return Part(path, rows, len(file))


def list_by_source(store: Store, table: str) -> dict[str, tuple[str, int]]:
    """List the parts of a table: source hash -> (path, bytes)."""
    listed = ((source_hash(info.path), info) for info in store.list(f"{INDEXES}/{table}"))
    return {source: (info.path, info.bytes) for source, info in listed if source}


def source_hash(path: str) -> str:
    """Return the source hash in a part's name, or "" if the name has none."""
    match = _NAME.fullmatch(path)
    return match.group(1) if match else ""


def open_part(store: Store, part: Part) -> IndexFile:
    """Open a part, reading only its tail. Raises CorruptPart if it is missing or damaged."""
    with explain_damage(store, part.path):
        return IndexFile(store, part)


class IndexFile:
    """An open part. Implements `mapped_arrays.ByteSource`."""

    data: npt.NDArray[np.uint8]  # Memory-mapped; only ranges passed to `load` may be read.

    def __init__(self, store: Store, part: Part) -> None:
        self.store, self.part = store, part
        if not _TAIL.size <= part.bytes <= _MAX_BYTES:
            raise parquet.corrupt_part(store, part.path, f"its size cannot be {part.bytes:,} bytes")
        local = store.local_path(part.path)
        if local:
            file = os.open(local, os.O_RDONLY)
        else:
            file = _open_sparse(_cache_folder() / _copy_name(store, part), part.bytes)
        self._copy = None if local else file  # The sparse local copy of a remote part.
        try:
            size = os.fstat(file).st_size
            if size != part.bytes:
                raise parquet.corrupt_part(store, part.path, f"it has {size:,} of {part.bytes:,} bytes")
            mapped = np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_READ), np.uint8)
        finally:
            if local:  # The mapping keeps the file open.
                os.close(file)
        tail, start, end = _parse_tail(mapped, part.bytes), 0, b""
        for _ in range(0 if local else parquet.READ_ATTEMPTS):
            if tail:
                break
            tail_bytes = max(TAIL_BYTES, part.bytes // BLOCK_BYTES * 4 + 4 + _TAIL.size)
            start = max(0, part.bytes - tail_bytes) // BLOCK_BYTES * BLOCK_BYTES
            end = store.read_range(part.path, start, part.bytes)
            if tail := _parse_tail(np.frombuffer(end, np.uint8), part.bytes):
                self._write(end[tail[0] - start :], tail[0])
        if not tail:
            raise parquet.corrupt_part(store, part.path, "its tail is invalid")
        size, self._checksums = tail
        self.data, self._verified = mapped[:size], np.zeros(len(self._checksums), np.bool_)
        self._store_blocks(end[: max(0, size - start)], start)

    def __del__(self) -> None:
        if (copy := getattr(self, "_copy", None)) is not None:
            os.close(copy)

    def load(self, starts: Ints, ends: Ints) -> None:
        """Fetch and verify byte ranges of `data`. Raises CorruptPart if a checksum does not match."""
        nonempty = ends > starts
        blocks = expand_ranges(starts[nonempty] // BLOCK_BYTES, -(-ends[nonempty] // BLOCK_BYTES))[0]
        unverified = np.unique(blocks[~self._verified[blocks]])
        if not len(unverified):
            return
        with explain_damage(self.store, self.part.path):
            missing = self._mismatching(unverified)
            for _ in range(0 if self._copy is None else parquet.READ_ATTEMPTS):
                if not len(missing):
                    break
                gaps = np.flatnonzero(np.diff(missing) * BLOCK_BYTES > GAP_BYTES) + 1
                requests = [
                    run[i : i + REQUEST_BLOCKS]
                    for run in np.split(missing, gaps)
                    for i in range(0, len(run), REQUEST_BLOCKS)
                ]
                list(map_in_threads(self._fetch, requests, RANGE_REQUESTS))
                missing = self._mismatching(missing)
            if len(missing):
                raise parquet.corrupt_part(self.store, self.part.path, "a block does not match its checksum")
        self._verified[unverified] = True

    def invalid(self, why: str) -> Exception:
        """Return the error for an intact file with contents that graphrag-ray does not write."""
        return CorruptPart(
            f"{self.store.url_of(self.part.path)} is not a valid index file: {why}. If you trust the "
            "index, delete that file and run the same `graphrag-ray index` command again.",
            path=self.part.path,
        )

    def _mismatching(self, blocks: Ints) -> Ints:
        contents = ((n, self.data[n * BLOCK_BYTES : (n + 1) * BLOCK_BYTES]) for n in blocks.tolist())
        return np.array([n for n, c in contents if zlib.crc32(c.data) != int(self._checksums[n])], np.int64)

    def _fetch(self, blocks: Ints) -> None:
        """Fetch neighbouring blocks, and those in the gaps between them, into the copy."""
        start, end = int(blocks[0]) * BLOCK_BYTES, (int(blocks[-1]) + 1) * BLOCK_BYTES
        self._store_blocks(self.store.read_range(self.part.path, start, min(end, len(self.data))), start)

    def _store_blocks(self, data: bytes, start: int) -> None:
        """Write fetched blocks to the copy, and evict old copies from time to time.

        Blocks that do not match their checksum are skipped, because another process may have intact ones.
        """
        for i in range(0, len(data), BLOCK_BYTES):
            block = data[i : i + BLOCK_BYTES]
            if zlib.crc32(block) == int(self._checksums[(start + i) // BLOCK_BYTES]):
                self._write(block, start + i)
        with _lock:
            _fetched_bytes[0] += len(data)
            is_due = self._copy is not None and _fetched_bytes[0] >= EVICT_EVERY_BYTES
            _fetched_bytes[0] = 0 if is_due else _fetched_bytes[0]
        if is_due:
            with _explain_cache_errors():
                _evict(_cache_folder() / _copy_name(self.store, self.part))

    def _write(self, data: bytes, offset: int) -> None:
        assert self._copy is not None
        with _explain_cache_errors():
            while data:  # A nearly full disk accepts some bytes and refuses the next write.
                n = os.pwrite(self._copy, data, offset)
                data, offset = data[n:], offset + n


def _parse_tail(end: npt.NDArray[np.uint8], file_bytes: int) -> tuple[int, npt.NDArray[np.uint32]] | None:
    """Return the number of data bytes and the block checksums, or None for an invalid tail."""
    if len(end) < _TAIL.size:
        return None
    size, block, count, checksum, magic = _TAIL.unpack(end[-_TAIL.size :].tobytes())
    start = len(end) - _TAIL.size - 4 * count
    if magic != _MAGIC or block != BLOCK_BYTES or count != -(-size // block):
        return None
    if size + 4 * count + _TAIL.size != file_bytes or start < 0:
        return None
    checksums = end[start : start + 4 * count]
    return (size, checksums.view("<u4").copy()) if zlib.crc32(checksums.data) == checksum else None


def delete_copies(store: Store, paths: Iterable[str]) -> None:
    """Delete this machine's copies of a remote store's parts."""
    for path in paths:
        if path.endswith(SUFFIX) and store.local_path(path) is None:
            with _explain_cache_errors():
                for copy in _cache_path().glob(f"{_copy_prefix(store, path)}*"):
                    copy.unlink(missing_ok=True)


def _copy_name(store: Store, part: Part) -> str:
    # The size is part of the name, because a process that has mapped a file is killed if the file shrinks.
    return f"{_copy_prefix(store, part.path)}-{part.bytes}{SUFFIX}"


def _copy_prefix(store: Store, path: str) -> str:
    # The store is part of the name, because another index may have a part with the same path.
    return hashlib.sha256(f"{store.url}\0{path}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _cache_path() -> Path:
    if folder := os.environ.get(CACHE_DIR_ENV):
        return Path(folder).expanduser()
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder).expanduser() / "graphrag-ray"
    try:
        return Path.home() / ".cache" / "graphrag-ray"
    except RuntimeError:  # The user has no home folder.
        return Path(tempfile.gettempdir()) / f"graphrag-ray-{os.geteuid()}"


def _cache_folder() -> Path:
    """Return the cache folder, creating it if needed. Raises StoreError if other users may write to it."""
    folder = _cache_path()
    with _explain_cache_errors():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable_by_others or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
        raise StoreError(
            f"The cache folder {folder} cannot be trusted, because it belongs to another user or others may "
            f"write to it. {_USE_ANOTHER_FOLDER}"
        )
    return folder


@contextlib.contextmanager
def _explain_cache_errors() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        folder = _cache_path()
        raise StoreError(f"Cannot use the cache folder {folder}: {e.strerror}. {_USE_ANOTHER_FOLDER}") from e


def _open_sparse(path: Path, size: int) -> int:
    """Open the copy at `path`, extending it to `size` bytes with holes, and mark it as used."""
    with _explain_cache_errors():
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, size)
            os.utime(file)
        except BaseException:
            os.close(file)
            raise
    return file


def _evict(newest: Path) -> None:
    """Delete the least recently opened copies until the others fit the limit. `newest` always stays."""
    setting = os.environ.get(CACHE_LIMIT_ENV, "")
    try:
        limit = float(setting or CACHE_LIMIT_GB) * 1e9
    except ValueError:
        raise StoreError(f"{CACHE_LIMIT_ENV} must be a number of gigabytes, not {setting!r}") from None
    copies = []
    for path in newest.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # Another process may evict at the same time.
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                copies.append((path == newest, status.st_mtime, status.st_blocks * 512, path))
    used = 0.0
    for is_newest, _, size, path in sorted(copies, reverse=True):
        used += size
        if used > limit and not is_newest:
            path.unlink(missing_ok=True)
