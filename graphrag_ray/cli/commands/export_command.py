"""`graphrag-ray export`: a snapshot in the files of other programs."""

from __future__ import annotations

from typing import Any

import click

from graphrag_ray.cli.options import (
    hierarchy_option,
    json_option,
    naming_root,
    open_root,
    settings_from,
    settings_options,
)
from graphrag_ray.cli.program import Command, root_option

FORMATS = ("graphrag", "graphml", "csv")


@click.command(cls=Command)
@root_option
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), required=True, help="What is to read it (see above)."
)
@click.option("--out", required=True, metavar="URL", help="An empty folder, or s3://… and other fsspec URLs.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in that folder. Other files stay.")
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@hierarchy_option
@settings_options
@json_option
def export(
    root: str,
    format_: str,
    out: str,
    overwrite: bool,
    snapshot: int | None,
    hierarchy: str | None,
    config: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    **short: Any,
) -> None:
    """Write a snapshot in the files of other programs. The index stays as it is.

    \b
    graphrag  a project of microsoft/graphrag, for its own `query`: parquet tables,
              vectors (with pip install '.[lancedb]') and a settings.yaml
              that names the models of the index, or those of --model and --set
    graphml   the graph for Gephi and the like: communities as C0, C1, … of each node
    csv       nodes, edges, communities and memberships for spreadsheets

    Of hierarchy tree, graphml and csv hold summaries and chunks, and which summary was written from which.

    --out is reached as --root is, with the same `storage` settings and credentials of the environment.
    export.json, which is written last, says that an export is complete.

    \b
    Examples:
      graphrag-ray export --root ./my-index --format graphml --out ./graph
      graphrag-ray export --root s3://bucket/index --format graphrag --out ./project
    """
    from graphrag_ray.cli import console
    from graphrag_ray.cli.print_export import exported_json, print_exported
    from graphrag_ray.export.export_snapshot import export as write
    from graphrag_ray.query.reading import Reader
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import open_latest

    store = open_root(root, config, overrides)
    with naming_root(root):
        manifest = open_latest(store, snapshot)
    settings = settings_from(config, overrides, short, manifest.settings, store.url)
    with naming_root(out, "--out"):
        target = Store(out, settings.storage.of(out))
        done = write(
            Reader(store, manifest), settings, target, format_, overwrite=overwrite, hierarchy=hierarchy
        )
    if as_json:
        click.echo(console.as_json(exported_json(done)))
    else:
        print_exported(done)
