"""Find the record that a user refers to by short id, id, name, path or title."""

from __future__ import annotations

import difflib
import heapq
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import entity_id, entity_key, relationship_id
from graphrag_ray.base.wording import collapse_whitespace, document_location
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.row_reader import Reader

_LEVEL_AND_NUMBER = re.compile(r"[Cc](\d{1,9}):(\d{1,18})")
_NUMBER = re.compile(r"\d{1,18}")
_MAX_SUGGESTIONS = 5
_shorten = partial(collapse_whitespace, max_chars=60)

_MIN_RATIO = 0.6
"""Minimum difflib ratio of a name to suggest."""
_MAX_COMPARED_NAMES = 500
"""Maximum number of names that difflib compares, at about 20 µs each. They share the most trigrams."""
_GRAM = 3
_MAX_COMPARED_CHARS = 200
"""Maximum length to compare. The time that difflib takes is quadratic in it."""


def find_entity(reader: Reader, name: str) -> str:
    """Find an entity by short id, id or name. Raises UsageError, which suggests similar names."""
    if id_ := _exact(reader, "entities", name, [name, entity_id(name), entity_id(entity_key(name))]):
        return id_
    key = entity_key(name)
    merged = reader.rows(Rows("resolutions", ["entity_id"], [entity_id(key)] if key else []))
    found = reader.rows(Rows("entities", ["id"], merged["entity_id"].unique().to_pylist()))["id"]
    if len(found) == 1:
        return str(found[0])
    rows = reader.table("entities", ["id", "human_readable_id", "title"])
    return _by_name("entity", "entities", name, rows, [rows["title"].to_pylist()])


def find_relationship(reader: Reader, names: Sequence[str]) -> str:
    """Find a relationship by short id, id, or the names of its two entities. Raises UsageError."""
    if len(names) == 1:
        return find_record(reader, "relationship", "relationships", names[0])
    ids = [find_entity(reader, name) for name in names]
    rows = reader.rows(Rows("entities", ["id", "title"], ids))
    titles = dict(zip(rows["id"].to_pylist(), rows["title"].to_pylist(), strict=True))
    first, second = (titles[id_] for id_ in ids)
    if id_ := _exact(reader, "relationships", "", [relationship_id(first, second)]):
        return id_
    raise UsageError(f"{_shorten(first)} and {_shorten(second)} have no direct relationship")


def find_record(reader: Reader, kind: str, table: str, name: str) -> str:
    """Find a chunk, claim or relationship by short id or id. Raises UsageError."""
    return _exact(reader, table, name, [name]) or _not_found(reader, kind, table, name)


def find_document(reader: Reader, name: str) -> str:
    """Find a document by short id, id, path, path with row ("file, row 3") or title.

    Raises UsageError, which suggests similar documents or lists the matches if there are several.
    """
    rows = reader.table("documents", ["id", "human_readable_id", "path", "row", "title"])
    paths, titles = rows["path"].to_pylist(), [title or "" for title in rows["title"].to_pylist()]
    places = list(map(document_location, paths, rows["row"].to_pylist()))
    if name in places:
        return str(rows["id"][places.index(name)].as_py())
    return _exact(reader, "documents", name, [name]) or _by_name(
        "document", "documents", name, rows, [places, paths, titles]
    )


def find_community(reader: Reader, name: str, kind: HierarchyKind) -> int:
    """Find a community by "12", "C1:12", id, report id or report title. Raises UsageError."""
    match = _LEVEL_AND_NUMBER.fullmatch(name.strip())
    number = match.group(2) if match else name
    columns = ["id", "human_readable_id", "level", "title"]
    rows = reader.table(kind.communities_table, columns)
    id_ = _exact(reader, kind.communities_table, number, [name])
    if not id_:
        if match or _NUMBER.fullmatch(name):
            _not_found(reader, "community", kind.communities_table, number)
        rows = pa.concat_tables([reader.table(kind.reports_table, columns), rows])
        titles = rows["title"].to_pylist()
        is_id = name in rows["id"].to_pylist()
        id_ = name if is_id else _by_name("community", kind.communities_table, name, rows, [titles])
    row = rows.filter(pc.equal(rows["id"], id_)).to_pylist()[0]
    if match and int(match.group(1)) != row["level"]:
        raise UsageError(f"Community {number} is at level C{row['level']}, not C{match.group(1)}")
    return int(row["human_readable_id"])


def _exact(reader: Reader, table: str, name: str, ids: Sequence[str]) -> str | None:
    """Return the id of the row with this short id, or otherwise the first of these ids that exists."""
    if _NUMBER.fullmatch(name):
        rows = reader.rows(Rows(table, ["id"], [int(name)], "human_readable_id"))
        if rows.num_rows:
            return str(rows["id"][0].as_py())
    existing = set(reader.rows(Rows(table, ["id"], ids))["id"].to_pylist())
    return next((id_ for id_ in ids if id_ in existing), None)


def _by_name(kind: str, table: str, name: str, rows: pa.Table, names: Sequence[Sequence[str]]) -> str:
    """Return the id of the only row with this name after `fold`. Raises UsageError.

    `names` are columns of names of these rows. Messages show the first column.
    """
    wanted, numbers = fold(name), rows["human_readable_id"]
    matches = [row for column in names for row, n in enumerate(column) if fold(n) == wanted] if wanted else []
    matches = list(dict.fromkeys(matches))
    ids = {rows["id"][row].as_py() for row in matches}
    if len(ids) == 1:
        return str(ids.pop())
    if ids:
        examples = _list_names((names[0][row], numbers[row].as_py()) for row in matches[:_MAX_SUGGESTIONS])
        ellipsis = ", …" if len(matches) > _MAX_SUGGESTIONS else ""
        raise UsageError(
            f"{len(ids)} {table} are named {_shorten(name)!r}: {examples}{ellipsis}. Choose one by number."
        )
    candidates = [(n, row) for column in names for row, n in enumerate(column) if n]
    similar = find_similar(name, [n for n, _ in candidates], _MAX_SUGGESTIONS)
    similar_rows = dict.fromkeys(candidates[i][1] for i in similar)
    suggestions = _list_names((names[0][row], numbers[row].as_py()) for row in similar_rows)
    hint = (
        f"Did you mean {suggestions}?"
        if similar_rows
        else "Find parts of names with `graphrag-ray inspect search TEXT`."
    )
    raise UsageError(f"Unknown {kind} {_shorten(name)!r}. {hint}")


def _not_found(reader: Reader, kind: str, table: str, name: str) -> NoReturn:
    rows = sum(part.rows for part in reader.manifest.parts(table))
    last = reader.manifest.next_human_readable_id.get(table, rows + 1) - 1
    kinds = "communities" if kind == "community" else f"{kind}s"
    hint = f"Numbers go up to {last:,}." if rows else f"The index has no {kinds}."
    raise UsageError(f"Unknown {kind} {_shorten(name)!r}. {hint}")


def _list_names(names: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{_shorten(name)} ({number})" for name, number in names)


def fold(text: str) -> str:
    """Normalise case, accents, compatibility forms and whitespace of a name, for comparison."""
    if text.isascii():
        return " ".join(text.lower().split())
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


def find_containing(text: str, names: Sequence[str]) -> list[int]:
    """Return the indices of names that contain a text: equal names first, then names that begin with it."""
    wanted = fold(text)
    folded = {i: f for i, name in enumerate(names) if wanted in (f := fold(name))}
    return sorted(
        folded, key=lambda i: 0 if folded[i] == wanted else 1 if folded[i].startswith(wanted) else 2
    )


def find_similar(text: str, names: Sequence[str], n: int = 5) -> list[int]:
    """Return the indices of up to n names that contain the text or are similar to it, in this order."""
    wanted = fold(text)[:_MAX_COMPARED_CHARS]
    grams = {wanted[i : i + _GRAM] for i in range(max(1, len(wanted) - _GRAM + 1))}
    folded = [fold(name)[:_MAX_COMPARED_CHARS] for name in names]
    shared = [sum(gram in name for gram in grams) for name in folded]
    indices: dict[str, list[int]] = {}
    for i in heapq.nlargest(_MAX_COMPARED_NAMES, range(len(names)), key=lambda i: (shared[i], -i)):
        indices.setdefault(folded[i], []).append(i)
    matches = difflib.get_close_matches(wanted, indices, n, _MIN_RATIO)
    matching = find_containing(text, names)[:n] if wanted else []
    return list(dict.fromkeys([*matching, *(i for match in matches for i in indices[match])]))[:n]
