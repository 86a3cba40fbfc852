"""Table functions as Ray Data runs them: inputs travel in blocks, names of written parts come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray import cloudpickle
from ray.exceptions import RayTaskError

from graphrag_ray.engine.executor import PARTITION, Tables, Written
from graphrag_ray.errors import GraphRagError
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part

LEAST_BLOCKS = 64
BLOCKS_PER_CORE = 16
"""Tasks of a step: so many that a slow one holds nothing up, so few that starting them costs little."""

_WRITTEN = pa.schema(
    [
        ("input", pa.int64()),
        ("sequence", pa.int64()),
        ("name", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def dataset_of(inputs: Sequence[Any]) -> Any:
    """A Ray dataset of numbered inputs, each in the one block of the task that needs it."""
    rows = [{"input": i, "value": cloudpickle.dumps(x)} for i, x in enumerate(inputs)]
    cores = int(ray.cluster_resources().get("CPU", 1))
    blocks = min(len(rows), max(LEAST_BLOCKS, BLOCKS_PER_CORE * cores))
    return ray.data.from_items(rows, override_num_blocks=blocks)


def map_block(store: Store, fn: Any, block: pa.Table) -> Iterator[pa.Table]:
    for number, x in _numbered(block):
        yield _write_all(store, number, fn(store, x))


def stream_block(store: Store, fn: Any, block: pa.Table) -> Iterator[pa.Table]:
    for _, x in _numbered(block):
        for table in fn(store, x):
            if table.num_rows:
                yield table


def _numbered(block: pa.Table) -> Iterator[tuple[int, Any]]:
    if "input" not in block.column_names:  # Ray tries functions on empty blocks
        return
    for number, value in zip(block["input"], block["value"], strict=True):
        yield number.as_py(), cloudpickle.loads(value.as_buffer())


def reduce_block(store: Store, reduce: Callable[[pa.Table], Tables], rows: pa.Table) -> Iterator[pa.Table]:
    """A block holds whole partitions, maybe several."""
    if PARTITION not in rows.column_names:
        return
    for partition in sorted(rows[PARTITION].unique().to_pylist()):
        mine = rows.filter(pc.equal(rows[PARTITION], partition))
        yield _write_all(store, partition, [reduce(mine)])


def _write_all(store: Store, number: int, tables: Iterable[Tables]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for named in tables:
        for name, table in named.items():
            part = write_part(store, name, table) if table.num_rows else Part("", 0, 0)
            rows.append(
                {
                    "input": number,
                    "sequence": len(rows),
                    "name": name,
                    "path": part.path,
                    "rows": part.rows,
                    "bytes": part.bytes,
                }
            )
    return pa.Table.from_pylist(rows, schema=_WRITTEN)


def collect(dataset: Any) -> list[dict[str, Any]]:
    with unwrapped():
        return [
            row
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow")
            for row in batch.to_pylist()
        ]


def written_of(rows: list[dict[str, Any]], inputs: int) -> Written:
    written: Written = [{} for _ in range(inputs)]
    for row in sorted(rows, key=lambda r: (r["input"], r["sequence"])):
        parts = written[row["input"]].setdefault(row["name"], [])
        if row["path"]:
            parts.append(Part(row["path"], row["rows"], row["bytes"]))
    return written


class unwrapped:
    """Raises our own error, not Ray's wrapping, when a table function raised one of ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        at = error
        while at is not None:
            cause = getattr(at, "cause", None) if isinstance(at, RayTaskError) else None
            if isinstance(at, GraphRagError) and not isinstance(at, RayTaskError):
                raise at from None
            at = cause or at.__cause__
