"""Shards of an index for search as they were earlier: Arrow files, brought to today's form in memory until
the next `graphrag-ray index` has made them anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.arrow_arrays import numbers
from graphrag_ray.store.search import keyword, vectors

_TYPES = {"ids": pa.string(), "words": pa.uint64(), "ends": pa.int64(), "records": pa.int32()}
_TYPES |= {"counts": pa.uint16(), "lengths": pa.int32(), "language": pa.uint8()}
_TYPES |= {"vectors": pa.float32(), "graph": pa.uint8()}
_MATRIX_AT = 8
"""In a usearch index: behind how many vectors there are, and the bytes of each. They are float16."""


def keyword_shard(data: bytes) -> bytes:
    """Raises ValueError for what is none."""
    ids, arrays = _arrays(data)
    if not {"words", "ends", "records", "counts", "lengths"} <= arrays.keys():
        raise ValueError("it lacks arrays")
    if len(ids) != len(arrays["lengths"]):
        raise ValueError("its arrays are of different lengths")
    language = bytes(arrays.get("language", np.zeros(0, np.uint8))).decode()
    return keyword.of_arrays(
        ids,
        arrays["words"],
        arrays["ends"],
        arrays["records"],
        arrays["counts"],
        arrays["lengths"],
        language,
    )


def vector_shard(data: bytes) -> bytes:
    """Raises ValueError for what is none."""
    ids, arrays = _arrays(data)
    if "graph" in arrays:
        raw = arrays["graph"]
        n, width = raw[:_MATRIX_AT].view("<u4").tolist()
        matrix = raw[_MATRIX_AT : _MATRIX_AT + n * width].view("<f2").reshape(n, -1).astype(np.float32)
    elif "vectors" in arrays:
        matrix = arrays["vectors"].reshape(len(ids), -1)
    else:
        raise ValueError("it lacks arrays")
    if len(matrix) != len(ids):
        raise ValueError("its arrays are of different lengths")
    return vectors.build(ids, matrix)


def _arrays(data: bytes) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """The ids, and the arrays of numbers. Raises ValueError."""
    try:
        row = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
        row.validate(full=True)
        arrays = {name: row.column(name).values for name in row.schema.names}
        if row.num_rows != 1 or any(of.type != _TYPES.get(name) for name, of in arrays.items()):
            raise ValueError("its arrays are of other types")
        if any(array.null_count for array in arrays.values()):
            raise ValueError("a value is missing")
        ids = arrays.pop("ids").to_pylist()
        return ids, {name: numbers(array) for name, array in arrays.items()}
    except (pa.ArrowException, KeyError, AttributeError, TypeError, BufferError, OSError) as e:
        raise ValueError(f"it holds no such arrays ({e})") from e
