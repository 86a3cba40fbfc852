"""Parts that are no parquet: files that are mapped into memory where they lie, or where a copy of them does.

tables/<table>/part-<made from>-<hash>.arrow

The first hash says what a part was made from, so that who made it before can find it by a listing; the second
is that of its bytes, as in every part's name. All bytes are checked when a process of this machine opens the
part for the first time, and after that only its size; so is what they say (`opened`), since somebody who made
an index for us to open can have given it the right hash of anything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import pyarrow as pa

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import local_cache, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import FOLDER, MEND, Part

T = TypeVar("T")

SUFFIX = ".arrow"

_PIECE = 16 << 20
_NAME = re.compile(rf"{FOLDER}/[^/]+/part-([0-9a-f]+)-[0-9a-f]+\{SUFFIX}")


def is_blob(path: str) -> bool:
    return path.endswith(SUFFIX)


def write(store: Store, table: str, made_from: str, data: pa.Buffer, rows: int) -> Part:
    """Store a part, unless it is there. made_from: hex. Raises StoreError."""
    path = f"{FOLDER}/{table}/part-{made_from}-{parquet.content_hash(data)}{SUFFIX}"
    if store.size(path) != data.size:
        store.write(path, data.to_pybytes())
    return Part(path, rows, data.size)


def made(store: Store, table: str) -> dict[str, tuple[str, int]]:
    """What parts of a table were made from -> path and bytes. Raises StoreError."""
    listed = ((_NAME.fullmatch(info.path), info) for info in store.list(f"{FOLDER}/{table}"))
    return {match.group(1): (info.path, info.bytes) for match, info in listed if match}


def mapped(store: Store, part: Part) -> pa.Buffer:
    """The bytes of a part, in mapped memory: read from the disk when they are looked at.

    A local store's file is mapped where it lies; any other is fetched once, to the cache of this machine.
    Raises CorruptPart where the part is missing or not what was written; StoreError.
    """
    try:
        local = store.local_path(part.path)
        if local is not None:
            return pa.memory_map(_checked(store, part, local)).read_buffer()
        return _mapped_copy(store, part)
    except FileNotFoundError as e:
        told = f"{store.url_of(part.path)} is missing, though a snapshot needs it"
        raise CorruptPart(f"{told}. {MEND}", path=part.path) from e


def opened(
    store: Store, part: Part, kind: str, read: Callable[[pa.Buffer], T], check: Callable[[T], None]
) -> T:
    """What a part holds, in mapped memory.

    kind   what parts are that are read and checked like this
    read   from the bytes; looks at little of them
    check  looks at all, once on this machine for the same bytes. Both raise ValueError for what we would not
           have written

    Raises CorruptPart; StoreError.
    """
    data = mapped(store, part)
    mark = f"sound-{kind}-{parquet.hash_in_name(part.path)}"
    try:
        found = read(data)
        if not local_cache.is_marked(mark):
            check(found)
            local_cache.set_mark(mark)
        return found
    except ValueError as e:
        where = store.url_of(part.path)
        told = (
            f"{where} is not what graphrag-ray writes there: {e}. If the index is your own, delete that file"
        )
        raise CorruptPart(
            f"{told} and run the same `graphrag-ray index` command again", path=part.path
        ) from e


def check(store: Store, path: str) -> None:
    """Read every byte, some at a time. Raises CorruptPart, FileNotFoundError, StoreError."""
    for _ in range(parquet.READS):
        digest = hashlib.sha256()
        for piece in _pieces(store, path):
            digest.update(piece)
        if parquet.is_named(path, digest.hexdigest()):
            return
    raise CorruptPart(
        f"{store.url_of(path)} is damaged: its bytes do not have the hash in its name", path=path
    )


def forget(store: Store, paths: Iterable[str]) -> None:
    """Delete the copies that this machine has of a remote store's parts. Raises StoreError."""
    blobs = (path for path in paths if is_blob(path) and store.local_path(path) is None)
    local_cache.forget(path.rsplit("/", 1)[-1] for path in blobs)


def _mapped_copy(store: Store, part: Part) -> pa.Buffer:
    """The same for a copy in the cache, where another process may delete it before it is mapped."""
    for _ in range(parquet.READS):
        path = _fetched(store, part)
        with contextlib.suppress(FileNotFoundError):
            return pa.memory_map(path).read_buffer()
    raise StoreError(
        f"copies of {store.url_of(part.path)} vanish from the cache folder before they are read: other "
        f"processes need the room. Set {local_cache.LIMIT_VARIABLE} to more gigabytes, or "
        f"{local_cache.FOLDER_VARIABLE} to a folder of this process alone"
    )


def _checked(store: Store, part: Part, local: str) -> str:
    found = os.stat(local)
    if found.st_size != part.bytes:
        raise _damaged(store, part, found.st_size)
    mark = local_cache.mark(local, found)
    if not local_cache.is_marked(mark):
        try:
            check(store, part.path)
        except CorruptPart as e:
            raise _damaged(store, part, found.st_size) from e
        local_cache.set_mark(mark)
    return local


def _fetched(store: Store, part: Part) -> str:
    name = part.path.rsplit("/", 1)[-1]
    known = local_cache.find(name, part.bytes)
    if known is not None:
        return known
    for _ in range(parquet.READS):
        copied = local_cache.add(name, _pieces(store, part.path), partial(parquet.is_named, name))
        if copied is not None:
            return copied
    raise _damaged(store, part, store.size(part.path))


def _pieces(store: Store, path: str) -> Iterator[bytes]:
    size = store.size(path)
    if size is None:
        raise FileNotFoundError(errno.ENOENT, "no such file", store.url_of(path))
    for start in range(0, size, _PIECE):
        yield store.read_range(path, start, min(start + _PIECE, size))


def _damaged(store: Store, part: Part, found: int | None) -> CorruptPart:
    other = f"it has {found or 0:,} of {part.bytes:,} bytes"
    why = "its bytes do not have the hash in its name" if found == part.bytes else other
    return CorruptPart(f"{store.url_of(part.path)} is damaged: {why}. {MEND}", path=part.path)
