"""Arrays of different lengths as one file that can be memory-mapped: an Arrow IPC file of one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def packed(arrays: Mapping[str, pa.Array]) -> pa.Buffer:
    """The bytes of a file; the same for the same arrays."""
    lists = [
        pa.LargeListArray.from_arrays(pa.array([0, len(array)], pa.int64()), array)
        for array in arrays.values()
    ]
    row = pa.record_batch(lists, names=list(arrays))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, row.schema) as file:
        file.write_batch(row)
    return sink.getvalue()


def unpacked(
    data: pa.Buffer, types: Mapping[str, pa.DataType]
) -> tuple[pa.StringArray, dict[str, npt.NDArray[Any]]]:
    """The strings `ids`, and the arrays of numbers, without copying them: they keep what `data` is part of.

    types: of the numbers that there can be. Raises ValueError for what `packed` has not made of them; what
    stands in the strings, `check_ids` looks at.
    """
    arrays = arrays_in(data)
    if "ids" not in arrays:
        raise ValueError("it holds no such arrays: ids are missing")
    ids = arrays.pop("ids")
    if ids.type != pa.string() or any(a.type != types.get(n) for n, a in arrays.items()):
        raise ValueError("its arrays are of other types")
    return ids, {name: numbers(array) for name, array in arrays.items()}


def arrays_in(data: pa.Buffer) -> dict[str, pa.Array]:
    """The arrays that `packed` made a file of, without copying them. Raises ValueError for another file."""
    try:
        row = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
        row.validate()
        arrays = {name: row.column(name).values for name in row.schema.names}
    except (pa.ArrowException, KeyError, AttributeError, TypeError, BufferError, OSError) as e:
        raise ValueError(f"it holds no such arrays ({e})") from e
    if row.num_rows != 1 or len(arrays) != len(row.schema):
        raise ValueError("its arrays are of other types")
    return arrays


def check_ids(ids: pa.StringArray) -> None:
    """Reads all of them. Raises ValueError."""
    ids.validate(full=True)
    if ids.null_count:
        raise ValueError("an id is missing")


# What pyarrow does with lists and with numpy's arrays begins with importing pandas, where it is installed:
# that takes longer than a search.


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """An array of numbers without nulls, without copying it."""
    return np.from_dlpack(array) if len(array) else np.zeros(0, array.type.to_pandas_dtype())


def strings(values: Iterable[str]) -> pa.StringArray:
    """An array of strings."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
