"""The cache of this machine: copies of parts of remote stores, and marks of local files that were checked.

The folder is GRAPHRAG_RAY_CACHE, else graphrag-ray under XDG_CACHE_HOME or ~/.cache. It is its user's alone.
Copies are named by their content, so all indexes share them; what was not used for the longest time goes
when they are more than GRAPHRAG_RAY_CACHE_GB (20) together. Everything in it can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from graphrag_ray.base.errors import StoreError

FOLDER_VARIABLE = "GRAPHRAG_RAY_CACHE"
LIMIT_VARIABLE = "GRAPHRAG_RAY_CACHE_GB"
LIMIT_GB = 20.0
MAX_FILES = 10_000
"""Marks are empty files: they are bounded by their number."""

_TEMPORARY = ".tmp-"
_ABANDONED_S = 3600.0
"""A download that has written nothing for so long was killed."""
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


def find(name: str, n_bytes: int) -> str | None:
    """The path of a copy; None where there is none of this size. Raises StoreError."""
    path = folder() / name
    try:
        if path.stat().st_size != n_bytes:
            return None
        os.utime(path)
    except OSError:
        return None
    return str(path)


def add(name: str, pieces: Iterable[bytes], is_it: Callable[[str], bool]) -> str | None:
    """Make a copy of what comes in pieces; returns its path, or None where the hash of all is another one.

    is_it: whether a SHA-256 is the right one. Raises StoreError where it cannot be written, and what getting
    the pieces raises.
    """
    final = folder() / name
    temporary = final.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
    hashed = hashlib.sha256()
    try:
        with _told(final.parent):
            file = open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115
        with file:
            for piece in pieces:
                hashed.update(piece)
                with _told(final.parent):
                    file.write(piece)
        if not is_it(hashed.hexdigest()):
            return None
        with _told(final.parent):
            os.replace(temporary, final)
            _make_room(final)
        return str(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _told(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StoreError(f"cannot write to the cache folder {where}: {e.strerror}. {_ELSEWHERE}") from e


def forget(names: Iterable[str]) -> None:
    """Delete copies, where there are any. Raises StoreError where one cannot be deleted."""
    at = _place()
    with _told(at):
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (at / name).unlink()


def mark(path: str, found: os.stat_result) -> str:
    """A name for a file as it is now: another one once it is written or replaced."""
    told = f"{os.path.realpath(path)}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
    return f"checked-{hashlib.sha256(told.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def is_marked(name: str) -> bool:
    """Whether a file was found to be sound. Where there is no cache, none was."""
    with contextlib.suppress(StoreError, OSError):
        os.utime(folder() / name)
        return True
    return False


def set_mark(name: str) -> None:
    """Note that a file is sound, where there is a cache."""
    with contextlib.suppress(StoreError, OSError):
        at = folder() / name
        at.touch(mode=0o600)
        _make_room(at)


def _make_room(newest: Path) -> None:
    """Delete what killed downloads left, and what was not used for the longest time, but not what has just
    come. Downloads under way are counted, and stay."""
    limit = _limit_bytes()
    found = []
    used = 0
    for path in newest.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            seen = path.stat()
            if path.name.startswith(_TEMPORARY) and time.time() - seen.st_mtime > _ABANDONED_S:
                path.unlink()
            elif path == newest or path.name.startswith("."):
                used += seen.st_size
            else:
                found.append((seen.st_mtime, seen.st_size, path))
    found.sort(reverse=True)
    for place, (_, n_bytes, path) in enumerate(found):
        used += n_bytes
        if used > limit or place >= MAX_FILES:
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
