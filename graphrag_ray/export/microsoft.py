"""What microsoft/graphrag's own `query` reads: single parquet files, LanceDB tables, and settings.

    settings.yaml                       names models, and where the rest is
    output/<table>.parquet              seven tables with the columns of graphrag 3.x, and no others
    output/lancedb/<name>.lance/        vectors, keyed by id; needs the package lancedb

Vectors are those of the index: for entities of "title: description", which graphrag embeds too.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.export.output import Output
from graphrag_ray.export.project import settings_yaml
from graphrag_ray.query.reading import Reader, schema_of
from graphrag_ray.store.parts import read_part
from graphrag_ray.store.snapshots import being_read

_OURS_FROM = {
    "documents": "path",
    "text_units": "position",
    "entities": "n_instances",
    "relationships": "source_id",
    "communities": "hierarchy",
    "community_reports": "hierarchy",
    "covariates": "subject_entity_id",
}
"""The first column of each table that is ours alone: those before it are graphrag's, in its order."""

VECTORS = {
    "entity_description": "entity",
    "text_unit_text": "text_unit",
    "community_full_content": "community_report",
}
"""graphrag's names of its vector tables, and our kinds of embeddings."""

SETTINGS = "settings.yaml"
LANCE = "output/lancedb"
FILES = (SETTINGS, *(f"output/{table}.parquet" for table in _OURS_FROM), f"{LANCE}/")
EXTRA = ".[lancedb]"


def columns_of(table: str) -> list[str]:
    """graphrag's columns of a table, in its order."""
    names = schema.TABLES[table].names
    return list(names[: names.index(_OURS_FROM[table])])


def write_microsoft(reader: Reader, output: Output, settings: Settings) -> list[str]:
    """All of it, the settings last: without them graphrag reads nothing. Returns what is missing, and what
    to do about it. Raises CorruptPart, SnapshotRemoved, StoreError."""
    for table in _OURS_FROM:
        _write_table(reader, output, table)
    missing = _why_no_vectors(reader)
    dimensions = 0
    if not missing:
        dimensions = _write_vectors(reader, output)
    notes = [missing] if missing else []
    if dimensions and settings.model(settings.model_name("embed")).provider == "offline":
        notes.append(
            f"The vectors ({dimensions} dimensions) are of the offline embedding, which no endpoint "
            "serves: graphrag's global search works, but local, drift and basic search would compare "
            "questions with them that another model has embedded. For these, index with an embedding "
            "model of an endpoint (models.embedding), and export again"
        )
    output.write(SETTINGS, settings_yaml(settings, dimensions, reader.manifest.number, notes))
    return notes


def _write_table(reader: Reader, output: Output, table: str) -> None:
    columns, path = columns_of(table), f"output/{table}.parquet"
    rows = 0
    with (
        output.file(path) as local,
        pq.ParquetWriter(local, schema_of(table, columns), compression="zstd") as writer,
    ):
        for part in reader.pieces(table, columns):
            writer.write_table(part)
            rows += part.num_rows
    output.rows[path] = rows


def _why_no_vectors(reader: Reader) -> str:
    """ "" where there can be vectors."""
    needed = "which graphrag's local, drift and basic search need (global search does not)"
    if not any(reader.manifest.parts(f"embeddings_{kind}") for kind in VECTORS.values()):
        return f"The index has no embeddings, {needed}: index with embeddings.enabled, and export again"
    if find_spec("lancedb") is None:
        return (
            f"The vector tables, {needed}, are not exported, since the package lancedb is not installed: "
            f"pip install '{EXTRA}' in the project's folder, and export again with --overwrite"
        )
    return ""


def _write_vectors(reader: Reader, output: Output) -> int:
    """The vector tables; returns the number of dimensions."""
    dimensions = 0
    for name, kind in VECTORS.items():
        batches = _vectors(reader, f"embeddings_{kind}")
        first = next(batches, None)
        if first is None:
            continue
        dimensions = first.schema.field("vector").type.list_size
        # The manifest of a lance table names its files: without it there is no table.
        with output.folder(LANCE, last="_versions") as local:
            rows = _write_lance(local, name, first, batches)
        output.rows[f"{LANCE}/{name}.lance"] = rows
    return dimensions


def _write_lance(folder: Path, name: str, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> int:
    import lancedb  # an extra; some 0.5 s

    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in _chained(first, rest):
            rows += batch.num_rows
            yield batch

    reader = pa.RecordBatchReader.from_batches(first.schema, counted())
    database: Any = lancedb.connect(str(folder))
    database.create_table(name, data=reader)
    return rows


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _vectors(reader: Reader, table: str) -> Iterator[pa.RecordBatch]:
    """id, vector: all with the dimensions and the types of the first."""
    with being_read(reader.store, reader.manifest):
        for part in reader.manifest.parts(table):
            yield from read_part(reader.store, part).select(["id", "vector"]).to_batches()
