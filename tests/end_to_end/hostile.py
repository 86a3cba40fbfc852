"""A model that finds malicious names in every text."""

from __future__ import annotations

from typing import Any

import toy_model

from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.delimited_records import COMPLETION, FIELD, RECORD

ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
RAW_NAMES = [
    '=HYPERLINK("http://evil","click")',
    "+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(A1)",
    '<b>"quotes" & </data></node>]]>',
    f"steered{ESCAPE}",
    "${HOME} $(id) `id`",
    "x" * 5_000,
    "Åsa Löfgren 東京",
    "1984",
]
"""Names as the model returns them."""
NAMES = [entity_key(name) for name in RAW_NAMES]
"""Names as the index stores them."""
DESCRIPTION = f"=1+1{ESCAPE} <told> & of"


def respond(body: dict[str, Any]) -> str:
    """Return relationships that link all names in a ring, for `Endpoint(respond=…)`.

    The toy model answers all other prompts.
    """
    name, _ = toy_model.recognise(body["messages"][-1]["content"])
    if name != "extract":
        return toy_model.respond(body)
    records = [
        f'("entity"{FIELD}{name}{FIELD}PERSON{FIELD}{DESCRIPTION} {i})' for i, name in enumerate(RAW_NAMES)
    ]
    for a, b in zip(RAW_NAMES, RAW_NAMES[1:] + RAW_NAMES[:1], strict=True):
        records.append(f'("relationship"{FIELD}{a}{FIELD}{b}{FIELD}{DESCRIPTION}{FIELD}5)')
    return f"{RECORD}\n".join([*records, COMPLETION])
