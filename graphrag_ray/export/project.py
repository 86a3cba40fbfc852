"""The settings.yaml of a graphrag project that reads an export: models, and where the tables are."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from graphrag_ray.base.index_settings import Endpoint, Model, Settings
from graphrag_ray.version import __version__

KEY, ADDRESS = "GRAPHRAG_API_KEY", "GRAPHRAG_API_BASE"
MODEL, EMBEDDING_MODEL = "GRAPHRAG_MODEL", "GRAPHRAG_EMBEDDING_MODEL"
"""Environment variables that stand for what the index's settings do not name."""

_WIDTH = 100


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
    size = f"\n  vector_size: {dimensions}" if dimensions else ""
    return f"""\
# Written by graphrag-ray {__version__}, for microsoft/graphrag 3.x, from snapshot {snapshot}. In this folder:
#
#   graphrag query "What are the main themes?" --root . --method global
#
# Environment variables may also stand in a file named .env beside this one. local, drift and basic search
# embed the question: that model must be the one that embedded the index, with as many dimensions.
{_comment(notes)}
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
    name = _quoted(_name(model)) if named else _variable(variable)
    address = _quoted(endpoint.base_url) if endpoint else _variable(ADDRESS)
    lines = ["model_provider: openai", f"model: {name}", f"api_base: {address}", f"api_key: {_key(endpoint)}"]
    if named and model.embedding_dimensions:
        lines += ["call_args:", f"  dimensions: {model.embedding_dimensions}"]
    return "\n".join(f"    {line}" for line in lines)


def _name(model: Model) -> str:
    return (model.endpoints[0].model if model.endpoints else None) or model.model


def _key(endpoint: Endpoint | None) -> str:
    if endpoint is not None and endpoint.api_key_env:
        return _variable(endpoint.api_key_env)
    # A key in a file stays there: what reads the export does not read that file.
    return _variable(KEY) if endpoint is None or endpoint.api_key_file else _quoted("none")


def _variable(name: str) -> str:
    return f'"${{{name}}}"'


def _quoted(value: str) -> str:
    """A string of JSON is one of YAML."""
    return orjson.dumps(value).decode().replace("$", "$$")


def _comment(notes: Sequence[str]) -> str:
    lines: list[str] = []
    for note in notes:
        line = "#"
        for word in note.replace("$", "$$").split():
            if len(line) + len(word) >= _WIDTH:
                lines.append(line)
                line = "#"
            line += f" {word}"
        lines += ["#", line] if not lines else [line]
    return "\n".join(lines) + "\n" if lines else ""
