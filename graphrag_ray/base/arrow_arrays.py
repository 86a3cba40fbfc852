"""Arrow arrays of numbers and of strings, made and read without pandas.

What pyarrow does with lists and with numpy's arrays begins with importing pandas, where it is installed: that
takes longer than a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """An array of numbers without nulls, without copying it."""
    return np.from_dlpack(array) if len(array) else np.zeros(0, array.type.to_pandas_dtype())


def arrow(values: npt.NDArray[Any]) -> pa.Array:
    """An array of int64, int32 or float64, without nulls."""
    own = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(own.dtype), len(own), [None, pa.py_buffer(own)])


def strings(values: Iterable[str | None], type_: pa.DataType | None = None) -> pa.Array:
    """An array of strings, by default `pa.string()`; None is null."""
    given = list(values)
    encoded = [b"" if value is None else value.encode() for value in given]
    large = type_ is not None and pa.types.is_large_string(type_)
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64 if large else np.int32)
    valid = np.array([value is not None for value in given], dtype=np.bool_)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(type_ or pa.string(), len(encoded), buffers)
