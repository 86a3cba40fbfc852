"""What kills the process that works on it. Here, where workers of a Ray cluster can import it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.indexing.stages.input_listing import InputFile


class DeadlyFile(InputFile):
    """Kills whoever opens it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "url":
            os._exit(9)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class DeadlyNames(EntityNames):
    """Kills whoever reads a reply that names JUDY, as a parser with a fault would."""

    def key(self, name: str) -> str | None:
        if "JUDY" in name:
            os._exit(9)
        return EntityNames.key(self, name)

    def to_json(self) -> str:
        return "deadly " + EntityNames.to_json(self)
