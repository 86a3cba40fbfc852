"""Datasets of Ray Data, on their way in and out: rows of INPUT, and tables of an index."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray import cloudpickle
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.exceptions import RayError

from graphrag_ray.base.errors import GraphRagError, ProcessDied
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.engine.executor import Parted, TableFunction, Tables, Written, write_all
from graphrag_ray.engine.given_rows import after, reading_failed
from graphrag_ray.engine.ray.table_tasks import Attempts, died_told, own_error
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

_WRITTEN = "written"
UNPACKED = 3
"""Bytes in memory of a stored one, roughly."""


def map_dataset(
    store: Store,
    step: str,
    fn: TableFunction[Any],
    dataset: Any,
    attempts: Attempts,
    parted: Parted[Any] | None,
    ended: Callable[[int], None],
) -> Written:
    """`Executor.map` with the blocks of a dataset as inputs, in any order.

    Ray Data reads and runs `fn` in its own tasks, as many at once as cores and object store allow; what comes
    here are the names of the parts. Raises InputError where the dataset cannot be read.
    """
    block = partial(_write_block, store, fn, attempts, parted)
    blocks = dataset.map_batches(block, batch_size=None, batch_format="pyarrow")
    written: Written = []
    n_rows = 0
    try:
        with _quiet(dataset.context):
            for batch in blocks.iter_batches(batch_size=None, batch_format="pyarrow"):
                for row in batch.to_pylist():
                    written.append(cloudpickle.loads(row[_WRITTEN]))
                    n_rows += row["rows"]
                    ended(len(written) - 1)
    except Exception as e:
        if (own := own_error(e)) is not None:
            raise own from None
        told = f"{type(e).__name__}: {e}"
        if isinstance(e, RayError):  # what the reading raised: the end of the first of the traces
            first = without_colors(str(e)).split("\n\nThe above exception was the direct cause", maxsplit=1)[
                0
            ]
            told = next((line for line in reversed(first.splitlines()) if line.strip()), "")
        raise reading_failed(after(n_rows), told) from e
    return written


def _write_block(
    store: Store, fn: TableFunction[Any], attempts: Attempts, parted: Parted[Any] | None, block: pa.Table
) -> Iterator[pa.Table]:
    """The parts written of a block; row by row, where processes died of it."""
    if not block.num_rows:  # Ray tries functions on empty blocks
        return
    # The same when Ray starts the task again, of whose blocks one is worked on at a time.
    first = repr(block.slice(0, 1).to_pylist()).encode("utf-8", "replace")
    named = hashlib.sha256(f"{ray.get_runtime_context().get_task_id()}".encode() + first)
    number = int.from_bytes(named.digest()[:6], "big") << 24
    try:
        tables: Iterable[Tables]
        if (why := attempts.died(number)) is None:
            tables = fn(store, block)
        elif parted is None:
            raise ProcessDied(died_told(attempts.step, block, why))
        else:
            tables = []
            for n, part in enumerate(parted.parts(block), number + 1):
                died = attempts.died(n)
                tables += [parted.failed(part, died)] if died else fn(store, part)
                attempts.end(n)
        written = write_all(store, tables)
        if why is None:
            attempts.end(number)
    except Exception as e:
        if not is_unforeseen(e):
            raise
        # What fails here is ours, and not the reading of the dataset.
        raise GraphRagError(f"step {attempts.step}: {note_bug(e)}") from None
    yield pa.table({_WRITTEN: [cloudpickle.dumps(written)], "rows": [block.num_rows]})


def dataset_of(store: Store, name: str, parts: Sequence[Part], schema: pa.Schema) -> ray.data.Dataset:
    """Stored parts as a dataset of these columns, which nodes read by themselves."""
    return ray.data.read_datasource(_Stored(store, name, parts, schema))


def dataset_from(table: pa.Table) -> ray.data.Dataset:
    return ray.data.from_arrow(table)


class _Stored(Datasource):  # type: ignore[misc]
    """How many rows there are, and of what, is known without reading."""

    def __init__(self, store: Store, name: str, parts: Sequence[Part], schema: pa.Schema) -> None:
        super().__init__()
        self._store, self._name, self._parts, self._schema = store, name, parts, schema

    def get_name(self) -> str:
        return self._name

    def estimate_inmemory_data_size(self) -> int:
        return UNPACKED * sum(part.bytes for part in self._parts)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        n = max(1, min(parallelism, len(self._parts)))
        ends = [len(self._parts) * i // n for i in range(n + 1)]
        return [self._task(self._parts[start:end], per_task_row_limit) for start, end in pairwise(ends)]

    def _task(self, parts: Sequence[Part], row_limit: int | None) -> ReadTask:
        size = UNPACKED * sum(part.bytes for part in parts)
        known = BlockMetadata(sum(part.rows for part in parts), size, None, None)
        return ReadTask(partial(_read, self._store, parts, self._schema), known, self._schema, row_limit)


def _read(store: Store, parts: Sequence[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    if not parts:
        yield schema.empty_table()
    for part in parts:
        yield read_table(store, [part], schema.names, schema)


@contextmanager
def _quiet(context: Any) -> Iterator[None]:
    """Ray Data tells nothing of its own in the block: runs tell how they go."""
    told = {name: getattr(context, name) for name in ("enable_progress_bars", "print_on_execution_start")}
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # an error is raised, too
    for name in told:
        setattr(context, name, False)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in told.items():
            setattr(context, name, value)
