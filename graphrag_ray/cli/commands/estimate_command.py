"""`graphrag-ray estimate`: what an index will take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.wording import price_setting
from graphrag_ray.cli import console
from graphrag_ray.cli.options import Given, build_option, input_of, json_option, naming_root, settings_options
from graphrag_ray.cli.program import Command

if TYPE_CHECKING:
    from rich.console import Console

    from graphrag_ray.indexing.forecast.forecast import Assumption, Forecast, StageForecast


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
    _print_stages(out, found)
    left = found.left
    if root is not None and left["calls"] < found.totals["calls"]:
        out.print(
            f"\nLeft to do for the index at {root}: {_count(left['calls'])} calls, "
            f"{_count(left['prompt_tokens'])} prompt and {_count(left['completion_tokens'])} completion "
            f"tokens, {_money(left['cost_usd'])}",
        )
    out.print("\nAssumptions (change one with --assume name=value)")
    rows = [(a.name, _value(a), a.source) for a in found.assumptions]
    out.print(console.table(("", "", ""), rows, show_header=False))
    for note in found.notes:
        out.print(f"  {note}", style="dim")


def _print_stages(out: Console, found: Forecast) -> None:
    rows = [(s.volume.stage, s.model_id, *_numbers(_columns(s)), _remark(s)) for s in found.stages]
    if found.totals["seconds"] is not None:  # where no call's time is known, neither is what it adds to
        own = console.duration(found.own_s)
        rows.append(("no calls", *[""] * 5, own, "Ray's start, reading, tables"))
    columns = ("stage", "model", "calls", "prompt", "completion", "cost", "time", "")
    table = console.table(columns, rows, left=2)
    table.add_row("total", "", *_numbers(found.totals), "", style="bold")
    out.print(table)
    if found.totals["cost_usd"] is None:
        out.print(f"What it costs is known with {price_setting()}")


def _columns(stage: StageForecast) -> dict[str, Any]:
    """The columns that a stage shares with the total."""
    v = stage.volume
    return {
        "calls": v.calls,
        "prompt_tokens": v.prompt_tokens,
        "completion_tokens": v.completion_tokens,
        "cost_usd": stage.cost_usd,
        "seconds": stage.bound.seconds if stage.bound else None,
    }


def _numbers(row: Mapping[str, Any]) -> list[str]:
    counts = [_count(row[c]) for c in ("calls", "prompt_tokens", "completion_tokens")]
    seconds = row["seconds"]
    return [*counts, _money(row["cost_usd"]), "unknown" if seconds is None else console.duration(seconds)]


def _remark(s: StageForecast) -> str:
    by = f"by {s.bound.by}" if s.bound and s.volume.calls else ""
    return ", ".join(filter(None, [by, s.volume.exact]))


def _count(value: float) -> str:
    """Whole, and not more exact than a forecast is once it is large."""
    return f"{value:,.0f}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def _money(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return "$0" if usd == 0 else f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"


def _value(a: Assumption) -> str:
    return f"{a.value:,.0f}" if a.value >= 100 else f"{a.value:.3g}"
