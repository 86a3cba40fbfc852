"""Convert between Arrow arrays, numpy and lists without pandas.

pyarrow's conversions import pandas if it is installed, and that import takes longer than a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """View a numeric array without nulls as a numpy array. Nothing is copied."""
    return np.from_dlpack(array) if len(array) else np.zeros(0, array.type.to_pandas_dtype())


def to_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Convert a numpy array of int64, int32 or float64 to an Arrow array without nulls."""
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [None, pa.py_buffer(data)])


def to_arrow_strings(values: Iterable[str | None], type_: pa.DataType | None = None) -> pa.Array:
    """Build an Arrow array of strings. None becomes null. The default type is `pa.string()`."""
    values = list(values)
    encoded = [b"" if value is None else value.encode() for value in values]
    large = type_ is not None and pa.types.is_large_string(type_)
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64 if large else np.int32)
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(type_ or pa.string(), len(encoded), buffers)
