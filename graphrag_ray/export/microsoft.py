"""Export a project folder for microsoft/graphrag's own `query`.

    settings.yaml                       names and addresses of models
    output/<table>.parquet              seven tables with the columns of graphrag 3.x, periods and relations
    output/lancedb/<name>.lance/        vectors by id; needs the package lancedb

The vectors are copied from the index. Like graphrag, it embeds entities as "title: description".
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
from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.urls import is_url
from graphrag_ray.export.exporters import Exporter, Snapshot
from graphrag_ray.export.output import Output
from graphrag_ray.query.row_reader import Reader, schema_of
from graphrag_ray.store.parts import Part, read_part
from graphrag_ray.store.snapshots import detect_removal
from graphrag_ray.version import __version__

_FIRST_ADDED_COLUMN = {
    "documents": "path",
    "text_units": "position",
    "entities": "n_instances",
    "relationships": "source_id",
    "communities": "hierarchy",
    "community_reports": "hierarchy",
    "covariates": "subject_entity_id",
}
"""The first column of each table that graphrag lacks. The columns before it are in graphrag's order."""

_ADDED = (*schema.PERIOD_COLUMNS, *schema.RELATION_COLUMNS)

VECTOR_TABLES = {
    "entity_description": "entity",
    "text_unit_text": "text_unit",
    "community_full_content": "community_report",
}
"""The record kind of each of graphrag's vector tables."""

SETTINGS = "settings.yaml"
LANCE = "output/lancedb"
FILES = (SETTINGS, *(f"output/{table}.parquet" for table in _FIRST_ADDED_COLUMN), f"{LANCE}/")
EXTRA = ".[lancedb]"

KEY_VARIABLE, ADDRESS_VARIABLE = "GRAPHRAG_API_KEY", "GRAPHRAG_API_BASE"
MODEL_VARIABLE, EMBEDDING_MODEL_VARIABLE = "GRAPHRAG_MODEL", "GRAPHRAG_EMBEDDING_MODEL"
"""Environment variables for values that the settings of the index do not specify."""

_WIDTH = 100


def graphrag_columns(table: str) -> list[str]:
    """Return the columns that graphrag has in a table, in its order."""
    names = schema.TABLES[table].names
    return list(names[: names.index(_FIRST_ADDED_COLUMN[table])])


def write(snapshot: Snapshot, output: Output) -> list[str]:
    """Write the project. The settings come last, because graphrag reads nothing without them.

    Returns notes on what is missing. Raises CorruptPart, SnapshotRemoved, StoreError.
    """
    reader, settings = snapshot.reader, snapshot.settings
    for table in _FIRST_ADDED_COLUMN:
        # graphrag ignores columns that it does not know.
        added = [name for name in _ADDED if name in schema.TABLES[table].names]
        columns, path, rows = [*graphrag_columns(table), *added], f"output/{table}.parquet", 0
        with (
            output.file(path) as local,
            pq.ParquetWriter(local, schema_of(table, columns), compression="zstd") as writer,
        ):
            for part in reader.iter_batches(table, columns):
                writer.write_table(part)
                rows += part.num_rows
        output.rows[path] = rows
    needed = "needed by graphrag's local, drift and basic search, but not its global search"
    notes, dimensions = [], 0
    if not any(reader.manifest.parts(f"embeddings_{kind}") for kind in VECTOR_TABLES.values()):
        notes.append(
            f"The index has no embeddings ({needed}). Index with embeddings.enabled and export again"
        )
    elif find_spec("lancedb") is None:
        notes.append(
            f"Vector tables ({needed}) were not exported because the package lancedb is not installed. Run "
            f"pip install '{EXTRA}' in the project's folder and export again with --overwrite"
        )
    else:
        dimensions = _write_vectors(reader, output)
    if dimensions and settings.model(settings.model_name("embed")).provider == "offline":
        notes.append(
            f"The vectors ({dimensions} dimensions) are offline embeddings, which no endpoint serves. Global "
            "search works, but local, drift and basic search would embed questions with another model. For "
            "these, index with an endpoint's embedding model (models.embedding) and export again"
        )
    output.write(SETTINGS, settings_yaml(settings, dimensions, reader.manifest.number, notes))
    return notes


def _write_vectors(reader: Reader, output: Output) -> int:
    """Write the vector tables (id and vector) and return the number of dimensions."""
    import lancedb  # optional, and slow to import

    dimensions = 0
    for name, kind in VECTOR_TABLES.items():
        parts = reader.manifest.parts(f"embeddings_{kind}")

        def batches(parts: Sequence[Part] = parts) -> Iterator[pa.RecordBatch]:
            with detect_removal(reader.store, reader.manifest):
                for part in parts:
                    yield from read_part(reader.store, part).select(["id", "vector"]).to_batches()

        first = next(batches(), None)
        if first is None:
            continue
        dimensions = first.schema.field("vector").type.list_size
        # Upload the manifest last: readers then find all files that it names.
        with output.folder(LANCE, last="_versions") as local:
            database: Any = lancedb.connect(str(local))
            database.create_table(name, data=pa.RecordBatchReader.from_batches(first.schema, batches()))
        output.rows[f"{LANCE}/{name}.lance"] = sum(part.rows for part in parts)
    return dimensions


def settings_yaml(settings: Settings, dimensions: int, snapshot: int, notes: Sequence[str] = ()) -> str:
    """Render settings.yaml for graphrag 3.x, which substitutes `${NAME}`. Other dollar signs are doubled.

    Args:
        settings: Settings with the models of the stages `reduce` and `embed`.
        dimensions: Number of dimensions of the vectors, or 0 without vectors.
        notes: Notes to write as comments.
    """
    chat = settings.model(settings.model_name("reduce"))
    embedding = settings.model(settings.model_name("embed"))
    # If the address of the embedding model is unknown, use that of the chat model.
    server = embedding if embedding.provider == "openai" else chat
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
# Environment variables can also be set in a file named .env next to this one. local, drift and basic search
# embed the question. They need the embedding model and number of dimensions of the index.
{comment}
completion_models:
  default_completion_model:
{_model(chat, chat, MODEL_VARIABLE)}

embedding_models:
  default_embedding_model:
{_model(embedding, server, EMBEDDING_MODEL_VARIABLE)}

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


def _model(model: Model, server: Model, variable: str) -> str:
    """Render the settings of a model at a server. `variable` replaces an unknown model name."""
    endpoint = server.endpoints[0] if server.endpoints else None
    has_name = model.provider == "openai"
    model_id = (model.endpoints[0].model if model.endpoints else None) or model.model
    name = _quoted(model_id) if has_name else _variable(variable)
    address = _quoted(endpoint.base_url) if endpoint else _variable(ADDRESS_VARIABLE)
    if endpoint is not None and endpoint.api_key_env:
        key = _variable(endpoint.api_key_env)
    else:
        # Do not copy a key from a file. graphrag reads it from a variable.
        key = _variable(KEY_VARIABLE) if endpoint is None or endpoint.api_key_file else _quoted("none")
    lines = ["model_provider: openai", f"model: {name}", f"api_base: {address}", f"api_key: {key}"]
    if has_name and model.embedding_dimensions:
        lines += ["call_args:", f"  dimensions: {model.embedding_dimensions}"]
    return "\n".join(f"    {line}" for line in lines)


def _variable(name: str) -> str:
    return f'"${{{name}}}"'


def _quoted(value: str) -> str:
    """Quote a string as JSON, which is valid YAML."""
    return orjson.dumps(value).decode().replace("$", "$$")


def _next_step(url: str) -> str:
    root = "." if is_url(url) else shlex.quote(url)
    command = f'graphrag query "What are the main themes?" --root {root} --method global'
    if is_url(url):
        command = f"copy the folder to a local disk and run this there: {command}"
    return f"Query it with microsoft/graphrag (settings.yaml has the models and variables): {command}"


EXPORTER = Exporter(
    write,
    "a project for microsoft/graphrag's own `query`: parquet tables, vectors and a settings.yaml",
    FILES,
    _next_step,
    needs_reports=True,
)
