"""Build an arbitrarily large index from copies of an existing one, with only the tables that queries read.

    python benchmarks/large_index.py --of podcast-index --copies 1000 --out large-index

Copy n of an entity is called "<title> n". Its relationships, chunks, communities and reports are copied as
well, so the shape of the graph is preserved and the lists of a name do not grow. Nothing is indexed: rows are
repeated with new ids, and tables, row indexes and search indexes are written as `graphrag-ray index` writes
them. Copies share the words of the original texts, so keyword search finds a record in every copy.

Takes about one second per copy of 1,700 chunks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray import open_index
from graphrag_ray.base import schema
from graphrag_ray.base.arrow_arrays import to_arrow_strings
from graphrag_ray.base.ids import entity_id, stable_id
from graphrag_ray.indexing.stages.finish_stage import RowIndexPlan, build_row_index, row_index_parts
from graphrag_ray.indexing.stages.search_stage import SHARD_ROWS
from graphrag_ray.query.ask import Index
from graphrag_ray.store import index_files, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, write_part
from graphrag_ray.store.search import keyword_index, vector_index
from graphrag_ray.store.search.mapped_arrays import id_halves, join_halves
from graphrag_ray.store.snapshots import Manifest

ROWS = 60_000
"""Rows per part."""
IDS = {
    "documents": {"text_unit_ids": "text_units"},
    "text_units": {
        "document_id": "documents",
        "entity_ids": "entities",
        "relationship_ids": "relationships",
        "covariate_ids": "covariates",
    },
    "entities": {"text_unit_ids": "text_units"},
    "relationships": {"text_unit_ids": "text_units", "source_id": "entities", "target_id": "entities"},
    "covariates": {
        "subject_entity_id": "entities",
        "text_unit_ids": "text_units",
        "text_unit_id": "text_units",
    },
    "communities": {
        "entity_ids": "entities",
        "relationship_ids": "relationships",
        "text_unit_ids": "text_units",
    },
    "community_reports": {},
}
TITLES = {"entities": ("title",), "relationships": ("source", "target")}
SORTED = ("entities", "relationships", "covariates")
SEARCHED = {"text_unit": "text_units", "entity": "entities"}


@dataclass(frozen=True)
class Table:
    """A table of the copied index, and the ids of all copies: [copies, rows, 2] halves."""

    name: str
    rows: pa.Table
    ids: npt.NDArray[np.uint64]

    @cached_property
    def place(self) -> dict[str, int]:
        return {id_: at for at, id_ in enumerate(self.rows["id"].to_pylist())}

    def places(self, column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """Positions of ids in this table, -1 for null."""
        return np.array([self.place.get(id_, -1) for id_ in column.to_pylist()], np.int64)


def table_with_ids(index: Index, name: str, copies: int) -> Table:
    rows = index.table(name)
    if name == "entities":
        titles = rows["title"].to_pylist()
        ids = [entity_id(f"{title} {n}") for n in range(copies) for title in titles]
    else:
        ids = [stable_id(name, str(n), id_) for n in range(copies) for id_ in rows["id"].to_pylist()]
    if name == "community_reports":
        raise AssertionError("reports get their ids from communities")
    return Table(name, rows, np.stack(id_halves(ids), axis=1).reshape(copies, rows.num_rows, 2))


def id_strings(ids: npt.NDArray[np.uint64]) -> pa.Array:
    return to_arrow_strings(join_halves(ids[:, 0], ids[:, 1]))


def copied_rows(
    tables: Mapping[str, Table], table: Table, copy: npt.NDArray[Any], row: npt.NDArray[Any]
) -> pa.Table:
    """Rows of some copies as a table."""
    rows = table.rows.take(pa.array(row))
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names}
    columns["id"] = id_strings(table.ids[copy, row])
    columns["human_readable_id"] = pa.array(copy * table.rows.num_rows + row)
    for name, of in IDS[table.name].items():
        other = tables.get(of)
        if other is None or not other.rows.num_rows:
            continue
        column = rows[name].combine_chunks()
        if pa.types.is_list(column.type):
            flat = column.flatten()
            parents = pc.list_parent_indices(column).to_numpy()
            places = other.places(pa.chunked_array([flat]))
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            values = id_strings(other.ids[copy[parents], places])
            columns[name] = pa.ListArray.from_arrays(
                pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), values
            )
        else:
            places = other.places(rows[name])
            new_ids = id_strings(other.ids[copy, np.maximum(places, 0)])
            columns[name] = pc.if_else(pa.array(places >= 0), new_ids, None)
    for name in TITLES.get(table.name, ()):
        numbers = pa.array([str(n) for n in copy.tolist()])
        columns[name] = pc.binary_join_element_wise(
            rows[name].cast(pa.string()).combine_chunks(), numbers, " "
        )
    if table.name in ("communities", "community_reports"):
        n = table.rows.num_rows
        columns["community"] = columns["human_readable_id"]
        parents = rows["parent"].to_numpy()
        columns["parent"] = pa.array(np.where(parents < 0, -1, parents + copy * n))
    return mark_for_row_access(
        pa.table(columns).select(schema.TABLES[table.name].names).cast(schema.TABLES[table.name])
    )


def batches(table: Table) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Copy and row number of the rows of each part, in the order of the table."""
    copies, n = table.ids.shape[:2]
    if table.name in SORTED:
        order = np.argsort(table.ids[:, :, 0].reshape(-1), kind="stable")
    else:
        order = np.arange(copies * n)
    for at in range(0, len(order), ROWS):
        yield tuple(np.divmod(order[at : at + ROWS], n))  # type: ignore[misc]


def keyword_shards(store: Store, index: Index, kind: str, table: Table) -> list[Part]:
    shards = index.searcher.shards(schema.search_index_table(kind, "keyword"))
    copies, n = table.ids.shape[:2]
    each = max(1, SHARD_ROWS // n)
    parts = []
    for first in range(0, copies, each):
        shard_copies = range(first, min(copies, first + each))
        made_from = stable_id("large", kind, str(first))
        data = repeat_shard(shards[0], table, shard_copies)
        parts.append(
            index_files.write_index_file(
                store, schema.search_index_table(kind, "keyword"), made_from, data, len(shard_copies) * n
            )
        )
    return parts


def repeat_shard(shard: keyword_index.KeywordShard, table: Table, copies: range) -> bytes:
    """A shard of these copies, with repeated postings of the original index."""
    base = [table.place[id_] for id_ in shard.ids.at(np.arange(len(shard)))]
    n, n_copies = len(base), len(copies)
    ids = table.ids[copies.start : copies.stop][:, base].reshape(-1, 2)
    order = np.argsort(ids[:, 0], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    arrays = {name: array.whole() for name, array in shard.arrays.items()}
    lengths = np.diff(arrays["ends"], prepend=0)
    words = np.repeat(np.arange(len(lengths)), lengths)
    word = np.tile(words, n_copies)
    place = rank[(np.arange(n_copies)[:, None] * n + arrays["records"][None, :]).reshape(-1)]
    counts = np.tile(arrays["counts"], n_copies)
    by = np.lexsort([place, word])
    ends = np.cumsum(lengths * n_copies)
    high, low = np.ascontiguousarray(ids[order].T)
    records, lengths = place[by].astype("<i4"), np.tile(arrays["lengths"], n_copies)[order]
    counted = {
        **{"high": high, "low": low, "words": arrays["words"], "ends": ends},
        **{"records": records, "counts": counts[by], "lengths": lengths},
    }
    return keyword_index._packed(counted, shard.language)


def vector_shards(store: Store, index: Index, kind: str, table: Table, signs: bool) -> list[Part]:
    embeddings = index.to_pandas(f"embeddings_{kind}")
    base = np.stack(embeddings["vector"].to_list()).astype(np.float32)
    place = [table.place[id_] for id_ in embeddings["id"]]
    copies = table.ids.shape[0]
    each = max(1, SHARD_ROWS // len(base))
    parts, rng = [], np.random.default_rng(7)
    spread = 0.3 / np.sqrt(base.shape[1])
    for first in range(0, copies, each):
        n_copies = min(copies, first + each) - first
        ids = table.ids[first : first + n_copies][:, place].reshape(-1, 2)
        matrix = np.tile(vector_index.normalize(base), (n_copies, 1))
        matrix += spread * rng.standard_normal(matrix.shape, dtype=np.float32)
        data = vector_index.build(join_halves(ids[:, 0], ids[:, 1]), matrix, signs)
        made_from = stable_id("large", kind, str(first))
        parts.append(
            index_files.write_index_file(
                store, schema.search_index_table(kind, "vector"), made_from, data, len(matrix)
            )
        )
    return parts


def indexes_of_rows(store: Store, name: str, parts: Sequence[Part]) -> list[Part]:
    index_parts = []
    for covered in row_index_parts(name, parts):
        for batch in build_row_index(store, RowIndexPlan(covered)):
            (row,) = batch.to_pylist()
            index_parts.append(Part(row["path"], covered.rows, row["bytes"]))
    return index_parts


def build_index(index: Index, out: Store, copies: int, log: Callable[[str], None]) -> Manifest:
    names = [name for name in IDS if name != "community_reports"]
    tables = {name: table_with_ids(index, name, copies) for name in names}
    reports = index.table("community_reports")
    communities = tables["communities"]
    from graphrag_ray.base.ids import report_id

    of = [f"{copy}" for copy in range(copies)]
    ids = [
        report_id(id_) for copy in of for id_ in join_halves(*np.moveaxis(communities.ids[int(copy)], 1, 0))
    ]
    by_community = dict(
        zip(communities.rows["community"].to_pylist(), range(communities.rows.num_rows), strict=True)
    )
    rows = [by_community[c] for c in reports["community"].to_pylist()]
    halved = np.stack(id_halves(ids), axis=1).reshape(copies, communities.rows.num_rows, 2)[:, rows]
    tables["community_reports"] = Table("community_reports", reports, halved)
    parts: dict[str, list[Part]] = {}
    for name, table in tables.items():
        if table.rows.num_rows:
            started = time.monotonic()
            parts[name] = [
                write_part(out, name, copied_rows(tables, table, *of_part)) for of_part in batches(table)
            ]
            parts[schema.row_index_table(name)] = indexes_of_rows(out, name, parts[name])
            log(f"{name}: {sum(p.rows for p in parts[name]):,} rows, {time.monotonic() - started:.0f} s")
    for kind, name in SEARCHED.items():
        started = time.monotonic()
        table = tables[name]
        width = index.searcher.embedder().dimensions or 256
        signs = table.ids.shape[0] * table.rows.num_rows * width * 4 > (64 << 20)
        parts[schema.search_index_table(kind, "keyword")] = keyword_shards(out, index, kind, table)
        parts[schema.search_index_table(kind, "vector")] = vector_shards(out, index, kind, table, signs)
        log(f"search {kind}: {time.monotonic() - started:.0f} s")
        # Only its length is used.
        parts[f"embeddings_{kind}"] = [Part("tables/none", copies * table.rows.num_rows, 0)]
    counts = {name: sum(p.rows for p in of_table) for name, of_table in parts.items() if name in tables}
    return replace(index.manifest, number=1, parent=None, tables=parts, counts=counts, steps={}, usage={})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--of", required=True, help="the index to copy")
    parser.add_argument("--copies", type=int, default=1000)
    parser.add_argument("--out", required=True, help="folder of the new index, which must not exist")
    options = parser.parse_args()
    out = Store(str(Path(options.out).absolute()))
    manifest = build_index(
        open_index(options.of), out, options.copies, lambda message: print(message, flush=True)
    )
    snapshots.commit(out, manifest)


if __name__ == "__main__":
    main()
