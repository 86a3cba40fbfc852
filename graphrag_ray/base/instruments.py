"""Metric definitions, shared by runs and the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

PREFIX = "graphrag_ray_"


@dataclass(frozen=True)
class Instrument:
    """A metric.

    Attributes:
        name: Name without `PREFIX`.
        about: Help text.
        labels: Labels in addition to those common to all metrics of the recorder.
        buckets: Upper bounds of a histogram's buckets.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Recorder(Protocol):
    """Records measurements by instrument name."""

    def count(self, name: str, by: float, labels: Mapping[str, str]) -> None:
        """Increase a counter. An increase by zero creates the series."""

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...
