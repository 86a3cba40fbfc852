"""From string columns to integer arrays, without a Python object per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import ID_LENGTH

Ints = npt.NDArray[np.int64]
_PREFIX = 16  # hex digits that make 64 bits
_ROWS = 1 << 20  # rows handled at a time, so that temporaries stay small

_NIBBLE = np.full(256, 255, dtype=np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)


def codes(column: pa.ChunkedArray | pa.Array) -> tuple[Ints, pa.Array]:
    """Number the distinct values of a column in ascending order (code points for strings).

    Returns (code of each row, -1 for null; the distinct values sorted): integers that compare as the
    values do, whatever order the rows came in.
    """
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if len(chunked) == 0:
        return np.empty(0, dtype=np.int64), pa.array([], type=chunked.type)
    encoded = chunked.dictionary_encode().unify_dictionaries()
    values = encoded.chunk(0).dictionary
    by_value = pc.array_sort_indices(values).to_numpy()
    rank = np.empty(len(values), dtype=np.int64)
    rank[by_value] = np.arange(len(values))
    rows = [pc.fill_null(c.indices, -1).to_numpy(zero_copy_only=False) for c in encoded.chunks]
    unsorted = np.concatenate(rows).astype(np.int64)
    ranked = rank[unsorted] if len(values) else unsorted
    return np.where(unsorted < 0, -1, ranked), values.take(pa.array(by_value))


def run_starts(sorted_codes: Ints) -> npt.NDArray[np.bool_]:
    """True where a value differs from the one before."""
    new = np.ones(len(sorted_codes), dtype=np.bool_)
    new[1:] = sorted_codes[1:] != sorted_codes[:-1]
    return new


def same_lists(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """[rows] which lists of texts, none of them null, are equal."""
    lengths = pc.list_value_length(one).to_numpy()
    same: npt.NDArray[np.bool_] = lengths == pc.list_value_length(other).to_numpy()
    rows = pa.array(same)
    equal = pc.equal(one.filter(rows).flatten(), other.filter(rows).flatten())
    differ = np.concatenate([[0], np.cumsum(~equal.to_numpy(zero_copy_only=False).astype(np.bool_))])
    ends = np.cumsum(lengths[same]).astype(np.int64)
    same[same] = differ[ends] == differ[ends - lengths[same]]
    return same


def first_rows(code: Ints, n_codes: int) -> Ints:
    """[n_codes] the first row of each code; -1 for one that has none."""
    first = np.full(n_codes, -1, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    return first


class TextUnits(NamedTuple):
    """key [rows]: place of each row's key in `keys` (distinct, sorted); per key its distinct text unit ids
    in order of (document_id, position), and their number."""

    key: Ints
    keys: pa.Array
    lists: pa.ListArray
    n_units: Ints


def text_units_by_key(instances: pa.Table, key_column: str) -> TextUnits:
    """The text units of each key of a table of instances (document_id, position, text_unit_id).

    A table may name 64 million (2 GB of ids) in all; partitions hold far fewer.
    """
    key, keys = codes(instances[key_column])
    document, _ = codes(instances["document_id"])
    unit, units = codes(instances["text_unit_id"])
    # unit last: a place in a document is one text unit, so equal ones stand side by side.
    order = np.lexsort((unit, instances["position"].to_numpy(), document, key))
    key_in_order, unit_in_order = key[order], unit[order]
    new = run_starts(key_in_order) | run_starts(unit_in_order)
    n_units = np.bincount(key_in_order[new], minlength=len(keys))
    offsets = pa.array(np.concatenate([[0], np.cumsum(n_units)]), type=pa.int32())
    lists = pa.ListArray.from_arrays(offsets, units.cast(pa.string()).take(pa.array(unit_in_order[new])))
    return TextUnits(key, keys, lists, n_units)


def id_prefixes(column: pa.ChunkedArray | pa.Array, half: Literal[0, 1] = 0) -> npt.NDArray[np.uint64] | None:
    """The first 64 bits of each id of a string column (`ids.prefixes`, read from Arrow's buffers).

    half: 1: the last 64 bits

    None where some value is not an id: null, of another length than 32, or not lower-case hex.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = []
    for chunk in chunks:
        for at in range(0, len(chunk), _ROWS):
            part = _prefixes(chunk.slice(at, _ROWS), half)
            if part is None:
                return None
            parts.append(part)
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def _prefixes(strings: pa.Array, half: int) -> npt.NDArray[np.uint64] | None:
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
    digits = digits[:, half * _PREFIX : (half + 1) * _PREFIX]
    octets = np.ascontiguousarray((digits[:, 0::2] << 4) | digits[:, 1::2])
    return octets.view(">u8").ravel().astype(np.uint64)


def graph_arrays(
    entity_ids: Sequence[pa.ChunkedArray | pa.Array],
    source_id: pa.ChunkedArray | pa.Array,
    target_id: pa.ChunkedArray | pa.Array,
) -> tuple[Ints, Ints]:
    """Relationships as node numbers: (source [E], target [E]), int64.

    entity_ids: the id columns of the entity table's parts, in order; a node's number is its place in them.
    Raises ValueError naming an id that is not an entity's.
    """
    parts = [c for part in entity_ids for c in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    nodes = pa.chunked_array(parts, type=parts[0].type if parts else pa.string()).combine_chunks()
    ends = []
    for column in (source_id, target_id):
        at = pc.index_in(column, value_set=nodes)
        if at.null_count:
            missing = column.filter(pc.is_null(at))[0].as_py()
            raise ValueError(f"relationship end {missing!r} is not in the entity table")
        ends.append(np.asarray(at.to_numpy(), dtype=np.int64))
    return ends[0], ends[1]


def degrees(source: Ints, target: Ints, n_nodes: int) -> Ints:
    """[n_nodes] number of relationships of each node."""
    return np.bincount(source, minlength=n_nodes) + np.bincount(target, minlength=n_nodes)
