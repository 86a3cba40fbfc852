"""Types for defining and recording metrics, shared by runs and the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

PREFIX = "graphrag_ray_"


@dataclass(frozen=True)
class Instrument:
    """A metric.

    Attributes:
        kind: Prometheus metric type.
        name: Name without `PREFIX`.
        description: Help text.
        labels: Labels on top of the ones that the recorder adds to every metric.
        buckets: Upper bounds of a histogram's buckets.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Recorder(Protocol):
    """Records measurements by instrument name."""

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter. An amount of 0 creates the time series."""

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...
