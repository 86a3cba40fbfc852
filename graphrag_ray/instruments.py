"""What a metric is, whoever records it: for Prometheus, by a run, by the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
