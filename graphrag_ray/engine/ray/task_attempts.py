"""Attempts at the inputs of table steps: which were begun, and what is said of one that processes die of."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.logs import Logging

PARTS_TOLD = 3
"""Stored parts of an input that a message names."""

MOST_DEATHS = 3
"""An input of a table step of which so many processes died is not tried again."""


class Desk:
    """Counts which inputs of table steps were begun and not ended, in one actor beside the driver: Ray starts
    a task again without end where memory ran out."""

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, int]] = Counter()

    def begin(self, what: str, number: int) -> int:
        """How often an input was begun before and not ended."""
        self._begun[what, number] += 1
        return self._begun[what, number] - 1

    def end(self, what: str, number: int) -> None:
        self._begun.pop((what, number), None)


DeskActor = ray.remote(num_cpus=0, max_restarts=-1)(Desk)


@dataclass(frozen=True)
class Attempts:
    """The attempts at the inputs of one step.

    step      its name, for messages
    desk      a handle to the run's desk
    name      tells it from all other steps of the run
    logging   how the driver logs: the processes that work on an input do as it does
    """

    step: str
    desk: Any
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    logging: Logging | None = field(default_factory=logs.current)

    def died(self, number: int) -> str | None:
        """Begin an input; why it is not to be done, where too many processes died of it."""
        logs.follow(self.logging)
        try:
            deaths = ray.get(self.desk.begin.remote(self.name, number))
        except RayActorError:  # it comes again, and counts from there
            deaths = 0
        if deaths < MOST_DEATHS:
            return None
        return f"{deaths} processes that worked on it died: out of memory, or a crash in native code"

    def end(self, number: int) -> None:
        self.desk.end.remote(self.name, number)


def died_told(step: str, x: Any, why: str, what: str = "") -> str:
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


def own_error(error: BaseException | None) -> GraphRagError | None:
    while error is not None:
        if isinstance(error, GraphRagError) and not isinstance(error, RayTaskError):
            return error
        cause = error.cause if isinstance(error, RayTaskError) else None
        error = cause or error.__cause__
    return None
