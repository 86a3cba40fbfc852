"""The LLM workers of a run: how many there are, on the nodes that are there now.

A worker belongs to a node. Where only its process dies, Ray starts it again there; where the node is gone,
it ends, and the pool starts others where there is room: so no node gathers the workers of lost ones. Hard
affinity is also what makes Ray look at the node at all: actors without CPUs go anywhere otherwise.

One limiter answers all workers of a model. Measured with 8 of them on two cores that others used too: it
takes 26% of a core at 385 calls a second, 56% at 1,585 and 28% at 3,771, since the more calls there are,
the more of them go into one question and one batch; at a limit of 1,667 a second that was used up 16%.
Settles alone: 0.13 ms each at 1,600 a second, 0.02 ms at 6,000.
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
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.ray.cluster import ask_nodes
from graphrag_ray.engine.ray.limiter_actors import start_limiters
from graphrag_ray.engine.ray.worker import WorkerActor, WorkerSettings
from graphrag_ray.store.files import Store

logger = logging.getLogger(__name__)

CALLS_A_WORKER_S = 225.0
"""Calls a second that a worker is counted on for: half of what one carried when measured."""
QUICK_CALL_S = 0.5
"""A call takes at least so long; where calls in flight are bounded, that tells the most calls a second."""
FEWEST = 8
"""Workers, at least, where there are nodes for them, however low the limits: so a node that is lost takes
little of what is in flight along."""
MOST = 64
"""Workers, at most, where no limit is known: one driver and one limiter answer them all."""
LOOK_S = 2.0
"""Between looks at the nodes."""
JOURNALLED_WITHIN_S = 3.0
"""Of the time that a node has left, for writing down what came back."""
ENDS_WITHIN_S = 5.0
"""What is still asked of nodes at the end. Storage that hangs may take longer: it is not waited for."""

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A node that may have workers. cpus: that Ray may use there; 0 for a head that shall not work."""

    id: str
    cpus: float


@dataclass
class Member:
    """A worker. leaving: it gets nothing more to do, and is ended when what is in flight came back."""

    name: str
    actor: Any
    node: str
    leaving: bool = False


Seen: TypeAlias = tuple[list[Node], dict[str, float]]
"""Nodes that stay; and those that will go, with when (Unix seconds; inf: not said)."""
Changes: TypeAlias = tuple[list[Member], dict[str, float]]
"""New workers; and workers that shall go, with the seconds that they have for it."""


class WorkerPool:
    """The workers, and what becomes of them.

    per_node   workers on each node; None: as the models' limits want it
    fit        nodes that were asked (`cluster.check_nodes`); others are before they have workers
    run        names the workers
    """

    def __init__(
        self,
        store: Store,
        models: Models,
        flush_s: float,
        per_node: int | None,
        fit: Collection[str],
        run: str | None = None,
    ) -> None:
        self.members: dict[str, Member] = {}
        self._store, self._models, self._flush_s, self._per_node = store, models, flush_s, per_node
        self._run = run or uuid.uuid4().hex[:12]
        self._started = 0
        self._died: Counter[str] = Counter()
        self._closed = Event()
        self._looking: Future[Seen] | None = None
        self._looked_at = -math.inf
        self._limiter_prefix = f"graphrag-limiter-{self._run}"
        self.limiters = start_limiters(self._limiter_prefix, models)
        self._fit, self._unfit = set(fit), set[str]()
        self._asking: list[tuple[set[str], Future[dict[str, str]]]] = []
        self.follow(seen_now())

    @property
    def working(self) -> list[Member]:
        """Those that are not about to leave."""
        return [member for member in self.members.values() if not member.leaving]

    def look(self) -> Changes:
        """What is to be done since nodes came or went. Asks for them every LOOK_S, in a thread: a cluster
        that is slow to say holds nothing up."""
        due = time.monotonic() - self._looked_at >= LOOK_S and not self._closed.is_set()
        if self._looking is None and due:
            self._looked_at = time.monotonic()
            self._looking = _in_thread(seen_now)
        if self._looking is None or not self._looking.done():
            return [], {}
        looked, self._looking = self._looking, None
        if (error := looked.exception()) is not None:
            logger.warning("the cluster does not say which nodes it has: %s", error)
            return [], {}
        return self.follow(looked.result())

    def look_again(self) -> Changes:
        """`look` now, and wait for the answer."""
        return self.follow(seen_now()) if not self._closed.is_set() else ([], {})

    def follow(self, seen: Seen) -> Changes:
        """Start the workers that are missing, and name those that are to leave."""
        if self._closed.is_set():
            return [], {}
        (nodes, draining), joined, leaving = seen, list[Member](), dict[str, float]()
        # Whether nodes that joined can do their part is asked in a thread, before they have workers: what is
        # journalled into a folder that is not the index would be lost. Those that did not answer, or were not
        # even asked, are asked again.
        staying = {node.id for node in nodes}
        for asking in [a for a in self._asking if a[1].done()]:
            self._asking.remove(asking)
            asked, answered = asking
            if (error := answered.exception()) is not None:
                logger.warning("nodes that joined get no LLM workers until they can be asked: %s", error)
                continue
            answers = answered.result()
            if silent := staying & asked - answers.keys():
                logger.warning("nodes get no LLM workers until they answer: %s", ", ".join(sorted(silent)))
            for node, why in answers.items():
                if why:
                    logger.warning("%s It gets no LLM workers.", why)
                (self._unfit if why else self._fit).add(node)
        if new := staying.difference(self._fit, self._unfit, *(asked for asked, _ in self._asking)):
            self._asking.append((new, _in_thread(ask_nodes, self._store, [], new, self._closed)))
        fit = [node for node in nodes if node.id in self._fit]
        having = Counter(member.node for member in self.working)
        wanted = workers_on(fit, self._models, self._per_node, having + self._died)
        alive = staying | set(draining)
        for member in list(self.members.values()):
            if member.node not in alive:
                self._drop(member)
            elif not member.leaving and not wanted.get(member.node):
                member.leaving = True
                left_s = draining.get(member.node, math.inf) - time.time() - JOURNALLED_WITHIN_S
                leaving[member.name] = max(0.0, left_s)
        for node, number in wanted.items():
            missing = number - having[node] - self._died[node]
            joined += [self._start(node) for _ in range(missing)]
        return joined, leaving

    def gone(self, name: str, died: bool) -> None:
        """A worker's part is over: it left, or it died for good. Where its node is there, none takes its
        place then: whatever ended it would end that one, too."""
        member = self.members.get(name)
        if member is None:
            return
        self._drop(member)
        if died:
            self._died[member.node] += 1
        else:
            ray.kill(member.actor)

    def _drop(self, member: Member) -> None:
        """None of its places comes back by itself any more."""
        del self.members[member.name]
        for limiter in self.limiters:
            limiter.forget.remote(member.name)

    def dismiss(self) -> None:
        """End those that are about to leave, between sweeps: they have nothing in flight."""
        for member in list(self.members.values()):
            if member.leaving:
                self.gone(member.name, died=False)

    def close(self) -> None:
        """End all workers and limiters, and what asks the nodes: Ray may be shut down after it."""
        self._closed.set()
        for actor in [*(member.actor for member in self.members.values()), *self.limiters]:
            ray.kill(actor)
        self.members, self.limiters = {}, []
        asked: list[Future[Any]] = [answer for _, answer in self._asking]
        wait([*asked, self._looking] if self._looking else asked, ENDS_WITHIN_S)

    def _start(self, node: str) -> Member:
        name = f"{self._run}-{self._started}"
        self._started += 1
        settings = WorkerSettings(
            name, self._store, self._models, self._flush_s, self._limiter_prefix, logs.current()
        )
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        member = Member(name, WorkerActor.options(scheduling_strategy=there).remote(settings), node)
        self.members[name] = member
        return member


def _in_thread(call: Callable[..., T], *args: Any) -> Future[T]:
    """`call` in a thread that keeps no process from ending, as those of a pool do."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as e:  # noqa: BLE001 - handed to who looks at the future
            future.set_exception(e)

    Thread(target=run, name="nodes", daemon=True).start()
    return future


def seen_now() -> Seen:
    """The nodes that are alive, the driver's last: it has other things to do."""
    here = ray.get_runtime_context().get_node_id()
    deadlines = {id_: ms / 1000 if ms else math.inf for id_, ms in state.get_draining_nodes().items()}
    # What `ray.nodes()` returns, but where Ray is gone that would start another.
    nodes = [n for n in state.node_table() if n["Alive"]]
    alive = [Node(n["NodeID"], n["Resources"].get("CPU", 0.0)) for n in nodes]
    staying = [node for node in alive if node.id not in deadlines]
    draining = {node.id: deadlines[node.id] for node in alive if node.id in deadlines}
    return sorted(staying, key=lambda node: node.id == here), draining


def workers_on(
    nodes: Sequence[Node],
    models: Models,
    per_node: int | None = None,
    having: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """How many workers each node shall have.

    As many on each as `per_node` says, else `Models.workers_per_node`, but in all no more than can be busy
    at the limits of the models' endpoints. A node without CPUs has none, unless all are such. Workers that
    are there stay; those that are added go where there are fewest, then to the first of `nodes`.

    per_node: what the user wants, whatever the limits. having: workers that are there, by node.
    """
    able = [node for node in nodes if node.cpus > 0] or nodes
    room = {node.id: per_node or models.workers_per_node(int(node.cpus)) for node in able}
    total = sum(room.values())
    if per_node is None and models.online:
        # What the limits can keep busy, of the model that allows most.
        calls_s = max(models.calls_per_second(model, QUICK_CALL_S) for model in models.online.values())
        busy = MOST if math.isinf(calls_s) else min(MOST, math.ceil(calls_s / CALLS_A_WORKER_S))
        total = min(total, max(FEWEST, busy))
    wanted = {id_: min((having or {}).get(id_, 0), most) for id_, most in room.items()}
    free = [(n, place, id_) for place, id_ in enumerate(room) for n in range(wanted[id_], room[id_])]
    for _, _, id_ in sorted(free)[: max(0, total - sum(wanted.values()))]:
        wanted[id_] += 1
    return wanted
