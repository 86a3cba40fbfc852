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


def unpacked(data: pa.Buffer) -> tuple[dict[str, pa.Array], dict[str, npt.NDArray[Any]]]:
    """The arrays of strings, and those of numbers, without copying them: they keep what `data` is part of."""
    row = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
    arrays = {name: row.column(name).values for name in row.schema.names}
    texts = {name: array for name, array in arrays.items() if pa.types.is_string(array.type)}
    return texts, {name: numbers(array) for name, array in arrays.items() if name not in texts}


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
