"""`graphrag-ray estimate`: what an index will take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphrag_ray.base.wording import price_setting
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import Given, build_option, input_of, json_option, naming_root, settings_options

if TYPE_CHECKING:
    from graphrag_ray.indexing.forecast.forecast import Forecast


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
    given: Given,
    input_url: str | None,
    sample: int | None,
    full: bool,
    new_prompts: bool,
    assume: tuple[str, ...],
    as_json: bool,
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
    from graphrag_ray.indexing.estimate import READ_BYTES, SAMPLE_CHUNKS
    from graphrag_ray.indexing.estimate import estimate as forecast_of
    from graphrag_ray.indexing.forecast.forecast import parse_assumptions
    from graphrag_ray.store.snapshots import latest

    assumed = parse_assumptions(assume)
    said, url = None, None
    if given.root is not None and given.config is None:
        store = given.store()
        with naming_root(given.root):
            parent = latest(store)
        said, url = (parent.settings if parent else None), store.url
    settings = given.settings(said, url)
    found = forecast_of(
        input_of(input_url, settings),
        settings,
        root=given.root,
        sample=sample or SAMPLE_CHUNKS,
        given=assumed,
        read_bytes=None if full else READ_BYTES,
        new_prompts=new_prompts,
    )
    if as_json:
        console.print_json(found.as_dict())
    else:
        _print_forecast(found, given.root)


def _print_forecast(found: Forecast, root: str | None) -> None:
    """The table of stages, what is left of a partly done index, the assumptions, and the notes."""
    out = console.console_of()
    corpus = found.corpus
    about = "" if corpus.read_share == 1 else "some "
    out.print(
        f"{corpus.files:,} files, {about}{corpus.documents:,} documents"
        f"{' read' if about else ''}, {about}{corpus.chunks:,.0f} chunks, "
        f"{about}{_count(corpus.chunk_tokens)} tokens of text"
    )
    shown = ", ".join(f"{_count(found.graph[k])} {k}" for k in ("entities", "relationships", "communities"))
    out.print(f"Modelled: {shown}\n")
    rows = []
    for stage in found.stages:
        v, bound = stage.volume, stage.bound
        counts = map(_count, (v.calls, v.prompt_tokens, v.completion_tokens))
        remarks = (f"by {bound.by}" if bound and v.calls else "", v.exact)
        time = _time(bound.seconds if bound else None)
        cells = [*counts, _money(stage.cost_usd), time, ", ".join(filter(None, remarks))]
        rows.append([v.stage, stage.model_id, *cells])
    totals, left = found.totals, found.left
    if totals["seconds"] is not None:  # where no call's time is known, neither is what it adds to
        rows.append(["no calls", *[""] * 5, _time(found.own_s), "Ray's start, reading, tables"])
    names = ("calls", "prompt_tokens", "completion_tokens")
    sums = [*(_count(totals[name]) for name in names), _money(totals["cost_usd"]), _time(totals["seconds"])]
    columns = ("stage", "model", "calls", "prompt", "completion", "cost", "time", "")
    console.print_table(columns, rows, left=2, total=["total", "", *sums, ""])
    if totals["cost_usd"] is None:
        out.print(f"What it costs is known with {price_setting()}")
    if root is not None and left["calls"] < totals["calls"]:
        out.print(
            f"\nLeft to do for the index at {root}: {_count(left['calls'])} calls, "
            f"{_count(left['prompt_tokens'])} prompt and {_count(left['completion_tokens'])} completion "
            f"tokens, {_money(left['cost_usd'])}"
        )
    out.print("\nAssumptions (change one with --assume name=value)")
    assumed = (
        (a.name, f"{a.value:,.0f}" if a.value >= 100 else f"{a.value:.3g}", a.source)
        for a in found.assumptions
    )
    console.print_table(("", "", ""), assumed, show_header=False)
    for note in found.notes:
        out.print(f"  {note}", style="dim")


def _count(value: float) -> str:
    """Whole, and not more exact than a forecast is once it is large."""
    return f"{value:,.0f}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else console.duration(seconds)


def _money(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return "$0" if usd == 0 else f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"
