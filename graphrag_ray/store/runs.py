"""What each run was given and how it ended, whether or not it came to a snapshot.

    runs/<epoch>.json    epoch: of the lock under which it ran

Written when a run starts, after each of its steps and when it ends, by the holder of the lock alone. A record
that says "running" while somebody else, or nobody, holds the lock is that of a run that was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import orjson

from graphrag_ray.store.files import Store

FORMAT = 1
"""Of records. One of a higher format is passed over: nothing depends on it."""

RUNNING = "running"
FINISHED = ("committed", "unchanged")

_NAME = re.compile(r"runs/([1-9][0-9]*)\.json")


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
    settings    without secrets
    usage       calls, tokens and cost by stage so far
    steps       those that have ended: seconds, counts, and whether they were taken from the snapshot before
    snapshot    what it committed, or found unchanged
    """

    epoch: int
    nonce: str
    started_at: float
    version: str
    outcome: str = RUNNING
    ended_at: float = 0.0
    exit_code: int | None = None
    message: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    snapshot: int | None = None


def write(store: Store, record: RunRecord) -> None:
    """Raises StoreError."""
    data = {"format": FORMAT, **asdict(record)}
    store.write(_path(record.epoch), orjson.dumps(data, option=orjson.OPT_INDENT_2))


def epochs(store: Store) -> list[int]:
    """Of all records, rising. Raises StoreError."""
    found = (_NAME.fullmatch(info.path) for info in store.list("runs"))
    return sorted(int(match.group(1)) for match in found if match)


def read(store: Store, epoch: int) -> RunRecord | None:
    """None for one that is not there, damaged, or of a newer format. Raises StoreError."""
    try:
        data = orjson.loads(store.read(_path(epoch)))
        if data["format"] > FORMAT:
            return None
        return RunRecord(**{f.name: data[f.name] for f in fields(RunRecord) if f.name in data})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def backwards(store: Store) -> Iterator[RunRecord]:
    """All readable records, the latest first. Raises StoreError."""
    for epoch in reversed(epochs(store)):
        if (record := read(store, epoch)) is not None:
            yield record


def latest(store: Store) -> RunRecord | None:
    """Raises StoreError."""
    return next(backwards(store), None)


def unfinished(store: Store) -> list[RunRecord]:
    """The runs since the last one that came to its end, the latest first. Raises StoreError."""
    found = []
    for record in backwards(store):
        if record.outcome in FINISHED:
            break
        found.append(record)
    return found


def superseded(store: Store) -> set[str]:
    """Paths of the records before the last run that came to its end. Raises StoreError."""
    found = epochs(store)
    last = next((r.epoch for r in backwards(store) if r.outcome in FINISHED), 0)
    return {_path(epoch) for epoch in found if epoch < last}


def _path(epoch: int) -> str:
    return f"runs/{epoch}.json"
