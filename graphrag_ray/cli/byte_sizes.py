"""How many bytes are said."""

from __future__ import annotations


def in_words(n_bytes: float) -> str:
    """`12 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"
