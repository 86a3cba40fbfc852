"""Objects that kill the process that handles them, in a module that Ray workers can import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.indexing.stages.input_listing import InputFile


class DeadlyFile(InputFile):
    """Kills the process that opens it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "url":
            os._exit(9)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class DeadlyNames(EntityNames):
    """Kills the process that parses a reply with the name JUDY, like a crashing parser."""

    def key(self, name: str) -> str | None:
        if "JUDY" in name:
            os._exit(9)
        return EntityNames.key(self, name)

    def to_json(self) -> str:
        return "deadly " + EntityNames.to_json(self)
