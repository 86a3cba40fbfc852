"""The parts of a journal: how they are named, and how all of them are read while others merge them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from graphrag_ray.base.errors import StoreError
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.in_threads import in_threads

PART_NAME = re.compile(r"part-(\d{13})(?:-[\w-]+|~(\d{4}))-[0-9a-f]{32}\.parquet", re.ASCII)
WORK = "work"
"""The folder that holds the journals of all dialogues."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Of a dialogue, or of a writer."""
RELOADS = 5
"""Looks at a journal, one after the other, that may find nothing but parts that are gone."""

T = TypeVar("T")


def folder(dialogue: str) -> str:
    """Where the parts of a dialogue are."""
    if not NAME.fullmatch(dialogue):
        raise ValueError(f"a dialogue's name is letters, digits, '_' and '-', not {dialogue!r}")
    return f"{WORK}/{dialogue}"


def list_parts(store: Store, dialogue: str) -> list[FileInfo]:
    """The parts of a dialogue by time. Some may be merged away while they are being read.

    A listing that takes its time can miss both the parts that are merged and the one they went into. The
    merged part is there before the first of them is deleted, so a second listing sees what the first
    missed, and both together miss no row.
    """
    at = folder(dialogue) + "/"
    found = {info.path: info for _ in range(2) for info in store.list(folder(dialogue))}
    return [found[path] for path in sorted(found) if PART_NAME.fullmatch(path.removeprefix(at))]


def read_parts(
    store: Store,
    dialogue: str,
    read: Callable[[FileInfo], T],
    take: Callable[[FileInfo, T], object],
    known: Collection[str] = (),
) -> list[FileInfo]:
    """Read every part of a dialogue but the known ones, many at once. A part that is merged away before it is
    read is in one of the next listing, and that is read then: so no row is missed, and some may come twice.

    read  raises FileNotFoundError where the part is gone
    take  told in this thread what was read

    Returns the last listing, every part of which is known or was read. Raises StoreError, and what `take` and
    `read` raise otherwise.
    """

    def if_there(part: FileInfo) -> list[T]:
        with suppress(FileNotFoundError):
            return [read(part)]
        return []

    seen, rounds = set(known), RELOADS
    while rounds:
        parts = list_parts(store, dialogue)
        new = [part for part in parts if part.path not in seen]
        before = len(seen)
        for part, found in zip(new, in_threads(if_there, new), strict=True):
            for value in found:
                seen.add(part.path)
                take(part, value)
        n_read = len(seen) - before
        if n_read == len(new):
            return parts
        rounds = RELOADS if n_read else rounds - 1
    raise vanishing(store, dialogue)


def vanishing(store: Store, dialogue: str) -> StoreError:
    return StoreError(
        f"the parts of {store.url_of(folder(dialogue))} vanish while they are read: is another program "
        "deleting files there?"
    )
