"""What a way of answering needs of a snapshot: rows of its tables, read by need and part by part."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from graphrag_ray import schema
from graphrag_ray.errors import UsageError
from graphrag_ray.query.method import Rows
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_rows, read_table
from graphrag_ray.store.snapshots import Manifest, being_read

PARTS_AT_ONCE = 8


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot. Raises SnapshotRemoved where `gc` has taken it away meanwhile, CorruptPart."""

    store: Store
    manifest: Manifest

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of the snapshot (see schema.py), or some of its columns. Raises UsageError for a name or
        column that there is not."""
        if name not in schema.TABLES:
            raise UsageError(f"there is no table {name!r}; there are {', '.join(schema.TABLES)}")
        known = schema.TABLES[name].names
        if unknown := [c for c in columns or [] if c not in known]:
            raise UsageError(f"table {name} has no column {unknown[0]!r}; it has {', '.join(known)}")
        with being_read(self.store, self.manifest):
            return read_table(self.store, self.manifest.parts(name), columns, schema.TABLES[name])

    def rows(self, need: Rows) -> pa.Table:
        """A table may be as large as the corpus, what a question needs of it is not: of each part only what
        may hold a wanted row is read."""
        if need.ids is None:
            return self.table(need.table, need.columns)
        wanted = pa.array(sorted(set(need.ids)), pa.string())
        parts = self.manifest.parts(need.table) if len(wanted) else []

        def of(part: Part) -> pa.Table:
            return read_rows(self.store, part, need.columns, need.by, wanted)

        empty = pa.schema([schema.TABLES[need.table].field(c) for c in need.columns]).empty_table()
        with (
            being_read(self.store, self.manifest),
            ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="parts") as pool,
        ):
            found = list(pool.map(of, parts))
        return pa.concat_tables([empty, *found], promote_options="default")
