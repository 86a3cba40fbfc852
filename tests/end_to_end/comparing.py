"""Compare the tables of two indexes whose short ids differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

Rows = list[dict[str, Any]]
Tables = Mapping[str, Rows]

TABLE_OF = {
    "Entities": "entities",
    "Relationships": "relationships",
    "Claims": "covariates",
    "Reports": "community_reports",
    "Sources": "text_units",
}


def without_numbers(rows: Rows) -> Rows:
    return [{k: v for k, v in row.items() if k != "human_readable_id"} for row in rows]


def by_id(tables: Tables) -> dict[str, Rows]:
    """Return tables sorted by id, with short ids replaced by ids, also within texts."""
    id_of = {name: {r["human_readable_id"]: r["id"] for r in tables[name]} for name in TABLE_OF.values()}
    community = {r["human_readable_id"]: r["id"] for r in tables["communities"]}

    def cited(match: re.Match[str]) -> str:
        numbers = [int(n) for n in match[2].split(", ") if n.isdecimal()]
        return f"{match[1]} ({', '.join(id_of[TABLE_OF[match[1]]][n] for n in numbers)})"

    def normalise(key: str, value: Any) -> Any:
        if key in ("community", "parent"):
            return community.get(value, "")
        if key == "children":
            return sorted(community[n] for n in value)
        if isinstance(value, str):
            value = re.sub(r"\ACommunity \d+\Z", "Community", value)
            return re.sub(r"\b(" + "|".join(TABLE_OF) + r") \(([^()]*)\)", cited, value)
        if isinstance(value, list):
            return [normalise("", v) for v in value]
        if isinstance(value, dict):
            return {k: normalise(k, v) for k, v in value.items()}
        return value

    return {
        name: sorted(
            ({k: normalise(k, v) for k, v in row.items()} for row in without_numbers(rows)),
            key=lambda row: (row.get("id", ""), orjson.dumps(row, option=orjson.OPT_SORT_KEYS)),
        )
        for name, rows in tables.items()
    }
