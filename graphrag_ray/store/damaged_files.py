"""Files that are not what was written: told apart from sound ones, and set aside.

What is set aside lies in a folder `damaged/` beside its place, where nothing reads it and somebody may look
at it. Whatever it held is made anew by whoever needs it, under its old name. For the holder of the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store, in_threads
from graphrag_ray.store.parts import Part, list_all

FOLDER = "damaged"


def set_aside(store: Store, paths: Iterable[str], *, check: Callable[[], object] = lambda: None) -> list[str]:
    """Move those parts, of a table or a journal, that are damaged; returns where they are now. Raises
    StoreError, and what `check` raises."""
    return [move(store, path, check=check) for path in unsound(store, paths)]


def move(store: Store, path: str, *, check: Callable[[], object] = lambda: None) -> str:
    """Move a file that was found to be damaged; returns where it is now.

    Raises StoreError where less is read than is stored: then it is the reading that fails. Raises
    FileNotFoundError, and what `check` raises.
    """
    for _ in range(parquet.READS):
        data = store.read(path)
        if len(data) == store.size(path):
            break
    else:
        raise StoreError(f"cannot read {store.url_of(path)}: what is read is shorter than what is stored")
    above, _, name = path.rpartition("/")
    target = f"{above}/{FOLDER}/{name}".lstrip("/")
    check()
    store.write(target, data)
    store.delete(path)
    return target


def differing(store: Store, parts: Iterable[Part]) -> dict[str, str]:
    """Parts that are missing or have another size, with what is wrong: few listings, whatever their number.
    Raises StoreError."""
    stored = {info.path: info.bytes for info in list_all(store)}
    wrong = {}
    for part in parts:
        size = stored.get(part.path)
        if size is None:
            wrong[part.path] = "is missing"
        elif size != part.bytes:
            wrong[part.path] = f"has {size:,} of {part.bytes:,} bytes"
    return wrong


def unsound(store: Store, paths: Iterable[str]) -> list[str]:
    """Those of some parts whose bytes do not have the hash in their name; missing ones are left out. Reads
    every byte. Raises StoreError."""

    def is_sound(path: str) -> bool:
        try:
            parquet.check(store, path)
        except CorruptPart:
            return False
        except FileNotFoundError:
            pass
        return True

    listed = list(paths)
    return [path for path, sound in zip(listed, in_threads(is_sound, listed), strict=True) if not sound]
