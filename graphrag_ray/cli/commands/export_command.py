"""`graphrag-ray export`: export a snapshot for other programs."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import Given
from graphrag_ray.export.exporters import EXPORTERS


def _list_formats(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        for name in EXPORTERS:
            package = EXPORTERS.package_of(name)
            try:
                summary = EXPORTERS[name].help
            except PluginError as e:
                summary = str(e)
            click.echo(f"{name:<10} {summary}{f' ({package})' if package else ''}")
        ctx.exit()


@click.command(cls=Command)
@click.option("--format", "format_", type=click.Choice([*EXPORTERS]), required=True, help="Target format.")
@click.option(
    "--formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_formats,
    help="List the formats and what each writes.",
)
@click.option("--out", required=True, metavar="URL", help="An empty folder, or an fsspec URL (s3://…).")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in the folder. Other files stay.")
@options.snapshot
@options.hierarchy
@options.settings
@options.as_json
def export(
    given: Given,
    format_: str,
    out: str,
    overwrite: bool,
    snapshot: int | None,
    hierarchy: str | None,
    as_json: bool,
) -> None:
    """Export a snapshot for other programs. The index is not changed.

    --formats lists the formats, including those of other installed packages. graphrag needs pip install
    '.[lancedb]' for vectors; its settings.yaml names the models of the index, or those of --model and --set.

    For hierarchy tree, graphml and csv contain summaries and chunks, and what each summary was written from.

    --out is reached like --root, with the same `storage` settings and credentials. export.json is written
    last and marks a complete export.

    \b
    Examples:
      graphrag-ray export --root ./my-index --format graphml --out ./graph
      graphrag-ray export --root s3://bucket/index --format graphrag --out ./project
    """
    from graphrag_ray.export.export_snapshot import export as write
    from graphrag_ray.query.row_reader import Reader
    from graphrag_ray.store.files import Store

    store, manifest = given.snapshot(snapshot)
    settings = given.settings(manifest.settings, store.url)
    with options.naming_root(out, "--out"):
        target = Store(out, settings.storage.fsspec_options(out))
        done = write(
            Reader(store, manifest), settings, target, format_, overwrite=overwrite, hierarchy=hierarchy
        )
    if as_json:
        console.print_json(asdict(done))
        return
    echo = console.console_of().print
    echo(f"Exported snapshot {done.snapshot} to {done.url}")
    for path, rows in done.rows.items():
        of = "node" if path.endswith(".graphml") else "row"
        echo(f"  {path:<46}{plural(rows, of):>16}")
    for note in done.notes:
        echo(f"\n{note}.")
    if then := EXPORTERS[format_].next_step(done.url):
        echo(f"\n{then}", soft_wrap=True)
