"""The LLM workers of a run: how many there are, and on which nodes.

A worker is pinned to its node. If only its process dies, Ray restarts it there. If the node is lost, so is
the worker, and the pool starts another where there is room. Hard affinity prevents Ray from moving workers,
which could pile up on a few nodes; besides, Ray ignores soft affinity for actors without CPUs.

One limiter serves all workers of a model. With 8 workers on two busy cores it used 26% of a core at 385 calls
a second, 56% at 1,585 and 28% at 3,771, because more calls share each request and batch. At a fully used
limit of 1,667 a second it used 16%. A settlement takes 0.13 ms at 1,600 a second and 0.02 ms at 6,000.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, TypeAlias, TypeVar

import ray
from ray._private.state import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphrag_ray.base import logs
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray.cluster import inspect_nodes
from graphrag_ray.engine.ray.limiter_actors import start_limiters
from graphrag_ray.engine.ray.worker import WorkerActor, WorkerSettings
from graphrag_ray.store.files import Store

logger = logging.getLogger(__name__)

CALLS_PER_WORKER_S = 225.0
"""Expected calls per second per worker: half of the measured maximum."""
QUICK_CALL_S = 0.5
"""Assumed minimum duration of a call, to convert a bound on calls in flight to calls per second."""
MIN_WORKERS = 8
"""Minimum number of workers if there are enough nodes, so that losing a node loses few calls in flight."""
MAX_WORKERS = 64
"""Maximum number of workers, because one driver and one limiter serve all of them."""
POLL_S = 2.0
"""Seconds between checks for new, draining and lost nodes."""
JOURNAL_RESERVE_S = 3.0
"""Time reserved for journalling replies before a draining node ends."""
CLOSE_TIMEOUT_S = 5.0
"""How long to wait at the end for pending node checks, which may hang if the storage does."""

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A node that may run workers. `cpus` is the number that Ray may use; 0 for a head node without work."""

    id: str
    cpus: float


@dataclass
class Member:
    """A worker. If `leaving`, it gets no more items and ends once its calls in flight have."""

    name: str
    actor: Any
    node: str
    leaving: bool = False


NodeView: TypeAlias = tuple[list[Node], dict[str, float]]
"""Nodes that stay, and the deadline (Unix time, inf if unknown) of each draining node by id."""
Changes: TypeAlias = tuple[list[Member], dict[str, float]]
"""New workers, and the remaining seconds of each worker that must leave, by name."""


class WorkerPool:
    """Starts and removes workers as nodes come and go.

    Nodes other than the `fit` ones, which passed `cluster.check_nodes`, are checked before they get workers.
    """

    def __init__(
        self,
        store: Store,
        models: Models,
        journal_flush_s: float,
        per_node: int | None,
        fit: Collection[str],
        run: str | None = None,
    ) -> None:
        self.members: dict[str, Member] = {}
        self._store, self._models, self._flush_s, self._per_node = store, models, journal_flush_s, per_node
        self._run = run or uuid.uuid4().hex[:12]
        self._started = 0
        self._died: Counter[str] = Counter()
        self._closed = Event()
        self._polling: Future[NodeView] | None = None
        self._polled_at = -math.inf
        self._limiter_prefix = f"graphrag-limiter-{self._run}"
        self.limiters = start_limiters(self._limiter_prefix, models)
        self._fit, self._unfit = set(fit), set[str]()
        self._checks: list[tuple[set[str], Future[dict[str, str]]]] = []
        self.follow(view_nodes())

    @property
    def working(self) -> list[Member]:
        """Workers that are not about to leave."""
        return [member for member in self.members.values() if not member.leaving]

    def poll(self) -> Changes:
        """Return the latest changes. Lists the nodes in a thread, so that a slow cluster delays nothing."""
        due = time.monotonic() - self._polled_at >= POLL_S and not self._closed.is_set()
        if self._polling is None and due:
            self._polled_at = time.monotonic()
            self._polling = _in_thread(view_nodes)
        if self._polling is None or not self._polling.done():
            return [], {}
        polled, self._polling = self._polling, None
        if (error := polled.exception()) is not None:
            logger.warning("Cannot list the nodes of the cluster: %s", error)
            return [], {}
        return self.follow(polled.result())

    def poll_now(self) -> Changes:
        """List the nodes now, and return the changes."""
        return self.follow(view_nodes()) if not self._closed.is_set() else ([], {})

    def follow(self, view: NodeView) -> Changes:
        """Start missing workers, and choose workers that must leave."""
        if self._closed.is_set():
            return [], {}
        (nodes, draining), joined, leaving = view, list[Member](), dict[str, float]()
        # Check new nodes in a thread before they get workers: replies journalled to a folder that is not the
        # index would be lost. Nodes that did not answer are checked again.
        staying = {node.id for node in nodes}
        for check in [c for c in self._checks if c[1].done()]:
            self._checks.remove(check)
            checked, future = check
            if (error := future.exception()) is not None:
                logger.warning("New nodes get no LLM workers until they can be checked: %s", error)
                continue
            answers = future.result()
            if silent := staying & checked - answers.keys():
                logger.warning(
                    "These nodes get no LLM workers until they answer: %s", ", ".join(sorted(silent))
                )
            for node, why in answers.items():
                if why:
                    logger.warning("%s The node gets no LLM workers", why)
                (self._unfit if why else self._fit).add(node)
        if new := staying.difference(self._fit, self._unfit, *(checked for checked, _ in self._checks)):
            self._checks.append((new, _in_thread(inspect_nodes, self._store, [], new, self._closed)))
        fit = [node for node in nodes if node.id in self._fit]
        existing = Counter(member.node for member in self.working)
        wanted = workers_on(fit, self._models, self._per_node, existing + self._died)
        alive = staying | set(draining)
        for member in list(self.members.values()):
            if member.node not in alive:
                self._drop(member)
            elif not member.leaving and not wanted.get(member.node):
                member.leaving = True
                left_s = draining.get(member.node, math.inf) - time.time() - JOURNAL_RESERVE_S
                leaving[member.name] = max(0.0, left_s)
        for node, number in wanted.items():
            missing = number - existing[node] - self._died[node]
            joined += [self._start(node) for _ in range(missing)]
        return joined, leaving

    def remove(self, name: str, died: bool) -> None:
        """Remove a worker that left or died permanently.

        A dead worker is not replaced on its node, because its successor would probably die, too.
        """
        member = self.members.get(name)
        if member is None:
            return
        self._drop(member)
        if died:
            self._died[member.node] += 1
        else:
            ray.kill(member.actor)

    def _drop(self, member: Member) -> None:
        """Remove a worker, and release the permits that it can no longer release itself."""
        del self.members[member.name]
        for limiter in self.limiters:
            limiter.forget.remote(member.name)

    def dismiss(self) -> None:
        """End leaving workers between sweeps, when they have nothing in flight."""
        for member in list(self.members.values()):
            if member.leaving:
                self.remove(member.name, died=False)

    def close(self) -> None:
        """End all workers, limiters and node checks, so that Ray can be shut down."""
        self._closed.set()
        for actor in [*(member.actor for member in self.members.values()), *self.limiters]:
            ray.kill(actor)
        self.members, self.limiters = {}, []
        pending: list[Future[Any]] = [future for _, future in self._checks]
        wait([*pending, self._polling] if self._polling else pending, CLOSE_TIMEOUT_S)

    def _start(self, node: str) -> Member:
        name = f"{self._run}-{self._started}"
        self._started += 1
        settings = WorkerSettings(
            name, self._store, self._models, self._flush_s, self._limiter_prefix, logs.current_config()
        )
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        member = Member(name, WorkerActor.options(scheduling_strategy=strategy).remote(settings), node)
        self.members[name] = member
        return member


def _in_thread(call: Callable[..., T], *args: Any) -> Future[T]:
    """Run `call` in a daemon thread, which does not prevent the process from exiting."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as e:  # noqa: BLE001 - handed to the future's reader
            future.set_exception(e)

    Thread(target=run, name="nodes", daemon=True).start()
    return future


def view_nodes() -> NodeView:
    """List the living nodes. The driver's comes last because it has other work."""
    own_node = ray.get_runtime_context().get_node_id()
    deadlines = {id_: ms / 1000 if ms else math.inf for id_, ms in state.get_draining_nodes().items()}
    # Unlike `ray.nodes()`, this does not start another Ray if this one is gone.
    nodes = [Node(n["NodeID"], n["Resources"].get("CPU", 0.0)) for n in state.node_table() if n["Alive"]]
    staying = [node for node in nodes if node.id not in deadlines]
    draining = {node.id: deadlines[node.id] for node in nodes if node.id in deadlines}
    return sorted(staying, key=lambda node: node.id == own_node), draining


def workers_on(
    nodes: Sequence[Node],
    models: Models,
    per_node: int | None = None,
    existing: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Decide how many workers each node should have.

    Each node gets `per_node` workers if the user chose a number. Otherwise it gets up to
    `Models.workers_per_node`, and in total no more than the rate limits can keep busy. A node without CPUs
    gets none, unless no node has any. Existing workers stay. New ones go to the nodes with the fewest
    workers, in the order of `nodes`.
    """
    usable = [node for node in nodes if node.cpus > 0] or nodes
    room = {node.id: per_node or models.workers_per_node(int(node.cpus)) for node in usable}
    total = sum(room.values())
    if per_node is None and models.online:
        calls_s = max(models.calls_per_second(model, QUICK_CALL_S) for model in models.online.values())
        busy = (
            MAX_WORKERS if math.isinf(calls_s) else min(MAX_WORKERS, math.ceil(calls_s / CALLS_PER_WORKER_S))
        )
        total = min(total, max(MIN_WORKERS, busy))
    wanted = {id_: min((existing or {}).get(id_, 0), limit) for id_, limit in room.items()}
    free = [(n, position, id_) for position, id_ in enumerate(room) for n in range(wanted[id_], room[id_])]
    for _, _, id_ in sorted(free)[: max(0, total - sum(wanted.values()))]:
        wanted[id_] += 1
    return wanted
