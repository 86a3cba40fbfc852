"""Files in a local folder: whole or absent, whatever moment a process is killed at.

A file is written beside its place under a temporary name, synced to the disk, then given its name in
one step: by `rename` where it may replace another, by `link` where it must not.

A folder from somebody else may hold symbolic links to folders of this machine. The folder itself may be one;
through one inside it nothing is listed, written or deleted. A link to a file is listed; deleting it deletes
the link.
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

TEMPORARY_PREFIX = ".tmp-"
"""Files under such names are writes that never finished; listings leave them out."""

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
# A network mount that hiccups. Everything else that a local disk says is final.
_TRANSIENT = {errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT}


class LocalFiles:
    """The folder `root` (an absolute path). Paths given to the methods are relative to it."""

    can_create = True

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        if options:
            raise ValueError(f"a local folder takes no storage options, got {', '.join(sorted(options))}")
        self.root = root

    def read(self, path: str) -> bytes:
        with _opened(self._at(path)) as file:
            return file.read()

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with _opened(self._at(path)) as file:
            end = min(end, os.fstat(file.fileno()).st_size)  # memory is taken before it is read
            return os.pread(file.fileno(), max(0, end - start), start)

    def write(self, path: str, data: bytes) -> None:
        """Replace or make a file in one step."""
        with self._temporary(path, io.BytesIO(data)) as (temporary, final):
            os.replace(temporary, final)

    def upload(self, path: str, source: str) -> None:
        """Replace or make a file in one step, as a copy of another."""
        with open(source, "rb") as file, self._temporary(path, file) as (temporary, final):
            os.replace(temporary, final)

    def create(self, path: str, data: bytes) -> bool:
        """Make a file unless there is one; of many callers at once exactly one gets True.

        A reader never sees part of it, except on file systems without hard links (FAT, some network
        mounts): there the name is taken with O_EXCL first and filled then.
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
                    # The name is ours and its content is not whole: give the name back.
                    with contextlib.suppress(OSError):
                        os.remove(final)
                    raise
        return True

    def size(self, path: str) -> int | None:
        """Bytes of a file; None where there is none (a folder is none)."""
        try:
            found = os.stat(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        """(path, bytes, time of the last change) of all files below a folder, in no order; nothing for a
        missing folder."""
        return (found for found in self._below(folder) if not _is_temporary(found[0]))

    def leftovers(self) -> Iterator[tuple[str, int, float | None]]:
        """Temporary files, as `list` tells of others. One may belong to a writer at work."""
        return (found for found in self._below("") if _is_temporary(found[0]))

    def _below(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        self._inside(f"{folder}/" if folder else "")
        pending = [folder]
        while pending:
            at = pending.pop()
            try:
                entries = os.scandir(self._at(at) if at else self.root)
            except FileNotFoundError:
                continue
            with entries:
                for entry in entries:
                    path = f"{at}/{entry.name}" if at else entry.name
                    if entry.is_symlink() and entry.is_dir():
                        raise self._led_out(path)
                    if entry.is_dir():
                        pending.append(path)
                    else:
                        # Somebody may delete what we list.
                        with contextlib.suppress(FileNotFoundError):
                            found = entry.stat()
                            yield path, found.st_size, found.st_mtime

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._inside(path))

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, OSError) and error.errno in _TRANSIENT

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _inside(self, path: str) -> str:
        """The same for what is written or deleted. Raises StoreError where a link leads elsewhere."""
        folder = os.path.dirname(path)
        if os.path.realpath(self._at(folder)) != os.path.join(os.path.realpath(self.root), folder).rstrip(
            "/"
        ):
            raise self._led_out(folder)
        return self._at(path)

    def _led_out(self, folder: str) -> StoreError:
        return StoreError(
            f"{self._at(folder)} is, or lies behind, a symbolic link: nothing in an index is looked for, "
            "written or deleted through one. Put the folder itself there, or make the index as a whole a link"
        )

    @contextlib.contextmanager
    def _temporary(self, path: str, source: BinaryIO) -> Iterator[tuple[str, str]]:
        """Write and sync a temporary file in the folder of `path`; it is gone afterwards."""
        final = self._inside(path)
        folder = os.path.dirname(final)
        os.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            _write_new(temporary, source)
            yield temporary, final
            # So that the new name survives a power cut, where the file system knows how.
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)


def _opened(path: str) -> io.FileIO:
    """A file for reading. One that never ends, or never begins (a device, a pipe), is none."""
    file = io.FileIO(path, opener=lambda at, flags: os.open(at, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return file


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)


def _write_new(path: str, source: BinaryIO) -> None:
    # 0o666 under the umask, as any program's file; tempfile would make it readable by its owner alone.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
