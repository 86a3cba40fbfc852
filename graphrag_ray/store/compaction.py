"""Merge the parts of a journal, total its contents, and remove items permanently.

Callers that merge hold the lock. A merge writes the merged part, reads it back, and only then deletes its
sources, so every row is always in some part. A killed merge leaves rows in two parts. Readers and totals
ignore such duplicates (`journal_rows.resolve`).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.arrow_arrays import to_arrow, to_numpy
from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import journal, journal_rows, parquet
from graphrag_ray.store.files import THREADS, FileInfo, Store, map_in_threads
from graphrag_ray.store.journal import JournalIndex, PartKeys, Prefixes, list_parts

# Size of a merged part in memory; files are three to five times smaller. A merge takes about seven times as
# much memory on the driver. Ten parts fit into the cache of `journal.py`, which suffices because readers
# follow the order of the corpus, and neighbouring items are in few parts.
TARGET_BYTES = 24 << 20
# Files of at least this size are left alone, and smaller ones are merged until they reach it. Merged parts
# with very repetitive replies stay smaller, so every merge reads them again but leaves them unchanged.
SMALL_BYTES = TARGET_BYTES // 8
PIECE_PARTS = 1024  # Parts per `merge_parts` call or cluster task: about 5 s at 30 ms per request.
READ_AHEAD_BYTES = 16 << 20  # In files; three to five times as much in memory.

_FOLDER = re.compile(r"work/([A-Za-z0-9_-]{1,64})/[^/]+")
_SUMMED = ("attempts", "prompt_tokens", "cached_tokens", "completion_tokens", "latency_s")
_NUMBERS = ("at", "turn", "slot", *_SUMMED)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelTotals:
    """The usage of one model. `unreported` is the number of calls whose tokens we counted ourselves."""

    calls: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    unreported: int = 0
    latency_s: float = 0.0


@dataclass(slots=True)
class JournalTotals:
    """The contents of a dialogue's journal. Items marked for retry are neither done nor failed."""

    parts: int = 0
    bytes: int = 0
    items: int = 0  # Distinct keys.
    done: int = 0
    failed: int = 0  # Items with a failure and no done row.
    first_at: float = 0.0  # Unix seconds of the earliest row, or 0.
    last_at: float = 0.0
    by_model: dict[str, ModelTotals] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)  # Paths of parts that are not counted.


def compact(
    store: Store, dialogue: str, *, at_least: int = 8, check: Callable[[], object] = lambda: None
) -> int:
    """Merge the small parts of a dialogue (`find_mergeable`) and return the decrease in their number."""
    damaged = partial(_log.warning, "%s. The part is not merged.")
    pieces = find_mergeable(store, dialogue, at_least)
    return sum(merge_parts(store, dialogue, parts, check, damaged) for parts in pieces)


def find_mergeable(store: Store, dialogue: str, at_least: int = 8) -> list[list[FileInfo]]:
    """Return sequences of small parts, consecutive in time, that can be merged concurrently.

    Returns [] if there are fewer than `at_least` such parts.
    """
    grouped = groupby(list_parts(store, dialogue), key=lambda part: part.bytes < SMALL_BYTES)
    runs = [run for is_small, group in grouped if is_small and len(run := list(group)) > 1]
    if sum(map(len, runs)) < at_least:
        return []
    pieces = []
    for run in runs:  # Cut it into pieces of equal length, at most PIECE_PARTS.
        n = -(-len(run) // PIECE_PARTS)
        ends = [len(run) * i // n for i in range(n + 1)]
        pieces += [run[start:end] for start, end in pairwise(ends)]
    return pieces


def merge_parts(
    store: Store,
    dialogue: str,
    parts: Sequence[FileInfo],
    check: Callable[[], object],
    damaged: Callable[[CorruptPart], object],
) -> int:
    """Merge neighbouring parts into parts of TARGET_BYTES and return the decrease in their number.

    Rows are sorted by time, so that items requested together are stored together. `check` is called before
    each write or deletion and raises when the lock is lost. `damaged` is called for each unreadable part,
    which is not merged.
    """
    fewer = 0
    for merged, tables in _groups(store, parts, damaged):
        if len(merged) > 1 and _merge(store, dialogue, merged, tables, check):
            fewer += len(merged) - 1
    return fewer


def _groups(
    store: Store, parts: Sequence[FileInfo], damaged: Callable[[CorruptPart], object]
) -> Iterator[tuple[list[FileInfo], list[pa.Table]]]:
    """Yield neighbouring parts in groups of TARGET_BYTES, with little more than one group in memory."""

    def read(part: FileInfo) -> pa.Table | Exception:
        try:
            return parquet.read_whole(store, part.path)
        except (CorruptPart, FileNotFoundError) as e:
            return e

    merged: list[FileInfo] = []
    tables: list[pa.Table] = []
    size = 0
    largest = max((part.bytes for part in parts), default=1)
    threads = min(THREADS, max(1, READ_AHEAD_BYTES // (2 * largest)))
    for part, table in zip(parts, map_in_threads(read, parts, threads), strict=True):
        if isinstance(table, CorruptPart):
            damaged(table)
        if isinstance(table, Exception):  # It is damaged, or was merged away in the meantime.
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
    """Replace parts by one with the rows of `tables`, sorted by time. Return whether it reads back correctly.

    Otherwise nothing is deleted, not even the new part: the next merge may write it again under the same
    name, and a delayed deletion would remove that file. Empties `tables` to save memory.
    """
    check()
    table = pa.concat_tables(tables, promote_options="default")
    tables.clear()
    at = journal_rows.column_numbers(table["at"], "f8")
    if (np.diff(at) < 0).any():
        table = table.take(to_arrow(np.argsort(at, kind="stable")))
    data = parquet.encode(table, dictionary=journal_rows.DICTIONARY_COLUMNS)
    del table
    matches = [journal.PART_NAME.fullmatch(part.path.rsplit("/", 1)[-1]) for part in parts]
    at_ms = max(m.group(1) for m in matches if m)
    generation = 1 + max(int(m.group(2) or 0) for m in matches if m)
    name = f"part-{at_ms}~{generation:04d}-{parquet.content_hash(data)}.parquet"
    path = f"{journal.journal_folder(dialogue)}/{name}"
    check()
    store.write(path, data)
    try:
        parquet.read_bytes(store, path)
    except (CorruptPart, FileNotFoundError):
        _log.warning("%s cannot be read back after a merge. The original parts are kept.", store.url_of(path))
        return False
    check()
    list(map_in_threads(store.delete, [part.path for part in parts if part.path != path]))
    return True


def totals(store: Store, dialogue: str, since: float = 0.0, until: float = math.inf) -> JournalTotals:
    """Total a journal, counting every paid reply once, even if another reply to the same request was used.

    Usage is limited to rows from `since` to before `until` (Unix seconds). Items are counted in all parts
    with rows from `since` on. Needs about 8 bytes per row and 9 per item.
    """
    result, seen = JournalTotals(), _DistinctValues()
    times: list[float] = []
    keys: dict[str, PartKeys] = {}

    def consume(part: FileInfo, table: pa.Table | CorruptPart) -> None:
        if isinstance(table, CorruptPart):
            _log.warning("%s. The part is not counted.", table)
            result.damaged.append(part.path)
            return
        keys[part.path] = journal.part_keys(table)
        at = journal_rows.column_numbers(table["at"], "f8")
        inside = np.flatnonzero((at >= since) & (at < until))
        # During a merge, and after a killed one, rows are in two parts.
        new = inside[seen.add(_row_hashes(table)[inside])]
        times.extend([at[new].min(), at[new].max()] if len(new) else [])
        is_turn = journal_rows.kind_codes(table["kind"])[new] == journal_rows.KINDS.index(journal_rows.TURN)
        turns = table.select(["model", "reported", *_SUMMED]).take(to_arrow(new[is_turn]))
        encoded = turns["model"].cast(pa.string()).combine_chunks().dictionary_encode()
        columns = {name: to_numpy(turns[name].combine_chunks()) for name in _SUMMED}
        reported = to_numpy(turns["reported"].cast(pa.int64()).combine_chunks())
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            mask = to_numpy(encoded.indices) == code
            model = result.by_model.setdefault(name, ModelTotals())
            model.calls += int(mask.sum())
            model.unreported += int(mask.sum() - reported[mask].sum())
            for summed, column in columns.items():
                setattr(model, summed, getattr(model, summed) + column[mask].sum().item())

    columns = ["key", "kind", "model", "reported", *_NUMBERS]
    parts = journal.read_parts(store, dialogue, columns, consume, since=since)
    result.parts, result.bytes = len(parts), sum(part.bytes for part in parts)
    index = JournalIndex(store, dialogue, keys)
    result.items, result.done, result.failed = index.count_items(), index.count_done(), index.count_failed()
    result.first_at, result.last_at = float(min(times, default=0.0)), float(max(times, default=0.0))
    result.by_model = dict(sorted(result.by_model.items()))
    return result


class _DistinctValues:
    """A set of 64-bit values in sorted runs, each over twice as long as the next, so that adds are cheap."""

    def __init__(self) -> None:
        self.runs: list[npt.NDArray[np.uint64]] = []

    def add(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Add values and return a mask of the new ones. Of equal new values, only the first is marked."""
        new, positions = np.unique(values, return_index=True)
        for run in self.runs:
            is_missing = run[np.minimum(np.searchsorted(run, new), len(run) - 1)] != new
            new, positions = new[is_missing], positions[is_missing]
        is_new = np.zeros(len(values), dtype=np.bool_)
        is_new[positions] = True
        while self.runs and len(self.runs[-1]) <= 2 * len(new):
            new = np.concatenate([self.runs.pop(), new])
            new.sort(kind="stable")  # Merges the two sorted halves.
        self.runs += [new] if len(new) else []
        return is_new


def _row_hashes(table: pa.Table) -> npt.NDArray[np.uint64]:
    """Hash the columns that identify a row. 100 million rows have a collision with probability 1/3,700."""
    hashes = journal_rows.column_prefixes(table["key"])
    columns = [journal_rows.kind_codes(table["kind"]).astype(np.int64)]
    for name in ("reported", *_NUMBERS):
        type_ = pa.float64() if name in ("at", "latency_s") else pa.int64()
        columns.append(journal_rows.column_numbers(table[name].cast(type_), np.int64))
    for column in columns:
        # Mix the bits with the finalizer of MurmurHash3 (Appleby, 2011) before adding a column.
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            hashes ^= hashes >> np.uint64(33)
            hashes *= np.uint64(factor)
        hashes ^= hashes >> np.uint64(33)
        hashes ^= column.view(np.uint64)
    return hashes


@dataclass
class TrimPlan:
    """What `trim` removes: items (distinct keys), their rows, and whole damaged parts."""

    items: int = 0
    rows: int = 0
    parts: list[FileInfo] = field(default_factory=list)  # The parts with rows to remove.
    damaged: list[FileInfo] = field(default_factory=list)


def list_dialogues(store: Store) -> list[str]:
    """Return the names of all journals of a store."""
    matches = (_FOLDER.fullmatch(info.path) for info in store.list("work"))
    return sorted({match.group(1) for match in matches if match})


def plan_trim(store: Store, dialogue: str, keep: Prefixes, *, drop_damaged: bool = False) -> TrimPlan:
    """Return what `trim` would remove: items not in `keep`, and damaged parts if `drop_damaged`."""

    def keys_of(part: FileInfo) -> Prefixes | None:
        try:
            return journal_rows.column_prefixes(parquet.read_whole(store, part.path, ["key"])["key"])
        except CorruptPart:
            return None

    plan = TrimPlan()
    removed = [np.empty(0, np.uint64)]
    parts = list_parts(store, dialogue)
    for part, keys in zip(parts, map_in_threads(keys_of, parts), strict=True):
        if keys is None:
            plan.damaged += [part] if drop_damaged else []
        elif len(dropped := keys[~np.isin(keys, keep)]):
            plan.parts.append(part)
            plan.rows += len(dropped)
            removed.append(np.unique(dropped))
    plan.items = len(np.unique(np.concatenate(removed)))
    return plan


def trim(
    store: Store, dialogue: str, keep: Prefixes, *, drop_damaged: bool, check: Callable[[], object]
) -> TrimPlan:
    """Remove all items whose keys are not in `keep` from the parts. The caller holds the lock.

    If it is killed, some rows are in two parts or not yet removed. The next call removes them.
    """
    plan = plan_trim(store, dialogue, keep, drop_damaged=drop_damaged)
    for part in plan.parts:
        table = parquet.read_whole(store, part.path)
        remaining = table.filter(pa.array(np.isin(journal_rows.column_prefixes(table["key"]), keep)))
        check()
        if not remaining.num_rows:
            store.delete(part.path)
        elif not _merge(store, dialogue, [part], [remaining], check):
            raise StoreError(f"Cannot rewrite {store.url_of(part.path)}; run the same command again")
    for part in plan.damaged:
        check()
        store.delete(part.path)
    return plan
