"""The command line: `graphrag-ray init | estimate | index | query | status | failures`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson

from graphrag_ray import console
from graphrag_ray.errors import GraphRagError, UsageError
from graphrag_ray.progress import Observer
from graphrag_ray.settings import Settings
from graphrag_ray.settings_file import load_settings

FAILED_ITEMS = 3
"""Exit code: done, but some items failed."""


class _Commands(click.Group):
    """Turns our errors into a message and their exit code; anything else is a bug and keeps its trace."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GraphRagError as e:
            if ctx.params.get("traceback"):
                raise
            click.echo(f"graphrag-ray: {e}", err=True)
            ctx.exit(e.exit_code)
        except KeyboardInterrupt:
            click.echo("graphrag-ray: stopped. What was answered is kept; run it again to go on.", err=True)
            ctx.exit(130)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes: 0 done; 2 wrong usage or settings; 3 done, but with failed items (see `failures`);
            4 stopped by a budget; 1 anything else.""",
)
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens, for debugging.")
@click.version_option(package_name="graphrag-ray")
def main(traceback: bool, verbose: bool) -> None:
    """A knowledge graph of your documents, and answers about all of them.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray query "What are the main themes?" --root ./my-index
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def _root(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--root", required=True, metavar="URL", help="The index: a folder, or s3://… and other fsspec URLs."
    )(f)


def _json(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(f)


def _settings_options(f: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option(
                "--config", type=click.Path(), metavar="FILE", help="Settings, as `init` writes them."
            ),
            click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override one setting."),
            click.option("--model", help="Short for models.default.model (and provider: openai)."),
            click.option("--base-url", help="Short for the address of that model's one endpoint."),
            click.option("--api-key-env", help="Short for the name of the variable that holds its key."),
            click.option("--rpm", type=float, help="Short for its requests per minute."),
            click.option("--tpm", type=float, help="Short for its tokens per minute."),
            click.option("--max-in-flight", type=int, help="Short for its bound on concurrent calls."),
        ]
    ):
        f = option(f)
    return f


def _settings(
    config: str | None,
    overrides: tuple[str, ...],
    *,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    rpm: float | None,
    tpm: float | None,
    max_in_flight: int | None,
    base: dict[str, Any] | None = None,
) -> Settings:
    short = {
        "models.default.model": model,
        "models.default.endpoints.0.base_url": base_url,
        "models.default.endpoints.0.api_key_env": api_key_env,
        "models.default.endpoints.0.requests_per_minute": rpm,
        "models.default.endpoints.0.tokens_per_minute": tpm,
        "models.default.endpoints.0.max_in_flight": max_in_flight,
    }
    # As JSON, which is YAML: a name such as "1e3" or "no" stays a string.
    given = [f"{key}={orjson.dumps(value).decode()}" for key, value in short.items() if value is not None]
    if given:
        given.insert(0, "models.default.provider=openai")
    return load_settings(config, [*given, *overrides], base)


@main.command()
@click.argument("input_url", metavar="INPUT")
@_root
@_settings_options
@click.option("--add", is_flag=True, help="Keep documents that INPUT does not hold.")
@click.option("--allow-deletes", is_flag=True, help="Let documents go that INPUT no longer holds.")
@click.option("--address", metavar="ADDRESS", help="A Ray cluster; without it, the one of this machine.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@_json
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
    settings = _settings(config, overrides, **short)
    observer = Observer(quiet=quiet or as_json)
    from graphrag_ray.distributed.cluster import connected
    from graphrag_ray.distributed.executor import RayExecutor
    from graphrag_ray.engine.gateways import Models
    from graphrag_ray.engine.spending import Spending, check_prices
    from graphrag_ray.index import index as run_index
    from graphrag_ray.prompts import load_prompts
    from graphrag_ray.steps.read import list_input
    from graphrag_ray.store.files import Store

    models = Models.of(settings)
    check_prices(settings.budget, models)
    # What is wrong with prompts and INPUT is told before Ray takes its seconds.
    load_prompts(settings.prompts_dir)
    list_input(input_url, root)
    observer.checked(settings)
    with connected(address):
        executor = RayExecutor(
            Store(root),
            models,
            settings.run.max_failed_fraction,
            settings.run.flush_s,
            settings.run.workers_per_node,
            observer.progress,
            Spending(settings.budget, time.monotonic()),
        )
        executor.start()
        with observer:
            try:
                done = run_index(
                    input_url, executor, settings, observer, add=add, allow_deletes=allow_deletes
                )
            finally:
                executor.close()
    if as_json:
        click.echo(console.as_json(console.indexed_json(done)))
    elif not quiet:
        console.print_indexed(done, root)
    if done.failed:
        sys.exit(FAILED_ITEMS)


@main.command()
@click.argument("question")
@_root
@_settings_options
@click.option("--level", metavar="C0..Cn", help="Level of the communities; default: see the README.")
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@click.option("--sources", is_flag=True, help="Show the entities, relationships and text under the answer.")
@_json
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

    built_with = dict(open_latest(Store(root), snapshot).settings) if config is None else None
    settings = _settings(config, overrides, base=built_with, **short)
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
@_root
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@_json
def status(root: str, snapshot: int | None, as_json: bool) -> None:
    """What the index holds, what it cost, and who is working on it.

    \b
    Example:
      graphrag-ray status --root ./my-index
    """
    from graphrag_ray.status import status_of
    from graphrag_ray.store.files import Store

    found = status_of(Store(root), snapshot)
    if as_json:
        click.echo(console.as_json(found))
    else:
        console.print_status(found)


@main.command()
@_root
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
@_json
def failures(root: str, snapshot: int | None, as_json: bool) -> None:
    """Every item of the last run without a result: what failed, in which document, and why.

    \b
    Example:
      graphrag-ray failures --root ./my-index --json
    """
    from graphrag_ray.ask import open_index

    rows = open_index(root, snapshot=snapshot).table("failures").to_pylist()
    if as_json:
        click.echo(console.as_json(rows))
    else:
        console.print_failures(rows)


@main.command()
@click.argument("input_url", metavar="INPUT")
@_settings_options
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
@_json
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
    from graphrag_ray import console_estimate
    from graphrag_ray.estimate import READ_BYTES, SAMPLE_CHUNKS
    from graphrag_ray.estimate import estimate as forecast_of
    from graphrag_ray.forecast.assumptions import parse_assumptions

    given = parse_assumptions(assume)
    settings = _settings(config, overrides, **short)
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
        console_estimate.print_forecast(found, root)


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
