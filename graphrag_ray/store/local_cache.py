"""The cache of this machine: copies of parts of remote stores, as far as they were read.

The folder is GRAPHRAG_RAY_CACHE, else graphrag-ray under XDG_CACHE_HOME or ~/.cache. It is its user's alone.
Copies are named by their store and their content; what was not used for the longest time goes when they are
more than GRAPHRAG_RAY_CACHE_GB (20) together. Everything in it can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphrag_ray.base.errors import StoreError

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


def forget(names: Iterable[str]) -> None:
    """Delete copies, where there are any. Raises StoreError where one cannot be deleted."""
    at = _place()
    with told_where_it_is():
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (at / name).unlink()


def make_room(newest: Path) -> None:
    """Delete what was not used for the longest time, but not what has just come. Raises StoreError."""
    limit = _limit_bytes()
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


def _limit_bytes() -> float:
    given = os.environ.get(LIMIT_VARIABLE, "")
    try:
        return float(given or LIMIT_GB) * 1e9
    except ValueError:
        raise StoreError(f"{LIMIT_VARIABLE} is a number of gigabytes, not {given!r}") from None


def _place() -> Path:
    for variable, below in ((FOLDER_VARIABLE, ""), ("XDG_CACHE_HOME", "graphrag-ray")):
        if given := os.environ.get(variable):
            return Path(given).expanduser() / below
    try:
        return Path.home() / ".cache" / "graphrag-ray"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"graphrag-ray-{os.geteuid()}"
