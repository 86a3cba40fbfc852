"""How numbers of things are said."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """`1 file`, `2,000 files`; `many` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
