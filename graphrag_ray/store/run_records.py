"""Records of all runs, including runs that did not commit a snapshot.

    runs/<epoch>.json        record of the run under the lock with this epoch
    runs/<epoch>.live.json   its progress, every few seconds; deleted when it ends
    runs/refused.json        the last attempt that was refused before it became a run (invalid settings, …)

The holder of the lock writes the record when a run starts, after each step, and when it ends. If a record
says "running" while the lock is free or held by another run, the run was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, TypeVar

import orjson

from graphrag_ray.store import json_types
from graphrag_ray.store.files import Store

T = TypeVar("T")

FORMAT = 1  # Records of a higher format are skipped, because nothing depends on them.
RUNNING = "running"
FINISHED = ("committed", "unchanged")
REFUSED = "runs/refused.json"

_NAME = re.compile(r"runs/([1-9][0-9]*)\.json")
_LIVE = re.compile(r"runs/([1-9][0-9]*)\.live\.json")


@dataclass(frozen=True)
class RunRecord:
    """The options, progress and outcome of a run."""

    epoch: int  # Epoch of its lock, by which runs are ordered.
    nonce: str  # Nonce of the holder of its lock.
    started_at: json_types.UnixTime
    version: str
    outcome: str = RUNNING  # "running", "committed", "unchanged", or a word for the reason it stopped.
    ended_at: json_types.UnixTime = 0.0  # 0 until it ends.
    exit_code: int | None = None  # Exit code of the command, or None while it runs.
    message: str = ""  # Final message to the user.
    given: Mapping[str, Any] = field(default_factory=dict)  # Arguments of the run: INPUT and options.
    settings: Mapping[str, Any] = field(default_factory=dict)
    usage: json_types.Usage = field(default_factory=dict)
    # Completed steps: seconds, counts, and whether they were reused from the parent snapshot.
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    snapshot: int | None = None  # Set after the commit, or once the snapshot proves unchanged.
    failed: int | None = None  # Items without a result, or None if they were not counted.
    reached: Mapping[str, Any] = field(default_factory=dict)  # The last `LiveRun`, if it ended early.
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class LiveRun:
    """The progress of a run."""

    nonce: str  # Nonce of the holder of its lock.
    beat: int  # Increases with each update.
    at: json_types.UnixTime  # By the clock of the run, for messages.
    step: str
    seconds: float  # Time since the step began.
    pace: Mapping[str, Any] = field(default_factory=dict)  # Statistics of its model requests.


@dataclass(frozen=True)
class RefusedRun:
    """An attempt that was refused before it became a run. The fields are as in `RunRecord`."""

    after: int  # Epoch of the previous run, or 0.
    at: json_types.UnixTime
    outcome: str
    exit_code: int
    message: str
    given: Mapping[str, Any] = field(default_factory=dict)


def write_record(store: Store, record: RunRecord) -> None:
    _write(store, record_path(record.epoch), vars(record))


def list_epochs(store: Store) -> list[int]:
    """Return the sorted epochs of all records."""
    return store.list_numbers("runs", _NAME)


def iter_newest_first(store: Store) -> Iterator[RunRecord]:
    """Yield all readable records, newest first."""
    for epoch in reversed(list_epochs(store)):
        if (record := _read(store, record_path(epoch), RunRecord)) is not None:
            yield record


def latest_run(store: Store) -> RunRecord | None:
    return next(iter_newest_first(store), None)


def unfinished_runs(store: Store) -> list[RunRecord]:
    """Return the runs after the last finished one, newest first."""
    return list(takewhile(lambda record: not _is_finished(record), iter_newest_first(store)))


def _is_finished(record: RunRecord) -> bool:
    """Return whether a run finished. It may have been killed after its commit."""
    return record.outcome in FINISHED or record.snapshot is not None


def obsolete_files(store: Store) -> set[str]:
    """Return the paths of files that are no longer needed.

    These are records before the last finished run, progress files of earlier runs, and a refusal if a run
    followed it.
    """
    all_epochs = list_epochs(store)
    newest = max(all_epochs, default=0)
    finished = next((record.epoch for record in iter_newest_first(store) if _is_finished(record)), 0)
    live = {info.path: int(m.group(1)) for info in store.list("runs") if (m := _LIVE.fullmatch(info.path))}
    paths = {path for path, epoch in live.items() if epoch < newest or epoch == finished}
    refused = read_refusal(store)
    paths |= {REFUSED} if refused and refused.after < newest else set()
    return paths | {record_path(epoch) for epoch in all_epochs if epoch < finished}


def progress_text(store: Store) -> str:
    """Return `, at extract, 640 of 932` for the current run, or "" if it has not reported yet."""
    live = read_live(store, max(list_epochs(store), default=0))
    if live is None:
        return ""
    done, total = live.pace.get("done"), live.pace.get("total")
    counts = f", {done:,} of {total:,}" if isinstance(done, int) and isinstance(total, int) else ""
    return f", at {live.step}{counts}"


def write_live(store: Store, epoch: int, live: LiveRun) -> None:
    _write(store, live_path(epoch), asdict(live))


def read_live(store: Store, epoch: int) -> LiveRun | None:
    """Return the progress of a run, or None if it is missing or unreadable."""
    return _read(store, live_path(epoch), LiveRun)


def write_refusal(store: Store, refusal: RefusedRun) -> None:
    _write(store, REFUSED, asdict(refusal))


def read_refusal(store: Store) -> RefusedRun | None:
    """Return the last refusal, even if runs followed, or None if it is missing or unreadable."""
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
        return None if data["format"] > FORMAT else json_types.read_as(kind, data)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
