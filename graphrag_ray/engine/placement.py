"""How many LLM workers there are, and on which nodes. Pure: its shell is `engine/ray/worker_pool.py`.

One limiter answers all workers of a model. Measured with 8 of them on two cores that others used too: it
takes 26% of a core at 385 calls a second, 56% at 1,585 and 28% at 3,771, since the more calls there are,
the more of them go into one question and one batch; at a limit of 1,667 a second that was used up 16%.
Settles alone: 0.13 ms each at 1,600 a second, 0.02 ms at 6,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphrag_ray.engine.gateways import Models

CALLS_A_WORKER_S = 225.0
"""Calls a second that a worker is counted on for: half of what one carried when measured."""
QUICK_CALL_S = 0.5
"""A call takes at least so long; where calls in flight are bounded, that tells the most calls a second."""
FEWEST = 8
"""Workers, at least, where there are nodes for them, however low the limits: so a node that is lost takes
little of what is in flight along."""
MOST = 64
"""Workers, at most, where no limit is known: one coordinator and one limiter answer them all."""


@dataclass(frozen=True)
class Node:
    """A node that may have workers. cpus: that Ray may use there; 0 for a head that shall not work."""

    id: str
    cpus: float


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
        total = min(total, max(FEWEST, busy_at_most(models)))
    wanted = {id_: min((having or {}).get(id_, 0), most) for id_, most in room.items()}
    free = [(n, place, id_) for place, id_ in enumerate(room) for n in range(wanted[id_], room[id_])]
    for _, _, id_ in sorted(free)[: max(0, total - sum(wanted.values()))]:
        wanted[id_] += 1
    return wanted


def busy_at_most(models: Models) -> int:
    """Workers that the limits of the models' endpoints can keep busy, of the model that allows most."""
    calls_s = max(models.calls_per_second(model, QUICK_CALL_S) for model in models.online.values())
    return MOST if math.isinf(calls_s) else min(MOST, math.ceil(calls_s / CALLS_A_WORKER_S))
