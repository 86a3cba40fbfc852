"""`graphrag-ray levels`: the size of each community level."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import Given


@click.command(cls=Command)
@options.storage
@options.snapshot
@options.hierarchy
@options.as_json
def levels(given: Given, snapshot: int | None, hierarchy: str | None, as_json: bool) -> None:
    """List the number of reports and tokens of each level, and of the source text, as in Table 2 of the
    paper. A question to a whole level reads that many tokens.

    \b
    Example:
      graphrag-ray levels --root ./my-index
    """
    from graphrag_ray import open_index
    from graphrag_ray.base.settings_file import load_storage

    with options.naming_root(given.root):
        index = open_index(given.root, snapshot=snapshot, storage=load_storage(given.config, given.overrides))
    sizes = index.levels(hierarchy)
    if as_json:
        console.print_json({"snapshot": index.manifest.number, "levels": [asdict(row) for row in sizes]})
        return
    out = console.console_of()
    rows = ((row.name, f"{row.n_units:,}", f"{row.n_tokens:,}", f"{row.share:.1%}") for row in sizes)
    console.print_table(("level", "units", "tokens", "of the largest"), rows)
    out.print("\nC0, C1, …: community reports; TS: chunks of the source text.")
    for row in sizes:
        if row.missing:
            out.print(f"{row.name}: {plural(row.missing, 'report')} missing because of failures.")
