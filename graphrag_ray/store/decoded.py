"""Parts of the journal in memory, their rows found by key; a process keeps those that it used last."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal_rows import JournalRow

CACHE_BYTES = 256 << 20
"""Decoded parts that a process keeps."""


class DecodedPart:
    """A part in memory, its rows found by key."""

    def __init__(self, table: pa.Table) -> None:
        prefixes = journal_rows.column_prefixes(table.column("key"))
        self.table = table
        self._order = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[self._order]

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes) + 16 * len(self._order)

    def rows_of(self, prefixes: npt.NDArray[np.uint64]) -> list[JournalRow]:
        return journal_rows.from_table(self.table.take(journal_rows.indices(self._places(prefixes))))

    def keys_of(self, prefixes: npt.NDArray[np.uint64]) -> list[str]:
        taken = self.table.column("key").take(journal_rows.indices(self._places(prefixes)))
        return taken.to_pylist()  # type: ignore[no-any-return]

    def _places(self, prefixes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        wanted = np.unique(prefixes)
        left = np.searchsorted(self._prefixes, wanted, "left")
        right = np.searchsorted(self._prefixes, wanted, "right")
        spans = [self._order[a:b] for a, b in zip(left, right, strict=True) if b > a]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)


class Cache:
    """The decoded parts last used, up to a number of bytes. Parts never change, so none grows stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._size = limit_bytes, 0
        self._kept: OrderedDict[tuple[str, str], DecodedPart] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: Store, path: str) -> DecodedPart:
        name = (store.url, path)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        decoded = DecodedPart(parquet.read_whole(store, path))
        with self._lock:
            if name not in self._kept:
                self._kept[name] = decoded
                self._size += decoded.nbytes
            while self._size > self._limit and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1].nbytes
        return decoded

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._size = 0


cache = Cache(CACHE_BYTES)
