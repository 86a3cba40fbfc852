"""Store values in a temporary file instead of in memory."""

from __future__ import annotations

import pickle
import tempfile
from typing import Generic, TypeVar

T = TypeVar("T")


class Spool(Generic[T]):
    """Picklable values by number, in a private temporary file. Not thread-safe."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - It stays open as long as this object exists.
        self._ranges: dict[int, tuple[int, int]] = {}
        self._end = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def get(self, number: int) -> T | None:
        return self[number] if number in self._ranges else None

    def __setitem__(self, number: int, value: T) -> None:
        data = pickle.dumps(value)
        self._file.seek(self._end)
        self._file.write(data)
        self._ranges[number] = (self._end, len(data))
        self._end += len(data)

    def __getitem__(self, number: int) -> T:
        start, size = self._ranges[number]
        self._file.seek(start)
        value: T = pickle.loads(self._file.read(size))
        return value

    def numbers(self) -> list[int]:
        return sorted(self._ranges)
