"""Work for a sweep from a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphrag_ray.engine.work import Outcome, Row


class Listed:
    """A source of rows {"text": …}.

    `outcomes` records what it is told about each of them, by number, once.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._rows: list[Row] | None = [{"text": t} for t in texts]
        self.outcomes: dict[int, Outcome[Any]] = {}
        self.total = len(texts)

    def take(self) -> list[Row] | None:
        rows, self._rows = self._rows, None
        return rows

    def on_finished(self, number: int, outcome: Outcome[Any]) -> None:
        assert number not in self.outcomes
        self.outcomes[number] = outcome
