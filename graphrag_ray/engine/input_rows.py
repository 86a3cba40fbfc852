"""INPUT as rows instead of files: a Ray Data dataset, a table in memory, or dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow as pa

from graphrag_ray.base.errors import GraphRagError, InputError
from graphrag_ray.corpus.table_rows import TableRow, arrow_rows

RowBatch: TypeAlias = "pa.Table | list[Mapping[str, Any]]"

BATCH_BYTES = 4 << 20
"""Approximate batch size for rows and tables in memory. A dataset has its own blocks."""
_SIZE_CHECK_ROWS = 256

SUPPORTED_INPUTS = (
    "a file, folder, glob or URL; a Ray Data dataset; a table of pandas, Arrow or any library with Arrow "
    "streams; an iterable of dictionaries"
)
"""What INPUT can be."""


class InputRows:
    """Input rows for `Executor.map`, in batches so that they need not fit in memory.

    Args:
        source: One of KINDS, or a function that returns one, which is called once the engine has started.
        name: Name of the input in messages.
    """

    def __init__(self, source: Any, name: str = "") -> None:
        self._source = source
        self._name = name
        self._begun = False
        self._refuse: Callable[[Sequence[str]], str] = lambda columns: ""

    def __str__(self) -> str:
        return self._name or _kind_of(self._source)

    @property
    def is_open(self) -> bool:
        """Whether the input consists of rows rather than a function that must still be called."""
        return bool(_kind_of(self._source)) or not callable(self._source)

    def resolve(self, why_unreadable: Callable[[Sequence[str]], str]) -> None:
        """Call the input if it is a function, and check the columns.

        Args:
            why_unreadable: Returns why rows with these columns cannot be read, or "".

        Raises:
            InputError: INPUT has an unsupported type, cannot be read, or lacks columns.
        """
        if not self.is_open:
            with _reading("calling it"):
                self._source, self._name = self._source(), str(self)
        if not _kind_of(self._source):
            raise InputError(f"INPUT has type {type(self._source).__name__}. It can be {SUPPORTED_INPUTS}.")
        self._refuse = why_unreadable
        schema = None  # dictionaries reveal their columns only while they are read
        with _reading("its columns"):
            if _is_dataset(self._source):
                schema = self._source.schema()
            elif isinstance(self._source, pa.Table | pa.RecordBatchReader):
                schema = self._source.schema
        if schema is not None:
            self._check(list(schema.names))

    @property
    def size(self) -> int | None:
        """Bytes in memory. 0 for dictionaries, None for a dataset or a function that was not called yet."""
        if not self.is_open or _is_dataset(self._source):
            return None
        if hasattr(self._source, "memory_usage"):  # a pandas DataFrame
            return int(self._source.memory_usage(deep=True).sum())
        return int(getattr(self._source, "nbytes", 0))

    @property
    def dataset(self) -> Any:
        """The dataset, for an executor that can read it, or None if the input is not a dataset."""
        return self._source if _is_dataset(self._source) else None

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield the batches. Raises InputError if reading fails or required columns are missing."""
        if self._begun and hasattr(self._source, "__next__"):
            raise InputError(
                f"INPUT ({self}) can be read only once, but must be read again because a stored part was "
                "damaged. The damaged part was set aside. Run the same command again with a new iterator."
            )
        self._begun = True
        n_rows, batches = 0, self._batches()
        while True:
            with _reading(after_rows(n_rows)):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
            n_rows += len(batch)

    def _batches(self) -> Iterator[RowBatch]:
        source = self._source
        if _is_dataset(source):
            yield from source.iter_batches(batch_size=None, batch_format="pyarrow")
            return
        if not hasattr(source, "__arrow_c_stream__"):
            yield from self._row_batches(source)
            return
        try:
            stream = pa.RecordBatchReader.from_stream(source)
        except pa.ArrowException:
            if not hasattr(source, "to_dict"):
                raise
            # pandas cannot export a column of mixed types to Arrow.
            yield from self._row_batches(source.to_dict("records"))
            return
        self._check(stream.schema.names)
        buffer, size = list[pa.RecordBatch](), 0
        for batch in stream:
            rows = max(1, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, rows):
                buffer.append(batch.slice(start, rows))
                size += buffer[-1].nbytes
                if size >= BATCH_BYTES:
                    yield _table(buffer)
                    buffer, size = [], 0
        if buffer:
            yield _table(buffer)

    def _check(self, columns: Sequence[str]) -> None:
        if why := self._refuse(columns):
            raise InputError(f"INPUT ({self}): {why}")

    def _row_batches(self, rows: Iterable[Any]) -> Iterator[RowBatch]:
        buffer, size = list[Mapping[str, Any]](), 0
        columns: dict[str, None] = {}
        for n, row in enumerate(rows, start=1):
            if not isinstance(row, Mapping):
                raise InputError(
                    f"A row has type {type(row).__name__} instead of dict. INPUT can be {SUPPORTED_INPUTS}."
                )
            columns |= dict.fromkeys(map(str, row))
            size += sum(len(value) for value in row.values() if isinstance(value, str | bytes))
            buffer.append(row)
            if n % _SIZE_CHECK_ROWS == 0 and size >= BATCH_BYTES:
                yield buffer
                buffer, size = [], 0
        if columns:
            self._check(list(columns))
        if buffer:
            yield buffer


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Convert errors in the block to an InputError that says where they occurred."""
    try:
        yield
    except GraphRagError:
        raise
    except Exception as e:
        raise reading_failed(where, f"{type(e).__name__}: {e}") from e


def read_batch(batch: RowBatch) -> Iterator[TableRow]:
    if isinstance(batch, pa.Table):
        return arrow_rows(batch)
    return (TableRow(n, {str(name): v for name, v in row.items()}) for n, row in enumerate(batch, start=1))


def after_rows(n_rows: int) -> str:
    return f"after {n_rows:,} rows" if n_rows else "its first rows"


def reading_failed(where: str, error: str) -> InputError:
    error = " ".join(error.split())[:500].rstrip(".")
    return InputError(
        f"INPUT cannot be read ({where}): {error}. The index is unchanged, and earlier replies are reused "
        "at no cost. Fix INPUT and run the same command again."
    )


def _table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Combine batches, without the columns that pandas adds for unnamed indexes."""
    table = pa.Table.from_batches(batches)
    return table.drop_columns([n for n in table.column_names if n.startswith("__index_level_")])


def _is_dataset(source: Any) -> bool:
    """Check for a Ray dataset without importing Ray, which is slow."""
    return type(source).__module__.startswith("ray.data.") and hasattr(source, "map_batches")


def _kind_of(source: Any) -> str:
    """Describe the rows for messages. Returns "" for unsupported types."""
    if _is_dataset(source):
        return "a dataset"
    if hasattr(source, "__arrow_c_stream__"):
        return "a table"
    is_rows = isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping)
    return "rows" if is_rows else ""
