"""`graphrag-ray export`: export a snapshot for other programs."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions
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
@click.option(
    "--format", "format_", type=click.Choice([*EXPORTERS]), required=True, help="Format to export to."
)
@click.option(
    "--formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_formats,
    help="List the formats and what they write.",
)
@click.option(
    "--out", required=True, metavar="URL", help="Target: an empty folder or an fsspec URL (s3://…)."
)
@click.option(
    "--overwrite", is_flag=True, help="Replace an earlier export in the folder. Other files are kept."
)
@options.snapshot
@options.hierarchy
@options.settings
@options.as_json
def export(
    opts: IndexOptions,
    format_: str,
    out: str,
    overwrite: bool,
    snapshot: int | None,
    hierarchy: str | None,
    as_json: bool,
) -> None:
    """Export a snapshot for other programs. The index is not changed.

    --formats lists the formats, including formats from other installed packages. Format graphrag needs pip
    install '.[lancedb]' to export vectors; its settings.yaml names the models of the index, or the ones you
    pass with --model and --set.

    With --hierarchy tree, graphml and csv contain summaries, chunks, and the sources of each summary.

    --out uses the same `storage` settings and credentials as --root. The file export.json is written last, so
    it marks a complete export.

    \b
    Examples:
      graphrag-ray export --root ./my-index --format graphml --out ./graph
      graphrag-ray export --root s3://bucket/index --format graphrag --out ./project
    """
    from graphrag_ray.export.export_snapshot import export as write
    from graphrag_ray.query.row_reader import Reader
    from graphrag_ray.store.files import Store

    store, manifest = opts.snapshot(snapshot)
    settings = opts.settings(manifest.settings, store.url)
    with options.naming_root(out, "--out"):
        target = Store(out, settings.storage.fsspec_options(out))
        result = write(
            Reader(store, manifest), settings, target, format_, overwrite=overwrite, hierarchy=hierarchy
        )
    if as_json:
        console.print_json(asdict(result))
        return
    echo = console.make_console().print
    echo(f"Exported snapshot {result.snapshot} to {result.url}")
    for path, rows in result.rows.items():
        noun = "node" if path.endswith(".graphml") else "row"
        echo(f"  {path:<46}{plural(rows, noun):>16}")
    for note in result.notes:
        echo(f"\n{note}.")
    if next_step := EXPORTERS[format_].next_step(result.url):
        echo(f"\n{next_step}", soft_wrap=True)
