"""From the string ids that an answer cites to the short numbers that people see."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pyarrow as pa

from graphrag_ray.base.declarations import OF_SECTION
from graphrag_ray.base.records import SECTIONS, Reference, render_references
from graphrag_ray.query.methods.method import Rows


def numbered(references: Iterable[Reference]) -> Generator[Any, Any, dict[Reference, int]]:
    """Ask for the human_readable_id of each record; one that the snapshot does not hold is left out."""
    wanted = list(references)
    ids = {s: [r.id for r in wanted if r.section == s] for s in SECTIONS}
    cited = [s for s in SECTIONS if ids[s]]
    tables: list[pa.Table] = yield tuple(
        Rows(OF_SECTION[s].table, ["id", "human_readable_id"], ids[s]) for s in cited
    )
    return {
        Reference(section, row["id"]): row["human_readable_id"]
        for section, table in zip(cited, tables, strict=True)
        for row in table.to_pylist()
    }


def shown_to_people(text: str, number: Mapping[Reference, int]) -> str:
    """The text with short numbers in its references instead of string ids."""
    return render_references(text, number.get)


def shown_in(numbering: Mapping[tuple[str, int], str]) -> tuple[Reference, ...]:
    """The records of a context."""
    return tuple(Reference(section, id_) for (section, _), id_ in numbering.items())
