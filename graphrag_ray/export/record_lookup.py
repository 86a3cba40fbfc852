"""Find the record that a user means: by short id, id, name, place or title."""

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
from graphrag_ray.base.wording import one_line
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.row_reader import Reader
from graphrag_ray.query.sources import document_place

_LEVEL_AND_NUMBER = re.compile(r"[Cc](\d{1,9}):(\d{1,18})")
_NUMBER = re.compile(r"\d{1,18}")
_MAX_SUGGESTIONS = 5
_cut = partial(one_line, max_chars=60)

MIN_RATIO = 0.6  # difflib ratio from which on a name is suggested
_MAX_COMPARED = 500  # names that difflib compares, at some 20 µs each: those that share most trigrams
_GRAM = 3
_COMPARED_CHARACTERS = 200  # length to which names are compared, because difflib's time is quadratic


def entity(reader: Reader, name: str) -> str:
    """The id of the entity with this short id, id or name. Raises UsageError, with similar names."""
    if id_ := _exact(reader, "entities", name, [name, entity_id(name), entity_id(entity_key(name))]):
        return id_
    rows = reader.table("entities", ["id", "human_readable_id", "title"])
    return _by_name("entity", "entities", name, rows, [rows["title"].to_pylist()])


def relationship(reader: Reader, names: Sequence[str]) -> str:
    """The id of the relationship with this short id or id, or between two entities. Raises UsageError."""
    if len(names) == 1:
        return record(reader, "relationship", "relationships", names[0])
    ids = [entity(reader, name) for name in names]
    rows = reader.rows(Rows("entities", ["id", "title"], ids))
    titles = dict(zip(rows["id"].to_pylist(), rows["title"].to_pylist(), strict=True))
    first, second = (titles[id_] for id_ in ids)
    if id_ := _exact(reader, "relationships", "", [relationship_id(first, second)]):
        return id_
    raise UsageError(f"{_cut(first)} and {_cut(second)} have no direct relationship")


def record(reader: Reader, kind: str, table: str, name: str) -> str:
    """The id of the chunk, claim or relationship with this short id or id. Raises UsageError."""
    return _exact(reader, table, name, [name]) or _not_found(reader, kind, table, name)


def document(reader: Reader, name: str) -> str:
    """The id of the document with this short id, id, path, place ("file, row 3") or title.

    Raises UsageError, with similar or ambiguous documents.
    """
    rows = reader.table("documents", ["id", "human_readable_id", "path", "row", "title"])
    paths, titles = rows["path"].to_pylist(), [title or "" for title in rows["title"].to_pylist()]
    places = list(map(document_place, paths, rows["row"].to_pylist()))
    if name in places:
        return str(rows["id"][places.index(name)].as_py())
    return _exact(reader, "documents", name, [name]) or _by_name(
        "document", "documents", name, rows, [places, paths, titles]
    )


def community(reader: Reader, name: str, kind: HierarchyKind) -> int:
    """The number of a community given as "12", "C1:12", id, report id or report title. Raises UsageError."""
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
    """The id of the row with this short id, or else the first of these ids that exists."""
    if _NUMBER.fullmatch(name):
        numbered = reader.rows(Rows(table, ["id"], [int(name)], "human_readable_id"))
        if numbered.num_rows:
            return str(numbered["id"][0].as_py())
    existing = set(reader.rows(Rows(table, ["id"], ids))["id"].to_pylist())
    return next((id_ for id_ in ids if id_ in existing), None)


def _by_name(kind: str, table: str, name: str, rows: pa.Table, names: Sequence[Sequence[str]]) -> str:
    """The id of the only row with this name, compared as `fold` does. Raises UsageError.

    rows: id, human_readable_id. names: columns of names by row, first the one to show.
    """
    wanted, numbers = fold(name), rows["human_readable_id"]
    matches = [row for column in names for row, n in enumerate(column) if fold(n) == wanted] if wanted else []
    matches = list(dict.fromkeys(matches))
    ids = {rows["id"][row].as_py() for row in matches}
    if len(ids) == 1:
        return str(ids.pop())
    if ids:
        shown = _listed((names[0][row], numbers[row].as_py()) for row in matches[:_MAX_SUGGESTIONS])
        more = ", …" if len(matches) > _MAX_SUGGESTIONS else ""
        raise UsageError(
            f"{len(ids)} {table} are named {_cut(name)!r}: {shown}{more}. Choose one by its number."
        )
    candidates = [(n, row) for column in names for row, n in enumerate(column) if n]
    similar = near(name, [n for n, _ in candidates], _MAX_SUGGESTIONS)
    close = dict.fromkeys(candidates[place][1] for place in similar)
    suggested = _listed((names[0][row], numbers[row].as_py()) for row in close)
    hint = (
        f"Did you mean {suggested}?"
        if close
        else "Find parts of names with `graphrag-ray inspect search TEXT`."
    )
    raise UsageError(f"Unknown {kind} {_cut(name)!r}. {hint}")


def _not_found(reader: Reader, kind: str, table: str, name: str) -> NoReturn:
    rows = sum(part.rows for part in reader.manifest.parts(table))
    last = reader.manifest.next_human_readable_id.get(table, rows + 1) - 1
    kinds = "communities" if kind == "community" else f"{kind}s"
    hint = f"Numbers go up to {last:,}." if rows else f"The index has no {kinds}."
    raise UsageError(f"Unknown {kind} {_cut(name)!r}. {hint}")


def _listed(names: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{_cut(name)} ({number})" for name, number in names)


def fold(text: str) -> str:
    """Remove case, accents, compatibility forms and extra white space from a name, for comparison."""
    if text.isascii():
        return " ".join(text.lower().split())
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


def containing(text: str, names: Sequence[str]) -> list[int]:
    """Indices of the names that contain a folded text: equal names, names that begin with it, others."""
    wanted = fold(text)
    folded = {i: f for i, name in enumerate(names) if wanted in (f := fold(name))}
    return sorted(
        folded, key=lambda i: 0 if folded[i] == wanted else 1 if folded[i].startswith(wanted) else 2
    )


def near(text: str, names: Sequence[str], n: int = 5) -> list[int]:
    """Indices of up to n names that the text may stand for: names that contain it, then similar names."""
    wanted = fold(text)[:_COMPARED_CHARACTERS]
    grams = {wanted[i : i + _GRAM] for i in range(max(1, len(wanted) - _GRAM + 1))}
    folded = [fold(name)[:_COMPARED_CHARACTERS] for name in names]
    shared = [sum(gram in name for gram in grams) for name in folded]
    indices: dict[str, list[int]] = {}
    for i in heapq.nlargest(_MAX_COMPARED, range(len(names)), key=lambda i: (shared[i], -i)):
        indices.setdefault(folded[i], []).append(i)
    matches = difflib.get_close_matches(wanted, indices, n, MIN_RATIO)
    held = containing(text, names)[:n] if wanted else []
    return list(dict.fromkeys([*held, *(i for match in matches for i in indices[match])]))[:n]
