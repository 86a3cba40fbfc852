"""Find the journal entries that a snapshot needs.

The snapshot's dialogues are replayed over its own tables with the journalled replies, as the next run would
do, recording every key that is looked up. No model is called and nothing is stored. The result must equal the
snapshot, so a journal reduced to these keys never makes the next run repeat a model call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.messages import ChatReply, ChatRequest, RerankRequest
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.stored_settings import without_machine_settings
from graphrag_ray.engine.dialogue_runner import (
    DialogueRunner,
    GaveUp,
    Waiting,
    journalled_replies,
    latest_failure,
    replay,
)
from graphrag_ray.engine.executor import ItemSource, SweepResult
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.work import Work, outcome_from_journal, start_items
from graphrag_ray.indexing.index import run_stages
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.indexing.stored_prompts import load_names
from graphrag_ray.store import journal_rows, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.journal_rows import JournalRow
from graphrag_ray.store.snapshots import Manifest

T = TypeVar("T")
Keys = npt.NDArray[np.uint64]

_POLL_INTERVAL_S = 0.002  # pause while a source has no items yet


def keys_needed(store: Store, manifest: Manifest) -> dict[str, Keys]:
    """Return the keys that a run on top of this snapshot looks up, by dialogue.

    Keys are represented by their first 64 bits, sorted.

    Raises UsageError if such a run would not reproduce the snapshot.
    """
    if manifest.run.get("code") != code_version():
        raise _not_reproducible(manifest, "another version of graphrag-ray wrote it")
    none = np.zeros(0, np.uint64)  # A dialogue without items looks nothing up.
    looked_up = _replay(store, manifest).items()
    return {name: np.unique(np.concatenate([none, *seen])) for name, seen in looked_up}


def _replay(
    store: Store, manifest: Manifest, only: str | None = None, key: str | None = None
) -> dict[str, list[Keys]]:
    """Replay a snapshot's dialogues, or `only` one, and return the keys looked up by each.

    Raises `_ItemFound` at the item with this `key`.
    """
    settings = parse_settings(without_machine_settings(manifest.settings))
    if not manifest.hierarchies:
        settings = settings.model_copy(update={"build": "names"})
    try:
        prompts, names = load_prompts(None, settings.prompts), load_names(settings)
    except GraphRagError as e:
        raise _not_reproducible(manifest, str(e)) from e
    with tempfile.TemporaryDirectory(prefix="graphrag-ray-replay-") as folder:
        executor = _ReplayExecutor(_Overlay(store, folder), Models.from_settings(settings), key=key)
        run = _ReplayRun(executor, settings, prompts, manifest, Observer(), only=only)
        run_stages(run, Result.from_json(manifest.steps["read"]), names)
    return executor.seen


@dataclass(frozen=True)
class Turn:
    """One request of a failed item and its outcome.

    `messages` are the (role, text) pairs that this turn adds; empty if the request cannot be rebuilt.
    """

    prompt: str
    messages: tuple[tuple[str, str], ...]
    reply: str | None
    error: str | None = None


def failed_item_turns(store: Store, stage: str, key: str) -> list[Turn]:
    """Return the requests and replies of a failed item of the newest snapshot, without calling a model.

    The journal contains replies but no prompts, so the item's dialogue is replayed over the snapshot's
    tables. If it no longer starts with the same request (settings, prompts or code changed), or if there is
    no snapshot yet, replies are returned without their prompts. `key` has 64 hexadecimal characters.
    """
    manifest = snapshots.read_latest(store)
    if manifest is not None and "read" in manifest.steps:
        with suppress(UsageError):
            try:
                _replay(store, manifest, only=stage, key=key)
            except _ItemFound as e:
                return e.turns
    rows = JournalIndex.load(store, stage).lookup([key]).get(key, [])
    return [Turn(row.prompt, (), row.reply, row.error) for row in rows if row.kind != journal_rows.DONE]


class _ItemFound(Exception):
    def __init__(self, turns: list[Turn]) -> None:
        super().__init__()
        self.turns = turns


@dataclass
class _ReplayRun(Run):
    """Repeats the steps that call models, or only the step of one dialogue, and checks their results."""

    only: str | None = None

    def step(
        self, name: str, depends_on: Any, compute: Callable[[], Result], journal: str | None = None
    ) -> Result:
        assert self.parent is not None
        before = self.parent.steps.get(name)
        if before is None:
            raise _not_reproducible(self.parent, f"it has no step {name!r}")
        if not STAGES[name].dialogue or self.only not in (None, journal):
            return Result.from_json(before)  # It depends only on tables that are reused.
        result = compute()
        if result.to_json()["tables"] != dict(before["tables"]):
            raise _not_reproducible(self.parent, f"the journal now yields other results for {name}")
        return result

    def sweep_rows(
        self,
        work: Work[T],
        load: Callable[[Store, Any], Iterable[pa.Table]],
        inputs: Sequence[Any],
        total: int | None = None,
    ) -> Callable[[], JournalIndex]:
        if self.only is None:
            return super().sweep_rows(work, load, inputs, total)
        self.sweep_all(work, load, inputs, total)
        return self.executor.share(self.journal(work.name))

    def parent_result(self, name: str) -> None:
        """Reuse nothing, so that every item is looked up."""

    def journal(self, name: str) -> JournalIndex:
        """Load the journal, skipping damaged parts, because the snapshot may not need them."""
        return JournalIndex.load(self.store, name)


@dataclass
class _ReplayExecutor(LocalExecutor):
    """Answers from the journal alone, and records the keys looked up by each dialogue in `seen`."""

    seen: dict[str, list[Keys]] = field(default_factory=dict)
    key: str | None = None

    def share(self, value: T) -> Callable[[], T]:
        return super().share(cast(T, self._recording(value)) if isinstance(value, JournalIndex) else value)

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> SweepResult:
        """Finish each item with its outcome in the journal."""
        recording, n_items = self._recording(index), 0
        while (items := source.take()) is not None:
            for driver, rows in start_items(work, self.store, recording, items):
                if driver.key == self.key:
                    raise _ItemFound(_turns(driver, rows))
                source.on_finished(n_items, outcome_from_journal(driver.key, replay(driver, rows), rows))
                n_items += 1
            if not items:
                time.sleep(_POLL_INTERVAL_S)
        return SweepResult(finished=n_items)

    def _recording(self, index: JournalIndex) -> _RecordingIndex:
        recording = _RecordingIndex(index._store, index.dialogue, index._parts)
        recording.seen = self.seen.setdefault(index.dialogue, [])
        return recording


def _turns(driver: DialogueRunner[Any], rows: Sequence[JournalRow]) -> list[Turn]:
    turns: list[Turn] = []
    n_earlier = 0
    while isinstance(state := driver.state, Waiting):
        known, failure = journalled_replies(state, rows), latest_failure(state, rows)
        for slot, request in enumerate(state.requests):
            reply = known.get(slot)
            if isinstance(request, ChatRequest):
                new = request.messages[n_earlier:] if len(state.requests) == 1 else request.messages
                messages: tuple[tuple[str, str], ...] = tuple((m.role, m.content) for m in new)
            elif isinstance(request, RerankRequest):
                messages = tuple(("user", text) for text in (request.query, *request.documents))
            else:
                messages = (("user", request.text),)
            error = failure.error if failure and failure.request_hash == request.hash else None
            text = reply.text if isinstance(reply, ChatReply) else None
            turns.append(Turn(request.prompt, messages, text, error))
        first = state.requests[0]
        n_earlier = len(first.messages) + 1 if isinstance(first, ChatRequest) else 0
        if len(known) < len(state.requests):
            return turns
        driver.send([known[slot] for slot in range(len(state.requests))])
    if isinstance(state, GaveUp):
        turns.append(Turn("", (), None, state.error))
    return turns


class _RecordingIndex(JournalIndex):
    """A journal that appends looked-up keys to `seen`."""

    seen: list[Keys]

    def lookup(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        keys = list(keys)
        self.seen.append(np.unique(journal_rows.key_prefixes(keys)))
        return super().lookup(keys)


class _Overlay(Store):
    """A store whose writes go to a local folder."""

    def __init__(self, base: Store, folder: str) -> None:
        super().__init__(base.url, base.options)
        self._local = Store(folder)

    def read(self, path: str) -> bytes:
        return self._local.read(path) if self._local.exists(path) else super().read(path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        if self._local.exists(path):
            return self._local.read_range(path, start, end)
        return super().read_range(path, start, end)

    def size(self, path: str) -> int | None:
        size = self._local.size(path)
        return super().size(path) if size is None else size

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        return self._local.open_input(path) if self._local.exists(path) else super().open_input(path, size)

    def write(self, path: str, data: bytes) -> None:
        self._local.write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        raise NotImplementedError("A replay stores nothing")

    def delete(self, path: str) -> None:
        raise NotImplementedError("A replay deletes nothing")


def _not_reproducible(manifest: Manifest, why: str) -> UsageError:
    return UsageError(
        f"Cannot determine which journal entries snapshot {manifest.number} needs: {why}. Run `graphrag-ray "
        "index` with the same INPUT and settings, then repeat this command."
    )
