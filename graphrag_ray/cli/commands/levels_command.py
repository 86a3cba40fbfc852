"""`graphrag-ray levels`: what each level of an index holds, and what a question on it takes."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, hierarchy_option, json_option, naming_root, reach_options


@click.command(cls=Command)
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@hierarchy_option
@json_option
def levels(given: Given, snapshot: int | None, hierarchy: str | None, as_json: bool) -> None:
    """How many reports each level has, and the source text chunks, with their tokens and the share of the
    largest: Table 2 of the paper, for this index. So much a question to all of a level reads.

    \b
    Example:
      graphrag-ray levels --root ./my-index
    """
    from graphrag_ray import open_index
    from graphrag_ray.base.settings_file import load_storage

    with naming_root(given.root):
        opened = open_index(
            given.root, snapshot=snapshot, storage=load_storage(given.config, given.overrides)
        )
    found = opened.levels(hierarchy)
    if as_json:
        console.print_json({"snapshot": opened.manifest.number, "levels": [asdict(row) for row in found]})
        return
    out = console.console_of()
    rows = ((row.name, f"{row.n_units:,}", f"{row.n_tokens:,}", f"{row.share:.1%}") for row in found)
    console.print_table(("level", "units", "tokens", "of the largest"), rows)
    out.print("\nC0, C1, …: community reports; TS: chunks of the source text.")
    for row in found:
        if row.missing:
            missing = plural(row.missing, "community", "communities")
            out.print(f"{row.name} lacks {missing} whose report failed.")
