"""Keeping the journal to few objects, and its totals.

Merging is for the holder of the lock. It writes the merged part, reads it back, and deletes what went into
it then; at no moment is a row in no part. A merge that is killed half-way leaves rows in two parts, which
changes nothing that is read (`rows.resolve`). The next one takes the second away where it merges both parts:
not where the merged one is large enough to be left as it is.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.distinct import Distinct, hashes
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.in_threads import THREADS, in_threads
from graphrag_ray.store.journal_parts import PART_NAME, folder, list_parts, read_parts

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
AHEAD_PARTS, AHEAD_BYTES = 256, 8 << 20
"""Read ahead of what is being merged; the bytes as they are stored, a third to a fifth of those in memory."""

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
    """What the journal of a dialogue holds. Items are distinct keys; failed ones have no done row.
    What was put back to be asked again is neither, until it is answered.

    first_at, last_at: unix seconds of the earliest and latest row, 0 for an empty journal.
    """

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
    store: Store,
    dialogue: str,
    *,
    at_least: int = 8,
    check: Callable[[], object] = lambda: None,
    damaged: Callable[[CorruptPart], object] = lambda e: _log.warning("%s. It is not merged", e),
) -> int:
    """Merge the small parts of a dialogue (`due`); how many parts fewer there are. For the holder of the
    lock. Raises as `merge_parts`."""
    pieces = due(store, dialogue, at_least)
    return sum(merge_parts(store, dialogue, parts, check, damaged) for parts in pieces)


def due(store: Store, dialogue: str, at_least: int = 8) -> list[list[FileInfo]]:
    """The small parts of a dialogue that have small neighbours in time, in pieces that may be merged side by
    side. Parts from SMALL_BYTES on stay as they are.

    at_least: nothing for fewer small parts than this. Raises StoreError.
    """
    runs: list[list[FileInfo]] = [[]]
    for part in list_parts(store, dialogue):
        if part.bytes < SMALL_BYTES:
            runs[-1].append(part)
        elif runs[-1]:
            runs.append([])
    runs = [run for run in runs if len(run) > 1]
    if sum(map(len, runs)) < at_least:
        return []
    return [piece for run in runs for piece in _pieces(run)]


def _pieces(run: list[FileInfo]) -> Iterator[list[FileInfo]]:
    """Of about the same number of parts, PIECE_PARTS at most."""
    n = -(-len(run) // PIECE_PARTS)
    ends = [len(run) * i // n for i in range(n + 1)]
    yield from (run[a:b] for a, b in pairwise(ends))


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
        if len(merged) > 1:
            check()
            if merge(store, dialogue, merged, tables, check):
                fewer += len(merged) - 1
    return fewer


def totals(store: Store, dialogue: str, since: float = 0.0, until: float = math.inf) -> JournalTotals:
    """Count a journal: every reply that was paid for, once, also replies that lost to another one. Keeps some
    16 bytes of a row, and 21 more of one that is no reply.

    since, until: unix seconds; only rows of that time, and only parts are read that can hold any. Raises
    StoreError.
    """
    result, keys, counted = JournalTotals(), Distinct(), Distinct()
    models: dict[str, int] = {}
    times: list[float] = []
    ends = [np.empty(0, _END)]

    def take(part: FileInfo, table: pa.Table | str | None) -> None:
        if isinstance(table, str):
            result.damaged.append(part.path)
        elif table is not None:
            records = _as_records(table, models)
            records = records[(records["at"] >= since) & (records["at"] < until)]
            # A merge that was killed, or is under way, leaves rows in two parts.
            records = records[counted.add(hashes(records))]
            keys.add(records["prefix"])
            others = records[records["kind"] != _KINDS[journal_rows.TURN]]
            ends.append(others[list(_END.names or ())].astype(_END))
            times.extend([records["at"].min(), records["at"].max()] if len(records) else [])
            _add_calls(result.by_model, records, list(models))

    listed = read_parts(store, dialogue, partial(_countable, store, since), take)
    parts = [part for part in listed if not _is_before(part, since)]
    result.parts, result.bytes, result.items = len(parts), sum(part.bytes for part in parts), len(keys)
    result.done, result.failed = _ended(np.concatenate(ends))
    result.first_at, result.last_at = float(min(times, default=0.0)), float(max(times, default=0.0))
    result.by_model = dict(sorted(result.by_model.items()))
    return result


def _add_calls(by_model: dict[str, ModelTotals], records: npt.NDArray[np.void], models: list[str]) -> None:
    turns = records[records["kind"] == _KINDS[journal_rows.TURN]]
    for code in np.unique(turns["model"]):
        own, sums = turns[turns["model"] == code], by_model.setdefault(models[code], ModelTotals())
        sums.calls += len(own)
        sums.unreported += int((~own["reported"]).sum())
        sums.latency_s += float(own["latency_s"].sum())
        for name in _SUMMED:
            setattr(sums, name, getattr(sums, name) + int(own[name].sum()))


def _ended(ends: npt.NDArray[np.void]) -> tuple[int, int]:
    """How many items are done, and how many others failed."""
    stands = ends[_stands(ends)]
    done = np.unique(stands["prefix"][stands["kind"] == _KINDS[journal_rows.DONE]])
    failed = np.unique(
        stands["prefix"][np.isin(stands["kind"], (_KINDS[journal_rows.FAILED], _KINDS[journal_rows.KILLED]))]
    )
    return len(done), len(np.setdiff1d(failed, done))


_SUMMED = ("attempts", "prompt_tokens", "cached_tokens", "completion_tokens")
_KINDS = {kind: code for code, kind in enumerate(journal_rows.KINDS)}
_RECORD = np.dtype(
    [
        ("prefix", "u8"),
        ("at", "f8"),
        ("turn", "i4"),
        ("slot", "i4"),
        ("kind", "i1"),
        ("model", "i4"),
        ("reported", "?"),
        ("latency_s", "f8"),
        ("attempts", "i4"),
        ("prompt_tokens", "i8"),
        ("cached_tokens", "i8"),
        ("completion_tokens", "i8"),
    ]
)
_END = np.dtype([(name, _RECORD[name]) for name in ("prefix", "at", "turn", "kind")])
_PLACE = ("prefix", "at", "turn", "slot")


def _is_before(part: FileInfo, since: float) -> bool:
    """By the time in its name: that of its first row, of a merged part no less than its last's."""
    match = PART_NAME.fullmatch(part.path.rsplit("/", 1)[-1])
    return match is not None and int(match.group(1)) / 1000 < math.floor(since)


def _countable(store: Store, since: float, info: FileInfo) -> pa.Table | str | None:
    """The columns that are counted; the path of a damaged part; None for one of an earlier time."""
    if _is_before(info, since):
        return None
    columns = ["key", "kind", *(name for name in _RECORD.names or () if name not in ("prefix", "kind"))]
    try:
        return parquet.read_columns(store, info.path, columns, info.bytes)
    except CorruptPart as e:
        _log.warning("%s. It is not counted", e)
        return info.path


def _as_records(table: pa.Table, models: dict[str, int]) -> npt.NDArray[np.void]:
    records = np.zeros(table.num_rows, dtype=_RECORD)
    records["prefix"] = journal_rows.column_prefixes(table.column("key"))
    records["kind"] = journal_rows.coded(table.column("kind"), lambda kind: _KINDS.get(kind, -1), "i1")
    records["model"] = journal_rows.coded(
        table.column("model"), lambda m: models.setdefault(m, len(models)), "i4"
    )
    records["reported"] = journal_rows.booleans(table.column("reported"))
    for name in ("at", "turn", "slot", "latency_s", *_SUMMED):
        records[name] = journal_rows.numbers(table.column(name), _RECORD[name])
    return records


def _stands(records: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Which records no retry row voids, as far as ends and failures are concerned (`rows.standing`)."""
    retries = records[records["kind"] == _KINDS[journal_rows.RETRY]]
    if not len(retries):
        return np.ones(len(records), dtype=np.bool_)
    # By item the latest retry. It voids every end before it; of failures those of its own turn on.
    retries = np.sort(retries, order=["prefix", "at"])
    last = retries[np.append(retries["prefix"][1:] != retries["prefix"][:-1], True)]
    place = np.minimum(np.searchsorted(last["prefix"], records["prefix"]), len(last) - 1)
    own = last[place]
    voided = (own["prefix"] == records["prefix"]) & (records["at"] <= own["at"])
    kept: npt.NDArray[np.bool_] = ~voided | (
        (records["kind"] == _KINDS[journal_rows.FAILED]) & (records["turn"] < own["turn"])
    )
    return kept


def _groups(
    store: Store, parts: Sequence[FileInfo], damaged: Callable[[CorruptPart], object]
) -> Iterator[tuple[list[FileInfo], list[pa.Table]]]:
    """Neighbouring parts, as many together as make TARGET_BYTES in memory; little more is held at once."""
    merged: list[FileInfo] = []
    tables: list[pa.Table] = []
    size = 0
    for part, table in _read_ahead(store, parts):
        if isinstance(table, CorruptPart):
            damaged(table)
            continue
        if table is None:
            continue
        if tables and size + table.nbytes > TARGET_BYTES:
            yield merged, tables
            merged, tables, size = [], [], 0
        merged.append(part)
        tables.append(table)
        size += table.nbytes
    yield merged, tables


def _read_ahead(
    store: Store, parts: Sequence[FileInfo]
) -> Iterator[tuple[FileInfo, pa.Table | CorruptPart | None]]:
    """Parts with their rows, in order, the next ones read meanwhile: AHEAD_PARTS and AHEAD_BYTES at most, or
    one."""
    left = deque(parts)
    reading: deque[tuple[FileInfo, Future[pa.Table | CorruptPart | None]]] = deque()
    size = 0
    with ThreadPoolExecutor(min(THREADS, max(1, len(parts))), thread_name_prefix="compaction") as pool:
        try:
            while left or reading:
                while left and _fits(len(reading), size + left[0].bytes):
                    reading.append((left[0], pool.submit(_whole, store, left[0])))
                    size += left.popleft().bytes
                part, future = reading.popleft()
                found = future.result()
                size -= part.bytes
                yield part, found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _fits(n_reading: int, n_bytes: int) -> bool:
    return not n_reading or (n_reading < AHEAD_PARTS and n_bytes <= AHEAD_BYTES)


def _whole(store: Store, part: FileInfo) -> pa.Table | CorruptPart | None:
    """None for one that was merged away meanwhile."""
    try:
        return parquet.read_whole(store, part.path)
    except CorruptPart as e:
        return e
    except FileNotFoundError:
        return None


def merge(
    store: Store, dialogue: str, parts: list[FileInfo], tables: list[pa.Table], check: Callable[[], object]
) -> bool:
    """Write the rows of some tables as one part in the place of the parts they came from; False where that
    does not read back. Nothing is deleted then, not even that: the next merge may write it again, under the
    same name, and a deletion that storage carries out late would take that one. Empties `tables`. For the
    holder of the lock."""
    data = _merged(tables)
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
    for _ in in_threads(store.delete, [part.path for part in parts if part.path != path]):
        pass
    return True


def _merged(tables: list[pa.Table]) -> bytes:
    """The rows of some parts by time, as one part. Empties the list: what is merged is large, and its
    copies here are not to be in memory all at once."""
    table = _without_repeats(pa.concat_tables(tables, promote_options="default"))
    tables.clear()
    at = journal_rows.numbers(table["at"], "f8")
    if (np.diff(at) < 0).any():
        table = table.take(journal_rows.indices(np.argsort(at, kind="stable")))
    return parquet.encode(table, dictionary=journal_rows.FEW_VALUES)


def _without_repeats(table: pa.Table) -> pa.Table:
    """The table without the second of rows that are equal in everything, as a killed merge leaves them."""
    records = np.zeros(table.num_rows, dtype=[(name, _RECORD[name]) for name in _PLACE])
    records["prefix"] = journal_rows.column_prefixes(table.column("key"))
    for name in _PLACE[1:]:
        records[name] = journal_rows.numbers(table.column(name), _RECORD[name])
    suspects = np.flatnonzero(_repeated(records))
    if not len(suspects):
        return table
    keep = np.ones(table.num_rows, dtype=np.bool_)
    seen: set[journal_rows.JournalRow] = set()
    for place, row in zip(
        suspects, journal_rows.from_table(table.take(journal_rows.indices(suspects))), strict=True
    ):
        keep[place] = row not in seen
        seen.add(row)
    return table.take(journal_rows.indices(np.flatnonzero(keep)))


def _repeated(records: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Which records share key, time, turn and slot with another: no two replies came at one instant, so
    these are rows that stand twice, or nearly none."""
    order = np.lexsort([records[name] for name in reversed(_PLACE)])
    same = np.ones(max(len(records) - 1, 0), dtype=np.bool_)
    for name in _PLACE:
        values = records[name][order]
        same &= values[1:] == values[:-1]
    repeated = np.zeros(len(records), dtype=np.bool_)
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    return repeated
