"""`graphrag-ray estimate`: what an index will take."""

from __future__ import annotations

from typing import Any

import click

from graphrag_ray.cli.options import (
    build_option,
    input_of,
    json_option,
    naming_root,
    open_root,
    settings_from,
    settings_options,
)
from graphrag_ray.cli.program import Command


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@settings_options
@build_option
@click.option(
    "--root", metavar="URL", help="An index, whole or partly done: learn from the calls made for it."
)
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Chunks that the offline engine reads; default: 1000.",
)
@click.option("--full", is_flag=True, help="Read all of INPUT, also where it is larger than 512 MB.")
@click.option(
    "--new-prompts",
    is_flag=True,
    help="As `index --new-prompts`: not with the prompts of the index at --root.",
)
@click.option("--assume", multiple=True, metavar="NAME=VALUE", help="Replace one of the assumptions printed.")
@json_option
def estimate(
    input_url: str | None,
    config: str | None,
    overrides: tuple[str, ...],
    root: str | None,
    sample: int | None,
    full: bool,
    new_prompts: bool,
    assume: tuple[str, ...],
    as_json: bool,
    **short: Any,
) -> None:
    """What indexing INPUT will take: calls, tokens, cost and time of each stage. Nothing is asked or written.

    What is extracted from is counted exactly. The rest is modelled: names by the offline engine's reading
    of a sample, lengths by what is assumed. For a closer forecast index a few documents of INPUT, with
    the same settings, and name that index by --root: what its calls came to takes the place of what is
    assumed.

    \b
    Examples:
      graphrag-ray estimate ./documents --model gpt-4o-mini --rpm 10000 --tpm 2000000
      graphrag-ray estimate ./documents --config settings.yaml --assume glean_yes=0.8
      graphrag-ray index ./some-documents --root ./trial --config settings.yaml
      graphrag-ray estimate ./documents --root ./trial --config settings.yaml
    """
    from graphrag_ray.cli import console
    from graphrag_ray.cli.print_estimate import print_forecast
    from graphrag_ray.indexing.estimate import READ_BYTES, SAMPLE_CHUNKS
    from graphrag_ray.indexing.estimate import estimate as forecast_of
    from graphrag_ray.indexing.forecast.assumptions import parse_assumptions
    from graphrag_ray.store.snapshots import latest

    given = parse_assumptions(assume)
    said, url = None, None
    if root is not None and config is None:
        store = open_root(root, config, overrides)
        with naming_root(root):
            parent = latest(store)
        said, url = (parent.settings if parent else None), store.url
    settings = settings_from(config, overrides, short, said, url)
    found = forecast_of(
        input_of(input_url, settings),
        settings,
        root=root,
        sample=sample or SAMPLE_CHUNKS,
        given=given,
        read_bytes=None if full else READ_BYTES,
        new_prompts=new_prompts,
    )
    if as_json:
        click.echo(console.as_json(found.as_dict()))
    else:
        print_forecast(found, root)
