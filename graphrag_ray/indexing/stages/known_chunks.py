"""Chunks that a model was asked about in the parent snapshot as it is now: in a part of which some changed,
what was found in the others is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.graph.integer_arrays import same_lists
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.driver_columns import GROUP, noted_ids
from graphrag_ray.indexing.stages.id_columns import keys, places_in
from graphrag_ray.indexing.step_result import is_failures
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

UNIT_COLUMNS = ["id", "document_id", "position", "header", "text"]

MOST_LOOKED_AT = 8
"""For each chunk, so many chunks of the parent are read at most. In a corpus that is in another order, each
part holds chunks of many parts of before."""

Found = Mapping[str, list[Part]]
"""Parts of a step's tables about a group of chunks."""


@dataclass(frozen=True)
class Chunks:
    """Parts that hold some chunks.

    entities  parts of what was found in them, by whose names they are asked about; None: by none
    before    groups of the parent snapshot that hold some of them, and what the step found there
    """

    units: list[Part]
    entities: list[Part] | None = None
    before: Sequence[tuple[Chunks, Found]] = ()

    def load(self, store: Store) -> Iterator[pa.Table]:
        """What a model is asked about each chunk."""
        names: dict[str, list[str]] = {}
        if self.entities is not None:
            found = read_table(store, self.entities, ["text_unit_id", "title"], schema.ENTITY_INSTANCES)
            for unit, title in zip(
                found["text_unit_id"].to_pylist(), found["title"].to_pylist(), strict=True
            ):
                names.setdefault(unit, []).append(title)
        for part in self.units:
            table = read_part(store, part, UNIT_COLUMNS)
            if self.entities is not None:  # in the order of the records
                column = [names.get(unit, []) for unit in table["id"].to_pylist()]
                table = table.append_column("names", pa.array(column, pa.list_(pa.string())))
            yield table

    def new(self, store: Store) -> Iterator[pa.Table]:
        """`load`, of chunks that are not known."""
        known = self.known(store)
        for table in self.load(store):
            yield table.filter(pc.invert(pc.is_in(table["id"], value_set=known)))

    def known(self, store: Store) -> pa.Array:
        """The ids of chunks that were asked about in the same way, and did not fail."""
        none = pa.array([], pa.string())
        if not self.before:
            return none
        now = pa.concat_tables(self.load(store)).combine_chunks()
        then = pa.concat_tables([t for chunks, _ in self.before for t in chunks.load(store)])
        at = pc.index_in(now["id"], value_set=then["id"].combine_chunks())
        now, then = now.filter(at.is_valid()).combine_chunks(), then.take(at.drop_null()).combine_chunks()
        same = np.ones(now.num_rows, np.bool_)
        for name in now.column_names:
            one, other = now[name].combine_chunks(), then[name].combine_chunks()
            if pa.types.is_list(one.type):
                same &= same_lists(one, other)
            else:
                equal = pc.fill_null(pc.equal(one, other), False)
                both_null = pc.and_(one.is_null(), other.is_null())
                same &= pc.or_(equal, both_null).to_numpy(zero_copy_only=False).astype(np.bool_)
        failures = [part for name in self._names() if is_failures(name) for part in self._found(name)]
        failed = read_table(store, failures, ["item"], schema.FAILURES)["item"].combine_chunks()
        ids = now["id"].filter(pa.array(same))
        return pa.concat_arrays([none, *ids.filter(pc.invert(pc.is_in(ids, value_set=failed))).chunks])

    def found(self, store: Store, known: pa.Array) -> dict[str, pa.Table]:
        """By table, what was found in some chunks."""
        tables = {}
        for name in self._names():
            if not is_failures(name) and (parts := self._found(name)):
                table = read_table(store, parts)
                tables[name] = table.filter(pc.is_in(table["text_unit_id"], value_set=known))
        return tables

    def _names(self) -> list[str]:
        return sorted({name for _, found in self.before for name in found})

    def _found(self, name: str) -> list[Part]:
        return [part for _, found in self.before for part in found.get(name, [])]


def with_earlier(run: Run, step: str, how: str, chunks: Sequence[Chunks]) -> list[Chunks]:
    """With groups of the parent snapshot that hold some of them. how: a hash of how they are asked about; it
    is kept beside the step's tables."""
    before, extracted = run.before(step), run.of_parent.get("extract")
    if before is None or extracted is None or before.made_from.get("chunks") != [how]:
        return list(chunks)
    named = extracted.tables.get("found_entities", [])
    earlier = earlier_groups(run, [x.units for x in chunks], [named, *before.tables.values()])
    units = run.of_parent["read"].tables.get("text_units", []) if "read" in run.of_parent else []

    def held(x: Chunks, n: int) -> tuple[Chunks, Found]:
        found = {name: of[n] for name, of in before.tables.items()}
        return Chunks(units[n], None if x.entities is None else named[n]), found

    return [replace(x, before=[held(x, n) for n in of]) for x, of in zip(chunks, earlier, strict=True)]


def earlier_groups(
    run: Run, groups: Sequence[Sequence[Part]], tables: Sequence[Sequence[Sequence[Part]]]
) -> list[list[int]]:
    """Of each group of parts of chunks, the numbers of the parent snapshot's that hold some of the same
    chunks; [] where these are not known.

    tables: what else is needed of the parent's groups
    """
    corpus, finished = run.of_parent.get("read"), run.of_parent.get("finish")
    noted = noted_ids(run, finished, "text_units") if groups and finished else None
    units = corpus.tables.get("text_units", []) if corpus else []
    needed = [units, *tables]
    if noted is None or run.lost([part for of in needed for group in of for part in group]):
        return [[] for _ in groups]
    number = noted[GROUP].to_numpy()
    there = (number >= 0) & (number < min(map(len, needed)))
    ids, number = noted["id"].to_numpy()[there], number[there]
    by_id = np.argsort(ids)
    found = []
    for group in groups:
        at = places_in(ids, keys(run.store, group), by_id)
        earlier = np.unique(number[at[at >= 0]]).tolist()
        rows = sum(part.rows for n in earlier for part in units[n])
        found.append(earlier if rows <= MOST_LOOKED_AT * sum(part.rows for part in group) else [])
    return found


def in_order(ids: pa.ChunkedArray, made: pa.Table, held: pa.Table | None) -> pa.Table:
    """Rows that were made and those of the same chunks that are known, in the order of chunks."""
    own = held.filter(pc.is_in(held["text_unit_id"], value_set=ids.combine_chunks())) if held else made[:0]
    if not own.num_rows:
        return made
    rows = pa.concat_tables([made, own.select(made.column_names).cast(made.schema)])
    place = pc.index_in(rows["text_unit_id"], value_set=ids.combine_chunks()).to_numpy()
    return rows.take(pa.array(np.argsort(place, kind="stable"))).combine_chunks()
