"""The Ray executor: tables through tasks, dialogues through a pool of worker actors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import ray

from graphrag_ray.base import logs
from graphrag_ray.engine.executor import (
    ItemSource,
    Sweep,
    SweepProgress,
)
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.ray.metrics import Metrics
from graphrag_ray.engine.ray.sweep import RaySweep
from graphrag_ray.engine.ray.table_tasks import RayTables, unwrapped
from graphrag_ray.engine.ray.worker_pool import WorkerPool
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.stopping import Stop
from graphrag_ray.engine.work import Work
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

T = TypeVar("T")
X = TypeVar("X")


@dataclass
class RayExecutor(RayTables):
    """Runs on the connected Ray cluster (see `cluster.connected`).

    workers_per_node   LLM actors per node; None: as `worker_pool.workers_on` says
    on_progress        called a few times a second during a sweep
    run                names it in metrics, logs and among Ray's actors
    fit                nodes that were asked (`cluster.check_nodes`), besides our own
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
    _pool: WorkerPool | None = None
    _index: tuple[JournalIndex, Any] | None = None
    _metrics: Metrics | None = None

    def share(self, value: T) -> Callable[[], T]:
        return partial(ray.get, self.put(value))

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> Sweep:
        with unwrapped(work.name):
            return RaySweep(self, work, source, index).run()

    def put(self, value: Any) -> Any:
        """Into the object store; the journal's index, which a sweep needs beside a stream, once only."""
        if not isinstance(value, JournalIndex):
            return ray.put(value)
        if self._index is None or self._index[0] is not value:
            self._index = (value, ray.put(value))
        return self._index[1]

    def metrics(self) -> Metrics:
        """Of the run."""
        self._metrics = self._metrics or Metrics.of(self.run, self.models.online)
        return self._metrics

    def start(self) -> None:
        """Start the worker pool, without waiting for it: workers take a few seconds to come up."""
        self.workers()

    def close(self) -> None:
        """End the worker pool."""
        if self._pool is not None:
            self._pool.close()
        if self._desk is not None:
            ray.kill(self._desk)
        self._pool = self._desk = None

    def workers(self) -> WorkerPool:
        if self._pool is None:
            logs.set_run(self.run)
            fit = {ray.get_runtime_context().get_node_id(), *self.fit}
            self._pool = WorkerPool(
                self.store, self.models, self.flush_s, self.workers_per_node, fit, self.run
            )
        return self._pool
