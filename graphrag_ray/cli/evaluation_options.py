"""Options that the commands of `evaluate` share, and what they open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli.options import naming_root, open_root, settings_from

if TYPE_CHECKING:
    from graphrag_ray.evaluate.evaluation_run import EvaluationRun
    from graphrag_ray.query.ask import Index

NEEDED = ("scipy", "rapidfuzz", "nltk", "pandas", "jinja2")
DEFAULT_OUT = "evaluation"


def condition_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--condition",
        "conditions",
        multiple=True,
        metavar="NAME=WAY",
        help="A way to answer; repeatable. WAY is METHOD[:LEVEL][,setting=value…], or a file of answers: "
        ".csv, .jsonl, .parquet.",
    )(f)


def questions_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--questions",
        "questions_url",
        metavar="FILE",
        required=True,
        help="A .csv, .jsonl or .parquet file with a column question (and question_id).",
    )(f)


def judging_options(f: Callable[..., Any]) -> Callable[..., Any]:
    from graphrag_ray.evaluate import CRITERIA, REPLICATES

    for option in (
        click.option(
            "--claims",
            "with_claims",
            is_flag=True,
            help="Count the factual claims of the answers, too.",
        ),
        click.option(
            "--replicates",
            type=int,
            default=REPLICATES,
            show_default=True,
            help="Verdicts on each pair of answers, half of them with the answers swapped.",
        ),
        click.option(
            "--criterion",
            "criteria",
            multiple=True,
            default=CRITERIA,
            metavar="NAME",
            help=f"What is judged; repeatable. Default: {', '.join(CRITERIA)}. Others: overall, and text "
            "files in the folder `criteria` of prompts_dir.",
        ),
    ):
        f = option(f)
    return f


def running_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """Where results go, and where the work is done."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Print nothing but results and errors."),
        click.option("--address", metavar="ADDRESS", help="Ask the models on this Ray cluster."),
        click.option("--ray", is_flag=True, help="Ask the models on Ray instead of in this process."),
        click.option(
            "--out",
            metavar="URL",
            default=DEFAULT_OUT,
            show_default=True,
            help="The folder of results, and of all replies.",
        ),
    ):
        f = option(f)
    return f


def opened(root: str, config: str | None, overrides: tuple[str, ...], short: dict[str, Any]) -> Index:
    """The newest snapshot, with the settings of the command. Raises UsageError, SettingsError, StoreError."""
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        told = f"`evaluate` needs {', '.join(lacking)}"
        raise UsageError(f"{told}: pip install 'graphrag-ray[evaluate]'")
    from graphrag_ray import open_index
    from graphrag_ray.store.snapshots import open_latest

    store = open_root(root, config, overrides)
    with naming_root(root):
        manifest = open_latest(store, None)
    settings = settings_from(config, overrides, short, manifest.settings, store.url)
    return open_index(root, snapshot=manifest.number, settings=settings)


@contextmanager
def running(
    index: Index, out: str, note: str, ray: bool, address: str | None, quiet: bool
) -> Iterator[EvaluationRun]:
    from graphrag_ray.cli.progress import observer_for_people
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    observer = observer_for_people(quiet=quiet)
    with evaluation_run(index, out, note, on_ray=ray, address=address, observer=observer) as run:
        yield run
