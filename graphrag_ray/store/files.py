"""Files of one folder at any fsspec URL, with the few operations that durability depends on.

- Files appear whole or not at all, even if the writer is killed.
- `create` makes a file only if it does not exist; exactly one of many concurrent callers succeeds.
- Nothing is cached, so other processes' writes are visible immediately.
- Transient errors are retried with back-off. Other errors say what happened, where, and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import posixpath
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import orjson
import pyarrow as pa

from graphrag_ray.base.errors import SettingsError, StoreError
from graphrag_ray.base.urls import find_secret_options
from graphrag_ray.store.local_files import LocalFiles
from graphrag_ray.store.remote_files import ObjectFiles, is_storage_error

# All attempts together take about 15 seconds if the storage refuses requests. If it does not answer, each
# attempt takes the client's timeout (s3fs: 15 seconds).
ATTEMPTS = 8
FIRST_DELAY_S = 0.2
MAX_DELAY_S = 5.0
GAP_BYTES = (
    128 << 10
)  # On object storage, reading through a gap of this size is cheaper than another request.
RANGE_REQUESTS = 8  # Maximum number of concurrent range requests for one file.
READ_WHOLE_BYTES = 1 << 20  # Files up to this size are read whole, even if only a part is needed.
THREADS = 16  # Maximum number of concurrent requests for different files.

_log = logging.getLogger(__name__)
_sleep = time.sleep
# A separate generator: retries must not advance the global one, which is seeded for community detection.
_jitter = random.Random()

T = TypeVar("T")
X = TypeVar("X")

Backend = LocalFiles | ObjectFiles
# Backends by protocol. `ObjectFiles` serves all others. Local backends get a path instead of a URL.
BACKENDS: dict[str, Callable[[str, Mapping[str, Any]], Backend]] = {"file": LocalFiles}

_open_backends: dict[tuple[int, str, bytes], Backend] = {}
_open_lock = threading.Lock()
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str  # Relative to the store.
    bytes: int
    # Unix seconds by the storage's clock, if known.
    modified: float | None = field(default=None, compare=False)


class Store:
    """A folder at `url`. Stores are picklable and connect on first use in each process.

    All methods, and all functions that take a store, raise StoreError if the storage fails.

    Args:
        url: A local path or an fsspec URL.
        options: Arguments of the fsspec file system. Secrets are refused, because they belong in each node's
            environment or profile. s3:// also takes `region`, `path_style` and `checksums`
            (`remote_files.s3_arguments`).

    Raises:
        SettingsError: If the URL or the options cannot be used.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        if secrets := find_secret_options(self.options):
            raise SettingsError(
                f"Storage options contain a secret ({', '.join(secrets)}). Remove it and set it on each node "
                "in the provider's environment variables (such as AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY) or in a named profile."
            )
        self.url, self._protocol = _normalize(url)

    @classmethod
    def for_file(cls, url: str, options: Mapping[str, Any] | None = None) -> tuple[Store, str]:
        """Return the store of a file's folder and the file's name."""
        folder, name = posixpath.split(url)
        return cls(folder or ("/" if url.startswith("/") else "."), options), name

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and (self.url, self.options) == (other.url, other.options)

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def can_create(self) -> bool:
        """Whether `create` keeps two writers apart. On memory:// and sftp:// it cannot."""
        return self._backend().can_create

    def child(self, path: str) -> Store:
        """Return the store of a folder below this one."""
        return Store(self.url_of(path), self.options)

    def url_of(self, path: str) -> str:
        """Return the URL of a file, for messages."""
        return posixpath.join(self.url, _validate(path))

    def local_path(self, path: str) -> str | None:
        """Return the path of a file on this machine, or None for a remote store."""
        return f"{self.url}/{_validate(path)}" if self._protocol == "file" else None

    def read(self, path: str) -> bytes:
        """Read a whole file. Raises FileNotFoundError."""
        return self._do("read", path, lambda backend: backend.read(_validate(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Read bytes start to end (exclusive, 0 ≤ start < end). Raises FileNotFoundError."""
        return self._do("read", path, lambda backend: backend.read_range(_validate(path), start, end))

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Open a file for random access by pyarrow. Small files are read whole.

        Passing a known `size` in bytes saves a request. Raises FileNotFoundError, also from pyarrow's later
        reads.
        """
        if size is None:
            size = self.size(path)
            if size is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", self.url_of(path))
        if size <= READ_WHOLE_BYTES:
            return pa.BufferReader(self.read(path))
        return pa.PythonFile(_RangeReader(self, path, size), mode="r")

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically: readers see the old or the new one."""
        self._do("write", path, lambda backend: backend.write(_validate(path), data))

    def upload(self, path: str, source: str) -> None:
        """`write` the contents of a local file without loading it. Raises FileNotFoundError."""
        if not os.path.isfile(source):
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._do("write", path, lambda backend: backend.upload(_validate(path), source))

    def create(self, path: str, data: bytes) -> bool:
        """Create a file unless it exists; return whether this call created it.

        If the acknowledgement of a successful request is lost, the repeated request is refused. So a refusal
        counts as success if the file contains `data`, which must be unique among competing callers.
        """
        if not self.can_create and self.url not in _warned:
            _warned.add(self.url)
            _log.warning(
                "%s does not support conditional creation, so concurrent writers cannot detect each other. "
                "Run only one writer at a time there.",
                self.url,
            )

        def attempt(backend: Backend) -> bool:
            if backend.create(_validate(path), data):
                return True
            with contextlib.suppress(FileNotFoundError):  # It was deleted in the meantime.
                return backend.read(path) == data
            return False

        return self._do("create", path, attempt)

    def exists(self, path: str) -> bool:
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        return self._do("access", path, lambda backend: backend.size(_validate(path)))

    def list_temporary(self) -> list[FileInfo]:
        """List the temporary files of killed writers. `list` omits them; `delete` removes them."""
        infos = self._do("list", "", lambda backend: [FileInfo(*file) for file in backend.leftovers()])
        return sorted(infos, key=attrgetter("path"))

    def list_numbers(self, folder: str, name: re.Pattern[str]) -> list[int]:
        """Return the sorted numbers in the names of files below a folder (group 1 of `name`)."""
        matches = (name.fullmatch(info.path) for info in self.list(folder))
        return sorted(int(match.group(1)) for match in matches if match)

    def list(self, folder: str = "") -> list[FileInfo]:
        """List all files below a folder, sorted by path. A missing folder counts as empty."""
        path = _validate(folder) if folder else ""
        try:
            infos = self._do("list", folder, lambda backend: [FileInfo(*file) for file in backend.list(path)])
        except FileNotFoundError as e:  # A missing folder raises no error, so the bucket does not exist.
            advice = "create the bucket or correct the URL"
            raise StoreError(f"Cannot list {self.url}: {_reason(e)}; {advice}") from e
        return sorted(infos, key=attrgetter("path"))

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        self._do("delete", path, lambda backend: backend.delete(_validate(path)))

    def _backend(self) -> Backend:
        """Return this process's backend, whose connections all stores with this URL share."""
        key = (os.getpid(), self.url, orjson.dumps(self.options, option=orjson.OPT_SORT_KEYS, default=str))
        with _open_lock:
            if key not in _open_backends:
                try:
                    open_backend = BACKENDS.get(self._protocol, ObjectFiles)
                    _open_backends[key] = open_backend(self.url, self.options)
                except (ValueError, TypeError, ImportError) as e:
                    raise SettingsError(f"Cannot use storage at {self.url}: {e}") from e
            return _open_backends[key]

    def _do(self, operation: str, path: str, call: Callable[[Backend], T]) -> T:
        backend = self._backend()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call(backend)
            except (FileNotFoundError, StoreError) as e:
                if operation in ("write", "create") and isinstance(e, FileNotFoundError):
                    raise self._failure(operation, path, e) from e
                raise
            except Exception as e:
                transient = backend.is_transient(e)
                if not transient and not is_storage_error(e):
                    raise
                if not transient or attempt == ATTEMPTS:
                    raise self._failure(operation, path, e, attempt) from e
                delay = min(FIRST_DELAY_S * 2 ** (attempt - 1), MAX_DELAY_S) * (0.5 + _jitter.random())
                where = posixpath.join(self.url, path)
                _log.info("Cannot %s %s (%s); retrying in %.1f s", operation, where, _reason(e), delay)
                _sleep(delay)
        raise AssertionError("unreachable")

    def _failure(self, operation: str, path: str, error: Exception, attempts: int = 1) -> StoreError:
        where = self.url_of(path) if path else self.url
        code = error.errno if isinstance(error, OSError) else None
        advice = ""
        if code in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space and run the same command again (all finished work is kept)"
        elif isinstance(error, PermissionError) or code == errno.EROFS:
            advice = "check the permissions and credentials there"
        elif "Credentials" in type(error).__name__:
            advice = (
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this machine's environment, choose a "
                "profile with AWS_PROFILE, or give the machine a role"
            )
        elif attempts > 1:
            where += f" after {attempts} attempts"
            advice = (
                "when the storage is available again, run the same command again (all finished work is kept)"
            )
        # Without a final period, because callers append sentences.
        message = f"Cannot {operation} {where}: {_reason(error)}"
        return StoreError(f"{message}; {advice}" if advice else message)


class _RangeReader(io.RawIOBase):
    """A stored file as a seekable Python file; each read is one request, with the store's retries."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        super().__init__()
        self._store, self._path, self._size, self._position = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        )
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._position + size, self._size)
        if end <= self._position:
            return b""
        data = self._store.read_range(self._path, self._position, end)
        self._position += len(data)
        return data


def _normalize(url: str) -> tuple[str, str]:
    """Return the URL and its protocol. Local paths become absolute, as workers run in other folders."""
    if not url.strip():
        raise SettingsError("The storage URL is empty. Pass a folder or a URL such as s3://bucket/folder.")
    protocol, separator, rest = url.partition("://")
    if separator and "::" in url:
        raise SettingsError(
            f"{url}: chained URLs are not supported, because their caches would hide other writers' changes"
        )
    if not separator or protocol in ("file", "local"):
        return os.path.abspath(os.path.expanduser(rest if separator else url)), "file"
    authority = rest.split("/", 1)[0]
    if ":" in authority.partition("@")[0] and "@" in authority:
        raise SettingsError(f"{protocol}://…@{authority.partition('@')[2]}: remove the password from the URL")
    return url.rstrip("/"), protocol


@lru_cache(4096)  # Cached because it runs for every range that is read.
def _validate(path: str) -> str:
    """Return the path. Raises StoreError if it leads out of the store."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or any(c < " " or c in "\\\x7f" for c in path):
        raise StoreError(
            f"{path!r} is not a path inside a store; use names separated by slashes, without '..'"
        )
    return path


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError) and error.errno is None and str(error) in ("", "None", "Forbidden"):
        return "access denied"  # The server gave no reason.
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return str(error).rstrip(".") or type(error).__name__


def map_in_threads(do: Callable[[X], T], files: Sequence[X], threads: int = THREADS) -> Iterator[T]:
    """Apply `do` to each file in threads and yield the results in order, with few results pending."""
    if len(files) <= 1:  # Faster than a thread, and the usual case in a small index.
        yield from map(do, files)
        return
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="files") as pool:
        for file in files:
            pending.append(pool.submit(do, file))
            if len(pending) == 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
