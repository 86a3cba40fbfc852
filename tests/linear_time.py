"""Measure how run time grows with the length of the input, despite noise."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FACTOR = 4
MOST = 9.0
"""Of the CPU time of an input, when it becomes FACTOR times as long. Linear code takes 4, quadratic 16."""
FLOOR_S = 0.03
"""Below this, noise decides."""
SURE_S = 0.3
"""From here on an input that took so much longer than a quarter of it is believed to be slow."""


def too_slow(do: Callable[[T], object], make: Callable[[int], T], n: int) -> str:
    """Return how much longer `do` takes for make(FACTOR * n) than for make(n), or "" if growth is about
    linear. A slow result is repeated, and then measured with longer inputs: a limit that only the longer
    input exceeds is one step and no growth."""

    def cpu_s(length: int) -> float:
        given = make(length)
        gc.disable()  # Its time depends on all objects of the process, which other tests have made.
        try:
            before = time.process_time()
            do(given)
            return time.process_time() - before
        finally:
            gc.enable()

    do(make(1))
    while True:
        long = cpu_s(FACTOR * n)
        for _ in range(2):
            short = max(min(cpu_s(n) for _ in range(2)), 1e-4)
            if long < FLOOR_S or long / short < MOST:
                return ""
            long = min(long, cpu_s(FACTOR * n))
        if long / short < MOST:
            return ""
        if long > SURE_S:
            return f"{FACTOR * n:,}: {long:.2f} s, {long / short:.0f} times that of a quarter"
        n *= FACTOR
