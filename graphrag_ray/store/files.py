"""A store: one folder at any fsspec URL, with the few operations that durability rests on.

- A file appears whole or not at all, whenever its writer is killed.
- `create` makes a file unless there is one; of many at once exactly one wins.
- Nothing is cached: what another process wrote is seen by the next look.
- Transient faults of object stores are tried again with back-off; everything else is raised, saying what
  happened, where, and what to do.
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
from typing import Any, TypeAlias, TypeVar

import orjson
import pyarrow as pa

from graphrag_ray.base.errors import SettingsError, StoreError
from graphrag_ray.base.urls import secret_options
from graphrag_ray.store.local_files import LocalFiles
from graphrag_ray.store.remote_files import ObjectFiles, is_storage_error

ATTEMPTS = 8
"""Tries of one operation against transient faults: about 15 seconds altogether where the storage refuses;
where it does not answer, each takes the client's own time-out (s3fs: 15 seconds)."""
FIRST_DELAY_S = 0.2
MAX_DELAY_S = 5.0
GAP_BYTES = 128 << 10
"""Of object storage, bytes that nobody wants are read rather than asked for in one more request."""
REQUESTS_AT_ONCE = 8
"""For places of one file."""
WHOLE_BYTES = 1 << 20
"""Files up to this size are read in one request even if only part of them is wanted."""

THREADS = 16
"""Requests for files that a process makes at once."""

_log = logging.getLogger(__name__)
_sleep = time.sleep
# A generator of its own: the global one is seeded for communities and must not be moved by a retry.
_jitter = random.Random()

T = TypeVar("T")
X = TypeVar("X")

Backend: TypeAlias = LocalFiles | ObjectFiles
"""Paths are relative to its root. Errors are its own."""
BACKENDS: dict[str, Callable[[str, Mapping[str, Any]], Backend]] = {"file": LocalFiles}
"""Protocol -> what serves it; `ObjectFiles` serves the others. Local ones are given a path, not a URL."""

_open_backends: dict[tuple[int, str, bytes], Backend] = {}
_open_lock = threading.Lock()
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A listed file: path relative to the store, size in bytes.

    modified: unix seconds of its last change by the clock of the storage; None where that is not known
    """

    path: str
    bytes: int
    modified: float | None = field(default=None, compare=False)


class Store:
    """A folder at `url`: a local path or an fsspec URL. Picklable; opened at first use in each process.

    options: arguments of the fsspec file system without secrets (these come from each node's own
    environment or profile); for s3:// also `region`, `path_style`, `checksums` (see `remote.s3_arguments`).
    Raises SettingsError for a URL or options that cannot be used. Its methods, and all that is given a store,
    raise StoreError where the storage fails.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        secret = secret_options(self.options)
        if secret:
            raise SettingsError(
                f"storage options hold a secret ({', '.join(secret)}): take it out and give it to each node "
                "as its provider's environment variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say) "
                "or as a named profile"
            )
        self.url, self._protocol = _normalised(url)

    @classmethod
    def of_file(cls, url: str, options: Mapping[str, Any] | None = None) -> tuple[Store, str]:
        """The folder of a file, and the file's name in it. Raises SettingsError."""
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
        """False where `create` cannot keep two writers apart (memory://, sftp:// and the like)."""
        return self._backend().can_create

    def child(self, path: str) -> Store:
        """The store of a folder below this one."""
        return Store(self.url_of(path), self.options)

    def url_of(self, path: str) -> str:
        """Where a file is, for people."""
        return posixpath.join(self.url, _checked(path))

    def local_path(self, path: str) -> str | None:
        """Where a file is on this machine; None where the store is elsewhere."""
        return f"{self.url}/{_checked(path)}" if self._protocol == "file" else None

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError, StoreError."""
        return self._do("read", path, lambda b: b.read(_checked(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes start to end (exclusive, 0 ≤ start < end). Raises FileNotFoundError, StoreError."""
        return self._do("read", path, lambda b: b.read_range(_checked(path), start, end))

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        """The file for pyarrow's random access; small ones are read whole at once.

        size: bytes, where a listing has told them; saves a request. Raises FileNotFoundError, StoreError,
        also out of pyarrow's own calls.
        """
        if size is None:
            size = self.size(path)
            if size is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", self.url_of(path))
        if size <= WHOLE_BYTES:
            return pa.BufferReader(self.read(path))
        return pa.PythonFile(_Ranges(self, path, size), mode="r")

    def write(self, path: str, data: bytes) -> None:
        """Replace or make a file in one step; readers see the old or the new one. Raises StoreError."""
        self._do("write", path, lambda b: b.write(_checked(path), data))

    def upload(self, path: str, source: str) -> None:
        """`write`, of what a local file holds: it is never in memory as a whole. Raises StoreError,
        FileNotFoundError where there is no such local file."""
        if not os.path.isfile(source):
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._do("write", path, lambda b: b.upload(_checked(path), source))

    def create(self, path: str, data: bytes) -> bool:
        """Make a file unless there is one; True if this call made it. Raises StoreError.

        An attempt that was answered by a fault, or sent twice on its way, may be refused by its own success.
        So a refusal is a success if the file holds `data`: callers that compete put something of their own
        in it.
        """
        if not self.can_create and self.url not in _warned:
            _warned.add(self.url)
            _log.warning(
                "%s cannot create a file on the condition that there is none: two writers at once would not "
                "notice each other. Let only one write there",
                self.url,
            )

        def attempt(backend: Backend) -> bool:
            if backend.create(_checked(path), data):
                return True
            with contextlib.suppress(FileNotFoundError):  # deleted since
                return backend.read(path) == data
            return False

        return self._do("create", path, attempt)

    def exists(self, path: str) -> bool:
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Bytes of a file; None where there is none. Raises StoreError."""
        return self._do("look at", path, lambda b: b.size(_checked(path)))

    def leftovers(self) -> list[FileInfo]:
        """What writes left behind that a kill ended: files that no listing shows. `delete` takes them."""
        found = self._do("list", "", lambda b: [FileInfo(*f) for f in b.leftovers()])
        return sorted(found, key=attrgetter("path"))

    def numbered(self, folder: str, name: re.Pattern[str]) -> list[int]:
        """The numbers in the names of files below a folder, rising."""
        found = (name.fullmatch(info.path) for info in self.list(folder))
        return sorted(int(match.group(1)) for match in found if match)

    def list(self, folder: str = "") -> list[FileInfo]:
        """All files below a folder, sorted by path; [] for a missing folder. Raises StoreError."""

        below = _checked(folder) if folder else ""
        try:
            found = self._do("list", folder, lambda b: [FileInfo(*f) for f in b.list(below)])
        except FileNotFoundError as e:
            # A missing folder is an empty one, so what is missing here is the bucket.
            raise StoreError(
                f"cannot list {self.url}: {_text(e)}. Create the bucket, or correct the URL"
            ) from e
        return sorted(found, key=attrgetter("path"))

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error. Raises StoreError."""
        self._do("delete", path, lambda b: b.delete(_checked(path)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.url, self.options)

    def _backend(self) -> Backend:
        """One backend a process: its connections are shared by all stores of this URL."""
        name = (os.getpid(), self.url, orjson.dumps(self.options, option=orjson.OPT_SORT_KEYS, default=str))
        with _open_lock:
            if name not in _open_backends:
                try:
                    make = BACKENDS.get(self._protocol, ObjectFiles)
                    _open_backends[name] = make(self.url, self.options)
                except (ValueError, TypeError, ImportError) as e:
                    raise SettingsError(f"cannot use storage at {self.url}: {e}") from e
            return _open_backends[name]

    def _do(self, what: str, path: str, call: Callable[[Backend], T]) -> T:
        backend = self._backend()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call(backend)
            except (FileNotFoundError, StoreError) as e:
                if what in ("write", "create") and isinstance(e, FileNotFoundError):
                    raise StoreError(self._explained(what, path, e)) from e
                raise
            except Exception as e:
                transient = backend.is_transient(e)
                if not transient and not is_storage_error(e):
                    raise
                if not transient or attempt == ATTEMPTS:
                    raise StoreError(self._explained(what, path, e, attempt)) from e
                delay = min(FIRST_DELAY_S * 2 ** (attempt - 1), MAX_DELAY_S) * (0.5 + _jitter.random())
                _log.info("cannot %s %s (%s); again in %.1f s", what, self._where(path), _text(e), delay)
                _sleep(delay)
        raise AssertionError("unreachable")

    def _where(self, path: str) -> str:
        return self.url_of(path) if path else self.url

    def _explained(self, what: str, path: str, error: Exception, attempts: int = 1) -> str:
        where = self._where(path)
        number = error.errno if isinstance(error, OSError) else None
        told = f"cannot {what} {where}: {_text(error)}"
        if number in (errno.ENOSPC, errno.EDQUOT):
            return f"{told}. Make room and run the same command again; everything finished before is kept"
        if isinstance(error, PermissionError) or number == errno.EROFS:
            return f"{told}. Check the permissions and credentials there"
        if "Credentials" in type(error).__name__:
            return (
                f"{told}. Credentials come from this machine's environment (AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY), a profile (AWS_PROFILE), or its role"
            )
        if attempts > 1:
            return (
                f"{told} (the last of {attempts} attempts). When the storage answers again, run the same "
                "command again; everything finished before is kept"
            )
        return told


class _Ranges(io.RawIOBase):
    """A stored file as a Python file that can seek; each read is one request, with the store's retries."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        super().__init__()
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        data = self._store.read_range(self._path, self._at, end)
        self._at += len(data)
        return data


def _normalised(url: str) -> tuple[str, str]:
    """(URL without a trailing slash, protocol); a local one becomes an absolute path, so that it means
    the same in a worker whose working directory is another."""
    if not url.strip():
        raise SettingsError("the storage URL is empty: give a folder or a URL such as s3://bucket/folder")
    protocol, separator, rest = url.partition("://")
    if separator and "::" in url:
        raise SettingsError(f"{url}: chained URLs hold caches, and the store must see what others wrote")
    if not separator or protocol in ("file", "local"):
        return os.path.abspath(os.path.expanduser(rest if separator else url)), "file"
    authority = rest.split("/", 1)[0]
    if ":" in authority.partition("@")[0] and "@" in authority:
        raise SettingsError(f"{protocol}://…@{authority.partition('@')[2]}: take the password out of the URL")
    return url.rstrip("/"), protocol


@lru_cache(4096)  # asked for each range that is read
def _checked(path: str) -> str:
    """A path relative to the store that stays below it."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or any(c < " " or c in "\\\x7f" for c in path):
        raise StoreError(f"{path!r} is not a path inside a store: names with slashes between, no '..'")
    return path


def _text(error: Exception) -> str:
    if isinstance(error, PermissionError) and error.errno is None and str(error) in ("", "None", "Forbidden"):
        return "access is denied"  # an answer without a reason
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return str(error) or type(error).__name__


def in_threads(do: Callable[[X], T], files: Sequence[X], threads: int = THREADS) -> Iterator[T]:
    """What is done with each of many files, in order; few results wait to be taken."""
    if len(files) <= 1:  # most tables of a small index are one: a thread takes longer than they do
        yield from map(do, files)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="files") as pool:
        for file in files:
            waiting.append(pool.submit(do, file))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
