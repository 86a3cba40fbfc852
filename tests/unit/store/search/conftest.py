"""A byte source that exposes only loaded ranges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphrag_ray.store.search.mapped_arrays import Ints


class NotTheFile(Exception):
    """Raised by `Watched.invalid`."""


class Watched:
    """A source whose bytes are all 255 until they are loaded. `needed` is a mask of the loaded bytes.

    As floats, such bytes are NaN. As integers, they are out of range in every array.
    """

    def __init__(self, data: bytes) -> None:
        self._own = np.frombuffer(data, np.uint8)
        self.data = np.full(len(data), 255, np.uint8)
        self.needed = np.zeros(len(data), np.bool_)

    def load(self, starts: Ints, ends: Ints) -> None:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            assert 0 <= start <= end <= len(self.data)
            self.data[start:end] = self._own[start:end]
            self.needed[start:end] = True

    def invalid(self, why: str) -> Exception:
        return NotTheFile(why)

    def forget(self) -> None:
        """Reset the mask of loaded bytes."""
        self.needed[:] = False


@pytest.fixture(scope="session")
def watched() -> Callable[[bytes], Watched]:
    return Watched


@pytest.fixture(scope="session")
def not_the_file() -> type[Exception]:
    return NotTheFile
