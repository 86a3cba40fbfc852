"""What microsoft/graphrag's own `query` reads: single parquet files, LanceDB tables, and settings.

    settings.yaml                       names models, and where the rest is
    output/<table>.parquet              seven tables with the columns of graphrag 3.x, and no others
    output/lancedb/<name>.lance/        vectors, keyed by id; needs the package lancedb

Vectors are those of the index: for entities of "title: description", which graphrag embeds too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from textwrap import fill
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.index_settings import Model, Settings
from graphrag_ray.base.urls import is_url
from graphrag_ray.export.exporters import Exporter, Snapshot
from graphrag_ray.export.output import Output
from graphrag_ray.query.reading import Reader, schema_of
from graphrag_ray.store.parts import Part, read_part
from graphrag_ray.store.snapshots import being_read
from graphrag_ray.version import __version__

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

KEY, ADDRESS = "GRAPHRAG_API_KEY", "GRAPHRAG_API_BASE"
MODEL, EMBEDDING_MODEL = "GRAPHRAG_MODEL", "GRAPHRAG_EMBEDDING_MODEL"
"""Environment variables that stand for what the index's settings do not name."""

_WIDTH = 100


def columns_of(table: str) -> list[str]:
    """graphrag's columns of a table, in its order."""
    names = schema.TABLES[table].names
    return list(names[: names.index(_OURS_FROM[table])])


def write(snapshot: Snapshot, output: Output) -> list[str]:
    """All of it, the settings last: without them graphrag reads nothing. Returns what is missing, and what
    to do about it. Raises CorruptPart, SnapshotRemoved, StoreError."""
    reader, settings = snapshot.reader, snapshot.settings
    for table in _OURS_FROM:
        columns, path, rows = columns_of(table), f"output/{table}.parquet", 0
        with (
            output.file(path) as local,
            pq.ParquetWriter(local, schema_of(table, columns), compression="zstd") as writer,
        ):
            for part in reader.pieces(table, columns):
                writer.write_table(part)
                rows += part.num_rows
        output.rows[path] = rows
    needed = "which graphrag's local, drift and basic search need (global search does not)"
    notes, dimensions = [], 0
    if not any(reader.manifest.parts(f"embeddings_{kind}") for kind in VECTORS.values()):
        notes.append(
            f"The index has no embeddings, {needed}: index with embeddings.enabled, and export again"
        )
    elif find_spec("lancedb") is None:
        notes.append(
            f"The vector tables, {needed}, are not exported, since the package lancedb is not installed: "
            f"pip install '{EXTRA}' in the project's folder, and export again with --overwrite"
        )
    else:
        dimensions = _write_vectors(reader, output)
    if dimensions and settings.model(settings.model_name("embed")).provider == "offline":
        notes.append(
            f"The vectors ({dimensions} dimensions) are of the offline embedding, which no endpoint "
            "serves: graphrag's global search works, but local, drift and basic search would compare "
            "questions with them that another model has embedded. For these, index with an embedding "
            "model of an endpoint (models.embedding), and export again"
        )
    output.write(SETTINGS, settings_yaml(settings, dimensions, reader.manifest.number, notes))
    return notes


def _write_vectors(reader: Reader, output: Output) -> int:
    """The vector tables: id and vector, all with the types of the first. Returns the number of dimensions."""
    import lancedb  # an extra; some 0.5 s

    dimensions = 0
    for name, kind in VECTORS.items():
        parts = reader.manifest.parts(f"embeddings_{kind}")

        def batches(parts: Sequence[Part] = parts) -> Iterator[pa.RecordBatch]:
            with being_read(reader.store, reader.manifest):
                for part in parts:
                    yield from read_part(reader.store, part).select(["id", "vector"]).to_batches()

        first = next(batches(), None)
        if first is None:
            continue
        dimensions = first.schema.field("vector").type.list_size
        # The manifest of a lance table names its files: without it there is no table.
        with output.folder(LANCE, last="_versions") as local:
            database: Any = lancedb.connect(str(local))
            database.create_table(name, data=pa.RecordBatchReader.from_batches(first.schema, batches()))
        output.rows[f"{LANCE}/{name}.lance"] = sum(part.rows for part in parts)
    return dimensions


def settings_yaml(settings: Settings, dimensions: int, snapshot: int, notes: Sequence[str] = ()) -> str:
    """graphrag 3.x reads this as YAML after it has put environment variables into it: `${NAME}`; a dollar
    sign that is none is doubled.

    settings     whose models are named: of stage `reduce`, and of stage `embed`
    dimensions   of the vectors; 0 where there are none
    notes        what readers should know
    """
    chat = settings.model(settings.model_name("reduce"))
    embedding = settings.model(settings.model_name("embed"))
    # What embedded the index is asked at the same address as the other model, where it is not known.
    asked = embedding if embedding.provider == "openai" else chat
    comment = "".join(
        fill(note.replace("$", "$$"), _WIDTH, initial_indent="# ", subsequent_indent="# ",
             break_long_words=False, break_on_hyphens=False) + "\n"
        for note in notes
    )  # fmt: skip
    size = f"\n  vector_size: {dimensions}" if dimensions else ""
    return f"""\
# Written by graphrag-ray {__version__}, for microsoft/graphrag 3.x, from snapshot {snapshot}. In this folder:
#
#   graphrag query "What are the main themes?" --root . --method global
#
# Environment variables may also stand in a file named .env beside this one. local, drift and basic search
# embed the question: that model must be the one that embedded the index, with as many dimensions.
{comment}
completion_models:
  default_completion_model:
{_model(chat, chat, MODEL)}

embedding_models:
  default_embedding_model:
{_model(embedding, asked, EMBEDDING_MODEL)}

output_storage:
  type: file
  base_dir: output

reporting:
  type: file
  base_dir: logs

cache:
  type: none

vector_store:
  type: lancedb
  db_uri: output/lancedb{size}
"""


def _model(model: Model, asked: Model, variable: str) -> str:
    """model: what is asked for; asked: whose first address and key; variable: where it has no name."""
    endpoint = asked.endpoints[0] if asked.endpoints else None
    named = model.provider == "openai"
    model_id = (model.endpoints[0].model if model.endpoints else None) or model.model
    name = _quoted(model_id) if named else _variable(variable)
    address = _quoted(endpoint.base_url) if endpoint else _variable(ADDRESS)
    if endpoint is not None and endpoint.api_key_env:
        key = _variable(endpoint.api_key_env)
    else:
        # A key in a file stays there: what reads the export does not read that file.
        key = _variable(KEY) if endpoint is None or endpoint.api_key_file else _quoted("none")
    lines = ["model_provider: openai", f"model: {name}", f"api_base: {address}", f"api_key: {key}"]
    if named and model.embedding_dimensions:
        lines += ["call_args:", f"  dimensions: {model.embedding_dimensions}"]
    return "\n".join(f"    {line}" for line in lines)


def _variable(name: str) -> str:
    return f'"${{{name}}}"'


def _quoted(value: str) -> str:
    """A string of JSON is one of YAML."""
    return orjson.dumps(value).decode().replace("$", "$$")


def _then(url: str) -> str:
    root = "." if is_url(url) else shlex.quote(url)
    command = f'graphrag query "What are the main themes?" --root {root} --method global'
    if is_url(url):
        command = f"copy the folder to a disk, and there: {command}"
    return f"Ask it with microsoft/graphrag (settings.yaml says which models and variables): {command}"


EXPORTER = Exporter(
    write,
    "a project of microsoft/graphrag, for its own `query`: parquet tables, vectors and a settings.yaml",
    FILES,
    _then,
    reports=True,
)
