"""Print safe text, tables and formatted numbers.

Libraries are imported lazily, so that help and short messages appear immediately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.wording import collapse_whitespace, plural, price_hint, safe_json

if TYPE_CHECKING:
    from rich.console import Console

CHANGES = ("added", "changed", "removed")


def make_console(stderr: bool = False) -> Console:
    """Create a console that escapes control characters and ignores Rich markup and emoji codes in text.

    On a terminal, lines are wrapped between words. In files and pipes, lines are not wrapped, and tables are
    at most 160 characters wide.
    """
    from graphrag_ray.cli.safe_console import SafeConsole

    console = SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    return console


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: int = 1,
    total: Sequence[str] = (),
    **options: Any,
) -> None:
    """Print a table. The first `left` columns and columns without a heading are left-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, **options)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left or not name else "right")
    for row in rows:
        table.add_row(*row)
    if total:
        table.add_row(*total, style="bold")
    make_console().print(table)


def print_json(value: Any, indent: bool = True) -> None:
    import orjson

    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    click.echo(safe_json(orjson.dumps(value, option=options).decode()))


def format_cost(usd: float | None, unpriced_model: str) -> str:
    """Format a cost. If it is unknown, explain how to set the price of `unpriced_model`."""
    if usd is None:
        return f"cost unknown (set the price with {price_hint(unpriced_model)})"
    return format_usd(usd) if usd else "no cost"


def format_usd(usd: float | None) -> str:
    """Format an amount, such as `$0.0031` or `$1,204.50`. None is an unknown one."""
    if usd is None:
        return "unknown"
    return f"${usd:,.{4 if usd < 1 else 2}f}" if usd else "$0"


def format_bytes(n_bytes: float) -> str:
    """Format a size, such as `12 B` or `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"


def format_duration(seconds: float) -> str:
    """Format a duration, such as `45 s`, `12 min` or `1.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_counts(out: Console, counts: Mapping[str, Any]) -> None:
    """Print the counts of a snapshot."""
    changes = ", ".join(f"{counts[k]} {k}" for k in CHANGES if counts.get(k))
    out.print(f"  documents      {counts.get('documents', 0):,}" + (f" ({changes})" if changes else ""))
    labels = {"text_units": "chunks", "entities": "entities", "relationships": "relationships"}
    for name, label in labels.items():
        out.print(f"  {label:<13}  {counts.get(name, 0):,}")
    for label, text in graph_notes(counts).items():
        out.print(f"  {label:<13}  {text}")
    if counts.get("claims"):
        out.print(f"  claims         {counts['claims']:,}")
    out.print(f"  communities    {_communities(counts)}")
    if counts.get("reports") or "summaries" not in counts:
        out.print(f"  reports        {counts.get('reports', 0):,}{_composed(counts)}")
    if "summaries" in counts:
        out.print(f"  summaries      {counts['summaries']:,}")
    for name, n in counts.get("hierarchies", {}).items():
        written = [f"{n[noun]:,} {noun}" for noun in ("reports", "summaries") if noun in n]
        out.print(f"  hierarchy {name}: {', '.join([_communities(n), *written])}{_composed(n)}")


def _composed(counts: Mapping[str, Any]) -> str:
    n = counts.get("composed_reports")
    return f" ({n:,} composed without a model call)" if n else ""


def graph_notes(counts: Mapping[str, Any]) -> dict[str, str]:
    """Describe what to check in a graph, by label. Snapshots of earlier versions lack some of the counts."""
    n = Counter({name: value for name, value in counts.items() if isinstance(value, int)})
    notes: dict[str, list[str]] = {"names": [], "entity types": [], "connections": [], "boilerplate": []}
    if n["merged_names"]:
        notes["names"].append(f"{n['merged_names']:,} merged")
    if n["split_names"]:
        notes["names"].append(f"{n['split_names']:,} split off")
    if n["refused_merges"]:
        notes["names"].append(f"{plural(n['refused_merges'], 'merge')} refused")
    if n["dropped_relationships"]:
        dropped = plural(n["dropped_relationships"], "mention")
        notes["names"].append(f"{dropped} of relationships within one entity dropped")
    if n["type_conflicts"]:
        conflicting = plural(n["type_conflicts"], "entity", "entities")
        examples = collapse_whitespace("; ".join(counts.get("type_conflict_examples", ())), 300)
        notes["entity types"].append(f"mentions of {conflicting} disagree; the majority decides: {examples}")
    if n["orphans"]:
        notes["connections"].append(f"{plural(n['orphans'], 'entity has', 'entities have')} none")
    if hubs := counts.get("hubs"):
        total = max(1, n["relationships"])
        most = (f"{collapse_whitespace(name, 60)} {d:,} ({d / total:.0%})" for name, d in hubs.items())
        notes["connections"].append(f"most: {', '.join(most)}")
    if shortened := n["shortened_chunks"] + n["left_out_chunks"]:
        left_out = plural(n["left_out_characters"], "character")
        notes["boilerplate"].append(f"{left_out} left out of {plural(shortened, 'chunk')}")
    return {label: "; ".join(texts) for label, texts in notes.items() if texts}


def _communities(counts: Mapping[str, Any]) -> str:
    """Format counts per level: `C0 13  C1 45  C2 52  (68 distinct; …)`."""
    total, levels = counts.get("communities", 0), counts.get("levels", {})
    per_level = "  ".join(f"{name} {n:,}" for name, n in levels.items())
    if len(levels) < 2:
        return per_level or "0"
    note = (
        "; communities that were not split are repeated at deeper levels"
        if sum(levels.values()) > total
        else ""
    )
    return f"{per_level}  ({total:,} distinct{note})"
