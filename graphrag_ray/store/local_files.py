"""Files in a local folder, written atomically even if the process is killed.

A file is written under a temporary name in the same folder and synced to disk. Then it gets its final name in
one step: by `rename` if it may replace another file, by `link` if it must not.

An index from an untrusted source may contain symbolic links to other folders of this machine. The root itself
may be a link, but nothing is listed, written or deleted through links inside it. Links to files are listed,
and deleting one deletes the link.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from graphrag_ray.base.errors import StoreError

TEMPORARY_PREFIX = ".tmp-"  # Unfinished writes; listings leave them out.

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
# Temporary failures of a network mount. All other errors of a local disk are permanent.
_TRANSIENT = {errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT}


class LocalFiles:
    """The folder `root` (an absolute path); the methods take paths relative to it."""

    can_create = True

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        if options:
            raise ValueError(f"a local folder takes no storage options, got {', '.join(sorted(options))}")
        self.root = root

    def read(self, path: str) -> bytes:
        with _open_regular(self._absolute(path)) as file:
            return file.read()

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with _open_regular(self._absolute(path)) as file:
            end = min(end, os.fstat(file.fileno()).st_size)  # pread allocates the requested size.
            return os.pread(file.fileno(), max(0, end - start), start)

    def write(self, path: str, data: bytes) -> None:
        with self._temporary(path, io.BytesIO(data)) as (temporary, final):
            os.replace(temporary, final)

    def upload(self, path: str, source: str) -> None:
        with open(source, "rb") as file, self._temporary(path, file) as (temporary, final):
            os.replace(temporary, final)

    def create(self, path: str, data: bytes) -> bool:
        """Create a file unless it exists. Exactly one of many concurrent callers gets True.

        Readers never see an incomplete file, except on file systems without hard links (FAT, some network
        mounts), where O_EXCL creates the file before its contents are written.
        """
        with self._temporary(path, io.BytesIO(data)) as (temporary, final):
            try:
                os.link(temporary, final)
            except FileExistsError:
                return False
            except OSError as e:
                if e.errno not in _NO_HARD_LINKS:
                    raise
                try:
                    _write_new(final, io.BytesIO(data))
                except FileExistsError:
                    return False
                except OSError:
                    # We own the name but the contents are incomplete, so release the name.
                    with contextlib.suppress(OSError):
                        os.remove(final)
                    raise
        return True

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if it is missing or a folder."""
        try:
            status = os.stat(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def list(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        """Yield (path, bytes, modification time) of all files below a folder, in any order."""
        return (file for file in self._walk(folder) if not _is_temporary(file[0]))

    def leftovers(self) -> Iterator[tuple[str, int, float | None]]:
        """Yield temporary files like `list`; a running writer may still own one."""
        return (file for file in self._walk("") if _is_temporary(file[0]))

    def _walk(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        self._resolve(f"{folder}/" if folder else "")

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        for parent, folders, files in os.walk(self._absolute(folder), onerror=fail):
            for path in (os.path.join(parent, name) for name in folders):
                if os.path.islink(path):
                    raise self._symlink_error(path[len(self.root) + 1 :])
            for path in (os.path.join(parent, name) for name in files):
                with contextlib.suppress(FileNotFoundError):  # It was deleted in the meantime.
                    status = os.stat(path)
                    yield path[len(self.root) + 1 :], status.st_size, status.st_mtime

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._resolve(path))

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, OSError) and error.errno in _TRANSIENT

    def _absolute(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _resolve(self, path: str) -> str:
        """Return the absolute path for a write, deletion or listing. Raises StoreError for a link."""
        folder = os.path.dirname(path)
        inside = os.path.join(os.path.realpath(self.root), folder).rstrip("/")
        if os.path.realpath(self._absolute(folder)) != inside:
            raise self._symlink_error(folder)
        return self._absolute(path)

    def _symlink_error(self, folder: str) -> StoreError:
        return StoreError(
            f"{self._absolute(folder)} is, or is below, a symbolic link, through which nothing in an index "
            "is listed, written or deleted; put the folder itself there, or make the whole index a link"
        )

    @contextlib.contextmanager
    def _temporary(self, path: str, source: BinaryIO) -> Iterator[tuple[str, str]]:
        """Write and sync a temporary file next to `path`, and remove it afterwards."""
        final = self._resolve(path)
        folder = os.path.dirname(final)
        os.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            _write_new(temporary, source)
            yield temporary, final
            # Make the new name survive a power cut, if the file system supports it.
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)


def _open_regular(path: str) -> io.FileIO:
    """Open a file for reading. Devices and pipes are refused, because reads could block or never end."""
    file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)


def _write_new(path: str, source: BinaryIO) -> None:
    # 0o666 minus the umask, like any program's file; tempfile would make it readable only by its owner.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
