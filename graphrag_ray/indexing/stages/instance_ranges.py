"""Instances by ranges of ids, kept up to date.

What a range holds is what it held in the parent snapshot, less the rows of parts of chunks that went, with
the rows of those that came. A range of which no row changed is not read.

found_* (by chunk) ──shuffle by id range──► *_instances, sorted by id; and what `reduce` makes of a range
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.engine.executor import PARTITION, Tables, Written
from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.graph.merge import CLAIM_INSTANCES, sort_instances
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.id_columns import Keys
from graphrag_ray.indexing.step_result import Result, fingerprint_of, rows_of
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

RANGE_ROWS: Mapping[str, int] = {
    "entity_instances": 16_384,
    "relationship_instances": 8_192,
    "claim_instances": 8_192,
}
"""Rows that a range has at most, on average: a tenth of a second to make it anew."""
INSTANCES = {
    "entity_instances": schema.ENTITY_INSTANCES,
    "relationship_instances": schema.RELATIONSHIP_INSTANCES,
    "claim_instances": CLAIM_INSTANCES,
}
BUNDLE_ROWS = 400_000
"""Rows that a task brings together: some 100 MB."""
_SIGN = "sign"
"""1: the row came; -1: it went."""

_Signed = Sequence[tuple[Sequence[Part], int]]
"""Parts with the sign of their rows."""


@dataclass(frozen=True)
class Ranges:
    """table: its name; parts: of each range; made: of each its instances and what `reduce` gave, {} where the
    range is that of the parent snapshot; before: the parent's step, None where every range was made; how: a
    hash of what all ranges depend on."""

    table: str
    parts: list[list[Part]]
    made: Written
    before: Result | None
    how: str
    reduce: Callable[[pa.Table], Tables]

    @property
    def kept(self) -> list[bool]:
        return [self.before is not None and not made for made in self.made]


def in_ranges(
    run: Run,
    step: str,
    result: Result,
    found: str,
    table: str,
    how: object,
    reduce: Callable[[pa.Table], Tables],
    beside: str,
) -> Ranges:
    """The instances that were found, in ranges of ids.

    step, result  that found them
    found, table  names of the tables before and after
    how           what `reduce` depends on, beside its rows
    reduce        the instances of a range, sorted, to further tables
    beside        a table of the step without which ranges of the parent snapshot are of no use
    """
    groups = [group for group in result.tables[found] if group]
    n = n_ranges(table, rows_of(groups))
    told = fingerprint_of([n, how])
    before = _before(run, step, found, table, beside, told, n)
    inputs = _signed(groups, run.before(step), found) if before else [[(group, 1)] for group in groups]
    old = run.executor.share(before.tables[table]) if before else None
    total = sum(part.rows for signed in inputs for parts, _ in signed for part in parts)
    written = run.executor.shuffle(
        "merge",
        partial(partitioned, n),
        inputs,
        partial(_reduce, run.store, INSTANCES[table], table, old, reduce),
        n,
        n_bundles(total),
    )
    parts = [w[table] if w else before.tables[table][at] if before else [] for at, w in enumerate(written)]
    return Ranges(table, parts, written, before, told, reduce)


def range_of(prefixes: Keys, ranges: int) -> Ints:
    """The range of each id, which is given by its first 64 bits."""
    return ((prefixes >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)).astype(np.int64)


def n_ranges(table: str, rows: int) -> int:
    return _power_of_two(rows, RANGE_ROWS[table])


def n_bundles(rows: int) -> int:
    return _power_of_two(rows, BUNDLE_ROWS)


def _power_of_two(rows: int, most: int) -> int:
    n = 1
    while n * most < rows:
        n *= 2
    return n


def _before(run: Run, step: str, found: str, table: str, beside: str, how: str, n: int) -> Result | None:
    """The parent's step, where its ranges are made in the same way of what its parts of chunks hold, and all
    of that is there."""
    merged, source = run.before("merge"), run.before(step)
    if merged is None or source is None or merged.made_from.get(table) != [how]:
        return None
    if len(merged.tables.get(table, ())) != n or found not in source.tables:
        return None
    if rows_of(merged.tables[table]) != rows_of(source.tables[found]):
        return None  # one of them says what is not true
    needed = [*merged.parts(table), *merged.parts(beside)]
    return None if run.lost([*needed, *source.parts(found)]) else merged


def _signed(groups: Sequence[Sequence[Part]], before: Result | None, found: str) -> list[_Signed]:
    """Parts that came and parts that went. One that came goes with one that went from the same place, since
    most of their rows are in both: these are netted before the shuffle."""
    assert before is not None
    # A part that was damaged and made anew has the same path, and what the parent says of it may be wrong.
    own = {part.path: part for group in groups for part in group}
    then = [[own.get(part.path, part) for part in group] for group in before.tables[found]]
    counts = [Counter(part for group in of for part in group) for of in (groups, then)]
    unchanged = {tuple(group) for group in groups} & {tuple(group) for group in then}
    come = _by_place(groups, unchanged, counts[0] - counts[1])
    went = _by_place(then, unchanged, counts[1] - counts[0])
    nothing: list[Part] = []
    return [
        [(one, 1), (other, -1)]
        for place in dict.fromkeys([*come, *went])
        for one, other in zip_longest(come.get(place, ()), went.get(place, ()), fillvalue=nothing)
    ]


def _by_place(
    groups: Sequence[Sequence[Part]], unchanged: Collection[tuple[Part, ...]], wanted: Counter[Part]
) -> dict[tuple[Part, ...], list[list[Part]]]:
    """Wanted parts, group by group, by the unchanged group that they follow."""
    found: dict[tuple[Part, ...], list[list[Part]]] = {}
    place: tuple[Part, ...] = ()
    for group in groups:
        if tuple(group) in unchanged:
            place = tuple(group)
        own = []
        for part in group:
            if wanted[part] > 0:
                wanted[part] -= 1
                own.append(part)
        if own:
            found.setdefault(place, []).append(own)
    return found


def partitioned(ranges: int, store: Store, x: _Signed) -> Iterator[pa.Table]:
    """Rows with the number of their id range: the ranges' ids ascend, whatever their number."""
    tables = (
        table.append_column(_SIGN, pa.array(np.full(table.num_rows, sign, np.int64)))
        for parts, sign in x
        for table in (read_part(store, part) for part in parts)
    )
    signs = {sign for parts, sign in x if parts}
    for table in tables if len(signs) < 2 else [_added_up(list(tables))]:
        prefix = id_prefixes(table.column(0))
        assert prefix is not None, "instance tables hold ids of our own"
        yield table.append_column(PARTITION, pa.array(range_of(prefix, ranges).astype(np.int32)))


def _reduce(
    store: Store,
    of: pa.Schema,
    name: str,
    old: Callable[[], list[list[Part]]] | None,
    reduce: Callable[[pa.Table], Tables],
    rows: pa.Table,
) -> Tables:
    """{} where no row of the range changed."""
    if old is None:
        instances = rows.select(of.names).cast(of)
    else:
        net = _added_up([rows])
        if not net.num_rows:
            return {}
        held = read_table(store, old()[rows[PARTITION][0].as_py()], None, of)
        # Only of ids that changed: to compare whole rows is slow.
        changed = pc.is_in(held[0], value_set=net[0].combine_chunks())
        some = held.filter(changed)
        some = some.append_column(_SIGN, pa.array(np.ones(some.num_rows, np.int64)))
        rows = _added_up([some, net.select(some.column_names)])
        times = np.maximum(rows[_SIGN].to_numpy(), 0)
        rows = rows.take(pa.array(np.repeat(np.arange(rows.num_rows), times)))
        instances = pa.concat_tables([held.filter(pc.invert(changed)), rows.select(of.names).cast(of)])
    instances = sort_instances(instances)
    return {name: instances, **reduce(instances)}


def _added_up(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows whose signs do not add up to nothing."""
    names = [name for name in tables[0].column_names if name not in (_SIGN, PARTITION)]
    rows = pa.concat_tables([table.select([*names, _SIGN]) for table in tables])
    sums = rows.group_by(names, use_threads=False).aggregate([(_SIGN, "sum")])
    kept = sums.filter(pc.not_equal(sums[f"{_SIGN}_sum"], 0))
    return kept.rename_columns({f"{_SIGN}_sum": _SIGN})
