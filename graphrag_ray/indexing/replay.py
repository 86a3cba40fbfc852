"""What a snapshot needs of the journal: its dialogues are started over its own tables and fed what is
journalled, as the next run would do it, and every key that is looked up is noted.

Nobody is asked and nothing is stored. That the outcome equals what the snapshot holds is checked: so whoever
keeps these keys, and no others, loses nothing that the next run would have to pay for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.index_settings import of_index
from graphrag_ray.base.messages import ChatReply, ChatRequest
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.drive import Driver, Open, Refused, answered, failure_of, replay
from graphrag_ray.engine.executor import ItemSource, RowSource, Sweep
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.work import Work, begin, outcome_of
from graphrag_ray.indexing.contents import load_names
from graphrag_ray.indexing.index import derive
from graphrag_ray.indexing.run import Run, all_items
from graphrag_ray.indexing.step_result import Result, code_version
from graphrag_ray.store import journal_rows, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.journal_rows import JournalRow
from graphrag_ray.store.snapshots import Manifest

T = TypeVar("T")
Keys = npt.NDArray[np.uint64]

_EMPTY_S = 0.002


def keys_needed(store: Store, manifest: Manifest) -> dict[str, Keys]:
    """For each dialogue the sorted first 64 bits of the keys that a run on top of this snapshot looks up.

    Raises UsageError where such a run would not come to what the snapshot holds: its settings, prompts, code
    or journal have changed since. `index` is to be run first then.
    """
    if manifest.run.get("code") != code_version():
        raise _changed(manifest, "it was written by another version of graphrag-ray")
    none = np.zeros(0, np.uint64)  # a dialogue of no items looks nothing up
    looked_up = _run_again(store, manifest).items()
    return {name: np.unique(np.concatenate([none, *seen])) for name, seen in looked_up}


def _run_again(
    store: Store, manifest: Manifest, only: str | None = None, key: str | None = None
) -> dict[str, list[Keys]]:
    """Derive the snapshot again from its documents and the journal; returns the keys looked up, by dialogue.

    only: run this dialogue alone; key: raise `_Found` when the item with this key is met
    """
    settings = parse_settings(of_index(manifest.settings))
    if not manifest.hierarchies:
        settings = settings.model_copy(update={"build": "names"})
    try:
        prompts, names = load_prompts(None, settings.prompts), load_names(settings)
    except GraphRagError as e:
        raise _changed(manifest, str(e)) from e
    with tempfile.TemporaryDirectory(prefix="graphrag-ray-replay-") as folder:
        executor = _Replaying(_Overlay(store, folder), Models.of(settings), key=key)
        run = _Again(executor, settings, prompts, manifest, Observer(), only=only)
        derive(run, Result.from_json(manifest.steps["read"]), names)
    return executor.seen


@dataclass(frozen=True)
class Turn:
    """One request of a failed item and what came of it.

    prompt    name of the prompt
    messages  (role, text) of the messages that this turn adds; () where the request cannot be rebuilt
    reply     raw text of the model; None where there was none
    error     why this turn failed; None otherwise
    """

    prompt: str
    messages: tuple[tuple[str, str], ...]
    reply: str | None
    error: str | None = None


def conversation(store: Store, stage: str, key: str) -> list[Turn]:
    """What a failed item of the newest snapshot asked and was answered, turn by turn.

    The journal holds replies, not prompts: the item's dialogue is started again over the snapshot's own
    tables and fed its replies. Where it no longer starts with the same request (other settings, prompts or
    code), or where there is no snapshot yet, the replies come without their prompts. Asks no model.

    Args:
        stage: of `schema.FAILURES`, with a journal.
        key: the item's key, 64 hex characters.
    """
    manifest = snapshots.latest(store)
    if manifest is not None and "read" in manifest.steps:
        with suppress(UsageError):
            try:
                _run_again(store, manifest, only=stage, key=key)
            except _Found as found:
                return found.turns
    rows = JournalIndex.load(store, stage).lookup([key]).get(key, [])
    return [Turn(row.prompt, (), row.reply, row.error) for row in rows if row.kind != journal_rows.DONE]


class _Found(Exception):
    def __init__(self, turns: list[Turn]) -> None:
        super().__init__()
        self.turns = turns


@dataclass
class _Again(Run):
    """A run in which the asking steps are done again, and must come to what they came to.

    only   of these, the one that runs this dialogue alone; the results of the others are taken as they are
    """

    only: str | None = None

    def step(
        self, name: str, depends_on: Any, compute: Callable[[], Result], journal: str | None = None
    ) -> Result:
        assert self.parent is not None
        before = self.parent.steps.get(name)
        if before is None:
            raise _changed(self.parent, f"it has no step {name!r}")
        if not STAGES[name].dialogue or self.only not in (None, journal):
            return Result.from_json(before)  # of a function of tables, which are taken as they are
        result = compute()
        if result.to_json()["tables"] != dict(before["tables"]):
            raise _changed(self.parent, f"the journal now gives other results for {name}")
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
        everything = self.executor.stream(work.name, partial(all_items, work, load), inputs)
        with closing(RowSource[T](everything, total)) as source:
            self.sweep(work, source, self.journal(work.name))
        return self.executor.share(self.journal(work.name))

    def before(self, name: str) -> None:
        """Nothing is taken over: each item is looked up."""

    def journal(self, name: str) -> JournalIndex:
        """Also with damaged parts: they hold nothing that the snapshot could be found to need."""
        return JournalIndex.load(self.store, name)


@dataclass
class _Replaying(LocalExecutor):
    """An executor that answers from the journal alone.

    seen  keys looked up, by dialogue
    key   of the item to find: `_Found` is raised when it is met
    """

    seen: dict[str, list[Keys]] = field(default_factory=dict)
    key: str | None = None

    def share(self, value: T) -> Callable[[], T]:
        return super().share(cast(T, self._noting(value)) if isinstance(value, JournalIndex) else value)

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> Sweep:
        """Tell the source what the journal says of each item."""
        noting, taken = self._noting(index), 0
        while (items := source.take()) is not None:
            for driver, rows in begin(work, self.store, noting, items):
                if driver.key == self.key:
                    raise _Found(_turns(driver, rows))
                source.finished(taken, outcome_of(driver.key, replay(driver, rows), rows))
                taken += 1
            if not items:
                time.sleep(_EMPTY_S)
        return Sweep(finished=taken)

    def _noting(self, index: JournalIndex) -> _Noting:
        return _Noting.of(index, self.seen.setdefault(index.dialogue, []))


def _turns(driver: Driver[Any], rows: Sequence[JournalRow]) -> list[Turn]:
    turns: list[Turn] = []
    shown = 0
    while isinstance(state := driver.state, Open):
        known, failure = answered(state, rows), failure_of(state, rows)
        for slot, request in enumerate(state.requests):
            reply = known.get(slot)
            if isinstance(request, ChatRequest):
                new = request.messages[shown:] if len(state.requests) == 1 else request.messages
                messages: tuple[tuple[str, str], ...] = tuple((m.role, m.content) for m in new)
            else:
                messages = (("user", request.text),)
            error = failure.error if failure and failure.request_hash == request.hash else None
            turns.append(
                Turn(request.prompt, messages, reply.text if isinstance(reply, ChatReply) else None, error)
            )
        first = state.requests[0]
        shown = len(first.messages) + 1 if isinstance(first, ChatRequest) else 0
        if len(known) < len(state.requests):
            return turns
        driver.send([known[slot] for slot in range(len(state.requests))])
    if isinstance(state, Refused):
        turns.append(Turn("", (), None, state.error))
    return turns


class _Noting(JournalIndex):
    """A journal that notes what is looked up."""

    seen: list[Keys]

    @classmethod
    def of(cls, index: JournalIndex, seen: list[Keys]) -> _Noting:
        made = cls(index._store, index.dialogue, index._held)
        made.seen = seen
        return made

    def lookup(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        wanted = list(keys)
        self.seen.append(np.unique(journal_rows.key_prefixes(wanted)))
        return super().lookup(wanted)


class _Overlay(Store):
    """A store whose writes go to a folder of this machine."""

    def __init__(self, below: Store, folder: str) -> None:
        super().__init__(below.url, below.options)
        self._own = Store(folder)

    def read(self, path: str) -> bytes:
        return self._own.read(path) if self._own.exists(path) else super().read(path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        if self._own.exists(path):
            return self._own.read_range(path, start, end)
        return super().read_range(path, start, end)

    def size(self, path: str) -> int | None:
        own = self._own.size(path)
        return super().size(path) if own is None else own

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        return self._own.open_input(path) if self._own.exists(path) else super().open_input(path, size)

    def write(self, path: str, data: bytes) -> None:
        self._own.write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        raise NotImplementedError("a replay stores nothing")

    def delete(self, path: str) -> None:
        raise NotImplementedError("a replay deletes nothing")


def _changed(manifest: Manifest, why: str) -> UsageError:
    return UsageError(
        f"it cannot be told what snapshot {manifest.number} needs of the journal: {why}. Run `graphrag-ray "
        "index` again with the same INPUT and settings, then this"
    )
