"""What an update costs in the indexes of a large snapshot when only a few of many parts change.

    python benchmarks/changed_parts.py --rows 500_000 --chunks 131_072

Generates relationships and entities with random ids and words, in parts of 1,000 rows. Prints the CPU seconds
of this process for:

1. a row index, built from scratch and derived from the previous one after a share of the parts changed;
2. counting changes when all relationships have new degrees and a tenth of the parts new descriptions;
3. one shard of the walk index, over chunks in groups of 160, with names drawn as in `walks.py`.

Asserts only that a derived row index equals the one built from scratch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from walks import NAMES_FOR_LINKS, NAMES_OF_CHUNK, chunk_id, draw_names

from graphrag_ray.base import schema
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing.changes import count_changes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import walk_stage
from graphrag_ray.indexing.stages.finish_stage import CoveredParts, RowIndexPlan, build_row_index
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, read_part, write_part
from graphrag_ray.store.search.mapped_arrays import join_halves
from graphrag_ray.store.snapshots import Manifest

PART_ROWS = 1_000
GROUP_CHUNKS, DOCUMENT_CHUNKS = 160, 4
WORDS = np.array([f"word{n}" for n in range(5_000)], object)
WORDS_OF = {"description": 20, "text": 400}
"""Words per text in these columns; other columns have two."""
MENTIONED = 4
"""Maximum number of chunks of an entity or a relationship."""

T = TypeVar("T")


def timed(do: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    return do(), time.process_time() - started


def random_ids(n: int, rng: np.random.Generator) -> list[str]:
    return join_halves(*rng.integers(0, 1 << 63, (2, n)).astype("<u8"))


def random_rows(name: str, n: int, rng: np.random.Generator) -> pa.Table:
    referenced = pa.array(random_ids(max(1, n // 2), rng))

    def column(field: pa.Field) -> Any:
        if field.name == "id":
            return sorted(random_ids(n, rng))
        if pa.types.is_list(field.type):
            ends = np.append(0, np.cumsum(rng.integers(1, MENTIONED + 1, n)))
            of = referenced.take(pa.array(rng.integers(0, len(referenced), ends[-1])))
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), of)
        if field.name.endswith("_id") and field.type == pa.string():
            return referenced.take(pa.array(rng.integers(0, len(referenced), n)))
        if field.type == pa.string():
            return [" ".join(of) for of in rng.choice(WORDS, (n, WORDS_OF.get(field.name, 2)))]
        return pa.array(rng.integers(0, 1_000, n)).cast(pa.int64()).cast(field.type)

    of = schema.TABLES[name]
    return pa.table([column(field) for field in of], schema=of)


def write_parts(store: Store, name: str, table: pa.Table) -> list[Part]:
    pieces = (table.slice(at, PART_ROWS) for at in range(0, table.num_rows, PART_ROWS))
    return [write_part(store, name, mark_for_row_access(piece)) for piece in pieces]


def replace_column(table: pa.Table, column: str, values: Any) -> pa.Table:
    at = table.schema.get_field_index(column)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def with_other_texts(table: pa.Table) -> pa.Table:
    return replace_column(table, "description", [f"{text}." for text in table["description"].to_pylist()])


def build_row_part(store: Store, wanted: RowIndexPlan) -> Part:
    (row,) = next(iter(build_row_index(store, wanted))).to_pylist()
    return Part(row["path"], wanted.covered.rows, row["bytes"])


def measure_row_index(
    store: Store, name: str, parts: Sequence[Part], share: float, rng: np.random.Generator
) -> None:
    before = CoveredParts(name, list(parts))
    earlier = build_row_part(store, RowIndexPlan(before))
    now = list(parts)
    for at in rng.choice(len(now), max(1, round(share * len(now))), replace=False).tolist():
        (now[at],) = write_parts(store, name, with_other_texts(read_part(store, now[at])).slice(3))
    covered = CoveredParts(name, now)
    rebuilt, s_rebuilt = timed(lambda: build_row_part(store, RowIndexPlan(covered)))
    derived, s_derived = timed(lambda: build_row_part(store, RowIndexPlan(covered, (earlier, before))))
    assert derived == rebuilt
    size = f"{derived.bytes / 1e6:.0f} MB"
    print(
        f"| row index: {name}, {share:.0%} of the parts changed; {size} | {s_rebuilt:.2f} | {s_derived:.2f} |"
    )


def measure_changes(store: Store, parts: Sequence[Part]) -> None:
    now = []
    for at, part in enumerate(parts):
        rows = read_part(store, part)
        rows = replace_column(rows, "combined_degree", np.asarray(rows["combined_degree"]) + 1)
        now += write_parts(store, "relationships", with_other_texts(rows) if at % 10 == 0 else rows)
    settings = parse_settings({})

    def run(tables: dict[str, list[Part]] | None) -> Run:
        parent = None if tables is None else Manifest(1, None, "", "", tables)
        return Run(LocalExecutor(store, Models.from_settings(settings)), settings, {}, parent, Observer())

    old, new = {"relationships": list(parts)}, {"relationships": now}
    changes, seconds = timed(lambda: count_changes(run(old), new))
    n = changes["relationships"]["changed"]
    print(f"| counting changes: {n:,} relationships | {seconds:.2f} | |")


def measure_walk_shard(store: Store, n_chunks: int, rng: np.random.Generator) -> None:
    links = n_chunks * (NAMES_OF_CHUNK + 1)
    names = draw_names(n_chunks, int(links * NAMES_FOR_LINKS), rng)
    texts = random_rows("text_units", 2_000, rng)["text"].to_pylist()
    groups = []
    for start in range(0, n_chunks, GROUP_CHUNKS):
        of = names[start : start + GROUP_CHUNKS]
        documents = [stable_id("document", f"{start + n}") for n in range(0, len(of), DOCUMENT_CHUNKS)]
        ids = [chunk_id(start + n) for n in range(len(of))]
        rows: dict[str, dict[str, list[Any]]] = {
            "documents": {"id": documents, "title": [f"title {id_[:9]}" for id_ in documents]},
            "text_units": {
                "id": ids,
                "text": [texts[n] for n in rng.integers(0, len(texts), len(of)).tolist()],
                "document_id": [documents[n // DOCUMENT_CHUNKS] for n in range(len(of))],
            },
            "entity_instances": {
                "title": [f"NAME {n}" for n in of.reshape(-1).tolist()],
                "description": [WORDS[n % len(WORDS)] for n in of.reshape(-1).tolist()],
                "text_unit_id": [id_ for id_ in ids for _ in range(NAMES_OF_CHUNK)],
            },
        }
        groups.append([[write_part(store, name, fill_columns(name, some))] for name, some in rows.items()])
        groups[-1].append([])  # no titles of other documents
    (shard,) = walk_stage._shards([tuple(group) for group in groups])
    _, seconds = timed(lambda: list(walk_stage._build_shard(store, shard)))
    print(f"| shard of the walk index: {n_chunks:,} chunks, {links:,} links | {seconds:.2f} | |")


def fill_columns(name: str, columns: dict[str, list[Any]]) -> pa.Table:
    """Add missing columns as nulls."""
    of, (first, *_) = schema.TABLES[name], columns.values()
    return pa.table([columns.get(f.name) or pa.nulls(len(first), f.type) for f in of], schema=of)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--chunks", type=int, default=131_072)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    print("| CPU s | from scratch, or by reading rows | derived from the previous index |")
    print("| --- | ---: | ---: |")
    with TemporaryDirectory() as folder:
        store = Store(folder)
        for name in ("relationships", "entities"):
            parts = write_parts(store, name, random_rows(name, args.rows, rng))
            for share in (0.02, 0.2):
                measure_row_index(store, name, parts, share, rng)
            if name == "relationships":
                measure_changes(store, parts)
        measure_walk_shard(store, args.chunks, rng)


if __name__ == "__main__":
    main()
