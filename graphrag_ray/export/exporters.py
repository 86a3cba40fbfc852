"""Exporters: what writes a snapshot in the files of other programs.

An exporter is one file with one `Exporter`, registered in the entry-point group `graphrag_ray.exporters`; its
name there is the value of `export --format`. The built-in ones are below.
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
    from graphrag_ray.query.reading import Reader


@dataclass(frozen=True)
class Snapshot:
    """What is exported.

    Args:
        reader: the tables; communities and reports are those of `hierarchy`, under the names of Leiden's
            unless it is a tree.
        hierarchy: whose communities are written.
        settings: whose models an export may name.
    """

    reader: Reader
    hierarchy: HierarchyKind
    settings: Settings

    @property
    def is_tree(self) -> bool:
        """Whether its communities are over chunks, without entities and relationships."""
        return self.hierarchy.over == "text_unit"


@dataclass(frozen=True)
class Exporter:
    """One format.

    Args:
        write: writes the files and returns notes for people: what is missing, and what to do about it.
        help: one line for lists.
        files: all paths that `write` may write, with a slash at the end for a folder. An export never
            replaces a file of such a name that no export wrote.
        then: what to do with the export at a URL, in one sentence.
        trees: whether it writes hierarchies over chunks, too.
        reports: whether it needs an index with communities.
    """

    write: Callable[[Snapshot, Output], Sequence[str]]
    help: str
    files: tuple[str, ...]
    then: Callable[[str], str] = lambda url: ""
    trees: bool = False
    reports: bool = False


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
