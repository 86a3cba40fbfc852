"""Which inputs of table steps were begun and not ended, in one actor beside the driver: Ray starts a task
again without end where memory ran out."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

from graphrag_ray.base import logs
from graphrag_ray.base.logs import Logging

MOST_DEATHS = 3
"""An input of a table step of which so many processes died is not tried again."""


class Desk:
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
        return died_of(deaths) if deaths >= MOST_DEATHS else None

    def end(self, number: int) -> None:
        self.desk.end.remote(self.name, number)


def died_of(deaths: int) -> str:
    return f"{deaths} processes that worked on it died: out of memory, or a crash in native code"
