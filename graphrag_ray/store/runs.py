"""What each run was given and how it ended, whether or not it came to a snapshot.

    runs/<epoch>.json        epoch: of the lock under which it ran
    runs/<epoch>.live.json   how far it is, every few seconds; gone when it has ended
    runs/refused.json        the last attempt that came to no run: bad settings, nothing to read, …

Written when a run starts, after each of its steps and when it ends, by the holder of the lock alone. A record
that says "running" while somebody else, or nobody, holds the lock is that of a run that was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, TypeVar

import orjson

from graphrag_ray.store import untrusted_json
from graphrag_ray.store.files import Store

T = TypeVar("T")

FORMAT = 1
"""Of records. One of a higher format is passed over: nothing depends on it."""

RUNNING = "running"
FINISHED = ("committed", "unchanged")

REFUSED = "runs/refused.json"

_NAME = re.compile(r"runs/([1-9][0-9]*)\.json")
_LIVE = re.compile(r"runs/([1-9][0-9]*)\.live\.json")


@dataclass(frozen=True)
class RunRecord:
    """One run.

    epoch       of its lock; runs are in the order of their epochs
    nonce       of its lock's holder
    started_at  unix seconds, told by the caller;  ended_at: 0 while it is not known to have ended
    outcome     "running", "committed", "unchanged", or what stopped it, in a word
    exit_code   of the command; None while it runs
    message     what people were told at its end
    given       what it was asked to do: INPUT, options
    steps       those that have ended: seconds, counts, and whether they were taken from the snapshot before
    failed      items without a result; None where it did not come to count them
    reached     where it was when it ended early: as in `LiveRun`
    snapshot    what it committed, or found unchanged: before it has ended, it may still be tidying up
    """

    epoch: int
    nonce: str
    started_at: untrusted_json.At
    version: str
    outcome: str = RUNNING
    ended_at: untrusted_json.At = 0.0
    exit_code: int | None = None
    message: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    usage: untrusted_json.Usage = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    snapshot: int | None = None
    failed: int | None = None
    reached: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class LiveRun:
    """How a run is going.

    nonce, beat   of its lock's holder; counts up
    at            unix seconds by its own clock, for people
    step, seconds that is being done, and for how long
    pace          of its requests to a model: numbers by name; {} while it makes none
    """

    nonce: str
    beat: int
    at: untrusted_json.At
    step: str
    seconds: float
    pace: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RefusedRun:
    """An attempt that came to no run, told like one (`RunRecord`).

    after   epoch of the last run before it; 0: there was none
    """

    after: int
    at: untrusted_json.At
    outcome: str
    exit_code: int
    message: str
    given: Mapping[str, Any] = field(default_factory=dict)


def write(store: Store, record: RunRecord) -> None:
    _write(store, record_path(record.epoch), vars(record))


def epochs(store: Store) -> list[int]:
    """Of all records, rising. Raises StoreError."""
    return store.numbered("runs", _NAME)


def backwards(store: Store) -> Iterator[RunRecord]:
    """All readable records, the latest first. Raises StoreError."""
    for epoch in reversed(epochs(store)):
        if (record := _read(store, record_path(epoch), RunRecord)) is not None:
            yield record


def latest(store: Store) -> RunRecord | None:
    return next(backwards(store), None)


def unfinished(store: Store) -> list[RunRecord]:
    """The runs since the last one that came to its end, the latest first. Raises StoreError."""
    return list(takewhile(lambda record: not _came_to_its_end(record), backwards(store)))


def _came_to_its_end(record: RunRecord) -> bool:
    """Also one that was killed when its snapshot was committed."""
    return record.outcome in FINISHED or record.snapshot is not None


def superseded(store: Store) -> set[str]:
    """Paths of the records before the last run that came to its end; of what was told live by others than
    the last run; of a refusal that a run followed. Raises StoreError."""
    found = epochs(store)
    newest = max(found, default=0)
    last = next((r.epoch for r in backwards(store) if _came_to_its_end(r)), 0)
    live = {i.path: int(m.group(1)) for i in store.list("runs") if (m := _LIVE.fullmatch(i.path))}
    old = {path for path, epoch in live.items() if epoch < newest or epoch == last}
    refused = read_refusal(store)
    old |= {REFUSED} if refused and refused.after < newest else set()
    return old | {record_path(epoch) for epoch in found if epoch < last}


def whereabouts(store: Store) -> str:
    """`, at extract, 640 of 932` of the run that goes on, as it told last; "" where it told nothing yet."""
    live = read_live(store, max(epochs(store), default=0))
    if live is None:
        return ""
    done, total = live.pace.get("done"), live.pace.get("total")
    far = f", {done:,} of {total:,}" if isinstance(done, int) and isinstance(total, int) else ""
    return f", at {live.step}{far}"


def write_live(store: Store, epoch: int, live: LiveRun) -> None:
    _write(store, live_path(epoch), asdict(live))


def read_live(store: Store, epoch: int) -> LiveRun | None:
    """None where there is none, or none that can be read. Raises StoreError."""
    return _read(store, live_path(epoch), LiveRun)


def write_refusal(store: Store, refusal: RefusedRun) -> None:
    _write(store, REFUSED, asdict(refusal))


def read_refusal(store: Store) -> RefusedRun | None:
    """The last one, also where runs followed. None as `read_live`. Raises StoreError."""
    return _read(store, REFUSED, RefusedRun)


def record_path(epoch: int) -> str:
    return f"runs/{epoch}.json"


def live_path(epoch: int) -> str:
    return f"runs/{epoch}.live.json"


def _write(store: Store, path: str, content: Mapping[str, Any]) -> None:
    store.write(path, orjson.dumps({"format": FORMAT, **content}, option=orjson.OPT_INDENT_2))


def _read(store: Store, path: str, kind: type[T]) -> T | None:
    try:
        data = orjson.loads(store.read(path))
        return None if data["format"] > FORMAT else untrusted_json.read_as(kind, data)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
