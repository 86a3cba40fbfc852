"""`graphrag-ray resolve`: preview which names of an index stand for the same thing."""

from __future__ import annotations

import shlex
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import collapse_whitespace, escape_control, plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.indexing.resolution_preview import Preview

_MAX_EVIDENCE = 100
_FORMATS = (".csv", ".json", ".yaml", ".yml")


@click.command(cls=Command)
@options.settings
@click.option(
    "--preview", is_flag=True, help="The default: show what would change, without changing the index."
)
@click.option(
    "--mode",
    type=click.Choice(["rules", "model"]),
    help="rules: apply rules. model: also ask the model about similar names. Default: the mode of the index.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write all proposals to a .csv or .json file, or to a .yaml file to edit and use as an aliases "
    "file.",
)
@click.option(
    "--limit", type=click.IntRange(0), default=30, metavar="N", help="Entities to print; 0: all. Default: 30."
)
@click.option("--yes", is_flag=True, help="Accept the cost of --mode model without asking.")
@options.address
@options.as_json
def resolve(
    opts: IndexOptions,
    preview: bool,
    mode: str | None,
    output: str | None,
    limit: int,
    yes: bool,
    address: str | None,
    as_json: bool,
) -> None:
    """Show which names of an index stand for the same thing, which names stand for several things, and why.
    The index is not changed.

    To apply the proposals, run `index` with the same mode. To correct them, write a .yaml file, edit it, and
    pass it to `index` with `--set names.aliases_file=FILE`. Replies of a model are kept, so `index` does not
    pay for them again.

    \b
    Examples:
      graphrag-ray resolve --preview --root ./my-index
      graphrag-ray resolve --preview --root ./my-index --mode model --output names.csv
      graphrag-ray resolve --root ./my-index --output aliases.yaml
      graphrag-ray index ./documents --root ./my-index --set names.aliases_file=aliases.yaml
    """
    from graphrag_ray.cli.progress import default_observer
    from graphrag_ray.indexing import resolution_preview

    if output is not None and Path(output).suffix.lower() not in _FORMATS:
        raise UsageError(f"--output {output}: use a file name that ends with {', '.join(_FORMATS[:3])}")
    store, manifest = opts.snapshot()
    settings = opts.settings(manifest.settings, store.url)
    stored = settings.resolution.mode if settings.resolution.mode != "off" else "rules"
    resolution = settings.resolution.model_copy(update={"mode": mode or stored})
    settings = settings.model_copy(update={"resolution": resolution})
    observer = default_observer(quiet=as_json)
    agree = observer.message if yes else _confirm
    found = resolution_preview.preview_resolution(
        store, manifest, opts.root, settings, observer, agree, address
    )
    if output is not None:
        suffix = Path(output).suffix.lower()
        write = {".csv": resolution_preview.as_csv, ".json": resolution_preview.as_json}
        text = write.get(suffix, resolution_preview.as_aliases)(found)
        Path(output).write_text(text, encoding="utf-8")
    if as_json:
        click.echo(resolution_preview.as_json(found), nl=False)
    else:
        _print(found, limit, opts.root, resolution.mode, output)


def _confirm(cost: str) -> None:
    """Ask the user to confirm a cost. Raises UsageError if the user declines or if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{cost} No model has been called yet. Pass --yes to confirm.")
    click.echo(escape_control(cost), err=True)
    if not click.confirm("Ask the model?", default=True, err=True):
        raise UsageError("No model was called.")


def _print(found: Preview, limit: int, root: str, mode: str, output: str | None) -> None:
    out = console.make_console()
    titles = [(title, list(names)) for title, names in groupby(found.proposals, lambda p: p.title)]
    titles.sort(key=lambda item: (not any(p.is_new for p in item[1]), -sum(p.mentions for p in item[1])))
    new = sum(p.is_new for p in found.proposals)
    names = plural(len(found.proposals), "name")
    out.print(f"Snapshot {found.snapshot}: {names} to replace, {new:,} of them new", style="bold")
    for title, proposals in titles[: limit or None]:
        out.print(f"\n{collapse_whitespace(title)}", style="bold")
        for p in proposals:
            where = f" in {p.document}" if p.document else ""
            why = collapse_whitespace(f"{p.rule}: {p.evidence}", _MAX_EVIDENCE)
            mark = "+" if p.is_new else " "
            out.print(
                f"  {mark} {collapse_whitespace(p.name)}{where}, {plural(p.mentions, 'mention')} ({why})"
            )
    if len(titles) > limit > 0:
        out.print(f"\n{len(titles) - limit:,} more entities (--limit 0 shows all)")
    if found.undone:
        out.print(f"\n{plural(len(found.undone), 'name')} would no longer be replaced:", style="bold")
        for p in found.undone[: limit or None]:
            out.print(f"  - {collapse_whitespace(p.name)} → {collapse_whitespace(p.title)} ({p.rule})")
    if mode == "model":
        verdicts = ", ".join(f"{n:,} {verdict}" for verdict, n in found.verdicts.items())
        failed = f"; {plural(found.failed, 'request')} failed" if found.failed else ""
        out.print(f"\nVerdicts of the model: {verdicts}{failed}")
        out.print(f"Cost: {console.format_cost(found.cost_usd, 'resolve')}")
    if output is not None:
        out.print(f"\nWritten to {output}")
    apply = f"graphrag-ray index INPUT --root {shlex.quote(root)} --set resolution.mode={mode}"
    out.print(f"\nApply: {apply}", soft_wrap=True)
