"""An export: a snapshot in the files of other programs, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphrag_ray.asking.reading import Reader
from graphrag_ray.base.errors import UsageError
from graphrag_ray.export import graphml, microsoft, spreadsheets
from graphrag_ray.export.output import open_output
from graphrag_ray.settings.index_settings import Settings
from graphrag_ray.store.files import Store
from graphrag_ray.version import __version__

FORMATS = ("graphrag", "graphml", "csv")
_FILES = (*microsoft.FILES, *graphml.FILES, *spreadsheets.FILES)


@dataclass(frozen=True)
class Exported:
    """What was written.

    rows    of tables, by the path of their file or folder (graph.graphml: nodes)
    notes   what is missing or to be known, and what to do about it
    """

    format: str
    url: str
    snapshot: int
    files: list[str]
    rows: Mapping[str, int]
    notes: list[str]


def export(
    reader: Reader, settings: Settings, out: Store, format: str, *, overwrite: bool = False
) -> Exported:
    """Write a snapshot to a folder. Memory: some parts of a table, and 40 bytes or so an entity.

    settings    whose models a graphrag project names
    overwrite   replace what an earlier export left there, as its export.json says; other files stay

    Raises UsageError for an index without a graph, a folder that holds files (with `overwrite`: whose names
    are an export's, though none wrote them) or the index itself, CorruptPart, SnapshotRemoved, StoreError.
    """
    index = reader.store.url
    if f"{out.url}/".startswith(f"{index}/") or f"{index}/".startswith(f"{out.url}/"):
        raise UsageError(f"--out {out.url} and the index at {index} lie in one another: name another folder")
    if "entities" not in reader.manifest.tables:
        raise UsageError("this index has no graph: there are no entities and relationships to export")
    about = {
        "format": format,
        "root": index,
        "snapshot": reader.manifest.number,
        "version": __version__,
    }
    with open_output(out, about, _FILES, overwrite=overwrite) as output:
        if format == "graphrag":
            notes = microsoft.write_microsoft(reader, output, settings)
        elif format == "graphml":
            notes = graphml.write_graphml(reader, output)
        else:
            notes = spreadsheets.write_csv(reader, output)
    more = [name for name in reader.manifest.hierarchies if name != "leiden"]
    notes += (
        [f"Communities and reports of other hierarchies are left out: {', '.join(more)}."] if more else []
    )
    return Exported(format, out.url, reader.manifest.number, output.files, output.rows, notes)
