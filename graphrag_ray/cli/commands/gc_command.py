"""`graphrag-ray gc`: remove what no kept snapshot needs."""

from __future__ import annotations

import re
from typing import Any

import click

from graphrag_ray.cli.options import json_option, naming_root, open_root, reach_options
from graphrag_ray.cli.program import Command, root_option

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Age(click.ParamType[float]):
    """A time span: 90s, 15m, 1h, 7d, 2w, or 0; becomes seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])|0", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a time such as 90s, 15m, 1h, 7d, 2w or 0", param, ctx)
        return float(match.group(1)) * _UNITS[match.group(2)] if match.group(1) else 0.0


@click.command(cls=Command)
@root_option
@reach_options
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the newest N snapshots; default: 3, and with --purge all that do not hold the document.",
)
@click.option("--older-than", type=Age(), default="0", metavar="AGE", help="Keep younger snapshots, too.")
@click.option(
    "--grace",
    type=Age(),
    default="1h",
    show_default=True,
    metavar="AGE",
    help="How long whoever reads a removed snapshot may go on; 0: not at all.",
)
@click.option("--damaged", is_flag=True, help="Also remove damaged parts that were set aside.")
@click.option(
    "--journal",
    is_flag=True,
    help="Also remove replies that the newest snapshot does not use: of documents, prompts and models that "
    "are no more. They were paid for, and are paid for again where they are wanted again.",
)
@click.option(
    "--purge",
    multiple=True,
    metavar="DOCUMENT",
    help="Remove every trace of a document, named by its path below INPUT, or of those a glob names. Implies "
    "--journal, --damaged and no grace. What is outside the index stays (see --also).",
)
@click.option(
    "--also",
    multiple=True,
    metavar="DIR",
    help="Search a folder outside the index for text, ids and names of the purged documents, and name the "
    "files; may be repeated.",
)
@click.option("--delete", is_flag=True, help="Do it. Without this nothing is removed, only told.")
@json_option
def gc(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    keep: int | None,
    older_than: float,
    grace: float,
    damaged: bool,
    journal: bool,
    purge: tuple[str, ...],
    also: tuple[str, ...],
    delete: bool,
    as_json: bool,
) -> None:
    """Remove old snapshots and what nothing needs any more. Without --delete it only tells what would go.

    A snapshot that is removed cannot be opened any more, but whoever reads it may go on for the grace
    period: what it held goes with the first `gc --delete` after that. What the newest snapshot needs
    never goes, nor do replies of models (see --journal).

    A document is purged after it was deleted from INPUT and `index` was run. Snapshots that hold it go,
    and all replies that the newest snapshot does not use, since some may quote it. A purge does not reach
    evaluation folders and their pages, exports and what was made from them, caches of replies (--cache),
    answers of batches, saved output, caches of other machines, and old versions of objects where storage
    keeps them. Before you purge, --also DIR tells which files of such a folder hold text of the document.

    \b
    Examples:
      graphrag-ray gc --root ./my-index
      graphrag-ray gc --root ./my-index --keep 1 --older-than 7d --delete
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --also ./evaluation --also ./replies
      graphrag-ray gc --root ./my-index --purge letters/1987.txt --delete
    """
    from graphrag_ray.cli import console
    from graphrag_ray.cli.print_gc import as_dict, print_collected
    from graphrag_ray.indexing.purge import collect
    from graphrag_ray.store.gc import Options
    from graphrag_ray.store.snapshots import open_latest

    store = open_root(root, config, overrides)
    with naming_root(root):
        open_latest(store)
    options = Options(keep=keep, older_than_s=older_than, grace_s=grace, damaged=damaged)
    found = collect(store, options, purge=purge, also=also, journal=journal, delete=delete)
    if as_json:
        click.echo(console.as_json(as_dict(found)))
    else:
        print_collected(found)
