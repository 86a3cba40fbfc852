"""Table functions on Ray: a task an input, results as they come.

Plain tasks, not Ray Data: what comes back is a few names, and a block of Ray Data's takes 17 ms where a task
takes 0.7 (200 inputs: 3.7 s against 0.14). Ray Data is left what it is good at, the shuffle by key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray import cloudpickle
from ray.exceptions import RayError, RaySystemError, RayTaskError, WorkerCrashedError

from graphrag_ray.engine.executor import PARTITION, TableFunction, Tables, Written
from graphrag_ray.errors import GraphRagError
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part

X = TypeVar("X")

TASKS_PER_CORE = 4
"""Tasks that are submitted and not yet done, for each core of the cluster: so none of them waits for us."""

MAPS_PER_CORE = 16
"""Blocks of inputs of a shuffle, for each core: so many that a slow one holds nothing up."""

TABLES_AHEAD = 4
"""Tables that a streaming task may be ahead of whoever reads them."""

STREAMED_ROWS = 512
"""Rows of a streamed table that the driver is given at a time: it makes Python objects of them."""

_WRITTEN = pa.schema(
    {
        "partition": pa.int64(),
        "name": pa.string(),
        "path": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
    }
)


def map_tables(store: Store, step: str, fn: TableFunction[X], inputs: Sequence[X]) -> Written:
    """`Executor.map`."""
    function = ray.put(fn)
    written: Written = [{} for _ in inputs]
    with unwrapped(step):
        for number, parts in _as_they_end(lambda x: _map_task.remote(store, function, x), inputs):
            written[number] = parts
    return written


def stream_tables(
    store: Store, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
) -> Iterator[pa.Table]:
    """`Executor.stream`."""
    function = ray.put(fn)
    waiting = iter(inputs)
    streams: list[Any] = [_stream_task.remote(store, function, x) for x in islice(waiting, _cores() + 1)]
    with unwrapped(step):
        try:
            while streams:
                ready, _ = ray.wait(streams, num_returns=1, fetch_local=False)
                for stream in ready:
                    try:
                        table = ray.get(next(stream))
                    except StopIteration:
                        streams.remove(stream)
                        streams += [_stream_task.remote(store, function, x) for x in islice(waiting, 1)]
                        continue
                    for at in range(0, table.num_rows, STREAMED_ROWS):
                        yield table.slice(at, STREAMED_ROWS)
        finally:
            _cancel(streams)


def shuffle_tables(
    store: Store,
    step: str,
    fn: Callable[[Store, X], Iterable[pa.Table]],
    inputs: Sequence[X],
    reduce: Callable[[pa.Table], Tables],
    partitions: int,
) -> Written:
    """`Executor.shuffle`. One partition needs no hashing: all rows are brought to one task."""
    with unwrapped(step):
        if partitions > 1:
            return _shuffled_by_ray_data(store, fn, inputs, reduce, partitions)
        function = ray.put(fn)
        rows: dict[int, Any] = {}
        submit = lambda x: _all_task.remote(store, function, x)  # noqa: E731
        for number, ref in _as_they_end(submit, inputs, fetch=False):
            rows[number] = ref
        return [ray.get(_reduce_task.remote(store, reduce, *(rows[n] for n in sorted(rows))))]


def _as_they_end(
    submit: Callable[[X], Any], inputs: Sequence[X], fetch: bool = True
) -> Iterator[tuple[int, Any]]:
    """The numbers of inputs with what their tasks returned, or with a reference to it, in the order in which
    these end. Raises the first error, and calls off what is left then."""
    waiting = enumerate(inputs)
    limit = TASKS_PER_CORE * _cores()
    open_: dict[Any, int] = {}
    try:
        while True:
            open_ |= {submit(x): number for number, x in islice(waiting, limit - len(open_))}
            if not open_:
                return
            ray.wait(list(open_), num_returns=1, fetch_local=fetch)
            ended, _ = ray.wait(list(open_), num_returns=len(open_), timeout=0, fetch_local=fetch)
            for ref in ended:
                number = open_.pop(ref)
                yield number, (ray.get(ref) if fetch else ref)
    finally:
        _cancel(list(open_))


def _cancel(refs: Iterable[Any]) -> None:
    for ref in refs:
        with suppress(RayError, TypeError, ValueError):
            ray.cancel(ref)


def _cores() -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _map_one(store: Store, fn: Any, x: Any) -> dict[str, list[Part]]:
    return _write_all(store, fn(store, x))


def _stream_one(store: Store, fn: Any, x: Any) -> Iterator[pa.Table]:
    for table in fn(store, x):
        if table.num_rows:
            yield table


def _all_of(store: Store, fn: Any, x: Any) -> list[pa.Table]:
    return [table for table in fn(store, x) if table.num_rows]


def _reduce_all(store: Store, reduce: Any, *rows: list[pa.Table]) -> dict[str, list[Part]]:
    tables = [table for some in rows for table in some]
    return _write_all(store, [reduce(pa.concat_tables(tables))]) if tables else {}


def _write_all(store: Store, tables: Iterable[Tables]) -> dict[str, list[Part]]:
    written: dict[str, list[Part]] = {}
    for named in tables:
        for name, table in named.items():
            parts = written.setdefault(name, [])
            if table.num_rows:
                parts.append(write_part(store, name, table))
    return written


_map_task = ray.remote(scheduling_strategy="SPREAD")(_map_one)
_stream_task = ray.remote(
    scheduling_strategy="SPREAD", num_returns="streaming", _generator_backpressure_num_objects=TABLES_AHEAD
)(_stream_one)
_all_task = ray.remote(scheduling_strategy="SPREAD")(_all_of)
_reduce_task = ray.remote(_reduce_all)


def _shuffled_by_ray_data(
    store: Store,
    fn: Callable[[Store, X], Iterable[pa.Table]],
    inputs: Sequence[X],
    reduce: Callable[[pa.Table], Tables],
    partitions: int,
) -> Written:
    import ray.data  # takes a second, which runs without a shuffle save

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [{"input": cloudpickle.dumps(x)} for x in inputs]
    reduced = (
        ray.data.from_items(rows, override_num_blocks=min(len(rows), MAPS_PER_CORE * _cores()))
        .map_batches(partial(_rows_of, store, fn), batch_size=None, batch_format="pyarrow")
        .repartition(partitions, keys=[PARTITION])
        .map_batches(partial(_reduce_block, store, reduce), batch_size=None, batch_format="pyarrow")
    )
    written: Written = [{} for _ in range(partitions)]
    for batch in reduced.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():
            parts = written[row["partition"]].setdefault(row["name"], [])
            if row["path"]:
                parts.append(Part(row["path"], row["rows"], row["bytes"]))
    return written


def _rows_of(store: Store, fn: Any, block: pa.Table) -> Iterator[pa.Table]:
    for x in block["input"] if "input" in block.column_names else ():  # Ray tries functions on empty blocks
        for table in fn(store, cloudpickle.loads(x.as_buffer())):
            if table.num_rows:
                yield table


def _reduce_block(store: Store, reduce: Callable[[pa.Table], Tables], rows: pa.Table) -> Iterator[pa.Table]:
    """A block holds whole partitions, maybe several."""
    if PARTITION not in rows.column_names:
        return
    for partition in sorted(rows[PARTITION].unique().to_pylist()):
        mine = rows.filter(pc.equal(rows[PARTITION], partition))
        written = [
            {"partition": partition, "name": name, "path": part.path, "rows": part.rows, "bytes": part.bytes}
            for name, parts in _write_all(store, [reduce(mine)]).items()
            for part in parts or [Part("", 0, 0)]
        ]
        yield pa.Table.from_pylist(written, schema=_WRITTEN)


@contextmanager
def unwrapped(step: str) -> Iterator[None]:
    """Raises our own error, not Ray's wrapping, where a function of ours raised one; says which step it was
    where the process that ran it died."""
    try:
        yield
    except (WorkerCrashedError, RaySystemError) as e:
        raise GraphRagError(
            f"a process of step {step} died again and again (out of memory?): {str(e).splitlines()[0]} What "
            "is done is kept: run the same command again to continue."
        ) from e
    except RayError as e:
        if (own := _own_error(e)) is not None:
            raise own from None
        raise


def _own_error(error: BaseException | None) -> GraphRagError | None:
    while error is not None:
        if isinstance(error, GraphRagError) and not isinstance(error, RayTaskError):
            return error
        cause = error.cause if isinstance(error, RayTaskError) else None
        error = cause or error.__cause__
    return None
