"""Taking items out of the journal, for good: what is left of it is what some keys name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import compaction, journal_rows, parquet
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.journal_parts import list_parts

Keys = npt.NDArray[np.uint64]

_FOLDER = re.compile(r"work/([A-Za-z0-9_-]{1,64})/[^/]+")


@dataclass
class Trimmed:
    """What goes, or went: items (distinct keys), rows, the parts that hold them. unreadable: damaged parts
    that go as a whole."""

    items: int = 0
    rows: int = 0
    parts: list[FileInfo] = field(default_factory=list)
    unreadable: list[FileInfo] = field(default_factory=list)


def dialogues(store: Store) -> list[str]:
    """The names of all journals of a store."""
    found = (_FOLDER.fullmatch(info.path) for info in store.list("work"))
    return sorted({match.group(1) for match in found if match})


def look(store: Store, dialogue: str, keep: Keys, *, unreadable: bool = False) -> Trimmed:
    """What `trim` would take away. Raises StoreError.

    keep        sorted first 64 bits of the keys that stay
    unreadable  damaged parts go, too, since nobody can tell what is in them
    """
    found = Trimmed()
    gone: list[Keys] = []
    parts = list_parts(store, dialogue)
    for part, keys in zip(parts, in_threads(lambda info: _keys(store, info), parts), strict=True):
        if keys is None:
            found.unreadable += [part] if unreadable else []
        elif len(dropped := keys[~_among(keys, keep)]):
            found.parts.append(part)
            found.rows += len(dropped)
            gone.append(np.unique(dropped))
    found.items = len(np.unique(np.concatenate(gone))) if gone else 0
    return found


def trim(
    store: Store, dialogue: str, keep: Keys, *, unreadable: bool, check: Callable[[], object]
) -> Trimmed:
    """Write the parts again without the items whose keys are not in `keep`. For the holder of the lock.

    Killed half-way, it leaves rows in two parts, or some that should be gone; the next call takes them.
    Raises StoreError, and what `check` raises.
    """
    found = look(store, dialogue, keep, unreadable=unreadable)
    for part in found.parts:
        table = parquet.read_whole(store, part.path)
        left = table.filter(pa.array(_among(journal_rows.column_prefixes(table.column("key")), keep)))
        check()
        if not left.num_rows:
            store.delete(part.path)
        elif not compaction.merge(store, dialogue, [part], [left], check):
            raise StoreError(
                f"{store.url_of(part.path)} could not be written again: run the same command again"
            )
    for part in found.unreadable:
        check()
        store.delete(part.path)
    return found


def _keys(store: Store, part: FileInfo) -> Keys | None:
    try:
        return journal_rows.column_prefixes(parquet.read_whole(store, part.path, ["key"]).column("key"))
    except CorruptPart:
        return None


def _among(keys: Keys, keep: Keys) -> npt.NDArray[np.bool_]:
    if not len(keep):
        return np.zeros(len(keys), dtype=np.bool_)
    at = np.minimum(np.searchsorted(keep, keys), len(keep) - 1)
    return np.asarray(keep[at] == keys)
