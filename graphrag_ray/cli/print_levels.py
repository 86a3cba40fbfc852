"""What people see of `levels`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from graphrag_ray.base.wording import plural
from graphrag_ray.cli.safe import console_of
from graphrag_ray.query.methods.levels import Units


def print_levels(found: Sequence[Units]) -> None:
    """A row for each level and one for the source text."""
    out = console_of()
    table = Table(box=None, pad_edge=False)
    for name in ("level", "units", "tokens", "of the largest"):
        table.add_column(name, justify="left" if name == "level" else "right")
    for row in found:
        table.add_row(row.name, f"{row.n_units:,}", f"{row.n_tokens:,}", f"{row.share:.1%}")
    out.print(table)
    out.print("\nC0, C1, …: community reports; TS: chunks of the source text.")
    for row in found:
        if row.missing:
            missing = plural(row.missing, "community", "communities")
            out.print(f"{row.name} lacks {missing} whose report failed.")
