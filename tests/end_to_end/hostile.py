"""A model that finds malicious names in every text."""

from __future__ import annotations

from typing import Any

import toy_model

from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.delimited_records import COMPLETION, FIELD, RECORD

ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
WRITTEN = [
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
"""As the model writes them."""
NAMES = [entity_key(name) for name in WRITTEN]
"""As the index has them."""
TOLD = f"=1+1{ESCAPE} <told> & of"


def respond(body: dict[str, Any]) -> str:
    """For `Endpoint(respond=…)`: link these names in a ring in each text.

    Everything else is answered by the toy model.
    """
    name, _ = toy_model.recognise(body["messages"][-1]["content"])
    if name != "extract":
        return toy_model.respond(body)
    records = [f'("entity"{FIELD}{name}{FIELD}PERSON{FIELD}{TOLD} {i})' for i, name in enumerate(WRITTEN)]
    for a, b in zip(WRITTEN, WRITTEN[1:] + WRITTEN[:1], strict=True):
        records.append(f'("relationship"{FIELD}{a}{FIELD}{b}{FIELD}{TOLD}{FIELD}5)')
    return f"{RECORD}\n".join([*records, COMPLETION])
