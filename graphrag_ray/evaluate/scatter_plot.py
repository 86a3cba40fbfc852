"""A scatter plot: where the dots and labels of a few points lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 480, 340
LOG_FROM = 20.0
"""The x axis is logarithmic where the largest value is at least so many times the smallest."""
MAX_TICKS = 6
LONGEST_LABEL = 24
"""Characters."""

_CHARACTER, _LINE = 6.4, 14.0
"""Size of the labels' characters, about."""
_DOT = 5.0


@dataclass(frozen=True)
class PlotAxis:
    """From `low` to `high`, which lie at `start` and `end` in the picture."""

    low: float
    high: float
    ticks: Sequence[float]
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)

    def common(self, other: _Box) -> float:
        """The area that lies in both."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        return _Box(left, top, min(self.right, other.right), min(self.bottom, other.bottom)).area


_PLOT = _Box(46, 14, WIDTH - 14, HEIGHT - 46)


def scatter_plot(
    points: Sequence[tuple[str, float, float]], x_text: Callable[[float], str]
) -> dict[str, Any]:
    """Where everything lies in a picture of WIDTH and HEIGHT: box (left, top, right, bottom of the plot),
    x_ticks (place, text), y_ticks (place, value), dots (x, y, title) and labels (text, x, y, anchor).

    points: (label, x from 0, y from 0 to 100); x_text: how a value of x is written."""
    x_axis, y_axis = amount_axis([x for _, x, _ in points]), rate_axis([y for _, _, y in points])
    places = [(x_axis.place(x), y_axis.place(y)) for _, x, y in points]
    titles = [f"{label}: {x_text(x)}, {y:.1f}" for label, x, y in points]
    texts = [
        label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…" for label, _, _ in points
    ]
    labels = zip(texts, _label_places(texts, places), strict=True)
    return {
        "box": (_PLOT.left, _PLOT.top, _PLOT.right, _PLOT.bottom),
        "x_ticks": [(x_axis.place(value), x_text(value)) for value in x_axis.ticks],
        "y_ticks": [(y_axis.place(value), value) for value in y_axis.ticks],
        "dots": [{"x": x, "y": y, "title": title} for (x, y), title in zip(places, titles, strict=True)],
        "labels": [{"text": text, "x": x, "y": y, "anchor": anchor} for text, (x, y, anchor) in labels],
    }


def amount_axis(values: Sequence[float]) -> PlotAxis:
    """The x axis. It begins at 0, but where it is logarithmic."""
    least, most = min(values), max(values)
    log = 0 < least * LOG_FROM <= most
    low, high = (least / 1.5, most * 1.5) if log else (0.0, most * 1.12 or 1.0)
    ticks = _powers(low, high) if log else _multiples(_step(high / MAX_TICKS), low, high)
    return PlotAxis(low, high, ticks, _PLOT.left, _PLOT.right, log)


def rate_axis(values: Sequence[float]) -> PlotAxis:
    """The y axis: of percentages, with some room around them and around 50."""
    low = max(0.0, 10.0 * math.floor((min(50.0, *values) - 4) / 10))
    high = min(100.0, 10.0 * math.ceil((max(50.0, *values) + 4) / 10))
    return PlotAxis(low, high, _multiples(10.0, low, high), _PLOT.bottom, _PLOT.top)


def _step(least: float) -> float:
    """The first of … 0.1, 0.2, 0.5, 1, 2, 5, 10 … that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((power * m for m in (1, 2, 5) if power * m >= least), power * 10)


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten, with their doubles and halves where there is room; or every second, third, … of them."""
    exponents = range(math.ceil(math.log10(low)) - 1, math.floor(math.log10(high)) + 1)
    fine = [m * 10.0**k for k in exponents for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    coarse = [10.0**k for k in exponents if low <= 10.0**k]
    return fine if len(fine) <= MAX_TICKS else coarse[:: math.ceil(len(coarse) / MAX_TICKS)]


def _label_places(
    labels: Sequence[str], dots: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float, str]]:
    """x, y and anchor of each label: near its dot, where it covers the least of dots and earlier labels."""
    taken = [_Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    for label, (x, y) in zip(labels, dots, strict=True):
        width, away = len(label) * _CHARACTER, _DOT + 4
        left_of = {"start": 0.0, "middle": width / 2, "end": width}
        tried = [(x + away, y + 4, "start"), (x - away, y + 4, "end")]
        for line in range(3):
            for at, anchor in ((x, "middle"), (x + _DOT, "start"), (x - _DOT, "end")):
                tried += [(at, y + sign * (away + line * _LINE) + (sign > 0) * 9, anchor) for sign in (-1, 1)]
        boxes = []
        for at, base, anchor in tried:
            left = at - left_of[anchor]
            boxes.append(_Box(left, base - 11, left + width, base - 11 + _LINE))
        covered = [sum(map(box.common, taken)) + 4 * (box.area - box.common(_PLOT)) for box in boxes]
        best = min(range(len(tried)), key=lambda n: round(covered[n], 3))
        taken.append(boxes[best])
        yield tried[best]
