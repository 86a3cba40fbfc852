"""Table functions on Ray Data: inputs go out by number, parts come back as rows that name them.

Ray starts a task again whenever its process dies, without end. So every input is counted at the desk when it
is begun, and one of which processes die again and again is done in parts, one by one, or named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.exceptions import RayTaskError

from graphrag_ray.distributed.desk import Attempts
from graphrag_ray.engine.executor import PARTITION, Parted, TableFunction, Tables, Written
from graphrag_ray.errors import GraphRagError, ProcessDied
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part

X = TypeVar("X")

STREAMED_ROWS = 512
"""Rows of a streamed table that the driver is given at a time."""
PARTS_TOLD = 3
"""Stored parts of an input that a message names."""

_WRITTEN = pa.schema(
    [
        ("input", pa.int64()),
        ("sequence", pa.int64()),
        ("name", pa.string()),  # of the table; "" in a row that says why the input has none
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("died", pa.string()),
    ]
)


@dataclass(frozen=True)
class RayTables:
    """The three ways of running a table function (`engine.executor.Executor`).

    desk   a handle to the run's desk
    """

    store: Store
    desk: Any

    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Sequence[X],
        parted: Parted[X] | None = None,
        one_by_one: bool = False,
    ) -> Written:
        if not inputs:
            return []
        rows = _numbers(inputs).map_batches(
            partial(_map_one, self.store, fn, _shared(inputs), Attempts(step, self.desk)),
            batch_size=1,
            batch_format="pyarrow",
            concurrency=1 if one_by_one else None,
        )
        written, died = _written(_collect(rows), len(inputs))
        for number, why in died.items():
            if parted is None:
                raise ProcessDied(_told(step, inputs[number], why))
            written[number] = self._in_parts(step, fn, inputs[number], parted, why)
        return written

    def _in_parts(
        self, step: str, fn: TableFunction[X], x: X, parted: Parted[X], why: str
    ) -> dict[str, list[Part]]:
        """One input, part by part, alone on the cluster: what dies beside a part is not its fault."""
        parts = list(parted.parts(x))
        if len(parts) < 2:
            just = partial(_just, parted.failed(x, why))
            return self.map(step, just, [None], one_by_one=True)[0]
        one = Parted(lambda part: [part], parted.failed)
        done: dict[str, list[Part]] = {}
        for written in self.map(step, fn, parts, one, one_by_one=True):
            for name, found in written.items():
                done.setdefault(name, []).extend(found)
        return done

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
    ) -> Written:
        if not inputs:
            return [{} for _ in range(partitions)]
        rows = _numbers(inputs).map_batches(
            partial(_stream_one, self.store, fn, _shared(inputs), Attempts(step, self.desk)),
            batch_size=1,
            batch_format="pyarrow",
        )
        # One partition needs no hashing: bringing all blocks together is enough, and much cheaper.
        together = rows.repartition(partitions, keys=[PARTITION]) if partitions > 1 else rows.repartition(1)
        reduced = together.map_batches(
            partial(_reduce_block, self.store, reduce, Attempts(step, self.desk)),
            batch_size=None,
            batch_format="pyarrow",
        )
        written, died = _written(_collect(reduced), partitions)
        for number, why in died.items():
            raise ProcessDied(_told(step, None, why, f"partition {number} of {partitions}"))
        return written

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        if not inputs:
            return
        dataset = _numbers(inputs).map_batches(
            partial(_stream_one, self.store, fn, _shared(inputs), Attempts(step, self.desk)),
            batch_size=1,
            batch_format="pyarrow",
        )
        with unwrapped():
            for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                # A block of Ray's may hold 128 MB; whoever takes rows here makes Python objects of them.
                for at in range(0, block.num_rows, STREAMED_ROWS):
                    yield block.slice(at, STREAMED_ROWS)


def _shared(inputs: Sequence[X]) -> Callable[[], list[X]]:
    return partial(ray.get, ray.put(list(inputs)))


def _numbers(inputs: Sequence[Any]) -> Any:
    numbers = [{"input": i} for i in range(len(inputs))]
    return ray.data.from_items(numbers, override_num_blocks=min(len(inputs), 10_000))


def _map_one(
    store: Store, fn: Any, inputs: Callable[[], list[Any]], attempts: Attempts, batch: pa.Table
) -> Iterator[pa.Table]:
    number = batch["input"][0].as_py()
    if why := attempts.died(number):
        yield _row_of_dead(number, why)
        return
    written = _write_all(store, number, fn(store, inputs()[number]))
    attempts.end(number)
    yield written


def _stream_one(
    store: Store, fn: Any, inputs: Callable[[], list[Any]], attempts: Attempts, batch: pa.Table
) -> Iterator[pa.Table]:
    number = batch["input"][0].as_py()
    x = inputs()[number]
    if why := attempts.died(number):
        raise ProcessDied(_told(attempts.step, x, why))
    for table in fn(store, x):
        if table.num_rows:
            yield table
    attempts.end(number)


def _reduce_block(
    store: Store, reduce: Callable[[pa.Table], Tables], attempts: Attempts, rows: pa.Table
) -> Iterator[pa.Table]:
    """A block holds whole partitions, maybe several."""
    if PARTITION not in rows.column_names:
        return
    for partition in sorted(rows[PARTITION].unique().to_pylist()):
        if why := attempts.died(partition):
            yield _row_of_dead(partition, why)
            continue
        mine = rows.filter(pc.equal(rows[PARTITION], partition))
        written = _write_all(store, partition, [reduce(mine)])
        attempts.end(partition)
        yield written


def _write_all(store: Store, number: int, tables: Iterable[Tables]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for named in tables:
        for name, table in named.items():
            part = write_part(store, name, table) if table.num_rows else Part("", 0, 0)
            place = {"input": number, "sequence": len(rows), "name": name}
            rows.append({**place, "path": part.path, "rows": part.rows, "bytes": part.bytes})
    return pa.Table.from_pylist(rows, schema=_WRITTEN)


def _row_of_dead(number: int, why: str) -> pa.Table:
    return pa.Table.from_pylist([{"input": number, "sequence": 0, "name": "", "died": why}], schema=_WRITTEN)


def _collect(dataset: Any) -> list[dict[str, Any]]:
    with unwrapped():
        return [
            row
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow")
            for row in batch.to_pylist()
        ]


def _written(rows: list[dict[str, Any]], inputs: int) -> tuple[Written, dict[int, str]]:
    """The parts of each input, and why some have none."""
    written: Written = [{} for _ in range(inputs)]
    died: dict[int, str] = {}
    for row in sorted(rows, key=lambda r: (r["input"], r["sequence"])):
        if row["died"]:
            died[row["input"]] = row["died"]
            continue
        parts = written[row["input"]].setdefault(row["name"], [])
        if row["path"]:
            parts.append(Part(row["path"], row["rows"], row["bytes"]))
    return written, died


def _just(tables: Tables, store: Store, x: None) -> list[Tables]:
    return [tables]


def _told(step: str, x: Any, why: str, what: str = "") -> str:
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


class unwrapped:
    """Raises our own error, not Ray's wrapping, when a table function raised one of ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        at = error
        while at is not None:
            cause = getattr(at, "cause", None) if isinstance(at, RayTaskError) else None
            if isinstance(at, GraphRagError) and not isinstance(at, RayTaskError):
                raise at from None
            at = cause or at.__cause__
