"""Arrays of different lengths as one file that can be memory-mapped: an Arrow IPC file of one row."""

from __future__ import annotations

from collections.abc import Mapping

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


def unpacked(data: pa.Buffer) -> dict[str, pa.Array]:
    """The arrays, without copying them: they keep what `data` is part of."""
    row = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
    return {name: row.column(name).values for name in row.schema.names}
