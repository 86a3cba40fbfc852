"""The settings reference: every section and key of `graphrag_ray/base/index_settings.py`, as Markdown.

    python docs/generate/settings.py > docs/reference/settings.md

The meaning of a key is the docstring below its field. A field without one is an error.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from graphrag_ray.base import index_settings
from graphrag_ray.base.declarations import MODEL_STAGES

INTRODUCTION = """\
# Settings

Generated from the settings model by `python docs/generate/settings.py > docs/reference/settings.md`: do not edit.

Settings are one YAML file, passed with `--config`. `graphrag-ray init DIR` writes one with all keys. Every
key is optional and can be overridden on the command line: `--set query.context_tokens=4000`, as often as
needed. List positions start at 0: `--set models.default.endpoints.0.max_in_flight=64`. An unknown key is an
error that suggests the nearest known one.

Without `--config`, `index` uses the settings of the newest snapshot. `run`, `budget`, `storage` and the keys
marked † belong to this machine or to one run: they are neither written to a snapshot nor read from one. How
models are reached (the keys marked † of `models.NAME`) and `storage` can also be set for all commands in your
user settings: [models](../guides/models.md#where-this-machine-finds-them).

Settings never contain secrets, only the name of the environment variable or file that holds one."""
SECTIONS: dict[str, type[BaseModel]] = {
    "models.NAME": index_settings.Model,
    "models.NAME.endpoints.N": index_settings.Endpoint,
    "models.NAME.price": index_settings.Price,
    "stages.STAGE": index_settings.StageModel,
}
"""Sections below others; the rest are fields of Settings."""
INTRODUCED = {
    "models.NAME.price": "Also `models.NAME.endpoints.N.price`.",
    "stages.STAGE": "STAGE is one of " + ", ".join(f"`{s}`" for s in MODEL_STAGES) + ".",
}
UNITS = (
    ("_usd_per_mtok", "US dollars per million tokens"),
    ("tokens_per_minute", "tokens per minute"),
    ("requests_per_minute", "requests per minute"),
    ("_tokens", "tokens"),
    ("_usd", "US dollars"),
    ("_bytes", "bytes"),
    ("_s", "seconds"),
    ("context_window", "tokens"),
    ("overlap", "tokens"),
)
"""By the end of a key's name."""
BOUNDS = {
    annotated_types.Gt: ("above", "gt"),
    annotated_types.Ge: ("at least", "ge"),
    annotated_types.Le: ("at most", "le"),
    annotated_types.MinLen: ("with at least", "min_length"),
}
NAMES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true, false",
    str: "text",
    type(None): "null",
    Any: "any",
}


def main() -> None:
    print(reference())


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    general = []
    for name, info in index_settings.Settings.model_fields.items():
        model = section_of(info.annotation)
        if model is not None:
            parts += section(name, model)
        elif name in ("models", "stages"):
            for path, below in SECTIONS.items():
                if path.startswith(name):
                    parts += section(path, below)
        else:
            general.append(row(name, name, info, docs_of(index_settings.Settings)))
    return "\n\n".join([*parts, "## At the top", table(general)])


def section(path: str, model: type[BaseModel]) -> list[str]:
    docs = docs_of(model)
    about = " ".join(filter(None, (flat(docs_text(model)), INTRODUCED.get(path, ""))))
    rows = [row(f"{path}.{name}", name, info, docs) for name, info in model.model_fields.items()]
    return [f"## {path}", *([about] if about else []), table(rows)]


def row(path: str, name: str, info: FieldInfo, docs: dict[str, str]) -> Sequence[str]:
    meaning = docs.get(name)
    if not meaning:
        raise SystemExit(f"{path} has no description: add a docstring below its field in index_settings.py")
    kind = kind_of(info.annotation, info.metadata)
    mark = "†" if index_settings.is_machines(info) else ""
    return [f"`{name}`{mark}", kind, default_of(info), unit_of(name), meaning]


def table(rows: Sequence[Sequence[str]]) -> str:
    head = ["key", "type", "default", "unit", "meaning"]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |" for cells in lines)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a key holds, unless it may be something else as well."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def kind_of(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """`whole number above 0`, `count, strength`, `list of text`, `… or null`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind_of(inner[0], [m for a in inner[1:] for m in getattr(a, "metadata", [a])])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind_of(one) for one in inner)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin is tuple:
        kind = f"list of {kind_of(inner[0])}"
    elif origin is dict:
        kind = f"mapping of {kind_of(inner[0])} to {kind_of(inner[1])}"
    elif section_of(annotation) is not None:
        kind = f"section ({annotation.__name__})"
    else:
        kind = NAMES[annotation]
    bounds = [
        f"{word} {getattr(m, at):g}" for m in metadata for t, (word, at) in BOUNDS.items() if isinstance(m, t)
    ]
    return " ".join([kind, " and ".join(bounds)]).strip()


def default_of(info: FieldInfo) -> str:
    if info.is_required():
        return "needed"
    value = info.get_default(call_default_factory=True)
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def unit_of(name: str) -> str:
    return next((unit for end, unit in UNITS if name.endswith(end) or name == end.strip("_")), "")


def docs_text(model: type[BaseModel]) -> str:
    """A model's own docstring, without what pydantic inherits."""
    return inspect.cleandoc(model.__dict__.get("__doc__") or "")


def docs_of(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a model's fields."""
    module = ast.parse(inspect.getsource(index_settings))
    names = {base.__name__ for base in model.__mro__}
    bodies = [n.body for n in module.body if isinstance(n, ast.ClassDef) and n.name in names]
    found = {}
    for field, after in chain.from_iterable(map(pairwise, bodies)):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[field.target.id] = flat(str(after.value.value))
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
