"""Lookups through row indexes find the same rows as reading whole tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from world import TOWN, World

from graphrag_ray.base import schema
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.indexing.stages import document_parts, finish_stage
from graphrag_ray.indexing.stages.finish_stage import RowIndexPlan, build_row_index, row_index_parts
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.row_reader import ColumnCache, Reader
from graphrag_ray.store import pages
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

STRANGERS = ["", "no id", "0" * 32, "Ä" * 32, "F" * 32]


ALL_TABLES = {
    "claims": {"enabled": True},
    "names": {"aliases": "HEIDI: [{name: IVAN, document: brewery.txt}]"},
    "hierarchies": ("leiden", "attributed", "tree"),
    "tree": {"dimensionality_reduction": "pca"},
}


@pytest.fixture
def reader(world: World) -> Reader:
    world.write(TOWN)
    world.index(**ALL_TABLES)
    return world.open().reader


def needs(reader: Reader) -> Iterator[Rows]:
    for name, by in schema.ROW_INDEXES.items():
        table = reader.table(name)
        assert table.num_rows, name
        own = table["id"].to_pylist()
        for ids in (own[:1], own[-1:], own[::2], own + own, STRANGERS, [*STRANGERS, *own]):
            yield Rows(name, schema.TABLES[name].names, ids)
        for columns in by:
            if columns == ("id",):
                continue
            held = [table[column].combine_chunks() for column in columns]
            values = pa.concat_arrays([h.flatten() if pa.types.is_list(h.type) else h for h in held])
            known = values.drop_null().unique().to_pylist()
            strangers = [0, -1, 2**62] if pa.types.is_integer(values.type) else STRANGERS
            for ids in (known[:1], known[::2], known, [*strangers, *known[-1:]]):
                one_or_more = columns[0] if len(columns) == 1 else columns
                yield Rows(name, schema.TABLES[name].names, ids, by=one_or_more)


def without_indexes(reader: Reader) -> Reader:
    before = {name: parts for name, parts in reader.manifest.tables.items() if name[:5] != "rows_"}
    assert len(before) < len(reader.manifest.tables)
    return Reader(reader.store, replace(reader.manifest, tables=before))


def looked_through(whole: Reader, need: Rows) -> pa.Table:
    """Rows found without indexes, by one column after the other."""
    if isinstance(need.by, str):
        return whole.rows(need)
    columns = list(dict.fromkeys(["id", *need.columns]))
    found = pa.concat_tables(whole.rows(replace(need, by=by, columns=columns)) for by in need.by)
    first: dict[str, int] = {}
    for at, id_ in enumerate(found["id"].to_pylist()):
        first.setdefault(id_, at)
    return found.take([first[id_] for id_ in sorted(first)]).select(list(need.columns))


def test_lookups_return_the_same_rows_in_the_same_order(reader: Reader):
    whole = without_indexes(reader)
    small = Reader(reader.store, reader.manifest, ColumnCache(limit_bytes=0))
    for need in needs(reader):
        expected = looked_through(whole, need)
        assert reader.rows(need).equals(expected), need
        assert reader.rows(need).equals(expected), "kept"
        assert small.rows(need).equals(expected), "not kept"


def test_an_update_reads_only_new_parts_for_row_indexes(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(document_parts, "split_bytes", lambda total: 1)  # One document per part.
    world.write(TOWN)
    world.index(**ALL_TABLES)
    before = world.open().manifest
    read: dict[str, set[str]] = {name: set() for name in schema.ROW_INDEXES}

    def told(store: Store, table: str, part: Part) -> Any:
        read[table].add(part.path)
        return of_part(store, table, part)

    of_part = finish_stage._read_part
    monkeypatch.setattr(finish_stage, "_read_part", told)
    world.write({"mill.txt": "ALICE met BOB again. GRACE sold flour to KURT."})
    world.index(**ALL_TABLES)
    reader = world.open().reader
    for name in schema.ROW_INDEXES:
        old, new = ({part.path for part in of.parts(name)} for of in (before, reader.manifest))
        assert read[name] == new - old, name
    assert len(reader.manifest.parts("text_units")) == len(TOWN) and len(read["text_units"]) < len(TOWN)
    whole = without_indexes(reader)
    for need in needs(reader):
        assert reader.rows(need).equals(looked_through(whole, need)), need
    for name in schema.ROW_INDEXES:
        (covered,) = row_index_parts(name, reader.manifest.parts(name))
        (rebuilt,) = next(iter(build_row_index(reader.store, RowIndexPlan(covered)))).to_pylist()
        assert [rebuilt["path"]] == [
            part.path for part in reader.manifest.parts(schema.row_index_table(name))
        ]


def test_the_first_rows_by_rank_are_found_for_every_id(reader: Reader):
    table = reader.table("relationships")
    for id_ in table["source_id"].unique().to_pylist():
        columns = ["id", "combined_degree", "weight"]
        whole = reader.rows(Rows("relationships", columns, [id_], by=schema.RELATIONSHIP_ENDS))
        first = max(whole.to_pylist(), key=lambda r: (r["combined_degree"], r["weight"]))
        some = reader.rows(Rows("relationships", columns, [id_], by=schema.RELATIONSHIP_ENDS, limit_per_id=1))
        assert some.num_rows == 1
        assert [some[c][0].as_py() for c in ("combined_degree", "weight")] == [
            first["combined_degree"],
            first["weight"],
        ]


def test_lists_are_reduced_to_requested_values(reader: Reader):
    ids = reader.table("entities", ["id"])["id"].to_pylist()[:3]
    need = Rows("communities", ["id", "entity_ids"], ids, by="entity_ids")
    whole, some = reader.rows(need), reader.rows(replace(need, trim_lists=True))
    assert some["id"] == whole["id"]
    for all_of, own in zip(whole["entity_ids"].to_pylist(), some["entity_ids"].to_pylist(), strict=True):
        assert sorted(own) == sorted(set(all_of) & set(ids))


@pytest.mark.parametrize("flipped", ["entities", "rows_entities"])
def test_a_flipped_bit_is_damage_that_names_the_file(
    reader: Reader, world: World, flipped: str, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("GRAPHRAG_RAY_CACHE", str(tmp_path / "cache"))
    (part,) = reader.manifest.parts(flipped)
    ids = reader.table("entities", ["id"])["id"].to_pylist()
    store = Store(str(world.root))
    data = bytearray(store.read(part.path))
    (at,) = (
        pages.locate_pages(data, ["title"])["title"].page["start"]
        if flipped == "entities"
        else (len(data) // 2,)
    )
    data[at + 2] ^= 16
    store.write(part.path, bytes(data))
    fresh = Reader(reader.store, reader.manifest)
    columns = [c for c in schema.ENTITIES.names if c != "id"]
    with pytest.raises(CorruptPart, match=part.path.rsplit("/", 1)[-1]):
        fresh.rows(Rows("entities", ["id", *columns], ids))
