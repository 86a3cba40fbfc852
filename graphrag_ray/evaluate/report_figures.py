"""Figures as the page of a comparison writes them."""

from __future__ import annotations

import math

NONE = "–"
"""What stands where there is no figure."""


def decimal(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:,.{digits}f}".replace("-", "−")


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def short_count(value: float) -> str:
    """`950`, `12.5k`, `3M`"""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"


def probability(p: float | None) -> str:
    """`< .001`, `.023`, `1`"""
    if p is None:
        return NONE
    if p < 0.001:
        return "< .001"
    return "1" if p >= 0.9995 else f"{p:.3f}"[1:]


def dollars(usd: float | None) -> str:
    """With at least two digits that are not zero: `$1,204.50`, `$0.0031`."""
    if usd is None:
        return "unknown"
    digits = 1 - math.floor(math.log10(usd)) if 0 < usd < 1 else 2
    return f"${usd:,.{min(digits, 12)}f}" if usd else "$0"
