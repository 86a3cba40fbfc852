"""Ray Data: reading INPUT from datasets, large shuffles, and exporting tables as datasets."""

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

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.base.wording import strip_ansi
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.executor import (
    PARTITION,
    InputSplitter,
    TableFunction,
    Tables,
    WrittenParts,
    write_all,
)
from graphrag_ray.engine.input_rows import after_rows, reading_failed
from graphrag_ray.engine.ray.table_tasks import (
    Attempts,
    TableParts,
    find_graphrag_error,
    process_died,
    reduce_partitions,
    stream_one,
)
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

EXPANSION_RATIO = 3
"""Approximate ratio of bytes in memory to stored bytes."""


def map_dataset(
    store: Store,
    step: str,
    fn: TableFunction[Any],
    dataset: Any,
    attempts: Attempts,
    splitter: InputSplitter[Any] | None,
    on_done: Callable[[int], None],
) -> WrittenParts:
    """`Executor.map` over the blocks of a dataset, in any order.

    Ray Data reads blocks and runs `fn` in its own tasks, as many as cores and object store allow. The driver
    receives only the names of the parts.

    Raises:
        InputError: The dataset cannot be read.
    """
    block = partial(_write_block, store, fn, attempts, splitter)
    blocks = dataset.map_batches(block, batch_size=None, batch_format="pyarrow")
    written: WrittenParts = []
    n_rows = 0
    try:
        with _quiet(dataset.context):
            for batch in blocks.iter_batches(batch_size=None, batch_format="pyarrow"):
                for row in batch.to_pylist():
                    written.append(cloudpickle.loads(row["written"]))
                    n_rows += row["rows"]
                    on_done(len(written) - 1)
    except Exception as e:
        if (original := find_graphrag_error(e)) is not None:
            raise original from None
        error = f"{type(e).__name__}: {e}"
        if isinstance(e, RayError):  # the reader's error is the last line of the first traceback
            first, *_ = strip_ansi(str(e)).split("\n\nThe above exception was the direct cause")
            error = next((line for line in reversed(first.splitlines()) if line.strip()), "")
        raise reading_failed(after_rows(n_rows), error) from e
    return written


def _write_block(
    store: Store,
    fn: TableFunction[Any],
    attempts: Attempts,
    splitter: InputSplitter[Any] | None,
    block: pa.Table,
) -> Iterator[pa.Table]:
    """Write the parts of a block, row by row if it crashed processes."""
    if not block.num_rows:  # Ray Data also calls functions with empty blocks
        return
    # The number must be the same when Ray restarts the task, which processes one block at a time.
    first = repr(block.slice(0, 1).to_pylist()).encode("utf-8", "replace")
    digest = hashlib.sha256(f"{ray.get_runtime_context().get_task_id()}".encode() + first).digest()
    number = int.from_bytes(digest[:6], "big") << 24
    try:
        tables: Iterable[Tables]
        if (why := attempts.begin(number)) is None:
            tables = fn(store, block)
        elif splitter is None:
            raise process_died(attempts.step, block, why)
        else:
            tables = []
            for n, part in enumerate(splitter.split(block), number + 1):
                part_why = attempts.begin(n)
                tables += [splitter.failure_tables(part, part_why)] if part_why else fn(store, part)
                attempts.end(n)
        written = write_all(store, tables)
        if why is None:
            attempts.end(number)
    except Exception as e:
        if not is_unexpected(e):
            raise
        # Not an error of reading the dataset, so do not let `map_dataset` report it as one.
        raise GraphRagError(f"Step {attempts.step}: {record_bug(e)}") from None
    yield pa.table({"written": [cloudpickle.dumps(written)], "rows": [block.num_rows]})


def shuffle_dataset(
    store: Store,
    fn: Callable[[Store, Any], Iterable[pa.Table]],
    mapping: Attempts,
    reduce: Callable[[pa.Table], Tables],
    reducing: Attempts,
    inputs: Sequence[Any],
    blocks: int,
    bundles: int,
) -> dict[int, TableParts | str]:
    """`Executor.shuffle` with Ray Data. Returns the parts of each partition, or why it was skipped."""
    numbered = [{"number": i, "input": cloudpickle.dumps(x)} for i, x in enumerate(inputs)]
    with _quiet(ray.data.DataContext.get_current()):
        reduced = (
            ray.data.from_items(numbered, override_num_blocks=blocks)
            .map_batches(partial(_rows_of_block, store, fn, mapping), batch_size=None, batch_format="pyarrow")
            .repartition(bundles, keys=[PARTITION])
            .map_batches(
                partial(_reduce_block, store, reduce, reducing), batch_size=None, batch_format="pyarrow"
            )
        )
        return {
            row["partition"]: cloudpickle.loads(row["written"])
            for batch in reduced.iter_batches(batch_size=None, batch_format="pyarrow")
            for row in batch.to_pylist()
        }


def _rows_of_block(store: Store, fn: Any, attempts: Attempts, block: pa.Table) -> Iterator[pa.Table]:
    if "input" not in block.column_names:  # Ray Data also calls functions with empty blocks
        return
    for number, x in zip(block["number"], block["input"], strict=True):
        yield from stream_one(store, fn, attempts, number.as_py(), cloudpickle.loads(x.as_buffer()))


def _reduce_block(
    store: Store, reduce: Callable[[pa.Table], Tables], attempts: Attempts, rows: pa.Table
) -> Iterator[pa.Table]:
    """Reduce the partitions of a block, which contains all their rows."""
    if PARTITION not in rows.column_names:
        return
    for partition, written in reduce_partitions(store, reduce, attempts, rows):
        yield pa.table({"partition": [partition], "written": [cloudpickle.dumps(written)]})


def dataset_of_parts(store: Store, name: str, parts: Sequence[Part], schema: pa.Schema) -> ray.data.Dataset:
    """Create a dataset of stored parts that nodes read directly. Contains only the schema's columns."""
    return ray.data.read_datasource(_StoredParts(store, name, parts, schema))


def dataset_of_table(table: pa.Table) -> ray.data.Dataset:
    return ray.data.from_arrow(table)


class _StoredParts(Datasource):  # type: ignore[misc]
    """A data source that knows row counts and schema without reading the parts."""

    def __init__(self, store: Store, name: str, parts: Sequence[Part], schema: pa.Schema) -> None:
        super().__init__()
        self._store, self._name, self._parts, self._schema = store, name, parts, schema

    def get_name(self) -> str:
        return self._name

    def estimate_inmemory_data_size(self) -> int:
        return EXPANSION_RATIO * sum(part.bytes for part in self._parts)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        n = max(1, min(parallelism, len(self._parts)))
        ends = [len(self._parts) * i // n for i in range(n + 1)]
        tasks = []
        for parts in (self._parts[start:end] for start, end in pairwise(ends)):
            size = EXPANSION_RATIO * sum(part.bytes for part in parts)
            metadata = BlockMetadata(sum(part.rows for part in parts), size, None, None)
            read = partial(_read, self._store, parts, self._schema)
            tasks.append(ReadTask(read, metadata, self._schema, per_task_row_limit))
        return tasks


def _read(store: Store, parts: Sequence[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    if not parts:
        yield schema.empty_table()
    for part in parts:
        yield read_table(store, [part], schema.names, schema)


@contextmanager
def _quiet(context: Any) -> Iterator[None]:
    """Silence Ray Data, because runs report their own progress and errors are raised anyway."""
    previous = {name: getattr(context, name) for name in ("enable_progress_bars", "print_on_execution_start")}
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    for name in previous:
        setattr(context, name, False)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in previous.items():
            setattr(context, name, value)
