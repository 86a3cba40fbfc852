"""`graphrag-ray levels`: list the size of each community level."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions


@click.command(cls=Command)
@options.storage
@options.snapshot
@options.hierarchy
@options.as_json
def levels(opts: IndexOptions, snapshot: int | None, hierarchy: str | None, as_json: bool) -> None:
    """List the number of reports and tokens of each level and of the source text, as in Table 2 of the
    GraphRAG paper. A global question at a level reads all tokens of that level.

    \b
    Example:
      graphrag-ray levels --root ./my-index
    """
    from graphrag_ray import open_index
    from graphrag_ray.base.settings_file import load_storage

    with options.naming_root(opts.root):
        index = open_index(opts.root, snapshot=snapshot, storage=load_storage(opts.config, opts.overrides))
    sizes = index.levels(hierarchy)
    if as_json:
        console.print_json({"snapshot": index.manifest.number, "levels": [asdict(row) for row in sizes]})
        return
    out = console.make_console()
    rows = ((row.name, f"{row.n_units:,}", f"{row.n_tokens:,}", f"{row.share:.1%}") for row in sizes)
    console.print_table(("level", "units", "tokens", "of the largest"), rows)
    out.print("\nC0, C1, …: community reports. TS: chunks of the source text.")
    for row in sizes:
        if row.missing:
            out.print(f"{row.name}: {plural(row.missing, 'report')} missing because of failures.")
