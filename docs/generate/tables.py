"""Print docs/reference/tables.md: the tables of an index, from the schemas and their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from graphrag_ray.base import schema

HEAD = """# Tables

Generated from `base/schema.py` by `python docs/generate/tables.py > docs/reference/tables.md`: do not edit.

An index is a folder or bucket. `tables/<table>/part-*.parquet` are the parts of the finished tables of all
snapshots; `snapshots/<n>.json` lists the parts of one snapshot. Read the newest snapshot with
`open_index(ROOT).table(NAME)`, or with any Parquet reader if the index has one snapshot.
"""
COLUMN = re.compile(r'^\s*\(?"(?P<name>\w+)",.*?(?:#\s*(?P<comment>.*))?$')


def column_comments(source: str) -> dict[str, dict[str, str]]:
    """Read the comments on columns, by name of the schema and of the column."""
    comments: dict[str, dict[str, str]] = {}
    columns: dict[str, str] = {}
    name = ""
    for line in source.splitlines():
        if start := re.match(r"([A-Z_]+) = _table\(", line):
            columns = comments.setdefault(start[1], {})
        elif line.startswith(")"):
            columns = {}
        elif match := COLUMN.match(line):
            name = match["name"]
            columns[name] = match["comment"] or ""
        elif (start := re.match(r'^\s*"(\w+)",$', line)) is not None:
            name = start[1]
        elif (end := re.match(r"^\s+\),?\s*#\s*(.*)$", line)) is not None:
            columns[name] = end[1]
    return comments


def page() -> Iterator[str]:
    yield HEAD
    names = {id(value): name for name, value in vars(schema).items() if isinstance(value, pa.Schema)}
    comments = column_comments(Path(schema.__file__).read_text("utf-8"))
    first: dict[str, str] = {}
    for table, columns in schema.TABLES.items():
        name = names[id(columns)]
        yield f"\n## {table}\n"
        if name in first:
            yield f"Columns as in [{first[name]}](#{first[name]})."
            continue
        first[name] = table
        yield "| column | type | meaning |\n| --- | --- | --- |"
        for field in columns:
            type_ = re.sub(r"element: ", "", str(field.type)).replace("|", "\\|")
            yield f"| `{field.name}` | {type_} | {comments[name].get(field.name, '')} |"
    yield "\n## embeddings_&lt;kind&gt;\n"
    yield f"There is one table per record kind ({', '.join(schema.EMBEDDINGS)}), with the columns"
    yield "`id` and `vector`."
    yield "\n## Other folders\n"
    yield "`indexes/` contains the search indexes, and `work/` contains the journal of replies."
    yield "`intermediate/<stage>/<table>/` contains tables for later stages and runs,"
    yield "whose columns may change with every version:\n"
    yield "| table | contents |\n| --- | --- |"
    for table, contents in schema.INTERMEDIATE_TABLES.items():
        yield f"| `{table}` | {contents.replace('*', '&#42;')} |"


if __name__ == "__main__":
    print("\n".join(page()))
