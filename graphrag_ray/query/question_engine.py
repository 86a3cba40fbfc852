"""Where the dialogues of many questions run: in this process or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.engine.executor import Executor, SweepProgress
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.ray.discovery import will_be_private
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.stopping import Stop
from graphrag_ray.engine.work import WAITED_FOR_S
from graphrag_ray.store.files import Store


@dataclass(frozen=True)
class QuestionEngine:
    """store: of their journal; max_failed_fraction: of the dialogues, above which the run stops; spending:
    what they may cost together; bad_replies_count: see `leases.FailureWatch`."""

    store: Store
    settings: Settings
    models: Models
    on_progress: Callable[[SweepProgress], None]
    stop: Stop
    max_failed_fraction: float
    spending: Spending = field(default_factory=Spending)
    bad_replies_count: bool = True

    def opened(self, on_ray: bool, address: str | None) -> AbstractContextManager[Executor]:
        return self._on_ray(address) if on_ray or address else self._here()

    @contextmanager
    def _here(self) -> Iterator[Executor]:
        run = self.settings.run
        yield LocalExecutor(
            self.store,
            self.models,
            self.max_failed_fraction,
            min(run.flush_s, WAITED_FOR_S),
            on_progress=self.on_progress,
            spending=self.spending,
            stop=self.stop,
            bad_replies_count=self.bad_replies_count,
        )

    @contextmanager
    def _on_ray(self, address: str | None) -> Iterator[Executor]:
        # Ray is imported here: it takes a second.
        from graphrag_ray.engine.ray.cluster import check_nodes, connected
        from graphrag_ray.engine.ray.ray_executor import RayExecutor

        run, private = self.settings.run, will_be_private(address)
        with connected(address):
            fit = set() if private else check_nodes(self.store, [])
            executor = RayExecutor(
                self.store,
                self.models,
                self.max_failed_fraction,
                run.flush_s,
                run.workers_per_node,
                self.on_progress,
                self.spending,
                self.stop,
                fit=fit,
                bad_replies_count=self.bad_replies_count,
            )
            executor.start()
            try:
                yield executor
            finally:
                executor.close()
