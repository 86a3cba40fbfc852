"""Vector search by cosine similarity: exact over a matrix.

A shard of an index is one Arrow IPC file without compression, which is memory-mapped: columns `id` (sorted)
and `vector` (of length 1, or all zeros where there is no direction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.search.ranking import Found, best, named, places_of

Floats = npt.NDArray[np.float32]

DIGITS = 6
"""Of a score: what is equal in them is equal. The last bits of a sum depend on how it was added up."""


@dataclass(frozen=True)
class VectorShard:
    """ids, sorted; vectors: [ids, dimensions]."""

    ids: pa.Array
    vectors: Floats


def build(ids: Sequence[str], vectors: Floats) -> pa.Buffer:
    """The bytes of a shard: the same for the same records, whatever their order."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    matrix = np.empty((len(ids), vectors.shape[1]), np.float32)
    for place, i in enumerate(order):
        matrix[place] = vectors[i]
    column = pa.FixedSizeListArray.from_arrays(pa.array(unit(matrix).reshape(-1)), matrix.shape[1])
    table = pa.table({"id": pa.array([ids[i] for i in order], pa.string()), "vector": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    return sink.getvalue()


def read(buffer: pa.Buffer) -> VectorShard:
    """A shard from its bytes, without copying them."""
    file = pa.ipc.open_file(pa.BufferReader(buffer))
    batch = file.get_batch(0)
    column = batch.column("vector")
    flat = column.flatten().to_numpy(zero_copy_only=True)
    return VectorShard(batch.column("id"), flat.reshape(len(column), column.type.list_size))


def unit(vectors: Floats) -> Floats:
    """Each vector with length 1; zeros where it has no length, or none that is a number."""
    # Not the square of what float32 cannot hold.
    scale = np.max(np.abs(vectors), axis=1, keepdims=True, initial=0.0)
    sound = np.isfinite(scale) & (scale > 0)
    scaled = np.where(sound, vectors, 0.0) / np.where(sound, scale, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1.0), dtype=np.float32)


def search(shard: VectorShard, wanted: Floats, k: int, among: pa.Array | None = None) -> list[Found]:
    """The k records whose vectors have the least angle to the wanted one, which has length 1."""
    rows = places_of(shard.ids, among)
    vectors = shard.vectors if rows is None else shard.vectors[rows]
    scores = np.round((vectors @ wanted).astype(np.float64), DIGITS)
    found = best(scores, k)
    return named(shard.ids, found if rows is None else rows[found], scores[found])
