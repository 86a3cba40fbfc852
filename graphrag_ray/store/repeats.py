"""Finding requests that were answered twice: by a worker that was thought dead, say, and by the next one."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.journal_parts import read_parts
from graphrag_ray.store.journal_rows import TURN, JournalRow, standing

_PLACE = np.dtype([("prefix", "u8"), ("turn", "i4"), ("slot", "i4"), ("at", "f8"), ("latency_s", "f8")])
"""What a reply answers, and what tells it from another one."""
_NUMBERS = ("turn", "slot", "at", "latency_s")


def answered_twice(store: Store, dialogue: str) -> set[str]:
    """Keys of the items with two replies of different times to one request, both of which stand.

    Reads narrow columns of the journal, and the rows of what may be such an item. Raises StoreError.
    """
    found = [np.empty(0, _PLACE)]
    read_parts(store, dialogue, partial(_places, store), lambda _, places: found.append(places))
    # A merge leaves a row in two parts.
    places = np.unique(np.concatenate(found))
    same = np.logical_and.reduce(
        [places[name][1:] == places[name][:-1] for name in ("prefix", "turn", "slot")]
    )
    suspects = np.unique(places["prefix"][1:][same])
    if not len(suspects):
        return set()
    index = JournalIndex.load(store, dialogue)
    return {key for key, own in index.rows_like(suspects).items() if _repeats(own)}


def _places(store: Store, info: FileInfo) -> npt.NDArray[np.void]:
    """Of each reply of a part."""
    try:
        table = parquet.read_columns(store, info.path, ["key", "kind", *_NUMBERS], info.bytes)
    except CorruptPart:
        return np.empty(0, _PLACE)
    table = table.filter(pc.equal(table["kind"].cast("string"), TURN))
    places = np.zeros(table.num_rows, _PLACE)
    if table.num_rows:
        places["prefix"] = journal_rows.column_prefixes(table["key"])
        for name in _NUMBERS:
            places[name] = journal_rows.numbers(table[name], _PLACE[name])
    return places


def _repeats(written: list[JournalRow]) -> bool:
    replies = {
        (r.turn, r.slot, r.request_hash, r.at, r.reply, r.vector) for r in standing(written) if r.kind == TURN
    }
    return len({reply[:3] for reply in replies}) < len(replies)
