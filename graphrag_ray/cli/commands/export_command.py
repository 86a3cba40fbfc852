"""`graphrag-ray export`: a snapshot in the files of other programs."""

from __future__ import annotations

from dataclasses import asdict

import click

from graphrag_ray.base.plugins import PluginError
from graphrag_ray.base.wording import plural
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, hierarchy_option, json_option, naming_root, settings_options
from graphrag_ray.export.exporters import EXPORTERS


def _list_formats(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        for name in EXPORTERS:
            package = EXPORTERS.package_of(name)
            try:
                told = EXPORTERS[name].help
            except PluginError as e:
                told = str(e)
            click.echo(f"{name:<10} {told}{f' ({package})' if package else ''}")
        ctx.exit()


@click.command(cls=Command)
@root_option
@click.option(
    "--format", "format_", type=click.Choice([*EXPORTERS]), required=True, help="What is to read it."
)
@click.option(
    "--formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_formats,
    help="List the formats, and what each writes.",
)
@click.option("--out", required=True, metavar="URL", help="An empty folder, or s3://… and other fsspec URLs.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in that folder. Other files stay.")
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@hierarchy_option
@settings_options
@json_option
def export(
    given: Given,
    format_: str,
    out: str,
    overwrite: bool,
    snapshot: int | None,
    hierarchy: str | None,
    as_json: bool,
) -> None:
    """Write a snapshot in the files of other programs. The index stays as it is.

    --formats lists the formats, those of other installed packages too. graphrag needs
    pip install '.[lancedb]' for vectors; its settings.yaml names the models of the index, or those of --model
    and --set.

    Of hierarchy tree, graphml and csv hold summaries and chunks, and which summary was written from which.

    --out is reached as --root is, with the same `storage` settings and credentials of the environment.
    export.json, which is written last, says that an export is complete.

    \b
    Examples:
      graphrag-ray export --root ./my-index --format graphml --out ./graph
      graphrag-ray export --root s3://bucket/index --format graphrag --out ./project
    """
    from graphrag_ray.export.export_snapshot import export as write
    from graphrag_ray.query.reading import Reader
    from graphrag_ray.store.files import Store

    store, manifest = given.snapshot(snapshot)
    settings = given.settings(manifest.settings, store.url)
    with naming_root(out, "--out"):
        target = Store(out, settings.storage.of(out))
        done = write(
            Reader(store, manifest), settings, target, format_, overwrite=overwrite, hierarchy=hierarchy
        )
    if as_json:
        console.print_json(asdict(done))
        return
    echo = console.console_of().print
    echo(f"Snapshot {done.snapshot} is exported to {done.url}")
    for path, rows in done.rows.items():
        of = "node" if path.endswith(".graphml") else "row"
        echo(f"  {path:<46}{plural(rows, of):>16}")
    for note in done.notes:
        echo(f"\n{note}.")
    if then := EXPORTERS[format_].then(done.url):
        echo(f"\n{then}", soft_wrap=True)
