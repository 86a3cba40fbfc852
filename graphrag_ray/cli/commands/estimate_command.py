"""`graphrag-ray estimate`: predict calls, tokens, cost and time of indexing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphrag_ray.base.wording import price_hint
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.indexing.forecast.forecast import Forecast


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@options.settings_for_estimate
@options.build
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Number of chunks to sample with the offline engine. Default: 1000.",
)
@click.option("--full", is_flag=True, help="Read all of INPUT, even if it exceeds 512 MB.")
@click.option("--new-prompts", is_flag=True, help="Assume that you will run `index --new-prompts`.")
@click.option(
    "--assume",
    multiple=True,
    metavar="NAME=VALUE",
    help="Override one of the printed assumptions; repeatable.",
)
@options.as_json
def estimate(
    opts: IndexOptions,
    input_url: str | None,
    sample: int | None,
    full: bool,
    new_prompts: bool,
    assume: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict calls, tokens, cost and time of each stage of indexing INPUT. No model is called and nothing is
    written.

    Chunks are counted exactly. Everything else is modelled: the number of names from a sample that the
    offline engine reads, the length of replies from assumptions. For a better estimate, index a few documents
    of INPUT with the same settings and pass that index as --root: its actual calls then replace the
    assumptions.

    \b
    Examples:
      graphrag-ray estimate ./documents --model gpt-4o-mini --rpm 10000 --tpm 2000000
      graphrag-ray estimate ./documents --config settings.yaml --assume glean_yes=0.8
      graphrag-ray index ./some-documents --root ./trial --config settings.yaml
      graphrag-ray estimate ./documents --root ./trial --config settings.yaml
    """
    from graphrag_ray.indexing.estimate import READ_BYTES, SAMPLE_CHUNKS
    from graphrag_ray.indexing.estimate import estimate as make_forecast
    from graphrag_ray.indexing.forecast.forecast import parse_assumptions
    from graphrag_ray.store.snapshots import read_latest

    assumptions = parse_assumptions(assume)
    stored, url = None, None
    if opts.root is not None and opts.config is None:
        store = opts.store()
        with options.naming_root(opts.root):
            parent = read_latest(store)
        stored, url = (parent.settings if parent else None), store.url
    settings = opts.settings(stored, url, new_prompts)
    forecast = make_forecast(
        options.input_of(input_url, settings),
        settings,
        root=opts.root,
        sample=sample or SAMPLE_CHUNKS,
        assumptions=assumptions,
        read_bytes=None if full else READ_BYTES,
        new_prompts=new_prompts,
    )
    if as_json:
        console.print_json(forecast.as_dict())
    else:
        _print_forecast(forecast, settings, opts.root)


def _print_forecast(forecast: Forecast, settings: Settings, root: str | None) -> None:
    """Print the stages, the remaining work for an unfinished index, the assumptions and the notes."""
    out, corpus = console.make_console(), forecast.corpus
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
        remarks = (f"limited by {bound.limited_by}" if bound and v.calls else "", v.exact)
        time = _time(bound.seconds if bound else None)
        cells = [*counts, console.format_usd(stage.cost_usd), time, ", ".join(filter(None, remarks))]
        rows.append([v.stage, stage.model_id, *cells])
    totals, left = forecast.totals, forecast.left
    if totals["seconds"] is not None:  # The overhead alone says little.
        rows.append(["no calls", *[""] * 5, _time(forecast.overhead_s), "starting Ray, reading, tables"])
    names = ("calls", "prompt_tokens", "completion_tokens")
    sums = [
        *(_count(totals[name]) for name in names),
        console.format_usd(totals["cost_usd"]),
        _time(totals["seconds"]),
    ]
    columns = ("stage", "model", "calls", "prompt", "completion", "cost", "time", "")
    console.print_table(columns, rows, left=2, total=["total", "", *sums, ""])
    if unpriced := next((s for s in forecast.stages if s.cost_usd is None), None):
        hint = price_hint(unpriced.volume.model)
        out.print(f"The price of {unpriced.model_id} is unknown. To see the cost, use {hint}")
    if root is not None and left["calls"] < totals["calls"]:
        out.print(
            f"\nRemaining for the index at {root}: {_count(left['calls'])} calls, "
            f"{_count(left['prompt_tokens'])} prompt and {_count(left['completion_tokens'])} completion "
            f"tokens, {console.format_usd(left['cost_usd'])}"
        )
    out.print("\nAssumptions (override with --assume NAME=VALUE)")
    assumed = (
        (a.name, f"{a.value:,.0f}" if a.value >= 100 else f"{a.value:.3g}", a.source)
        for a in forecast.assumptions
    )
    console.print_table(("", "", ""), assumed, show_header=False)
    for note in forecast.notes:
        out.print(f"  {note}", style="dim")


def _count(value: float) -> str:
    """Format a count, in millions if it is large."""
    return f"{value:,.0f}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else console.format_duration(seconds)
