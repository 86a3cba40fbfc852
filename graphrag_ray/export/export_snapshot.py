"""Export a snapshot to the file formats of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.schema import row_index_table
from graphrag_ray.export.exporters import EXPORTERS, Snapshot
from graphrag_ray.export.output import UndeclaredFile, open_output
from graphrag_ray.query.methods.hierarchy_choice import find_hierarchy, find_hierarchy_or_empty
from graphrag_ray.query.row_reader import Reader
from graphrag_ray.store.files import Store
from graphrag_ray.version import __version__


@dataclass(frozen=True)
class ExportResult:
    """Result of an export. `rows` are row counts by file or folder, or node counts for graph.graphml."""

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
) -> ExportResult:
    """Write a snapshot to a folder. Needs memory for a few parts of a table and about 40 bytes per entity.

    Args:
        settings: Settings with the models that a graphrag project names.
        overwrite: Replace the files of an earlier export, as listed in its export.json. Other files stay.
        hierarchy: Hierarchy whose communities and reports to write. Defaults to the first of the index.

    Raises:
        ReportsMissing, UsageError: The index lacks something that the format needs, or `out` cannot be used.
        CorruptPart, SnapshotRemoved, StoreError: The index cannot be read, or storage failed.
    """
    index = reader.store.url
    if f"{out.url}/".startswith(f"{index}/") or f"{index}/".startswith(f"{out.url}/"):
        raise UsageError(f"--out {out.url} and the index at {index} overlap. Choose another folder.")
    exporter, hierarchies = EXPORTERS[format], reader.manifest.hierarchies
    kind = (find_hierarchy if exporter.needs_reports else find_hierarchy_or_empty)(hierarchies, hierarchy)
    snapshot = Snapshot(reader, kind, settings)
    if snapshot.is_tree and not exporter.supports_trees:
        others = [name for name in hierarchies if name in HIERARCHIES and HIERARCHIES[name].needs_graph]
        alternative = f", or pass --hierarchy {others[0]}" if others else ""
        raise UsageError(
            f"Format {format} needs communities of entities, but hierarchy {kind.name} is over chunks. Use "
            f"--format graphml or csv{alternative}."
        )
    if not snapshot.is_tree:
        if "entities" not in reader.manifest.tables:
            raise UsageError("The index has no graph, so there are no entities and relationships to export")
        # Exporters read the chosen hierarchy under the table names of the `leiden` hierarchy.
        leiden, tables = HIERARCHIES["leiden"], dict(reader.manifest.tables)
        for exported, chosen in (
            (leiden.communities_table, kind.communities_table),
            (leiden.reports_table, kind.reports_table),
            (f"embeddings_{leiden.report_kind}", f"embeddings_{kind.report_kind}"),
        ):
            tables[exported] = reader.manifest.tables.get(chosen, [])
            tables[row_index_table(exported)] = reader.manifest.tables.get(row_index_table(chosen), [])
        manifest = replace(reader.manifest, tables=tables)
        snapshot = replace(snapshot, reader=replace(reader, manifest=manifest))
    about = {"format": format, "root": index, "snapshot": reader.manifest.number, "version": __version__}
    with open_output(out, about, exporter.files, overwrite=overwrite) as output:
        package = EXPORTERS.package_of(format)
        try:
            notes = list(exporter.write(snapshot, output))
        except Exception as e:
            if not package or (isinstance(e, GraphRagError) and not isinstance(e, UndeclaredFile)):
                raise
            problem = str(e) if isinstance(e, UndeclaredFile) else f"failed: {type(e).__name__}: {e}"
            raise PluginError(f"The export format {format!r} from the package {package} {problem}") from e
        if not all(isinstance(note, str) for note in notes):
            raise PluginError(
                f"The export format {format!r} from the package {package} must return a list of strings"
            )
    if others := [name for name in hierarchies if name != kind.name]:
        notes.append(
            f"Exported the communities and reports of the {kind.name} hierarchy. Pass --hierarchy to export "
            f"{' or '.join(others)}"
        )
    return ExportResult(format, out.url, reader.manifest.number, output.files, output.rows, notes)
