"""`graphrag-ray estimate`: predict calls, tokens, cost and time of indexing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphrag_ray.base.wording import price_hint
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import Given

if TYPE_CHECKING:
    from graphrag_ray.indexing.forecast.forecast import Forecast


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@options.settings_for_estimate
@options.build
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Chunks to extract with the offline engine. Default: 1000.",
)
@click.option("--full", is_flag=True, help="Read all of INPUT, even if it is larger than 512 MB.")
@click.option(
    "--new-prompts", is_flag=True, help="Assume `index --new-prompts` instead of the index's prompts."
)
@click.option("--assume", multiple=True, metavar="NAME=VALUE", help="Replace one of the printed assumptions.")
@options.as_json
def estimate(
    given: Given,
    input_url: str | None,
    sample: int | None,
    full: bool,
    new_prompts: bool,
    assume: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict calls, tokens, cost and time of each stage of indexing INPUT. No model is called, nothing is
    written.

    The chunks to extract from are counted exactly. The rest is modelled: names from a sample that the offline
    engine reads, lengths from assumptions. For a closer estimate, index a few documents of INPUT with the
    same settings, and pass that index as --root: its actual calls replace the assumptions.

    \b
    Examples:
      graphrag-ray estimate ./documents --model gpt-4o-mini --rpm 10000 --tpm 2000000
      graphrag-ray estimate ./documents --config settings.yaml --assume glean_yes=0.8
      graphrag-ray index ./some-documents --root ./trial --config settings.yaml
      graphrag-ray estimate ./documents --root ./trial --config settings.yaml
    """
    from graphrag_ray.indexing.estimate import READ_BYTES, SAMPLE_CHUNKS
    from graphrag_ray.indexing.estimate import estimate as forecast_of
    from graphrag_ray.indexing.forecast.forecast import parse_assumptions
    from graphrag_ray.store.snapshots import read_latest

    assumptions = parse_assumptions(assume)
    stored, url = None, None
    if given.root is not None and given.config is None:
        store = given.store()
        with options.naming_root(given.root):
            parent = read_latest(store)
        stored, url = (parent.settings if parent else None), store.url
    settings = given.settings(stored, url)
    forecast = forecast_of(
        options.input_of(input_url, settings),
        settings,
        root=given.root,
        sample=sample or SAMPLE_CHUNKS,
        assumptions=assumptions,
        read_bytes=None if full else READ_BYTES,
        new_prompts=new_prompts,
    )
    if as_json:
        console.print_json(forecast.as_dict())
    else:
        _print_forecast(forecast, given.root)


def _print_forecast(forecast: Forecast, root: str | None) -> None:
    """Print the stages, what is left of an unfinished index, the assumptions and the notes."""
    out, corpus = console.console_of(), forecast.corpus
    about, read = ("", "") if corpus.read_share == 1 else ("about ", " read")
    out.print(
        f"{corpus.files:,} files, {about}{corpus.documents:,} documents{read}, {about}{corpus.chunks:,.0f} "
        f"chunks, {about}{_count(corpus.chunk_tokens)} tokens of text"
    )
    graph = forecast.graph
    modelled = ", ".join(f"{_count(graph[k])} {k}" for k in ("entities", "relationships", "communities"))
    out.print(f"Modelled: {modelled}\n")
    rows = []
    for stage in forecast.stages:
        v, bound = stage.volume, stage.bound
        counts = map(_count, (v.calls, v.prompt_tokens, v.completion_tokens))
        remarks = (f"by {bound.limited_by}" if bound and v.calls else "", v.exact)
        time = _time(bound.seconds if bound else None)
        cells = [*counts, _money(stage.cost_usd), time, ", ".join(filter(None, remarks))]
        rows.append([v.stage, stage.model_id, *cells])
    totals, left = forecast.totals, forecast.left
    if totals["seconds"] is not None:  # Without the time of the calls, that of the rest says little.
        rows.append(["no calls", *[""] * 5, _time(forecast.overhead_s), "starting Ray, reading, tables"])
    names = ("calls", "prompt_tokens", "completion_tokens")
    sums = [*(_count(totals[name]) for name in names), _money(totals["cost_usd"]), _time(totals["seconds"])]
    columns = ("stage", "model", "calls", "prompt", "completion", "cost", "time", "")
    console.print_table(columns, rows, left=2, total=["total", "", *sums, ""])
    if unpriced := next((s for s in forecast.stages if s.cost_usd is None), None):
        hint = price_hint(unpriced.volume.model)
        out.print(f"The price of {unpriced.model_id} is unknown. To see the cost, use {hint}")
    if root is not None and left["calls"] < totals["calls"]:
        out.print(
            f"\nRemaining for the index at {root}: {_count(left['calls'])} calls, "
            f"{_count(left['prompt_tokens'])} prompt and {_count(left['completion_tokens'])} completion "
            f"tokens, {_money(left['cost_usd'])}"
        )
    out.print("\nAssumptions (change one with --assume name=value)")
    assumed = (
        (a.name, f"{a.value:,.0f}" if a.value >= 100 else f"{a.value:.3g}", a.source)
        for a in forecast.assumptions
    )
    console.print_table(("", "", ""), assumed, show_header=False)
    for note in forecast.notes:
        out.print(f"  {note}", style="dim")


def _count(value: float) -> str:
    """A count, rounded to millions if it is large."""
    return f"{value:,.0f}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else console.duration(seconds)


def _money(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return "$0" if usd == 0 else f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"
