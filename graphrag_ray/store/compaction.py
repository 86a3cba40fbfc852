"""Keeping the journal to few objects; its totals; and taking items out of it, for good.

Merging is for the holder of the lock. It writes the merged part, reads it back, and deletes what went into
it then; at no moment is a row in no part. A merge that is killed half-way leaves rows in two parts, which
changes nothing that is read (`rows.resolve`) or counted.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.arrow_arrays import arrow, numbers
from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.files import THREADS, FileInfo, Store, in_threads
from graphrag_ray.store.journal import (
    PART_NAME,
    Held,
    JournalIndex,
    Prefixes,
    folder,
    held_in,
    list_parts,
    read_parts,
)

TARGET_BYTES = 24 << 20
"""Size of a merged part in memory; a third to a fifth of it stored. Merging one takes some seven times as
much, in the driver. Ten fit the cache of `journal.py`: readers go through the journal in the order of the
corpus, and neighbours lie in few parts."""
SMALL_BYTES = TARGET_BYTES // 8
"""Stored parts from this size on are left as they are; smaller ones are merged, the last one again and
again until it is that large. What is smaller though it fills more than half of a merged part's memory, as
where all replies are alike, is read each time and stays as it is: a listing does not tell it."""
PIECE_PARTS = 1024
"""What one call merges, and one task on a cluster: at 30 ms a request some 5 s."""
AHEAD_BYTES = 16 << 20
"""Read ahead of what is being merged, as they are stored: a third to a fifth of those in memory."""

_FOLDER = re.compile(r"work/([A-Za-z0-9_-]{1,64})/[^/]+")
_SUMMED = ("attempts", "prompt_tokens", "cached_tokens", "completion_tokens", "latency_s")
_NUMBERS = ("at", "turn", "slot", *_SUMMED)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelTotals:
    """What one model was asked for. latency_s: summed over calls; unreported: calls whose tokens are our
    own count."""

    calls: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    unreported: int = 0
    latency_s: float = 0.0


@dataclass(slots=True)
class JournalTotals:
    """What the journal of a dialogue holds. Items are distinct keys; failed ones have no done row. What was
    put back to be asked again is neither, until it is answered. first_at, last_at: unix seconds of the
    earliest and latest row, 0 for an empty journal."""

    parts: int = 0
    bytes: int = 0
    items: int = 0
    done: int = 0
    failed: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    by_model: dict[str, ModelTotals] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def compact(
    store: Store, dialogue: str, *, at_least: int = 8, check: Callable[[], object] = lambda: None
) -> int:
    """Merge the small parts of a dialogue (`due`); how many parts fewer there are. For the holder of the
    lock. Raises as `merge_parts`."""

    def damaged(error: CorruptPart) -> None:
        _log.warning("%s. It is not merged", error)

    pieces = due(store, dialogue, at_least)
    return sum(merge_parts(store, dialogue, parts, check, damaged) for parts in pieces)


def due(store: Store, dialogue: str, at_least: int = 8) -> list[list[FileInfo]]:
    """The small parts of a dialogue that have small neighbours in time, in pieces that may be merged side by
    side. Parts from SMALL_BYTES on stay as they are. at_least: nothing for fewer small parts than this."""
    grouped = groupby(list_parts(store, dialogue), key=lambda part: part.bytes < SMALL_BYTES)
    runs = [run for is_small, of in grouped if is_small and len(run := list(of)) > 1]
    if sum(map(len, runs)) < at_least:
        return []
    pieces = []
    for run in runs:  # of about the same number of parts, PIECE_PARTS at most
        n = -(-len(run) // PIECE_PARTS)
        ends = [len(run) * i // n for i in range(n + 1)]
        pieces += [run[a:b] for a, b in pairwise(ends)]
    return pieces


def merge_parts(
    store: Store,
    dialogue: str,
    parts: Sequence[FileInfo],
    check: Callable[[], object],
    damaged: Callable[[CorruptPart], object],
) -> int:
    """Merge neighbouring parts into ones of TARGET_BYTES; how many parts fewer there are. For the holder of
    the lock. Their rows are put in order of time, so that what was asked for together lies together.

    check     called before anything is written or deleted; raises when the lock is lost
    damaged   told of parts that cannot be read; they stay as they are (see `damaged_files.py`)

    Raises StoreError, and what `check` raises; the journal is whole whatever happens.
    """
    fewer = 0
    for merged, tables in _groups(store, parts, damaged):
        if len(merged) > 1 and _merge(store, dialogue, merged, tables, check):
            fewer += len(merged) - 1
    return fewer


def _groups(
    store: Store, parts: Sequence[FileInfo], damaged: Callable[[CorruptPart], object]
) -> Iterator[tuple[list[FileInfo], list[pa.Table]]]:
    """Neighbouring parts, as many together as make TARGET_BYTES in memory; little more is held at once.
    Without those that were merged away meanwhile."""

    def read(part: FileInfo) -> pa.Table | Exception:
        try:
            return parquet.read_whole(store, part.path)
        except (CorruptPart, FileNotFoundError) as e:
            return e

    merged: list[FileInfo] = []
    tables: list[pa.Table] = []
    size = 0
    largest = max((part.bytes for part in parts), default=1)
    threads = min(THREADS, max(1, AHEAD_BYTES // (2 * largest)))
    for part, table in zip(parts, in_threads(read, parts, threads), strict=True):
        if isinstance(table, CorruptPart):
            damaged(table)
        if isinstance(table, Exception):
            continue
        if tables and size + table.nbytes > TARGET_BYTES:
            yield merged, tables
            merged, tables, size = [], [], 0
        merged.append(part)
        tables.append(table)
        size += table.nbytes
    yield merged, tables


def _merge(
    store: Store, dialogue: str, parts: list[FileInfo], tables: list[pa.Table], check: Callable[[], object]
) -> bool:
    """Write the rows of some tables, by time, as one part in the place of the parts they came from; False
    where that does not read back. Nothing is deleted then, not even that: the next merge may write it again,
    under the same name, and a deletion that storage carries out late would take that one. Empties `tables`:
    what is merged is large, and its copies are not to be in memory all at once."""
    check()
    table = pa.concat_tables(tables, promote_options="default")
    tables.clear()
    at = journal_rows.numbers(table["at"], "f8")
    if (np.diff(at) < 0).any():
        table = table.take(arrow(np.argsort(at, kind="stable")))
    data = parquet.encode(table, dictionary=journal_rows.FEW_VALUES)
    del table
    matches = [PART_NAME.fullmatch(part.path.rsplit("/", 1)[-1]) for part in parts]
    at_ms = max(m.group(1) for m in matches if m)
    generation = 1 + max(int(m.group(2) or 0) for m in matches if m)
    path = f"{folder(dialogue)}/part-{at_ms}~{generation:04d}-{parquet.content_hash(data)}.parquet"
    check()
    store.write(path, data)
    try:
        parquet.read_bytes(store, path)
    except (CorruptPart, FileNotFoundError):
        _log.warning("%s does not read back as it was written; nothing is deleted", store.url_of(path))
        return False
    check()
    list(in_threads(store.delete, [part.path for part in parts if part.path != path]))
    return True


def totals(store: Store, dialogue: str, since: float = 0.0, until: float = math.inf) -> JournalTotals:
    """Count a journal: every reply that was paid for, once, also replies that lost to another one. Keeps some
    8 bytes of a row and 9 of an item.

    since, until: unix seconds; only rows of that time, and only parts are read that can hold any. Items are
    those of all these parts. Raises StoreError.
    """
    result, counted = JournalTotals(), _Distinct()
    times: list[float] = []
    held: dict[str, Held] = {}

    def take(part: FileInfo, table: pa.Table | CorruptPart) -> None:
        if isinstance(table, CorruptPart):
            _log.warning("%s. It is not counted", table)
            result.damaged.append(part.path)
            return
        held[part.path] = held_in(table)
        at = journal_rows.numbers(table["at"], "f8")
        inside = np.flatnonzero((at >= since) & (at < until))
        # A merge that was killed, or is under way, leaves rows in two parts.
        new = inside[counted.add(_hashes(table)[inside])]
        times.extend([at[new].min(), at[new].max()] if len(new) else [])
        is_turn = journal_rows.kinds(table["kind"])[new] == journal_rows.KINDS.index(journal_rows.TURN)
        turns = table.select(["model", "reported", *_SUMMED]).take(arrow(new[is_turn]))
        encoded = turns["model"].cast(pa.string()).combine_chunks().dictionary_encode()
        columns = {name: turns[name].combine_chunks() for name in _SUMMED}
        columns["reported"] = turns["reported"].cast(pa.int64()).combine_chunks()
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            own = numbers(encoded.indices) == code
            model = result.by_model.setdefault(name, ModelTotals())
            model.calls += int(own.sum())
            model.unreported += int(own.sum() - numbers(columns["reported"])[own].sum())
            for summed in _SUMMED:
                total = numbers(columns[summed])[own].sum().item()
                setattr(model, summed, getattr(model, summed) + total)

    columns = ["key", "kind", "model", "reported", *_NUMBERS]
    parts = read_parts(store, dialogue, columns, take, since=since)
    result.parts, result.bytes = len(parts), sum(part.bytes for part in parts)
    index = JournalIndex(store, dialogue, held)
    result.items, result.done, result.failed = index.n_keys(), index.keys_done(), index.keys_failed()
    result.first_at, result.last_at = float(min(times, default=0.0)), float(max(times, default=0.0))
    result.by_model = dict(sorted(result.by_model.items()))
    return result


class _Distinct:
    """64-bit values that were met: sorted arrays, each more than twice as long as the next, so that a look is
    a few binary searches and a new value moves a few times."""

    def __init__(self) -> None:
        self.runs: list[npt.NDArray[np.uint64]] = []

    def add(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Take some values; which of them were not met before, of equal ones the first."""
        new, places = np.unique(values, return_index=True)
        for run in self.runs:
            at = np.minimum(np.searchsorted(run, new), len(run) - 1)
            new, places = new[run[at] != new], places[run[at] != new]
        first = np.zeros(len(values), dtype=np.bool_)
        first[places] = True
        while self.runs and len(self.runs[-1]) <= 2 * len(new):
            new = np.concatenate([self.runs.pop(), new])
            new.sort(kind="stable")  # two sorted halves: it merges them
        self.runs += [new] if len(new) else []
        return first


def _hashes(table: pa.Table) -> npt.NDArray[np.uint64]:
    """64 bits of what tells a row from others. Of a hundred million rows two different ones have the same
    once in 3,700 times."""
    found = journal_rows.column_prefixes(table["key"])
    columns = [journal_rows.kinds(table["kind"]).astype(np.int64)]
    for name in ("reported", *_NUMBERS):
        type_ = pa.float64() if name in ("at", "latency_s") else pa.int64()
        columns.append(journal_rows.numbers(table[name].cast(type_), np.int64))
    for column in columns:
        # The last step of MurmurHash3 (Appleby, 2011), before each column.
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            found ^= found >> np.uint64(33)
            found *= np.uint64(factor)
        found ^= found >> np.uint64(33)
        found ^= column.view(np.uint64)
    return found


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


def look(store: Store, dialogue: str, keep: Prefixes, *, unreadable: bool = False) -> Trimmed:
    """What `trim` would take away. Raises StoreError.

    keep        first 64 bits of the keys that stay
    unreadable  damaged parts go, too, since nobody can tell what is in them
    """

    def keys_of(part: FileInfo) -> Prefixes | None:
        try:
            return journal_rows.column_prefixes(parquet.read_whole(store, part.path, ["key"])["key"])
        except CorruptPart:
            return None

    found = Trimmed()
    gone = [np.empty(0, np.uint64)]
    parts = list_parts(store, dialogue)
    for part, keys in zip(parts, in_threads(keys_of, parts), strict=True):
        if keys is None:
            found.unreadable += [part] if unreadable else []
        elif len(dropped := keys[~np.isin(keys, keep)]):
            found.parts.append(part)
            found.rows += len(dropped)
            gone.append(np.unique(dropped))
    found.items = len(np.unique(np.concatenate(gone)))
    return found


def trim(
    store: Store, dialogue: str, keep: Prefixes, *, unreadable: bool, check: Callable[[], object]
) -> Trimmed:
    """Write the parts again without the items whose keys are not in `keep`. For the holder of the lock.

    Killed half-way, it leaves rows in two parts, or some that should be gone; the next call takes them.
    Raises StoreError, and what `check` raises.
    """
    found = look(store, dialogue, keep, unreadable=unreadable)
    for part in found.parts:
        table = parquet.read_whole(store, part.path)
        left = table.filter(pa.array(np.isin(journal_rows.column_prefixes(table["key"]), keep)))
        check()
        if not left.num_rows:
            store.delete(part.path)
        elif not _merge(store, dialogue, [part], [left], check):
            raise StoreError(
                f"{store.url_of(part.path)} could not be written again: run the same command again"
            )
    for part in found.unreadable:
        check()
        store.delete(part.path)
    return found
