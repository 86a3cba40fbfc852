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
    """The snapshot to export.

    Attributes:
        reader: Reads the tables. Communities and reports of `hierarchy` have the table names of the hierarchy
            `leiden`, unless `hierarchy` is a tree.
        settings: Settings with the models that an export may name.
    """

    reader: Reader
    hierarchy: HierarchyKind
    settings: Settings

    @property
    def is_tree(self) -> bool:
        """Whether the communities contain chunks rather than entities."""
        return self.hierarchy.member_kind == "text_unit"


@dataclass(frozen=True)
class Exporter:
    """An export format.

    Attributes:
        write: Writes the files and returns notes for the user about what is missing and what to do about it.
        help: One-line description for `--help`.
        files: All paths that `write` may write. Folders have a trailing slash. An export never replaces such
            a file unless an earlier export wrote it.
        next_step: Returns a sentence that explains how to use the export at a URL.
        supports_trees: Whether it supports hierarchies over chunks.
        needs_reports: Whether it needs an index with communities and reports.
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
