"""Columns of ids that come to the driver as integers, part by part: no table's ids are all in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.store.files import Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parts import Part, read_part

Keys = npt.NDArray[np.uint64]
T = TypeVar("T")
_THREADS = 4


def keys(store: Store, parts: Sequence[Part]) -> Keys:
    """The first 64 bits of every id of a table, in order. Raises ValueError for ids that are not ours."""

    def prefixes(table: pa.Table) -> Keys:
        found = id_prefixes(table["id"])
        if found is None:
            raise ValueError("the column id holds what is no id")
        return found

    found = _of_parts(store, parts, ["id"], prefixes)
    return np.concatenate(found) if found else np.empty(0, dtype=np.uint64)


def places_in(ids: Keys, wanted: Keys, by_id: Ints | None = None) -> Ints:
    """The place of each wanted id among others, -1: it is not there. by_id: in which order these rise; None:
    they do."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ids, wanted, sorter=by_id), len(ids) - 1)
    at = at if by_id is None else by_id[at]
    return np.where(ids[at] == wanted, at, -1).astype(np.int64)


def _of_parts(
    store: Store, parts: Sequence[Part], columns: list[str], of: Callable[[pa.Table], T]
) -> list[T]:
    """What a function makes of each part; few parts are in memory at once."""
    return list(in_threads(lambda part: of(read_part(store, part, columns)), parts, _THREADS))
