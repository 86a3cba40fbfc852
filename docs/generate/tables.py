"""Print docs/reference/tables.md: the tables of an index, from the schemas and their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from graphrag_ray.base import schema

HEAD = """# Tables

Generated from `base/schema.py` by `python docs/generate/tables.py > docs/reference/tables.md`: do not edit.

An index is a folder or bucket. `tables/<table>/part-*.parquet` holds the finished tables of its snapshots,
and nothing else; `snapshots/<n>.json` lists the parts of each. Read the newest snapshot with
`open_index(ROOT).table(NAME)`, or with any Parquet reader if the index has one snapshot.
"""
COLUMN = re.compile(r'^\s*\(?"(?P<name>\w+)",.*?(?:#\s*(?P<told>.*))?$')


def described(source: str) -> dict[str, dict[str, str]]:
    """By the name of a schema, what the comments say of its columns."""
    found: dict[str, dict[str, str]] = {}
    of: dict[str, str] = {}
    name = ""
    for line in source.splitlines():
        if start := re.match(r"([A-Z_]+) = _table\(", line):
            of = found.setdefault(start[1], {})
        elif line.startswith(")"):
            of = {}
        elif match := COLUMN.match(line):
            name = match["name"]
            of[name] = match["told"] or ""
        elif (more := re.match(r'^\s*"(\w+)",$', line)) is not None:
            name = more[1]
        elif (told := re.match(r"^\s+\),?\s*#\s*(.*)$", line)) is not None:
            of[name] = told[1]
    return found


def page() -> Iterator[str]:
    yield HEAD
    names = {id(value): name for name, value in vars(schema).items() if isinstance(value, pa.Schema)}
    told = described(Path(schema.__file__).read_text("utf-8"))
    first: dict[str, str] = {}
    for table, columns in schema.TABLES.items():
        name = names[id(columns)]
        yield f"\n## {table}\n"
        if name in first:
            yield f"Columns as in [{first[name]}](#{first[name]})."
            continue
        first[name] = table
        yield "| column | type | |\n| --- | --- | --- |"
        for field in columns:
            type_ = re.sub(r"element: ", "", str(field.type)).replace("|", "\\|")
            yield f"| `{field.name}` | {type_} | {told[name].get(field.name, '')} |"
    yield "\n## embeddings_&lt;kind&gt;\n"
    yield f"One table per kind of record ({', '.join(schema.EMBEDDINGS)}):"
    yield "`id`, and `vector` of the model's dimension."
    yield "\n## Other folders\n"
    yield "`indexes/` holds what search reads, `work/` the journal of replies."
    yield "`intermediate/<stage>/<table>/` holds what later runs build on;"
    yield "its columns may change with every version:\n"
    yield "| table | what it holds |\n| --- | --- |"
    for table, says in schema.INTERMEDIATE_TABLES.items():
        yield f"| `{table}` | {says.replace('*', '&#42;')} |"


if __name__ == "__main__":
    print("\n".join(page()))
