"""A run: what every step is given, and how a step is skipped when nothing it depends on has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from graphrag_ray.base import logs, schema, unforeseen
from graphrag_ray.base.errors import CorruptPart, ProcessDied
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.executor import (
    Executor,
    ItemSource,
    Parted,
    RowSource,
    Sweep,
    TableFunction,
    Tables,
    Written,
)
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.work import Outcome, Row, Work, identity, outcomes
from graphrag_ray.indexing.step_result import Result, TakenOver, code_version, fingerprint_of
from graphrag_ray.llm.accounting import Accounts, InFlight, new_quirks
from graphrag_ray.llm.quirks import told
from graphrag_ray.store import locks, retries
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import NONE, JournalIndex
from graphrag_ray.store.parts import MAX_PART_ROWS, Part, write_parts
from graphrag_ray.store.snapshots import Manifest

X = TypeVar("X")
T = TypeVar("T")
_log = logging.getLogger(__name__)
ROWS_AT_ONCE = 512
"""Items replayed together: one batch of journal look-ups."""
KEYS_AT_ONCE = 10_000
"""Keys of a sweep that are held until they are looked up together."""
SHOWN_OF_ERROR = 500
"""Characters of the first failure's reason."""


@dataclass
class Run:
    """One run of `index`: where it works, with what, and what has been done so far.

    inputs     hashes of the folders whose documents the index holds after it
    asked      by dialogue, how many items a model has completed
    afresh     names of steps that are done even where nothing changed, and take nothing over
    damaged    paths of parts that its parent names and that are not, or no longer, there: steps that have
               lost none of their parts are reused, the others take nothing over
    put_right  paths of parts that were found to be damaged while it ran, and were set aside
    reused     names of steps whose result was taken from the parent
    kept       by step, how many of its inputs' results were taken from the parent, and how many inputs it has
    items      by step, of how many items in all a model is asked about some, and what these are called
    doing      the step that is being done, and when it began by the steady clock; None between steps
    chores     what was done beside the steps, by name: counts. No snapshot depends on it
    untold     the failure to say what the corpus is about; None: there was none
    on_step    called when a step has ended
    on_swept   called with the name of a dialogue whose sweep has ended
    """

    executor: Executor
    settings: Settings
    prompts: Mapping[str, Prompt]
    parent: Manifest | None
    observer: Observer
    memo: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Accounts] = field(default_factory=dict)
    lock: locks.Lock | None = None
    inputs: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    put_right: set[str] = field(default_factory=set)
    afresh: frozenset[str] = frozenset()
    reused: set[str] = field(default_factory=set)
    doing: tuple[str, float] | None = None
    chores: dict[str, dict[str, Any]] = field(default_factory=dict)
    untold: Result | None = None
    on_step: Callable[[], None] = lambda: None
    on_swept: Callable[[str], None] = lambda name: None
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    items: dict[str, tuple[int, str]] = field(default_factory=dict)
    _of_parent: tuple[Manifest | None, Mapping[str, Result]] = (None, {})

    @property
    def store(self) -> Store:
        return self.executor.store

    def step(
        self, name: str, depends_on: Any, compute: Callable[[], Result], journal: str | None = None
    ) -> Result:
        """Do a step, or take the parent snapshot's result where everything it depends on is the same.

        depends_on: JSON-able values and `Result`s; None: always do it. Parts are named by their
        content, so equal names are equal tables; a step's result is a function of them. journal: of the
        dialogue that the step runs; items that were put back there are a change too.
        """
        self.executor.stop.check(InFlight())
        self.observer.step_started(name)
        logs.event(_log, "step started", step=name)
        started = time.monotonic()
        self.doing = (name, started)
        self.kept.pop(name, None)  # of a try that was broken off
        asked = self.asked.get(journal or "", 0)
        retried = retries.mark(self.store, journal) if journal else ""
        made_from = [name, code_version(), depends_on, retried]
        fingerprint = "" if depends_on is None else fingerprint_of(made_from)
        before = self.parent.steps.get(name) if self.parent and fingerprint else None
        known = self.of_parent[name] if before and before["fingerprint"] == fingerprint else None
        parts = (part for groups in (known.tables.values() if known else ()) for of in groups for part in of)
        lacks = bool(self.damaged) and any(part.path in self.damaged for part in parts)
        if known is not None and name not in self.afresh and not lacks:
            result, reused = known, True
        else:
            try:
                result, reused = compute(), False
            except BaseException as e:
                # An index may be a stranger's, or of a version with a bug: where the parent cannot be used,
                # everything from here on is done without it. Neither memory nor a full disk says anything
                # about it.
                says_nothing = not is_unforeseen(e) or isinstance(e, MemoryError | OSError)
                if not says_nothing and self.parent is not None and name not in self.afresh:
                    self.observer.note(
                        f"Step {name} could not go on from snapshot {self.parent.number}. Its tables, and "
                        f"those after it, are made anew: {unforeseen.told(e)}"
                    )
                    self.afresh = frozenset([*self.parent.steps, name])
                    return self.step(name, depends_on, compute, journal)
                if is_unforeseen(e):
                    e.add_note(f"step {name}")
                raise
        self.doing = None
        pa.default_memory_pool().release_unused()  # it keeps what threads that ended had
        self.reused = self.reused | {name} if reused else self.reused - {name}
        self.memo[name] = {"fingerprint": fingerprint if result.final else "", **result.to_json()}
        self.seconds[name] = time.monotonic() - started
        self.on_step()
        seconds = round(self.seconds[name], 3)
        counts: dict[str, Any] = {}
        kept, of = self.kept.get(name, (0, 0))
        if kept:  # what of the step was made, for people
            n, items = self.items.get(name, (0, ""))
            if n:
                done = self.asked.get(journal or "", 0) - asked
                counts["asked"] = {"items": done, "of": n, "called": items}
            counts["parts_kept"] = {"kept": kept, "of": of}
        counts |= result.counts
        logs.event(_log, "step ended", step=name, seconds=seconds, reused=reused, counts=counts)
        self.observer.step_ended(name, self.seconds[name], counts, reused)
        return result

    def before(self, name: str) -> Result | None:
        """What a step came to in the parent snapshot; None where nothing of it is to be taken over."""
        if self.code_changed or self.damaged or name in self.afresh:
            return None
        return self.of_parent.get(name)

    @property
    def code_changed(self) -> bool:
        """Whether the parent snapshot was made by other code: nothing of it is taken over, and all tables
        are derived from the journal. True without a parent."""
        return self.parent is None or self.parent.run.get("code") != code_version()

    @property
    def of_parent(self) -> Mapping[str, Result]:
        """What each step came to in the parent snapshot."""
        if self.parent is None:
            return {}
        if self._of_parent[0] is not self.parent:
            steps = self.parent.steps.items()
            self._of_parent = self.parent, {name: Result.from_json(step) for name, step in steps}
        return self._of_parent[1]

    def taken_over(
        self,
        step: str,
        inputs: Sequence[X],
        depends_on: Any,
        names: Sequence[str],
        *,
        told: Sequence[Any] | None = None,
        journal: str | None = None,
        again: Collection[int] = (),
    ) -> TakenOver[X]:
        """Which inputs of a step the parent snapshot has the results of.

        depends_on  what the result of each depends on, beside itself
        names       of the tables that come of an input, one group of parts each
        told        JSON-able values and `Part`s that stand for each input, None for one that is done by every
                    run; None: the inputs
        journal     of the dialogue that is run: an input with failures is done again when items were put back
        again       numbers of inputs that are done again, though what they are told by is as it was
        """
        retried = retries.mark(self.store, journal) if journal else ""
        found = TakenOver.of(
            self.before(step), step, inputs, depends_on, names, told or inputs, retried, again
        )
        kept, of = self.kept.get(step, (0, 0))
        self.kept[step] = (kept + len(inputs) - len(found.new), of + len(inputs))
        return found

    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        parted: Parted[X] | None = None,
        ended: Callable[[int], None] = lambda number: None,
    ) -> Written:
        """`Executor.map`, whose tables are written where those of the step belong."""
        if parted is not None:
            parted = Parted(parted.parts, partial(_in_place, step, parted.failed))
        written = self.executor.map(step, partial(_each_in_place, step, fn), inputs, parted, ended)
        return [_by_name(tables) for tables in written]

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> Written:
        """`Executor.shuffle`, whose tables are written where those of the step belong."""
        make = partial(_in_place, step, reduce)
        written = self.executor.shuffle(step, fn, inputs, make, partitions, bundles)
        return [_by_name(tables) for tables in written]

    def write(
        self, step: str, table: str, rows: Iterable[pa.Table], max_rows: int = MAX_PART_ROWS
    ) -> list[Part]:
        """Write a table from here, where those of the step belong."""
        return write_parts(self.store, schema.place_of(step, table), rows, max_rows=max_rows)

    @contextmanager
    def chore(self, name: str) -> Iterator[dict[str, Any]]:
        """Around what is done beside the steps, or within one, told like a step; the block adds its counts.
        Done several times, it is one in `seconds` and `chores`."""
        self.observer.step_started(name)
        logs.event(_log, "step started", step=name)
        started, before = time.monotonic(), self.doing
        self.doing = (name, started)
        counts: dict[str, Any] = {}
        try:
            yield counts
        finally:
            self.doing = before
        seconds, known = time.monotonic() - started, self.chores.get(name, {})
        self.chores[name] = {n: known.get(n, 0) + count for n, count in counts.items()}
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.on_step()
        logs.event(_log, "step ended", step=name, seconds=round(seconds, 3), reused=False, counts=counts)
        self.observer.step_ended(name, seconds, counts, False)

    def unchanged(self) -> bool:
        """True when the parent snapshot was made from these very tables, by the same code and with the same
        settings (those of questions are read from it), and is whole."""
        if self.parent is None or self.code_changed or self.damaged:
            return False
        before = {name: step for name, step in self.parent.steps.items() if name != "finish"}
        # A step that is not done any more (claims, embeddings) is a change too.
        return (
            self.memo.keys() == before.keys()
            and all(self.memo[n]["tables"] == before[n]["tables"] for n in before)
            and self.parent.settings == self.settings.kept()
        )

    def sweep(
        self,
        work: Work[T],
        source: ItemSource[T],
        index: JournalIndex,
    ) -> Sweep:
        """Run every item of the source. Stops spending as soon as the lock is known to be lost."""
        guarded = Guarded(source, self, work.name, index)
        sweep = self.executor.sweep(work, guarded, index)
        self.asked[work.name] = self.asked.get(work.name, 0) + guarded.answered()
        for endpoint, quirks in new_quirks(
            sweep.accounts.quirks, self.executor.models.quirks, self.accounts.quirks
        ):
            self.observer.note(told(endpoint, quirks))
        before = self.usage.get(work.name, Accounts())
        self.usage[work.name] = Accounts.merged([before, sweep.accounts])
        logs.event(_log, "stage asked", **sweep.summary(work.name))
        self.on_swept(work.name)
        return sweep

    def sweep_rows(
        self,
        work: Work[T],
        load: Callable[[Store, Any], Iterable[pa.Table]],
        inputs: Sequence[Any],
        total: int | None = None,
    ) -> Callable[[], JournalIndex]:
        """Run every item of the inputs that the journal does not answer; returns the journal after it.

        load: the rows of one input, each an item. total: of all inputs, where it is known.
        """
        if not inputs:
            return self.executor.share(JournalIndex(self.store, work.name, NONE))
        index = self.journal(work.name)
        look = partial(_open_items, work, self.executor.share(index), load)
        tables = self.executor.stream(work.name, look, inputs)
        # How many are left is known beforehand only where nothing was answered yet.
        try:
            with closing(RowSource[T](tables, None if index.n_parts else total)) as source:
                self.sweep(work, source, index)
        except ProcessDied:
            # To replay some item kills: the workers do it instead, since they find out which one that is.
            self.observer.note(
                f"Processes that looked for what is left of stage {work.name} died, again and again. The "
                "workers look at every item instead, and find out which one it is."
            )
            everything = self.executor.stream(work.name, partial(all_items, work, load), inputs)
            with closing(RowSource[T](everything, total)) as source:
                self.sweep(work, source, self.journal(work.name))
        return self.executor.share(self.journal(work.name))

    def journal(self, name: str) -> JournalIndex:
        """The journal of a dialogue. Raises CorruptPart for a part of it that is damaged, to be set aside."""
        index = JournalIndex.load(self.store, name, strict=True)
        for path in index.damaged:
            raise CorruptPart(f"{self.store.url_of(path)} is damaged", path=path)
        return index

    def check(self) -> None:
        """Raises LockLost where somebody took over."""
        if self.lock is not None:
            self.lock.check()

    def lost(self, parts: Sequence[Part]) -> bool:
        """Whether some of these parts are damaged and were not made anew yet."""
        return any(part.path in self.damaged and self.store.size(part.path) != part.bytes for part in parts)

    @property
    def accounts(self) -> Accounts:
        return Accounts.merged(self.usage.values())

    def expecting_silence(self, seconds: float) -> AbstractContextManager[None]:
        """Around work that stops every thread of this process: other writers are told to be patient."""
        return self.lock.expecting_silence(seconds) if self.lock else nullcontext()


class Guarded(Generic[T]):
    """A source that is checked whenever it is asked. It counts the items that the journal did not answer
    before, and tells why the first one failed: nobody need wait for the end of a stage that is in vain."""

    def __init__(self, source: ItemSource[T], run: Run, stage: str, index: JournalIndex) -> None:
        self._source, self._run, self._stage, self._index = source, run, stage, index
        self._told = False
        self._keys: list[str] = []
        self._answered = 0

    @property
    def total(self) -> int | None:
        # Asked for a few times a second, also while all items wait for their first calls and none ends.
        self._check()
        return self._source.total

    def take(self) -> list[Row] | None:
        self._check()
        return self._source.take()

    def finished(self, number: int, outcome: Outcome[T]) -> None:
        self._check()
        if outcome.key and outcome.status == "complete":
            self._keys.append(outcome.key)
            if len(self._keys) >= KEYS_AT_ONCE:
                self.answered()
        elif outcome.error and not self._told:
            self._told = True
            error = outcome.error[:SHOWN_OF_ERROR]
            self._run.observer.note(f"{self._stage}: a first item failed: {error}")
        self._source.finished(number, outcome)

    def answered(self) -> int:
        """Items completed so far that had no end in the journal."""
        self._answered += int((~self._index.is_done(self._keys)).sum())
        self._keys.clear()
        return self._answered

    def _check(self) -> None:
        lock = self._run.lock
        if lock is not None and lock.lost:
            lock.check()


def _each_in_place(step: str, fn: TableFunction[X], store: Store, x: X) -> Iterator[Tables]:
    for tables in fn(store, x):
        yield {schema.place_of(step, name): table for name, table in tables.items()}


def _in_place(step: str, make: Callable[..., Tables], *given: Any) -> Tables:
    return {schema.place_of(step, name): table for name, table in make(*given).items()}


def _by_name(tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    return {name.rpartition("/")[2]: parts for name, parts in tables.items()}


def replayed(
    work: Work[T], index: JournalIndex, store: Store, tables: Iterable[pa.Table]
) -> Iterator[list[tuple[Row, Outcome[T]]]]:
    """The rows of some tables with what became of each, in order, some hundred at a time."""
    for table in tables:
        for start in range(0, table.num_rows, ROWS_AT_ONCE):
            yield outcomes(work, store, index, table.slice(start, ROWS_AT_ONCE).to_pylist())


def _open_items(
    work: Work[T],
    index: Callable[[], JournalIndex],
    load: Callable[[Store, Any], Iterable[pa.Table]],
    store: Store,
    x: Any,
) -> Iterator[pa.Table]:
    """The rows that need a model, with their keys: not answered, or failed in a passing way."""
    journal = index()
    for table in load(store, x):
        at = 0
        for batch in replayed(work, journal, store, [table]):
            keys = [o.key if o.status in ("open", "retry") else None for _, o in batch]
            rows = table.slice(at, len(batch)).append_column("key", pa.array(keys, pa.string()))
            at += len(batch)
            yield rows.filter(rows["key"].is_valid())


def all_items(
    work: Work[T], load: Callable[[Store, Any], Iterable[pa.Table]], store: Store, x: Any
) -> Iterator[pa.Table]:
    """All rows, none of them started. Two whose dialogues would ask the same are not known to be one here."""
    for table in load(store, x):
        keys = [identity(work, row) for row in table.to_pylist()]
        yield table.append_column("key", pa.array(keys, pa.string()))


def each(rows: pa.Table, do: Callable[[pa.Table], Sequence[X]]) -> Iterator[tuple[Row, X | str]]:
    """Every row with what `do` made of it, from all rows at once. Where that fails by an error that nobody
    foresaw, row by row, and those that fail are told why."""
    try:
        made: Sequence[X | str] = do(rows)
    except BaseException as e:
        if not is_unforeseen(e):
            raise
        made = [note_bug(e)] if rows.num_rows == 1 else []
    if len(made) == rows.num_rows:
        yield from zip(rows.to_pylist(), made, strict=True)
    else:
        for at in range(rows.num_rows):
            yield from each(rows.slice(at, 1), do)


def failure_rows(stage: str, work: Work[T], batch: Iterable[tuple[Row, Outcome[T]]]) -> pa.Table:
    """The items of a batch that have no result, as rows of the failures table (document: an id yet)."""
    rows = []
    for row, outcome in batch:
        if outcome.status == "complete":
            continue
        item, document = work.label(row)
        rows.append(
            {
                "stage": stage,
                "item": item,
                "document": document,
                "kind": "permanent" if outcome.status == "failed" else "transient",
                "error": outcome.error or "not answered: the run was stopped",
                "attempts": outcome.attempts,
                "first_at": iso(outcome.first_at),
                "last_at": iso(outcome.last_at),
                "key": outcome.key,
            }
        )
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


def iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) if at else ""
