"""Reads or deletes many files at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
"""Requests for files that a process makes at once."""

T = TypeVar("T")
X = TypeVar("X")


def in_threads(do: Callable[[X], T], files: Sequence[X], threads: int = THREADS) -> Iterator[T]:
    """What is done with each, in order; few results wait to be taken."""
    if len(files) <= 1:  # most tables of a small index are one: a thread takes longer than they do
        yield from map(do, files)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="files") as pool:
        for file in files:
            waiting.append(pool.submit(do, file))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
