"""Find damaged files and set them aside.

A damaged file is moved to a `damaged/` folder next to it, which nothing reads, so that it can be inspected.
The next run that needs its contents rebuilds them under the old name. Callers hold the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store, map_in_threads
from graphrag_ray.store.parts import Part, list_parts

FOLDER = "damaged"


def set_aside(store: Store, paths: Iterable[str], *, check: Callable[[], object] = lambda: None) -> list[str]:
    """Move damaged files away and return their new paths. `check` raises when the lock is lost."""
    return [move_to_damaged(store, path, check=check) for path in find_damaged(store, paths)]


def move_to_damaged(store: Store, path: str, *, check: Callable[[], object] = lambda: None) -> str:
    """Move a damaged file and return its new path. Raises FileNotFoundError if it is gone.

    Raises StoreError if reads return fewer bytes than are stored, because the file may then be intact.
    """
    for _ in range(parquet.READ_ATTEMPTS):
        data = store.read(path)
        if len(data) == store.size(path):
            break
    else:
        raise StoreError(f"Cannot read {store.url_of(path)}: reads return fewer bytes than are stored")
    parent, _, name = path.rpartition("/")
    target = f"{parent}/{FOLDER}/{name}".lstrip("/")
    check()
    store.write(target, data)
    store.delete(path)
    return target


def find_size_mismatches(store: Store, parts: Iterable[Part]) -> dict[str, str]:
    """Return path -> problem for parts that are missing or have the wrong size. Reads no files."""
    stored = {info.path: info.bytes for info in list_parts(store)}
    problems = {}
    for part in parts:
        if (size := stored.get(part.path)) is None:
            problems[part.path] = "is missing"
        elif size != part.bytes:
            problems[part.path] = f"has {size:,} of {part.bytes:,} bytes"
    return problems


def find_damaged(store: Store, paths: Iterable[str]) -> list[str]:
    """Return the paths of existing files that do not match the hash in their name. Reads every byte."""

    def is_damaged(path: str) -> bool:
        try:
            parquet.check(store, path)
        except CorruptPart:
            return True
        except FileNotFoundError:
            pass
        return False

    listed = list(paths)
    damaged = map_in_threads(is_damaged, listed)
    return [path for path, is_bad in zip(listed, damaged, strict=True) if is_bad]
