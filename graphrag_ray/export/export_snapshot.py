"""An export: a snapshot in the files of other programs, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.schema import rows_table
from graphrag_ray.export.exporters import EXPORTERS, Exporter, Snapshot
from graphrag_ray.export.output import Output, UndeclaredFile, open_output
from graphrag_ray.query.methods.asked_hierarchy import hierarchy_of, looked_at
from graphrag_ray.query.reading import Reader
from graphrag_ray.store.files import Store
from graphrag_ray.version import __version__


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
    reader: Reader,
    settings: Settings,
    out: Store,
    format: str,
    *,
    overwrite: bool = False,
    hierarchy: str | None = None,
) -> Exported:
    """Write a snapshot to a folder. Memory: some parts of a table, and some 40 bytes an entity.

    settings    whose models a graphrag project names
    hierarchy   whose communities and reports are written; None: the first of the index
    overwrite   replace what an earlier export left there, as its export.json says; other files stay

    Raises NoReports, UsageError for what the format or the index does not have, and for a folder that is not
    to be written to; CorruptPart, SnapshotRemoved, StoreError.
    """
    index = reader.store.url
    if f"{out.url}/".startswith(f"{index}/") or f"{index}/".startswith(f"{out.url}/"):
        raise UsageError(f"--out {out.url} and the index at {index} lie in one another: name another folder")
    exporter, hierarchies = EXPORTERS[format], reader.manifest.hierarchies
    kind = (hierarchy_of if exporter.reports else looked_at)(hierarchies, hierarchy)
    snapshot = Snapshot(reader, kind, settings)
    if snapshot.is_tree and not exporter.trees:
        others = [name for name in hierarchies if name in HIERARCHIES and HIERARCHIES[name].of_graph]
        instead = f"; --hierarchy {others[0]} exports that one" if others else ""
        raise UsageError(
            f"{format} reads communities of entities, and hierarchy {kind.name} is over chunks: it is "
            f"exported with --format graphml or csv{instead}"
        )
    if not snapshot.is_tree:
        if "entities" not in reader.manifest.tables:
            raise UsageError("this index has no graph: there are no entities and relationships to export")
        # The tables of this hierarchy under the names of Leiden's, as other programs read.
        leiden, tables = HIERARCHIES["leiden"], dict(reader.manifest.tables)
        for theirs, ours in (
            (leiden.communities, kind.communities),
            (leiden.reports_table, kind.reports_table),
            (f"embeddings_{leiden.reports}", f"embeddings_{kind.reports}"),
        ):
            tables[theirs] = reader.manifest.tables.get(ours, [])
            tables[rows_table(theirs)] = reader.manifest.tables.get(rows_table(ours), [])
        renamed = replace(reader, manifest=replace(reader.manifest, tables=tables))
        snapshot = replace(snapshot, reader=renamed)
    about = {"format": format, "root": index, "snapshot": reader.manifest.number, "version": __version__}
    with open_output(out, about, exporter.files, overwrite=overwrite) as output:
        notes = _written(format, exporter, snapshot, output)
    if more := [name for name in hierarchies if name != kind.name]:
        notes.append(
            f"Communities and reports of hierarchy {kind.name} are written; --hierarchy writes those of "
            f"{' or '.join(more)}"
        )
    return Exported(format, out.url, reader.manifest.number, output.files, output.rows, notes)


def _written(format: str, exporter: Exporter, snapshot: Snapshot, output: Output) -> list[str]:
    """The exporter's notes. Raises PluginError where the one of another package is at fault."""
    package = EXPORTERS.package_of(format)
    try:
        notes = list(exporter.write(snapshot, output))
    except Exception as e:
        if not package or (isinstance(e, GraphRagError) and not isinstance(e, UndeclaredFile)):
            raise
        problem = str(e) if isinstance(e, UndeclaredFile) else f"failed: {type(e).__name__}: {e}"
        raise PluginError(f"The export format {format!r} of the package {package} {problem}") from e
    if not all(isinstance(note, str) for note in notes):
        raise PluginError(f"The export format {format!r} of the package {package} returned no list of texts")
    return notes
