"""Convert Pydantic models to the YAML of a schema for extraction (`graph/extraction_schema.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import getdoc
from typing import Any, get_args

from pydantic import BaseModel

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def schema_from_models(models: Iterable[type[BaseModel]], *, open: bool = False) -> str:
    """Return the schema that Pydantic models describe, as YAML.

    Models, and the models that their fields refer to, are entity types, and their docstrings the definitions.
    A field whose type contains models is a relation type that leads to them. Other fields are attributes,
    except `id` and `name`, which every entity has. The descriptions of fields are kept.

    Args:
        open: Whether other types are allowed.

    Example:
        >>> class Disease(BaseModel):
        ...     "An illness."
        >>> class Drug(BaseModel):
        ...     "A substance that patients take."
        ...     dose: str | None = None
        ...     treats: list[Disease] = []
        >>> print(schema_from_models([Drug]))
        entities:
          DRUG:
            description: A substance that patients take.
            attributes:
              dose: ''
          DISEASE:
            description: An illness.
        relations:
          TREATS: ''
        patterns:
        - - DRUG
          - TREATS
          - DISEASE
        open: false
        <BLANKLINE>
    """
    import yaml  # imported lazily: most commands read no YAML

    entities, relations = dict[str, dict[str, Any]](), dict[str, str]()
    patterns: list[list[str]] = []
    waiting = list(dict.fromkeys(models))
    for model in waiting:  # grows while it is read
        name = _type_name(model.__name__)
        text = " ".join((getdoc(model) or "").split()) if model.__doc__ else ""
        attributes: dict[str, str] = {}
        for field_name, field in model.model_fields.items():
            description = " ".join((field.description or "").split())
            targets = list(dict.fromkeys(_models_in(field.annotation)))
            if not targets and field_name not in ("id", "name"):
                attributes[field_name] = description
            for target in targets:
                relation = _type_name(field_name)
                relations[relation] = relations.get(relation) or description
                patterns.append([name, relation, _type_name(target.__name__)])
            waiting += [target for target in targets if target not in waiting]
        if name in entities:
            raise ValueError(f"two models have the name {name}. Rename one of them")
        entities[name] = {"description": text, **({"attributes": attributes} if attributes else {})}
    data = {"entities": entities, "relations": relations, "patterns": patterns, "open": open}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1_000)
    return str(text)


def _type_name(name: str) -> str:
    return _WORD_START.sub("_", name).upper()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, such as `list[Disease] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
