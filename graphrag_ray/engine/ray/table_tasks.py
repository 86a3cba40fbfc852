"""Table functions on Ray: one task per input, with results as tasks complete.

These are plain tasks because a task costs 0.7 ms, but a block of Ray Data 17 ms (200 inputs: 0.14 s and
3.7 s). Ray Data is used only for large shuffles and to read datasets (`datasets.py`).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError, RaySystemError, RayTaskError, WorkerCrashedError

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, ProcessDied
from graphrag_ray.base.logs import LogConfig
from graphrag_ray.base.unexpected_errors import attach_location
from graphrag_ray.base.wording import strip_ansi
from graphrag_ray.engine.executor import (
    PARTITION,
    Executor,
    InputSplitter,
    TableFunction,
    Tables,
    WrittenParts,
    iter_partitions,
    write_all,
)
from graphrag_ray.engine.ray.limiter_actors import on_driver_node
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

X = TypeVar("X")

TableParts: TypeAlias = dict[str, list[Part]]
"""Written parts by table name."""

TASKS_PER_CORE = 4
"""Unfinished tasks per core of the cluster, so that no core waits for the driver."""
CORES_CACHED_S = 2.0
"""How long the number of cores is cached."""
MAPS_PER_CORE = 16
"""Input blocks of a Ray Data shuffle per core, so that a slow one delays little."""
SMALL_SHUFFLE_BUNDLES = 16
"""Maximum number of bundles for a shuffle with plain tasks, each of which returns one object per bundle. Ray
Data bounds the number of objects but takes seconds to start."""
SMALL_SHUFFLE_TASKS = 64
"""Maximum number of tasks that split the inputs of a small shuffle. The driver stores objects below 100 kB
in its own memory: with one task per input, this took 630 MB at 100M tokens."""
TABLES_AHEAD = 4
"""Maximum number of tables that a streaming task may be ahead of its reader."""
STREAMED_ROWS = 512
"""Maximum number of rows per streamed table, because the driver converts them to Python objects."""
RETRIES = -1
"""Unlimited retries of a task whose process or node died, because AttemptCounter decides when to stop."""
MAX_PARTS_NAMED = 3
"""Maximum number of stored parts to name in a message."""
MAX_DEATHS = 3
"""Process deaths after which an input is not tried again."""


class AttemptCounter:
    """Counts the unfinished attempts at inputs of table steps, in an actor on the driver's node.

    It is needed because Ray would restart a task that runs out of memory without limit.
    """

    def __init__(self) -> None:
        self._attempts: Counter[tuple[str, int]] = Counter()

    def begin(self, step: str, number: int) -> int:
        """Begin an attempt, and return how many earlier attempts did not end."""
        self._attempts[step, number] += 1
        return self._attempts[step, number] - 1

    def end(self, step: str, number: int) -> None:
        self._attempts.pop((step, number), None)


AttemptCounterActor = ray.remote(num_cpus=0, max_restarts=-1)(AttemptCounter)


@dataclass(frozen=True)
class Attempts:
    """Attempts at the inputs of one step. `name` distinguishes steps that run twice.

    Processes that work on inputs adopt the driver's `logging` configuration.
    """

    step: str
    counter: Any
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    logging: LogConfig | None = field(default_factory=logs.current_config)

    def begin(self, number: int) -> str | None:
        """Begin an attempt. Returns a reason to skip the input if it crashed too many processes."""
        logs.follow_driver(self.logging)
        try:
            deaths = ray.get(self.counter.begin.remote(self.name, number))
        except RayActorError:  # the counter restarts from zero
            deaths = 0
        if deaths < MAX_DEATHS:
            return None
        return f"{deaths} processes that worked on it died: out of memory, or a crash in native code"

    def end(self, number: int) -> None:
        self.counter.end.remote(self.name, number)


def process_died(step: str, x: Any, why: str, what: str = "") -> ProcessDied:
    """Create an error for an input that crashes processes. `what` defaults to its stored parts."""
    if not what and (paths := list(_paths(x))):
        others = f" and {len(paths) - MAX_PARTS_NAMED} more" if len(paths) > MAX_PARTS_NAMED else ""
        what = f"{', '.join(paths[:MAX_PARTS_NAMED])}{others}"
    return ProcessDied(
        f"Step {step} cannot process {what or 'an input'}: {why}. Finished work is reused. Give the "
        "processes more memory, or run fewer of them per node, and run the same command again."
    )


def _paths(x: Any) -> Iterator[str]:
    """Yield the paths of the stored parts and files in an input."""
    if isinstance(path := getattr(x, "path", None), str):
        yield path
    elif isinstance(x, list | tuple):
        for inner in x:
            yield from _paths(inner)


def find_graphrag_error(error: BaseException | None) -> GraphRagError | None:
    """Find the GraphRagError within Ray's wrappers, if any."""
    while error is not None:
        if isinstance(error, GraphRagError) and not isinstance(error, RayTaskError):
            return error
        cause = error.cause if isinstance(error, RayTaskError) else None
        error = cause or error.__cause__
    return None


class RayTables(Executor):
    """The table methods of `RayExecutor`."""

    _attempt_counter: Any = None

    def _attempts(self, step: str) -> Attempts:
        if self._attempt_counter is None:
            options = AttemptCounterActor.options(scheduling_strategy=on_driver_node())
            self._attempt_counter = options.remote()
        return Attempts(step, self._attempt_counter)

    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        splitter: InputSplitter[X] | None = None,
        on_done: Callable[[int], None] = lambda number: None,
        one_by_one: bool = False,
    ) -> WrittenParts:
        if (dataset := getattr(inputs, "dataset", None)) is not None:
            from graphrag_ray.engine.ray.datasets import map_dataset  # Ray Data takes a second to import

            return map_dataset(self.store, step, fn, dataset, self._attempts(step), splitter, on_done)
        function, attempts = ray.put(fn), self._attempts(step)
        written: dict[int, TableParts] = {}
        died: dict[int, tuple[X, str]] = {}
        open_: dict[int, X] = {}

        def submit(number: int, x: X) -> Any:
            open_[number] = x
            return _map_task.remote(self.store, function, attempts, number, x)

        with unwrap_errors(step):
            for number, result in _as_completed(submit, inputs, max_open=1 if one_by_one else None):
                x = open_.pop(number)
                if isinstance(result, str):
                    died[number] = x, result
                else:
                    written[number] = result
                    on_done(number)
        for number, (x, why) in died.items():
            if splitter is None:
                raise process_died(step, x, why)
            written[number] = self._map_pieces(step, fn, x, splitter, why)
        return [written[number] for number in sorted(written)]

    def _map_pieces(
        self, step: str, fn: TableFunction[X], x: X, splitter: InputSplitter[X], why: str
    ) -> TableParts:
        """Process an input piece by piece, one at a time, to identify the piece that crashes its process."""
        pieces = list(splitter.split(x))
        if len(pieces) < 2:
            return self.map(step, lambda store, x: [splitter.failure_tables(x, why)], [x], one_by_one=True)[0]
        merged: TableParts = {}
        for written in self.map(
            step, fn, pieces, InputSplitter(lambda piece: [piece], splitter.failure_tables), one_by_one=True
        ):
            for name, table_parts in written.items():
                merged.setdefault(name, []).extend(table_parts)
        return merged

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        submit = partial(_stream_task.remote, self.store, ray.put(fn), self._attempts(step))
        waiting = enumerate(inputs)
        streams: list[Any] = []
        with unwrap_errors(step):
            try:
                while True:
                    missing = max(0, _cores() + 1 - len(streams))
                    streams += [submit(number, x) for number, x in islice(waiting, missing)]
                    if not streams:
                        return
                    (stream,), _ = ray.wait(streams, num_returns=1, fetch_local=False)
                    try:
                        table = ray.get(next(stream))
                    except StopIteration:
                        streams.remove(stream)
                        continue
                    for start in range(0, table.num_rows, STREAMED_ROWS):
                        yield table.slice(start, STREAMED_ROWS)
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
    ) -> WrittenParts:
        bundles = min(bundles or partitions, partitions)
        if not inputs:
            return [{} for _ in range(partitions)]
        mapping, reducing = self._attempts(step), self._attempts(step)
        results: dict[int, TableParts | str] = {}
        with unwrap_errors(step):
            if bundles > SMALL_SHUFFLE_BUNDLES:
                from graphrag_ray.engine.ray.datasets import shuffle_dataset  # takes a second to import

                blocks = min(len(inputs), MAPS_PER_CORE * _cores())
                results = shuffle_dataset(self.store, fn, mapping, reduce, reducing, inputs, blocks, bundles)
            else:
                function, reducer = ray.put(fn), ray.put(reduce)
                rows: dict[int, list[Any]] = {}
                tasks = min(len(inputs), SMALL_SHUFFLE_TASKS)
                ends = [len(inputs) * n // tasks for n in range(tasks + 1)]

                def split(number: int, share: Sequence[X]) -> Any:
                    refs = _split_task.options(num_returns=bundles + 1).remote(
                        self.store, function, mapping, partitions, bundles, number, share
                    )
                    rows[number] = refs[1:]
                    return refs[0]

                def reduce_bundle(bundle: int, _: None) -> Any:
                    tables = (rows[number][bundle] for number in sorted(rows))
                    return _reduce_task.remote(self.store, reducer, reducing, *tables)

                for _ in _as_completed(split, [inputs[start:end] for start, end in pairwise(ends)]):
                    pass
                for _, of_bundle in _as_completed(reduce_bundle, [None] * bundles):
                    results |= of_bundle
        written: WrittenParts = [{} for _ in range(partitions)]
        for number, result in sorted(results.items()):
            if isinstance(result, str):
                raise process_died(step, None, result, f"partition {number} of {partitions}")
            written[number] = result
        return written


def _as_completed(
    submit: Callable[[int, X], Any], inputs: Iterable[X], max_open: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield input numbers and results as tasks complete. Raises the first error and cancels other tasks."""
    waiting = enumerate(inputs)
    open_: dict[Any, int] = {}
    try:
        while True:
            # Recompute the limit each time, to use new nodes. Waiting tasks make an autoscaler add nodes.
            limit = max_open or TASKS_PER_CORE * _cores()
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
    """Return the number of cores in the cluster, cached for CORES_CACHED_S."""
    return _cores_in(int(time.monotonic() / CORES_CACHED_S))


@lru_cache(maxsize=1)
def _cores_in(period: int) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _map_one(store: Store, fn: Any, attempts: Attempts, number: int, x: Any) -> TableParts | str:
    """Return the written parts, or why the input was skipped."""
    if why := attempts.begin(number):
        return why
    written = write_all(store, fn(store, x))
    attempts.end(number)
    return written


def stream_one(store: Store, fn: Any, attempts: Attempts, number: int, x: Any) -> Iterator[pa.Table]:
    if why := attempts.begin(number):
        raise process_died(attempts.step, x, why)
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
    """Return None, for callers to wait for, and the rows of each bundle (None for an empty bundle)."""
    if why := attempts.begin(number):
        raise process_died(attempts.step, inputs, why)
    tables = [table for x in inputs for table in fn(store, x) if table.num_rows]
    split: list[pa.Table | None] = [None] * bundles
    if tables:
        rows = pa.concat_tables(tables)
        bundle_of_row = rows[PARTITION].to_numpy().astype(np.int64) * bundles // partitions
        for bundle in np.unique(bundle_of_row).tolist():
            split[bundle] = rows.filter(pa.array(bundle_of_row == bundle))
    attempts.end(number)
    return [None, *split]


def _reduce_one(
    store: Store, reduce: Any, attempts: Attempts, *rows: pa.Table | None
) -> dict[int, TableParts | str]:
    tables = [table for table in rows if table is not None]
    return dict(reduce_partitions(store, reduce, attempts, pa.concat_tables(tables))) if tables else {}


def reduce_partitions(
    store: Store, reduce: Callable[[pa.Table], Tables], attempts: Attempts, rows: pa.Table
) -> Iterator[tuple[int, TableParts | str]]:
    """Yield each partition in `rows` with its written parts, or with the reason why it was skipped."""
    for partition, table in iter_partitions(rows):
        if why := attempts.begin(partition):
            yield partition, why
            continue
        written = write_all(store, [reduce(table)])
        attempts.end(partition)
        yield partition, written


_remote = partial(ray.remote, scheduling_strategy="SPREAD", max_retries=RETRIES)
_map_task = _remote()(_map_one)
_stream_task = _remote(num_returns="streaming", _generator_backpressure_num_objects=TABLES_AHEAD)(stream_one)
_split_task = _remote()(_split_one)
_reduce_task = _remote()(_reduce_one)


@contextmanager
def unwrap_errors(step: str) -> Iterator[None]:
    """Replace Ray's wrapper by the original error of a function in another process.

    If the process died, the error names the step.
    """
    try:
        yield
    except (WorkerCrashedError, RaySystemError) as e:
        # If a task cannot be unpickled, Ray's text begins with the task's name; the cause is clearer.
        why = strip_ansi(str(getattr(e, "cause", None) or e)).splitlines()[0].rstrip(".")
        hint = " (out of memory?)" if isinstance(e, WorkerCrashedError) else ""
        raise GraphRagError(
            f"Ray could not run step {step}: {why}{hint}. Run the command again; finished work is reused."
        ) from e
    except RayError as e:
        if (original := find_graphrag_error(e)) is not None:
            raise original from None
        if isinstance(e, RayTaskError) and isinstance(e.cause, Exception):
            attach_location(e.cause, str(e))
            raise e.cause from e
        raise
