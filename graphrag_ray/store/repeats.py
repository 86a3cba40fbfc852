"""Finding requests that were answered twice: by a worker that was thought dead, say, and by the next one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from graphrag_ray.errors import CorruptPart
from graphrag_ray.store import parquet, rows
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.journal import JournalIndex, in_threads, list_parts
from graphrag_ray.store.rows import TURN, JournalRow, standing

_PLACE = np.dtype([("prefix", "u8"), ("turn", "i4"), ("slot", "i4")])


def answered_twice(store: Store, dialogue: str) -> set[str]:
    """Keys of the items with two replies of different times to one request, both of which stand.

    Reads narrow columns of the journal, and the rows of what may be such an item. Raises StoreError.
    """
    parts = list_parts(store, dialogue)
    found = list(in_threads(lambda info: _places(store, info), parts))
    places = np.concatenate(found) if found else np.empty(0, _PLACE)
    values, counts = np.unique(places, return_counts=True)
    suspects = np.unique(values["prefix"][counts > 1])
    if not len(suspects):
        return set()
    index = JournalIndex.load(store, dialogue)
    return {key for key, own in index.rows_like(suspects).items() if _repeats(own)}


def _places(store: Store, info: FileInfo) -> npt.NDArray[np.void]:
    """What each reply of a part answers."""
    try:
        table = parquet.read_columns(store, info.path, ["key", "kind", "turn", "slot"], info.bytes)
    except (
        CorruptPart,
        FileNotFoundError,
    ):  # merged away: what it went into is listed too, or a later look's
        return np.empty(0, _PLACE)
    table = table.filter(pc.equal(table["kind"].cast("string"), TURN))
    places = np.zeros(table.num_rows, _PLACE)
    if table.num_rows:
        places["prefix"] = rows.column_prefixes(table["key"])
        places["turn"], places["slot"] = (rows.numbers(table[name], np.int32) for name in ("turn", "slot"))
    return places


def _repeats(written: list[JournalRow]) -> bool:
    replies = {
        (r.turn, r.slot, r.request_hash, r.at, r.reply, r.vector) for r in standing(written) if r.kind == TURN
    }
    return len({reply[:3] for reply in replies}) < len(replies)
