"""`graphrag-ray inspect`: look at what is in an index before asking it."""

from __future__ import annotations

import click

from graphrag_ray.cli.options import hierarchy_option, json_option, naming_root, open_root, reach_options
from graphrag_ray.cli.program import Command, root_option
from graphrag_ray.cli.quick import spare_pandas


@click.command(cls=Command)
@click.argument("what", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]")
@root_option
@reach_options
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="So many records of each list; 0: all.",
)
@hierarchy_option
@json_option
def inspect(
    what: str | None,
    names: tuple[str, ...],
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    snapshot: int | None,
    limit: int,
    hierarchy: str | None,
    as_json: bool,
) -> None:
    """Look at one record of the index and what it is connected to, without a model and without cost.

    WHAT is community (its report, members, parent and children), theme (the same, of hierarchy attributed),
    summary (of hierarchy tree), entity, relationship, claim, chunk or document, and NAME its number, as
    references and other records name it, or what it is called: in any case, with or without accents (one that
    begins with a dash after `--`). `search TEXT` finds names that hold a text. Without WHAT: the largest of
    everything, and where to go from there.

    \b
    Examples:
      graphrag-ray inspect --root ./my-index
      graphrag-ray inspect community C1:12 --root ./my-index
      graphrag-ray inspect entity "mara venn" --root ./my-index --limit 0
      graphrag-ray inspect relationship "mara venn" "edgar hask" --root ./my-index
      graphrag-ray inspect document letters/1987.txt --root ./my-index --json
      graphrag-ray inspect search harbour --root ./my-index
    """
    spare_pandas()
    from graphrag_ray.cli import console
    from graphrag_ray.cli.print_inspect import print_record
    from graphrag_ray.export.connected_records import View, look_up, overview, search
    from graphrag_ray.query.methods.asked_hierarchy import looked_at
    from graphrag_ray.query.reading import Reader
    from graphrag_ray.store.snapshots import open_latest

    store = open_root(root, config, overrides)
    with naming_root(root):
        manifest = open_latest(store, snapshot)
    view = View(Reader(store, manifest), limit or None, looked_at(manifest.hierarchies, hierarchy))
    if what is None:
        found = overview(view)
    elif what.casefold() == "search":
        found = search(view, " ".join(names))
    else:
        found = look_up(view, what, names)
    if as_json:
        click.echo(console.as_json(found))
    else:
        print_record(found, root, hierarchy)
