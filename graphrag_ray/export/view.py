"""A snapshot as somebody looks at it: brief rows of its tables, read by need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, HierarchyKind
from graphrag_ray.corpus.quotes import best_sentence
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.reading import Reader
from graphrag_ray.query.sources import DOCUMENT_COLUMNS, of_document

Record: TypeAlias = dict[str, Any]

ENTITY = ("human_readable_id", "title", "type", "degree")
RELATIONSHIP = ("human_readable_id", "source", "target", "weight", "description")
CLAIM = ("human_readable_id", "subject_id", "object_id", "type", "status", "description")
UNIT = ("human_readable_id", "position", "start", "end", "n_tokens")
_COMMUNITY = ("community", "level", "title", "size", "children")
_NAMES_LOOKED_FOR = 20
"""In a chunk's sentences, of all that somebody asked for."""


@dataclass(frozen=True)
class View:
    """limit: records of a list; None: all. kind: the hierarchy whose communities are shown."""

    reader: Reader
    limit: int | None = 10
    kind: HierarchyKind = HIERARCHIES["leiden"]

    def count(self, table: str) -> int:
        return sum(part.rows for part in self.reader.manifest.parts(table))

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        ids: Iterable[str | int],
        by: str | tuple[str, ...] = "id",
    ) -> list[Record]:
        """In the table's order."""
        found: list[Record] = self.reader.rows(Rows(table, columns, list(ids), by)).to_pylist()
        return found

    def row(self, table: str, id_: str) -> Record:
        """All columns of a record that there is."""
        return self.rows(table, schema.TABLES[table].names, [id_])[0]

    def first(self, table: str, columns: Sequence[str], ids: Sequence[str]) -> list[Record]:
        """The first `limit` of these, in their order."""
        wanted = list(ids)[: self.limit]
        by_id = {row["id"]: row for row in self.rows(table, ["id", *columns], wanted)}
        return [{c: by_id[id_][c] for c in columns} for id_ in wanted if id_ in by_id]

    def where(self, table: str, columns: Sequence[str], equal: dict[str, Any]) -> list[Record]:
        """Rows in which one of these columns has this value."""

        def of(part: pa.Table) -> pa.Table:
            masks = [pc.equal(part[column], value) for column, value in equal.items()]
            mask = masks[0]
            for other in masks[1:]:
                mask = pc.or_kleene(mask, other)
            return part.filter(mask).select(list(columns))

        wanted = list(dict.fromkeys([*columns, *equal]))
        found: list[Record] = self.reader.scan(table, wanted, of).select(list(columns)).to_pylist()
        return found

    def largest(self, table: str, columns: Sequence[str], by: str) -> list[Record]:
        """The first `limit` rows, those with most of a column first, ties by short id."""
        order = [(by, "descending"), ("human_readable_id", "ascending")]

        def of(part: pa.Table) -> pa.Table:
            return part.take(pc.sort_indices(part, sort_keys=order)[: self.limit])

        found: list[Record] = of(self.reader.scan(table, columns, of)).to_pylist()
        return found

    def communities(self, numbers: Iterable[int]) -> dict[int, Record]:
        """By number: community, level, title and rank of its report (None where that failed), size, and
        the number of its children."""
        wanted, number = sorted(set(numbers)), "human_readable_id"
        rows = {r["community"]: r for r in self.rows(self.kind.communities, _COMMUNITY, wanted, number)}
        reports = self.rows(self.kind.reports_table, ["community", "title", "rank"], wanted, number)
        titles = {r["community"]: (r["title"], r["rank"]) for r in reports}
        for number, row in rows.items():
            row["children"] = len(row["children"])
            row["title"], row["rank"] = titles.get(number, (row["title"], None))
        return rows

    def chunks(self, ids: Sequence[str], names: Sequence[str]) -> list[Record]:
        """The first `limit` of these chunks: place and date of the document, and of the text the sentence
        that holds most of the names (see quotes.best_sentence) with its position in the document."""
        wanted = list(ids)[: self.limit]
        columns = ["id", "document_id", "human_readable_id", "start", "end", "text"]
        units = {row["id"]: row for row in self.rows("text_units", columns, wanted)}
        documents = self.documents([row["document_id"] for row in units.values()])
        found = []
        for unit in (units[id_] for id_ in wanted if id_ in units):
            looked_for = names[:_NAMES_LOOKED_FOR]
            start, end = best_sentence(unit["text"], looked_for, is_start=unit["start"] == 0)
            found.append(
                {
                    "human_readable_id": unit["human_readable_id"],
                    **documents[unit["document_id"]],
                    "start": unit["start"],
                    "end": unit["end"],
                    "quote": unit["text"][start:end],
                    "quote_start": unit["start"] + start,
                }
            )
        return found

    def documents(self, ids: Iterable[str]) -> dict[str, Record]:
        """By id, as sources.of_document has them."""
        rows = self.rows("documents", DOCUMENT_COLUMNS, ids)
        return {row["id"]: of_document(row) for row in rows}


def heaviest(rows: Sequence[Record]) -> list[str]:
    """Ids of relationships by falling weight, ties by short id."""
    ordered = sorted(rows, key=lambda r: (-r["weight"], r["human_readable_id"]))
    return [row["id"] for row in ordered]


def best_connected(rows: Iterable[Record]) -> list[Record]:
    """Entities by falling degree, ties by short id, with the columns of ENTITY."""
    ordered = sorted(rows, key=lambda r: (-r["degree"], r["human_readable_id"]))
    return [{column: row[column] for column in ENTITY} for row in ordered]
