"""`graphrag-ray init`: settings and prompts to edit."""

from __future__ import annotations

from pathlib import Path

import click

from graphrag_ray.errors import UsageError
from graphrag_ray.terminal.options import Command


@click.command(cls=Command)
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

    template = (Path(__file__).parent.parent / "settings.yaml").read_text("utf-8")
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
