"""The Ray executor: tables through tasks, dialogues through a pool of worker actors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import ray

from graphrag_ray.base import logs
from graphrag_ray.engine.executor import (
    ItemSource,
    Parted,
    Sweep,
    SweepProgress,
    TableFunction,
    Tables,
    Written,
)
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.ray.coordinator import CoordinatorActor
from graphrag_ray.engine.ray.limiter_actors import beside_driver
from graphrag_ray.engine.ray.metrics import Metrics
from graphrag_ray.engine.ray.sweep import RaySweep
from graphrag_ray.engine.ray.table_tasks import RayTables, unwrapped
from graphrag_ray.engine.ray.task_attempts import Attempts, DeskActor
from graphrag_ray.engine.ray.worker_pool import WorkerPool
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.stopping import Stop
from graphrag_ray.engine.work import Work
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

T = TypeVar("T")
X = TypeVar("X")


@dataclass
class RayExecutor:
    """Runs on the connected Ray cluster (see `cluster.connected`).

    workers_per_node   LLM actors per node; None: as `engine/placement.py` says
    on_progress        called a few times a second during a sweep
    run                names it in metrics, logs and among Ray's actors
    fit                nodes that were asked (`nodes.check_nodes`), besides our own
    """

    store: Store
    models: Models
    max_failed_fraction: float = 0.5
    flush_s: float = 2.0
    workers_per_node: int | None = None
    on_progress: Callable[[SweepProgress], None] = lambda progress: None
    spending: Spending = field(default_factory=Spending)
    stop: Stop = field(default_factory=Stop)
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    fit: Collection[str] = ()
    bad_replies_count: bool = True
    _desk: Any = None
    _pool: WorkerPool | None = None
    _spare: Any = None
    _index: tuple[JournalIndex, Any] | None = None
    _metrics: Metrics | None = None

    def share(self, value: T) -> Callable[[], T]:
        return partial(ray.get, self._put(value))

    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        parted: Parted[X] | None = None,
        ended: Callable[[int], None] = lambda number: None,
    ) -> Written:
        if (dataset := getattr(inputs, "dataset", None)) is None:
            return self._tables().map(step, fn, inputs, parted, ended)
        from graphrag_ray.engine.ray.datasets import map_dataset  # imports Ray Data, which takes a second

        tables = self._tables()
        return map_dataset(tables.store, step, fn, dataset, Attempts(step, tables.desk), parted, ended)

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> Written:
        return self._tables().shuffle(step, fn, inputs, reduce, partitions, bundles)

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        return self._tables().stream(step, fn, inputs)

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> Sweep:
        self._metrics = self._metrics or Metrics.of(self.run, self.models.online)
        sweep = RaySweep(
            work,
            source,
            index,
            store=self.store,
            models=self.models,
            spending=self.spending,
            stop=self.stop,
            watch=FailureWatch(self.max_failed_fraction, index.keys_done() == 0, self.bad_replies_count),
            on_progress=self.on_progress,
            pool=self._workers(),
            coordinator=self._coordinator,
            put=self._put,
            metrics=self._metrics,
        )
        with unwrapped(work.name):
            return sweep.run()

    def _put(self, value: Any) -> Any:
        """Into the object store; the journal's index, which a sweep needs beside a stream, once only."""
        if not isinstance(value, JournalIndex):
            return ray.put(value)
        if self._index is None or self._index[0] is not value:
            self._index = (value, ray.put(value))
        return self._index[1]

    def start(self) -> None:
        """Start the worker pool, without waiting for it: workers take a few seconds to come up."""
        self._workers()
        self._spare = _start_coordinator()

    def close(self) -> None:
        """End the worker pool."""
        if self._pool is not None:
            self._pool.close()
        for actor in filter(None, (self._desk, self._spare)):
            ray.kill(actor)
        self._pool, self._desk, self._spare = None, None, None

    def _coordinator(self) -> Any:
        """The one that was started ahead; the next is started now, since it takes a second."""
        mine, self._spare = self._spare or _start_coordinator(), _start_coordinator()
        return mine

    def _tables(self) -> RayTables:
        if self._desk is None:
            self._desk = DeskActor.options(scheduling_strategy=beside_driver()).remote()
        return RayTables(self.store, self._desk)

    def _workers(self) -> WorkerPool:
        if self._pool is None:
            logs.set_run(self.run)
            fit = {ray.get_runtime_context().get_node_id(), *self.fit}
            self._pool = WorkerPool(
                self.store, self.models, self.flush_s, self.workers_per_node, fit, self.run
            )
        return self._pool


def _start_coordinator() -> Any:
    return CoordinatorActor.options(scheduling_strategy=beside_driver()).remote()
