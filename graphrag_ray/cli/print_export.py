"""What people see of `export`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphrag_ray.base.urls import is_url
from graphrag_ray.base.wording import plural
from graphrag_ray.cli.safe import console_of

if TYPE_CHECKING:
    from graphrag_ray.export.export_snapshot import Exported


def print_exported(done: Exported) -> None:
    """What was written, what is missing, and what to do with it."""
    out = console_of()
    out.print(f"Snapshot {done.snapshot} is exported to {done.url}")
    for path, rows in done.rows.items():
        of = "node" if path.endswith(".graphml") else "row"
        out.print(f"  {path:<46}{plural(rows, of):>16}")
    for note in done.notes:
        out.print(f"\n{note}.")
    out.print(f"\n{_next(done)}", soft_wrap=True)


def _next(done: Exported) -> str:
    if done.format == "graphrag":
        command = f'graphrag query "What are the main themes?" --root {shlex.quote(done.url)} --method global'
        if is_url(done.url):
            command = f"copy the folder to a disk, and there: {command.replace(shlex.quote(done.url), '.')}"
        return f"Ask it with microsoft/graphrag (settings.yaml says which models and variables): {command}"
    if done.format == "graphml":
        return "Open it in Gephi; colour nodes by C0, C1, …, their communities; in a tree by kind or level."
    return "Text that a spreadsheet would take for a formula has a single quote before it."


def exported_json(done: Exported) -> dict[str, Any]:
    return asdict(done)
