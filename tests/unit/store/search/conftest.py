"""A file of which nothing can be seen but what was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphrag_ray.store.search.mapped_arrays import Ints


class NotTheFile(Exception):
    """What a watched file refuses with."""


class Watched:
    """A source whose bytes are all 255 until they are needed. needed: [bytes] which were.

    A float of such bytes is no number, and an integer leads out of every array."""

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
        """Begin to count anew."""
        self.needed[:] = False


@pytest.fixture(scope="session")
def watched() -> Callable[[bytes], Watched]:
    return Watched


@pytest.fixture(scope="session")
def not_the_file() -> type[Exception]:
    return NotTheFile
