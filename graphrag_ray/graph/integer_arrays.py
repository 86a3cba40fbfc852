"""Convert string columns to integer arrays without creating a Python object per row."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import ID_LENGTH

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_HALF_DIGITS = 16  # hex digits of 64 bits
_BLOCK_ROWS = 1 << 20  # number of rows converted at a time, which limits temporary memory

_NIBBLE = np.full(256, 255, dtype=np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)


def encode_sorted(column: pa.ChunkedArray | pa.Array) -> tuple[Ints, pa.Array]:
    """Number the distinct values of a column in ascending order (code points for strings).

    Returns the code of each row (-1 for null) and the sorted distinct values. Codes sort like the values and
    do not depend on the order of rows.
    """
    chunked = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    if len(chunked) == 0:
        return np.empty(0, dtype=np.int64), pa.array([], type=chunked.type)
    encoded = chunked.dictionary_encode().unify_dictionaries()
    values = encoded.chunk(0).dictionary
    by_value = pc.array_sort_indices(values).to_numpy()
    rank = np.empty(len(values) + 1, dtype=np.int64)
    rank[by_value] = np.arange(len(values))
    rank[-1] = -1  # the index of nulls
    indices = [pc.fill_null(c.indices, -1).to_numpy(zero_copy_only=False) for c in encoded.chunks]
    return rank[np.concatenate(indices)], values.take(pa.array(by_value))


def run_starts(sorted_codes: Ints) -> Bools:
    """Return a mask that is True where a value differs from the previous one."""
    return np.asarray(np.diff(sorted_codes, prepend=sorted_codes[:1] - 1) != 0)


def same_lists(left: pa.Array, right: pa.Array) -> Bools:
    """[rows] mask of the rows in which two columns have equal lists of strings. There must be no nulls."""
    lengths = pc.list_value_length(left).to_numpy()
    same: Bools = lengths == pc.list_value_length(right).to_numpy()
    rows = pa.array(same)
    equal = pc.equal(left.filter(rows).flatten(), right.filter(rows).flatten())
    differ = np.concatenate([[0], np.cumsum(~equal.to_numpy(zero_copy_only=False).astype(np.bool_))])
    ends = np.cumsum(lengths[same]).astype(np.int64)
    same[same] = differ[ends] == differ[ends - lengths[same]]
    return same


def first_rows(code: Ints, n_codes: int) -> Ints:
    """[n_codes] the first row of each code, or -1 if it does not occur."""
    first = np.full(n_codes, -1, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    return first


class TextUnits(NamedTuple):
    """Text units by key."""

    key: Ints  # position of each row's key in `keys`
    keys: pa.Array  # distinct and sorted
    lists: pa.ListArray  # distinct text unit ids of each key, sorted by document and position
    n_units: Ints  # number of text units of each key


def text_units_by_key(instances: pa.Table, key_column: str) -> TextUnits:
    """Group the text units of a table of instances (document_id, position, text_unit_id) by key.

    A table may contain at most 64 million ids (2 GB). Partitions contain far fewer.
    """
    key, keys = encode_sorted(instances[key_column])
    document, _ = encode_sorted(instances["document_id"])
    unit, units = encode_sorted(instances["text_unit_id"])
    # Each position in a document has one text unit, so rows with equal units end up next to each other.
    order = np.lexsort((unit, instances["position"].to_numpy(), document, key))
    sorted_key, sorted_unit = key[order], unit[order]
    is_new = run_starts(sorted_key) | run_starts(sorted_unit)
    n_units = np.bincount(sorted_key[is_new], minlength=len(keys))
    offsets = pa.array(np.concatenate([[0], np.cumsum(n_units)]), type=pa.int32())
    lists = pa.ListArray.from_arrays(offsets, units.cast(pa.string()).take(pa.array(sorted_unit[is_new])))
    return TextUnits(key, keys, lists, n_units)


def id_hash64(column: pa.ChunkedArray | pa.Array, half: Literal[0, 1] = 0) -> npt.NDArray[np.uint64] | None:
    """Return the first (half=0) or last (half=1) 64 bits of each id, read from Arrow's buffers.

    Returns None unless all values are ids (32 lower-case hex digits).
    """
    parts = [np.empty(0, dtype=np.uint64)]
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        for start in range(0, len(chunk), _BLOCK_ROWS):
            part = _parse_hex_half(chunk.slice(start, _BLOCK_ROWS), half)
            if part is None:
                return None
            parts.append(part)
    return np.concatenate(parts)


def _parse_hex_half(strings: pa.Array, half: int) -> npt.NDArray[np.uint64] | None:
    if strings.null_count:
        return None
    wide = strings.cast(pa.large_string())
    _, offset_buffer, data_buffer = wide.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[wide.offset : wide.offset + len(wide) + 1]
    if data_buffer is None or (np.diff(offsets) != ID_LENGTH).any():
        return None
    data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    digits = _NIBBLE[data.reshape(-1, ID_LENGTH)]
    if (digits > 15).any():
        return None
    digits = digits[:, half * _HALF_DIGITS : (half + 1) * _HALF_DIGITS]
    octets = np.ascontiguousarray((digits[:, 0::2] << 4) | digits[:, 1::2])
    return octets.view(">u8").ravel().astype(np.uint64)


def node_degrees(source: Ints, target: Ints, n_nodes: int) -> Ints:
    """[n_nodes] degree of each node."""
    return np.bincount(source, minlength=n_nodes) + np.bincount(target, minlength=n_nodes)
