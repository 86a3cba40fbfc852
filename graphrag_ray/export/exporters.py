"""Exporters write a snapshot in the file formats of other programs.

An exporter is a module with an `Exporter`, registered in the entry-point group `graphrag_ray.exporters`. The
name of the entry point is the value of `export --format`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphrag_ray.base.plugins import Registry

if TYPE_CHECKING:
    from graphrag_ray.base.declarations import HierarchyKind
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.export.output import Output
    from graphrag_ray.query.row_reader import Reader


@dataclass(frozen=True)
class Snapshot:
    """What to export.

    Attributes:
        reader: Reads the tables. Communities and reports are those of `hierarchy`, under the table names of
            Leiden's hierarchy unless it is a tree.
        settings: Settings whose models an export may name.
    """

    reader: Reader
    hierarchy: HierarchyKind
    settings: Settings

    @property
    def is_tree(self) -> bool:
        """Whether the communities are over chunks, without entities and relationships."""
        return self.hierarchy.member_kind == "text_unit"


@dataclass(frozen=True)
class Exporter:
    """An export format.

    Attributes:
        write: Writes the files and returns notes for the user: what is missing, and what to do about it.
        help: One line for the list of formats.
        files: All paths that `write` may write, folders with a trailing slash. An export never replaces such
            a file unless an earlier export wrote it.
        next_step: Returns one sentence on how to use the export at a URL.
        supports_trees: Supports hierarchies over chunks.
        needs_reports: Requires an index with communities.
    """

    write: Callable[[Snapshot, Output], Sequence[str]]
    help: str
    files: tuple[str, ...]
    next_step: Callable[[str], str] = lambda url: ""
    supports_trees: bool = False
    needs_reports: bool = False


EXPORTERS = Registry(
    "graphrag_ray.exporters",
    "export format",
    Exporter,
    {
        "graphrag": "graphrag_ray.export.microsoft:EXPORTER",
        "graphml": "graphrag_ray.export.graphml:EXPORTER",
        "csv": "graphrag_ray.export.spreadsheets:EXPORTER",
    },
)
