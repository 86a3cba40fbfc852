"""Table functions on Ray: a task an input, results as they come.

Plain tasks, not Ray Data: what comes back is a few names, and a block of Ray Data's takes 17 ms where a task
takes 0.7 (200 inputs: 3.7 s against 0.14). Ray Data is left what it is good at, large shuffles by key.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import ray
from ray import cloudpickle
from ray.exceptions import RayActorError, RayError, RaySystemError, RayTaskError, WorkerCrashedError

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, ProcessDied
from graphrag_ray.base.logs import Logging
from graphrag_ray.base.unforeseen import from_elsewhere
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.executor import (
    PARTITION,
    Executor,
    Parted,
    TableFunction,
    Tables,
    Written,
    by_partition,
    write_all,
)
from graphrag_ray.engine.ray.limiter_actors import beside_driver
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

X = TypeVar("X")

TASKS_PER_CORE = 4
"""Tasks that are submitted and not yet done, for each core of the cluster: so none of them waits for us."""

CORES_KNOWN_S = 2.0

MAPS_PER_CORE = 16
"""Blocks of inputs of a shuffle, for each core: so many that a slow one holds nothing up."""

SMALL_SHUFFLE = 16
"""Bundles of partitions up to which a shuffle is plain tasks: each gives one object a bundle. Of more there
would be too many objects; Ray Data bounds them, and takes seconds to begin."""

SMALL_SHUFFLE_TASKS = 64
"""Of which each takes its share of the inputs. Ray keeps what is smaller than 100 kB in this process: with a
task an input it was 630 MB at 100M tokens."""

TABLES_AHEAD = 4
"""Tables that a streaming task may be ahead of whoever reads them."""

STREAMED_ROWS = 512
"""Rows of a streamed table that the driver is given at a time: it makes Python objects of them."""

RETRIES = -1
"""Without end, of a task whose process or node died: the desk counts, and says when it is enough."""


PARTS_TOLD = 3
"""Stored parts of an input that a message names."""

MOST_DEATHS = 3
"""An input of a table step of which so many processes died is not tried again."""


class Desk:
    """Counts which inputs of table steps were begun and not ended, in one actor beside the driver: Ray starts
    a task again without end where memory ran out."""

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int]] = Counter()

    def begin(self, what: str, number: int) -> int:
        """How often an input was begun before and not ended."""
        self._begun[what, number] += 1
        return self._begun[what, number] - 1

    def end(self, what: str, number: int) -> None:
        self._begun.pop((what, number), None)


DeskActor = ray.remote(num_cpus=0, max_restarts=-1)(Desk)


@dataclass(frozen=True)
class Attempts:
    """The attempts at the inputs of one step.

    step      its name, for messages
    desk      a handle to the run's desk
    name      tells it from all other steps of the run
    logging   how the driver logs: the processes that work on an input do as it does
    """

    step: str
    desk: Any
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    logging: Logging | None = field(default_factory=logs.current)

    def died(self, number: int) -> str | None:
        """Begin an input; why it is not to be done, where too many processes died of it."""
        logs.follow(self.logging)
        try:
            deaths = ray.get(self.desk.begin.remote(self.name, number))
        except RayActorError:  # it comes again, and counts from there
            deaths = 0
        if deaths < MOST_DEATHS:
            return None
        return f"{deaths} processes that worked on it died: out of memory, or a crash in native code"

    def end(self, number: int) -> None:
        self.desk.end.remote(self.name, number)


def died_told(step: str, x: Any, why: str, what: str = "") -> str:
    paths = list(_paths(x))
    more = f" and {len(paths) - PARTS_TOLD} more" if len(paths) > PARTS_TOLD else ""
    of = what or f"what is in {', '.join(paths[:PARTS_TOLD])}{more}" if what or paths else "an input"
    return (
        f"step {step} cannot do {of}: {why}. What is done is kept; give the processes more memory, or fewer "
        "to a node, and run the same command again."
    )


def _paths(x: Any) -> Iterator[str]:
    """What an input is made of, as far as it can be named: stored parts, files."""
    if isinstance(path := getattr(x, "path", None), str):
        yield path
    elif isinstance(x, list | tuple):
        for inner in x:
            yield from _paths(inner)


def own_error(error: BaseException | None) -> GraphRagError | None:
    while error is not None:
        if isinstance(error, GraphRagError) and not isinstance(error, RayTaskError):
            return error
        cause = error.cause if isinstance(error, RayTaskError) else None
        error = cause or error.__cause__
    return None


class RayTables(Executor):
    """The three ways of running a table function."""

    _desk: Any = None

    def _attempts(self, step: str) -> Attempts:
        """Counted: an input of which processes die again and again is done in parts, or named."""
        if self._desk is None:
            self._desk = DeskActor.options(scheduling_strategy=beside_driver()).remote()
        return Attempts(step, self._desk)

    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        parted: Parted[X] | None = None,
        ended: Callable[[int], None] = lambda number: None,
        one_by_one: bool = False,
    ) -> Written:
        if (dataset := getattr(inputs, "dataset", None)) is not None:
            from graphrag_ray.engine.ray.datasets import map_dataset  # imports Ray Data, which takes a second

            return map_dataset(self.store, step, fn, dataset, self._attempts(step), parted, ended)
        function, attempts = ray.put(fn), self._attempts(step)
        written: dict[int, dict[str, list[Part]]] = {}
        died: dict[int, tuple[X, str]] = {}
        open_: dict[int, X] = {}

        def submit(number: int, x: X) -> Any:
            open_[number] = x
            return _map_task.remote(self.store, function, attempts, number, x)

        with unwrapped(step):
            for number, done in _as_they_end(submit, inputs, at_once=1 if one_by_one else None):
                x = open_.pop(number)
                if isinstance(done, str):
                    died[number] = x, done
                else:
                    written[number] = done
                    ended(number)
        for number, (x, why) in died.items():
            if parted is None:
                raise ProcessDied(died_told(step, x, why))
            written[number] = self._in_parts(step, fn, x, parted, why)
        return [written[number] for number in sorted(written)]

    def _in_parts(
        self, step: str, fn: TableFunction[X], x: X, parted: Parted[X], why: str
    ) -> dict[str, list[Part]]:
        """One input, part by part, alone on the cluster: what dies beside a part is not its fault."""
        parts = list(parted.parts(x))
        if len(parts) < 2:
            return self.map(step, lambda store, x: [parted.failed(x, why)], [x], one_by_one=True)[0]
        one = Parted(lambda part: [part], parted.failed)
        done: dict[str, list[Part]] = {}
        for written in self.map(step, fn, parts, one, one_by_one=True):
            for name, found in written.items():
                done.setdefault(name, []).extend(found)
        return done

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        function, attempts = ray.put(fn), self._attempts(step)
        submit = partial(_stream_task.remote, self.store, function, attempts)
        waiting = enumerate(inputs)
        streams: list[Any] = [submit(*x) for x in islice(waiting, _cores() + 1)]
        with unwrapped(step):
            try:
                while streams:
                    ready, _ = ray.wait(streams, num_returns=1, fetch_local=False)
                    for stream in ready:
                        try:
                            table = ray.get(next(stream))
                        except StopIteration:
                            streams.remove(stream)
                            more = max(0, _cores() + 1 - len(streams))
                            streams += [submit(*x) for x in islice(waiting, more)]
                            continue
                        for at in range(0, table.num_rows, STREAMED_ROWS):
                            yield table.slice(at, STREAMED_ROWS)
            finally:
                _cancel(streams)

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> Written:
        bundles = min(bundles or partitions, partitions)
        if not inputs:
            return [{} for _ in range(partitions)]
        attempts, reducing = self._attempts(step), self._attempts(step)
        with unwrapped(step):
            if bundles > SMALL_SHUFFLE:
                rows_of = partial(_rows_of, self.store, fn, attempts)
                reduce_block = partial(_reduce_block, self.store, reduce, reducing)
                made = _shuffled_by_ray_data(rows_of, reduce_block, inputs, bundles)
            else:
                function, reducer = ray.put(fn), ray.put(reduce)
                rows: dict[int, list[Any]] = {}
                tasks = min(len(inputs), SMALL_SHUFFLE_TASKS)
                ends = [len(inputs) * n // tasks for n in range(tasks + 1)]

                def split(number: int, of: Sequence[X]) -> Any:
                    refs = _split_task.options(num_returns=bundles + 1).remote(
                        self.store, function, attempts, partitions, bundles, number, of
                    )
                    rows[number] = refs[1:]
                    return refs[0]

                def reduced(own: int, _: None) -> Any:
                    mine = (rows[number][own] for number in sorted(rows))
                    return _reduce_task.remote(self.store, reducer, reducing, *mine)

                for _ in _as_they_end(split, [inputs[start:end] for start, end in pairwise(ends)]):
                    pass
                made = {}
                for _, of_bundle in _as_they_end(reduced, [None] * bundles):
                    made |= of_bundle
        for number, done in sorted(made.items()):
            if isinstance(done, str):
                raise ProcessDied(died_told(step, None, done, f"partition {number} of {partitions}"))
        written = {number: done for number, done in made.items() if not isinstance(done, str)}
        return [written.get(number, {}) for number in range(partitions)]


def _as_they_end(
    submit: Callable[[int, X], Any], inputs: Iterable[X], at_once: int | None = None
) -> Iterator[tuple[int, Any]]:
    """The numbers of inputs with what their tasks returned, in the order in which these end. Raises the first
    error, and calls off what is left then."""
    waiting = enumerate(inputs)
    open_: dict[Any, int] = {}
    try:
        while True:
            # Asked anew each time: nodes that join help, and tasks that wait make an autoscaler add nodes.
            limit = at_once or TASKS_PER_CORE * _cores()
            open_ |= {submit(number, x): number for number, x in islice(waiting, max(0, limit - len(open_)))}
            if not open_:
                return
            ray.wait(list(open_), num_returns=1)
            for ref in ray.wait(list(open_), num_returns=len(open_), timeout=0)[0]:
                yield open_.pop(ref), ray.get(ref)
    finally:
        _cancel(list(open_))


def _cancel(refs: Iterable[Any]) -> None:
    for ref in refs:
        with suppress(RayError, TypeError, ValueError):
            ray.cancel(ref)


def _cores() -> int:
    """Of the cluster as it is now, or was a moment ago."""
    return _cores_in(int(time.monotonic() / CORES_KNOWN_S))


@lru_cache(maxsize=1)
def _cores_in(period: int) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _map_one(store: Store, fn: Any, attempts: Attempts, number: int, x: Any) -> dict[str, list[Part]] | str:
    """The parts written, or why there are none."""
    if why := attempts.died(number):
        return why
    written = write_all(store, fn(store, x))
    attempts.end(number)
    return written


def _stream_one(store: Store, fn: Any, attempts: Attempts, number: int, x: Any) -> Iterator[pa.Table]:
    if why := attempts.died(number):
        raise ProcessDied(died_told(attempts.step, x, why))
    for table in fn(store, x):
        if table.num_rows:
            yield table
    attempts.end(number)


def _split_one(
    store: Store,
    fn: Any,
    attempts: Attempts,
    partitions: int,
    bundles: int,
    number: int,
    inputs: Sequence[Any],
) -> list[pa.Table | None]:
    """Nothing, for whoever waits for the task; then the rows of each bundle, None where it has none."""
    if why := attempts.died(number):
        raise ProcessDied(died_told(attempts.step, inputs, why))
    tables = [table for x in inputs for table in fn(store, x) if table.num_rows]
    split: list[pa.Table | None] = [None] * bundles
    if tables:
        rows = pa.concat_tables(tables)
        own = rows[PARTITION].to_numpy().astype(np.int64) * bundles // partitions
        for n in np.unique(own).tolist():
            split[n] = rows.filter(pa.array(own == n))
    attempts.end(number)
    return [None, *split]


def _reduce_one(
    store: Store, reduce: Any, attempts: Attempts, *rows: pa.Table | None
) -> dict[int, dict[str, list[Part]] | str]:
    """What the partitions of a bundle came to."""
    tables = [table for table in rows if table is not None]
    return dict(_reduced(store, reduce, attempts, pa.concat_tables(tables))) if tables else {}


def _reduced(
    store: Store, reduce: Any, attempts: Attempts, rows: pa.Table
) -> Iterator[tuple[int, dict[str, list[Part]] | str]]:
    """For each partition the parts written, or why there are none."""
    for partition, own in by_partition(rows):
        written: dict[str, list[Part]] | str | None = attempts.died(partition)
        if written is None:
            written = write_all(store, [reduce(own)])
            attempts.end(partition)
        yield partition, written


_map_task = ray.remote(scheduling_strategy="SPREAD", max_retries=RETRIES)(_map_one)
_stream_task = ray.remote(
    scheduling_strategy="SPREAD",
    max_retries=RETRIES,
    num_returns="streaming",
    _generator_backpressure_num_objects=TABLES_AHEAD,
)(_stream_one)
_split_task = ray.remote(scheduling_strategy="SPREAD", max_retries=RETRIES)(_split_one)
_reduce_task = ray.remote(scheduling_strategy="SPREAD", max_retries=RETRIES)(_reduce_one)


def _shuffled_by_ray_data(
    rows_of: Callable[[pa.Table], Iterator[pa.Table]],
    reduce_block: Callable[[pa.Table], Iterator[pa.Table]],
    inputs: Sequence[Any],
    bundles: int,
) -> dict[int, dict[str, list[Part]] | str]:
    """For each partition that has rows, the parts written, or why there are none."""
    import ray.data  # takes a second, which runs without a shuffle save

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    numbered = [{"number": i, "input": cloudpickle.dumps(x)} for i, x in enumerate(inputs)]
    blocks = min(len(numbered), MAPS_PER_CORE * _cores())
    reduced = (
        ray.data.from_items(numbered, override_num_blocks=blocks)
        .map_batches(rows_of, batch_size=None, batch_format="pyarrow")
        .repartition(bundles, keys=[PARTITION])
        .map_batches(reduce_block, batch_size=None, batch_format="pyarrow")
    )
    written: dict[int, dict[str, list[Part]] | str] = {}
    for batch in reduced.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():
            written[row["partition"]] = cloudpickle.loads(row["written"])
    return written


def _rows_of(store: Store, fn: Any, attempts: Attempts, block: pa.Table) -> Iterator[pa.Table]:
    if "input" not in block.column_names:  # Ray tries functions on empty blocks
        return
    for number, x in zip(block["number"], block["input"], strict=True):
        yield from _stream_one(store, fn, attempts, number.as_py(), cloudpickle.loads(x.as_buffer()))


def _reduce_block(
    store: Store, reduce: Callable[[pa.Table], Tables], attempts: Attempts, rows: pa.Table
) -> Iterator[pa.Table]:
    """A block holds whole partitions, maybe several."""
    if PARTITION not in rows.column_names:
        return
    for partition, written in _reduced(store, reduce, attempts, rows):
        yield pa.table({"partition": [partition], "written": [cloudpickle.dumps(written)]})


@contextmanager
def unwrapped(step: str) -> Iterator[None]:
    """Raises what a function raised in another process as itself, not in Ray's wrapping, whose text begins
    with the way there; says which step it was where the process that ran it died."""
    try:
        yield
    except (WorkerCrashedError, RaySystemError) as e:
        if isinstance(e, RaySystemError):
            # Of a task that could not even be unpickled, Ray's text begins with the task's name.
            error = getattr(e, "cause", None) or e
            what = f"Ray could not run step {step}"
        else:
            error, what = e, f"a process of step {step} died again and again (out of memory?)"
        why = without_colors(str(error)).splitlines()[0].rstrip(".")
        raise GraphRagError(
            f"{what}: {why}. What is done is kept: run the same command again to continue."
        ) from e
    except RayError as e:
        if (own := own_error(e)) is not None:
            raise own from None
        if isinstance(e, RayTaskError) and isinstance(e.cause, Exception):
            from_elsewhere(e.cause, str(e))
            raise e.cause from e
        raise
