"""The Ray executor: tables through Ray Data, dialogues through a pool of worker actors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.exceptions import RayTaskError

from graphrag_ray.distributed.limits import start_limiters
from graphrag_ray.distributed.sweep import RaySweep
from graphrag_ray.distributed.worker import WorkerActor, WorkerSettings
from graphrag_ray.engine.executor import (
    PARTITION,
    Progress,
    Source,
    Sweep,
    TableFunction,
    Tables,
    Written,
)
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.work import Work
from graphrag_ray.errors import GraphRagError
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, write_part

T = TypeVar("T")
X = TypeVar("X")

STREAMED_ROWS = 512
"""Rows of a streamed table that the driver is given at a time."""

_WRITTEN = pa.schema(
    [
        ("input", pa.int64()),
        ("sequence", pa.int64()),
        ("name", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


@dataclass
class RayExecutor:
    """Runs on the connected Ray cluster (see `cluster.connected`).

    workers_per_node   LLM actors per node; None: two, or one per core for the offline engine
    on_progress        called a few times a second during a sweep
    """

    store: Store
    models: Models
    max_failed_fraction: float = 0.5
    flush_s: float = 2.0
    workers_per_node: int | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    spending: Spending = field(default_factory=Spending)
    _pool: list[tuple[str, Any]] = field(default_factory=list)
    _limiters: list[Any] = field(default_factory=list)

    def share(self, value: T) -> Callable[[], T]:
        return partial(ray.get, ray.put(value))

    def map(self, step: str, fn: TableFunction[X], inputs: Sequence[X]) -> Written:
        if not inputs:
            return []
        dataset = self._inputs(inputs).map_batches(
            partial(_map_one, self.store, fn, self.share(list(inputs))), batch_size=1, batch_format="pyarrow"
        )
        return _written(_collect(dataset), len(inputs))

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
        rows = self._inputs(inputs).map_batches(
            partial(_stream_one, self.store, fn, self.share(list(inputs))),
            batch_size=1,
            batch_format="pyarrow",
        )
        # One partition needs no hashing: bringing all blocks together is enough, and much cheaper.
        together = rows.repartition(partitions, keys=[PARTITION]) if partitions > 1 else rows.repartition(1)
        reduced = together.map_batches(
            partial(_reduce_block, self.store, reduce), batch_size=None, batch_format="pyarrow"
        )
        return _written(_collect(reduced), partitions)

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        if not inputs:
            return
        dataset = self._inputs(inputs).map_batches(
            partial(_stream_one, self.store, fn, self.share(list(inputs))),
            batch_size=1,
            batch_format="pyarrow",
        )
        with _unwrapped():
            for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                # A block of Ray's may hold 128 MB; whoever takes rows here makes Python objects of them.
                for at in range(0, block.num_rows, STREAMED_ROWS):
                    yield block.slice(at, STREAMED_ROWS)

    def sweep(self, work: Work[T], source: Source[T], index: JournalIndex) -> Sweep:
        pool = self._workers()
        sweep = RaySweep(
            work,
            source,
            index,
            store=self.store,
            models=self.models,
            spending=self.spending,
            watch=FailureWatch(self.max_failed_fraction, index.keys_done() == 0),
            on_progress=self.on_progress,
            pool=pool,
            limiters=self._limiters,
        )
        with _unwrapped():
            return sweep.run()

    def start(self) -> None:
        """Start the worker pool, without waiting for it: workers take a few seconds to come up."""
        self._workers()

    def close(self) -> None:
        """End the worker pool."""
        for _, worker in self._pool:
            ray.kill(worker)
        for limiter in self._limiters:
            ray.kill(limiter)
        self._pool, self._limiters = [], []

    def _inputs(self, inputs: Sequence[Any]) -> Any:
        numbers = [{"input": i} for i in range(len(inputs))]
        return ray.data.from_items(numbers, override_num_blocks=min(len(inputs), 10_000))

    def _workers(self) -> list[tuple[str, Any]]:
        if self._pool:
            return self._pool
        run = uuid.uuid4().hex[:12]
        limiters = f"graphrag-limiter-{run}"
        self._limiters = start_limiters(limiters, self.models)
        cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        count = sum(self.workers_per_node or self.models.workers_per_node(n) for n in cores)
        for i in range(count):
            settings = WorkerSettings(f"{run}-{i}", self.store, self.models, count, self.flush_s, limiters)
            actor = WorkerActor.options(scheduling_strategy="SPREAD").remote(settings)
            self._pool.append((settings.name, actor))
        return self._pool


def _map_one(store: Store, fn: Any, inputs: Callable[[], list[Any]], batch: pa.Table) -> Iterator[pa.Table]:
    number = batch["input"][0].as_py()
    yield _write_all(store, number, fn(store, inputs()[number]))


def _stream_one(
    store: Store, fn: Any, inputs: Callable[[], list[Any]], batch: pa.Table
) -> Iterator[pa.Table]:
    for table in fn(store, inputs()[batch["input"][0].as_py()]):
        if table.num_rows:
            yield table


def _reduce_block(store: Store, reduce: Callable[[pa.Table], Tables], rows: pa.Table) -> Iterator[pa.Table]:
    """A block holds whole partitions, maybe several."""
    if PARTITION not in rows.column_names:
        return
    for partition in sorted(rows[PARTITION].unique().to_pylist()):
        mine = rows.filter(pc.equal(rows[PARTITION], partition))
        yield _write_all(store, partition, [reduce(mine)])


def _write_all(store: Store, number: int, tables: Iterable[Tables]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for named in tables:
        for name, table in named.items():
            part = write_part(store, name, table) if table.num_rows else Part("", 0, 0)
            rows.append(
                {
                    "input": number,
                    "sequence": len(rows),
                    "name": name,
                    "path": part.path,
                    "rows": part.rows,
                    "bytes": part.bytes,
                }
            )
    return pa.Table.from_pylist(rows, schema=_WRITTEN)


def _collect(dataset: Any) -> list[dict[str, Any]]:
    with _unwrapped():
        return [
            row
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow")
            for row in batch.to_pylist()
        ]


def _written(rows: list[dict[str, Any]], inputs: int) -> Written:
    written: Written = [{} for _ in range(inputs)]
    for row in sorted(rows, key=lambda r: (r["input"], r["sequence"])):
        parts = written[row["input"]].setdefault(row["name"], [])
        if row["path"]:
            parts.append(Part(row["path"], row["rows"], row["bytes"]))
    return written


class _unwrapped:
    """Raises our own error, not Ray's wrapping, when a table function raised one of ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        at = error
        while at is not None:
            cause = getattr(at, "cause", None) if isinstance(at, RayTaskError) else None
            if isinstance(at, GraphRagError) and not isinstance(at, RayTaskError):
                raise at from None
            at = cause or at.__cause__
