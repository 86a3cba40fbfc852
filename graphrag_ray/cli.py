"""The command line: `graphrag-ray init | estimate | index | query | status | failures`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.errors import UsageError
from graphrag_ray.settings import Settings
from graphrag_ray.terminal import console
from graphrag_ray.terminal.options import (
    Commands,
    json_option,
    naming_root,
    root_option,
    settings_from,
    settings_options,
)
from graphrag_ray.terminal.progress import Observer

if TYPE_CHECKING:
    from graphrag_ray.store.snapshots import Manifest

FAILED_ITEMS = 3
"""Exit code: done, but some items failed."""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes: 0 done; 2 wrong usage or settings; 3 done, but with failed items (see `failures`);
            4 stopped by a budget; 1 anything else.""",
)
@click.version_option(package_name="graphrag-ray")
def main() -> None:
    """A knowledge graph of your documents, and answers about all of them.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray query "What are the main themes?" --root ./my-index
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


@main.command()
@click.argument("input_url", metavar="INPUT")
@root_option
@settings_options
@click.option("--add", is_flag=True, help="Keep documents that INPUT does not hold.")
@click.option(
    "--allow-deletes",
    is_flag=True,
    help="Let documents go that INPUT no longer holds, or be replaced by those of another INPUT.",
)
@click.option("--address", metavar="ADDRESS", help="A Ray cluster; without it, the one of this machine.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@json_option
def index(
    input_url: str,
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    add: bool,
    allow_deletes: bool,
    address: str | None,
    quiet: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Index INPUT: a file, folder, glob or URL with .txt, .md, .html, .jsonl, .csv or .parquet files.

    Run it again to continue after an interruption, to try failed items again, or to bring the index up
    to date: what was paid for is never paid for twice.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray index "s3://bucket/docs/*.jsonl" --root s3://bucket/index --config settings.yaml
      graphrag-ray index ./documents --root ./my-index --model gpt-4o-mini --rpm 10000 --tpm 2000000
    """
    from graphrag_ray.build import base_of, build_index
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import latest

    with naming_root(root):
        parent = latest(Store(root))
    base = base_of(parent) if parent and config is None else None
    settings = settings_from(config, overrides, short, base)
    observer = Observer(quiet=quiet or as_json)
    if parent:
        _tell_settings(observer, parent, settings, config)
    done = build_index(
        input_url,
        root,
        settings=settings,
        observer=observer,
        add=add,
        allow_deletes=allow_deletes,
        address=address,
    )
    if as_json:
        click.echo(console.as_json(console.indexed_json(done)))
    elif not quiet:
        console.print_indexed(done, root)
    if done.failed:
        if quiet and not as_json:
            click.echo(f"graphrag-ray: {console.failed_line(done, root)}", err=True)
        sys.exit(FAILED_ITEMS)


def _tell_settings(observer: Observer, parent: Manifest, settings: Settings, config: str | None) -> None:
    """Whose settings these are, and where a model's work is about to be replaced by the offline engine's."""
    if config is None:
        observer.note(f"Settings of snapshot {parent.number} (--config or --set change them).")
    paid_for = parent.settings.get("models", {}).get("default", {}).get("model")
    if paid_for and settings.model(settings.model_name("extract")).provider == "offline":
        observer.note(
            f"Snapshot {parent.number} was written with {paid_for}; these settings name no model, so the "
            "offline engine writes it anew. What the model answered is kept for another run with it."
        )


@main.command()
@click.argument("question")
@root_option
@settings_options
@click.option(
    "--level",
    metavar="C0..Cn",
    help="Level of the communities; default: the coarsest level with enough reports to fill a context.",
)
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--sources", is_flag=True, help="Show the entities, relationships and text under the answer.")
@json_option
def query(
    question: str,
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    level: str | None,
    snapshot: int | None,
    sources: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Answer QUESTION from the index: all reports of one level are read, and the answer cites them.

    \b
    Examples:
      graphrag-ray query "What are the main themes?" --root ./my-index
      graphrag-ray query "Who opposed the harbour?" --root ./my-index --level C1 --sources
    """
    from graphrag_ray.ask import open_index
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import open_latest

    with naming_root(root):
        manifest = open_latest(Store(root), snapshot)
    settings = settings_from(config, overrides, short, manifest.settings if config is None else None)
    opened = open_index(root, snapshot=snapshot, settings=settings)
    answer = opened.ask(question, level)
    found = opened.sources(answer.references) if sources or as_json else []
    if as_json:
        click.echo(console.as_json(console.answer_json(answer, found, opened.manifest.number)))
    else:
        console.print_answer(answer, opened, found if sources else None)
    if answer.failed_parts:
        sys.exit(FAILED_ITEMS)


@main.command()
@root_option
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@json_option
def status(root: str, snapshot: int | None, as_json: bool) -> None:
    """What the index holds, what it cost, and who is working on it.

    \b
    Example:
      graphrag-ray status --root ./my-index
    """
    from graphrag_ray.status import status_of
    from graphrag_ray.store.files import Store

    with naming_root(root):
        found = status_of(Store(root), snapshot)
    if as_json:
        click.echo(console.as_json(found))
    else:
        console.print_status(found)


@main.command()
@root_option
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@json_option
def failures(root: str, snapshot: int | None, as_json: bool) -> None:
    """Every item of the last run without a result: what failed, in which document, and why.

    \b
    Example:
      graphrag-ray failures --root ./my-index --json
    """
    from graphrag_ray.ask import open_index

    with naming_root(root):
        opened = open_index(root, snapshot=snapshot)
    rows = opened.table("failures").to_pylist()
    if as_json:
        click.echo(console.as_json(rows))
    else:
        console.print_failures(rows)


@main.command()
@click.argument("input_url", metavar="INPUT")
@settings_options
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
@click.option("--assume", multiple=True, metavar="NAME=VALUE", help="Replace one of the assumptions printed.")
@json_option
def estimate(
    input_url: str,
    config: str | None,
    overrides: tuple[str, ...],
    root: str | None,
    sample: int | None,
    full: bool,
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
    from graphrag_ray.build import base_of
    from graphrag_ray.estimate import READ_BYTES, SAMPLE_CHUNKS
    from graphrag_ray.estimate import estimate as forecast_of
    from graphrag_ray.forecast.assumptions import parse_assumptions
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.snapshots import latest
    from graphrag_ray.terminal.forecast import print_forecast

    given = parse_assumptions(assume)
    base = None
    if root is not None and config is None:
        with naming_root(root):
            parent = latest(Store(root))
        base = base_of(parent) if parent else None
    settings = settings_from(config, overrides, short, base)
    found = forecast_of(
        input_url,
        settings,
        root=root,
        sample=sample or SAMPLE_CHUNKS,
        given=given,
        read_bytes=None if full else READ_BYTES,
    )
    if as_json:
        click.echo(console.as_json(found.as_dict()))
    else:
        print_forecast(found, root)


@main.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def init(directory: Path, force: bool) -> None:
    """Write settings.yaml and editable copies of all prompts into DIRECTORY.

    \b
    Example:
      graphrag-ray init my-project
      graphrag-ray index ./documents --root ./my-index --config my-project/settings.yaml
    """
    from graphrag_ray.prompts import PLACEHOLDERS, bundled_prompts

    template = (Path(__file__).parent / "settings.yaml").read_text("utf-8")
    files = {directory / "settings.yaml": template}
    for name in PLACEHOLDERS:
        files[directory / "prompts" / f"{name}.txt"] = (bundled_prompts() / f"{name}.txt").read_text("utf-8")
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise UsageError(f"{there[0]} exists already; use --force to overwrite, or another folder")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    click.echo(
        f"wrote {directory / 'settings.yaml'} and {len(PLACEHOLDERS)} prompts in {directory / 'prompts'}"
    )


if __name__ == "__main__":
    main()
