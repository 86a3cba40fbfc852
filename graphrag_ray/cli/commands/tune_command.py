"""`graphrag-ray tune`: fit settings and prompts to a corpus."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import collapse_whitespace, escape_control, plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.evaluate.tuning import PlannedCalls, TuningResult, TuningSample


@click.command(cls=Command)
@click.argument("input_url", metavar="[INPUT]", required=False)
@options.settings_without_index
@click.option(
    "--selection",
    type=click.Choice(["random", "diverse", "top"]),
    default="diverse",
    show_default=True,
    help="Chunks to read: random ones, those that cover the variety of the corpus, or the most typical ones.",
)
@click.option(
    "--limit", type=int, default=15, show_default=True, help="Number of chunks that the model reads."
)
@click.option(
    "--sample",
    type=int,
    default=300,
    show_default=True,
    metavar="N",
    help="diverse, top: number of random chunks to choose from. They are embedded on this machine.",
)
@click.option(
    "--holdout", type=int, default=5, show_default=True, metavar="N", help="Chunks kept for the comparison."
)
@click.option("--domain", metavar="TEXT", help="The domain. Default: the model decides.")
@click.option("--language", metavar="NAME", help="Language of the new texts and of the index's output.")
@click.option(
    "--entity-types",
    metavar="A,B",
    help='Entity types to use: "drug, trial" or "{drug: a substance, trial: …}". The model defines them.',
)
@click.option("--schema", is_flag=True, help="Also draft a schema of entities and relations: schema.yaml.")
@click.option(
    "--output",
    metavar="FOLDER",
    help="Write there. Default: edit the file of --config in place; without --config: tuned.",
)
@click.option("--yes", is_flag=True, help="Call the model and write the files without asking.")
@click.option("--dry-run", is_flag=True, help="Show the sample and the expected cost; call no model.")
@click.option("-q", "--quiet", is_flag=True, help="Print only results and errors.")
@options.as_json
def tune(
    opts: IndexOptions,
    input_url: str | None,
    entity_types: str | None,
    output: str | None,
    yes: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **tuning_options: Any,
) -> None:
    """Fit settings and prompts to the documents of INPUT.

    A model reads a sample of the chunks. It proposes entity types with definitions, the author and the
    rating of reports, a description of the corpus and its claims, and writes examples of extractions from
    your own text. Held-out chunks are then extracted with the old and the new settings, and compared.

    Shows the expected cost before the first call, and a diff of your settings file and prompts before it
    writes them. Replies are kept in the folder tuning.work: repeating the command costs nothing.

    \b
    Examples:
      graphrag-ray tune ./documents --config my-project/settings.yaml
      graphrag-ray tune ./documents --config my-project/settings.yaml --dry-run
      graphrag-ray tune ./documents --model gpt-4o --output ./tuned
      graphrag-ray tune ./documents --config settings.yaml --entity-types "drug, disease, trial" --schema
      graphrag-ray tune ./documents --config settings.yaml --selection top --limit 30 --yes
    """
    from graphrag_ray.base.settings_file import load_settings
    from graphrag_ray.cli.progress import default_observer
    from graphrag_ray.evaluate import tuning
    from graphrag_ray.evaluate.tuned_files import TuningFiles, diff

    settings = opts.settings()
    input_url = options.input_of(input_url, settings)
    if entity_types:
        decided = load_settings(None, [f"extraction.entity_types={entity_types}"])
        tuning_options["entity_types"] = decided.extraction.entity_types
    chosen = tuning.TuningOptions(**tuning_options)
    target = TuningFiles.plan(opts.config, output, chosen.schema)
    if dry_run:
        _print_plan(*tuning.plan_tuning(input_url, settings, chosen), settings)
        return
    asks = not yes and not as_json and sys.stdin.isatty() and sys.stderr.isatty()
    if not (asks or yes or output):
        raise UsageError(
            "Without a terminal, pass --output to write to another folder, or --yes to confirm the cost and "
            "the new files. No model has been called."
        )
    observer = default_observer(quiet=quiet or as_json)

    def agree(sample: TuningSample, planned: Sequence[PlannedCalls]) -> None:
        if not (quiet or as_json):
            _print_plan(sample, planned, settings)
        if asks and not click.confirm("Call the model?", default=True, err=True):
            raise UsageError("No model was called.")

    cache = target.reply_cache()
    result = tuning.tune_corpus(input_url, settings, chosen, cache, agree, observer.message)
    files = target.contents(result)
    changes = diff(files)
    if as_json:
        usage = {"usage": list(result.accounts.rows())}
        console.print_json({**result.report(), **usage, "files": list(map(str, files)), "diff": changes})
    else:
        _print_result(result, settings)
        click.echo(f"\n{escape_control(changes) or 'The settings and prompts do not change.'}\n")
    if (
        asks
        and changes
        and not click.confirm(f"Write these files to {target.folder}?", default=True, err=True)
    ):
        raise UsageError("Nothing was written. The replies are kept, so repeating the command costs nothing.")
    target.write(files, result)
    if not as_json:
        _print_written(list(map(str, files)), str(target.folder), input_url, opts)


def _print_plan(sample: TuningSample, planned: Sequence[PlannedCalls], settings: Settings) -> None:
    """Print the sample and the expected calls."""
    from graphrag_ray.evaluate.tuning import PlannedCalls

    out = console.make_console()
    out.print(
        f"{plural(len(sample.chunks), 'chunk')} to read, {len(sample.held_out)} held out, of "
        f"{sample.corpus.chunks:,.0f} in {plural(sample.corpus.documents, 'document')}"
    )
    for chunk in sample.chunks:
        out.print(f"  {collapse_whitespace(chunk.text[:400], 90)}", style="dim")
    costs = [p.cost_usd for p in planned]
    usd = None if None in costs else sum(c for c in costs if c is not None)
    calls, prompt_tokens, completion_tokens = (
        sum(n) for n in list(zip(*map(astuple, planned), strict=True))[2:5]
    )
    total = PlannedCalls("total", "", calls, prompt_tokens, completion_tokens, usd)
    first, *others = (
        [p.purpose, p.stage, *(f"{n:,}" for n in astuple(p)[2:5]), console.format_usd(p.cost_usd)]
        for p in (total, *planned)
    )
    columns = ("expected calls", "stage", "calls", "prompt tokens", "reply tokens", "cost")
    console.print_table(columns, others, left=2, total=first)
    if usd is None:
        stage = next(p.stage for p in planned if p.cost_usd is None)
        out.print(console.format_cost(None, settings.model_name(stage)))


def _print_result(result: TuningResult, settings: Settings) -> None:
    """Print the profile, the comparison and what was spent."""
    out, profile = console.make_console(), result.profile
    out.print(
        f"\nDomain: {profile.domain or 'unknown'}   Languages: {', '.join(profile.languages) or 'unknown'}"
    )
    if result.before and result.after:
        out.print(f"\nExtraction of {plural(result.before.chunks, 'held-out chunk')}:")
        names = [f.name for f in fields(result.before) if f.name != "chunks"]
        values = [[_value(getattr(m, name)) for m in (result.before, result.after)] for name in names]
        rows = [[name.replace("_", " "), *row] for name, row in zip(names, values, strict=True)]
        console.print_table(["", "before", "after"], rows)
    for note in result.notes:
        out.print(f"note: {note}", style="dim")
    total = result.accounts.total
    cost = console.format_cost(total.cost_usd, settings.model_name(result.accounts.unpriced_stage))
    spent = f"{plural(total.calls, 'call')}, {total.total_tokens:,} tokens, {cost}"
    out.print(f"[{spent if total.calls else 'no model calls, all replies were cached'}]", style="dim")


def _value(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _print_written(paths: Sequence[str], folder: str, input_url: str, opts: IndexOptions) -> None:
    """Print what was written, and the command that builds a trial index with it."""
    click.echo(f"Wrote {', '.join(paths)} and a report to {folder}")
    if any(path.endswith("schema.yaml") for path in paths):
        click.echo("schema.yaml is a draft. Review it before you use it.")
    if paths[0].endswith("settings.tuned.yaml"):
        click.echo("Your settings file is too unusual to edit. Copy the keys of settings.tuned.yaml into it.")
    else:
        command = ["graphrag-ray", "index", input_url, "--config", paths[0], "--root", "./trial"]
        for name, value in opts.short.items():
            command += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        click.echo(f"Try them: {shlex.join(command)}")
