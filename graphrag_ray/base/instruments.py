"""What a metric is, whoever records it: for Prometheus, by a run, by the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

PREFIX = "graphrag_ray_"


@dataclass(frozen=True)
class Instrument:
    """A metric. name: without the prefix; labels: besides those that all of its kind have; buckets: upper
    ends, of a histogram."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Recorder(Protocol):
    """Takes what is measured, by the names of instruments."""

    def count(self, name: str, by: float, labels: Mapping[str, str]) -> None:
        """By zero, too: then there is a series."""
        ...

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...
