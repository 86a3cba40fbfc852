"""Thrift's compact protocol, as far as Parquet's metadata need it: structures as dictionaries, and back.

A structure is {number of the field: (type, value)}; a list is (type of its items, items). What the fields
mean stands in parquet.thrift of https://github.com/apache/parquet-format. pyarrow reads whole footers, but
tells nobody where the pages of a column lie.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Struct: TypeAlias = dict[int, tuple[int, Any]]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _MAP, STRUCT = range(1, 13)

MOST_NESTED = 32
_MOST_BITS = 63


def parse(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """The structure that begins there, and where it ends. Raises ValueError for bytes that are none."""
    try:
        return _struct(data, at, 0)
    except IndexError as e:
        raise ValueError("a Thrift structure is cut short") from e


def rendered(struct: Struct) -> bytes:
    """The bytes of a structure that `parse` gives back."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _struct(data: bytes | memoryview, at: int, depth: int) -> tuple[Struct, int]:
    if depth > MOST_NESTED:
        raise ValueError("a Thrift structure is nested too deeply")
    found: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        if kind in (TRUE, FALSE):
            found[number] = TRUE, kind == TRUE
        else:
            value, at = _value(data, at, kind, depth)
            found[number] = kind, value
    return found, at + 1


def _value(data: bytes | memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == BYTE:
        return data[at], at + 1
    if kind in (I16, I32, I64):
        return _signed(data, at)
    if kind == DOUBLE:
        return _bytes(data, at, 8)
    if kind == BINARY:
        size, at = _unsigned(data, at)
        return _bytes(data, at, size)
    if kind in (LIST, SET):
        return _list(data, at, depth)
    if kind == STRUCT:
        return _struct(data, at, depth + 1)
    raise ValueError(f"a Thrift structure holds a value of type {kind}")


def _list(data: bytes | memoryview, at: int, depth: int) -> tuple[Any, int]:
    if depth > MOST_NESTED:
        raise ValueError("a Thrift structure is nested too deeply")
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _unsigned(data, at)
    if size > len(data) - at:  # each item takes a byte at least
        raise ValueError("a Thrift list is longer than its bytes")
    items = []
    for _ in range(size):
        if kind in (TRUE, FALSE):
            value, at = data[at] == TRUE, at + 1
        else:
            value, at = _value(data, at, kind, depth + 1)
        items.append(value)
    return (kind, items), at


def _unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = bits = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << bits
        if byte < 128:
            return value, at
        bits += 7
        if bits > _MOST_BITS:
            raise ValueError("a Thrift number is too long")


def _signed(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def _bytes(data: bytes | memoryview, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise ValueError("a Thrift structure is cut short")
    return bytes(data[at : at + size]), at + size


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in sorted(struct.items()):
        told = kind if kind not in (TRUE, FALSE) else TRUE if value else FALSE
        if 0 < number - before < 16:
            out.append(number - before << 4 | told)
        else:
            out.append(told)
            _write_unsigned(out, _zigzag(number))
        before = number
        _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind == BYTE:
        out.append(value)
    elif kind in (I16, I32, I64):
        _write_unsigned(out, _zigzag(value))
    elif kind == DOUBLE:
        out += value
    elif kind == BINARY:
        _write_unsigned(out, len(value))
        out += value
    elif kind in (LIST, SET):
        of, items = value
        out.append(min(len(items), 15) << 4 | of)
        if len(items) >= 15:
            _write_unsigned(out, len(items))
        for item in items:
            if of in (TRUE, FALSE):
                out.append(TRUE if item else FALSE)
            else:
                _write_value(out, of, item)
    elif kind == STRUCT:
        _write_struct(out, value)


def _zigzag(value: int) -> int:
    return value << 1 ^ value >> 63


def _write_unsigned(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
