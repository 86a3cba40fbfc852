"""From what a person writes to the record that is meant: a short id, a name, a place, or a string id."""

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
from graphrag_ray.query.reading import Reader
from graphrag_ray.query.sources import place

_LEVEL_AND_NUMBER = re.compile(r"[Cc](\d{1,9}):(\d{1,18})")
_NUMBER = re.compile(r"\d{1,18}")
_SUGGESTED = 5
_cut = partial(one_line, longest=60)
"""A name in a message."""

MIN_RATIO = 0.6
"""Of difflib: names that are less alike are not suggested."""
_COMPARED = 500
"""Names that difflib compares: those that share most trigrams, since it takes some 20 µs a name."""
_GRAM = 3
_CHARACTERS = 200
"""Of a name, as far as names are compared: difflib's time grows with the square."""


def entity(reader: Reader, name: str) -> str:
    """The id of the entity with this short id, id or name. Raises UsageError, with names that are near."""
    found = _exact(reader, "entities", name, [name, entity_id(name), entity_id(entity_key(name))])
    if found:
        return found
    rows = reader.table("entities", ["id", "human_readable_id", "title"])
    return _named("entity", "entities", name, rows, [rows["title"].to_pylist()])


def relationship(reader: Reader, names: Sequence[str]) -> str:
    """The id of the relationship with this short id or id, or of the one between two entities.
    Raises UsageError."""
    if len(names) == 1:
        return record(reader, "relationship", "relationships", names[0])
    ids = [entity(reader, name) for name in names]
    rows = reader.rows(Rows("entities", ["id", "title"], ids))
    titles = dict(zip(rows["id"].to_pylist(), rows["title"].to_pylist(), strict=True))
    first, second = (titles[id_] for id_ in ids)
    found = _exact(reader, "relationships", "", [relationship_id(first, second)])
    if found:
        return found
    raise UsageError(f"{_cut(first)} and {_cut(second)} have no relationship of their own")


def record(reader: Reader, kind: str, table: str, name: str) -> str:
    """The id of the chunk, claim or relationship with this short id or id. Raises UsageError."""
    return _exact(reader, table, name, [name]) or _none(reader, kind, table, name)


def document(reader: Reader, name: str) -> str:
    """The id of the document with this short id, id, path, place ("file, row 3") or title. Raises
    UsageError, naming documents that are near, or those among which it does not decide."""
    rows = reader.table("documents", ["id", "human_readable_id", "path", "row", "title"])
    paths, titles = rows["path"].to_pylist(), [title or "" for title in rows["title"].to_pylist()]
    places = [place(*both) for both in zip(paths, rows["row"].to_pylist(), strict=True)]
    if name in places:
        return str(rows["id"][places.index(name)].as_py())
    return _exact(reader, "documents", name, [name]) or _named(
        "document", "documents", name, rows, [places, paths, titles]
    )


def community(reader: Reader, name: str, kind: HierarchyKind) -> int:
    """The number of the community called so: "12", "C1:12", the id of it or of its report, or the report's
    title. Raises UsageError."""
    match = _LEVEL_AND_NUMBER.fullmatch(name.strip())
    number = match.group(2) if match else name
    columns = ["id", "human_readable_id", "level", "title"]
    rows = reader.table(kind.communities, columns)
    found = _exact(reader, kind.communities, number, [name])
    if not found and (match or _NUMBER.fullmatch(name)):
        _none(reader, "community", kind.communities, number)
    if not found:
        rows = pa.concat_tables([reader.table(kind.reports_table, columns), rows])
        ids = rows["id"].to_pylist()
        found = name if name in ids else None
        found = found or _named("community", kind.communities, name, rows, [rows["title"].to_pylist()])
    row = rows.filter(pc.equal(rows["id"], found)).to_pylist()[0]
    if match and int(match.group(1)) != row["level"]:
        raise UsageError(f"community {number} is at level C{row['level']}, not C{match.group(1)}")
    return int(row["human_readable_id"])


def _exact(reader: Reader, table: str, name: str, ids: Sequence[str]) -> str | None:
    """The row with this short id, else one with the first of these ids that there is."""
    if _NUMBER.fullmatch(name):
        numbered = reader.rows(Rows(table, ["id"], [int(name)], "human_readable_id"))
        if numbered.num_rows:
            return str(numbered["id"][0].as_py())
    there = set(reader.rows(Rows(table, ["id"], ids))["id"].to_pylist())
    return next((id_ for id_ in ids if id_ in there), None)


def _named(kind: str, table: str, name: str, rows: pa.Table, names: Sequence[Sequence[str]]) -> str:
    """The id of the only row that is called so, read as people do.

    rows: id, human_readable_id; names: columns of names by row, first the one that is shown. Raises
    UsageError.
    """
    wanted, numbers = fold(name), rows["human_readable_id"]
    called = list(dict.fromkeys(at for column in names for at, n in enumerate(column) if fold(n) == wanted))
    ids = {rows["id"][at].as_py() for at in called} if wanted else set()
    if len(ids) == 1:
        return str(ids.pop())
    if ids:
        shown = _listed((names[0][at], numbers[at].as_py()) for at in called[:_SUGGESTED])
        more = ", …" if len(called) > _SUGGESTED else ""
        raise UsageError(
            f"{len(ids)} {table} are called {_cut(name)!r}: {shown}{more}. Name one by its number"
        )
    every = [(n, at) for column in names for at, n in enumerate(column) if n]
    close = dict.fromkeys(every[at][1] for at in near(name, [n for n, _ in every], _SUGGESTED))
    suggested = _listed((names[0][at], numbers[at].as_py()) for at in close)
    hint = (
        f"did you mean {suggested}?" if close else "`graphrag-ray inspect search TEXT` finds parts of names"
    )
    raise UsageError(f"there is no {kind} {_cut(name)!r}: {hint}")


def _none(reader: Reader, kind: str, table: str, name: str) -> NoReturn:
    rows = sum(part.rows for part in reader.manifest.parts(table))
    last = reader.manifest.next_human_readable_id.get(table, rows + 1) - 1
    kinds = "communities" if kind == "community" else f"{kind}s"
    held = f"numbers go up to {last:,}" if rows else f"this index has no {kinds}"
    raise UsageError(f"there is no {kind} {_cut(name)!r}: {held}")


def _listed(names: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{_cut(name)} ({number})" for name, number in names)


def fold(text: str) -> str:
    """A name without case, accents, compatibility forms and surplus white space: names that fold to the
    same read the same to most people."""
    if text.isascii():
        return " ".join(text.lower().split())
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


def containing(text: str, names: Sequence[str]) -> list[int]:
    """Places of the names that hold a text, folded: those that are it, then those that begin with it, then
    the others, each in the order given."""
    wanted = fold(text)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    for at, name in enumerate(names):
        folded = fold(name)
        if wanted in folded:
            found[0 if folded == wanted else 1 if folded.startswith(wanted) else 2].append(at)
    return [at for places in found for at in places]


def near(text: str, names: Sequence[str], n: int = 5) -> list[int]:
    """Places of at most n names that somebody who wrote this text may have meant, the likeliest first:
    names that hold it, then names that difflib finds alike."""
    wanted = fold(text)[:_CHARACTERS]
    grams = {wanted[i : i + _GRAM] for i in range(max(1, len(wanted) - _GRAM + 1))}
    folded = [fold(name)[:_CHARACTERS] for name in names]
    shared = [sum(gram in name for gram in grams) for name in folded]
    places: dict[str, list[int]] = {}
    for at in heapq.nlargest(_COMPARED, range(len(names)), key=lambda at: (shared[at], -at)):
        places.setdefault(folded[at], []).append(at)
    matches = difflib.get_close_matches(wanted, places, n, MIN_RATIO)
    held = containing(text, names)[:n] if wanted else []
    return list(dict.fromkeys([*held, *(at for match in matches for at in places[match])]))[:n]
