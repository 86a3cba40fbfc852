"""Reports of the parent snapshot that are as they would be written now: nothing that they are written from
changed (`graph/signatures.py`). They are not planned, and their rows are taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.kept_reports import Evidence
from graphrag_ray.graph.signatures import WIDTH, Hashes, as_before
from graphrag_ray.indexing.run import Run
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

SIGNATURES = pa.schema(
    [
        ("community", pa.string()),  # its id
        *((f"s{n}", pa.uint64()) for n in range(WIDTH)),
        ("record_tokens", pa.int64()),  # of the report's record in the context of another one
        ("kept", pa.bool_()),  # it was written from another context, and stood
        ("evidence", pa.list_(pa.uint32())),  # what it rests on now
    ]
)
"""Table signatures of the step: of each report."""


@dataclass(frozen=True)
class UnchangedReports:
    """unchanged: [C]; at: [C] the row of each in `rows`, of SIGNATURES, -1: it has none; parts: by table,
    those of the parent's step."""

    unchanged: npt.NDArray[np.bool_]
    at: npt.NDArray[np.int64]
    rows: pa.Table
    parts: Mapping[str, Sequence[Part]]

    @property
    def tokens(self) -> dict[int, int | None]:
        """By community, those of its report's record."""
        own = np.flatnonzero(self.unchanged)
        found = self.rows["record_tokens"].to_numpy()[self.at[own]]
        return dict(zip(own.tolist(), found.tolist(), strict=True))

    def tokens_of(self, community: int) -> int:
        return int(self.rows["record_tokens"][int(self.at[community])].as_py())

    def evidence(self, community: int) -> Evidence:
        return tuple(self.rows["evidence"][int(self.at[community])].as_py())


def unchanged_reports(
    run: Run, how: str, hierarchy: Hierarchy, ids: Sequence[str], now: Hashes
) -> UnchangedReports | None:
    """None where none is: reports are asked for in another way, or what is needed of the parent is damaged.
    Those that were kept although their contexts had changed are looked at again.

    now: [C, WIDTH] signatures
    """
    before = run.before("reports")
    if before is None or before.made_from.get("signatures") != [how]:
        return None
    if run.lost([part for name in before.tables for part in before.parts(name)]):
        return None
    rows = read_table(run.store, before.parts("signatures"), None, SIGNATURES)
    found = pc.index_in(pa.array(ids, pa.string()), value_set=rows["community"].combine_chunks())
    at = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    known = np.flatnonzero(at >= 0)
    same = np.zeros(len(ids), np.bool_)
    then = np.stack([rows[f"s{n}"].to_numpy() for n in range(WIDTH)], axis=1)
    kept = rows["kept"].to_numpy(zero_copy_only=False).astype(np.bool_)
    same[known] = (then[at[known]] == now[known]).all(axis=1) & ~kept[at[known]]
    parts = {name: before.parts(name) for name in before.tables}
    return UnchangedReports(as_before(hierarchy, same), at, rows, parts)


@dataclass
class RowsOf:
    """Rows of the parent's parts by community, a few parts in memory. columns: of the rows."""

    store: Store
    parts: Sequence[Part]
    columns: pa.Schema

    def __post_init__(self) -> None:
        held = [read_part(self.store, part, ["community"])["community"] for part in self.parts]
        self._of = np.repeat(np.arange(len(held)), [len(column) for column in held])
        chunks = [chunk for column in held for chunk in column.chunks]
        self._ids = pa.chunked_array(chunks, pa.string()).combine_chunks()

    def parts_of(self, communities: Sequence[str]) -> Ints:
        """The number of the part that holds each."""
        place = pc.index_in(pa.array(communities, pa.string()), value_set=self._ids)
        number: Ints = self._of[place.to_numpy(zero_copy_only=False).astype(np.int64)]
        return number

    def of(self, communities: Sequence[str]) -> pa.Table:
        """In the order of the communities."""
        wanted = pa.array(communities, pa.string())
        tables = [self.columns.empty_table()]
        for part in np.unique(self.parts_of(communities)).tolist():
            table = read_part(self.store, self.parts[part])
            table = table.filter(pc.is_in(table["community"], value_set=wanted))
            tables.append(table.select(self.columns.names).cast(self.columns))
        rows = pa.concat_tables(tables)
        return rows.take(pc.index_in(wanted, value_set=rows["community"].combine_chunks()))
