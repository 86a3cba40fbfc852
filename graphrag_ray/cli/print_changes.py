"""What people see of the changes between snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from graphrag_ray.base.declarations import ASKING_STAGES, COMPARED
from graphrag_ray.base.wording import price_setting
from graphrag_ray.cli.byte_sizes import in_words

KINDS = ("added", "changed", "removed", "unchanged")


def print_changes(out: Console, run: Mapping[str, Any], counts: Mapping[str, Any]) -> None:
    """What the run that made the snapshot added, changed and removed, and what models wrote for it."""
    changed = run.get("changes")
    if not changed:
        return
    table = Table("", *KINDS, box=None, pad_edge=False)
    for kind in KINDS:
        table.columns[KINDS.index(kind) + 1].justify = "right"
    for name, (label, _) in COMPARED.items():
        row = changed.get(name, {})
        if any(row.values()):
            table.add_row(label, *(f"{row[kind]:,}" if row[kind] else "" for kind in KINDS))
    out.print("\nWhat the run that made this snapshot changed")
    out.print(table)
    if counts.get("kept"):
        out.print(f"  {counts['kept']:,} of the documents could not be read and are kept as they were")
    asked = run.get("asked", {})
    written = []
    for stage in ASKING_STAGES:
        label, total = stage.writes
        if n := asked.get(stage.dialogue):
            in_all = sum(of.get(total, 0) for of in (counts, *counts.get("hierarchies", {}).values()))
            of = f" of {in_all:,}" if in_all else ""
            written.append(f"{n:,}{of} {label}")
    out.print(f"  written by models: {', '.join(written) or 'nothing'}; the rest is taken over")


def print_snapshots(out: Console, kept: Sequence[Mapping[str, Any]]) -> None:
    """One row a snapshot, the newest first."""
    table = Table("snapshot", "from", "documents", "entities", "reports", "cost", "size", "alone", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for s in kept:
        cost = "unknown" if s["cost_usd"] is None else f"${s['cost_usd']:.4f}" if s["cost_usd"] else ""
        table.add_row(
            str(s["snapshot"]),
            s["created_at"],
            *(f"{s[name]:,}" for name in ("documents", "entities", "reports")),
            cost,
            in_words(s["bytes"]),
            in_words(s["own_bytes"]),
        )
    out.print("\nSnapshots (alone: what would go with this one; graphrag-ray gc)")
    out.print(table)
    if any(s["cost_usd"] is None for s in kept):
        out.print(f"What runs to come will cost is known with {price_setting()}", style="dim")
